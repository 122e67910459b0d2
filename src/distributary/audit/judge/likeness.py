"""Does a table's row say what its event says?

A value may be kept in another form than its file has it (a decimal as a number, a clock as a text), by the file's
types and by settings. The judge does not repeat that mapping: it asks whether what is kept means what was said.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from distributary.audit.judge.plain_values import DAY_US, Clock, Day, Moment, nothing

_EPOCH = datetime(1970, 1, 1)
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Years 1 to 9999. Times beyond may be null in a table (docs/datastream-types.md)."""

# -- do two values mean the same? --------------------------------------------------------------------------------


def same(said: Any, kept: Any) -> bool:
    """Does the table's value `kept` mean what the event's value `said` does? Neither is None at this depth."""
    if isinstance(kept, str):
        return _same_text(said, kept)
    if isinstance(kept, Moment):
        return moment(said) == kept
    if isinstance(kept, Day):
        micros = moment(said)
        days = int(said) if type(said) is int else None if micros is None else micros // DAY_US
        return days == kept
    if isinstance(kept, bytes):
        return kept in _bytes(said)
    if isinstance(kept, bool) or isinstance(said, bool):
        return _truth(said) is _truth(kept) is not None
    if isinstance(kept, int | float | Decimal):
        return _same_number(said, kept)
    if isinstance(kept, Mapping):
        said = _read_json(said)
        return isinstance(said, Mapping) and unlike(said, kept) is None
    if isinstance(kept, Sequence):
        said = leaves(_read_json(said))
        return isinstance(said, list) and len(said) == len(kept) and all(map(_both, said, kept))
    return bool(said == kept)


def _both(said: Any, kept: Any) -> bool:
    if said is None or kept is None:
        return kept is None and may_be_null(said)
    return same(said, kept)


def may_be_null(said: Any) -> bool:
    """May null stand for this value, though it is one? Of times that no calendar has, the documents say so."""
    if isinstance(said, Day):
        return not _FIRST_US <= said * DAY_US < _LAST_US
    if isinstance(said, Moment | Clock):
        return not _FIRST_US <= said < _LAST_US
    if isinstance(said, Mapping):
        return all(may_be_null(value) for name, value in said.items() if name != "offset")
    return said is None


class Names:
    """A table's columns, or a struct's fields, by the field of an event that may be in them."""

    def __init__(self, columns: Iterable[str], times: Iterable[str] = ()) -> None:
        self.columns = tuple(columns)
        self.times = frozenset(times)
        """Columns of times, in which a text that is none is null."""
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, field: str) -> tuple[str, ...]:
        """Columns that may hold a field's value: of its name, in any case, or `<name>__<type>`, `<name>__field`."""
        found = self._known.get(field)
        if found is None:
            folded = field.lower()
            found = tuple(c for c in self.columns if folded in bases(c.lower()))
            self._known[field] = found
        return found


@lru_cache(4096)
def bases(column: str) -> tuple[str, ...]:
    """A column's name, and the fields that it may be beside: `id__bigint__string` is beside `id__bigint`, that is
    beside `id`."""
    found = [column]
    while (base := BESIDE.sub("", found[-1])) != found[-1]:
        found.append(base)
    return tuple(found)


@lru_cache(1024)
def names_of(columns: tuple[str, ...]) -> Names:
    """`Names` of columns that come again and again."""
    return Names(columns)


def unlike(
    said: Mapping[str, Any], kept: Mapping[str, Any], names: Names | None = None, *, silent: bool = False
) -> str | None:
    """The first field or column in which a row is not what its event says; None where it is.

    A field is in the column of its name, or in one beside it that has its type (`score__string`). `silent`: of what the
    event does not speak (null, or no such field), the row may hold what was there before.
    """
    names = names or names_of(tuple(kept))
    explained: set[str] = set()
    for name, value in said.items():
        if value is None:
            continue
        columns = names.of(name)
        right = [c for c in columns if kept[c] is not None and same(value, kept[c])]
        explained.update(right)
        if right or nothing(value):
            continue
        if any(kept[c] is not None for c in columns) or not _may_be_gone(value, columns, names):
            return name
    if silent:
        return None
    return next((c for c in names.columns if c not in explained and not nothing(kept[c])), None)


def _may_be_gone(said: Any, columns: Sequence[str], names: Names) -> bool:
    if may_be_null(said):
        return True
    return isinstance(said, str) and any(c in names.times for c in columns) and moment(said) is None


# -- by what is kept ---------------------------------------------------------------------------------------------


