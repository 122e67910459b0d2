"""Rows of a Delta source's tables against the source: each record that was read has a row with its values.

A record is certain to be read where its version of the source is, by the streams' checkpoints. What the quarantine
still holds of a payload has no row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from distributary.audit.judge.by_value import HELD, READ_ROWS, Payloads, PayloadSample, less, missing, number_of
from distributary.audit.judge.opened_records import UNREADABLE, Record, RecordOpener, Writer
from distributary.audit.judge.plain_values import plain
from distributary.audit.verify import TableCheck
from distributary.config import DeltaSource, Pipeline
from distributary.errors.border import contained
from distributary.names import shown, table_name
from distributary.state.checkpoint import last_committed, read_offsets
from distributary.state.divisions import current, parts
from distributary.state.ledger import Ledger
from distributary.tables.files import TableFiles
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, join
from distributary.tables.table import Table

SAMPLE = 20
"""Payloads of each (route, schema id), where not all records are compared."""
ORIGIN, KEY = "_origin", "_route_key"
_KEPT = ["route", "level", "state", "schema_id", "envelope_schema_id", "value", "topic"]


class NotAllRead(Exception):
    """Nobody can say which records the stream has read."""


class DeltaValues:
    """Judges the tables of a pipeline over a Delta source. `deep`: of all records."""

    def __init__(self, config: Pipeline, store: Store, deep: bool) -> None:
        """Raises NotAllRead, TableFault, OSError."""
        assert isinstance(config.source, DeltaSource)
        self.config, self.source, self.store, self.deep = config, config.source, store, deep
        self.opener = RecordOpener(config)
        self.notes: list[str] = []
        version = _certain(config, self.source, store)
        self.files = None if version < 0 else TableFiles(Snapshot(self.source.path, store, version))

    def close(self) -> None:
        self.files = None

    def all(self, tables: Sequence[TableCheck]) -> list[TableCheck]:
        """`tables` with what their records tell."""
        checks = {table.route: table for table in tables}
        routes = [t.route for t in tables if t.table is not None and not self._has_other_columns(t.route)]
        try:
            for payloads in self._shares():
                aside = self._quarantined(payloads)
                for route in routes:
                    in_table = less(payloads.get(route, Counter()), aside.get(route, Counter()))
                    checks[route] = self._compared(checks[route], in_table)
        except BaseException as e:
            self.notes.append(f"values were not compared, or not all: {contained(e)}")
        return [checks[table.route] for table in tables]

    def _has_other_columns(self, route: str) -> bool:
        _, select, function = self.config.tables.row_settings_of(route)
        if select is None and function is None:
            return False
        self.notes.append(f"{shown(route)}: its columns are made by tables.select; they were not compared")
        return True

    def _compared(self, table: TableCheck, payloads: Payloads) -> TableCheck:
        try:
            compared, absent = missing(self.opener, payloads, self._pieces(table))
        except BaseException as e:
            return replace(table, problems=(*table.problems, f"its values cannot be compared: {contained(e)}"))
        wrong = (f"{absent} of {compared + absent} records have no row with their values",) if absent else ()
        return replace(table, rows_compared=table.rows_compared + compared, problems=(*table.problems, *wrong))

    # -- rows ----------------------------------------------------------------------------------------------

    def _pieces(self, table: TableCheck) -> Iterator[pa.Table]:
        """The table's rows: the columns of the route, and `_origin`."""
        opened = Table(str(table.table), self.store).open()
        if opened is None:
            return
        files, struct_column = TableFiles(opened), None
        if self.config.shared_table is not None:
            struct_column = table_name(table.route)
            files = files.within(KEY, struct_column)
        for name in files.names:
            for piece in files.read_whole(name):
                yield piece if struct_column is None else _of_route(piece, struct_column)

    # -- records -------------------------------------------------------------------------------------------

    def _shares(self) -> Iterator[dict[str, Payloads]]:
        """The payloads of each route: one sample of them, or all, as many at a time as may be held."""
        names = [] if self.files is None else sorted(self.files.names, key=lambda name: number_of(name.encode()))
        if not self.deep:
            samples: dict[str, PayloadSample] = {}
            for route, writer, body in self._records(names, READ_ROWS):
                samples.setdefault(route, PayloadSample(SAMPLE)).add(writer, body)
            yield {route: sample.payloads() for route, sample in samples.items()}
            return
        rows = sum(self.files.rows(name) for name in names) if self.files is not None else 0
        shares = 1 + rows // HELD
        for share in range(shares):
            payloads: dict[str, Payloads] = {}
            for route, writer, body in self._records(names, rows):
                if shares == 1 or number_of(body) % shares == share:
                    payloads.setdefault(route, Counter())[writer, body] += 1
            yield payloads

    def _records(self, names: Sequence[str], most: int) -> Iterator[tuple[str, Writer, bytes]]:
        """(route, writer, body) of about `most` records; those that cannot be opened are left out."""
        rows_seen = 0
        for name in names:
            for piece in self.files.read(name, self._columns()) if self.files is not None and rows_seen <= most else ():
                rows_seen += piece.num_rows
                for values in zip(*(plain(column) for column in piece.columns), strict=True):
                    try:
                        route, schema_id, payload = self._opened(values)
                        if route and payload is not None:
                            yield route, *self.opener.payload(schema_id, payload)
                    except UNREADABLE:
                        continue

    def _columns(self) -> list[str]:
        envelope = self.config.envelope
        if envelope.format == "columns":
            return list(envelope.columns)
        return [self.source.value, *(["topic"] if envelope.route.place == "topic" else [])]

    def _opened(self, values: Sequence[Any]) -> tuple[str, int | None, bytes | None]:
        if self.config.envelope.format == "columns":
            route, schema_id, payload = values
        elif values[0] is None:
            return "", None, None
        else:
            record = Record(_bytes(values[0]), topic=values[1] if len(values) > 1 else None)
            route, schema_id, payload = self.opener.envelope(record)
        payload = None if payload is None else _bytes(payload)
        return "" if route is None else str(route), None if schema_id is None else int(schema_id), payload

    def _quarantined(self, payloads: dict[str, Payloads]) -> dict[str, Payloads]:
        """Of these payloads, those that the quarantine still holds."""
        quarantined: dict[str, Payloads] = {}
        for stream in parts(self.config, self.store):
            table = Table(quarantine_uri(stream.state_root), self.store).open()
            for piece in TableFiles(table).read_all(_KEPT) if table is not None else ():
                for row in piece.to_pylist():
                    if row["state"] != "replayed":
                        self._put_aside(quarantined, payloads, row)
        return quarantined

    def _put_aside(self, quarantined: dict[str, Payloads], payloads: dict[str, Payloads], row: dict[str, Any]) -> None:
        try:
            route, schema_id, body = row["route"], row["envelope_schema_id"], row["value"]
            if row["level"] == "envelope":
                route, schema_id, body = self.opener.envelope(Record(body, topic=row["topic"]))
            payload = self.opener.payload(row["schema_id"] if schema_id is None else schema_id, body)
        except UNREADABLE:
            return
        if payload in payloads.get(route, ()):
            quarantined.setdefault(route, Counter())[payload] += 1


