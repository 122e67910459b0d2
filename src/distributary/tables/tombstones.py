"""Tombstones of a merged table in a Delta table beside it, so that who reads the merged one by its path finds living
rows only (docs/decisions/0008-where-tombstones-lie.md).

What is known of a key is the newer of its row and its tombstone. So the two tables need not change at once: a merge
commits the tombstones first, then the table, whose commit says that the batch is done. Who dies in between, or is
second at the table, does all of it again, which changes nothing beside. A tombstone that an upsert has beaten stays
until it is old: nobody takes it for the newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors.border import TableFault
from distributary.tables.commits import read_commit
from distributary.tables.common_types import common_type
from distributary.tables.evolve import Policy
from distributary.tables.merge_files import LiveFile, Reader, live_files, may_hold
from distributary.tables.merge_rows import DELETED, DELETED_AT, DELETED_AT_TYPE, DELETED_FIELD, Incoming
from distributary.tables.merge_tip import MergeTip
from distributary.tables.rewrite import rewrite_wider
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import join
from distributary.tables.table import Table

FOLDER = "_tombstones"
"""In the folder of the merged table, which it is moved and removed with; readers pass over names with an underscore."""
PROPERTY, BESIDE, IN_TABLE = "distributary.tombstones", "beside", "in_table"
"""Property of a merged table, and its values; without it they lie in the table."""
POLICY = Policy()
COMMENT = "Deleted keys of the table in whose folder this lies, kept for a while."


def are_beside(table: Snapshot) -> bool:
    """Do the tombstones of this merged table lie beside it?"""
    return table.properties.get(PROPERTY) == BESIDE


def place_of(table: Table) -> Table:
    """The table of the tombstones of a merged one."""
    return Table(join(table.uri, FOLDER), table.store, table.owner, comment=COMMENT)


def tombstones_of(table: Snapshot) -> Snapshot | None:
    """The tombstones that lie beside a merged table; None where they lie in it, and where Spark has made the table and
    nothing else (`spark_tombstones`).

    Raises TableFault where they are gone, OSError.
    """
    if not are_beside(table):
        return None
    beside = Snapshot.open(join(table.uri, FOLDER), table.store)
    if beside is None and table.version == 0 and not table.addresses():
        return None
    if beside is None:
        raise TableFault(
            f"the tombstones of this table lay in its folder {FOLDER}, which is gone: without them, late events bring "
            "deleted rows back. Put the folder back from a backup, or make the table anew from its log (distributary "
            "resync)"
        )
    return beside


def with_tombstones(table: Snapshot) -> list[Snapshot]:
    """A merged table, and that of its tombstones where they lie beside it: together they have all keys that are known.

    Raises as `tombstones_of`.
    """
    beside = tombstones_of(table)
    return [table] if beside is None else [table, beside]


def columns_beside(schema: pa.Schema, keys: Sequence[str], metadata: str) -> pa.Schema:
    """Of a merged table's columns those that tombstones have."""
    own = [DELETED_FIELD, pa.field(DELETED_AT, DELETED_AT_TYPE)]
    return pa.schema([*(schema.field(name) for name in (*keys, metadata)), *own])


@dataclass(frozen=True)
class Tombstones:
    """The tombstones beside a merged table, as a merge finds them: opened (`before`), or known from the merge before
    (`tip`); neither where there is no such table yet."""

    table: Table
    before: Snapshot | None = None
    tip: MergeTip | None = None

    @classmethod
    def opened(cls, table: Table, merged: Snapshot | None, columns: pa.Schema, keys: Sequence[str]) -> Tombstones:
        """Those of `merged`; None: of a table that is to be made, where a merge may have died in between. `columns`: of
        the new ones (`columns_beside`).

        Raises CommitConflict, TableCollision, TableFault, OSError.
        """
        opened = cls.at(place_of(table), columns, keys)
        if opened.before is None and merged is not None:
            tombstones_of(merged)
        return opened

    @classmethod
    def at(cls, place: Table, columns: pa.Schema, keys: Sequence[str]) -> Tombstones:
        """Those of the table `place`, whose key columns get wider where they do not hold those of `columns`.

        Raises CommitConflict, TableCollision, TableFault, OSError.
        """
        before = place.open()
        if before is None:
            return cls(place)
        schema = before.schema
        after = pa.schema([_wide(field, columns) if field.name in keys else field for field in schema])
        if after != schema:
            rewrite_wider(place.uri, schema, after, place.store)
            before = place.open()
        return cls(place, before)

    @property
    def is_there(self) -> bool:
        return self.before is not None or self.tip is not None

    def remembered(self, table: Table) -> Table:
        """The merged table, which says from its first commit on where its tombstones are."""
        return replace(table, remembers={**table.remembers, PROPERTY: BESIDE})

    def read(self, incoming: Incoming) -> None:
        """Let the events know of their tombstones. Raises TableFault, OSError, pa.ArrowException."""
        files = self._files(incoming.keys)
        columns = incoming.needs(incoming.rows.schema)
        reader = Reader(self.table.uri, self.table.store, columns)
        near = may_hold(files, incoming.rows, incoming.keys)
        # There may be many more of them than rows in the table: a file at a time.
        if parts := [incoming.of_keys(reader.part(files[n], lambda _: columns)) for n in near]:
            incoming.remember(pa.concat_tables(parts))

    def _files(self, keys: Sequence[str]) -> Sequence[LiveFile]:
        if self.tip is not None:
            return self.tip.files
        return () if self.before is None else live_files(self.before, keys)

    def known(self, keys: Sequence[str]) -> MergeTip | None:
        """What is known of them where nothing is added. Raises OSError."""
        if self.tip is not None or self.before is None:
            return self.tip
        text = read_commit(self.table.uri, self.table.store, self.before.version)
        if text is None:
            return None
        return MergeTip.after(self.before.version, text, self.before.schema, self._files(keys), keys, None)

    def made(self, columns: pa.Schema, keys: Sequence[str]) -> Tombstones:
        """As opened now; made where they are not there. Raises as `at`."""
        if self.before is not None:
            return self
        if self.table.open() is None:
            self.table.create(columns)
        return Tombstones.at(self.table, columns, keys)


def _wide(field: pa.Field, columns: pa.Schema) -> pa.Field:
    kind = columns.field(field.name).type
    return field if common_type(field.type, kind) == field.type else field.with_type(kind)


def living_and_dead(rows: pa.Table, keys: Sequence[str], metadata: str) -> tuple[pa.Table, pa.Table]:
    """Rows of a merged table: (the living ones, the tombstones as they lie beside)."""
    dead = pc.fill_null(rows.column(DELETED), False)
    names = columns_beside(rows.schema, keys, metadata).names
    return rows.filter(pc.invert(dead)), rows.filter(dead).select(names)
