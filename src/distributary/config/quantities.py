"""Values of a pipeline file that are friendlier to write than to compute with: durations, sizes, options."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_SECONDS = {"ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0} | {
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
MIN_BATCH_BYTES = 2**10
_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DURATIONS = "allowed: a duration like '10 seconds', '1 minute' or '500 ms', or a number of seconds"
_SIZES = "allowed: a size like '64 MB' or '1 GB' (powers of 1024), or a number of bytes"
_TIMES = "allowed: a time like '2026-03-01T12:00:00Z', or a date (UTC where no offset is given)"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""As Kafka has them (org.apache.kafka.common.internals.Topic)."""
_UNFINISHED = ("missing )", "unbalanced parenthesis", "unterminated character set", "nothing to repeat")
"""Of what Python finds in a regular expression, that which Java finds too."""
_CLASS_IN_CLASS = re.compile(r"\[[^\]]*\[")
REFERENCE = re.compile(r"\$\{(\w+):([^{}]+)\}")
"""`${kind:name}`, always the whole of a value: as it stands where secrets are not resolved."""
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
COLUMN_TYPES = (
    "string", "long", "bigint", "integer", "int", "double", "float", "boolean", "date", "timestamp", "timestamp_ntz",
    "binary",
)  # fmt: skip
"""Types that a pipeline file may ask for, `decimal(p,s)` besides."""
_OFFSETS = "allowed: 'earliest', 'latest', or topic to partition to offset, as in {events: {0: 1500, 1: -2}}"


def seconds(value: object) -> float:
    """Seconds in a duration: `10 seconds`, `500 ms`, `1 minute`, `2 h`, or a number of seconds.

    Raises:
        ValueError: not a duration; the message says what is allowed and does not hold the value.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max:
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = match[2].lower() if match else ""
    factor = _SECONDS.get(unit, _SECONDS.get(unit.removesuffix("s")))
    if match is None or factor is None:
        raise ValueError(_DURATIONS)
    return float(match[1]) * factor


def size_bytes(value: object) -> int:
    """Bytes in a size: `64 MB`, `1g`, `512 KiB`, or a number of bytes. Powers of 1024, as in Spark's settings.

    Raises:
        ValueError: not a size, or under one byte; the message says what is allowed and does not hold the value.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = re.sub(r"(?<=[kmgt])i?b$", "", match[2].lower()) if match else ""
    if match is None or unit not in _BYTES or float(match[1]) * _BYTES[unit] < 1:
        raise ValueError(_SIZES)
    return int(float(match[1]) * _BYTES[unit])


def _batch_bytes(value: object) -> int:
    size = size_bytes(value)
    if size < MIN_BATCH_BYTES:
        raise ValueError(f"{size} bytes are less than any file has: a number counts bytes, so write '{size} MB'")
    return size


def moment(text: str) -> datetime:
    """A time in UTC: `2026-03-01T12:00:00Z`, `2026-03-01 12:00:00+01:00`, or a date. UTC where no offset is given.

    Raises:
        ValueError: not a time.
    """
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def milliseconds(text: str) -> int:
    """Milliseconds since 1970 of `moment`. Raises ValueError."""
    return int(moment(text).timestamp() * 1000)


