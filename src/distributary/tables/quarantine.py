"""Rows kept aside: one Delta table per pipeline, written by many tasks and committed once per batch.

Nothing is thrown away: a row keeps its bytes, why it is here, and where it came from. `state` says what became of it:
`open` -> `claimed` (by replay number `replay`) -> `replayed`.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from distributary.backoff import Backoff, any_chance
from distributary.config import StateFolder
from distributary.errors.border import TableFault
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict, writing
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table

UPDATE_ATTEMPTS = 8

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

ORIGIN_FIELDS = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
)
"""Where a record came from, as far as the source says (`headers`: with `source.headers`)."""

REJECTED_SCHEMA = pa.schema(
    [
        ("route", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("schema_id", pa.int32()),
        ("envelope_schema_id", pa.int32()),
        *ORIGIN_FIELDS,
        ("level", pa.string()),
        ("value", pa.binary()),
        ("key", pa.binary()),
    ]
)
"""A rejected row on its way. `level` says what `value` is: the whole `envelope`, or its `payload` (null: the record
says that its key's row is gone). `key`: the record's, where the pipeline file asks for it."""

QUARANTINE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("quarantined_at", pa.timestamp("us", tz="UTC")),
        ("stream", pa.string()),
        ("batch", pa.int64()),
        *REJECTED_SCHEMA,
        ("state", pa.string()),
        ("replay", pa.int64()),
    ]
)


FILE_FIELDS = (pa.field("file", pa.string()), pa.field("row", pa.int64()))
"""Where an event came from: the file's address, and its number in the file (null: the file as a whole)."""

EVENT_REJECTED_SCHEMA = pa.schema([*REJECTED_SCHEMA, *FILE_FIELDS])
"""A rejected change event. `level`: `file` (nothing of it can be read), `event` (it is in no table), or `merge` (it is
in its log table, but could not be merged)."""

EVENT_QUARANTINE_SCHEMA = pa.schema([*QUARANTINE_SCHEMA, *FILE_FIELDS])


def quarantine_uri(state_root: str) -> str:
    """Where a pipeline's quarantine is."""
    return StateFolder(state_root).quarantine


def replay_app(quarantine: Snapshot) -> str:
    """App id of replays in the tables. A new quarantine begins at replay 1 again, and must not look like an old one."""
    return f"replay-{quarantine.id}"


def write_rejected(
    uri: str,
    rejected: Sequence[pa.Table],
    stream: str,
    batch: int,
    task: str,
    store: Store,
    schema: pa.Schema = QUARANTINE_SCHEMA,
) -> DataFile:
    """Write rejected rows as one data file of the quarantine; the batch's commit takes it in later.

    `task` tells the batch's files apart: with stream, batch and row number it makes each row's `id`.
    Raises StoreDown.
    """
    rows = pa.concat_tables(rejected)
    now = pa.scalar(int(time.time() * 1e6), pa.timestamp("us", tz="UTC"))
    count = rows.num_rows
    filled = {
        "id": pa.array([f"{_prefix(stream)}-{batch}-{task}-{n}" for n in range(count)]),
        "quarantined_at": pa.repeat(now, count),
        "stream": pa.repeat(stream, count),
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
        "state": pa.repeat("open", count),
        "replay": pa.nulls(count, pa.int64()),
    }
    columns = [filled.get(f.name, rows.column(f.name) if f.name in rows.column_names else None) for f in schema]
    with writing(uri):
        return write_data_file(uri, pa.table(columns, schema=schema), store)


def _prefix(stream: str) -> str:
    """What tells a stream from others, in short: of names that somebody chose, two may begin alike."""
    return stream[:8] if _UUID.fullmatch(stream) else hashlib.sha256(stream.encode()).hexdigest()[:16]


def with_all_columns(rows: pa.Table) -> pa.Table:
    """Rows of the quarantine of messages; one that an earlier version made lacks columns."""
    for field in QUARANTINE_SCHEMA:
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    return rows.select(QUARANTINE_SCHEMA.names).cast(QUARANTINE_SCHEMA)


def count_reasons(rejected: Iterable[pa.Table]) -> dict[str, int]:
    """Reason -> rows. `rejected`: tables with the columns of `REJECTED_SCHEMA`."""
    counts: Counter[str] = Counter()
    for rows in rejected:
        for reason_count in pc.value_counts(rows.column("reason").combine_chunks()).to_pylist():
            counts[reason_count["values"]] += reason_count["counts"]
    return dict(counts)


def update_rows(
    uri: str, store: Store, ids: Sequence[str], values: Mapping[str, str], condition: str | None = None
) -> None:
    """Set columns of the quarantine's rows with these ids; nothing happens where there is no quarantine.

    `values`: column -> SQL expression. `condition`: which of the rows (`t`). A run that commits at the same time makes
    this try again. Raises TableFault, OSError.
    """
    source = pa.table({"id": pa.array(sorted(set(ids)), pa.string())})
    for attempt in range(UPDATE_ATTEMPTS):
        try:
            if (table := Snapshot.open(uri, store)) is not None:
                table.update(source, values, condition)
            return
        except CommitConflict as e:
            if attempt == UPDATE_ATTEMPTS - 1:
                raise TableFault.of(e) from e
            time.sleep(Backoff(0.1, jitter=1.0).rest_sec(attempt + 1, any_chance()))


def commit_quarantine(
    uri: str,
    pipeline: str,
    files: Sequence[DataFile],
    stream: str,
    batch: int,
    store: Store,
    schema: pa.Schema = QUARANTINE_SCHEMA,
) -> None:
    """Take a batch's files into the quarantine in one commit; nothing happens when the batch's transaction is there.

    A replay or rebuild that claims rows at the same time may be first: then it is done again. Raises StoreDown.
    """
    with writing(uri):
        Table(uri, store, Owner(pipeline, "")).append(
            schema, files, Txn(stream, batch), Policy(type_change="new_column")
        )
