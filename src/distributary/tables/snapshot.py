"""A Delta table as it was opened: at one version, with what its log says.

Every error of deltalake leaves here as `edge` words it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import TableNotFoundError

from distributary.errors.border import TableFault
from distributary.tables.by_name import RowQuery, is_named
from distributary.tables.codec import LEVEL, sequence_columns
from distributary.tables.edge import edge
from distributary.tables.log_folder import empty_commit
from distributary.tables.store import Store, engine_uri

OWNER_KEY = "distributary.owner"
"""Table property: the owner, as JSON."""
ROWS_KEY = "distributary.rows"
APP_KEY = "distributary.app"
BATCH_KEY = "distributary.batch"
ROUTES_KEY = "distributary.routes"
"""Of a commit to a table of many routes: route -> rows, as JSON."""
WIDENED_KEY = "distributary.widened"
"""Of a commit that gave columns a wider type: path -> `int -> bigint`, as JSON."""
RECENT = 20
"""Commits among which a batch's own one is looked for."""

# Checkpoints are made in turns (`append.checkpoint_due`), not by the commit that happens to be the hundredth.
HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class Txn:
    """What makes a commit this batch's own, as Delta's `txn` has it: `app_id` = stream id, `version` = batch id (never
    reused by that stream)."""

    app_id: str
    version: int

    def about(self) -> dict[str, str]:
        """The transaction as a commit's metadata, for people and for `Snapshot.has`."""
        return {APP_KEY: self.app_id, BATCH_KEY: str(self.version)}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a table belongs to; a property of the table from its creation on, checked at every opening.

    `keys`: the columns by which a merged table's rows are told apart.
    """

    pipeline: str
    route: str
    keys: tuple[str, ...] = field(default=(), compare=False)

    def text(self) -> str:
        about = {"pipeline": self.pipeline, "route": self.route, **({"keys": list(self.keys)} if self.keys else {})}
        return json.dumps({"distributary": about}, ensure_ascii=False)

    def properties(self) -> dict[str, str]:
        """The owner as table properties: a table's description belongs to people, who may change it."""
        return {OWNER_KEY: self.text()}

    @classmethod
    def read(cls, properties: Mapping[str, str], description: str | None) -> Owner | None:
        """The owner of whom a table speaks; None where it speaks of none. Tables that version 0.1.0 made, or that are
        in a store without conditional puts, have it as their description."""
        try:
            about = json.loads(properties.get(OWNER_KEY) or description or "").get("distributary")
            return cls(about["pipeline"], about["route"], tuple(about.get("keys", ())))
        except (ValueError, AttributeError, KeyError, TypeError):
            return None


class NoTable(TableFault):
    """There is no table at all."""


