"""What can be wrong with a table: a fault of its own, or a commit that came too late.

A `TableFault` is an OSError, as what pyarrow and the system say of a file is: whoever reads or writes a table catches
OSError and has all of it. `outage` tells which of them speak of the store as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributary.errors import StoreDown, StoreUnreadable
from distributary.errors.border import in_words


class CommitConflict(Exception):
    """Another writer was first; open the table again and redo the whole decision."""


@contextmanager
def writing(path: str) -> Iterator[None]:
    """What cannot be read or written within is said of `path`, also where others were first each time.

    Raises StoreDown.
    """
    try:
        yield
    except (OSError, CommitConflict) as e:
        raise StoreDown(path=path, detail=in_words(e)) from e


@contextmanager
def reading(path: str) -> Iterator[None]:
    """What cannot be read within is said of `path`. Raises StoreUnreadable."""
    try:
        yield
    except OSError as e:
        raise StoreUnreadable(path=path, detail=in_words(e)) from e
