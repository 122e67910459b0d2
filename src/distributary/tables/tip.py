"""Append to a table whose newest version is known, without reading its log.

A reader of a Delta table replays the commits since its last checkpoint, so opening costs more with every batch, and
the append of delta-rs reads the log again (deltalake 1.6.6; `make bench ONLY=log_length`). But the stream that made a
table's newest commit knows what that left behind: the version, the schema, that delta-rs may write it. With that
(`Tip`) an append is one file, `<version + 1>.json`, put only if absent: where the put succeeds, nobody came in between,
and all that was known still holds (Delta protocol, "Transaction Log": versions are contiguous, a commit is the first
writer of its file). The commit before it must be the stream's own, by its transaction: a table that was removed and
made anew may have as many. Where either fails, the table is opened and everything decided anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa

from distributary.tables.checkpoints import checkpoint_due, checkpoint_in_turn
from distributary.tables.commits import APPEND, carries, commit_text, put_commit, read_commit
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import KEPT, KEPT_BYTES
from distributary.tables.log_folder import empty_commit
from distributary.tables.put_once import cannot_put_once
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store


@dataclass(frozen=True)
class Tip:
    """What a stream knows of a table after its own commit `version`, under `txn`. `schema`: the table's, as an Arrow
    IPC message."""

    version: int
    schema: bytes
    txn: Txn

    @classmethod
    def of(cls, version: int, schema: pa.Schema, txn: Txn) -> Tip:
        return cls(version, schema.serialize().to_pybytes(), txn)

    def after(self, txn: Txn) -> Tip:
        """What is known after one more commit like the last one, under `txn`."""
        return replace(self, version=self.version + 1, txn=txn)

    def leads(self, uri: str, store: Store) -> bool:
        """Can the next version of the table at `uri` be committed without opening it? Not where one of its commits is
        empty: who opens it says so. That is looked for with each checkpoint, which would make the loss last."""
        return cannot_put_once(uri, store) is None and (not checkpoint_due(uri, self.version + 1) or _is_whole(uri))

    def arrow_schema(self) -> pa.Schema:
        return (_schema if len(self.schema) <= KEPT_BYTES else _schema.__wrapped__)(self.schema)


@lru_cache(KEPT)
def _schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def append_on_tip(uri: str, tip: Tip, files: Sequence[DataFile], txn: Txn, store: Store) -> bool:
    """Commit `files` as version `tip.version + 1`, and checkpoint it where it is the table's turn; False when that
    cannot be done without opening the table.

    Also False where the store refuses or is away: an error does not say that nothing was written, and who opens the
    table finds out.
    """
    if not tip.leads(uri, store):
        return False
    version, rows = tip.version + 1, sum(file.rows for file in files)
    text = commit_text(tip.version, txn, files, rows=rows, about=APPEND)
    try:
        before = read_commit(uri, store, tip.version)
        if before is None or not carries(before, tip.txn) or not put_commit(uri, store, version, text):
            return False
    except OSError:
        return False
    checkpoint_in_turn(uri, version, store)
    return True


def _is_whole(uri: str) -> bool:
    try:
        return empty_commit(uri) is None
    except OSError:
        return False
