"""What a source's tables hold, as rows, as Arrow and as a file: the answer that merged tables are compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.changes.model import Kind
from distributary_simulate.changes.model import Column, Row, Table
from distributary_simulate.changes.unified import Unified
from distributary_simulate.whole import write_whole


@dataclass(frozen=True)
class TableTruth:
    """A table at the source: its columns of this moment, and its rows in no order, as plain values."""

    table: Table
    rows: tuple[Row, ...]

    def by_key(self) -> dict[tuple[Any, ...], Row]:
        return {self.table.key_of(row): row for row in self.rows}

    def arrow(self) -> pa.Table:
        """The rows with the types that parquet files of the events have."""
        columns = {
            column.name: pa.array([column.type.arrow_value(row[column.name]) for row in self.rows], column.type.arrow())
            for column in self.table.columns
        }
        return pa.table(columns)


def save_truth(truth: Mapping[str, TableTruth], path: Path) -> None:
    """Replace the file in one step. Bytes are hex in it, decimals text, everything else as it is."""
    tables = {route: _to_json(table) for route, table in sorted(truth.items())}
    write_whole(path, json.dumps({"tables": tables}, ensure_ascii=False))


def load_truth(path: Path) -> dict[str, TableTruth]:
    """Raises FileNotFoundError."""
    return {route: _from_json(table) for route, table in json.loads(path.read_text(encoding="utf-8"))["tables"].items()}


def _to_json(truth: TableTruth) -> dict[str, Any]:
    table = truth.table
    return {
        "kind": table.kind.value,
        "database": table.database,
        "schema": table.schema,
        "name": table.name,
        "keys": list(table.keys),
        "replication_index": table.replication_index,
        "toast": list(table.toast),
        "columns": [{"name": column.name, "type": asdict(column.type)} for column in table.columns],
        "rows": [[_plain(row[column.name]) for column in table.columns] for row in truth.rows],
    }


def _from_json(document: dict[str, Any]) -> TableTruth:
    columns = tuple(Column(column["name"], _type(column["type"])) for column in document["columns"])
    place = (Kind(document["kind"]), document["database"], document["schema"], document["name"])
    table = Table(*place, columns, tuple(document["keys"]), document["replication_index"], tuple(document["toast"]))
    rows = tuple(
        {column.name: _restored(column.type, value) for column, value in zip(columns, row, strict=True)}
        for row in document["rows"]
    )
    return TableTruth(table, rows)


def _type(document: dict[str, Any]) -> Unified:
    item = document.pop("item")
    return Unified(**document, item=None if item is None else _type(item))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Decimal) else value


def _restored(kind: Unified, value: Any) -> Any:
    if value is None:
        return None
    if kind.name == "ARRAY":
        assert kind.item is not None
        return [_restored(kind if isinstance(item, list) else kind.item, item) for item in value]
    if kind.name == "GEOMETRY":
        return bytes.fromhex(value[0]), value[1], value[2]
    if isinstance(value, list):
        return tuple(value)
    if kind.name == "DECIMAL":
        return Decimal(value)
    return bytes.fromhex(value) if kind.name == "BYTES" else value