class Snapshot:
    """The table at `uri` as it was opened. Its methods raise TableFault, OSError; those that change the table raise
    CommitConflict too, where another writer was first."""

    @edge()
    def __init__(self, uri: str, store: Store, version: int | None = None) -> None:
        """Raises TableFault also where there is no such table, or no such version of it."""
        self.uri = uri
        self.store = store
        try:
            self.delta = DeltaTable(engine_uri(uri), version=version, storage_options=store.at(uri) or None)
        except TableNotFoundError as e:
            raise NoTable.of(e) from e

    @classmethod
    def open(cls, uri: str, store: Store) -> Snapshot | None:
        """The newest version; None where there is no table."""
        if is_named(uri):
            # Spark's: what runs in tasks is told what it must know.
            from distributary.tables.spark_names import open_named

            return open_named(uri, store)
        try:
            table = cls(uri, store)
        except NoTable:
            return None
        if (empty := empty_commit(uri)) is not None:
            raise TableFault(
                f"commit {empty} of its log is empty (0 bytes): what it held is missing for every reader, and would be "
                "for good with the next checkpoint. Put the file back from a backup, or see docs/stores.md, Damaged "
                "logs"
            )
        return table

    def at(self, version: int) -> Snapshot:
        """The table as it was at an earlier version."""
        return Snapshot(self.uri, self.store, version)

    @property
    def by_query(self) -> RowQuery | None:
        """Where its rows are asked for, and not read from its files."""
        return None

    # -- what its log says ---------------------------------------------------------------------------------

    @property
    @edge()
    def version(self) -> int:
        return int(self.delta.version())

    @property
    @edge()
    def id(self) -> str:
        """Made with the table: one that is made anew at the same place has another one."""
        return str(self.delta.metadata().id)

    @property
    @edge()
    def schema(self) -> pa.Schema:
        return pa.schema(self.delta.schema().to_arrow())

    @property
    @edge()
    def schema_json(self) -> str:
        """The schema in Delta's own words."""
        return str(self.delta.schema().to_json())

    @property
    @edge()
    def properties(self) -> dict[str, str]:
        return dict(self.delta.metadata().configuration)

    @property
    @edge()
    def partitioned_by(self) -> list[str]:
        return list(self.delta.metadata().partition_columns)

    @property
    @edge()
    def owner(self) -> Owner | None:
        """None for a table that was not made by this software."""
        metadata = self.delta.metadata()
        return Owner.read(metadata.configuration, metadata.description)

    @property
    @edge()
    def protocol_versions(self) -> tuple[int, int]:
        """(least version of a reader, of a writer)."""
        protocol = self.delta.protocol()
        return int(protocol.min_reader_version), int(protocol.min_writer_version)

    @property
    @edge()
    def reader_features(self) -> set[str]:
        return set(self.delta.protocol().reader_features or ())

    @property
    @edge()
    def writer_features(self) -> set[str]:
        return set(self.delta.protocol().writer_features or ())

    @edge()
    def metadata_action(self, schema: pa.Schema) -> dict[str, Any]:
        """The `metaData` action that gives the table other columns and leaves all else as it is."""
        meta = self.delta.metadata()
        return {
            "id": meta.id,
            "name": meta.name,
            "description": meta.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": delta_schema(schema).to_json(),
            "partitionColumns": list(meta.partition_columns),
            "configuration": dict(meta.configuration),
            "createdTime": meta.created_time,
        }

    # -- its commits ---------------------------------------------------------------------------------------

    @edge()
    def newest(self, app: str) -> int:
        """The newest batch of stream `app` in this table; -1 for none."""
        version = self.delta.transaction_version(app)
        return -1 if version is None else int(version)

    def has(self, txn: Txn) -> bool:
        """Has the table taken this batch, or a later one of the same stream?"""
        return self.newest(txn.app_id) >= txn.version

    @edge()
    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The commits that the log still has, newest first: their metadata."""
        return list(self.delta.history(limit=limit))

    def commit_of(self, txn: Txn, limit: int | None = RECENT) -> dict[str, Any] | None:
        """The metadata of this batch's commit; None where it is not among the newest `limit` ones."""
        about = txn.about().items()
        return next((commit for commit in self.history(limit) if about <= commit.items()), None)

    def rows_of(self, txn: Txn) -> int | None:
        """Rows that the commit of `txn` wrote, by the log; None when its commit is not the stream's newest one."""
        commit = self.commit_of(txn) if self.newest(txn.app_id) == txn.version else None
        return None if commit is None or ROWS_KEY not in commit else int(commit[ROWS_KEY])

    def txns(self, route: str | None = None, *, limit: int | None = None) -> set[tuple[str, int]]:
        """(stream, batch) of every commit of ours that the log still has, by either engine. `route`: leave out
        commits to a table of many routes that did not take it. `limit`: of the newest so many commits."""
        return set(batches_of(self.history(limit), route))

    # -- its files and rows --------------------------------------------------------------------------------

    @edge()
    def adds(self, flatten: bool = True) -> pa.Table:
        """The `add` actions of the files that the table has: path, size_bytes, num_records, partition values, bounds.
        `flatten`: a column for each value (`partition.<name>`), in place of structs."""
        return pa.table(self.delta.get_add_actions(flatten=flatten))

    def sizes(self) -> dict[str, int]:
        """The files that the table has, by their paths as the log has them: bytes."""
        adds = self.adds()
        return dict(zip(adds.column("path").to_pylist(), adds.column("size_bytes").to_pylist(), strict=True))

    @edge()
    def addresses(self) -> list[str]:
        """Whole addresses of the files that the table has."""
        return list(self.delta.file_uris())

    @edge()
    def deletion_vectors(self) -> pa.Table:
        """Columns `filepath` and `selection_vector`, a row per file that has one."""
        return pa.table(self.delta.deletion_vectors())

    @edge()
    def dataset(self) -> ds.Dataset:
        """To be read by pyarrow, what the table's protocol allows it to."""
        return self.delta.to_pyarrow_dataset()

    @edge()
    def query(self, sql: str) -> pa.Table:
        """The answer of delta-rs's own engine; the table's name is `t`."""
        return pa.table(QueryBuilder().register("t", self.delta).execute(sql).read_all())

    # -- changes -------------------------------------------------------------------------------------------

    @edge()
    def update(self, ids: pa.Table, values: Mapping[str, str], condition: str | None = None) -> None:
        """Set columns of the rows `t` whose `id` is one of `ids`. `values`: column -> SQL expression."""
        merge = self.delta.merge(ids, predicate="t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update(dict(values), predicate=condition).execute()

    @edge()
    def delete(self, condition: str) -> int:
        """Delete rows by an SQL condition; how many."""
        return int(self.delta.delete(condition).get("num_deleted_rows") or 0)

    @edge()
    def overwrite(self, rows: pa.Table) -> None:
        """All rows of this snapshot replaced; what others have appended since stays."""
        write_deltalake(self.delta, rows, mode="overwrite", schema_mode="merge")

    @edge()
    def append_rows(self, rows: pa.Table, about: Mapping[str, str]) -> None:
        """Rows without a batch. `about`: what the commit says of them."""
        properties = CommitProperties(custom_metadata=dict(about), max_commit_retries=15)
        write_deltalake(self.delta, rows, mode="append", commit_properties=properties)

    @edge()
    def add_columns(self, schema: pa.Schema) -> None:
        """Add those columns of `schema` that are not there, or have fields that are not there, in a commit of its own;
        those that are there stay as they are."""
        before = list(self.schema)
        grown = {f.name for f in schema if f not in before}
        self.delta.alter.add_columns([f for f in delta_schema(schema).fields if f.name in grown])

    @edge()
    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Also such as Delta does not know."""
        self.delta.alter.set_table_properties(dict(properties), raise_if_not_exists=False)

    @edge()
    def describe(self, comment: str) -> None:
        """Give the table another description."""
        self.delta.alter.set_table_description(comment)

    def keep_owner(self) -> None:
        """Make a property of an owner that only the description tells, which anybody may change: tables of version
        0.1.0, and of stores without conditional puts. This snapshot is of the version after."""
        owner = self.owner
        if owner is not None and OWNER_KEY not in self.properties:
            self.set_properties(owner.properties())
            self.refresh()

    @edge()
    def compact(self, *, hooks: bool = True, **rules: Any) -> None:
        """Small files into large ones; this snapshot is of the version after. `rules`: deltalake's own."""
        hook = None if hooks else HOOKS
        writer = _packed_as(self.schema)
        self.delta.optimize.compact(post_commithook_properties=hook, writer_properties=writer, **rules)

    @edge()
    def refresh(self) -> None:
        """Take in the commits that have come since."""
        self.delta.update_incremental()

    @edge()
    def vacuum(self, hours: float, *, enforce: bool = False, dry_run: bool = False) -> list[str]:
        """Remove files that no version of the last `hours` needs; which. `enforce`: refuse less than the table says."""
        return list(self.delta.vacuum(retention_hours=int(hours), enforce_retention_duration=enforce, dry_run=dry_run))

    @edge()
    def unknown_files(self, hours: int) -> list[str]:
        """Files below the table that are older than `hours` and that no version since then names."""
        return list(self.delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True))

    @edge()
    def checkpoint(self, *, drop_expired: bool = False) -> None:
        """Write a checkpoint of this version. `drop_expired`: and remove log entries that have expired."""
        self.delta.create_checkpoint()
        if drop_expired:
            self.delta.cleanup_metadata()


