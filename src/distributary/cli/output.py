"""Where text goes: results to stdout, messages to stderr. With --json stdout has JSON only, one object a line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from distributary.batch import BatchReport
    from distributary.pipeline import RunReport

PIPE_WIDTH = 160
"""Columns of text that goes into a file or a pipe."""
WATCH_SEC = 2.0


def say(text: str) -> None:
    """A line of the result."""
    typer.echo(text)


def note(text: str) -> None:
    """A line about the work, which is no part of the result."""
    typer.echo(text, err=True)


def say_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def say_batch(report: BatchReport) -> None:
    say_json({"kind": "batch", **asdict(report)})


def say_run(report: RunReport) -> None:
    say_json({"kind": "run", **asdict(report)})


def console() -> Console:
    """A console on stdout: as wide as the terminal, and wide enough for tables where there is none."""
    from rich.console import Console

    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def show(what: RenderableType) -> None:
    console().print(what)


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
