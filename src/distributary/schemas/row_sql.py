"""What a row should be and which columns are written: conditions and expressions in SQL over decoded rows.

Evaluated by DataFusion inside the task that decoded the rows, in Arrow, by every layout alike. Each batch comes from
one schema version. What refers to a field that this version lacks is null: a condition holds, a column is left out.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config import Tables
from distributary.errors import SqlInvalid

_TABLE = "rows"
_LACKS = re.compile(r"No field named|not found in schema|field .* not found", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """An expectation. `that`: a condition in SQL."""

    name: str
    that: str
    otherwise: Literal["warn", "drop", "fail"] = "warn"


@dataclass(frozen=True)
class CheckedRows:
    """`rows`: with the columns that are written, all of them still. `dropped`: row -> the expectation that it breaks.
    `warnings`, `failures`: rows by expectation. `warned`: row -> expectations that it breaks and is written."""

    rows: pa.RecordBatch
    dropped: Mapping[int, str] = field(default_factory=dict)
    warned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def warnings(self) -> Counter[str]:
        return Counter(name for row, names in self.warned.items() if row not in self.dropped for name in names)


@dataclass(frozen=True)
class RowSql:
    """Expectations and select list of one route's table: plain text, so that it ships to any task."""

    rules: tuple[Rule, ...] = ()
    select: tuple[str, ...] | None = None

    @classmethod
    def of(cls, tables: Tables, route: str) -> RowSql:
        expectations, select, _ = tables.row_settings_of(route)
        rules = tuple(Rule(e.name, e.that, e.otherwise) for e in expectations)
        return cls(rules, None if select is None else tuple(select))

    @property
    def is_plain(self) -> bool:
        return not self.rules and self.select is None

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """The columns that rows of a writer's `schema` have when they are written. Raises SqlInvalid."""
        return schema if self.select is None else _plan(self, schema).columns

    def apply(self, rows: pa.RecordBatch) -> CheckedRows:
        """Try the expectations and make the columns. Raises SqlInvalid."""
        if self.is_plain:
            return CheckedRows(rows)
        plan = _plan(self, rows.schema)
        dropped: dict[int, str] = {}
        warned: dict[int, tuple[str, ...]] = {}
        failures: dict[str, int] = {}
        with _registered(rows) as engine:
            broken_rows, written = _broken(plan, engine), _selected(plan, engine, rows)
        for rule, broken in zip(plan.rules, broken_rows, strict=True):
            if not len(broken):
                continue
            if rule.otherwise == "fail":
                failures[rule.name] = len(broken)
            for row in broken.tolist():
                if rule.otherwise == "drop":
                    dropped.setdefault(row, rule.name)
                elif rule.otherwise == "warn":
                    warned[row] = (*warned.get(row, ()), rule.name)
        return CheckedRows(written, dropped, warned, failures)


def check_sql(tables: Tables) -> None:
    """Raises SqlInvalid for SQL that no schema could make right."""
    for key, expectations in tables.each("expectations").items():
        for n, expectation in enumerate(expectations):
            _try(f"{key}[{n}].that", f"SELECT ({expectation.that}) FROM {_TABLE}", expectation.that)
    for key, select in tables.each("select").items():
        for n, item in enumerate(select or ()):
            _try(f"{key}[{n}]", f"SELECT {item} FROM {_TABLE}", item)


# -- plans -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What of the SQL a writer's schema has the fields for. `columns`: of the rows that are written."""

    rules: tuple[Rule, ...]
    items: tuple[str, ...] | None
    columns: pa.Schema


@lru_cache(maxsize=4096)
def _plan(sql: RowSql, schema: pa.Schema) -> _Plan:
    rules = tuple(r for r in sql.rules if _fields(schema, f"({r.that})", "tables.expectations") is not None)
    if sql.select is None:
        return _Plan(rules, None, schema)
    items: list[str] = []
    columns: list[pa.Field] = []
    for item in sql.select:
        selected = _fields(schema, item, "tables.select")
        if selected is None:
            continue
        items.append(item)
        columns += [pa.field(f.name, _stored(f.type)) for f in selected]
    names = Counter(c.name.lower() for c in columns)
    if twice := [name for name, count in names.items() if count > 1]:
        detail = f"column {twice[0]!r} comes twice; name one of them otherwise: <expression> AS <name>"
        raise SqlInvalid(key="tables.select", sql=", ".join(sql.select), detail=detail)
    return _Plan(rules, tuple(items), pa.schema(columns))


