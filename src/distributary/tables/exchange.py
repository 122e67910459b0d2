"""Some files of a table exchanged for others in one commit, while others append to it: the last step of a rebuild.

Delta protocol: a commit is the first writer of `<version>.json`, and may remove and add files. One that removes files
which are still there, and appends that came in between, are right in either order ("Transaction Log Entries").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from distributary.tables.commits import OVERWRITE, commit_text, put_commit
from distributary.tables.datafile import DataFile
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Mark, Snapshot
from distributary.tables.store import Store

PUTS = 50
"""How often a commit gives way to somebody else's append before it gives up."""


def exchange(
    uri: str,
    old: Collection[str],
    files: Sequence[DataFile],
    mark: Mark,
    rows: int,
    store: Store,
    columns: pa.Schema | None = None,
) -> None:
    """Remove the files `old` (paths as the log has them), add `files`, whatever else was appended meanwhile.

    `rows`: what the commit says to have written under its mark. `columns`: those of the files, where there are any.
    Does nothing when the mark is there already. Raises CommitConflict when one of `old` is not there any more
    (compacted, deleted) or a column has another type than in the files (widened since), OSError.
    """
    for _ in range(PUTS):
        table = Snapshot.open(uri, store)
        if table is None:
            raise CommitConflict(f"{uri} is not there any more")
        if table.has(mark):
            return
        kinds = {field.name: field.type for field in table.schema}
        if other := [field.name for field in columns or () if kinds.get(field.name) != field.type]:
            raise CommitConflict(f"{uri}: column {other[0]!r} has got another type")
        there = {row["path"]: row for row in table.adds().to_pylist()}
        if gone := [path for path in old if path not in there]:
            raise CommitConflict(f"{uri}: {gone[0]} is not in it any more")
        removed = [(path, int(there[path]["size_bytes"])) for path in old]
        text = commit_text(table.version, mark, files, removed, rows=rows, about=OVERWRITE)
        if put_commit(uri, store, table.version + 1, text):
            return
    raise CommitConflict(f"{uri}: somebody else was first {PUTS} times")


def active(table: Snapshot) -> list[str]:
    """The table's files, as the log has them."""
    return [str(path) for path in table.adds().column("path").to_pylist()]
