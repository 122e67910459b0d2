"""Reads the small text files that a user names, whatever lies there: never without an end, never all of a large one."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

MAX_BYTES = 4 * 2**20
"""A pipeline file with its own keys for 10,000 routes has about 1 MB."""
PIPE_WAIT_SEC = 10.0
"""How long a pipe, as of `check <(make-pipeline)`, may take to say all."""
_LOOK_SEC = 0.02
_READ_BYTES = 2**16


class FileTooLarge(ValueError):
    """The file is longer than the limit."""


def read_text(path: str | Path, limit: int = MAX_BYTES) -> str:
    """The UTF-8 text of a file, a device or a pipe.

    Raises:
        OSError: it cannot be read; TimeoutError where a pipe is silent or does not end.
        TooLarge: it has more than `limit` bytes.
        UnicodeDecodeError: it is not UTF-8.
    """
    # Without O_NONBLOCK, a named pipe that nobody writes to would keep us at once.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return _all_of(number, limit).decode("utf-8")
    finally:
        os.close(number)


def _all_of(number: int, limit: int) -> bytes:
    end = time.monotonic() + PIPE_WAIT_SEC
    is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
    body = bytearray()
    while len(body) <= limit:
        piece = _some_of(number)
        if piece:
            body += piece
        elif piece is not None and (body or not is_pipe):
            return bytes(body)
        elif time.monotonic() > end:
            raise TimeoutError(None, f"no end of it within {PIPE_WAIT_SEC:g} s")
        else:
            time.sleep(_LOOK_SEC)
    raise FileTooLarge(f"is longer than {limit // 2**20} MB")


def _some_of(number: int) -> bytes | None:
    """The next bytes; none at the end of a file, or of a pipe that nobody has open to write; None: wait for more."""
    try:
        return os.read(number, _READ_BYTES)
    except BlockingIOError:
        return None
