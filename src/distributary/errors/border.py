"""The border of a route: what goes wrong with one payload, schema, table or file stays with it, whatever it is.

No list of expected exceptions decides that. Code below is native, young or foreign: it raises what nobody has foreseen
(RecursionError, a panic of Rust, which is a BaseException), and one record of one producer must not stop the others for
it. Everything is contained but what is meant for the process. Whether an error speaks of the store as a whole, and so
of all tables, `tables.outage` decides, by its type and status.

    try:
        ...
    except BaseException as error:
        why = contained(error)
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeVar

from distributary.redaction import redacted

PROCESS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Meant for the process, not for what it works at."""
LONGEST_WORDS: Final = 4_000
"""Characters of an error's text that are kept with a row. A library may put the whole input in it."""

T = TypeVar("T")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES = re.compile(r"(?:\n\s*\d+: <unknown>|\n\s*\d+: [\w$.<>:]+(?:\n\s+at \S+:\d+:\d+)?)+\s*")
"""The stack of a library in Rust, where the environment asks for one (RUST_BACKTRACE)."""


class TableFault(OSError):
    """What the library of Delta tables says of a table that it cannot read or write. `kind`: the library's own name."""

    kind: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        fault = cls(str(error))
        fault.kind = type(error).__name__
        return fault


def contained(error: BaseException) -> str:
    """The error in words, for the row or table that it stays with. Raises `PROCESS` again."""
    if isinstance(error, PROCESS):
        raise error
    return in_words(error)


def forget_locals(error: BaseException) -> None:
    """Let go of what the frames of an error, and of those that led to it, hold: the rows of a batch, its plan, its
    connections. For an error that somebody keeps for longer than it is looked at."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        link = errors.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            errors += [link.__cause__, link.__context__]


def in_words(error: BaseException) -> str:
    """An error as one text for ledger and people. Never raises; delta-rs colours its own for a terminal, and adds
    frames of its stack to some."""
    name = (error.kind if isinstance(error, TableFault) else None) or type(error).__name__
    try:
        text = _FRAMES.sub("\n", _COLOUR.sub("", str(error))).rstrip()
    except Exception as inner:  # a foreign class may fail to say what it means
        text = f"(no text: {type(inner).__name__})"
    text = redacted(text)
    if len(text) > LONGEST_WORDS:
        text = f"{text[:LONGEST_WORDS]} ..."
    return f"{name}: {text}".encode(errors="replace").decode()


def by_halves(begin: int, end: int, work: Callable[[int, int], T], alone: Callable[[int, int, str], T]) -> Iterator[T]:
    """What `work(begin, end)` makes of a range of rows; where it raises, of its halves, down to the single row.

    `alone(begin, end, why)` answers for rows for which it raises: a single one, or all where even no rows are too many.
    A row that fails among n costs about as much as n rows twice more.
    """
    try:
        yield work(begin, end)
        return
    except BaseException as error:
        why = contained(error)
    try:
        if end - begin > 1:
            work(begin, begin)
    except BaseException as error:
        yield alone(begin, end, contained(error))
        return
    yield from _halves(begin, end, work, alone, why)


def _halves(
    begin: int, end: int, work: Callable[[int, int], T], alone: Callable[[int, int, str], T], why: str
) -> Iterator[T]:
    """The halves of a range for which `work` has raised `why`."""
    if end - begin <= 1:
        yield alone(begin, end, why)
        return
    middle = (begin + end) // 2
    for start, stop in ((begin, middle), (middle, end)):
        try:
            result = work(start, stop)
        except BaseException as error:
            yield from _halves(start, stop, work, alone, contained(error))
        else:
            yield result
