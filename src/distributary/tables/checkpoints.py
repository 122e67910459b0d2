"""When a table is checkpointed: in turns, so that no batch pays for all of its tables."""

from __future__ import annotations

import zlib

from distributary.errors.border import contained
from distributary.tables.carried import carry_forward
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store

CHECKPOINT_COMMITS = 20
"""So often a table is checkpointed: a commit costs more with every one since (`make bench ONLY=log_length`)."""

WHOLE = 10
"""One checkpoint of so many is made anew, by delta-rs: it leaves out what has expired, of the log too."""


def checkpoint_due(uri: str, version: int) -> bool:
    """Is `version` one at which this table is checkpointed? Tables take turns, so that no batch does all of them."""
    return (version + zlib.crc32(uri.encode())) % CHECKPOINT_COMMITS == 0


def checkpoint_in_turn(uri: str, version: int, store: Store) -> None:
    """After commit `version`: checkpoint the table if it is its turn, and now and then drop log entries that have
    expired."""
    if not checkpoint_due(uri, version):
        return
    # The commit is in; a checkpoint that fails now is made at the table's next turn.
    try:
        if not _carried(uri, version, store) and (table := Snapshot.open(uri, store)) is not None:
            table.checkpoint(drop_expired=True)
    except BaseException as e:
        contained(e)


def _carried(uri: str, version: int, store: Store) -> bool:
    if _turn(uri, version) % WHOLE == 0:
        return False
    try:
        return carry_forward(uri, version, store)
    except BaseException as e:
        contained(e)
        return False


def _turn(uri: str, version: int) -> int:
    return (version + zlib.crc32(uri.encode())) // CHECKPOINT_COMMITS
