"""What a supervisor knows of its streams, kept where `status` and people can read it: `<state>/streams.json`.

A request to start a stream again is a file beside it, so that anyone who may write the state folder can make one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from distributary.config import StateFolder
from distributary.tables.files import names_in
from distributary.tables.store import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class StreamState(StrEnum):
    """`resting`: failed, starts again at `next_try`. `parked`: failed too often, or in a way that no new start mends;
    starts again on request (and once at `next_try`, where there is one). `stopped`: by us, on purpose."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTING = "resting"
    PARKED = "parked"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(frozen=True)
class StreamRecord:
    """One stream. Times in seconds since 1970. `failures` in a row, `restarts` in all.

    `batch`, `batch_at`, `batch_sec`, `last_rows` (in): of its newest batch. `rows_in`, `rows_written`,
    `quarantined`: of this supervisor's runs; `parked_tables`: by its last batch.
    """

    name: str
    state: StreamState = StreamState.WAITING
    since: float = 0.0
    pid: int | None = None
    failures: int = 0
    restarts: int = 0
    next_try: float | None = None
    exit_code: int | None = None
    error: str | None = None
    condition: str | None = None
    batch: int | None = None
    batch_at: float | None = None
    batch_sec: float = 0.0
    last_rows: int = 0
    rows_in: int = 0
    rows_written: int = 0
    quarantined: int = 0
    parked_tables: tuple[str, ...] = ()
    log: str | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        names = {f.name for f in fields(cls)}
        values = {k: v for k, v in value.items() if k in names}
        state, tables = StreamState(values.get("state", "waiting")), tuple(values.get("parked_tables", ()))
        return cls(**{**values, "state": state, "parked_tables": tables})


def write_streams(state_root: str, records: Iterable[StreamRecord], store: Store) -> None:
    """Raises OSError when the state folder cannot be written."""
    store.put_whole(state_root, StateFolder.streams.name, json.dumps([asdict(record) for record in records]).encode())


def read_streams(state_root: str, store: Store) -> list[StreamRecord]:
    """The streams of the last supervisor; empty where there was none. Raises OSError."""
    return [
        StreamRecord.from_json(value) for value in json.loads(store.get(state_root, StateFolder.streams.name) or b"[]")
    ]


def request_restart(state_root: str, stream: str, store: Store) -> None:
    """Ask the supervisor to start `stream` now, also a parked one. Raises OSError; ValueError: not a stream's name."""
    if not _NAME.fullmatch(stream):
        raise ValueError(f"{stream!r} is not the name of a stream")
    store.put(StateFolder(state_root).restart, stream, b"")


def take_requests(state_root: str, store: Store) -> set[str]:
    """The streams that somebody asked to start again since the last call. Raises OSError."""
    folder = StateFolder(state_root).restart
    names = set(names_in(folder, store))
    for name in names:
        store.delete(folder, name)
    return names
