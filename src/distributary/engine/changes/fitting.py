"""Events of one route, of any number of files and schemas, as rows in its log table's columns.

    payload columns | datastream_metadata | [datastream_metadata_<field> ...] | _origin

A merged table gets the same rows, reduced, without `_origin`. So what may enter is decided once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.file_events import spelled_in
from distributary.changes.key_text import key_texts
from distributary.changes.model import METADATA, Events, Kind, SourceTable
from distributary.engine.changes.rejected_events import as_text, rejected_events
from distributary.engine.changes.task_spec import ORIGIN, ORIGIN_TYPE
from distributary.errors import Reason
from distributary.tables.conform import Cause, by_cause, conform
from distributary.tables.evolve import Evolution, Policy, Slot, evolve
from distributary.tables.merge_rows import DELETED, DELETED_AT

RESERVED = frozenset({METADATA, ORIGIN, DELETED, DELETED_AT})
"""Columns of our own. A payload column of that name becomes `<name>__field`."""

JSON_NUMBERS = (pa.int64(), pa.float64(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_FLAT: Mapping[Kind, tuple[str, ...]] = {Kind.MYSQL: ("log_file", "log_position"), Kind.ORACLE: ("scn",)}


@dataclass(frozen=True, slots=True)
class FilePart:
    """Events of one file that go to one route. `path`: the file's, or each event's own. `again`: they were read before,
    and are in the quarantine. `changed`: the file is not what it was when it was found, so that it will be found
    again. `records`: what tells the events apart where their places may not, since whoever wrote the source may have
    given two the same."""

    events: Events
    path: str | pa.Array
    again: bool = False
    changed: bool = False
    records: pa.Array | None = None


@dataclass
class RouteEvents:
    """All events of one route that a task holds."""

    source: SourceTable
    parts: list[FilePart] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(file_events.events.rows.num_rows for file_events in self.parts)

    @property
    def again(self) -> int:
        return sum(file_events.events.rows.num_rows for file_events in self.parts if file_events.again)

    def key_lists(self) -> list[tuple[str, ...]]:
        """The key columns that the events name: one list in all but the oddest batches. That of the newest is first."""
        key_lists = dict.fromkeys(file_events.events.keys for file_events in self.parts)
        if len(key_lists) > 1:
            key_lists = dict.fromkeys(
                file_events.events.keys for file_events in sorted(self.parts, key=_newest, reverse=True)
            )
        return list(key_lists)


@dataclass(frozen=True)
class Fitted:
    """`table`: the good rows in the columns of `evolution`. `brought`: the columns of which events speak, by schema
    key; a value that has another type than its column speaks of this one too. `split`: columns whose numbers of JSON
    files went to a second column, since these files came with another type. `incoming`: the schemas of the rows that
    entered; `known`: how many columns the table had, which are the first ones of `evolution`."""

    table: pa.Table
    evolution: Evolution
    rejected: list[pa.Table]
    brought: dict[str, tuple[str, ...]]
    split: tuple[str, ...] = ()
    incoming: tuple[pa.Schema, ...] = ()
    known: int = 0


def fit(
    events: RouteEvents,
    schema: pa.Schema | None,
    policy: Policy,
    batch: int,
    *,
    flat: bool,
    keys: Sequence[str] | None = None,
    grow: Callable[[pa.Schema | None, Sequence[pa.Schema]], Evolution] | None = None,
) -> Fitted:
    """Unify the events with a table's schema (None: no table yet); keep aside what may not enter. `flat`: also write
    metadata as columns of their own. `keys`: the key columns by the settings; None: those that the events name.
    `grow`: how the table's columns grow, where more is known of it than `policy`."""
    every = [_rows(read_rows, batch, flat, keys) for read_rows in events.parts]
    rows = list(zip(every, events.parts, strict=True))
    # One way in per schema, in the order of the files: the result does not hang on how many files share one.
    schemas = list(dict.fromkeys(r.schema for r in every))
    grown = None if schema is None else with_origin(schema)
    rejected: list[pa.Table] = []
    while True:
        evolution = evolve(grown, schemas, policy) if grow is None else grow(grown, schemas)
        slots = dict(zip(schemas, evolution.slots, strict=True))
        good: list[pa.Table] = []
        refused: dict[pa.Schema, list[pa.Table]] = {}
        entered: set[pa.Schema] = set()
        for part_rows, file_events in rows:
            fitting = _conformed(
                events.source.route, part_rows, file_events.records, slots[part_rows.schema], evolution.schema
            )
            for conformed, bad in fitting:
                refused.setdefault(part_rows.schema, []).extend(bad)
                good.append(conformed)
                entered |= {part_rows.schema} if conformed.num_rows else set()
        still_entering = [entering for entering in schemas if entering in entered]
        if len(still_entering) == len(schemas) or not (still_entering or grown):
            break
        # A schema of which no row may enter has no say in the table's columns.
        rejected += [
            table for refused_schema, tables in refused.items() if refused_schema not in entered for table in tables
        ]
        rows, schemas = [(r, file_events) for r, file_events in rows if r.schema in entered], still_entering
    rejected += [table for tables in refused.values() for table in tables]
    if grown != schema:
        evolution = replace(evolution, changed=True)
    table = pa.concat_tables(good) if good else evolution.schema.empty_table()
    known_columns = 0 if grown is None else len(grown)
    brought, split = _brought(events, every, slots), _split(events, every, slots, set(evolution.schema.names))
    return Fitted(table, evolution, rejected, brought, split, tuple(still_entering), known_columns)


