"""When a table is checkpointed: in turns, so that no batch pays for all of its tables."""

from __future__ import annotations

import zlib

from distributary.errors.border import contained
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store

CHECKPOINT_COMMITS = 20
"""So often a table is checkpointed: a commit costs more with every one since (`make bench ONLY=log_length`)."""


def checkpoint_due(uri: str, version: int) -> bool:
    """Is `version` one at which this table is checkpointed? Tables take turns, so that no batch does all of them."""
    return (version + zlib.crc32(uri.encode())) % CHECKPOINT_COMMITS == 0


def checkpoint_in_turn(uri: str, version: int, store: Store) -> None:
    """After commit `version`: checkpoint the table if it is its turn, and drop log entries that have expired."""
    if not checkpoint_due(uri, version):
        return
    # The commit is in; a checkpoint that fails now is made at the table's next turn.
    try:
        if (table := Snapshot.open(uri, store)) is not None:
            table.checkpoint(drop_expired=True)
    except BaseException as e:
        contained(e)
