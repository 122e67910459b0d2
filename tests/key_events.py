"""Files of change events whose key changes: JSON lines by hand, with a schema beside them or without, and the truth.

The truth is a loop over the events as they were written: the newest one of each key, keys as the events spell them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.shop import Shop

START = "2026-05-01T10:00:00"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """One PostgreSQL event, at a place in the log. `keys`: its primary_keys, as it spells them."""

    row: Row
    at: int
    change: str = "UPDATE"
    keys: tuple[str, ...] = ("id",)
    table: str = "t"

    def line(self) -> str:
        place = f"0/{self.at:X}"
        source = {
            "schema": "public",
            "table": self.table,
            "primary_keys": list(self.keys),
            "change_type": self.change,
            "is_deleted": self.change == "DELETE",
            "tx_id": self.at,
            "lsn": place,
        }
        event = {
            "uuid": f"8546a123-e6bc-49ca-b0c4-2490{self.at % 256:08b}",
            "read_timestamp": f"{START}.500Z",
            "source_timestamp": f"{START}.000Z",
            "object": f"public_{self.table}",
            "read_method": "postgresql-cdc",
            "stream_name": "s",
            "schema_key": "k" * 40,
            "sort_keys": [0, place],
            "source_metadata": source,
            "payload": dict(self.row),
        }
        return json.dumps(event, ensure_ascii=False)


def send(shop: Shop, *events: Said, types: Mapping[str, Any] | None = None) -> Path:
    """One more file with these events. `types`: avro types by column, for a schema beside the file."""
    table = events[0].table
    folder = shop.files / f"public_{table}/2026/05/01/10/00"
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.jsonl")))
    path = folder / f"{number:040x}_postgresql-cdc_1_{number}_0.jsonl"
    if types is not None:
        fields = [{"name": name, "type": ["null", kind]} for name, kind in types.items()]
        payload = {"type": "record", "name": "payload", "fields": fields}
        schema = {"type": "record", "name": "r", "fields": [{"name": "payload", "type": payload}]}
        path.with_name(f"{path.name}.schema").write_text(json.dumps(schema))
    path.write_text("".join(f"{event.line()}\n" for event in events), encoding="utf-8")
    return path


def spelling(value: Any) -> str | None:
    """A key's value as text: 1, 1.0 and "1" are one key, and so are a day and its midnight."""
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return None if value is None else str(value).removesuffix("T00:00:00Z")


def newest(events: Sequence[Said], keys: Sequence[str]) -> dict[tuple[str | None, ...], Said]:
    """Key -> its newest event. Names are compared as those of columns are: just so, else without case."""
    found: dict[tuple[str | None, ...], Said] = {}
    for event in sorted(events, key=lambda event: event.at):
        found[tuple(spelling(value_of(event.row, key)) for key in keys)] = event
    return found


def value_of(row: Row, name: str) -> Any:
    return row[name] if name in row else next((v for n, v in row.items() if n.lower() == name.lower()), None)


def living(events: Sequence[Said], keys: Sequence[str], column: str = "v") -> dict[tuple[str | None, ...], Any]:
    return {key: e.row.get(column) for key, e in newest(events, keys).items() if e.change != "DELETE"}


def in_table(rows: Sequence[Row], keys: Sequence[str], column: str = "v") -> dict[tuple[str | None, ...], Any]:
    """What a merged table has, by key; a key that is there twice is a fault."""
    alive = [row for row in rows if not row["_deleted"]]
    found = {tuple(spelling(row[key]) for key in keys): row[column] for row in alive}
    assert len(found) == len(alive), "a key is there twice"
    return found
