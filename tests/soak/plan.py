"""What happens to a run, and when: by shares of its time, so that a short one has the same as a long one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_ROUTES = 0.9
"""Of the routes, so many are there from the start; the others come one by one."""
CHANGE_SEC = 60.0

LONG = (
    (0.04, "kill all"),
    (0.08, "kill a worker"),
    (0.09, "registry"),
    (0.12, "kill driver"),
    (0.20, "stop broker"),
    (0.25, "put in the way"),
    (0.30, "registry"),
    (0.35, "clear the way"),
    (0.40, "kill broker"),
    (0.50, "registry"),
    (0.55, "put in the way"),
    (0.60, "stop broker"),
    (0.65, "clear the way"),
    (0.70, "registry"),
    (0.80, "kill broker"),
    (0.88, "registry"),
    (0.95, "kill driver"),
    (0.98, "kill all"),
)
"""Between 0.12 and 0.95 nothing ends the product's process: its memory is compared there, by
quarters, each of which has the same faults."""
SHORT = (
    (0.25, "put in the way"),
    (0.35, "kill all"),
    (0.50, "clear the way"),
    (0.55, "registry"),
    (0.75, "kill broker"),
    (0.90, "kill driver"),
)
SHORT_MIN = 15.0
"""Below so many minutes there is time for SHORT only: a start takes a quarter of a minute."""


@dataclass(frozen=True, order=True)
class Event:
    """`at_sec`: after the first record."""

    at_sec: float
    what: str


def events(minutes: float) -> list[Event]:
    """Faults and changes of a run of this length, in their order."""
    seconds = minutes * 60
    faults = [Event(share * seconds, what) for share, what in (SHORT if minutes < SHORT_MIN else LONG)]
    return sorted([*faults, *_changes(seconds)])


def _changes(seconds: float) -> Iterator[Event]:
    """New versions and new routes, in turns, all the time; at least some of each."""
    every = min(CHANGE_SEC, seconds / 12)
    for number in range(1, int(seconds / every)):
        yield Event(number * every, "new version" if number % 2 else "new route")


def first_routes(routes: int) -> int:
    return max(1, int(routes * FIRST_ROUTES))


def changed(number: int, routes: int) -> int:
    """The rank of the route whose schema grows in the nth change: large ones, small ones, in turns. A route's fourth
    version makes a column wider, for which its table is written anew."""
    ranks = [rank for rank in (3, 7, 12, 20, 33, 54, 90, 148, 244, 400) if rank < routes] or [routes - 1]
    return ranks[number % len(ranks)]
