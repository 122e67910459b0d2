"""When rows that are set aside are no longer a few bad ones, but a table (or a stream) that is not well."""

from __future__ import annotations

from collections.abc import Iterable

from distributary.errors import Reason
from distributary.state.ledger import Entry


def last_with_rows(entries: Iterable[Entry]) -> dict[str | None, Entry]:
    """Each route's newest entry, oldest first given, of a batch or replay that had rows of it."""
    return {entry.route: entry for entry in entries if entry.rows_in > 0 or entry.rows_written > 0}


def refused_routes(entries: Iterable[Entry]) -> set[str]:
    """The routes of which more than half of the last rows that came were set aside."""
    return {route for route, entry in last_with_rows(entries).items() if route is not None and is_refused([entry])}


def refused_rows(entries: Iterable[Entry]) -> int:
    """Rows that were set aside for what they are, and not because a table could not be written."""
    return sum(entry.rows_quarantined - entry.reasons.get(Reason.TABLE_PARKED, 0) for entry in entries)


def is_refused(entries: Iterable[Entry]) -> bool:
    """Did rows come, and were more than half of them set aside?"""
    every = list(entries)
    return 2 * refused_rows(every) > sum(max(0, entry.rows_in) for entry in every)
