"""Engine `task`: a route's rows become one commit of its Delta table, from inside a Spark task (delta-rs).

The commit carries a transaction mark (Delta protocol, "Transaction Identifiers"): app id = the stream, version = the
batch. A batch that finds its mark is a replay and writes nothing, so every table takes each batch exactly once.
Two racing writers of one mark: one wins, the other gets CommitFailedError (tried: deltalake 1.6.6).
"""

from __future__ import annotations

import json
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import create_table_with_add_actions

from distributary.config import Tables
from distributary.errors import TableCollision
from distributary.errors.border import contained
from distributary.errors.border import in_words as in_words
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Evolution
from distributary.tables.log_folder import empty_commit
from distributary.tables.outage import is_store_fault as is_store_fault
from distributary.tables.store import Store, engine_uri

TASK_FEATURES = frozenset(
    {"appendOnly", "invariants", "deletionVectors", "changeDataFeed", "v2Checkpoint", "timestampNtz"}
)
"""Table features under which a blind append by delta-rs is right. Any other one means engine `spark`."""

_VARIANT = re.compile(r'"(?:type|elementType|valueType)": ?"variant"')

ROWS_KEY = "distributary.rows"
APP_KEY = "distributary.app"
BATCH_KEY = "distributary.batch"
ROUTES_KEY = "distributary.routes"
"""Of a commit to a table of many routes: route -> rows, as JSON."""
WIDENED_KEY = "distributary.widened"
"""Of a commit that gave columns a wider type: path -> `int -> bigint`, as JSON."""
COMMIT_ATTEMPTS = 6

_T = TypeVar("_T")


class CommitConflict(Exception):
    """Another writer was first; open the table again and redo the whole decision."""


def retried(decide: Callable[[], _T]) -> _T:
    """What `decide` returns: done again, after a short rest, when another writer was first.

    Raises CommitConflict when others were first each time.
    """
    for attempt in range(COMMIT_ATTEMPTS - 1):
        try:
            return decide()
        except CommitConflict:
            time.sleep(random.uniform(0, 0.05 * 2**attempt))
    return decide()


@dataclass(frozen=True, slots=True)
class Mark:
    """What makes a commit this batch's own: `app` = stream id, `batch` = batch id (never reused by that stream)."""

    app: str
    batch: int

    def about(self) -> dict[str, str]:
        """The mark as a commit's metadata, for people and for `history_marks`."""
        return {APP_KEY: self.app, BATCH_KEY: str(self.batch)}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a table belongs to; written into the table at creation, checked at every opening.

    `keys`: the columns by which a merged table's rows are told apart.
    """

    pipeline: str
    route: str
    keys: tuple[str, ...] = field(default=(), compare=False)

    def text(self) -> str:
        about = {"pipeline": self.pipeline, "route": self.route, **({"keys": list(self.keys)} if self.keys else {})}
        return json.dumps({"distributary": about}, ensure_ascii=False)

    @classmethod
    def of(cls, table: DeltaTable) -> Owner | None:
        try:
            found = json.loads(table.metadata().description or "").get("distributary")
            return cls(found["pipeline"], found["route"], tuple(found.get("keys", ())))
        except (ValueError, AttributeError, KeyError, TypeError):
            return None


def open_table(uri: str, store: Store) -> DeltaTable | None:
    """The table, or None where there is none. Raises DeltaError / OSError when it cannot be read."""
    try:
        table = DeltaTable(engine_uri(uri), storage_options=dict(store.options) or None)
    except TableNotFoundError:
        return None
    if (empty := empty_commit(uri)) is not None:
        raise DeltaError(
            f"commit {empty} of its log is empty (0 bytes): what it held is missing for every reader, and would be for "
            "good with the next checkpoint. Put the file back from a backup, or see docs/stores.md, Damaged logs"
        )
    return table


def open_owned(uri: str, owner: Owner, store: Store) -> DeltaTable | None:
    """The table, None where there is none yet.

    Raises TableCollision when it was made by another pipeline or for another route (case D2), DeltaError, OSError.
    """
    table = open_table(uri, store)
    found = None if table is None else Owner.of(table)
    if found is not None and found != owner:
        raise TableCollision(route=owner.route, table=uri, owner=f"pipeline {found.pipeline}, route {found.route!r}")
    return table


def arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def committed_batch(table: DeltaTable, app: str) -> int:
    """The newest batch of stream `app` in this table; -1 for none."""
    version = table.transaction_version(app)
    return -1 if version is None else int(version)


def committed_rows(table: DeltaTable, mark: Mark) -> int | None:
    """Rows that the commit of `mark` wrote, by the log; None when its commit is not the stream's newest one."""
    if committed_batch(table, mark.app) != mark.batch:
        return None
    for commit in table.history(limit=20):
        if commit.get(APP_KEY) == mark.app and commit.get(BATCH_KEY) == str(mark.batch) and ROWS_KEY in commit:
            return int(commit[ROWS_KEY])
    return None


