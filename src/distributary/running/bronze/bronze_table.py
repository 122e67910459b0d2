"""The bronze table as the driver sees it: made before the first stream starts, its partitions, who may write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.config import HopFolder, Pipeline
from distributary.errors import CheckpointLost, TableCollision
from distributary.errors.border import TableFault
from distributary.sources.bronze_rows import KEY, bronze_schema
from distributary.state.checkpoint import read_offsets, stream_id
from distributary.state.checkpoint_damage import Checkpoint
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

HOP_1 = "hop1"
"""In the pipeline's state folder: hop 1's own state. Also the name of its lock."""
_KEEPING = frozenset(
    {"WRITE", "STREAMING UPDATE", "CREATE TABLE", "ADD COLUMN", "ADD COLUMNS", "OPTIMIZE", "SET TBLPROPERTIES"}
    | {"VACUUM START", "VACUUM END", "UPGRADE PROTOCOL"}
)
"""Operations that leave every record in bronze."""


def hop_1_state(config: Pipeline) -> str:
    return config.state_folder.hop_1


def hop_1_checkpoint(config: Pipeline) -> str:
    """Folder of hop 1's checkpoint: beside hop 2's, where the file sets that apart."""
    if config.checkpoint is not None:
        return f"{config.checkpoint.rstrip('/')}_{HOP_1}"
    return HopFolder(hop_1_state(config)).checkpoint


def first_hop(config: Pipeline) -> Pipeline:
    """Hop 1 as a pipeline of its own: the source, and where it is in it."""
    changed = {"layout": "fanout", "state": hop_1_state(config), "checkpoint": hop_1_checkpoint(config)}
    return config.model_copy(update=changed)


def schema_of(config: Pipeline) -> pa.Schema:
    """Bronze's columns, as this pipeline writes them."""
    source = config.source
    return bronze_schema(config.envelope.columns, headers=source.with_headers, keys=source.record_key is not None)


def open_bronze(config: Pipeline, store: Store) -> Snapshot | None:
    """The bronze table; None where there is none yet. Raises TableCollision (case D2), TableFault, OSError."""
    uri = config.bronze_path
    table = Table(uri, store).open()
    if table is not None and (owner := table.owner) != Owner(config.pipeline, ""):
        whose = f"pipeline {owner.pipeline}" if owner is not None else "somebody else"
        raise TableCollision(route=None, table=uri, owner=f"{whose}; bronze.path must be this pipeline's own")
    return table


def make_bronze(config: Pipeline, store: Store) -> Snapshot:
    """The bronze table, made where there is none: one owner makes it before any stream needs it (case S4).

    Raises as `open_bronze`.
    """
    table = open_bronze(config, store)
    if table is not None:
        return table
    try:
        owner, properties = Owner(config.pipeline, ""), config.bronze.properties
        Table(config.bronze_path, store, owner, properties, partitioned_by=(KEY,)).create(schema_of(config))
    except (CommitConflict, TableFault) as e:
        # Another process of this pipeline was first.
        if open_bronze(config, store) is None:
            raise e
    table = open_bronze(config, store)
    assert table is not None
    return table


def route_keys(table: Snapshot) -> list[str]:
    """Bronze's partitions that hold rows, by its log alone."""
    adds = table.adds()
    column = f"partition.{KEY}"
    return sorted(set(adds.column(column).to_pylist())) if column in adds.column_names else []


# -- may hop 1 go on? ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Where hop 1 begins. `offsets`: topic -> partition -> next offset, for a new checkpoint over an old bronze."""

    offsets: dict[str, dict[str, int]] | None = None


def check_hop_1(config: Pipeline, table: Snapshot, store: Store) -> Start:
    """Is the checkpoint the one that wrote bronze (case S1)? A new one would write every row twice, unless it begins
    where bronze ends (`bronze.new_checkpoint: continue`).

    Raises CheckpointLost, CheckpointDamaged.
    """
    checkpoint = hop_1_checkpoint(config)
    stream = stream_id(checkpoint, store)
    last_batch = -1 if stream is None else table.newest(stream)
    # Bronze takes a batch in one commit: one that it has not finished has not begun.
    Checkpoint(checkpoint, store).check(last_batch, stream, lambda _: False)
    about = {"pipeline": config.pipeline, "ledger": config.bronze_path, "checkpoint": checkpoint}
    if stream is not None and last_batch >= 0:
        if read_offsets(checkpoint, store, last_batch) is None:
            says = f"has not begun batch {last_batch}, which bronze has taken"
            raise CheckpointLost(**about, known=stream, found=says)
        return Start()
    if not has_rows(table):
        return Start()
    says = "is not there" if stream is None else f"belongs to stream {stream}"
    if config.bronze.new_checkpoint == "continue":
        others = sorted({_operation(commit) for commit in table.history()} - _KEEPING)
        if not others:
            return Start(ends(config, table))
        says += f", and bronze does not have every record (its log has {', '.join(others)}), so its end says nothing"
    elif config.source.has_offsets:
        says += " (bronze.new_checkpoint: continue would go on where bronze ends)"
    raise CheckpointLost(**about, known="of hop 1", found=says)


def _operation(commit: Mapping[str, Any]) -> str:
    mode = (commit.get("operationParameters") or {}).get("mode")
    return "overwrite" if mode == "Overwrite" else str(commit.get("operation"))


def has_rows(table: Snapshot) -> bool:
    """Has anything ever been written to it? Also when all of it was deleted since."""
    return table.version > 0


def ends(config: Pipeline, table: Snapshot) -> dict[str, dict[str, int]]:
    """Where bronze ends in Kafka: topic -> partition -> next offset. It keeps every record, so this is exact."""
    sql = 'SELECT topic, "partition" AS part, max("offset") AS last FROM t WHERE "offset" IS NOT NULL GROUP BY 1, 2'
    next_offsets: dict[str, dict[str, int]] = {}
    for topic, partition, last in _rows(table, sql):
        name = topic if topic is not None else _only_topic(config)
        next_offsets.setdefault(str(name), {})[str(partition)] = int(last) + 1
    return next_offsets


def _rows(table: Snapshot, sql: str) -> Iterator[tuple[Any, ...]]:
    rows = table.query(sql)
    yield from zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _only_topic(config: Pipeline) -> str:
    return config.source.topics[0]
