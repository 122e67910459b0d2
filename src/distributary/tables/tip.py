"""Append to a table whose newest version is known, without reading its log.

A reader of a Delta table replays the commits since its last checkpoint, so opening costs more with every batch, and
the append of delta-rs reads the log again (deltalake 1.6.6; `make bench ONLY=log_length`). But the stream that made a
table's newest commit knows what that left behind: the version, the schema, that delta-rs may write it. With that
(`Tip`) an append is one file, `<version + 1>.json`, put only if absent: where the put succeeds, nobody came in between,
and all that was known still holds (Delta protocol, "Transaction Log": versions are contiguous, a commit is the first
writer of its file). Where it fails, the table is opened and everything decided anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from distributary import __version__
from distributary.tables.append import ROWS_KEY, Mark, checkpoint_due
from distributary.tables.datafile import DataFile
from distributary.tables.store import local_path


@dataclass(frozen=True)
class Tip:
    """What a stream knows of a table after its own commit. `schema`: the table's, as an Arrow IPC message."""

    version: int
    schema: bytes

    @classmethod
    def of(cls, version: int, schema: pa.Schema) -> Tip:
        return cls(version, schema.serialize().to_pybytes())

    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


def append_on_tip(uri: str, tip: Tip, files: Sequence[DataFile], mark: Mark) -> bool:
    """Commit `files` as version `tip.version + 1`; False when that cannot be done without opening the table.

    Local folders only: there `link` is the put-if-absent that delta-rs itself relies on. Raises OSError.
    """
    folder = local_path(uri)
    if folder is None or checkpoint_due(uri, tip.version + 1):
        return False
    log = folder / "_delta_log"
    # A table that was removed and made anew has another history: its log must still end where ours did.
    if not (log / f"{tip.version:020d}.json").exists():
        return False
    body = _commit(tip.version, files, mark)
    name = log / f"{tip.version + 1:020d}.json"
    draft = log / f".{mark.app[:8]}-{mark.batch}-{os.getpid()}-{time.monotonic_ns()}.tmp"
    draft.write_text(body, encoding="utf-8")
    try:
        os.link(draft, name)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return True


def _commit(read_version: int, files: Sequence[DataFile], mark: Mark) -> str:
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "readVersion": read_version,
        "isBlindAppend": True,
        "engineInfo": f"distributary/{__version__}",
        ROWS_KEY: str(sum(f.rows for f in files)),
        **mark.about(),
    }
    actions: list[dict[str, object]] = [
        {"commitInfo": info},
        {"txn": {"appId": mark.app, "version": mark.batch, "lastUpdated": now}},
    ]
    actions += [{"add": file.as_log()} for file in files]
    return "".join(json.dumps(action) + "\n" for action in actions)
