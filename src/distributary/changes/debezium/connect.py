"""Types of Kafka Connect, as Debezium's messages name them, and what of the one type mapping each becomes.

| name of the type | in the message | stored as |
|---|---|---|
| connect.data.Decimal | bytes, scale | decimal(p,s) |
| VariableScaleDecimal | scale and bytes | text with all digits |
| Date, connect.data.Date, IsoDate | days, text | date |
| Time, MicroTime, NanoTime, connect.data.Time | a number of the unit | clock |
| Timestamp, MicroTimestamp, NanoTimestamp, connect.data.Timestamp | a number of the unit | timestamp |
| ZonedTimestamp, IsoTimestamp | text | timestamp, the instant |
| ZonedTime, IsoTime, Interval, Enum, EnumSet, Json, Xml, Uuid, Ltree and all other texts | text | text as it is |
| Year, MicroDuration, NanoDuration | a number | that number |
| Bits | bytes, lowest first | bytes, highest first, as databases write them |
| a map | object | JSON text |
| geometry.Point and other structs, arrays, vectors | | struct, array |

What a stored value is as a column, `changes.types` says. Source: Debezium documentation, "Data type mappings" of each
connector, and the messages of Debezium 3.6.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from distributary.avro.schema import Array, Field, Node, Record, Scalar
from distributary.changes import casts
from distributary.changes.json_times import instant

SCALARS = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "string": "string",
    "bytes": "bytes",
}
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
BITS = "io.debezium.data.Bits"
MOST_BITS = 8_192
"""The longest type whose values are filled up with zeros; longer ones have no length of their own."""
DECIMAL, VARIABLE = f"{_CONNECT}Decimal", "io.debezium.data.VariableScaleDecimal"
LOGICAL = {
    f"{_CONNECT}Date": "date",
    f"{_TIME}Date": "date",
    f"{_TIME}IsoDate": "date",
    f"{_CONNECT}Time": "time-millis",
    f"{_TIME}Time": "time-millis",
    f"{_TIME}MicroTime": "time-micros",
    f"{_TIME}NanoTime": "time-micros",
    f"{_CONNECT}Timestamp": "timestamp-millis",
    f"{_TIME}Timestamp": "timestamp-millis",
    f"{_TIME}MicroTimestamp": "timestamp-micros",
    f"{_TIME}NanoTimestamp": "timestamp-nanos",
    f"{_TIME}ZonedTimestamp": "timestamp-micros",
    f"{_TIME}IsoTimestamp": "timestamp-micros",
}
_CONVERT: dict[str, Callable[[Any], Any]] = {"boolean": bool, "string": str, "float": float, "double": float}
_WHOLE = re.compile(r"-?\d{1,40}", re.ASCII)
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
NANO_TIME = f"{_TIME}NanoTime"


@dataclass(frozen=True, slots=True)
class Connect:
    """A type. `name`: the semantic one. `precision`: of a decimal; of bits, how many. `fields`: of a struct. `item`: of
    an array."""

    kind: str
    name: str = ""
    precision: int = 0
    scale: int = 0
    fields: tuple[tuple[str, Connect], ...] = ()
    item: Connect | None = None

    @property
    def is_text(self) -> bool:
        return self.kind == "string"

    def field(self, name: str) -> Connect | None:
        return next((kind for field_name, kind in self.fields if field_name == name), None)


@lru_cache(512)
def parse(schema: bytes) -> Connect:
    """The type that a message's own schema says, in JSON. Raises ValueError for what is none."""
    try:
        return _type(json.loads(schema))
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as exc:
        raise ValueError(f"the message's schema is none of Kafka Connect: {exc!r}") from exc


def _type(schema: Mapping[str, Any]) -> Connect:
    kind, name = str(schema["type"]), str(schema.get("name") or "")
    if kind == "struct":
        return Connect(kind, name, fields=tuple((str(field["field"]), _type(field)) for field in schema["fields"]))
    if kind == "array":
        return Connect(kind, name, item=_type(schema["items"]))
    if kind == "map":
        return Connect(kind, name)
    if kind not in SCALARS:
        raise ValueError(f"the message's schema has the type {kind[:40]!r}, which Kafka Connect has not")
    parameters = schema.get("parameters") or {}
    precision = parameters.get("length" if name == BITS else "connect.decimal.precision", 0)
    return Connect(kind, name, int(precision), int(parameters.get("scale", 0)))


