"""A Python worker of Spark that lets no packet wait: `spark.python.worker.module`.

Spark's JVM sends a task in small pieces, each of which waits until the one before is acknowledged (Nagle, RFC 896), and
Linux acknowledges a lone small piece after 40 ms in the hope of an answer to send it with (RFC 1122, 4.2.3.2). Every
job of Python tasks stood still for that long (`make bench ONLY=python_tasks`).

Spark's `daemon` takes modules whose names begin with `pyspark`, and imports them before it knows of `--py-files`: so
this one is for workers beside their driver.
"""

from __future__ import annotations

import io
import os
import socket
from typing import BinaryIO, cast

from pyspark.worker import main as work

QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux only."""


class AtOnce(io.RawIOBase):
    """Reads from a TCP connection and acknowledges what was read at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._connection.fileno()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Raises: OSError, as the connection does."""
        # Not once for all: the kernel takes it back when data go the other way (tcp(7)).
        self._connection.setsockopt(socket.IPPROTO_TCP, cast(int, QUICKACK), 1)
        return self._connection.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._connection.close()
        super().close()


def main(infile: BinaryIO, outfile: BinaryIO) -> None:
    """A task, from its connection to Spark's JVM. Called for each one by `pyspark.daemon`."""
    connection = socket.socket(fileno=os.dup(infile.fileno()))
    if QUICKACK is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        connection.close()
        work(infile, outfile)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    work(io.BufferedReader(AtOnce(connection), io.DEFAULT_BUFFER_SIZE), outfile)