def _conformed(
    route: str, rows: pa.Table, records: pa.Array | None, slots: Sequence[Slot], schema: pa.Schema
) -> Iterator[tuple[pa.Table, list[pa.Table]]]:
    """The rows in the columns of `schema`, piece by piece, and those of them that may not enter."""
    begin = 0
    for chunk in rows.combine_chunks().to_batches():
        conformed = conform(chunk, slots, schema)
        of_chunk = None if records is None else records.slice(begin, chunk.num_rows)
        begin += chunk.num_rows
        yield conformed.entering(schema), list(_unfit(route, chunk, of_chunk, conformed.rejected))


def with_origin(schema: pa.Schema) -> pa.Schema:
    """A log's columns as this version writes them, or what a merged table without a log would have for one: fields of
    our own are no matter of the policy for new columns."""
    index = schema.get_field_index(ORIGIN)
    if index < 0:
        return schema.append(pa.field(ORIGIN, ORIGIN_TYPE))
    origin = schema.field(index)
    new = [f for f in ORIGIN_TYPE if origin.type.get_field_index(f.name) < 0]
    return schema.set(index, origin.with_type(pa.struct([*origin.type, *new]))) if new else schema


def _split(
    events: RouteEvents, rows: Sequence[pa.Table], slots: Mapping[pa.Schema, Sequence[Slot]], names: Set[str]
) -> tuple[str, ...]:
    """Without a `.schema` file whole numbers are long, others what `source.json_numbers` says, each file by itself.
    `names`: of all columns; one whose own is not there gave way to another case of it, whatever the types."""
    split_columns = {
        slot.source
        for file_events, part_rows in zip(events.parts, rows, strict=True)
        if not file_events.events.typed
        for slot in slots.get(part_rows.schema, ())
        if slot.target is not None and slot.target.startswith(f"{slot.source}__") and slot.source in names
        if part_rows.schema.field(slot.source).type in JSON_NUMBERS
        or pa.types.is_decimal(part_rows.schema.field(slot.source).type)
    }
    return tuple(sorted(split_columns))


def _brought(
    events: RouteEvents, rows: Sequence[pa.Table], slots: Mapping[pa.Schema, Sequence[Slot]]
) -> dict[str, tuple[str, ...]]:
    brought: dict[str, set[str]] = {}
    for file_events, part_rows in zip(events.parts, rows, strict=True):
        if part_rows.schema not in slots:
            continue
        names = brought.setdefault(file_events.events.schema_key, set())
        names.update(n for slot in slots[part_rows.schema] for n in (slot.source, slot.target) if n is not None)
    return {key: tuple(sorted(names)) for key, names in brought.items()}


