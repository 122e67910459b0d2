"""Streams while they run: JSON lines, plain lines, or one table of all on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from distributary.cli.output import console, say, say_json
from distributary.names import shown

if TYPE_CHECKING:
    from distributary.supervisor.supervise import StreamChange, Supervisor


class Shown:
    """Shows streams: JSON lines, plain lines, or (`LiveShown`) a table."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._supervisor: Supervisor | None = None

    def attach(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def ended(self, file: str) -> None:
        from distributary.supervisor.stream_table import ending_text

        if not self._as_json and self._supervisor is not None:
            say(ending_text(self._supervisor.records, file))

    def changed(self, change: StreamChange) -> None:
        from distributary.supervisor.stream_table import change_line

        if self._as_json:
            say_json({"kind": "stream", **asdict(change.after)})
        else:
            say(change_line(change.before, change.after))

    def batch(self, stream: str, report: Mapping[str, Any]) -> None:
        if self._as_json:
            say_json({**report, "kind": "batch", "stream_name": stream})
        elif report.get("rows_in"):
            from distributary.engine.batch import BatchReport
            from distributary.running.progress import batch_line

            names = {field.name for field in fields(BatchReport)}
            say(f"{shown(stream)}: {batch_line(BatchReport(**{k: v for k, v in report.items() if k in names}))}")


class LiveShown(Shown):
    """One table of all streams, brought up to date twice a second."""

    def __init__(self) -> None:
        super().__init__(as_json=False)

    def changed(self, change: StreamChange) -> None: ...

    def batch(self, stream: str, report: Mapping[str, Any]) -> None: ...

    def __rich__(self) -> Any:
        from distributary.supervisor.stream_table import streams_table

        return streams_table(self._supervisor.records if self._supervisor else [], time.time())


@contextmanager
def showing(as_json: bool) -> Iterator[Shown]:
    screen = console()
    if as_json or not screen.is_terminal:
        yield Shown(as_json)
        return
    from rich.live import Live

    shown = LiveShown()
    with Live(shown, console=screen, refresh_per_second=2):
        yield shown