def spark_needed(table: DeltaTable, partitioned_by: Sequence[str] = ()) -> str | None:
    """Why delta-rs must not append to this table, in words; None when it may. `partitioned_by`: what it may be."""
    features = set(table.protocol().writer_features or [])
    if not _VARIANT.search(str(table.schema().to_json())):
        features.discard("variantType")  # deltalake adds this feature to every table that it gives deletion vectors
    if unknown := sorted(features - TASK_FEATURES):
        return f"table features {', '.join(unknown)}"
    if table.metadata().partition_columns != list(partitioned_by):
        return "a partitioned table"
    guarded = [k for k in table.metadata().configuration if k.startswith("delta.constraints.")]
    if guarded or _has_expressions(table):
        return "constraints, generated or identity columns"
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        return "column mapping"
    return None


def history_marks(table: DeltaTable, route: str | None = None, *, limit: int | None = None) -> set[tuple[str, int]]:
    """(stream, batch) of every commit of ours that the table's log still has, by either engine. `route`: leave out
    commits to a table of many routes that did not take it. `limit`: of the newest so many commits."""
    found = set()
    for commit in table.history(limit=limit):
        about = {**commit, **_user_metadata(commit)}
        if APP_KEY in about and (route is None or ROUTES_KEY not in about or route in json.loads(about[ROUTES_KEY])):
            found.add((str(about[APP_KEY]), int(about[BATCH_KEY])))
    return found


def _user_metadata(commit: Mapping[str, Any]) -> dict[str, Any]:
    """What engine `spark` said of its commit (Delta's userMetadata)."""
    try:
        said = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


TASK_PROPERTIES = frozenset(
    {
        "delta.appendOnly",
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.deletedFileRetentionDuration",
        "delta.enableChangeDataFeed",
        "delta.enableDeletionVectors",
        "delta.logRetentionDuration",
    }
)
"""Table properties with which delta-rs can create a table."""


def why_spark(table: DeltaTable | None, tables: Tables, route: str) -> str | None:
    """Why engine `spark` must write this route's table, in words; None where engine `task` does."""
    if tables.for_route(route)[0] == "spark":
        return "tables.engine"
    if table is not None:
        return spark_needed(table)
    if unknown := sorted(tables.properties.keys() - TASK_PROPERTIES):
        return f"table properties {', '.join(unknown)}"
    return None


def _has_expressions(table: DeltaTable) -> bool:
    text = str(table.schema().to_json())
    return any(key in text for key in ("delta.generationExpression", "delta.invariants", "delta.identity."))


