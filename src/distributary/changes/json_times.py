"""JSON tokens that stand for dates, times and intervals, to the numbers that avro would have stored.

Every spelling that is met is read; what is no date at all is refused, and what is one of no calendar that readers have
(PostgreSQL's infinity, MySQL's zero dates) becomes a number of which the type mapping knows that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from distributary.avro.schema import Scalar
from distributary.changes import casts

UNITS = {"millis": 1_000, "micros": 1, "nanos": 0}
CLOCK = re.compile(r"(-?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d(?::?\d\d)?)?$")
INTERVAL = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<years>-?\d+)Y)?(?:(?P<months>-?\d+)M)?(?:(?P<weeks>-?\d+)W)?(?:(?P<days>-?\d+)D)?"
    r"(?:T(?:(?P<hours>-?\d+)H)?(?:(?P<minutes>-?\d+)M)?(?:(?P<seconds>-?\d+(?:\.\d+)?)S)?)?$"
)
FAR = re.compile(
    r"(?P<year>[+-]?\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[T ](?P<time>\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?)?(?P<era> BC)?$"
)
"""A day of a year that Python does not have, or a zero date of MySQL."""
COMPACT = {8: "%Y%m%d", 14: "%Y%m%d%H%M%S"}
TEMPORAL = ("timestamp", "local-timestamp", "date", "time-")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def unquoted(token: str) -> str:
    return str(json.loads(token)) if token.startswith('"') else token


def temporal(node: Scalar) -> Callable[[str], int]:
    """From a token, a day or a time as avro stores it. A number is one of the type's own unit."""
    if node.logical == "date":
        return _day
    divisor = UNITS[node.logical.rpartition("-")[2]]
    if node.logical.startswith("time-"):
        return lambda token: clock(unquoted(token))[0] // divisor if _is_text(token) else int(unquoted(token))
    return lambda token: per_unit(micros_of(unquoted(token)), divisor) if _is_text(token) else int(unquoted(token))


def _is_text(token: str) -> bool:
    """Whether a token is no number, in quotes or not. Eight or fourteen digits in quotes are a date: `20211225`."""
    bare = token.strip('"')
    return not _is_number(bare) or (token.startswith('"') and len(bare) in COMPACT)


def _day(token: str) -> int:
    text = unquoted(token)
    days = micros_of(text) // casts.DAY_US if _is_text(token) else int(text)
    return days if casts.FIRST_DAY <= days <= casts.LAST_DAY else casts.NO_DAY


def per_unit(micros: int, divisor: int) -> int:
    if divisor:
        return micros // divisor
    nanos = micros * 1000
    return nanos if abs(nanos) < -casts.NO_TIME else casts.NO_TIME


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def micros_of(text: str) -> int:
    return instant(text)[0]


def instant(text: str) -> tuple[int, int]:
    """Microseconds in UTC and the offset in ms; PostgreSQL's infinities as avro has them, and what is a date in no
    calendar of Python's (an empty text, `0000-00-00`) as `casts.NO_TIME`. A number is one of microseconds.

    Raises ValueError for what is no date at all: `today`, `2021-02-30`.
    """
    text = text.strip()
    if not text:
        return casts.NO_TIME, 0
    if text.lower() in ("infinity", "-infinity"):
        return (casts.FIRST_US if text.startswith("-") else casts.LAST_US), 0
    if _is_number(text) and len(text) not in COMPACT:
        return int(text), 0
    try:
        form = COMPACT.get(len(text)) if text.isdigit() else None
        moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
    except ValueError:
        return _far(text), 0
    offset = moment.utcoffset() or timedelta()
    micros = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return micros // timedelta(microseconds=1), offset // timedelta(milliseconds=1)


def _far(text: str) -> int:
    """Microseconds of a day before the year 1 or after the year 9999; `casts.NO_TIME` for a zero date. Raises
    ValueError."""
    match = FAR.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if not (month and day):
        return casts.NO_TIME
    year = 1 - year if match["era"] else year
    if 0 < year < 10_000 or month > 12 or day > 31:
        raise ValueError(text)
    # the calendar comes again every 400 years, which are 146,097 days
    cycles, like = divmod(year - 2_000, 400)
    moment = datetime(2_000 + like, month, day, tzinfo=UTC)
    time, offset = clock(match["time"]) if match["time"] else (0, 0)
    micros = ((moment - EPOCH).days + cycles * 146_097) * casts.DAY_US + time - offset * 1000
    return micros if casts.FIRST_US < micros < casts.LAST_US else casts.NO_TIME


def clock(text: str) -> tuple[int, int]:
    """Microseconds and the offset in ms of `07:05:00.25`, `-838:59:59`, `07:05:00+01:00`."""
    match = CLOCK.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    sign, hours, minutes, seconds, fraction, zone = match.groups()
    micros = (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * 1_000_000
    micros += int((fraction or "0")[:6].ljust(6, "0"))
    offset = 0
    if zone and zone != "Z":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000 * (-1 if zone[0] == "-" else 1)
    return (-micros if sign else micros), offset


def interval(text: str) -> dict[str, int]:
    match = INTERVAL.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    fields = {name: value or "0" for name, value in match.groupdict().items() if name != "sign"}
    sign = -1 if match["sign"] == "-" else 1
    seconds, _, fraction = fields["seconds"].lstrip("-").partition(".")
    micros = int(seconds) * 1_000_000 + int(fraction[:6].ljust(6, "0") or 0)
    micros = -micros if fields["seconds"].startswith("-") else micros
    days = int(fields["weeks"]) * 7 + int(fields["days"])
    return {
        "months": sign * (int(fields["years"]) * 12 + int(fields["months"])),
        "hours": sign * (days * 24 + int(fields["hours"])),
        "micros": sign * (int(fields["minutes"]) * 60_000_000 + micros),
    }
