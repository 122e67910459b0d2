"""A Delta table by its address, whether it is there yet or not: opened, and appended to in commits that carry a
transaction.

Engine `task`: a route's rows become one commit of its table, from inside a Spark task (delta-rs). The commit carries a
transaction (Delta protocol, "Transaction Identifiers"): app id = the stream, version = the batch. A batch that
finds its transaction is a replay and writes nothing, so every table takes each batch exactly once. Two racing writers
of one transaction: one wins, the other gets CommitConflict (tried: deltalake 1.6.6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions

from distributary.backoff import Backoff, any_chance
from distributary.config import Tables
from distributary.errors import TableCollision
from distributary.errors.border import contained
from distributary.tables.checkpoints import checkpoint_in_turn
from distributary.tables.commits import OVERWRITE, commit_text, first_commit, put_commit
from distributary.tables.common_types import types_before
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.edge import edge
from distributary.tables.evolve import Evolution, Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.log_adds import places_of
from distributary.tables.put_once import PUTS, cannot_put_once
from distributary.tables.snapshot import HOOKS, ROWS_KEY, Owner, Snapshot, Txn, columns_of, delta_schema
from distributary.tables.store import Store, engine_uri

COMMIT_ATTEMPTS = 6

_T = TypeVar("_T")


def retried(decide: Callable[[], _T]) -> _T:
    """What `decide` returns: done again, after a short rest, when another writer was first.

    Raises CommitConflict when others were first each time.
    """
    for attempt in range(COMMIT_ATTEMPTS - 1):
        try:
            return decide()
        except CommitConflict:
            time.sleep(Backoff(0.05, jitter=1.0).rest_sec(attempt + 1, any_chance()))
    return decide()


Files = Sequence[DataFile] | Callable[[Snapshot | None], Sequence[DataFile]]
"""What a commit takes in; or how it is made, for the table as it is found."""


@dataclass(frozen=True)
class Appended:
    """A commit. `version`: the one that it made, as far as known."""

    version: int | None


@dataclass(frozen=True)
class Table:
    """`owner`: who makes it, and must have made it. All else is of a table that is made anew; `clustered_by`: by engine
    `spark` only; `remembers`: properties that Delta does not know, of a table with an owner."""

    uri: str
    store: Store
    owner: Owner | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()
    clustered_by: tuple[str, ...] = ()
    comment: str | None = None
    remembers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_route(cls, uri: str, store: Store, owner: Owner, tables: Tables) -> Table:
        """A table of the owner's route, as the settings describe it."""
        about = tables.described(owner.route)
        return cls(uri, store, owner, about.properties, about.partition_by, about.cluster_by, about.comment)

    def open(self) -> Snapshot | None:
        """The table as it is now, None where there is none yet.

        Raises TableCollision when it was made by another pipeline or for another route, TableFault, OSError.
        """
        table = Snapshot.open(self.uri, self.store)
        if table is not None and self.owner is not None and (owner := table.owner) not in (None, self.owner):
            assert owner is not None
            whose = f"pipeline {owner.pipeline}, route {owner.route!r}"
            raise TableCollision(route=self.owner.route, table=self.uri, owner=whose)
        return table

    @property
    def properties_of_new(self) -> dict[str, str]:
        """The properties that the table gets when it is made."""
        return {**self.properties, **({} if self.owner is None else self.owner.properties()), **self.remembers}

    def write(self, rows: pa.Table) -> DataFile:
        """Write rows as a file of the table's folder, which a commit takes in later. Raises OSError."""
        return write_data_file(self.uri, rows, self.store)

    def create(self, schema: pa.Schema) -> None:
        """Make the table, without rows. Raises CommitConflict where it is there already, TableFault, OSError."""
        with edge():
            self._create(schema, [], None)

    def append(self, schema: pa.Schema, files: Files, txn: Txn, policy: Policy) -> Appended | None:
        """`try_append`, again when others were first. Raises CommitConflict when they were first each time."""
        return retried(lambda: self.try_append(schema, files, txn, policy))

    def try_append(self, schema: pa.Schema, files: Files, txn: Txn, policy: Policy) -> Appended | None:
        """Take `files`, which have the columns `schema`, into the table in one commit; None where it has the batch.

        For tables of the state folder: whose one is there, is not asked. Raises CommitConflict, TableFault, OSError.
        """
        before = Snapshot.open(self.uri, self.store)
        if before is not None and before.has(txn):
            return None
        evolution = evolve(columns_of(before), [schema], policy)
        return Appended(self.commit(before, evolution, files(before) if callable(files) else files, txn))

    def commit(
        self,
        before: Snapshot | None,
        evolution: Evolution,
        files: Sequence[DataFile],
        txn: Txn,
        *,
        about: Mapping[str, str] | None = None,
        within: Callable[[Mapping[str, str]], bool] | None = None,
    ) -> int | None:
        """Take `files` into the table, as it was decided upon by what was `before`, in one marked commit. Creates the
        table; adds its new columns first; where columns get wider, the table's own files are written anew.

        Returns the version that the commit made, as far as known. `about`: more to say of the commit in its metadata.
        `within`: the partitions that can hold a column that gets wider.

        New columns are a commit of their own before it: a crash between the two replays cleanly, for adding a column
        that is there does nothing. Raises CommitConflict when another writer changed what was decided upon,
        TableFault, OSError, pa.ArrowException.
        """
        if before is not None and self.owner is not None:
            before.keep_owner()
        if before is not None and evolution.widened:
            narrow = types_before(before.schema, evolution.schema)
            if not narrow.equals(before.schema):
                before.add_columns(narrow)
            # Seldom: what writes files anew comes with all that merges rows.
            from distributary.tables.rewrite import rewrite_wider

            return rewrite_wider(
                self.uri, narrow, evolution.schema, self.store, txn=txn, added=files, about=about, within=within
            )
        try:
            with edge():
                version = self._commit(before, evolution, files, txn, about or {})
        except CommitConflict:
            raise
        except BaseException as e:  # delta-rs panics too
            contained(e)
            if "already exists" in str(e):
                raise CommitConflict(str(e)) from e
            if not self._landed(before, txn, e):
                raise
            return None
        if before is not None and version is not None:
            checkpoint_in_turn(self.uri, version, self.store)
        return version

    def replace_files(
        self, old: Collection[str], files: Sequence[DataFile], txn: Txn, rows: int, columns: pa.Schema | None = None
    ) -> None:
        """Remove the files `old` (paths as the log has them), add `files`, whatever others append meanwhile: two
        commits that touch different files are right in either order (Delta protocol, "Transaction Log Entries").

        `rows`: what the commit says to have written under its transaction. `columns`: those of the files, where there
        are any. Does nothing when the transaction is there already. Raises CommitConflict when one of `old` is not
        there any more (compacted, deleted) or a column has another type than in the files (widened since), TableFault,
        OSError.
        """
        for _ in range(PUTS):
            table = Snapshot.open(self.uri, self.store)
            if table is None:
                raise CommitConflict(f"{self.uri} is not there any more")
            if table.has(txn):
                return
            kinds = {field.name: field.type for field in table.schema}
            if other := [field.name for field in columns or () if kinds.get(field.name) != field.type]:
                raise CommitConflict(f"{self.uri}: column {other[0]!r} has got another type")
            sizes = table.sizes()
            if missing := [path for path in old if path not in sizes]:
                raise CommitConflict(f"{self.uri}: {missing[0]} is not in it any more")
            removed = [(path, sizes[path]) for path in old]
            text = commit_text(table.version, txn, files, removed, rows=rows, about=OVERWRITE)
            if put_commit(self.uri, self.store, table.version + 1, text):
                return
        raise CommitConflict(f"{self.uri}: somebody else was first {PUTS} times")

    def replace_all(self, before: Snapshot, schema: pa.Schema, files: Sequence[DataFile], txn: Txn) -> bool:
        """Commit `files` as the whole table, in the columns `schema`, as the version after `before`; False when that is
        there already. Raises TableFault, OSError."""
        metadata = before.metadata_action(schema)
        if self.owner is not None:
            metadata["configuration"] |= self.owner.properties()
        metadata["configuration"] |= self.remembers
        rows = sum(file.rows for file in files)
        removed = places_of(before)
        text = commit_text(before.version, txn, files, removed, rows=rows, about=OVERWRITE, metadata=metadata)
        return put_commit(self.uri, self.store, before.version + 1, text)

    def _commit(
        self,
        before: Snapshot | None,
        evolution: Evolution,
        files: Sequence[DataFile],
        txn: Txn,
        about: Mapping[str, str],
    ) -> int | None:
        commit = CommitProperties(
            custom_metadata={ROWS_KEY: str(sum(f.rows for f in files)), **txn.about(), **about},
            # A creation that lost its race must fail: tried again, delta-rs 1.6.6 makes it version 1 beside the
            # winner's.
            max_commit_retries=0 if before is None else 15,
            app_transactions=[Transaction(txn.app_id, txn.version)],
        )
        if before is None:
            self._create(evolution.schema, files, commit)
            return 0
        schema = delta_schema(evolution.schema)
        if evolution.changed:
            before.add_columns(evolution.schema)
        # Another attempt at this batch may have come between the caller's look and here: from what is known now on,
        # delta-rs itself refuses a second commit of the same app.
        if before.has(txn):
            raise CommitConflict(f"batch {txn.version} of {txn.app_id} is in the table already")
        before.delta.create_write_transaction(
            _actions(files),
            "append",
            schema,
            partition_by=before.partitioned_by,
            commit_properties=commit,
            post_commithook_properties=HOOKS,
        )
        # The handle stays at the version it was opened at. Whoever relies on the next one finds out if it is another.
        return None if evolution.changed else before.version + 1

    def _create(self, schema: pa.Schema, files: Sequence[DataFile], commit: CommitProperties | None) -> None:
        """deltalake makes no table with a property that Delta does not know, such as its owner (1.6.6). So it makes the
        first commit elsewhere, and that is put here with the owner in it; where nothing can be put once, the owner is
        the description until the next commit, so that a table is never without one."""
        create = partial(
            create_table_with_add_actions,
            schema=delta_schema(schema),
            add_actions=_actions(files),
            mode="error",
            partition_by=list(self.partitioned_by),
            configuration=dict(self.properties),
            commit_properties=commit,
        )
        if self.owner is None:
            create(engine_uri(self.uri), storage_options=self.store.at(self.uri) or None, description=self.comment)
        elif cannot_put_once(self.uri, self.store):
            options = self.store.at(self.uri) or None
            create(engine_uri(self.uri), storage_options=options, description=self.owner.text())
            table = Snapshot(self.uri, self.store)
            table.keep_owner()
            if self.remembers:
                table.set_properties(self.remembers)
            if self.comment is not None:
                table.describe(self.comment)
        else:
            with TemporaryDirectory(prefix="distributary-") as folder:
                create(folder, description=self.comment)
                text = first_commit(Path(folder), {**self.owner.properties(), **self.remembers})
            if Snapshot.open(self.uri, self.store) is not None or not put_commit(self.uri, self.store, 0, text):
                raise CommitConflict(f"{self.uri} is there already")

    def _landed(self, before: Snapshot | None, txn: Txn, error: BaseException) -> bool:
        """Whether the marked commit is in the table after all.

        An error does not say that nothing was written: delta-rs also raises when the checkpoint that follows a commit
        fails. Raises CommitConflict when only the commit before it (new columns) is in.
        """
        try:
            snapshot = Snapshot.open(self.uri, self.store)
        except BaseException as e:
            contained(e)
            return False
        if snapshot is None:
            return False
        if snapshot.has(txn):
            return True
        if before is None or snapshot.version > before.version:
            raise CommitConflict(str(error)) from error
        return False


def _actions(files: Sequence[DataFile]) -> list[Any]:
    return [AddAction(f.path, f.size, dict(f.partition), f.written_ms, True, f.stats) for f in files]
