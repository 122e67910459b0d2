"""Change events folded into tables, by the published rules of each source: the oracle of the simulator's tests.

Written apart from the product's own order and merge, event after event, so that both may be compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro

from distributary.changes.model import Kind
from distributary_simulate.changes.model import Change, Row, Table
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.changes.unified import Unified

Key = tuple[Any, ...]
Rows = dict[Key, Row]


class Fold:
    """One table. Events are applied one after the other, in their order; rows of backfills at the end."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows: Rows = {}
        self._ids: dict[Key, str] = {}
        self._seen: set[Key] = set()
        self._backfilled: Rows = {}
        self._unkeyed: list[Row] = []

    def add(self, change_type: str | None, row: Row, row_id: str | None, *, is_backfill: bool) -> None:
        if not self.table.keys:
            self._unkeyed.append(row)
            return
        key = self.table.key_of(row)
        if is_backfill:
            self._backfilled[key] = row
        elif self.table.kind is Kind.MONGODB and change_type == "UPDATE" and row["data"] is None:
            return  # the document was gone: its delete follows
        elif change_type in ("DELETE", "UPDATE-DELETE"):
            self._delete(change_type, key, row_id)
        else:
            self._seen.add(key)
            self.rows[key], self._ids[key] = row, row_id or ""

    def _delete(self, change_type: str, key: Key, row_id: str | None) -> None:
        if self.table.kind is Kind.ORACLE and all(part is None for part in key):
            key = next(key for key, found in self._ids.items() if found == row_id)  # a rollback, which has a ROWID only
        self._seen.add(key)
        # Oracle checks keys at the end of a statement: another row may have taken this key already.
        stays = self.table.kind is Kind.ORACLE and change_type == "UPDATE-DELETE" and self._ids.get(key) != row_id
        if not stays:
            self.rows.pop(key, None)
            self._ids.pop(key, None)

    def result(self) -> Rows:
        """Every row, with a number as key where the table has none."""
        if not self.table.keys:
            return {(number,): row for number, row in enumerate(self._unkeyed)}
        return {**{key: row for key, row in self._backfilled.items() if key not in self._seen}, **self.rows}


def fold(changes: Iterable[Change]) -> dict[str, Rows]:
    """Route -> the rows that changes in true order leave behind."""
    folds: dict[str, Fold] = {}
    for change in changes:
        one = folds.setdefault(change.table.route, Fold(change.table))
        row_id = change.position.metadata.get("row_id")
        one.add(change.change_type, change.row, row_id, is_backfill=change.is_backfill)
    return {route: one.result() for route, one in folds.items()}


def assert_equal(found: Mapping[str, Rows], truth: Mapping[str, TableTruth]) -> None:
    """Every table has the rows of the source, by the source's columns; a column that rows lack is null."""
    for route, table in truth.items():
        names = [column.name for column in table.table.columns]
        rows = {key: {name: row.get(name) for name in names} for key, row in found.get(route, {}).items()}
        want = table.by_key() if table.table.keys else {(number,): row for number, row in enumerate(table.rows)}
        assert rows == want, route


# -- files ------------------------------------------------------------------------------------------------------------


def raw_events(body: bytes) -> list[dict[str, Any]]:
    """The events of an avro file as fastavro decodes them, logical types left as the numbers that are stored."""
    blocks: Any = fastavro.block_reader(BytesIO(body))
    schema = fastavro.parse_schema(without_logical_types(blocks.writer_schema))
    found: list[dict[str, Any]] = []
    for block in blocks:
        for _ in range(block.num_records):
            event: Any = fastavro.schemaless_reader(block.bytes_, schema)
            found.append(event)
    return found


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical_types(one) for one in schema]
    if isinstance(schema, dict):
        kept = {name: value for name, value in schema.items() if name not in ("logicalType", "precision", "scale")}
        return {name: value if name == "default" else without_logical_types(value) for name, value in kept.items()}
    return schema


def plain(kind: Unified, value: Any) -> Any:
    """A value of `raw_events` as the simulator's plain value."""
    if value is None:
        return None
    if kind.name == "DECIMAL":
        # As text: the context's precision would cut a long one.
        return Decimal(f"{int.from_bytes(value, 'big', signed=True)}e-{kind.scale}")
    if kind.name == "ARRAY":
        return [_element(kind, one) for one in value["nestedArray"]]
    return tuple(value.values()) if isinstance(value, dict) else value


def _element(kind: Unified, value: Any) -> Any:
    if value["nestedArray"] is not None:
        return [_element(kind, one) for one in value["nestedArray"]]
    assert kind.item is not None
    return plain(kind.item, value["elementValue"])


def fold_files(files: Iterable[Path], tables: Mapping[str, Iterable[Table]]) -> dict[str, Rows]:
    """Route -> the rows that avro files leave behind, read in any order. tables: all schemas that a route had."""
    events: dict[str, dict[str, dict[str, Any]]] = {}
    for path in files:
        for event in raw_events(path.read_bytes()):
            names = event["source_metadata"]
            parts = (names.get("database"), names.get("schema"), names.get("table") or names.get("collection"))
            same = f"{event['uuid']} {names} {event['payload']}"
            events.setdefault(".".join(part for part in parts if part), {})[same] = event
    return {route: _fold_table(found.values(), list(tables[route])) for route, found in events.items()}


def _fold_table(events: Iterable[dict[str, Any]], tables: list[Table]) -> Rows:
    kinds = {column.name: column.type for table in tables for column in table.columns}
    one = Fold(tables[0])
    for event in sorted(events, key=lambda event: true_place(tables[0].kind, event)):
        metadata = event["source_metadata"]
        row = {name: plain(kinds[name], value) for name, value in event["payload"].items()}
        is_backfill = "backfill" in event["read_method"]
        one.add(metadata.get("change_type"), row, metadata.get("row_id"), is_backfill=is_backfill)
    return one.result()


def true_place(kind: Kind, event: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where an event stands among its table's, after docs/faq of the service and the reports on it."""
    metadata, time_ms = event["source_metadata"], event["source_timestamp"]
    is_cdc = "backfill" not in event["read_method"]
    read = (event["read_timestamp"], int(event["uuid"][-8:], 2))
    if kind is Kind.MYSQL:
        file = metadata.get("log_file") or metadata.get("binlog_file") or "0"
        position = metadata.get("log_position") or metadata.get("binlog_position") or 0
        return is_cdc, int(re.findall(r"\d+", file)[-1]), position, read
    if kind is Kind.ORACLE:
        record = [int(part, 16) for part in re.findall(r"[0-9a-f]+", (metadata["rs_id"] or "").replace("0x", ""))]
        return is_cdc, metadata["scn"], record, metadata["ssn"], time_ms, read
    if kind is Kind.MONGODB:
        return is_cdc, *event["sort_keys"], read
    return is_cdc, list(_lsn(metadata["lsn"])), time_ms, read


def _lsn(text: str | None) -> Iterator[int]:
    return (int(part, 16) for part in re.split("[/:]", text or "0"))
