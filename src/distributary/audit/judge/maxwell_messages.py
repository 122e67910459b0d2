"""What a message of Maxwell says, by what `json` reads of it (docs/debezium.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from distributary.audit.judge.debezium_messages import JudgedChange, MessageRules

_TYPES = {"insert": "INSERT", "update": "UPDATE", "delete": "DELETE", "bootstrap-insert": "READ"}


@dataclass(frozen=True)
class MaxwellRules(MessageRules):
    """`own`: the key's columns, where the pipeline file names them."""

    own: tuple[str, ...] = ()

    def change_of(
        self, metadata: Mapping[str, Any], topic: str, partition: int, offset: int, key: bytes | None, value: bytes
    ) -> JudgedChange:
        """An update that changes the key is the end of one row and the begin of another."""
        change = self.change(topic, partition, offset, key, value)
        message = json.loads(value, parse_float=Decimal)
        before = {**message["data"], **(message.get("old") or {})}
        keys = _spelled(list(change.keys or self.own), message)
        if change.type != "UPDATE" or all(before.get(name) == message["data"].get(name) for name in keys):
            return change
        if metadata["change_type"] == "UPDATE-DELETE":
            return change._replace(values=before, deleted=True, type="DELETE")
        return change._replace(type="INSERT")

    def change(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes) -> JudgedChange:
        """Raises ValueError, TypeError, KeyError, AttributeError for what is no change."""
        message = json.loads(value, parse_float=Decimal)
        named = {} if key is None else json.loads(key)
        keys = message.get("primary_key_columns") or _spelled([n[3:] for n in named if n.startswith("pk.")], message)
        kind = _TYPES[message["type"]]
        source = {"connector": "mysql", "ts_ms": int(message["ts"] * 1000), "gtid": message.get("gtid")}
        if message.get("position"):
            file, _, pos = message["position"].rpartition(":")
            # Maxwell writes `commit` and no xoffset with the last row of a transaction, which is its newest.
            row = message.get("xoffset")
            row = 2**63 - 1 if row is None and message.get("commit") else row
            source |= {"file": file, "pos": int(pos), "row": row}
        place = self._place(source, "r" if kind == "READ" else "c", offset)
        identity = f"{topic}-{partition}-{offset}"
        return JudgedChange(tuple(keys), message["data"], place, identity, kind == "DELETE", False, kind)


def _spelled(names: Sequence[str], message: dict[str, Any]) -> list[str]:
    """A record's key writes its columns in small letters, whatever letters they have."""
    row = message["data"]
    return [next((c for c in row if c.lower() == name.lower()), name) if name not in row else name for name in names]
