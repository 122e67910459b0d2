"""Where text goes: results to stdout, messages to stderr. With --json stdout has JSON only, one object a line."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from distributary.log_context import log_fields
from distributary.names import printable
from distributary.redaction import redacted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from distributary.config import Pipeline
    from distributary.engine.batch import BatchReport
    from distributary.running.report import RunReport

PIPE_WIDTH = 160
"""Columns of text that goes into a file or a pipe."""
WATCH_SEC = 2.0


class LogLines(logging.Formatter):
    """A message is one line, whoever chose the names in it; a traceback has its lines, and no control character."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(record.getMessage())

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei), keep="\n")


def say(text: str) -> None:
    """A line of the result, or some."""
    typer.echo(printable(text, keep="\n"))


def note(text: str, level: int = logging.INFO) -> None:
    """A line about the work, which is no part of the result."""
    from distributary.cli.log_format import are_structured

    if are_structured():
        for line in text.splitlines():
            logging.getLogger("distributary").log(level, "%s", line)
        return
    typer.echo(printable(text, keep="\n"), err=True)


def note_places(config: Pipeline, file: Path) -> None:
    """Where tasks could not write on Databricks, for a file that may be tried elsewhere first."""
    from distributary.config.databricks import not_on_databricks

    for key, why in not_on_databricks(config):
        note(f"{file}: {key}: on Databricks, {why}")


def say_json(value: Any) -> None:
    typer.echo(as_json_text(value))


def as_json_text(value: Any) -> str:
    """As JSON on one line that a terminal can show, without a secret."""
    text = redacted(json.dumps(value, ensure_ascii=False, default=str))
    # JSON escapes less than what a terminal obeys, and cannot be written at all with half a character in it.
    return text if text.isprintable() else redacted(json.dumps(value, default=str))


def say_batch(report: BatchReport) -> None:
    say_json({"kind": "batch", "at": _now(), "pipeline": log_fields().get("pipeline"), **asdict(report)})


def say_run(report: RunReport) -> None:
    say_json({"kind": "run", "at": _now(), **asdict(report)})


def _now() -> str:
    from distributary.cli.log_format import iso

    return iso(time.time())


def console() -> Console:
    """A console on stdout: as wide as the terminal, and wide enough for tables where there is none."""
    from distributary.cli.terminal import PlainConsole

    plain_console = PlainConsole()
    return plain_console if plain_console.is_terminal else PlainConsole(width=PIPE_WIDTH)


def show(renderable: RenderableType) -> None:
    console().print(renderable)


def watch(view: Callable[[], RenderableType]) -> None:
    """Show `view` again and again, until Ctrl-C: the one way to end it, so a normal one."""
    from rich.live import Live

    screen = console()
    with (
        suppress(KeyboardInterrupt),
        Live(view(), console=screen, auto_refresh=False, screen=screen.is_terminal) as live,
    ):
        while True:
            time.sleep(WATCH_SEC)
            live.update(view(), refresh=True)
