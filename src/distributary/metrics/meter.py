"""What a process measures: a board for each of its streams, and the ways out that the pipeline file asks for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.errors.border import in_words
from distributary.metrics.board import Board, Sample
from distributary.state.ledger import Ledger

LOOK_SEC = 5.0
"""How often Spark is asked for its figures."""
HOP_1 = "bronze"
"""The stream id in reports of hop 1."""

log = logging.getLogger("distributary")


class Query(Protocol):
    """A running query, as Spark has it."""

    @property
    def lastProgress(self) -> Any: ...

    @property
    def status(self) -> Any: ...


class RunningStream(Protocol):
    """A stream that runs in this process."""

    @property
    def query(self) -> Any: ...

    @property
    def outages(self) -> int: ...


class Meter:
    """The boards of one process, by the name of the stream."""

    def __init__(self, config: Pipeline) -> None:
        self.pipeline = config.pipeline
        self._is_asked = config.metrics.port is not None or config.metrics.otlp is not None
        self._shown = config.metrics.routes
        self._own = "whole" if config.share is None else config.share.name
        self._streams: dict[str, RunningStream] = {}
        self.boards = {self._own: Board(self._shown)}

    def attach(self, running: Any) -> None:
        """A run (or both hops of one) is about to begin. Never raises: figures are no reason not to run."""
        if not self._is_asked:
            return
        try:
            for name, stream in self._parts(running).items():
                board = self.boards.setdefault(name, Board(self._shown))
                self._streams[name] = stream
                ledger: Ledger | None = getattr(stream, "ledger", None)
                if ledger is not None:
                    board.begin(ledger.entries())
                    ledger.watcher = board.record
        except Exception as e:
            log.warning("metrics begin at nothing, because the ledger could not be read: %s", in_words(e))

    def _parts(self, running: Any) -> dict[str, RunningStream]:
        if not hasattr(running, "first"):
            return {self._own: running}
        streams = {"hop-1": running.first, self._own: running.second}
        if running.second is None:
            self.boards.pop(self._own, None)
        return {name: stream for name, stream in streams.items() if stream is not None}

    def batch(self, report: BatchReport) -> None:
        name = "hop-1" if report.stream == HOP_1 else self._own
        self.boards.setdefault(name, Board(self._shown)).batch(report, has_ledger=name == self._own)

    def failed(self, error: BaseException) -> None:
        for board in self.boards.values():
            board.failed(str(error))

    def look(self) -> None:
        """Ask Spark for its figures. Never raises: the session may be gone."""
        for name, stream in list(self._streams.items()):
            board = self.boards[name]
            board.outage(stream.outages)
            query: Query | None = stream.query
            if query is None:
                continue
            try:
                board.spark(_plain(query.lastProgress), query.status)
            except Exception as e:
                log.debug("Spark was not asked for its figures: %s", in_words(e))

    def samples(self) -> list[tuple[str, Sample]]:
        """All figures, with the name of their stream."""
        return [(name, sample) for name, board in list(self.boards.items()) for sample in board.samples()]

    def healthy(self) -> tuple[bool, str]:
        return _all([board.healthy for board in list(self.boards.values())])

    def ready(self) -> tuple[bool, str]:
        return _all([board.ready for board in list(self.boards.values())])


def _plain(progress: Any) -> Any:
    """Spark's progress as its JSON has it; PySpark gives it as a value of its own."""
    import json

    return json.loads(progress.json) if hasattr(progress, "json") else progress


def _all(answers_given: Sequence[tuple[bool, str]]) -> tuple[bool, str]:
    """The first one that is not well, else all is."""
    return next((answer for answer in answers_given if not answer[0]), answers_given[0])


@contextmanager
def measured(config: Pipeline) -> Iterator[Meter]:
    """A meter for one run, with the ways out that the file asks for. Raises ExtraMissing."""
    meter = Meter(config)
    with ExitStack() as open_exits:
        served = False
        if config.metrics.port is not None:
            from distributary.metrics.endpoint import served as endpoint

            open_exits.enter_context(endpoint(meter, config.metrics.address, port_of(config)))
            served = True
        if config.metrics.otlp is not None:
            from distributary.metrics.otlp import pushed

            open_exits.enter_context(pushed(meter, config.metrics.otlp))
            served = True
        if served:
            open_exits.enter_context(_looking(meter.look))
        try:
            yield meter
        except BaseException as e:
            meter.failed(e)
            raise


def port_of(config: Pipeline) -> int:
    """The port of this process: of a pipeline on several clusters, each has the next one. 0: any that is free."""
    first = config.metrics.port or 0
    return first if first == 0 or config.share is None else first + 1 + config.share.index


@contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Calls `look` every few seconds, from a thread of its own, and once at the end."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(LOOK_SEC):
            look()

    thread = threading.Thread(target=work, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LOOK_SEC)