def _time(value: object) -> object:
    try:
        moment(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(_TIMES) from None
    return value


def _option(value: object) -> object:
    # YAML reads `true` and `8` as a boolean and a number; the options of Spark, Kafka and Delta are text.
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _topics(value: object) -> object:
    names = [value] if isinstance(value, str) else value
    if names is not None and not (isinstance(names, list) and names and all(n and isinstance(n, str) for n in names)):
        raise ValueError("allowed: a topic name, or a list of topic names")
    for name in names or ():
        if names is not None and names.count(name) > 1:
            raise ValueError(f"{name!r} is given twice")
        if name in (".", "..") or (not _TOPIC.fullmatch(name) and not REFERENCE.fullmatch(name)):
            raise ValueError("allowed: topic names of a-z, A-Z, 0-9, '.', '_' and '-', at most 249 characters")
    return value


def _pattern(text: str) -> str:
    """Java's own quotes, and classes in classes, are left to Java."""
    if "\\Q" in text or _CLASS_IN_CLASS.search(text):
        return text
    try:
        re.compile(text)
    except re.error as error:
        if error.msg.startswith(_UNFINISHED):
            raise ValueError(f"not a regular expression: {error}") from None
    return text


def _offsets(value: object) -> object:
    if value in ("earliest", "latest"):
        return value
    if not isinstance(value, dict) or not value or not all(isinstance(p, dict) and p for p in value.values()):
        raise ValueError(_OFFSETS)
    pairs = [pair for partitions in value.values() for pair in partitions.items()]
    if not all(str(p).isdecimal() and type(offset) is int and offset >= -2 for p, offset in pairs):
        raise ValueError(_OFFSETS)
    return {str(topic): {int(p): offset for p, offset in offsets.items()} for topic, offsets in value.items()}


def _column_type(name: str) -> str:
    match = _DECIMAL.fullmatch(name.strip())
    if name.strip() in COLUMN_TYPES or (match and 0 < int(match[1]) <= 38 and int(match[2]) <= int(match[1])):
        return name
    raise ValueError(f"allowed: {', '.join(COLUMN_TYPES)}, decimal(p,s)")


def _written_as(name: str, *schemas: dict[str, object]) -> WithJsonSchema:
    """The JSON schema of what may be written (not of what is held), and `name`, which the docs show for it."""
    return WithJsonSchema({"anyOf": list(schemas), "x-name": name})


_WITH_UNIT: dict[str, object] = {"type": "string", "pattern": "^ *[0-9.]+ *[A-Za-z]+ *$"}
_OFFSET_MAP: dict[str, object] = {
    "type": "object",
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer", "minimum": -2}},
}


def _commit_time(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("allowed: a date or a time, as '2026-01-31' or '2026-01-31 12:00:00'") from None
    return text


def _database(name: str) -> str:
    if not all(name.split(".")) or name.count(".") > 1 or name != name.strip():
        raise ValueError("allowed: a database, or catalog and database, as in main.silver")
    return name


def _distinct(names: list[str]) -> list[str]:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice!r} is given twice")
    return names


# These validators run before the type check and leave nothing to it, so that a mistake gives one message.
Text: TypeAlias = Annotated[str, Field(min_length=1)]
ColumnType: TypeAlias = Annotated[Text, AfterValidator(_column_type)]
Database: TypeAlias = Annotated[Text, AfterValidator(_database)]
Distinct: TypeAlias = Annotated[list[Text], AfterValidator(_distinct)]
CommitTime: TypeAlias = Annotated[Text, AfterValidator(_commit_time)]
"""As Delta's `startingTimestamp` takes it."""
Option: TypeAlias = Annotated[
    str, BeforeValidator(_option), _written_as("text", {"type": "string"}, {"type": "number"}, {"type": "boolean"})
]
TopicPattern: TypeAlias = Annotated[Text, AfterValidator(_pattern)]
Topics: TypeAlias = Annotated[str | list[str] | None, BeforeValidator(_topics)]
Offsets: TypeAlias = Annotated[
    Literal["earliest", "latest"] | dict[str, dict[int, int]],
    BeforeValidator(_offsets),
    _written_as("`earliest`, `latest`, mapping", {"enum": ["earliest", "latest"]}, _OFFSET_MAP),
]
Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(seconds),
    _written_as("duration", {"type": "number", "minimum": 0}, _WITH_UNIT),
]
Size: TypeAlias = Annotated[
    int,
    BeforeValidator(size_bytes),
    _written_as("size", {"type": "integer", "minimum": 1}, _WITH_UNIT),
]
BatchSize: TypeAlias = Annotated[
    int,
    BeforeValidator(_batch_bytes),
    _written_as("size", {"type": "integer", "minimum": MIN_BATCH_BYTES}, _WITH_UNIT),
]
Time: TypeAlias = Annotated[str, BeforeValidator(_time), _written_as("time", {"type": "string"})]
