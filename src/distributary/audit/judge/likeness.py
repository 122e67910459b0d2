"""Does a table's row say what its event says?

A value may be kept in another form than its file has it (a decimal as a number, a clock as a text), by the file's
types and by settings. The judge does not repeat that mapping: it asks whether what is kept means what was said.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from distributary.audit.judge.plain_values import DAY_US, Clock, Day, Moment, Single, nothing

_EPOCH = datetime(1970, 1, 1)
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Years 1 to 9999. Times beyond may be null in a table (docs/datastream-types.md)."""

# -- do two values mean the same? --------------------------------------------------------------------------------


def same(value: Any, cell: Any) -> bool:
    """Does the table's value `cell` mean what the event's value `value` does? Neither is None at this depth."""
    if isinstance(cell, str):
        return _same_text(value, cell)
    if isinstance(cell, Moment):
        return moment(value) == cell
    if isinstance(cell, Day):
        micros = moment(value)
        days = int(value) if type(value) is int else None if micros is None else micros // DAY_US
        return days == cell
    if isinstance(cell, bytes):
        return cell in _bytes(value)
    if isinstance(cell, bool) or isinstance(value, bool):
        return _truth(value) is _truth(cell) is not None
    if isinstance(cell, int | float | Decimal):
        return _same_number(value, cell)
    if isinstance(cell, Mapping):
        value = _read_json(value)
        return isinstance(value, Mapping) and unlike(value, cell) is None
    if isinstance(cell, Sequence):
        value = leaves(_read_json(value))
        return isinstance(value, list) and len(value) == len(cell) and all(map(_both, value, cell))
    return bool(value == cell)


def _both(value: Any, cell: Any) -> bool:
    if value is None or cell is None:
        return cell is None and may_be_null(value)
    return same(value, cell)


def may_be_null(source_value: Any) -> bool:
    """May null stand for this value, though it is one? Of times that no calendar has, the documents say so."""
    if isinstance(source_value, Day):
        return not _FIRST_US <= source_value * DAY_US < _LAST_US
    if isinstance(source_value, Moment | Clock):
        return not _FIRST_US <= source_value < _LAST_US
    if isinstance(source_value, Mapping):
        return all(may_be_null(value) for name, value in source_value.items() if name != "offset")
    return source_value is None


class Names:
    """A table's columns, or a struct's fields, by the field of an event that may be in them."""

    def __init__(self, columns: Iterable[str], times: Iterable[str] = ()) -> None:
        self.columns = tuple(columns)
        self.times = frozenset(times)
        """Columns of times, in which a text that is none is null."""
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, field: str) -> tuple[str, ...]:
        """Columns that may hold a field's value: of its name, in any case, or `<name>__<type>`, `<name>__field`."""
        columns = self._known.get(field)
        if columns is None:
            folded = field.lower()
            columns = tuple(c for c in self.columns if folded in bases(c.lower()))
            self._known[field] = columns
        return columns


@lru_cache(4096)
def bases(column: str) -> tuple[str, ...]:
    """A column's name, and the fields that it may be beside: `id__bigint__string` is beside `id__bigint`, that is
    beside `id`."""
    names = [column]
    while (base := BESIDE.sub("", names[-1])) != names[-1]:
        names.append(base)
    return tuple(names)


@lru_cache(1024)
def names_of(columns: tuple[str, ...]) -> Names:
    """`Names` of columns that come again and again."""
    return Names(columns)


def unlike(
    event: Mapping[str, Any], row: Mapping[str, Any], names: Names | None = None, *, silent: bool = False
) -> str | None:
    """The first field or column in which a row is not what its event says; None where it is.

    A field is in the column of its name, or in one beside it that has its type (`score__string`). `silent`: of what the
    event does not speak (null, or no such field), the row may hold what was there before.
    """
    names = names or names_of(tuple(row))
    explained: set[str] = set()
    for name, value in event.items():
        if value is None:
            continue
        columns = names.of(name)
        right = [c for c in columns if row[c] is not None and same(value, row[c])]
        explained.update(right)
        if right or nothing(value):
            continue
        if any(row[c] is not None for c in columns) or not _may_be_gone(value, columns, names):
            return name
    if silent:
        return None
    return next((c for c in names.columns if c not in explained and not nothing(row[c])), None)