def _same_text(said: Any, kept: str) -> bool:
    if isinstance(said, str):
        return _HALVES.sub("\ufffd", said) == kept or _alike_json(said, kept) or _alike_time(said, kept)
    if isinstance(said, bytes):
        return any(said == way for way in _bytes(kept)) or said.decode("utf-8", "backslashreplace") == kept
    if isinstance(said, bool):
        return kept == str(said).lower()
    if isinstance(said, Clock):
        return clock(kept) == said
    if isinstance(said, Moment | Day):
        micros = said if isinstance(said, Moment) else said * DAY_US
        return moment(kept) == micros or kept.lstrip("-") == "infinity"
    if isinstance(said, int | float | Decimal):
        return _same_number(kept, said) or (isinstance(said, int) and clock(kept) == said)
    if isinstance(said, Mapping):
        if isinstance(said.get("value"), str) and said["value"] == kept:
            return True  # a varchar of 2020
        if said.keys() == {"months", "hours", "micros"}:
            return _interval(kept) == tuple(int(said[n] or 0) for n in ("months", "hours", "micros"))
        if said.keys() == {"time", "offset"}:
            return bool(clock(kept) == said["time"])
        if said.keys() == {"timestamp", "offset"}:
            return bool(moment(kept) == said["timestamp"]) or kept.lstrip("-") == "infinity"
    read = _read_json(kept)
    return read is not kept and _alike(leaves(said), read)


def _alike_json(said: str, kept: str) -> bool:
    """The same JSON, in another spelling."""
    if said[:1] not in ("{", "[") or kept[:1] != said[:1]:
        return False
    one, other = _read_json(said), _read_json(kept)
    return one is not said and other is not kept and bool(one == other)


def _alike_time(said: str, kept: str) -> bool:
    """The same clock, interval or moment, in another spelling."""
    for read in (clock, _interval, moment):
        found = read(said)
        if found is not None:
            return bool(found == read(kept))
    return False


def _alike(said: Any, kept: Any) -> bool:
    """A value against what its JSON text says."""
    if isinstance(said, Mapping):
        return isinstance(kept, Mapping) and said.keys() == kept.keys() and all(_alike(said[k], kept[k]) for k in said)
    if isinstance(said, list):
        return isinstance(kept, list) and len(said) == len(kept) and all(map(_alike, said, kept))
    if said is None or kept is None or isinstance(kept, bool):
        return said is kept
    return same(said, kept) or (isinstance(kept, str) and isinstance(said, int) and same(int(said), kept))


def _same_number(said: Any, kept: Any) -> bool:
    one, other = _number(said), _number(kept)
    if one is None or other is None:
        return False
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        return one == other or (one != one and other != other) or _float32(one) == _float32(other)
    return one == other


def _number(value: Any) -> int | float | Decimal | None:
    if isinstance(value, str):
        try:
            found = Decimal(value.strip())
        except InvalidOperation:
            return None
        return found if found.is_finite() else float(found)
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


def _bytes(said: Any) -> list[bytes]:
    """What bytes a value may stand for: a text is hex, base64 or its own letters."""
    if isinstance(said, bytes):
        return [said]
    if not isinstance(said, str):
        return []
    found = [said.encode("utf-8", "surrogatepass")]
    for read in (binascii.unhexlify, base64.b64decode):
        try:
            found.append(read(said))
        except ValueError:
            continue
    return found


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
    found = _ISO.fullmatch(value.strip())
    if found is None:
        return None
    try:
        when = datetime.fromisoformat(f"{found['day']}T{found['clock'] or '00:00'}{found['zone'] or ''}")
    except ValueError:
        return None
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _EPOCH) // timedelta(microseconds=1) + int((found["part"] or "")[:6].ljust(6, "0"))


def clock(text: str) -> int | None:
    """Microseconds of `-838:59:59`, `07:05:00.25` or `07:05:00+01:00`; None for another text."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    hours, minutes, seconds, part = (found[n] or "" for n in ("h", "m", "s", "part"))
    size = (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * 10**6 + int(part[:6].ljust(6, "0") or 0)
    return -size if found["sign"] else size


def _interval(text: str) -> tuple[int, int, int] | None:
    """Months, hours and microseconds of an ISO 8601 interval."""
    found = _INTERVAL.fullmatch(text.strip())
    if found is None:
        return None
    years, months, weeks, days, hours, minutes = (int(found[n] or 0) for n in ("y", "mo", "w", "d", "h", "m"))
    micros = int(Decimal(found["s"] or 0) * 10**6) + minutes * 60 * 10**6
    return years * 12 + months, hours + 24 * (days + 7 * weeks), micros


def leaves(value: Any) -> Any:
    """The elements of an array of any dimensions, as Datastream writes PostgreSQL's; another value as it is."""
    if isinstance(value, Mapping) and value.keys() == {"nestedArray", "elementValue"}:
        if value["nestedArray"] is None:
            return value["elementValue"]
        value = value["nestedArray"]
        found = [leaves(item) for item in value]
        return [leaf for item in found for leaf in (item if isinstance(item, list) else [item])]
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
