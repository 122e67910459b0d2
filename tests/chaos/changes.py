"""Change files of two databases with key moves, new columns, late and repeated files; and the rows of their tables.

The truth is the state of the databases themselves; no event is read again for it. Files are JSON lines as Datastream
writes them: a folder a minute, `<schema key>_<read method>_<numbers>.jsonl`.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

START = datetime(2026, 1, 1, tzinfo=UTC)
Kind = Literal["mysql", "postgresql"]
_METHOD = {"mysql": "mysql-cdc-binlog", "postgresql": "postgresql-cdc"}
_PLACE = {"mysql": "shop", "postgresql": "public"}

Event = dict[str, Any]


@dataclass
class Table:
    """A source table. `rows`: what it holds now, by key. `events`: how many are in files, repeats among them."""

    kind: Kind
    name: str
    columns: list[str] = field(default_factory=lambda: ["id", "text", "amount"])
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: int = 0

    @property
    def object(self) -> str:
        return f"{_PLACE[self.kind]}_{self.name}"

    @property
    def route(self) -> str:
        return f"{_PLACE[self.kind]}.{self.name}"


class Databases:
    """They change, and their changes are put into files below `folder`."""

    def __init__(self, dice: random.Random, folder: Path) -> None:
        self._dice = dice
        self._folder = folder
        self._clock = 0
        self._position = 4
        self._reads = 0
        self._files = 0
        self._held: list[tuple[Table, list[Event]]] = []
        self.tables = [Table("mysql", "orders"), Table("mysql", "items"), Table("postgresql", "accounts")]

    def go_on(self, statements: int) -> None:
        """So many statements; then files of what they did, some of them held back until a later call."""
        events: dict[str, list[Event]] = {table.name: [] for table in self.tables}
        for _ in range(statements):
            table = self._dice.choice(self.tables)
            events[table.name] += self._statement(table)
        for table in self.tables:
            self._put(table, events[table.name])

    def finish(self) -> None:
        """The files that were held back."""
        for table, events in self._held:
            self._write(table, events)
        self._held = []

    # -- statements --------------------------------------------------------------------------------------------

    def _statement(self, table: Table) -> list[Event]:
        dice = self._dice
        self._clock += dice.randint(0, 4)
        self._position += dice.randint(40, 900)
        if dice.random() < 0.01 and len(table.columns) < 8:
            table.columns.append(f"more_{len(table.columns)}")
        what = dice.choices(["insert", "update", "delete", "move"], [5, 6, 2, 2])[0] if table.rows else "insert"
        if what == "insert":
            key = dice.choice([n for n in range(1, 400) if n not in table.rows])
            table.rows[key] = self._row(table, key)
            return [self._event(table, "INSERT", table.rows[key])]
        key = dice.choice(list(table.rows))
        if what == "update":
            table.rows[key] = self._row(table, key)
            return [self._event(table, "UPDATE-INSERT" if table.kind == "mysql" else "UPDATE", table.rows[key])]
        if what == "delete":
            return [self._event(table, "DELETE", table.rows.pop(key))]
        old = table.rows.pop(key)
        moved = dice.choice([n for n in range(1, 400) if n not in table.rows and n != key])
        table.rows[moved] = {**self._row(table, moved), "text": old["text"]}
        return [self._event(table, "UPDATE-DELETE", old), self._event(table, "UPDATE-INSERT", table.rows[moved])]

    def _row(self, table: Table, key: int) -> dict[str, Any]:
        dice = self._dice
        values = [dice.choice([None, "", "é" * dice.randint(1, 40), "a\nb"]), dice.choice([None, 0, -1, 2**53 + 1])]
        more = [dice.randint(0, 9) for _ in table.columns[3:]]
        return dict(zip(table.columns, [key, *values, *more], strict=True))

    def _event(self, table: Table, kind: str, row: dict[str, Any]) -> Event:
        self._reads += 1
        source: dict[str, Any] = {"table": table.name, "primary_keys": ["id"], "change_type": kind}
        source["is_deleted"] = kind in ("DELETE", "UPDATE-DELETE")
        if table.kind == "mysql":
            source |= {
                "database": "shop",
                "log_file": f"bin.{self._position >> 16:06d}",
                "log_position": self._position,
            }
        else:
            # Each change of a transaction has a place of its own in the log.
            source |= {"schema": "public", "tx_id": self._position, "lsn": f"0/{(self._position << 4) + self._reads:X}"}
        batch, counter = divmod(self._reads, 256)
        return {
            "uuid": str(UUID(f"{batch:024x}{counter:08b}")),
            "read_timestamp": _iso(self._clock * 1000 + 2000 + self._reads),
            "source_timestamp": _iso(self._clock * 1000),
            "object": table.object,
            "read_method": _METHOD[table.kind],
            "stream_name": "projects/p/streams/s",
            "schema_key": f"{len(table.columns):040x}",
            "sort_keys": [],
            "source_metadata": source,
            "payload": dict(row),
        }

    # -- files -------------------------------------------------------------------------------------------------

    def _put(self, table: Table, events: list[Event]) -> None:
        """In files of one schema each; some come late, some twice, some in another order."""
        for key in dict.fromkeys(e["schema_key"] for e in events):
            part = [e for e in events if e["schema_key"] == key]
            if self._dice.random() < 0.3:
                self._dice.shuffle(part)
            if self._dice.random() < 0.2:
                self._held.append((table, part))
                continue
            self._write(table, part)
            if self._dice.random() < 0.15:
                self._write(table, part[: self._dice.randint(1, len(part))])
        if self._held and self._dice.random() < 0.5:
            self._write(*self._held.pop(0))

    def _write(self, table: Table, events: list[Event]) -> None:
        self._files += 1
        table.events += len(events)
        minute = f"{datetime.fromisoformat(events[0]['source_timestamp']):%Y/%m/%d/%H/%M}"
        name = f"{events[0]['schema_key']}_{events[0]['read_method']}_7_{self._files}_0.jsonl"
        packed = self._dice.random() < 0.5
        body = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()
        path = self._folder / table.object / minute / (f"{name}.gz" if packed else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._folder.parent / "upload"
        temporary.write_bytes(gzip.compress(body) if packed else body)
        temporary.rename(path)


def differences(databases: Databases, merged: dict[str, list[Event]], logs: dict[str, list[Event]]) -> list[str]:
    """What is wrong with the merged tables and the logs, by table name, in words."""
    wrong = []
    for table in databases.tables:
        living = [row for row in merged[table.name] if not row["_deleted"]]
        wanted = Counter(_text(row, table.columns) for row in table.rows.values())
        found = Counter(_text(row, table.columns) for row in living)
        if wanted != found:
            wrong.append(f"{table.name}: missing {list(wanted - found)[:3]}, too many {list(found - wanted)[:3]}")
        places = Counter((row["_origin"]["file"], row["_origin"]["row"]) for row in logs[table.name])
        if len(places) != table.events or places.total() != table.events:
            wrong.append(f"log of {table.name}: {places.total()} rows of {len(places)} events, {table.events} written")
    return wrong


def _text(row: Event, columns: list[str]) -> str:
    return repr([row.get(name, "no such column" if name in ("id", "text", "amount") else None) for name in columns])


def _iso(ms: int) -> str:
    return (START + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
