"""What a row of a merged table takes on disk beyond its payload."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.backfills import backfilled, changed
from bench.result import Case, Result
from bench.workload import Place, WrongRows
from distributary.changes.model import METADATA
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.tables.datafile import write_data_file
from distributary.tables.merge_rows import DELETED, DELETED_AT, MergeRules, as_merged
from distributary.tables.store import Store

NOTE = (
    "Bytes a row of all columns but the payload's four, by the footer of a merged table's file. Other: the same rows "
    "packed by Snappy, as all Parquet files were before."
)
KEYS = ("id",)


def run(place: Place) -> Result:
    rows = place.size(500_000, 3_000)
    ids = np.arange(rows)
    scattered = np.random.default_rng(1).permutation(rows)
    cases = {
        "rows of a backfill": backfilled(ids, 7),
        "rows updated in any order": changed(scattered, 7),
        "rows updated in any order, a random uuid each": _with_random_uuids(changed(scattered, 7)),
    }
    return Result("merged_row_bytes", NOTE, tuple(_case(label, events, place) for label, events in cases.items()))


def _case(label: str, events: pa.Table, place: Place) -> Case:
    merged = as_merged(reduce_rows(events, KEYS, OrderSettings()).rows, KEYS, MergeRules()).sort_by("id")
    folder = place.root / "table"
    ours, other = str(folder / write_data_file(str(folder), merged, Store()).path), str(folder / "other.parquet")
    pq.write_table(merged, other, compression="snappy", use_dictionary=True, store_schema=False)
    if not pq.read_table(ours).equals(pq.read_table(other)):
        raise WrongRows("the files differ")
    sizes = [_beyond(path) for path in (ours, other)]
    columns = {path.removeprefix(f"{METADATA}."): size for path, size in sizes[0].items() if size >= 0.1}
    payload = sum(_sizes(ours).values()) - sum(sizes[0].values())
    return Case(
        label,
        "bytes",
        sum(sizes[0].values()),
        sum(sizes[1].values()),
        goal=10,
        goal_of="ours",
        details={"by column": columns, "payload": payload},
    )


def _beyond(path: str) -> dict[str, float]:
    return {c: size for c, size in _sizes(path).items() if c.split(".")[0] in (METADATA, DELETED, DELETED_AT)}


def _sizes(path: str) -> dict[str, float]:
    """Compressed bytes a row, by column."""
    footer = pq.read_metadata(path)
    sizes: dict[str, float] = {}
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            share = column.total_compressed_size / footer.num_rows
            sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + share
    return sizes


def _with_random_uuids(events: pa.Table) -> pa.Table:
    metadata = events.column(METADATA).combine_chunks()
    place = metadata.type.get_field_index("uuid")
    arrays = metadata.flatten()
    arrays[place] = pa.array([str(uuid.uuid4()) for _ in range(len(metadata))])
    struct = pa.StructArray.from_arrays(arrays, fields=list(metadata.type))
    return events.set_column(events.column_names.index(METADATA), METADATA, struct)
