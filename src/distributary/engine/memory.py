"""What a process has of the system's memory."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa


def give_back() -> None:
    """Hand memory that is free back to the system, after work that took much more than a batch does, or in many pieces.

    Workers keep what they free, for they will need it again (`spark.session.WORKER_ENV`); not that of a rare large
    merge. Nor does the driver keep what upkeep has left: 200 of 460 MiB after 50 minutes of 500 tables (`make soak`).
    Without glibc it stays where it is.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