def columns_of(table: Snapshot | None) -> pa.Schema | None:
    """The table's columns; None where there is none yet."""
    return None if table is None else table.schema


def arrow_of(schema_json: str) -> pa.Schema:
    """The columns of a schema in Delta's own words."""
    return pa.schema(Schema.from_json(schema_json).to_arrow())


def delta_schema(schema: pa.Schema) -> Schema:
    """Raises ValueError for a type that Delta has no word for; delta-rs itself raises a bare Exception."""
    try:
        return Schema.from_arrow(schema)
    except Exception as e:
        raise ValueError(str(e).split("\n", 1)[0]) from e


def batches_of(commits: Iterable[Mapping[str, Any]], route: str | None = None) -> dict[tuple[str, int], int]:
    """(stream, batch) of our own among a table's commits: the version each made. `route`: as for `Snapshot.txns`."""
    versions = {}
    for commit in commits:
        about = {**commit, **_user_metadata(commit)}
        if APP_KEY in about and (route is None or ROUTES_KEY not in about or route in json.loads(about[ROUTES_KEY])):
            versions[str(about[APP_KEY]), int(about[BATCH_KEY])] = int(commit["version"])
    return versions


def _user_metadata(commit: Mapping[str, Any]) -> dict[str, Any]:
    """What engine `spark` said of its commit (Delta's userMetadata)."""
    try:
        metadata = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _packed_as(schema: pa.Schema) -> WriterProperties | None:
    """Files that delta-rs writes of such rows, nearly as ours are (`tables.codec`): it knows no encoding of a field
    within a struct (1.6.6). None for its own way."""
    return WriterProperties(compression="ZSTD", compression_level=LEVEL) if sequence_columns(schema) else None