def node_of(kind: Connect) -> Node:
    """The type as the mapping of columns knows it."""
    if kind.name == DECIMAL:
        precision = kind.precision or casts.WIDEST_DECIMAL
        if not 0 <= kind.scale <= precision:  # Delta has no such decimal: its text
            precision = casts.WIDEST_DECIMAL + 1
        return Scalar("bytes", "decimal", precision, kind.scale)
    if kind.name == VARIABLE:
        return Scalar("string", "number")
    if kind.name in LOGICAL:
        logical = LOGICAL[kind.name]
        return Scalar("int" if logical in ("date", "time-millis") else "long", logical)
    if kind.kind == "struct":
        return Record(kind.name, tuple(Field(name, node_of(field_kind)) for name, field_kind in kind.fields))
    if kind.kind == "array" and kind.item is not None:
        return Array(node_of(kind.item))
    if kind.kind == "map":
        return Scalar("string", "json")
    return Scalar(SCALARS[kind.kind])


def _as_is(value: Any) -> Any:
    return value


def loader(kind: Connect, *, stored: bool = False) -> Callable[[Any], Any]:
    """From a value as JSON has it, or as it is `stored` in Avro, what `node_of` stores. Raises ValueError, TypeError,
    KeyError for what is none."""
    unbytes = _as_is if stored else casts.unbase64
    integer = int if stored else _whole
    if kind.name == VARIABLE:
        return lambda value: casts.decimal_text(unbytes(value["value"]), integer(value["scale"]))
    if kind.name == NANO_TIME:
        return lambda value: integer(value) // 1000
    if kind.name in LOGICAL and kind.is_text:
        return _days if LOGICAL[kind.name] == "date" else _micros
    if kind.kind == "struct":
        loaders = {name: _perhaps(loader(child, stored=stored)) for name, child in kind.fields}
        return _as_is_struct(loaders) if stored else _struct(loaders)
    if kind.kind == "array" and kind.item is not None:
        item = _perhaps(loader(kind.item, stored=stored))
        return lambda value: [item(child) for child in (value if stored else _checked(value, list))]
    if kind.kind == "map":
        return _entries if stored else _map
    if kind.kind == "bytes":
        return partial(_bits, length=kind.precision, unbytes=unbytes) if kind.name == BITS else unbytes
    scalar = SCALARS[kind.kind]
    return (_CONVERT if stored else _CHECKED).get(scalar, integer)


def _perhaps(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else load(value)


def _as_is_struct(loaders: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda value: {name: load(value.get(name)) for name, load in loaders.items()}


def _entries(value: list[Any]) -> str:
    """A map as Avro stores it, or protobuf (pairs), as Connect's converter to JSON writes one."""
    entries = (entry if isinstance(entry, tuple) else (entry["key"], entry["value"]) for entry in value)
    return json.dumps({key: _in_json(inner) for key, inner in entries}, ensure_ascii=False, allow_nan=False)


def _in_json(value: Any) -> Any:
    """Bytes in base64, and the numbers that JSON has no word for as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _in_json(child) for name, child in value.items()}
    return [_in_json(child) for child in value] if isinstance(value, list) else value


def _bits(value: Any, length: int, unbytes: Callable[[Any], bytes]) -> bytes:
    """As many bytes as the type has; PostgreSQL's connector leaves out those of zeros."""
    bits = unbytes(value)[::-1]
    return bits.rjust((length + 7) // 8, b"\0") if length <= MOST_BITS else bits


def _micros(value: str) -> int:
    return instant(value)[0]


def _days(value: str) -> int:
    return instant(value.removesuffix("Z"))[0] // casts.DAY_US


# -- values of JSON: nothing is rounded, cut off or taken for another type ---------------------------------------------


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"no {kind.__name__}")
    return value


def _whole(value: Any) -> int:
    """A whole number, or the text of one."""
    if type(value) is int:
        return value
    if not isinstance(value, str) or _WHOLE.fullmatch(value) is None:
        raise ValueError("no whole number")
    return int(value)


def _float(value: Any, form: str) -> float:
    """`form`: the struct code of the type; a native one would make an infinity of what is too large.

    Raises ValueError, TypeError, OverflowError.
    """
    if isinstance(value, bool):
        raise ValueError("no number")
    number = float(value)
    if not math.isfinite(number) and value not in _NO_NUMBERS:
        raise ValueError("beyond all numbers of the type")
    struct.pack(form, number)
    return number


def _map(value: Any) -> str:
    """Keys that are no texts come as a list of pairs."""
    if not isinstance(value, dict | list):
        raise ValueError("no map")
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _struct(loaders: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def load(value: Any) -> dict[str, Any]:
        if strange := _checked(value, dict).keys() - loaders.keys():
            raise ValueError(f"the schema has no {min(strange)}")
        return {name: convert(value.get(name)) for name, convert in loaders.items()}

    return load


_CHECKED: dict[str, Callable[[Any], Any]] = {
    "boolean": partial(_checked, kind=bool),
    "string": partial(_checked, kind=str),
    "float": partial(_float, form="<f"),
    "double": partial(_float, form="<d"),
}