def _may_be_gone(value: Any, columns: Sequence[str], names: Names) -> bool:
    if may_be_null(value):
        return True
    return isinstance(value, str) and any(c in names.times for c in columns) and moment(value) is None


# -- by what is kept ---------------------------------------------------------------------------------------------


def _same_text(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value) == text or _alike_json(value, text) or _alike_time(value, text)
    if isinstance(value, bytes):
        return any(value == way for way in _bytes(text)) or value.decode("utf-8", "backslashreplace") == text
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, Clock):
        return clock(text) == value
    if isinstance(value, Moment | Day):
        micros = value if isinstance(value, Moment) else value * DAY_US
        return moment(text) == micros or text.lstrip("-") == "infinity"
    if isinstance(value, int | float | Decimal):
        return _same_number(value, text) or (isinstance(value, int) and clock(text) == value)
    if isinstance(value, Mapping):
        if isinstance(value.get("value"), str) and value["value"] == text:
            return True  # a varchar of 2020
        if value.keys() == {"months", "hours", "micros"}:
            return _interval(text) == tuple(int(value[n] or 0) for n in ("months", "hours", "micros"))
        if value.keys() == {"time", "offset"}:
            return bool(clock(text) == value["time"])
        if value.keys() == {"timestamp", "offset"}:
            return bool(moment(text) == value["timestamp"]) or text.lstrip("-") == "infinity"
    parsed = _read_json(text)
    return parsed is not text and _alike(leaves(value), parsed)


def _alike_json(value: str, text: str) -> bool:
    """The same JSON, in another spelling."""
    if value[:1] not in ("{", "[") or text[:1] != value[:1]:
        return False
    left, right = _read_json(value), _read_json(text)
    return left is not value and right is not text and bool(left == right)


def _alike_time(value: str, text: str) -> bool:
    """The same clock, interval or moment, in another spelling."""
    for parse in (clock, _interval, moment):
        time = parse(value)
        if time is not None:
            return bool(time == parse(text))
    return False


def _alike(value: Any, parsed: Any) -> bool:
    """A value against what its JSON text says."""
    if isinstance(value, Mapping):
        return (
            isinstance(parsed, Mapping)
            and value.keys() == parsed.keys()
            and all(_alike(value[k], parsed[k]) for k in value)
        )
    if isinstance(value, list):
        return isinstance(parsed, list) and len(value) == len(parsed) and all(map(_alike, value, parsed))
    if value is None or parsed is None or isinstance(parsed, bool):
        return value is parsed
    return same(value, parsed) or (isinstance(parsed, str) and isinstance(value, int) and same(int(value), parsed))


def _same_number(value: Any, cell: Any) -> bool:
    left, right = _number(value), _number(cell)
    if left is None or right is None or _is_rounded(left, right):
        return False
    if isinstance(left, float) or isinstance(right, float):
        is_single = _may_be_single(left, right)
        left, right = float(left), float(right)
        if left == right or (left != left and right != right):
            return True
        return is_single and _float32(left) == _float32(right)
    return left == right


def _may_be_single(value: int | float | Decimal, cell: int | float | Decimal) -> bool:
    """Is one of them of 32 bits? Of a number out of a file that is not always known, and its digits may be kept as text
    or decimal: it may be one if 32 bits hold it."""
    if isinstance(value, Single) or isinstance(cell, Single):
        return True
    return (
        isinstance(value, float)
        and isinstance(cell, Decimal)
        and _float32(value) is not None
        and (struct.unpack("f", struct.pack("f", value))[0] == value)
    )


def _is_rounded(number: int | float | Decimal, stored: int | float | Decimal) -> bool:
    """Is a large whole number another one as it is stored? Its float may have its own digits, or its shortest ones."""
    if not isinstance(number, int) or not isinstance(stored, float) or abs(number) <= 2**53:
        return False
    return not math.isfinite(stored) or number not in (int(stored), Decimal(repr(stored)))


def _number(value: Any) -> int | float | Decimal | None:
    if isinstance(value, str):
        try:
            number = Decimal(value.strip())
        except InvalidOperation:
            return None
        return number if number.is_finite() else float(number)
    return value if isinstance(value, int | float | Decimal) else None


