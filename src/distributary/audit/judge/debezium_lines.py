"""Files of Debezium's messages read plainly, a line at a time, as the events of change files that say the same
(docs/debezium.md, "Files"). None of the product's readers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from distributary.audit.judge.debezium_messages import MessageRules, opened_json
from distributary.audit.judge.raw_files import RawEvent, json_lines, unzipped
from distributary.errors.border import contained

_RULES = MessageRules()
_SNAPSHOTS = ("true", "first", "first_in_data_collection", "last_in_data_collection", "last", "incremental")


def debezium_events(body: pa.Buffer, faults: list[str]) -> Iterator[RawEvent]:
    """As `raw_events`."""
    for row, line in enumerate(json_lines(unzipped(body, faults))):
        try:
            key, value = _record(line)
            event = None if value is None else _event(row, key, value)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, AssertionError) as e:
            faults.append(f"line {row}: {contained(e)}")
            continue
        if event is not None:
            yield event


def _record(line: bytes) -> tuple[bytes | None, bytes | None]:
    document = json.loads(line, parse_float=Decimal)
    if "value" not in document or document.keys() & {"op", "payload", "schema"}:
        return None, line
    key, value = (_bytes(document.get(name)) for name in ("key", "value"))
    return key, value


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, default=_number).encode()


def _number(value: Decimal) -> float:
    return float(value)


def _event(row: int, key: bytes | None, value: bytes) -> RawEvent | None:
    _, body = opened_json(value)
    if not body or "op" not in body or body["op"] == "m":
        return None
    change, source = _RULES.change("", 0, row, key, value), body["source"]
    time, backfill = source.get("ts_ms"), body["op"] == "r" or str(source.get("snapshot")).lower() in _SNAPSHOTS
    top = {
        "uuid": f"{0 if backfill else source.get('row') or 0:032x}",
        "source_timestamp": time,
        "read_method": "debezium-backfill" if backfill else "debezium",
        "sort_keys": [] if backfill else [(time or 0) // 1000, source.get("ord") or 0],
    }
    has_schema = source.get("connector") not in ("mysql", "mariadb", "mongodb")
    names = {"database": source.get("db"), "table": source.get("table") or source.get("collection")}
    names["schema"] = source.get("schema") if has_schema else None
    transaction = (body.get("transaction") or {}).get("id")
    position = {
        "log_file": source.get("file"),
        "log_position": source.get("pos"),
        "lsn": source.get("commit_lsn"),
        "tx_id": source.get("txId") or source.get("gtid") or transaction,
        **{name: source.get(name) for name in ("scn", "rs_id", "ssn", "row_id")},
    }
    if (lsn := source.get("lsn")) is not None:
        position["lsn"] = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
    if not backfill:
        position |= _place(source)
    return RawEvent(row, top, {**names, **position, "change_type": change.type}, change.values)


def _place(source: Mapping[str, Any]) -> dict[str, Any]:
    """What another field says than in the message, so that the order of change files is that of the log."""
    match source.get("connector"):
        case "mysql" | "mariadb":
            gtid = re.fullmatch(r"\d+-\d+-(\d+)", source.get("gtid") or "")
            own = re.search(r"\d+$", source.get("file") or "")
            if gtid is not None and (own is None or int(own[0]) != int(gtid[1])):
                return {"log_file": f"gtid.{int(gtid[1])}"}
        case "sqlserver":
            digits = "".join(_digits(source.get(name)) for name in ("commit_lsn", "change_lsn"))
            digits += f"{source.get('event_serial_no') or 0:08x}"
            return {"lsn": ":".join((digits[:16], digits[16:32], digits[32:]))}
    return {}


def _digits(lsn: str | None) -> str:
    texts = lsn.strip().split(":") if lsn else ["", "", ""]
    return "".join(digits.rjust(width, "0") for digits, width in zip(texts, (8, 8, 4), strict=True))