def _rows(file_events: FilePart, batch: int, flat: bool, keys: Sequence[str] | None = None) -> pa.Table:
    """The rows of one part with all the columns that they bring."""
    events = file_events.events
    rows = events.rows
    names = [*(column_name(n, flat=flat) for n in rows.column_names[:-1]), rows.column_names[-1]]
    rows = rows.rename_columns(names)
    if flat:
        for name, column in _flat_columns(events):
            rows = rows.append_column(name, column)
    count = rows.num_rows
    numbers = events.numbers.combine_chunks() if isinstance(events.numbers, pa.ChunkedArray) else events.numbers
    path = pa.repeat(file_events.path, count) if isinstance(file_events.path, str) else file_events.path
    origin = [path, numbers, pa.repeat(pa.scalar(batch, pa.int64()), count)]
    origin += _key(events, events.keys if keys is None else keys)
    return rows.append_column(ORIGIN, pa.StructArray.from_arrays(origin, fields=list(ORIGIN_TYPE)))


def _key(events: Events, keys: Sequence[str]) -> list[pa.Array]:
    """Each event's key and the names of its columns, as `ORIGIN_TYPE` has them."""
    count = events.rows.num_rows
    if not keys:
        return [pa.nulls(count, pa.string()), pa.nulls(count, pa.string())]
    names = events.rows.column_names[:-1]
    columns = [events.rows.column(name) if (name := spelled_in(names, key)) else pa.nulls(count) for key in keys]
    return [key_texts(columns), pa.repeat(key_names(keys), count)]


def key_names(keys: Sequence[str]) -> str:
    """The names of key columns, as a log has them (`ORIGIN_TYPE`)."""
    return json.dumps(list(keys), ensure_ascii=False, separators=(",", ":"))


def column_name(name: str, *, flat: bool = False) -> str:
    """The column of a payload field: its own name, unless that is one of ours."""
    folded = name.lower()
    if folded == f"{METADATA}__field":  # the reader has renamed it
        return name
    ours = folded in RESERVED or (flat and folded.startswith(f"{METADATA}_"))
    return f"{name}__field" if ours else name


def _flat_columns(events: Events) -> Iterator[tuple[str, pa.ChunkedArray]]:
    metadata = events.rows.column(METADATA)
    yield (
        f"{METADATA}_source_timestamp",
        pc.struct_field(metadata, "source_timestamp").cast(pa.timestamp("ms")).cast(_TIME),
    )
    for name in _FLAT.get(events.table.kind, ()):
        yield f"{METADATA}_source_metadata_{name}", pc.struct_field(metadata, ["source", name])


def _unfit(
    route: str, rows: pa.RecordBatch, records: pa.Array | None, causes: Mapping[int, Cause]
) -> Iterator[pa.Table]:
    for (reason, column), positions in by_cause(causes).items():
        unfit_rows = pa.Table.from_batches([rows]).take(pa.array(positions, pa.int64()))
        origin = unfit_rows.column(ORIGIN).combine_chunks()
        values = as_text(unfit_rows.drop_columns([ORIGIN]))
        unfit_records = None if records is None else records.take(pa.array(positions, pa.int64()))
        yield rejected_events(route, origin, reason, f"column {column!r}", values, records=unfit_records)


def _newest(file_events: FilePart) -> str:
    """The place in true order of a part's newest event."""
    return pc.max(pc.struct_field(file_events.events.metadata, "change_sequence_number")).as_py() or ""


def all_unfit(events: RouteEvents, batch: int, reason: Reason, detail: str) -> pa.Table:
    """All events of a route, for the quarantine."""
    origins = [_rows(file_events, batch, False).column(ORIGIN).combine_chunks() for file_events in events.parts]
    numbered = [file_events.records for file_events in events.parts if file_events.records is not None]
    records = pa.concat_arrays(numbered) if numbered else None
    return rejected_events(events.source.route, pa.concat_arrays(origins), reason, detail, records=records)


def newest_ms(events: RouteEvents) -> int | None:
    """The newest source time of the events, ms since 1970."""
    newest_of_parts = [pc.max(pc.struct_field(p.events.metadata, "source_timestamp")).as_py() for p in events.parts]
    return max((ms for ms in newest_of_parts if ms is not None), default=None)


def select(events: Events, chosen: Sequence[int]) -> Events | None:
    """The events with these numbers in their file; None for none."""
    mask = pc.is_in(events.numbers, value_set=pa.array(chosen, pa.int64()))
    numbers = events.numbers.filter(mask)
    if not len(numbers):
        return None
    return replace(events, rows=events.rows.filter(mask), numbers=numbers)
