"""The text of a commit that we write ourselves, in place of delta-rs (Delta protocol, "Actions").

A commit is the first writer of `<version>.json` in `_delta_log`: see `put_once`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from distributary.tables.datafile import DataFile, json_text
from distributary.tables.files import names_in
from distributary.tables.put_once import exists, put_once, read
from distributary.tables.snapshot import ROWS_KEY, Txn
from distributary.tables.store import Store, join
from distributary.version import __version__

RemovedFile = (
    tuple[str, int] | tuple[str, int, Mapping[str, str]] | tuple[str, int, Mapping[str, str], Mapping[str, Any]]
)
"""A file as a commit removes it: its path as the log has it, its size in bytes, the values of its partition if any, its
deletion vector as the log has it if any. A commit that leaves out the vector removes another file, one without."""


class Logged(Protocol):
    """A file as a commit adds it."""

    def as_log(self) -> dict[str, Any]: ...


_COMMIT = re.compile(r"(\d{20})\.json")
APPEND = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}, "isBlindAppend": True}
OVERWRITE = {
    "operation": "WRITE",
    "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"},
    "isBlindAppend": False,
}


def commit_text(
    read_version: int,
    txn: Txn | None,
    added: Sequence[Logged],
    removed: Iterable[RemovedFile] = (),
    *,
    moved: Sequence[DataFile] | None = None,
    rows: int | None = None,
    about: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    protocol: Mapping[str, Any] | None = None,
) -> bytes:
    """A commit on top of `read_version`.

    `moved`: files that hold the rows of all removed ones and nothing else: a reader of changes need not look at either.
    `rows`: how many were written under the transaction. `about`: more of its commitInfo. `metadata`, `protocol`: what
    the table has of these from now on.
    """
    now = int(time.time() * 1000)
    info = {"timestamp": now, **about, "readVersion": read_version, "engineInfo": f"distributary/{__version__}"}
    if rows is not None:
        info[ROWS_KEY] = str(rows)
    actions: list[Mapping[str, Any]] = [{"commitInfo": {**info, **(txn.about() if txn is not None else {})}}]
    if protocol is not None:
        actions.append({"protocol": protocol})
    if metadata is not None:
        actions.append({"metaData": metadata})
    if txn is not None:
        actions.append({"txn": {"appId": txn.app_id, "version": txn.version, "lastUpdated": now}})
    actions += [{"remove": {**_removed(now, *place), "dataChange": moved is None}} for place in removed]
    actions += [{"add": {**file.as_log(), "dataChange": False}} for file in moved or ()]
    actions += [{"add": file.as_log()} for file in added]
    return _lines(actions)


def _lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json_text(action) + "\n" for action in actions).encode()


def put_commit(uri: str, store: Store, version: int, text: bytes) -> bool:
    """Commit `version`; False where it is there already. Raises OSError, as `put_once`."""
    return put_once(uri, store, "_delta_log", f"{version:020d}.json", text)


def first_commit(table: Path, properties: Mapping[str, str]) -> bytes:
    """The text of the commit that made the table in the folder `table`, with more `properties`. Raises OSError."""
    actions = [json.loads(line) for line in (table / "_delta_log" / f"{0:020d}.json").read_bytes().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] |= properties
    return _lines(actions)


def has_commit(uri: str, store: Store, version: int) -> bool:
    """Does the log still have the commit `version`? Raises OSError."""
    return exists(uri, store, "_delta_log", f"{version:020d}.json")


def read_commit(uri: str, store: Store, version: int) -> bytes | None:
    """The text of the commit `version`, None where the log does not have it. Raises OSError."""
    return read(uri, store, "_delta_log", f"{version:020d}.json")


def batch_at_tip(uri: str, app: str, store: Store) -> int | None:
    """The batch of stream `app` whose commit is the newest of the table at `uri`, by two requests; None where that is
    another's, or there is none. Raises OSError."""
    versions = [
        int(match[1]) for name in names_in(join(uri, "_delta_log"), store) if (match := _COMMIT.fullmatch(name))
    ]
    text = read_commit(uri, store, max(versions)) if versions else None
    return None if text is None else max((batch for stream, batch in _txns(text) if stream == app), default=None)


def carries(text: bytes, txn: Txn) -> bool:
    """Is `text` a commit under this transaction? By whichever engine. False also for what is no commit."""
    return (txn.app_id, txn.version) in _txns(text)


def _txns(text: bytes) -> list[tuple[str, int]]:
    """(stream, batch) of a commit; none for what is no commit."""
    try:
        # Only these lines are read: those of its files may be long.
        txns = [json.loads(line).get("txn") or {} for line in text.splitlines() if b'"txn"' in line]
        return [(str(txn.get("appId")), int(txn["version"])) for txn in txns if "version" in txn]
    except (ValueError, AttributeError, TypeError):
        return []


def _removed(
    now: int,
    path: str,
    size: int,
    partition: Mapping[str, str] | None = None,
    vector: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    removed = {
        "path": path,
        "deletionTimestamp": now,
        "extendedFileMetadata": True,
        "partitionValues": dict(partition or {}),
        "size": size,
    }
    return removed if vector is None else {**removed, "deletionVector": vector}
