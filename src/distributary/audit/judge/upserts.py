"""Is a table with keys what its records say: one row for each key, that of its newest record, with its values?

All records are read once more, opened by the official library, and gone through one by one; of each key the newest is
remembered. Then the table's rows are held against them. A thorough look, not a fast one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from distributary.audit.judge.opened_records import UNREADABLE, Record, RecordOpener
from distributary.audit.judge.plain_values import spelled
from distributary.audit.judge.raw_records import KafkaRecords, Place, PlacedRecord
from distributary.audit.judge.read_payload import ReadPayload
from distributary.audit.judge.table_rows import table_rows, tombstone_rows
from distributary.audit.verify import TableCheck, Verification
from distributary.config import KafkaSource, Pipeline
from distributary.errors import DistributaryError
from distributary.errors.border import contained
from distributary.names import shown
from distributary.state.checkpoint import read_offsets, stream_id
from distributary.state.divisions import current_parts
from distributary.state.ledger import Ledger, read_entries, totals
from distributary.tables.store import Store

OURS = ("_change", "_deleted", "_deleted_at")
SAMPLE = 20
"""Rows of each data file whose values are compared, where not all are."""

Ends = Mapping[tuple[str, int], int]
"""(topic, partition) -> the offset behind the last record that a finished batch has read."""


class RecordSource(Protocol):
    """What has the records still."""

    def every(self, ends: Ends) -> Iterator[PlacedRecord]: ...

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]: ...

    def close(self) -> None: ...


class Newest(NamedTuple):
    place: tuple[Any, ...]
    at: Place
    gone: bool


def judge_upserts(config: Pipeline, counted: Verification, aside: Iterable[pa.Table], *, deep: bool) -> Verification:
    """`counted` with what a fold of all records tells of the tables with keys. `aside`: the quarantine's open rows.

    What cannot be judged is said in `notes`, and is no problem.
    """
    routes = [t.route for t in counted.tables if config.tables.keys_of(t.route) and t.table is not None]
    if not routes:
        return counted
    if not isinstance(config.source, KafkaSource) or config.bronze_table is not None:
        note = "the rows of tables with keys were not judged: that takes a stream that reads Kafka itself"
        return replace(counted, notes=(*counted.notes, note))
    source = KafkaRecords(config.source)
    try:
        judge = Fold(config, routes, _places(aside))
        ends, merged = _read(config)
        for record in source.every(ends):
            judge.take(record)
        tables = [_judged(judge, table, merged.get(table.route), source, ends, deep=deep) for table in counted.tables]
    except (DistributaryError, OSError) as e:
        return replace(counted, notes=(*counted.notes, f"the rows of tables with keys were not judged: {e}"))
    finally:
        source.close()
    return counted.judged(tables, judge.notes)


def _read(config: Pipeline) -> tuple[dict[tuple[str, int], int], dict[str, str]]:
    """How far finished batches have read, and the address of each route's merged table. Raises TableFault, OSError."""
    store = Store.of(config.tables)
    ends: dict[tuple[str, int], int] = {}
    merged: dict[str, str] = {}
    for stream_config in current_parts(config, store):
        entries = read_entries(stream_config.state_root, store)
        ledger = Ledger(stream_config.state_root, stream_config.pipeline, store, entries)
        stream = stream_id(stream_config.checkpoint_path, store)
        batch = None if stream is None else ledger.finished.get(stream)
        offsets = None if batch is None else read_offsets(stream_config.checkpoint_path, store, batch)
        for topic, partitions in (offsets[0] if offsets else {}).items():
            for partition, end in partitions.items():
                place = (topic, int(partition))
                ends[place] = min(ends.get(place, end), end)
        merged |= {str(e.route): e.merged for e in totals(entries).values() if e.merged is not None}
    return ends, merged


