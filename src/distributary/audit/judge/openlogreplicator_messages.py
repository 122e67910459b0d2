"""What a message of OpenLogReplicator says, by what `json` reads of it (docs/openlogreplicator.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from distributary.audit.judge.debezium_messages import JudgedChange, MessageRules

_KINDS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}


@dataclass(frozen=True)
class OpenLogReplicatorRules(MessageRules):
    """`own`: the key's columns, of which messages do not speak."""

    own: tuple[str, ...] = ()

    def change_of(
        self, metadata: Mapping[str, Any], topic: str, partition: int, offset: int, key: bytes | None, value: bytes
    ) -> JudgedChange:
        """The change of a message that stands in this row of a log: by its number in the transaction."""
        message = json.loads(value, parse_float=Decimal)
        number, row_type = metadata["source"]["ssn"], metadata["change_type"]
        item = _change_in(message, number)
        source = {"connector": "oracle", "scn": _scn(message), "ssn": number, "ts_ms": _millis(message)}
        before, after = item.get("before") or {}, item.get("after") or {}
        is_gone = row_type == "UPDATE-DELETE" or item["op"] == "d"
        row = {**after, **before} if is_gone else {**before, **after}
        kind = {"UPDATE-DELETE": "DELETE", "UPDATE-INSERT": "INSERT"}.get(row_type, _KINDS[item["op"]])
        columns = [column["name"] for column in item.get("schema", {}).get("columns", ())]
        silent = item["op"] == "u" and not is_gone and not set(columns) <= row.keys()
        place = self._place(source, "c", offset)
        at = str(message.get("xid") or message.get("xidn") or ""), str(item.get("rid") or ""), place
        return JudgedChange(self.own, row, place, f"{topic}-{partition}-{offset}", is_gone, silent, kind, *at)


def _change_in(message: Mapping[str, Any], number: int | None) -> Any:
    """That of this number in its transaction; where several changes have none, they are counted from 0."""
    changes = [item for item in message["payload"] if item["op"] in _KINDS]
    for place, change in enumerate(changes):
        own_number = change.get("num")
        if own_number is None and len(changes) > 1:
            own_number = place
        if own_number == number:
            return change
    raise ValueError(f"no change of the message has the number {number}")


def _scn(message: Mapping[str, Any]) -> int:
    for name in ("e_scn", "scn"):
        if message.get(name) is not None:
            return int(message[name])
    return int(message.get("e_scns") or message["scns"], 16)


def _millis(message: Mapping[str, Any]) -> int:
    time = next(message[name] for name in ("e_tm", "tm", "e_tms", "tms") if message.get(name) is not None)
    if isinstance(time, str) and not time.isdigit():
        text = time.replace(" ", "T")
        return int(datetime.fromisoformat(text if text.endswith("Z") else f"{text}Z").timestamp() * 1000)
    digits = len(str(time))
    return int(
        int(time) * 1000 // {11: 1, 14: 10**3, 17: 10**6, 20: 10**9}[next(n for n in (11, 14, 17, 20) if digits <= n)]
    )
