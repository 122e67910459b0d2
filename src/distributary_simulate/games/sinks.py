"""Where simulated records go: a Delta table as a Kafka export looks, and a Kafka topic.

A count is only passed on (`on_written`) once the records are durable: after the commit, or after the broker
confirmed every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import DeltaError

from distributary.errors import SourceDown, StoreDown
from distributary_simulate.games.kafka import KafkaWriter
from distributary_simulate.games.manifest import Manifest
from distributary_simulate.games.records import Record, batch_of
from distributary_simulate.games.truth import Truth

Sendable: TypeAlias = Iterable[Record] | Iterable[pa.RecordBatch] | pa.Table
Written = Callable[[Truth], None]

ROWS_PER_COMMIT: Final = 100_000
#: Records between two confirmations by the broker: so often a truth file can be brought up to date.
RECORDS_PER_FLUSH: Final = 100_000

_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def write_delta(
    path: str,
    values: pa.Table | Iterable[Record],
    *,
    rows_per_commit: int = ROWS_PER_COMMIT,
    columns: bool = False,
    storage_options: dict[str, str] | None = None,
    manifest: Manifest | None = None,
    on_written: Written | None = None,
) -> int:
    """Append to a Delta table, creating it: `VALUE_SCHEMA`, or `COLUMNS_SCHEMA` for records with `columns`.

    A pa.Table is written as it is. `on_written` gets the counts of each commit, for records only.
    Returns rows written. Raises StoreDown.
    """
    written = 0
    for batch, truth in _chunks(values, rows_per_commit, columns):
        _append(path, batch, storage_options, manifest)
        written += batch.num_rows
        if on_written is not None and truth is not None:
            on_written(truth)
    return written


def _chunks(values: pa.Table | Iterable[Record], rows: int, columns: bool) -> Iterator[tuple[pa.Table, Truth | None]]:
    if isinstance(values, pa.Table):
        for start in range(0, values.num_rows, rows):
            yield values.slice(start, rows), None
        return
    records = iter(values)
    while chunk := list(islice(records, rows)):
        yield pa.Table.from_batches([batch_of(chunk, columns=columns)]), Truth.of(chunk)


def _append(path: str, table: pa.Table, options: dict[str, str] | None, manifest: Manifest | None) -> None:
    try:
        is_new = not DeltaTable.is_deltatable(path, options)
        write_deltalake(
            path,
            table,
            mode="append",
            storage_options=options,
            commit_properties=CommitProperties(max_commit_retries=10),
            post_commithook_properties=_NO_HOOKS,
        )
        if is_new and manifest is not None:
            manifest.add_table(path, str(DeltaTable(path, storage_options=options).metadata().id))
            manifest.save()
    except (DeltaError, OSError) as error:
        raise StoreDown(path=path, detail=str(error)) from error


def write_kafka(
    bootstrap_servers: str,
    topic: str,
    records: Sendable,
    *,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    manifest: Manifest | None = None,
    on_written: Written | None = None,
) -> int:
    """Produce to a topic, creating it with this many partitions if it is not there.

    records: records, or rows with the columns `key` and `value` (as `VALUE_SCHEMA`).
    config: further librdkafka settings, e.g. of SASL.
    Kafka's own timestamp is the moment of sending: an old one could fall to the topic's retention at once.
    Returns records confirmed by the broker. Raises KafkaDown.
    """
    writer = KafkaWriter(bootstrap_servers, topic, partitions=partitions, config=config, manifest=manifest)
    sent = 0
    for pairs, truth in _pairs(records):
        writer.send(pairs)
        writer.flush()
        sent += len(pairs)
        if on_written is not None and truth is not None:
            on_written(truth)
    return sent


Pairs = list[tuple[bytes | None, bytes | None]]


def _pairs(records: Sendable) -> Iterator[tuple[Pairs, Truth | None]]:
    items = iter(records.to_batches() if isinstance(records, pa.Table) else records)
    for item in items:
        if isinstance(item, pa.RecordBatch):
            yield list(zip(item["key"].to_pylist(), item["value"].to_pylist(), strict=True)), None
        else:
            chunk = [item, *_next_records(items)]
            yield [(record.key, record.value) for record in chunk], Truth.of(chunk)


def _next_records(items: Iterator[Record | pa.RecordBatch]) -> Iterator[Record]:
    for item in islice(items, RECORDS_PER_FLUSH - 1):
        assert isinstance(item, Record), "records and batches do not mix in one call"
        yield item


def kafka_from_delta(
    path: str,
    bootstrap_servers: str,
    topic: str,
    *,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    storage_options: dict[str, str] | None = None,
    manifest: Manifest | None = None,
) -> int:
    """Send every row of a table that `write_delta` made (with `value` and `key`) to a topic, oldest file first.

    Returns records confirmed. Raises SourceDown for the table, KafkaDown for the broker.
    """
    batches = _batches_of(path, storage_options)
    return write_kafka(bootstrap_servers, topic, batches, partitions=partitions, config=config, manifest=manifest)


def _batches_of(path: str, options: dict[str, str] | None) -> Iterator[pa.RecordBatch]:
    """Opens the table at once, so that a missing one is reported before a topic is created."""
    try:
        table = DeltaTable(path, storage_options=options)
        actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "modification_time"])
        age = {row["path"]: row["modification_time"] for row in actions.to_pylist()}
        fragments = sorted(table.to_pyarrow_dataset().get_fragments(), key=lambda f: (age[f.path], f.path))
    except (DeltaError, OSError) as error:
        raise SourceDown(source=path, detail=str(error)) from error
    return (batch for fragment in fragments for batch in fragment.to_batches(columns=["key", "value"]))