def _fields(schema: pa.Schema, item: str, key: str) -> list[pa.Field] | None:
    """The columns that a select item makes of rows of `schema`; None where the schema lacks a field of it."""
    try:
        with _registered(_empty(schema)) as context:
            return list(context.plan(f"SELECT {item} FROM {_TABLE}").schema())
    except Exception as e:
        if _LACKS.search(str(e)):
            return None
        raise SqlInvalid(key=key, sql=item, detail=_words(e)) from e


def _try(key: str, sql: str, item: str) -> None:
    try:
        with _registered(_empty(pa.schema([("_", pa.int32())]))) as context:
            context.plan(sql)
    except Exception as e:
        if not _LACKS.search(str(e)):
            raise SqlInvalid(key=key, sql=item, detail=_words(e)) from e


def _words(error: Exception) -> str:
    return str(error).replace("DataFusion error: ", "").split("\n", 1)[0][:300]


# -- rows --------------------------------------------------------------------------------------------------


def _broken(plan: _Plan, engine: _Engine) -> list[np.ndarray]:
    """The rows, by number, for which each rule's condition is false."""
    if not plan.rules:
        return []
    conditions = ", ".join(f"CAST(({r.that}) AS BOOLEAN) AS c{n}" for n, r in enumerate(plan.rules))
    conditions_met = engine.plan(f"SELECT {conditions} FROM {_TABLE}").to_arrow_table()
    return [np.flatnonzero(np.asarray(pc.equal(column, False).fill_null(False))) for column in conditions_met.columns]


def _selected(plan: _Plan, engine: _Engine, rows: pa.RecordBatch) -> pa.RecordBatch:
    if plan.items is None:
        return rows
    selected = engine.plan(f"SELECT {', '.join(plan.items)} FROM {_TABLE}").to_arrow_table()
    columns = [column.combine_chunks().cast(f.type) for column, f in zip(selected.columns, plan.columns, strict=True)]
    arrays = [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.columns)


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type as tables have it: DataFusion has words of its own for text, and unsigned numbers."""
    for engine_type, stored in _STORED:
        if kind == engine_type:
            return stored
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _stored(f.type)) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type)))
    return kind


_STORED = (
    (pa.string_view(), pa.string()),
    (pa.large_string(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.large_binary(), pa.binary()),
    (pa.uint8(), pa.int32()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.date64(), pa.date32()),
)


class _Engine:
    """DataFusion with one table at a time. Its library is loaded when a pipeline has a use for it."""

    def __init__(self) -> None:
        from datafusion import SessionConfig, SessionContext, SQLOptions

        # One batch in, one batch out, in order; the task has one core.
        self.context = SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(1 << 20))
        self.read_only = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)

    def plan(self, sql: str) -> Any:
        return self.context.sql_with_options(sql, self.read_only)


class _OfThread(threading.local):
    """Tables of the engine `spark` are prepared side by side, and an engine holds the rows of one at a time."""

    engine: _Engine | None = None


_OF_THREAD = _OfThread()


@contextmanager
def _registered(rows: pa.RecordBatch) -> Iterator[_Engine]:
    engine = _OF_THREAD.engine = _OF_THREAD.engine or _Engine()
    batch = pa.RecordBatch.from_arrays([_masked(c) for c in rows.columns], schema=rows.schema)
    engine.context.register_record_batches(_TABLE, [[batch]])
    try:
        yield engine
    finally:
        engine.context.deregister_table(_TABLE)


def _masked(column: pa.Array) -> pa.Array:
    """The same values, with null in every field of a struct that is null: DataFusion (55) reads the fields alone."""
    if not pa.types.is_struct(column.type):
        return column
    fields = [_masked(child) for child in column.flatten()]
    if not fields:
        return column
    mask = pc.is_null(column) if column.null_count else None
    return pa.StructArray.from_arrays(fields, fields=list(column.type), mask=mask)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
