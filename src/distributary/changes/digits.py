"""Which digits of a change_sequence_number say what, today and before.

Numbers written before had for MySQL (file number, position, upsert, source time), for PostgreSQL and SQL Server the
commit time before the LSN, and the origin digit 2. They get the places that they have in today's order from their own
digits, so that tables may hold both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ZERO = ord("0")

METADATA = "datastream_metadata"
"""The struct column that says of which event a row is, of files that Datastream has written."""
CHANGE = "_change"
"""And of events that come as messages."""
NUMBER = "change_sequence_number"
"""The field of either that orders the events of a key."""


def metadata_in(names: Collection[str]) -> str:
    """The one of the two that a table with columns of these names has."""
    return METADATA if METADATA in names else CHANGE


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
        np.tile(np.frombuffer(piece.encode(), np.uint8), (len(rest), 1))
        if isinstance(piece, str)
        else rest[:, slice(*piece)]
        for piece in moved
    ]
    todays = digits.copy()
    todays[old, PREFIX] = ord(LAYOUTS[kind])
    todays[old, PREFIX + 1 :] = np.hstack(pieces)
    return todays


UNCHANGED = "!"
"""In a schema key, before the names of columns of which its events do not say the value: it did not change."""


def with_unchanged(schema_key: str, columns: Iterable[str]) -> str:
    """The schema key of events that do not speak of these columns."""
    names = [name.replace("%", "%25").replace(",", "%2c") for name in columns]
    return f"{schema_key}{UNCHANGED}{','.join(names)}" if names else schema_key


def unchanged_columns(schema_key: str) -> list[str]:
    """The columns that `with_unchanged` was given."""
    _, _, names = schema_key.partition(UNCHANGED)
    return [name.replace("%2c", ",").replace("%25", "%") for name in names.split(",")] if names else []
