"""Datastream's unified types: one column's type in avro, in parquet, and its values in JSON.

Values are the plain ones that avro stores: DATE in days, TIME, TIME_INTERVAL and TIMESTAMP in microseconds, times with
a zone as (microseconds, offset in ms), DATETIME as (days, microseconds), INTERVAL as (months, hours, microseconds),
GEOMETRY as (WKB, srid, type), ARRAY as a list, NUMBER and JSON as text, DECIMAL as a Decimal; NULL as None.

Source: cloud.google.com/datastream/docs/unified-types, and public sample files where they differ.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

Name = Literal[
    "BOOLEAN", "INTEGER", "LONG", "FLOAT", "DOUBLE", "STRING", "BYTES", "DECIMAL", "NUMBER", "VARCHAR", "JSON", "DATE",
    "DATETIME", "TIME", "TIME_INTERVAL", "TIMESTAMP", "TIMESTAMP_TZ", "TIME_TZ", "INTERVAL", "GEOMETRY", "ARRAY",
    "UNSUPPORTED",
]  # fmt: skip

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_YEARS_1_TO_9999_US: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)

_PLAIN: Final = {
    "BOOLEAN": "boolean",
    "INTEGER": "int",
    "LONG": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BYTES": "bytes",
}
_LOGICAL: Final = {
    "NUMBER": ("string", "number"),
    "JSON": ("string", "json"),
    "DATE": ("int", "date"),
    "TIME": ("long", "time-micros"),
    "TIME_INTERVAL": ("long", "time-interval-micros"),
    "TIMESTAMP": ("long", "timestamp-micros"),
    "UNSUPPORTED": ("null", "unsupported"),
}
_MICROS: Final = {"type": "long", "logicalType": "timestamp-micros"}
_TIME: Final = {"type": "long", "logicalType": "time-micros"}
_OFFSET: Final = {"type": "int", "logicalType": "time-millis"}
# The fields of the types that are records. A record is defined where it is first used, and named from then on.
_RECORDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "DATETIME": ("datetime", {"date": {"type": "int", "logicalType": "date"}, "time": _TIME}),
    "TIMESTAMP_TZ": ("timestampTz", {"timestamp": _MICROS, "offset": _OFFSET}),
    "TIME_TZ": ("timeTz", {"time": _TIME, "offset": _OFFSET}),
    "INTERVAL": ("interval", {"months": "int", "hours": "int", "micros": "long"}),
    "GEOMETRY": ("geometry", {"value": "bytes", "srid": "int", "type": "string"}),
}
_ARROW: Final = {
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_INTERVAL": pa.int64(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "DATETIME": pa.struct({"date": pa.date32(), "time": pa.time64("us")}),
    "TIMESTAMP_TZ": pa.struct({"timestamp": pa.timestamp("us", "UTC"), "offset": pa.int32()}),
    "TIME_TZ": pa.struct({"time": pa.time64("us"), "offset": pa.int32()}),
    "INTERVAL": pa.struct({"months": pa.int32(), "hours": pa.int32(), "micros": pa.int64()}),
    "GEOMETRY": pa.struct({"value": pa.binary(), "srid": pa.int32(), "type": pa.string()}),
    "UNSUPPORTED": pa.null(),
}


@dataclass(frozen=True, slots=True)
class Unified:
    """A type. precision, scale: of DECIMAL; length: of VARCHAR; item: of ARRAY, the type of an element."""

    name: Name
    precision: int = 0
    scale: int = 0
    length: int = 0
    item: Unified | None = None

    def avro(self, column: str, defined: set[str]) -> Any:
        """The avro type; `defined` holds the records that the schema has so far, and is added to."""
        if self.name in _PLAIN:
            return _PLAIN[self.name]
        if self.name in _LOGICAL:
            kind, logical = _LOGICAL[self.name]
            return {"type": kind, "logicalType": logical}
        if self.name == "DECIMAL":
            return {"type": "bytes", "logicalType": "decimal", "precision": self.precision, "scale": self.scale}
        if self.name == "VARCHAR":
            return {"type": "string", "logicalType": "varchar", "length": self.length}
        if self.name == "ARRAY":
            return self._array(f"multidimensionalArray_{column}", defined)
        record, fields = _RECORDS[self.name]
        if record in defined:
            return record
        defined.add(record)
        return {"type": "record", "name": record, "fields": [{"name": n, "type": t} for n, t in fields.items()]}

    def _array(self, record: str, defined: set[str]) -> Any:
        assert self.item is not None
        element = self.item.avro(record, defined)
        return {
            "type": "record",
            "name": record,
            "fields": [
                {"name": "nestedArray", "type": ["null", {"type": "array", "items": record}], "default": None},
                {"name": "elementValue", "type": ["null", element], "default": None},
            ],
        }

    def arrow(self) -> pa.DataType:
        """The parquet form of the avro type; arrays become plain lists, since parquet has no recursive types."""
        if self.name == "DECIMAL":
            return pa.decimal128(self.precision, self.scale) if self.precision <= 38 else self._wide_decimal()
        if self.name == "ARRAY":
            assert self.item is not None
            return pa.list_(self.item.arrow())
        return _ARROW.get(self.name, pa.string())

    def _wide_decimal(self) -> pa.DataType:
        return pa.decimal256(self.precision, self.scale)

    def avro_value(self, value: Any) -> Any:
        """`value` as the encoder of the avro type takes it: records as tuples in field order."""
        if self.name == "ARRAY" and value is not None:
            return [self._element(item) for item in value], None
        return value

    def _element(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._element(item) for item in value], None
        assert self.item is not None
        return None, self.item.avro_value(value)

    def arrow_value(self, value: Any) -> Any:
        """`value` as pyarrow takes it for `arrow()`."""
        if value is None or self.name not in _RECORDS:
            return value
        return dict(zip(_RECORDS[self.name][1], value, strict=True))

    def json_text(self, value: Any) -> str:
        """`value` as JSON text. Decimals keep their digits; JSON columns stand nested, not as a string."""
        if value is None or self.name == "UNSUPPORTED":
            return "null"
        if self.name == "ARRAY":
            assert self.item is not None
            inner = (self if isinstance(item, list) else self.item for item in value)
            return "[" + ",".join(kind.json_text(item) for kind, item in zip(inner, value, strict=True)) + "]"
        return _JSON_TEXT.get(self.name, _quoted)(value)


def instant_text(micros: int, zone: str = "Z") -> str:
    """ISO text with six digits of a second, also of years that Python's datetime does not have."""
    if micros in _YEARS_1_TO_9999_US:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + zone
    return str(np.datetime64(micros, "us")) + zone


