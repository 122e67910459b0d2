"""A source's log that begins anew: after RESET MASTER, a failover or a restore its positions start over, and by their
position alone all later changes would be older than the rows that are there.

In one server's log, of two changes of a row the one that stands later is the later one. Its time may still be somewhat
earlier: clocks are set back, and a MySQL statement has the time at which it began. So where the change that would lose
by its position is later in source time by more than `OrderSettings.margin_ms`, the two are not of one log, and nobody
but the user knows where the new one began (`source.epochs`, which then decide before the position). The rule looks at
two changes of one key and nothing else, so it does not matter when, how often and in which batch they came, and what
would be lost by it is found. It says nothing of backfilled rows, which have no position, and of sources whose order is
that of time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from distributary.changes.digits import FIRST_LAYOUT, PREFIX, WIDTH
from distributary.changes.sequence import Bools, Longs, Numbers, OrderSettings

_REST = WIDTH - PREFIX
TIMES = {"mysql": (65, 77), "postgresql": (33, 49), "sqlserver": (49, 65), "oracle": (49, 65)}
"""By kind: where the source time (ms, hex) stands in a number in today's layout, from the origin digit on."""


class BegunAnew(ValueError):
    """Two changes of one key contradict each other: `winner` stands later in the log, `loser` is far later in time."""

    def __init__(self, winner: str, loser: str, kind: str) -> None:
        self.winner, self.loser, self.kind = winner, loser, kind
        super().__init__(self.detail)

    @property
    def since(self) -> str:
        """The time of the change that would be lost, ISO 8601: the log began anew before it."""
        return _time(self.loser, self.kind)

    @property
    def detail(self) -> str:
        (holder, loser), (time, since) = (
            [make(number, self.kind) for number in (self.winner, self.loser)] for make in (_place, _time)
        )
        return f"{loser} has a change of {since}, {holder} one of {time} to the same row"


def check(winners: Numbers, losers: Numbers, order: OrderSettings) -> None:
    """Raises BegunAnew where a change of `losers`, which gives way to that of `winners` in the same place, is far later
    in time. Both as `standing` has them."""
    if order.kind not in TIMES or not len(winners):
        return
    begin, end = TIMES[order.kind]
    ours, theirs = _digits(winners), _digits(losers)
    later = _hex(theirs[:, -_REST:][:, begin:end]) - _hex(ours[:, -_REST:][:, begin:end]) > order.margin_ms
    if not later.any():
        return
    changes: Bools = (ours[:, -_REST] >= ord(FIRST_LAYOUT)) & (theirs[:, -_REST] >= ord(FIRST_LAYOUT))
    same_prefix = (ours[:, :-_REST] == theirs[:, :-_REST]).all(axis=1)
    places = np.flatnonzero(later & changes & same_prefix)
    if len(places):
        raise BegunAnew(winners[places[0]].decode(), losers[places[0]].decode(), order.kind)


def cannot_be(latest_ms: int | None, earliest_ms: int, order: OrderSettings) -> bool:
    """Would `check` find nothing, whatever changes lose to others? `latest_ms`: the greatest source time of those that
    lose, None: not known; `earliest_ms`: the least of those that win."""
    return order.kind not in TIMES or (latest_ms is not None and latest_ms - earliest_ms <= order.margin_ms)


def _digits(numbers: Numbers) -> Any:
    numbers = np.ascontiguousarray(numbers)
    return numbers.view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize)


_VALUES = np.zeros(256, np.int64)
_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def _hex(digits: Any) -> Longs:
    weights = np.int64(1) << (4 * np.arange(digits.shape[1] - 1, -1, -1, dtype=np.int64))
    return np.asarray(_VALUES[digits] @ weights)


def _time(number: str, kind: str) -> str:
    begin, end = TIMES[kind]
    moment = datetime.fromtimestamp(int(number[-_REST:][begin:end], 16) / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _place(number: str, kind: str) -> str:
    numbers = [int(number[-_REST:][1 + begin : 17 + begin], 16) for begin in (0, 16, 32)]
    match kind:
        case "mysql":
            return f"binlog file {numbers[0]}, position {numbers[1]},"
        case "postgresql":
            return f"LSN {numbers[0]:X}/{numbers[1]:X}"
        case "sqlserver":
            return f"LSN {numbers[0]:08x}:{numbers[1]:08x}:{numbers[2]:04x}"
        case _:
            return f"SCN {numbers[0]}"
