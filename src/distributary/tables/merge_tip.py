"""What a stream knows of a merged table after its own merge, so that the next one opens nothing (compare `tip`).

To open a table is to replay its log, which takes as long as to read and judge a small one, and longer with every commit
(`make bench ONLY=merge_vs_spark_small`). The files that the stream left behind, with the bounds of their keys, are all
that the next merge needs. It holds as long as the log ends with the stream's own commit, byte by byte, and the next
version is put only if absent: whoever finds anything else opens the table and decides anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from distributary.tables.commits import has_commit, read_commit
from distributary.tables.merge_files import LiveFile
from distributary.tables.store import Store

TIP_FILES = 16
"""Live files of a table up to which they are kept in mind: what is known of a table travels with the batch's tasks,
and beside the rewriting of more files than that, to open the table is little."""


@dataclass(frozen=True)
class MergeTip:
    """A merged table as the stream's commit `version` left it. `commit`: that commit's digest. `schema`: an Arrow IPC
    message. `keys`: by which its rows are told apart, the order of the bounds of its `files`. `purged_until`: source
    time in ms up to which tombstones have been purged."""

    version: int
    commit: bytes
    schema: bytes
    files: tuple[LiveFile, ...]
    keys: tuple[str, ...]
    purged_until: int | None
    beside: MergeTip | None = None

    @classmethod
    def after(
        cls,
        version: int,
        text: bytes,
        schema: pa.Schema,
        files: Sequence[LiveFile],
        keys: Sequence[str],
        purged_until: int | None,
        beside: MergeTip | None = None,
    ) -> MergeTip | None:
        """What is known after our commit `text`; None for a table of many files."""
        if len(files) > TIP_FILES:
            return None
        message = schema.serialize().to_pybytes()
        return cls(version, _digest(text), message, tuple(files), tuple(keys), purged_until, beside)

    def leads(self, uri: str, store: Store) -> bool:
        """Does the log at `uri` end with our commit? Raises OSError."""
        text = read_commit(uri, store, self.version)
        # A table that was removed and made anew has another commit there; another writer's is behind it.
        return text is not None and _digest(text) == self.commit and not has_commit(uri, store, self.version + 1)

    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
