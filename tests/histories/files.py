"""A log as a reader writes it into files: read in batches, from the beginning or again from somewhere, then shuffled,
doubled and cut. Written by fastavro and json alone."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import fastavro

from tests.histories.engine import LEAVE, Engine, Logged

READ = {
    "mysql": ("mysql-cdc-binlog", "mysql-backfill-fulldump"),
    "postgresql": ("postgresql-cdc", "postgresql-backfill"),
    "sqlserver": ("sqlserver-cdc", "sqlserver-backfill"),
    "oracle": ("oracle-cdc-logminer", "oracle-backfill"),
    "mongodb": ("cdc", "backfill"),
}
FIELDS: dict[str, tuple[tuple[str, str], ...]] = {
    "mysql": (("database", "string"), ("log_file", "string"), ("log_position", "long")),
    "postgresql": (("schema", "string"), ("tx_id", "long"), ("lsn", "string")),
    "sqlserver": (("database", "string"), ("schema", "string"), ("lsn", "string"), ("tx_id", "string")),
    "oracle": (
        ("database", "string"), ("schema", "string"), ("row_id", "string"), ("scn", "long"), ("ssn", "long"),
        ("rs_id", "string"), ("tx_id", "string"),
    ),
    "mongodb": (("database", "string"), ("collection", "string")),
}  # fmt: skip
FORMATS = ("avro", "jsonl", "jsonl.gz", "jsonl+schema")


@dataclass(frozen=True)
class File:
    """`schema`: the text of its `.schema` file, if it has one."""

    name: str
    body: bytes
    schema: str | None = None


def write(engine: Engine, dice: Random) -> list[File]:
    """Files in the order in which they come."""
    events = _readings(engine, dice)
    out = [event for event in events for _ in range(dice.choice((1, 1, 1, 2)))]
    dice.shuffle(out)
    files: list[File] = []
    while out:
        size = dice.randint(1, len(out))
        some, out = out[:size], out[size:]
        for wide in (False, True):
            part = [event for event in some if _is_wide(engine, event) == wide]
            if part:
                files.append(_file(engine, part, wide, dice.choice(FORMATS), len(files)))
    dice.shuffle(files)
    return files


def _is_wide(engine: Engine, event: dict[str, Any]) -> bool:
    return engine.kind != "mongodb" and (event["payload"]["n"] or 0) >= 2**31


def _readings(engine: Engine, dice: Random) -> list[dict[str, Any]]:
    """All of the log once, and from somewhere to its end again, with other uuids, as a reader that begins anew."""
    found = _reading(engine, engine.log, dice, 0)
    for number in range(dice.choice((0, 0, 1, 2))):
        begin = dice.randrange(len(engine.log) + 1)
        again = engine.log[begin:]
        # Never from the middle of a statement.
        while again and begin and engine.log[begin - 1].statement == again[0].statement:
            begin, again = begin - 1, engine.log[begin - 1 :]
        found += _reading(engine, again, dice, 10**6 * (number + 1))
    return found


def _reading(engine: Engine, log: Sequence[Logged], dice: Random, later: int) -> list[dict[str, Any]]:
    """Batches of rows have a uuid, a time and a counter in binary digits each."""
    found: list[dict[str, Any]] = []
    left, first, head = 0, 0, ""
    moment = log[0].time_ms + 10**9 + later if log else 0
    for number, change in enumerate(log):
        if not left:
            left, head, first = dice.choice((3, 40, 256)), f"{dice.getrandbits(96):024x}", number
            moment += 1 + dice.randrange(50)
        digits = f"{head}{number - first:08b}"
        left -= 1
        uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        found.append(_event(engine, change, uuid, moment, dice))
    return found


def _event(engine: Engine, change: Logged, uuid: str, read_ms: int, dice: Random) -> dict[str, Any]:
    kind = engine.kind
    given = {**change.place, "database": "db", "schema": "s", "collection": "t", "row_id": change.row_id}
    source: dict[str, Any] = {name: given.get(name) for name, _ in FIELDS[kind]}
    deleted = change.change in LEAVE and not (kind == "oracle" and change.change == "UPDATE-DELETE")
    source |= {"table": "t", "primary_keys": [_key(engine)], "change_type": change.change, "is_deleted": deleted}
    if kind == "mongodb":
        row: dict[str, Any] = {"_id": str(change.row["id"]), "data": json.dumps(change.row)}
    else:
        row = dict(change.row)
        if kind == "postgresql" and change.change == "DELETE":
            row = {name: value if name == "id" else None for name, value in row.items()}
    return {
        "uuid": uuid,
        "read_timestamp": read_ms,
        "source_timestamp": change.time_ms,
        "object": "s_t",
        "read_method": READ[kind][change.backfill],
        "stream_name": "stream",
        "schema_key": "0" * 40,
        "sort_keys": change.place.get("sort_keys", [change.time_ms // 1000, 0] if kind == "mongodb" else []),
        "source_metadata": source,
        "payload": row,
    }


def _key(engine: Engine) -> str:
    return "_id" if engine.kind == "mongodb" else "id"


# -- formats --------------------------------------------------------------------------------------------------


def _schema(engine: Engine, wide: bool) -> dict[str, Any]:
    def record(name: str, fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}

    def maybe(kind: str) -> list[str]:
        return ["null", kind]

    time = {"type": "long", "logicalType": "timestamp-millis"}
    source: list[tuple[str, Any]] = [(name, maybe(kind)) for name, kind in FIELDS[engine.kind]]
    source += [("table", "string"), ("primary_keys", {"type": "array", "items": "string"})]
    source += [("change_type", maybe("string")), ("is_deleted", maybe("boolean"))]
    payload = [("id", "long"), ("ref", maybe("long")), ("n", maybe("long" if wide else "int")), ("v", maybe("string"))]
    if engine.kind == "mongodb":
        payload = [("_id", "string"), ("data", maybe("string"))]
    fields: list[tuple[str, Any]] = [("uuid", "string"), ("read_timestamp", time), ("source_timestamp", time)]
    fields += [(name, "string") for name in ("object", "read_method", "stream_name", "schema_key")]
    fields += [("sort_keys", {"type": "array", "items": ["string", "long"]})]
    return record(
        "event", [*fields, ("source_metadata", record("source", source)), ("payload", record("payload", payload))]
    )


def _file(engine: Engine, events: list[dict[str, Any]], wide: bool, form: str, number: int) -> File:
    key = f"{int(wide):040x}"
    events = [{**event, "schema_key": key} for event in events]
    schema = _schema(engine, wide)
    ending = form.removesuffix("+schema")
    name = f"s_t/2026/06/01/00/00/{key}_{events[0]['read_method']}_1_{number}_0.{ending}"
    if form == "avro":
        sink = io.BytesIO()
        fastavro.writer(sink, fastavro.parse_schema(schema), events)
        return File(name, sink.getvalue())
    lines = "".join(json.dumps({**event, **_times(event)}) + "\n" for event in events).encode()
    body = gzip.compress(lines) if ending.endswith("gz") else lines
    return File(name, body, json.dumps(schema) if form.endswith("+schema") else None)


def _times(event: dict[str, Any]) -> dict[str, str]:
    return {
        name: datetime.fromtimestamp(event[name] / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for name in ("read_timestamp", "source_timestamp")
    }
