"""Rows of a narrow table as Datastream writes them and a log table holds them, made a part at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from bench.merges import START_MS, struct_of
from distributary.changes.hashing import row_hash
from distributary.changes.model import METADATA, METADATA_TYPE, SOURCE_TYPE
from distributary.changes.sequence import sequence_numbers
from distributary.engine.changes.task_spec import ORIGIN, ORIGIN_TYPE

READ_ROWS = 1_000
"""Rows that are read in one go: they share the time, and the beginning of the uuid."""


def backfilled(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows `ids` of a narrow table of four columns, read from a MySQL table, in the order of `ids`."""
    count = len(ids)
    reading = np.arange(count) // READ_ROWS
    time_ms = pa.array(START_MS + seed * 1000 + reading, pa.int64())
    metadata = {
        "source_timestamp": time_ms,
        "read_timestamp": time_ms,
        "change_type": pa.repeat("INSERT", count),
        "is_backfill": pa.repeat(True, count),
        "read_method": pa.repeat("mysql-backfill-fulldump", count),
    }
    return _rows(ids, seed, reading, metadata, {})


def changed(ids: np.ndarray, seed: int) -> pa.Table:
    """Updates of the rows `ids` as MySQL's binlog has them, one after the other."""
    count = len(ids)
    reading = np.arange(count) // READ_ROWS
    metadata = {
        "source_timestamp": pa.array(START_MS + np.arange(count) // 200 * 1000, pa.int64()),
        "read_timestamp": pa.array(START_MS + 5_000 + reading * 5_000, pa.int64()),
        "change_type": pa.repeat("UPDATE-INSERT", count),
        "is_backfill": pa.repeat(False, count),
        "read_method": pa.repeat("mysql-cdc-binlog", count),
    }
    positions = np.cumsum(np.random.default_rng(seed).integers(280, 330, count))
    log = {"log_file": pa.repeat("mysql-bin.000131", count), "log_position": pa.array(positions, pa.int64())}
    return _rows(ids, seed, reading, metadata, log)


def _rows(
    ids: np.ndarray, seed: int, reading: np.ndarray, about: Mapping[str, pa.Array], log: Mapping[str, pa.Array]
) -> pa.Table:
    rng, count = np.random.default_rng(seed), len(ids)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "status": pa.array(rng.choice(["new", "paid", "sent"], count)),
        "amount": pa.array(rng.integers(0, 100_000, count) / 100),
        "changed_at": pa.array(START_MS * 1000 + rng.integers(0, 10**12, count), pa.timestamp("us", tz="UTC")),
    }
    heads = [f"{head:016x}" for head in rng.integers(0, 2**62, count // READ_ROWS + 1).tolist()]
    uuids = [
        f"{heads[n][:8]}-{heads[n][8:12]}-4{heads[n][12:15]}-a{heads[n][:3]}-{heads[n][3:7]}0{at:07x}"
        for n, at in zip(reading.tolist(), (np.arange(count) % READ_ROWS).tolist(), strict=True)
    ]
    source = {"database": pa.repeat("shop", count), "table": pa.repeat("orders", count), **log}
    metadata = {
        **about,
        "uuid": pa.array(uuids),
        "is_deleted": pa.repeat(False, count),
        "stream_name": pa.repeat("projects/1/locations/europe-west1/streams/shop", count),
        "object": pa.repeat("shop_orders", count),
        "schema_key": pa.repeat("a" * 40, count),
        "source": struct_of(source, SOURCE_TYPE, count),
    }
    plain = pa.table(struct_of(metadata, METADATA_TYPE, count).flatten(), pa.schema(list(METADATA_TYPE)))
    metadata["change_sequence_number"] = sequence_numbers("mysql", plain, row_hash(columns, count)).numbers
    return pa.table({**columns, METADATA: struct_of(metadata, METADATA_TYPE, count)})


def logged(rows: pa.Table, file: str, batch: int) -> pa.Table:
    """Rows of a log table."""
    count = rows.num_rows
    origin = {
        "file": pa.repeat(file, count),
        "row": pa.array(np.arange(count)),
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
        "key": _keys(rows),
        "key_columns": pa.repeat('["id"]', count),
    }
    return rows.append_column(pa.field(ORIGIN, ORIGIN_TYPE), struct_of(origin, ORIGIN_TYPE, count))


def _keys(rows: pa.Table) -> pa.Array:
    return pa.array([f'["{n}"]' for n in rows.column("id").to_pylist()])
