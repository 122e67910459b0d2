"""What a power cut or a hand may leave in a table's log, and no reader of Delta minds: a commit of 0 bytes.

delta-rs (1.6.6) and Spark take it for a commit that did nothing, so its rows are missing without a word, and its mark.
An object store has no such thing: an object is there whole or not at all.
"""

from __future__ import annotations

import os
import re

from distributary.tables.store import local_path

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(?:parquet|json)")


def empty_commit(uri: str) -> str | None:
    """The name of a commit since the newest checkpoint that is empty; None where all have something in them.

    Raises OSError.
    """
    folder = local_path(uri)
    if folder is None:
        return None
    commits: dict[int, os.DirEntry[str]] = {}
    checkpoint = -1
    with os.scandir(folder / "_delta_log") as entries:
        for entry in entries:
            if (commit := _COMMIT.fullmatch(entry.name)) is not None:
                commits[int(commit[1])] = entry
            elif (match := _CHECKPOINT.fullmatch(entry.name)) is not None:
                checkpoint = max(checkpoint, int(match[1]))
    empty = (entry.name for version, entry in sorted(commits.items()) if version > checkpoint and not _size(entry))
    return next(empty, None)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # it has expired meanwhile
        return 1
