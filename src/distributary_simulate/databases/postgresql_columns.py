"""Columns of PostgreSQL by the names of their types; values from their text, or wal2json's numbers and booleans."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from distributary_simulate.changes.unified import (
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    INTERVAL,
    JSON,
    LONG,
    NUMBER,
    STRING,
    TIME,
    TIME_TZ,
    TIMESTAMP,
    TIMESTAMP_TZ,
    UNSUPPORTED,
    Unified,
    array,
    decimal,
)

#: What streams write for an infinite timestamp (DataflowTemplates#2203), in microseconds.
INFINITY_US: Final = 9_223_372_036_825_200_000
MINUS_INFINITY_US: Final = -9_223_372_036_832_400_000

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final = {
    "boolean": BOOLEAN,
    "smallint": INTEGER,
    "integer": INTEGER,
    "bigint": LONG,
    "oid": LONG,
    "real": FLOAT,
    "double precision": DOUBLE,
    "numeric": NUMBER,
    "money": NUMBER,
    "bytea": BYTES,
    "bit": BYTES,
    "bit varying": BYTES,
    "date": DATE,
    "time without time zone": TIME,
    "time with time zone": TIME_TZ,
    "timestamp without time zone": TIMESTAMP,
    "timestamp with time zone": TIMESTAMP_TZ,
    "interval": INTERVAL,
    "json": JSON,
    "jsonb": JSON,
}
_GEOMETRIC: Final = ("point", "line", "lseg", "box", "path", "polygon", "circle")
_RANGES: Final = ("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange")
_UNSUPPORTED: Final = frozenset((*_GEOMETRIC, *_RANGES))
_DATE: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?([+-]\d\d(?::\d\d)*)?( BC)?")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?([+-]\d\d(?::\d\d)*)?")
_INTERVAL_PART: Final = re.compile(r"(-?\d+) (year|mon|day)s?")
_INTERVAL_TIME: Final = re.compile(r"([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?$")


def unified(type_name: str) -> Unified:
    """The type of a column, from its name with modifiers, such as `numeric(10,2)` or `timestamp with time zone[]`."""
    if type_name.endswith("[]"):
        return array(unified(type_name[:-2]))
    base = re.sub(r"\(.*?\)", "", type_name).strip()
    if base == "numeric" and (match := re.search(r"\((\d+)(?:,\s*(-?\d+))?\)", type_name)):
        scale = int(match[2] or 0)
        return decimal(int(match[1]), scale) if scale >= 0 else NUMBER
    return UNSUPPORTED if base in _UNSUPPORTED else _TYPES.get(base, STRING)


def value(kind: Unified, type_name: str, given_value: Any) -> Any:
    """The plain value of a text, or of what wal2json gives as a number or a boolean. None stays None.

    A trap of wal2json: NaN and infinity of numeric, real and double precision come as null.
    """
    if given_value is None:
        return None
    if kind.name == "ARRAY":
        assert kind.item is not None
        item, name = kind.item, type_name.removesuffix("[]")
        return _mapped(_parsed_array(given_value), lambda item_text: value(item, name, item_text))
    if type_name.startswith(("bit", "money")):
        return given_value.encode() if kind is BYTES else re.sub(r"[^0-9.-]", "", given_value)
    parse = _PARSE.get(kind.name)
    return parse(given_value) if parse else given_value


def _single(number: Any) -> float:
    single: float = struct.unpack("<f", struct.pack("<f", float(number)))[0]
    return single


def _day(text: str) -> int | None:
    if text.endswith("infinity"):
        return None  # What a stream writes for an infinite date is not on record.
    return _micros(text) // _DAY_US


def _micros(text: str) -> int:
    """Microseconds of a timestamp since 1970 in UTC, also before Christ."""
    if text.endswith("infinity"):
        return MINUS_INFINITY_US if text.startswith("-") else INFINITY_US
    match = _DATE.fullmatch(text)
    assert match is not None, text
    year = int(match[1]) if not match[9] else 1 - int(match[1])
    # 400 years have the same days each; Python's dates know the years 1 to 9999 only.
    eras = (year - 2000) // 400
    days = date(year - eras * 400, int(match[2]), int(match[3])).toordinal() - _EPOCH.toordinal() + eras * 146_097
    clock = [int(match[group] or 0) for group in (4, 5, 6)]
    seconds = days * 86_400 + clock[0] * 3600 + clock[1] * 60 + clock[2] - _offset_sec(match[8])
    return seconds * 1_000_000 + int((match[7] or "").ljust(6, "0"))


def _offset_sec(text: str | None) -> int:
    if not text:
        return 0
    numbers = [int(number) for number in text[1:].split(":")]
    seconds = sum(number * unit for number, unit in zip(numbers, (3600, 60, 1), strict=False))
    return -seconds if text[0] == "-" else seconds


def _time(text: str) -> int:
    return _time_tz(text)[0]


def _time_tz(text: str) -> tuple[int, int]:
    match = _TIME.fullmatch(text)
    assert match is not None, text
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    return seconds * 1_000_000 + int((match[4] or "").ljust(6, "0")), _offset_sec(match[5]) * 1000


def _interval(text: str) -> tuple[int, int, int]:
    """(months, hours, microseconds) of an interval in PostgreSQL's own style. A day counts 24 hours."""
    numbers_of = {unit: int(number) for number, unit in _INTERVAL_PART.findall(text)}
    months, hours, micros = numbers_of.get("year", 0) * 12 + numbers_of.get("mon", 0), numbers_of.get("day", 0) * 24, 0
    if match := _INTERVAL_TIME.search(text):
        sign = -1 if match[1] == "-" else 1
        hours += sign * int(match[2])
        rest = (int(match[3]) * 60 + int(match[4])) * 1_000_000 + int((match[5] or "").ljust(6, "0"))
        micros = sign * rest
    return months, hours, micros


_PARSE: Final[dict[str, Callable[[Any], Any]]] = {
    "BOOLEAN": lambda found: found in (True, "true", "t"),
    "INTEGER": int,
    "LONG": int,
    "FLOAT": _single,
    "DOUBLE": float,
    "NUMBER": str,
    "DECIMAL": lambda found: Decimal(str(found)) if str(found) != "NaN" else None,
    "BYTES": lambda found: bytes.fromhex(found.removeprefix("\\x")),
    "DATE": _day,
    "TIME": _time,
    "TIME_TZ": _time_tz,
    "TIMESTAMP": _micros,
    "TIMESTAMP_TZ": lambda found: (_micros(found), 0),
    "INTERVAL": _interval,
    "UNSUPPORTED": lambda found: None,
}


def _mapped(items: list[Any], convert: Callable[[Any], Any]) -> list[Any]:
    return [_mapped(item, convert) if isinstance(item, list) else convert(item) for item in items]


def _parsed_array(text: str) -> list[Any]:
    """The items of an array literal, nested as the literal is; NULL as None. Bounds in front are dropped."""
    body = text[text.index("{") :]
    return _items(iter(re.findall(r'"(?:[^"\\]|\\.)*"|[{},]|[^"{},]+', body)[1:]))


def _items(tokens: Iterator[str]) -> list[Any]:
    items: list[Any] = []
    for token in tokens:
        if token == "}":
            return items
        if token == "{":
            items.append(_items(tokens))
        elif token.startswith('"'):
            items.append(re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL))
        elif token != ",":
            items.append(None if token == "NULL" else token)
    return items
