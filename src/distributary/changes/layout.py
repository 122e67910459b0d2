"""Which digits of a change_sequence_number say what, today and before.

Numbers written before had for MySQL (file number, position, upsert, source time), for PostgreSQL and SQL Server the
commit time before the LSN, and the origin digit 2. They get the places that they have in today's order from their own
digits, so that tables may hold both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

PREFIX = 6
"""Digits that settings decide: generation and epoch."""
WIDTH = PREFIX + 1 + 4 * 16 + 37
FIRST_LAYOUT = "2"
"""Origin digit of changes in the first layout, which is still that of Oracle, MongoDB and sources without a log."""
LAYOUTS = {"mysql": "4", "postgresql": "5", "sqlserver": "6"}
"""Origin digit of changes by kind, where the layout has changed."""
MOVED: dict[str, tuple[tuple[int, int] | str, ...]] = {
    # file, position | read time | reading unknown, counter, upsert | time | upsert, hash
    "mysql": ((0, 32), "0000", (64, 76), "0000000", (76, 85), (52, 64), "00000000", (84, 101)),
    "postgresql": ((16, 48), (0, 16), (48, 101)),
    "sqlserver": ((16, 64), (0, 16), (64, 101)),
}
"""By kind: which digits behind the origin of a number of the first layout become those of today's. Pieces: (from, to)
of the old digits, or digits as they are."""

ZERO = ord("0")


def in_todays_layout(digits: Bytes, kind: str) -> Bytes:
    """Numbers as rows of `WIDTH` digits; those of the first layout in today's, where that of `kind` has changed."""
    moved = MOVED.get(kind)
    if moved is None:
        return digits
    old = digits[:, PREFIX] == ord(FIRST_LAYOUT)
    if not old.any():
        return digits
    rest = digits[old, PREFIX + 1 :]
    pieces = [
        np.tile(np.frombuffer(one.encode(), np.uint8), (len(rest), 1)) if isinstance(one, str) else rest[:, slice(*one)]
        for one in moved
    ]
    whole = digits.copy()
    whole[old, PREFIX] = ord(LAYOUTS[kind])
    whole[old, PREFIX + 1 :] = np.hstack(pieces)
    return whole
