"""`read_events`: the bytes of one change file to events in normal form, good and bad apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes import types
from distributary.changes.contents import first_row, read_rows
from distributary.changes.hashing import row_hash
from distributary.changes.metadata import BETWEEN, Metadata, Rows, is_constant, names_tables, places_by, unknown_fields
from distributary.changes.model import METADATA, METADATA_TYPE, BadEvent, Events, FileEvents, Kind, Reading, SourceTable
from distributary.changes.sequence import Sequences, sequence_numbers
from distributary.errors import FileBroken, Reason
from distributary.names import beside_ours

JSON_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


def read_events(body: pa.Buffer | bytes, path: str, reading: Reading, schema_text: str | None = None) -> FileEvents:
    """Every event of a file: in `events`, in `bad`, or counted in `skipped`. `schema_text` is the `.schema` file's.

    Raises:
        FileBroken: nothing of the file can be read, or it is something else than change events.
    """
    event_parts = EventParts(reading, typed=schema_text is not None or not path.lower().endswith(JSON_ENDINGS))
    for rows in read_rows(pa.py_buffer(body), path, reading, schema_text, event_parts.bad):
        if len(rows.numbers) > 1 and not names_tables(rows):
            fields = ", ".join([*rows.top, *(name for name, _, _ in rows.payload)][:8])
            raise FileBroken(
                path=path, detail=f"it holds no change events: nothing in it names a table; it has {fields}"
            )
        event_parts.add(rows)
    return event_parts.file_events()


def peek(body: pa.Buffer | bytes, path: str, reading: Reading) -> SourceTable | None:
    """Whose the first event of a file is. `body` may be only the file's beginning (Parquet: the whole).

    None for a file without events, or whose first one does not say.

    Raises:
        FileBroken: it is no change file.
    """
    rows = first_row(pa.py_buffer(body), path, reading)
    if rows is None:
        return None
    metadata = Metadata(rows)
    return None if metadata.faults else metadata.source_table(0, reading.kind)


Numbering = Callable[[str, pa.RecordBatch, pa.Array, Any], Sequences]
"""As `sequence_numbers`."""
Group = tuple[SourceTable, str, tuple[str, ...], pa.Schema]


class EventParts:
    """Collects events by table, schema and keys. The columns count too: without a schema file, JSON has types of its
    own in each file, and two objects may claim one schema key."""

    def __init__(self, reading: Reading, *, typed: bool, sequence: Numbering = sequence_numbers) -> None:
        self._reading, self._typed, self._sequence = reading, typed, sequence
        self._tables: dict[Group, list[tuple[pa.Table, npt.NDArray[np.int64]]]] = {}
        self.bad: list[BadEvent] = []
        self._unknown: set[str] = set()
        self._skipped = 0
        self._beyond: Counter[str] = Counter()

    def file_events(self) -> FileEvents:
        events = [
            Events(table, schema_key, keys, pa.concat_tables([rows for rows, _ in tables]),
                   pa.chunked_array([pa.array(numbers) for _, numbers in tables]), self._typed)
            for (table, schema_key, keys, _), tables in self._tables.items()
        ]  # fmt: skip
        bad = sorted(self.bad, key=lambda event: event.row)
        return FileEvents(events, bad, tuple(sorted(self._unknown)), self._skipped, dict(self._beyond))

    def add(self, rows: Rows, kind: Kind | None = None) -> None:
        """`kind`: of the rows' source, where it is known."""
        self._unknown |= unknown_fields(rows)
        metadata = Metadata(rows)
        columns = metadata.columns()
        good = np.ones(len(rows.numbers), bool)
        self._reject(rows, good, (*rows.faults, *metadata.faults))
        for (group, names), places in _groups(metadata, columns, kind or self._reading.kind):
            mine = places[good[places]]
            if not len(mine):
                continue
            if len(mine) == len(good):
                self._add(group, names, rows, columns)
            else:
                indices = pa.array(mine)
                self._add(group, names, rows.take(mine), {name: array.take(indices) for name, array in columns.items()})

    def _reject(self, rows: Rows, good: npt.NDArray[np.bool_], faults: Iterable[tuple[int, Reason, str]]) -> None:
        for place, reason, detail in faults:
            if good[place]:
                good[place] = False
                self.bad.append(BadEvent(int(rows.numbers[place]), reason, detail, rows.text(place)))

    def _add(
        self, group: tuple[SourceTable, str], names: tuple[str, ...], rows: Rows, metadata: dict[str, pa.Array]
    ) -> None:
        table, schema_key = group
        count = len(rows.numbers)
        good = np.ones(count, bool)
        payload: dict[str, pa.Array] = {}
        own = own_names([name for name, _, _ in rows.payload])
        for name, node, stored in rows.payload:
            if not types.has_column(node):
                continue
            column = types.column(node, stored, self._reading.wanted(table.route, name), self._reading)
            payload[own[name]] = column.array
            if column.beyond:
                self._beyond[f"{table.route}.{name}"] += column.beyond
            if column.bad is not None:
                faults = ((int(place), Reason.VALUE_OUT_OF_RANGE, f"column {name}: {column.detail}")
                          for place in np.flatnonzero(column.bad))  # fmt: skip
                self._reject(rows, good, faults)
        names = tuple(name if (field := spelled_in(list(own), name)) is None else own[field] for name in names)
        keys, faults_of_keys = match_keys(names, payload, table.kind, metadata, count)
        self._reject(rows, good, faults_of_keys)
        if table.kind is Kind.MONGODB:
            self._skip_gone(payload, metadata, good)
        batch = pa.RecordBatch.from_arrays(list(metadata.values()), names=list(metadata))
        numbers, bad = self._sequence(table.kind, batch, row_hash(payload, count), self._reading.order)
        self._reject(rows, good, ((place, Reason.BAD_POSITION, detail) for place, detail in bad))
        arrays = [numbers if name == "change_sequence_number" else metadata[name] for name in METADATA_TYPE.names]
        struct = pa.StructArray.from_arrays(arrays, fields=list(METADATA_TYPE))
        result = pa.Table.from_arrays([*payload.values(), struct], names=[*payload, METADATA])
        if not good.all():
            result = result.filter(pa.array(good))
        # what only bad events had is no column of the table
        perhaps = [
            name for name in (own.get(name, name) for name in rows.untyped) if name in payload and name not in keys
        ]
        result = result.drop_columns([name for name in perhaps if _is_empty(result.column(name))])
        if len(result):
            self._tables.setdefault((table, schema_key, keys, result.schema), []).append((result, rows.numbers[good]))

    def _skip_gone(
        self, payload: dict[str, pa.Array], metadata: dict[str, pa.Array], good: npt.NDArray[np.bool_]
    ) -> None:
        """An update with no document: it was gone when Datastream looked it up (DataflowTemplates 3a2bdfd9ad)."""
        if "data" not in payload:
            return
        has_no_document = pc.and_(payload["data"].is_null(), pc.equal(metadata["change_type"], "UPDATE"))
        has_no_document = pc.fill_null(has_no_document, False).to_numpy(zero_copy_only=False) & good
        self._skipped += int(has_no_document.sum())
        good &= ~has_no_document


