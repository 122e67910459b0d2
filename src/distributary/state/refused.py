"""When rows that are set aside are no longer a few bad ones, but a table (or a stream) that is not well."""

from __future__ import annotations

from collections.abc import Iterable

from distributary.errors import Reason
from distributary.state.ledger import Entry


def refused_rows(entries: Iterable[Entry]) -> int:
    """Rows that were set aside for what they are, and not because a table could not be written."""
    return sum(entry.rows_quarantined - entry.reasons.get(Reason.TABLE_PARKED, 0) for entry in entries)


def is_refused(entries: Iterable[Entry]) -> bool:
    """Did rows come, and were more than half of them set aside?"""
    every = list(entries)
    return 2 * refused_rows(every) > sum(max(0, entry.rows_in) for entry in every)
