"""Rows of message tables, compared value by value with their records, decoded once more by the official library.

A row is found by its origin (`_origin`: topic, partition, offset). A sample of each (route, schema id), or all of them.
Rows of a Delta source name no record: see `delta_values`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.audit.judge.debezium import judge_changes
from distributary.audit.judge.delta_values import DeltaValues
from distributary.audit.judge.opened_records import UNREADABLE, Record, RecordOpener
from distributary.audit.judge.plain_values import nothing, plain, spelled
from distributary.audit.judge.raw_records import BronzeRecords, KafkaRecords, Place, Records
from distributary.audit.judge.read_payload import ReadPayload
from distributary.audit.verify import TableCheck, Verification
from distributary.config import KafkaSource, Pipeline
from distributary.errors import DistributaryError
from distributary.errors.border import contained
from distributary.names import shown, table_name
from distributary.tables.files import TableFiles
from distributary.tables.store import Store
from distributary.tables.table import Table

SAMPLE = 20
"""Rows of each (route, schema id) in a data file, where not all are compared."""
AT_ONCE = 4_096
KEY, ROUTE = "_route_key", "_route"
"""Columns of the table of `layout: wide`, which has a struct per route beside them."""


@dataclass
class _Compared:
    rows: int = 0
    gone: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


def judge_payloads(config: Pipeline, counted: Verification, *, deep: bool) -> Verification:
    """`counted` with what a comparison with the records tells. `deep`: of all rows.

    What cannot be compared is said in `notes`, and is no problem.
    """
    if config.envelope.is_debezium:
        return judge_changes(config, counted)
    if not config.tables.origin:
        text = "nothing ties rows to their records (tables.origin: false): values were not compared"
        return replace(counted, notes=(*counted.notes, text))
    try:
        judge = _judge_of(config, Store.of(config.tables), deep)
    except BaseException as e:
        return replace(counted, notes=(*counted.notes, f"values were not compared: {contained(e)}"))
    try:
        # Those with keys are judged by `upserts`.
        plain_ones = [table for table in counted.tables if not config.tables.keys_of(table.route)]
        judged = {table.route: table for table in judge.all(plain_ones)}
        tables = [judged.get(table.route, table) for table in counted.tables]
    finally:
        judge.close()
    return counted.judged(tables, judge.notes)


def _judge_of(config: Pipeline, store: Store, deep: bool) -> _Judge | DeltaValues:
    if config.bronze_table is not None:
        return _Judge(config, store, BronzeRecords(config, store), deep)
    if isinstance(config.source, KafkaSource):
        return _Judge(config, store, KafkaRecords(config.source), deep)
    return DeltaValues(config, store, deep)


class _Judge:
    def __init__(self, config: Pipeline, store: Store, records: Records, deep: bool) -> None:
        self.config, self.store, self.records, self.deep = config, store, records, deep
        self.notes: list[str] = []
        self.opener = RecordOpener(config)
        self._down = False

    def all(self, tables: Sequence[TableCheck]) -> list[TableCheck]:
        return [self.table(table) for table in tables]

    def close(self) -> None:
        self.records.close()

    def table(self, table: TableCheck) -> TableCheck:
        _, select, function = self.config.tables.row_settings_of(table.route)
        if table.table is None or self._down or not table.rows_written:
            return table
        if select is not None or function is not None:
            self.notes.append(f"{shown(table.route)}: its columns are made by tables.select; they were not compared")
            return table
        compared = _Compared()
        try:
            self._compare(table, compared)
        except DistributaryError as e:
            self._down = True
            self.notes.append(f"values were not compared: {e}")
            return table
        except BaseException as e:
            return replace(table, problems=(*table.problems, f"its values cannot be compared: {contained(e)}"))
        if compared.gone:
            self.notes.append(
                f"{shown(table.route)}: {compared.gone} records are gone at the source, their rows were not compared"
            )
        wrong = [f"{n} of {compared.rows} rows {text}" for text, n in compared.wrong.items()]
        return replace(table, rows_compared=compared.rows, problems=(*table.problems, *wrong))

    def _compare(self, table: TableCheck, compared: _Compared) -> None:
        for rows in self._rows(table):
            places = {Place(o["topic"], o["partition"], o["offset"]) for _, o in rows}
            record_of = self.records.get(table.route, places)
            for row, origin in rows:
                record = record_of.get(Place(origin["topic"], origin["partition"], origin["offset"]))
                if record is None:
                    compared.gone += 1
                    continue
                compared.rows += 1
                why = self._wrong(table.route, record, row, origin)
                if why:
                    compared.wrong[why] += 1

    def _wrong(self, route: str, record: Record, row: dict[str, Any], origin: Mapping[str, Any]) -> str | None:
        try:
            named, schema_id, message = self._message(route, record)
            of_key = self.opener.key(record)
        except UNREADABLE as e:
            return f"have a record that cannot be read: {type(e).__name__}: {e}"
        if named != route:
            return f"have a record of {shown(named)}"
        if schema_id != origin["schema_id"]:
            return "have a record of another schema id"
        if self.config.shared_table is not None:
            struct_column = table_name(route)
            if row.pop(ROUTE, None) != route or any(not nothing(v) for c, v in row.items() if c != struct_column):
                return "have a route or values of another route"
            row = row.get(struct_column) or {}
        for name, key_value in of_key.items():
            if not message.has(name) and spelled(row.get(name)) != spelled(key_value):
                return f"have another {shown(name)} than their record's key"
        column = message.differs({name: cell for name, cell in row.items() if name not in of_key})
        if column is not None and any(map(message.has, of_key)):
            column = message.differs(row)
        return None if column is None else f"have another {shown(column)} than their record"

    def _message(self, route: str, record: Record) -> tuple[str | None, int | None, ReadPayload]:
        """(route, schema id, what it says) of a record, by the official library."""
        opened = self.opener.envelope(record) if record.whole else (route, record.schema_id, record.body)
        named, schema_id, body = opened
        writer, body = self.opener.payload(schema_id, body)
        return named, writer.schema_id, self.opener.read(writer, body)

    def _rows(self, table: TableCheck) -> Iterator[list[tuple[dict[str, Any], Mapping[str, Any]]]]:
        """(values, origin) of the rows that are to be compared, some thousand at a time."""
        opened = Table(str(table.table), self.store).open()
        if opened is None:
            return
        files, shared = TableFiles(opened), self.config.shared_table
        if shared is not None:
            files = files.within(KEY, table_name(table.route))
        ours = {"_origin"} if shared is None else {"_origin", KEY}
        for name in files.names:
            sampled = Counter[int]()
            for piece in files.read_whole(name):
                piece = _ours(piece, sampled, self.deep)
                for begin in range(0, piece.num_rows, AT_ONCE):
                    some = piece.slice(begin, AT_ONCE)
                    columns = [c for c in some.column_names if c not in ours]
                    values = zip(*(plain(some.column(c)) for c in columns), strict=True)
                    rows = [dict(zip(columns, row_values, strict=True)) for row_values in values]
                    yield list(zip(rows, plain(some.column("_origin")), strict=True))


def _ours(piece: pa.Table, taken_of: Counter[int], deep: bool) -> pa.Table:
    """Rows that name a record; without `deep` the first of each schema id."""
    origin = piece.column("_origin").combine_chunks() if "_origin" in piece.column_names else None
    if origin is None or not pa.types.is_struct(origin.type):
        return piece.slice(0, 0)
    named = pc.and_(pc.is_valid(pc.struct_field(origin, "batch")), pc.is_valid(pc.struct_field(origin, "offset")))
    if deep:
        return piece.filter(named)
    indices = []
    ids = pc.struct_field(origin, "schema_id").to_pylist()
    for index, (is_named, schema_id) in enumerate(zip(named.to_pylist(), ids, strict=True)):
        if is_named and taken_of[schema_id] < SAMPLE:
            taken_of[schema_id] += 1
            indices.append(index)
    return piece.take(pa.array(indices, pa.int64()))