def _of_route(piece: pa.Table, struct_column: str) -> pa.Table:
    """The rows of a route as a table of its own would have them."""
    struct = piece.column(struct_column).combine_chunks()
    if not pa.types.is_struct(struct.type):
        return piece.select([ORIGIN])
    columns = dict(zip((f.name for f in struct.type), struct.flatten(), strict=True))
    return pa.table({**columns, ORIGIN: piece.column(ORIGIN)})


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _certain(config: Pipeline, source: DeltaSource, store: Store) -> int:
    """The newest version of the source of which every stream has read all; -1 for none. Raises NotAllRead, OSError."""
    if not source.path:
        raise NotAllRead("the source is named in the catalog (source.table), where this does not look")
    if source.starting_version is not None or source.starting_timestamp is not None or source.skip_change_commits:
        raise NotAllRead("the source was not read from its beginning, or not all of it")
    now = current(config, store)
    versions = []
    for stream in [config] if now is None else now.parts(config):
        # A batch is finished by the ledger's word, which comes before Spark's; offsets are written before both.
        ledger = Ledger(stream.state_root, stream.pipeline, store)
        batches_known = (ledger.finished.get(ledger.stream or ""), last_committed(stream.checkpoint_path, store))
        batches = sorted({batch for batch in batches_known if batch is not None}, reverse=True)
        read = (read_offsets(stream.checkpoint_path, store, batch) for batch in batches)
        offsets = next((places for places in read if places), None)
        versions.append(_read_in_full(source, offsets[0], store) if offsets else -1)
    return min(versions, default=-1)


def _read_in_full(source: DeltaSource, position: Mapping[str, Any], store: Store) -> int:
    """The newest version of which all is before the offset `position`."""
    version, files = int(position["reservoirVersion"]), int(position.get("index", -1)) + 1
    if position.get("isStartingVersion"):
        return version if files >= len(Snapshot(source.path, store, version).addresses()) else -1
    if files <= 0:
        return version - 1
    body = store.get(join(source.path, "_delta_log"), f"{version:020d}.json") or b""
    actions = [json.loads(line) for line in body.splitlines() if line.strip()]
    added = [action for action in actions if action.get("add", {}).get("dataChange")]
    return version if added and files >= len(added) else version - 1
