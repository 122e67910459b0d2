"""Random Avro schemas and records, with what a row of each must say. The encoder is the book's, byte by byte."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from distributary.schemas.avro.columns import column_names

EPOCH = datetime(1970, 1, 1)


def long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: bytes) -> bytes:
    return long(len(value)) + value


class Records:
    """A random schema (`schema`); `one()` gives (bytes, the row's values)."""

    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self._names = 0
        self.schema = self._record(0)

    def one(self) -> tuple[bytes, dict[str, Any]]:
        return self._value(self.schema)

    # -- schemas -------------------------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        return f"T{self._names}"

    def _record(self, depth: int) -> dict[str, Any]:
        fields = [{"name": f"f{n}", "type": self._type(depth + 1)} for n in range(self.rnd.randint(1, 7))]
        return {"type": "record", "name": self._name(), "namespace": "ns", "fields": fields}

    def _type(self, depth: int) -> Any:
        kinds = ["scalar"] * 5 + ["logical"] * 3 + ["enum", "fixed", "null", "nullable", "nullable"]
        kinds += ["array", "map", "record", "union"] if depth < 4 else []
        match self.rnd.choice(kinds):
            case "scalar":
                return self.rnd.choice(["boolean", "int", "long", "float", "double", "bytes", "string"])
            case "logical":
                return dict(self.rnd.choice(LOGICAL))
            case "enum":
                return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]}
            case "fixed":
                return {"type": "fixed", "name": self._name(), "size": self.rnd.randint(1, 20)}
            case "null":
                return "null"
            case "nullable":
                inner = self._type(9)
                inner = "int" if inner == "null" or isinstance(inner, list) else inner
                return self.rnd.choice([["null", inner], [inner, "null"]])
            case "array":
                return {"type": "array", "items": self._type(depth + 1)}
            case "map":
                return {"type": "map", "values": self._type(depth + 1)}
            case "record":
                return self._record(depth)
        branches = ["int", "long", "string", "bytes", "double", "boolean", "null", self._record(depth + 1)]
        branches += [
            {"type": "array", "items": self._type(depth + 1)},
            {"type": "enum", "name": self._name(), "symbols": ["X"]},
        ]
        return self.rnd.sample(branches, self.rnd.randint(3, 6))

    # -- values --------------------------------------------------------------------------------------------

    def _value(self, schema: Any) -> tuple[bytes, Any]:
        rnd = self.rnd
        if isinstance(schema, list):
            return self._union(schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(schema, dict) and schema.get("logicalType", "made-up") != "made-up":
            return self._logical(schema)
        match kind:
            case "null":
                return b"", None
            case "boolean":
                value = rnd.random() < 0.5
                return bytes([value]), value
            case "int" | "long":
                number = rnd.choice([0, 1, -1, rnd.getrandbits(7), rnd.getrandbits(30), -rnd.getrandbits(31)])
                number = rnd.choice([number, rnd.getrandbits(62), -(2**63), 2**63 - 1]) if kind == "long" else number
                return long(number), number
            case "float":
                real = struct.unpack("<f", struct.pack("<f", rnd.uniform(-1e9, 1e9)))[0]
                return struct.pack("<f", real), real
            case "double":
                real = rnd.choice([0.0, -1.5, rnd.random() * 10 ** rnd.randint(-300, 300)])
                return struct.pack("<d", real), real
            case "bytes":
                data = rnd.randbytes(rnd.choice([0, 1, 5, 70]))
                return text(data), data
            case "string":
                words = rnd.choice(["", "a", "grün", "日本", "x" * rnd.randint(0, 200)])
                return text(words.encode()), words
            case "enum":
                number = rnd.randrange(len(schema["symbols"]))
                return long(number), schema["symbols"][number]
            case "fixed":
                data = rnd.randbytes(schema["size"])
                return data, data
            case "array":
                items = [self._value(schema["items"]) for _ in range(rnd.choice([0, 1, 2, 5]))]
                return self._blocks([data for data, _ in items]), [value for _, value in items]
            case "map":
                entries = [(f"k{n}", *self._value(schema["values"])) for n in range(rnd.choice([0, 1, 3]))]
                encoded = [text(key.encode()) + data for key, data, _ in entries]
                return self._blocks(encoded), [(key, value) for key, _, value in entries]
        parts = [self._value(field["type"]) for field in schema["fields"]]
        names = column_names([field["name"] for field in schema["fields"]])
        return b"".join(data for data, _ in parts), {n: value for n, (_, value) in zip(names, parts, strict=True)}

    def _blocks(self, items: list[bytes]) -> bytes:
        """Items as one block, as several, or as blocks that say their size."""
        out, left = b"", list(items)
        several = self.rnd.random() < 0.2
        while left:
            block = left[: 1 if several else len(left)]
            left = left[len(block) :]
            body = b"".join(block)
            sized = self.rnd.random() < 0.2
            out += (long(-len(block)) + long(len(body)) if sized else long(len(block))) + body
        return out + b"\0"

    def _union(self, branches: list[Any]) -> tuple[bytes, Any]:
        number = self.rnd.randrange(len(branches))
        data, value = self._value(branches[number])
        if sum(branch != "null" for branch in branches) < 2:
            return long(number) + data, value
        if branches[number] == "null":
            return long(number), None
        names = [one if isinstance(one, str) else one.get("name", one["type"]) for one in branches]
        found = {name: None for name in names if name != "null"}
        found[names[number]] = value
        return long(number) + data, found

    def _logical(self, schema: dict[str, Any]) -> tuple[bytes, Any]:
        rnd, logical = self.rnd, schema["logicalType"]
        if logical == "decimal":
            number = rnd.choice(
                [0, 1, -1, rnd.randrange(10 ** schema["precision"]), -rnd.randrange(10 ** schema["precision"])]
            )
            size = schema.get("size", (number.bit_length() + 8) // 8)
            data = number.to_bytes(size, "big", signed=True)
            value: Any = Decimal(f"{number}e-{schema.get('scale', 0)}")
            return (data if schema["type"] == "fixed" else text(data)), value
        if logical == "date":
            days = rnd.randint(-700_000, 2_900_000)
            return long(days), date(1970, 1, 1) + timedelta(days=days)
        if logical.startswith("time-"):
            micros = rnd.randrange(86_400) * 1_000_000 + rnd.choice([0, 250_000])
            clock = str(timedelta(microseconds=micros)).rjust(8, "0")
            value = clock if len(clock) == 8 else clock.rstrip("0")
            value = value if value[1] != ":" else f"0{value}"
            return long(micros // (1000 if logical == "time-millis" else 1)), value
        if logical == "uuid":
            value = "12345678-1234-5678-1234-567812345678"
            return text(value.encode()), value
        moment = EPOCH + timedelta(milliseconds=rnd.randint(-60_000_000_000_000, 250_000_000_000_000))
        micros = (moment - EPOCH) // timedelta(microseconds=1)
        stored = micros // 1000 if logical.endswith("millis") else micros
        return long(stored), moment if logical.startswith("local") else moment.replace(tzinfo=UTC)


LOGICAL: list[dict[str, Any]] = [
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "long", "logicalType": "made-up"},
]
