"""Ctrl-C and SIGTERM: finish the batch that is being written, then end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from distributary.cli.log_format import are_structured
from distributary.errors import Exit

_STOPPING = b"\nstopping once this batch is written; Ctrl-C or SIGTERM again stops at once (the next run finishes it)\n"
_TOO_LONG = b"\nthe batch is still not written: stopping without it (the next run finishes it)\n"


class Stoppable(Protocol):
    """A run that ends by itself some time after it was asked to."""

    def stop(self) -> None: ...


class Stopper:
    """Turns signals into the end of a run. Before there is a run, a signal ends the process; once one was received, so
    does a second one, or `within` seconds, which a batch that hangs may take. For the tables that is as a kill."""

    def __init__(self, within: float | None = None) -> None:
        self.received: int | None = None
        self._within = within
        self._run: Stoppable | None = None
        self._listen()

    def attach(self, run: Stoppable) -> None:
        """From now on a signal stops `run`."""
        self._run = run
        # Anew: PySpark put a handler of its own in, which cancels Spark's jobs.
        self._listen()

    def exit_code(self, otherwise: Exit) -> Exit:
        """SIGTERM is how schedulers end a stream: a normal end. Ctrl-C is an interruption."""
        return Exit.INTERRUPTED if self.received == signal.SIGINT else otherwise

    def _listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._run is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(Exit.OK)
        if self.received is not None:
            os._exit(Exit.INTERRUPTED)
        self.received = number
        if not are_structured():
            os.write(2, _STOPPING)
        if self._within is not None:
            timer = threading.Timer(self._within, _give_up)
            timer.daemon = True
            timer.start()
        # In a thread: this one may be in the middle of a call to the JVM.
        threading.Thread(target=self._stop, args=(self._run,), name="stop", daemon=True).start()

    def _stop(self, run: Stoppable) -> None:
        if are_structured():
            # Not in the handler: it may have interrupted a line that was being written.
            logging.getLogger("distributary").info("%s", _STOPPING.decode().strip())
        run.stop()


def _give_up() -> None:
    os.write(2, _TOO_LONG)
    os._exit(Exit.INTERRUPTED)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C or SIGTERM only makes the answer True; a second one ends the process."""
    received = threading.Event()

    def on_signal(number: int, _frame: Any) -> None:
        received.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
