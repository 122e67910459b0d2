"""The one edge at which errors of deltalake leave: as a fault of the table, or as a commit that came too late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import CommitFailedError, DeltaError

from distributary.errors.border import TableFault
from distributary.tables.faults import CommitConflict

_BY_CATALOG = (
    "its commits are a catalog's (a managed table of Unity Catalog): only Spark reads and writes it, and by its name. "
    "Give tables.root a folder without such tables, or tables.managed in its place (docs/unity.md, Managed tables)"
)


@contextmanager
def edge() -> Iterator[None]:
    """What deltalake raises within, in our words. Raises CommitConflict, TableFault."""
    try:
        yield
    except CommitFailedError as e:
        raise CommitConflict(str(e)) from e
    except DeltaError as e:
        if "catalog-managed" in str(e):
            raise TableFault(_BY_CATALOG) from e
        raise TableFault.of(e) from e