def _float32(value: float) -> bytes | None:
    try:
        return struct.pack("f", value)
    except OverflowError:
        return None


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False, "t": True, "f": False, "1": True, "0": False}.get(value.lower())
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


def _bytes(value: Any) -> list[bytes]:
    """What bytes a value may stand for: a text is hex, base64 or its own letters."""
    if isinstance(value, bytes):
        return [value]
    if not isinstance(value, str):
        return []
    readings = [value.encode("utf-8", "surrogatepass")]
    for decode in (binascii.unhexlify, base64.b64decode):
        try:
            readings.append(decode(value))
        except ValueError:
            continue
    return readings


def moment(value: Any) -> int | None:
    """Microseconds since 1970 of a time, a day, a record of both, or a text; None for what is no time."""
    if isinstance(value, Moment):
        return value
    if isinstance(value, Day):
        return value * DAY_US
    if isinstance(value, Mapping):
        if isinstance(value.get("timestamp"), int):
            return int(value["timestamp"])
        if isinstance(value.get("date"), int):
            return int(value["date"]) * DAY_US + int(value.get("time") or 0)
        return None
    if not isinstance(value, str):
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
    match = _ISO.fullmatch(value.strip())
    if match is None:
        return None
    try:
        when = datetime.fromisoformat(f"{match['day']}T{match['clock'] or '00:00'}{match['zone'] or ''}")
    except ValueError:
        return None
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _EPOCH) // timedelta(microseconds=1) + int((match["part"] or "")[:6].ljust(6, "0"))


def clock(text: str) -> int | None:
    """Microseconds of `-838:59:59`, `07:05:00.25` or `07:05:00+01:00`; None for another text."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    hours, minutes, seconds, fraction = (match[n] or "" for n in ("h", "m", "s", "part"))
    size = (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * 10**6 + int(fraction[:6].ljust(6, "0") or 0)
    return -size if match["sign"] else size


def _interval(text: str) -> tuple[int, int, int] | None:
    """Months, hours and microseconds of an ISO 8601 interval."""
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        return None
    years, months, weeks, days, hours, minutes = (int(match[n] or 0) for n in ("y", "mo", "w", "d", "h", "m"))
    micros = int(Decimal(match["s"] or 0) * 10**6) + minutes * 60 * 10**6
    return years * 12 + months, hours + 24 * (days + 7 * weeks), micros


def leaves(value: Any) -> Any:
    """The elements of an array of any dimensions, as Datastream writes PostgreSQL's; another value as it is."""
    if isinstance(value, Mapping) and value.keys() == {"nestedArray", "elementValue"}:
        if value["nestedArray"] is None:
            return value["elementValue"]
        value = value["nestedArray"]
        items = [leaves(item) for item in value]
        return [leaf for item in items for leaf in (item if isinstance(item, list) else [item])]
    return value


def _read_json(value: Any) -> Any:
    """What a text spells in JSON; the text itself where it is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_float=Decimal)
    except (ValueError, RecursionError):
        return value


BESIDE = re.compile(
    r"__(field|(list_)*(tinyint|smallint|int|bigint|float|double|boolean|string|binary|date|decimal|timestamp|"
    r"timestamp_ntz|struct|map|null|json|empty)(_\d+)?|\d+)$|(?<=^datastream_metadata)_$"
)
"""What stands behind a field's name in the column beside its own."""
_HALVES = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair is in no UTF-8 text."""
_ISO = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d|\d{8})([T ](?P<clock>\d\d:\d\d(:\d\d)?)(\.(?P<part>\d+))?)? ?"
    r"(?P<zone>Z|[+-]\d\d(:?\d\d)?)?"
)
_CLOCK = re.compile(r"(?P<sign>-)?(?P<h>\d+):(?P<m>\d\d)(:(?P<s>\d\d)(\.(?P<part>\d+))?)?(Z|[+-]\d\d(:?\d\d)?)?")
_INTERVAL = re.compile(
    r"P(?:(?P<y>-?\d+)Y)?(?:(?P<mo>-?\d+)M)?(?:(?P<w>-?\d+)W)?(?:(?P<d>-?\d+)D)?"
    r"(?:T(?:(?P<h>-?\d+)H)?(?:(?P<m>-?\d+)M)?(?:(?P<s>-?\d+(?:\.\d+)?)S)?)?"
)
