"""What a plan says: of each table, and of the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from distributary.tables.spark_engine import spark_schema


@dataclass
class TablePlan:
    """What a run would do to one table. Columns by path, types as Spark SQL spells them.

    `new`: the run would make it. `new_columns`: path -> type; for a new table all of its columns. `type_changes`:
    path -> [type now, type then]. `parked`: why the table would not be written; its rows would be quarantined.
    """

    route: str
    table: str
    new: bool
    engine: str = "task"
    why_spark: str | None = None
    rows_in: int = 0
    rows_written: int = 0
    rows_quarantined: int = 0
    schema_ids: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    new_columns: dict[str, str] = field(default_factory=dict)
    type_changes: dict[str, list[str]] = field(default_factory=dict)
    parked: str | None = None

    def add_changes(self, before: pa.Schema | None, after: pa.Schema | None) -> None:
        """What would become of the table's columns. None: there is no table."""
        for path, old, new in _changes(before or pa.schema([]), after or pa.schema([]), ""):
            if old is None:
                self.new_columns[path] = new
            else:
                self.type_changes[path] = [old, new]


@dataclass
class PlanReport:
    """What a run would do now. Rows of `rows_in` would be either written or quarantined; tombstones are neither, and
    so are `excluded` ones, of routes that the pipeline file leaves out.

    `after_batch`: the newest finished batch, None where nothing was read yet. `unknown_schema_ids`: id -> rows.
    `reasons`: of all rows that would be quarantined, also of those without a route. `files`: change files that wait;
    of `files_again` of them events are in the quarantine already, and how many of those come in is not planned.
    `stops`: the limit of the quarantine at which the run would end after these batches, leaving the rest.
    `notes`: what else is to be known.
    """

    pipeline: str
    source: str
    after_batch: int | None = None
    batches: int = 0
    rows_in: int = 0
    rows_written: int = 0
    rows_quarantined: int = 0
    tombstones: int = 0
    tables: list[TablePlan] = field(default_factory=list)
    unknown_schema_ids: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    files: int | None = None
    files_again: int = 0
    stops: str | None = None
    notes: list[str] = field(default_factory=list)
    excluded: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def add_counts(into: dict[Any, int], counts: Mapping[Any, int]) -> None:
    for key, count in counts.items():
        into[key] = into.get(key, 0) + count


def _changes(before: Sequence[pa.Field], after: Sequence[pa.Field], path: str) -> Iterator[tuple[str, str | None, str]]:
    """(column path, type before or None, type after) of what differs."""
    types_before = {f.name.lower(): f.type for f in before}
    for new in after:
        name = f"{path}{new.name}"
        old = types_before.get(new.name.lower())
        if old is None:
            yield name, None, _type(new.type)
        elif pa.types.is_struct(old) and pa.types.is_struct(new.type):
            yield from _changes(list(old), list(new.type), f"{name}.")
        elif old != new.type:
            yield name, _type(old), _type(new.type)


def _type(kind: pa.DataType) -> str:
    return str(spark_schema(pa.schema([pa.field("c", kind)]))[0].dataType.simpleString())
