"""From arguments to an exit code: one clear line per error on stderr, a traceback only with --debug."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import typer
from typer.main import get_command

from distributary.cli.commands import app
from distributary.cli.lean import own_process
from distributary.cli.log_format import are_structured
from distributary.cli.output import note
from distributary.errors import ConfigError, DistributaryError, Exit, Outage, without_stack

log = logging.getLogger("distributary")

_ENVIRONMENT = ("pyspark", "py4j", "deltalake", "_internal")
"""Libraries whose errors that we do not know speak of what is outside: Spark, the store."""
_SPARK = ("pyspark", "py4j", "delta")
_MAX_LINE_CHARS = 500


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `distributary` command; never returns."""
    own_process()
    status = [int(Exit.ATTENTION)]
    # Registered first, so called last: after all other clean-up, and in place of the interpreter's own end.
    atexit.register(lambda: _leave(status[0]))
    try:
        status[0] = execute(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:  # a signal before there was anything to stop
        status[0] = end.code if isinstance(end.code, int) else int(Exit.OK)
    sys.exit(status[0])


def _leave(code: int) -> None:
    """End the process here.

    While the interpreter takes itself apart, a thread of Arrow or delta-rs that still holds an object of Python's asks
    for the interpreter's lock, and is unwound out of C++ that allows no unwinding: "terminate called without an active
    exception", exit code 134 (or 139) after a right answer. These threads cannot be joined from here.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader is gone
            stream.flush()
    os._exit(code)


def execute(arguments: Sequence[str], tell: Callable[[BaseException, int], None] = lambda *_: None) -> int:
    """Run a command; returns its exit code. `tell` is told of an error with its code."""
    failed: BaseException
    try:
        words = list(arguments) or ["--help"]
        return int(get_command(app).main(words, prog_name="distributary", standalone_mode=False) or Exit.OK)
    except DistributaryError as error:
        failed, code = error, _failed(f"{error}{_id_of(error)}", error, error.exit_code)
    except typer.TyperException as error:
        failed, code = error, _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return Exit.INTERRUPTED
    except Exception as error:
        failed, code = error, _unexpected(error)
    tell(failed, code)
    return code


def _id_of(error: DistributaryError) -> str:
    """By which docs/errors.md has more. Faults of a pipeline file are a line each, and roots have no more to say."""
    plain = isinstance(error, ConfigError) or DistributaryError in (type(error), *type(error).__bases__)
    return "" if plain or type(error) is Outage else f" [{error.condition}]"


def _failed(text: str, error: BaseException, code: Exit) -> Exit:
    for line in text.splitlines():
        note(line if are_structured() else f"error: {line}", logging.ERROR)
    log.debug("", exc_info=error)
    return code


def _misused(error: typer.TyperException) -> Exit:
    """Wrong arguments. A group without a command shows its help; everything else is one line."""
    text = error.format_message()
    if "\n" in text:
        note(text)
        return Exit.BAD_INPUT
    context: typer.Context | None = getattr(error, "ctx", None)
    hint = f" Try: {context.command_path} --help" if context else ""
    return _failed(text + hint, error, Exit.BAD_INPUT)


def _without_spark(error: ImportError) -> str:
    """In words what Spark, or this one, does not have."""
    try:
        has_not = f"pyspark {version('pyspark')} has not all that this needs ({error.msg})"
        return f"{has_not}: pip install 'distributary[spark]'"
    except PackageNotFoundError:
        return f"there is no {error.name} here: run it where Spark is, or add it: pip install 'distributary[spark]'"


def _unexpected(error: Exception) -> Exit:
    """An error that no module foresaw."""
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] in _SPARK:
        return _failed(_without_spark(error), error, Exit.ENVIRONMENT)
    kind = type(error)
    lines = [line.rstrip() for line in without_stack(error).splitlines() if line.strip()]
    # A Python worker's traceback says last what went wrong, everything else says it first.
    line = (lines[-1 if any(x.startswith("Traceback") for x in lines) else 0] if lines else "")[:_MAX_LINE_CHARS]
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{error.strerror or line}", error, Exit.ENVIRONMENT)
    if kind.__module__.split(".")[0] in _ENVIRONMENT:
        return _failed(f"{kind.__name__}: {line} (--debug shows all of it)", error, Exit.ENVIRONMENT)
    text = f"{kind.__name__}: {line}. This is a bug in distributary: please report it with what --debug shows"
    return _failed(text, error, Exit.ATTENTION)