def _day_text(days: int) -> str:
    ordinal = _EPOCH_DAY + days
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= 3_652_059 else str(np.datetime64(days, "D"))


def _time_text(micros: int) -> str:
    return instant_text(micros % _DAY_US, "")[11:]


def _zone_text(offset_ms: int) -> str:
    minutes = abs(offset_ms) // 60_000
    return f"{'-' if offset_ms < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def _float_text(value: float, kind: Callable[[float], Any]) -> str:
    text = str(kind(value))
    return text if text[-1].isdigit() else {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[text]


def _interval_text(value: tuple[int, int, int]) -> str:
    months, hours, micros = value
    return f'"P{months}MT{hours}H{micros / 1_000_000:.6f}S"'


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bytes_text(value: bytes) -> str:
    return '"' + base64.b64encode(value).decode() + '"'


# The zone of a timestamp's offset applies to its text only: its microseconds are UTC.
_JSON_TEXT: Final[dict[str, Callable[[Any], str]]] = {
    "BOOLEAN": lambda value: "true" if value else "false",
    "INTEGER": str,
    "LONG": str,
    "TIME_INTERVAL": str,
    "DECIMAL": lambda value: format(value, "f"),
    "JSON": str,
    "FLOAT": lambda value: _float_text(value, np.float32),
    "DOUBLE": lambda value: _float_text(value, float),
    "BYTES": _bytes_text,
    "DATE": lambda value: f'"{_day_text(value)}"',
    "DATETIME": lambda value: f'"{instant_text(value[0] * _DAY_US + value[1], "")}"',
    "TIME": lambda value: f'"{_time_text(value)}"',
    "TIMESTAMP": lambda value: f'"{instant_text(value)}"',
    "TIMESTAMP_TZ": lambda value: f'"{instant_text(value[0] + value[1] * 1000, _zone_text(value[1]))}"',
    "TIME_TZ": lambda value: f'"{_time_text(value[0])}{_zone_text(value[1])}"',
    "INTERVAL": _interval_text,
    "GEOMETRY": lambda value: f'{{"value":{_bytes_text(value[0])},"srid":{value[1]},"type":{_quoted(value[2])}}}',
}

BOOLEAN: Final = Unified("BOOLEAN")
INTEGER: Final = Unified("INTEGER")
LONG: Final = Unified("LONG")
FLOAT: Final = Unified("FLOAT")
DOUBLE: Final = Unified("DOUBLE")
STRING: Final = Unified("STRING")
BYTES: Final = Unified("BYTES")
NUMBER: Final = Unified("NUMBER")
JSON: Final = Unified("JSON")
DATE: Final = Unified("DATE")
DATETIME: Final = Unified("DATETIME")
TIME: Final = Unified("TIME")
TIME_INTERVAL: Final = Unified("TIME_INTERVAL")
TIMESTAMP: Final = Unified("TIMESTAMP")
TIMESTAMP_TZ: Final = Unified("TIMESTAMP_TZ")
TIME_TZ: Final = Unified("TIME_TZ")
INTERVAL: Final = Unified("INTERVAL")
GEOMETRY: Final = Unified("GEOMETRY")
UNSUPPORTED: Final = Unified("UNSUPPORTED")


def decimal(precision: int, scale: int) -> Unified:
    return Unified("DECIMAL", precision=precision, scale=scale)


def varchar(length: int) -> Unified:
    return Unified("VARCHAR", length=length)


def array(item: Unified) -> Unified:
    return Unified("ARRAY", item=item)