def _places(aside: Iterable[pa.Table]) -> set[Place]:
    places: set[Place] = set()
    for piece in aside:
        columns = (piece.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        places |= {Place(*place) for place in zip(*columns, strict=True)}
    return places


@dataclass
class Fold:
    """The newest record of each key, of some routes. `aside`: records that are kept aside, which count for nothing."""

    config: Pipeline
    routes: Iterable[str]
    aside: set[Place]
    newest: dict[str, dict[str, Newest]] = field(default_factory=dict)
    first: dict[tuple[str | None, int], int] = field(default_factory=dict)
    """(topic, partition) -> the first offset that the source still has."""
    unreadable: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.opener = RecordOpener(self.config)
        self.newest = {route: {} for route in self.routes}

    def take(self, source_record: PlacedRecord) -> None:
        self.first.setdefault((source_record.at.topic, source_record.at.partition), source_record.at.offset)
        if source_record.at in self.aside:
            return
        try:
            route, schema_id, body = self.opener.envelope(source_record.record)
        except UNREADABLE:
            return  # of no route: the quarantine has it, or the counts do not add up
        if route not in self.newest or (source_record.gone and self.config.source.record_key is None):
            return
        try:
            payload = None if source_record.gone else self.read(schema_id, body)
            key, place = self._key(route, payload, source_record.record), self._place(route, payload, source_record)
        except UNREADABLE:
            self.unreadable[route] += 1
            return
        if key is None:
            return
        newest = self.newest[route].get(key)
        if newest is None or place > newest.place:
            self.newest[route][key] = Newest(place, source_record.at, source_record.gone)

    def read(self, schema_id: int | None, body: bytes) -> ReadPayload:
        return self.opener.read(*self.opener.payload(schema_id, body))

    def _key(self, route: str, payload: ReadPayload | None, record: Record) -> str | None:
        """None for a record without a value that names no row."""
        record_key = self.opener.key(record)
        key_values = []
        for name in self.config.tables.keys_of(route):
            value = None if payload is None else payload.value_of(name)
            if value is None and name in record_key and (payload is None or not payload.has(name)):
                value = record_key[name]
            key_values.append(spelled(value))
        return None if all(key_value is None for key_value in key_values) else json.dumps(key_values)

    def _place(self, route: str, payload: ReadPayload | None, source_record: PlacedRecord) -> tuple[Any, ...]:
        """Comparable with those of the same route."""
        place, name = source_record.at, self.config.tables.newest_by_of(route)
        if name is None:
            value: Any = 0
        elif name == "_origin.timestamp":
            value = source_record.time_us
        elif name.startswith("_origin."):
            value = getattr(place, name.removeprefix("_origin."))
        else:
            value = None if payload is None else payload.value_of(name)
        if value is None:
            raise ValueError("it has no place")
        return value.encode() if isinstance(value, str) else value, place.offset, place.partition

    def is_gone(self, place: Place) -> bool:
        """Does the source not reach back to this record?"""
        first = self.first.get((place.topic, place.partition))
        return first is None or place.offset < first

    def key_of(self, route: str, row: Mapping[str, Any]) -> str:
        return json.dumps([spelled(row.get(name)) for name in self.config.tables.keys_of(route)])


def _judged(
    fold: Fold, table: TableCheck, uri: str | None, source: RecordSource, ends: Ends, *, deep: bool
) -> TableCheck:
    _, select, function = fold.config.tables.row_settings_of(table.route)
    if uri is None or table.route not in fold.newest:
        return table
    if select is not None or function is not None:
        fold.notes.append(f"{shown(table.route)}: its columns are made by tables.select; its keys were not judged")
        return table
    try:
        store = Store.of(fold.config.tables)
        rows = chain(table_rows(uri, store), _beside(uri, store, partial(fold.key_of, table.route)))
        compared = compare(fold, table.route, rows, source, ends, deep=deep)
    except BaseException as e:
        return replace(table, problems=(*table.problems, f"its rows cannot be judged: {contained(e)}"))
    if compared.unjudged:
        text = f"{compared.unjudged} rows are of records that the source or the books do not have; they were not judged"
        fold.notes.append(f"{shown(table.route)}: {text}")
    problems = [f"{count} {text}" for text, count in compared.wrong.items() if count]
    every = (*table.problems, *problems)
    return replace(table, rows_compared=compared.rows, rows_living=compared.living, problems=every)


def _beside(uri: str, store: Store, key_of: Callable[[Mapping[str, Any]], str]) -> Iterator[list[dict[str, Any]]]:
    """The deleted keys that lie beside the table, but for those that were there again later: these have a row."""
    if next(tombstone_rows(uri, store), None) is None:
        return
    keys = {key_of(row) for rows in table_rows(uri, store) for row in rows}
    for rows in tombstone_rows(uri, store):
        yield [row for row in rows if key_of(row) not in keys]


@dataclass
class Compared:
    """`rows`: whose values were compared, of `living` ones. `wrong`: in words, and how often."""

    rows: int = 0
    living: int = 0
    unjudged: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


def compare(
    fold: Fold, route: str, pieces: Iterable[list[dict[str, Any]]], source: RecordSource, ends: Ends, *, deep: bool
) -> Compared:
    """Hold a table's rows against the fold."""
    compared, keys_seen, newest = Compared(), set[str](), fold.newest[route]
    for rows in pieces:
        right: dict[Place, dict[str, Any]] = {}
        for row in rows:
            key, place = fold.key_of(route, row), _place_of(row)
            newest_of_key = newest.get(key)
            compared.wrong["rows have a key that is there already"] += key in keys_seen
            keys_seen.add(key)
            if place is None or place.offset >= ends.get((str(place.topic), place.partition), 0) or fold.is_gone(place):
                compared.unjudged += 1  # of a batch that is not finished, or a record that is not there any more
            elif newest_of_key is None:
                # Compaction takes records that delete away in the end.
                compared.wrong["rows have a key that no record has"] += not row["_deleted"]
            elif newest_of_key.at != place:
                compared.wrong["rows are not of the newest record of their key"] += 1
            elif newest_of_key.gone != bool(row["_deleted"]):
                compared.wrong["rows are deleted, or are not, unlike their newest record says"] += 1
            elif not newest_of_key.gone:
                compared.living += 1
                if deep or len(right) < SAMPLE:
                    right[place] = row
        _compare_values(fold, route, right, source, compared)
    missing = sum(key not in keys_seen and not newest_of_key.gone for key, newest_of_key in newest.items())
    compared.wrong["keys have no row in the table"] += missing
    compared.wrong["records cannot be read, and are not in the quarantine"] += fold.unreadable[route]
    return compared


def _place_of(row: Mapping[str, Any]) -> Place | None:
    change = row.get("_change")
    return None if change is None else Place(change["topic"], change["partition"], change["offset"])


def _compare_values(
    fold: Fold, route: str, rows: Mapping[Place, dict[str, Any]], source: RecordSource, compared: Compared
) -> None:
    records = source.get(route, rows)
    record_key = fold.config.source.record_key
    for place, row in rows.items():
        record = records.get(place)
        if record is None:
            compared.unjudged += 1
            continue
        _, schema_id, body = fold.opener.envelope(record)
        payload = fold.read(schema_id, body)
        values = {name: value for name, value in row.items() if name not in OURS}
        for name in record_key.names if record_key is not None else ():
            if not payload.has(name):
                values.pop(name, None)
        compared.rows += 1
        if (column := payload.differs(values)) is not None:
            compared.wrong[f"rows have another {shown(column)} than their record"] += 1