def commit_append(
    table: DeltaTable | None,
    uri: str,
    evolution: Evolution,
    files: Sequence[DataFile],
    mark: Mark,
    owner: Owner,
    store: Store,
    properties: Mapping[str, str] | None = None,
    *,
    partition_by: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> int | None:
    """Take `files` into the table in one marked commit; create the table or add its new columns first.

    Returns the version that the commit made, as far as known. `partition_by`: of a new table. `about`: more to say of
    the commit in its metadata.

    New columns are a commit of their own before it: a crash between the two replays cleanly, for adding a column
    that is there does nothing. Raises CommitConflict when another writer changed what was decided upon.
    """
    try:
        if table is None:
            commit = _commit_properties(files, mark, about or {}, retries=0)
            _create(uri, evolution, files, commit, owner, store, properties or {}, partition_by)
            return 0
        _append(table, evolution, files, mark, about or {})
        # The handle stays at the version it was opened at. Whoever relies on the next one finds out if it is another.
        version = None if evolution.changed else int(table.version()) + 1
    except CommitFailedError as e:
        raise CommitConflict(str(e)) from e
    except CommitConflict:
        raise
    except BaseException as e:  # delta-rs panics too
        contained(e)
        if "already exists" in str(e):
            raise CommitConflict(str(e)) from e
        if not _landed(table, uri, mark, store, e):
            raise
        return None
    if version is not None:
        checkpoint_in_turn(uri, version, store)
    return version


def _create(
    uri: str,
    evolution: Evolution,
    files: Sequence[DataFile],
    commit: CommitProperties,
    owner: Owner,
    store: Store,
    properties: Mapping[str, str],
    partition_by: Sequence[str],
) -> None:
    create_table_with_add_actions(
        engine_uri(uri),
        delta_schema(evolution.schema),
        [f.add_action() for f in files],
        mode="error",
        partition_by=list(partition_by),
        description=owner.text(),
        configuration=dict(properties),
        storage_options=dict(store.options) or None,
        # A creation that lost its race must fail: tried again, delta-rs 1.6.6 makes it version 1 beside the winner's.
        commit_properties=commit,
    )


def _append(
    table: DeltaTable, evolution: Evolution, files: Sequence[DataFile], mark: Mark, about: Mapping[str, str]
) -> None:
    schema = delta_schema(evolution.schema)
    if evolution.changed:
        add_columns(table, evolution)
    # Another attempt at this batch may have come between the caller's look and here: from what is known now on,
    # delta-rs itself refuses a second commit of the same app.
    if committed_batch(table, mark.app) >= mark.batch:
        raise CommitConflict(f"batch {mark.batch} of {mark.app} is in the table already")
    table.create_write_transaction(
        [f.add_action() for f in files],
        "append",
        schema,
        partition_by=list(table.metadata().partition_columns),
        commit_properties=_commit_properties(files, mark, about),
        post_commithook_properties=HOOKS,
    )


def add_columns(table: DeltaTable, evolution: Evolution) -> None:
    """Add the evolution's new columns to the table, in a commit of its own; those that are there stay as they are.

    Raises CommitFailedError, DeltaError.
    """
    before = list(arrow_schema(table))
    grown = {f.name for f in evolution.schema if f not in before}
    table.alter.add_columns([f for f in delta_schema(evolution.schema).fields if f.name in grown])


def _landed(table: DeltaTable | None, uri: str, mark: Mark, store: Store, error: BaseException) -> bool:
    """Whether the marked commit is in the table after all.

    An error does not say that nothing was written: delta-rs also raises when the checkpoint that follows a commit
    fails. Raises CommitConflict when only the commit before it (new columns) is in.
    """
    try:
        found = open_table(uri, store)
    except BaseException as e:
        contained(e)
        return False
    if found is None:
        return False
    if committed_batch(found, mark.app) >= mark.batch:
        return True
    if table is None or found.version() > table.version():
        raise CommitConflict(str(error)) from error
    return False


def _commit_properties(
    files: Sequence[DataFile], mark: Mark, more: Mapping[str, str], retries: int = 15
) -> CommitProperties:
    about = {
        ROWS_KEY: str(sum(f.rows for f in files)),
        **mark.about(),
        **more,
    }
    return CommitProperties(
        custom_metadata=about, max_commit_retries=retries, app_transactions=[Transaction(mark.app, mark.batch)]
    )


def delta_schema(schema: pa.Schema) -> Schema:
    """Raises ValueError for a type that Delta has no word for; delta-rs itself raises a bare Exception."""
    try:
        return Schema.from_arrow(schema)
    except Exception as e:
        raise ValueError(str(e).split("\n", 1)[0]) from e


# Checkpoints are made in turns (`checkpoint_due`), not by the commit that happens to be the hundredth.
HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

CHECKPOINT_COMMITS = 20
"""So often a table is checkpointed: a commit costs more with every one since (`make bench ONLY=log_length`)."""


def checkpoint_due(uri: str, version: int) -> bool:
    """Is `version` one at which this table is checkpointed? Tables take turns, so that no batch does all of them."""
    return (version + zlib.crc32(uri.encode())) % CHECKPOINT_COMMITS == 0


def checkpoint_in_turn(uri: str, version: int, store: Store) -> None:
    """After commit `version`: checkpoint the table if it is its turn."""
    if checkpoint_due(uri, version):
        _checkpoint(uri, store)


def _checkpoint(uri: str, store: Store) -> None:
    """Checkpoint the newest version and drop log entries that have expired."""
    # The commit is in; a checkpoint that fails now is made at the table's next turn.
    try:
        table = open_table(uri, store)
        if table is not None:
            table.create_checkpoint()
            table.cleanup_metadata()
    except BaseException as e:
        contained(e)