def _groups(
    metadata: Metadata, columns: dict[str, pa.Array], kind: Kind | None
) -> Iterable[tuple[tuple[tuple[SourceTable, str], tuple[str, ...]], npt.NDArray[np.int64]]]:
    """The events by table, schema and names of keys; nearly always it is one group."""
    names = [metadata.source["database"], metadata.source["schema"], metadata.table, columns["schema_key"]]
    names.append(metadata.keys())
    number = np.zeros(len(metadata.table), np.int64)
    for array in names:
        if not is_constant(array):
            code = pc.fill_null(array, "").dictionary_encode()
            number = number * len(code.dictionary) + code.indices.to_numpy(zero_copy_only=False)
            _, number = np.unique(number, return_inverse=True)  # small again: any number of parts fits
    for places in places_by(number):
        first = int(places[0])
        schema_key, keys = (array[first].as_py() or "" for array in names[3:])
        yield ((metadata.source_table(first, kind), schema_key), tuple(filter(None, keys.split(BETWEEN)))), places


def spelled_in(names: Sequence[str], name: str) -> str | None:
    """The one of `names` that is meant by `name`: spelled just so, else the first that differs in case only."""
    if name in names:
        return name
    return next((spelling for spelling in names if spelling.lower() == name.lower()), None)


def match_keys(
    names: tuple[str, ...], payload: dict[str, pa.Array], kind: Kind, metadata: dict[str, pa.Array], count: int
) -> tuple[tuple[str, ...], list[tuple[int, Reason, str]]]:
    """Key names as the payload spells them, and the events that have no value in any of them.

    Exactly first, then without case: SQL Server's `order_id` is the payload's `ORDER_ID`. An Oracle delete may hold
    nothing but its row_id, by which it is found (DataflowTemplates#4232).
    """
    if not names:
        return (), []
    keys = tuple(spelled_in(list(payload), name) or "" for name in names)
    missing = [name for name, key in zip(names, keys, strict=True) if not key]
    has_key = pa.repeat(False, count)
    for key in keys:
        if key and payload[key].null_count < count:
            has_key = pc.or_(has_key, payload[key].is_valid())
    if missing:
        detail, has_key = f"the payload has no key column {', '.join(missing)}", pa.repeat(False, count)
    else:
        detail = f"no value in the key column {', '.join(keys)}"
    if kind is Kind.ORACLE:
        has_key = pc.or_(has_key, pc.and_(metadata["is_deleted"], metadata["source"].field("row_id").is_valid()))
    if pc.all(has_key).as_py():
        return tuple(key or name for key, name in zip(keys, names, strict=True)), []
    places = np.flatnonzero(~has_key.to_numpy(zero_copy_only=False))
    return keys, [(int(place), Reason.NO_KEY_VALUE, detail) for place in places]


def _is_empty(column: pa.ChunkedArray) -> bool:
    return int(column.null_count) == len(column)


def own_names(names: Sequence[str]) -> dict[str, str]:
    """Payload fields' columns; one that is called as ours, in any case, gets another name: Delta has no two such."""
    return dict(zip(names, beside_ours(names, (METADATA,)), strict=True))
