"""Tables that a catalog keeps, and that are found by their names only (`tables.managed`): their addresses.

`catalog://main.silver/chess` is the table `main.silver.chess`. So a name is an address like any other to all that joins
a root and a table, and only what opens or writes a table asks which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from distributary.config.places import BY_NAME
from distributary.names import quoted, quoted_parts


class RowQuery(Protocol):
    """Rows that no file can be asked for. Raises TableFault."""

    def rows(self) -> int: ...

    def pieces(self, columns: Mapping[str, Sequence[str]]) -> Iterator[pa.Table]:
        """Columns by their places in the table, named so; null where it lacks one."""
        ...


def is_named(uri: str) -> bool:
    """Is this a name in a catalog, and no place of files?"""
    return uri.startswith(BY_NAME)


def dotted(uri: str) -> str:
    """The name at an address: `main.silver` of a root, `main.silver.chess` of a table."""
    return uri.removeprefix(BY_NAME).rstrip("/").replace("/", ".")


def sql_name(uri: str) -> str:
    """The table at `uri`, as Spark SQL names it."""
    return quoted_parts(dotted(uri)) if is_named(uri) else f"delta.{quoted(uri)}"


def schema_name(uri: str) -> str:
    """The schema of a table by its name, as Spark SQL names it."""
    return quoted_parts(dotted(uri.rpartition("/")[0]))


def is_table(uri: str) -> bool:
    """Does it name a table, and not a schema or what would lie in a table?"""
    return uri.removeprefix(BY_NAME).rstrip("/").count("/") == 1
