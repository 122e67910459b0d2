"""The text of a commit that we write ourselves, in place of delta-rs (Delta protocol, "Actions").

A commit is the first writer of `<version>.json` in `_delta_log`: see `put_once`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distributary import __version__
from distributary.tables.append import ROWS_KEY, Mark
from distributary.tables.datafile import DataFile
from distributary.tables.put_once import exists, put_once, read
from distributary.tables.store import Store

Place = tuple[str, int]
"""A file as a commit removes it: its path as the log has it, and its size in bytes."""

APPEND = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}, "isBlindAppend": True}
OVERWRITE = {
    "operation": "WRITE",
    "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"},
    "isBlindAppend": False,
}


def commit_text(
    read_version: int,
    mark: Mark,
    added: Sequence[DataFile],
    removed: Iterable[Place] = (),
    *,
    rows: int | None = None,
    about: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """A commit on top of `read_version`.

    `rows`: how many were written under the mark. `about`: more of its commitInfo. `metadata`: the table's new metaData.
    """
    now = int(time.time() * 1000)
    info = {"timestamp": now, **about, "readVersion": read_version, "engineInfo": f"distributary/{__version__}"}
    if rows is not None:
        info[ROWS_KEY] = str(rows)
    actions: list[Mapping[str, Any]] = [{"commitInfo": {**info, **mark.about()}}]
    if metadata is not None:
        actions.append({"metaData": metadata})
    actions.append({"txn": {"appId": mark.app, "version": mark.batch, "lastUpdated": now}})
    actions += [{"remove": _removed(path, size, now)} for path, size in removed]
    actions += [{"add": file.as_log()} for file in added]
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def put_commit(uri: str, store: Store, version: int, text: bytes) -> bool:
    """Commit `version`; False where it is there already. Raises OSError, as `put_once`."""
    return put_once(uri, store, "_delta_log", f"{version:020d}.json", text)


def has_commit(uri: str, store: Store, version: int) -> bool:
    """Does the log still have the commit `version`? Raises OSError."""
    return exists(uri, store, "_delta_log", f"{version:020d}.json")


def read_commit(uri: str, store: Store, version: int) -> bytes | None:
    """The text of the commit `version`, None where the log does not have it. Raises OSError."""
    return read(uri, store, "_delta_log", f"{version:020d}.json")


def _removed(path: str, size: int, now: int) -> dict[str, Any]:
    return {
        "path": path,
        "deletionTimestamp": now,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": size,
    }
