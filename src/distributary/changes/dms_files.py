"""Files of AWS DMS (target Amazon S3), CSV or Parquet, as the events of change files.

    <schema>/<table>/LOAD00000001.csv            a full load: rows as they were read
    <schema>/<table>/20260131-101112345.csv      changes; folders of a date may stand between (DatePartitionEnabled)

A row is the source's columns, before which stands `Op`: I, U or D. Without it the rows of a full load are rows, those
of a file of changes inserts (CdcInsertsOnly). The order of changes is that of the files' names, and in a file that of
its rows: the name's time is the event's, and the row's number is the counter at the end of `uuid`. Rows of a full load
are older than any change. A CSV file begins with the names of its columns (AddColumnName).

Source: AWS DMS user guide, "Using Amazon S3 as a target".
"""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from distributary.changes.contents import MARK, PARQUET, unzipped
from distributary.changes.file_events import EventParts
from distributary.changes.metadata import Rows
from distributary.changes.model import BadEvent, FileEvents, Kind, Reading, SourceTable
from distributary.changes.parquet_files import as_stored, read_tables
from distributary.errors import FileBroken

OPERATION = "Op"
_OPERATIONS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}
_NAME = re.compile(r"(?:(?P<load>LOAD[0-9A-Fa-f]+)|(?P<time>\d{8}-\d{9})(?P<rest>\d*))\.(?:csv|parquet)(?:\.gz)?")
_DATE = re.compile(r"\d+")
_NUMBER = re.compile(r"[-+]?\d[-+.:/\sTZ\d]*")
"""A number, or a time: a table's first column, which mostly is its key, has no such name."""


class _Place(NamedTuple):
    """Whose the rows of a file are. `time_ms`: None for a full load; `rest`: what its name says beyond milliseconds."""

    table: SourceTable
    time_ms: int | None
    rest: int | None


def table_of(path: str) -> SourceTable:
    """The table that a file is of, by its place. Raises FileBroken."""
    return _place(path).table


def read_dms(body: pa.Buffer, path: str, reading: Reading) -> FileEvents:
    """Every event of a file; numbers are those of its rows. Raises FileBroken."""
    place, parts = _place(path), EventParts(reading, typed=True)
    content, fault = unzipped(body, reading.max_unpacked_bytes)
    if fault or content.size > max(body.size, reading.max_unpacked_bytes):
        detail = fault or f"has more than {reading.max_unpacked_bytes:,} bytes (source.max_unpacked_bytes)"
        raise FileBroken(path=path, detail=f"its gzip data {detail}")
    is_parquet = content.size >= len(PARQUET) and content.slice(0, len(PARQUET)).to_pybytes() == PARQUET
    bad: list[BadEvent] = []
    of_parquet = read_tables(content, path, bad, reading.max_unpacked_bytes)
    for row, table in of_parquet if is_parquet else [(0, _csv(content, path, reading))]:
        if table.num_rows:
            parts.add(_rows(table, row, place), Kind.GENERIC)
    parts.bad += bad
    return parts.file_events()


def _place(path: str) -> _Place:
    *folders, name = path.split("/")
    match = _NAME.fullmatch(name)
    while folders and _DATE.fullmatch(folders[-1].replace("-", "")):
        folders.pop()
    if match is None or len(folders) < 2:
        detail = "allowed are schema/table/LOAD00000001.csv and schema/table/20260131-101112345.csv, or .parquet"
        raise FileBroken(path=path, detail=f"its place says of no table of DMS: {detail}")
    table = SourceTable(Kind.GENERIC, "", folders[-2], folders[-1])
    if match["load"]:
        return _Place(table, None, None)
    try:
        moment = datetime.strptime(match["time"][:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError as e:
        raise FileBroken(path=path, detail=f"its name is no time: {e}") from e
    return _Place(table, round(moment.timestamp()) * 1000 + int(match["time"][15:]), int(match["rest"] or 0) or None)


def _csv(content: pa.Buffer, path: str, reading: Reading) -> pa.Table:
    """All columns as text. Raises FileBroken: one line that is none takes the file with it."""
    text = content.to_pybytes().removeprefix(MARK)
    head = text.split(b"\n", 1)[0].decode("utf-8", "replace")
    names = next(csv.reader([head], delimiter=reading.csv_delimiter), [])
    if not names:
        return pa.table({})
    if not _are_names(names, reading.csv_null):
        remedy = "set AddColumnName at the endpoint of DMS, or use Parquet"
        raise FileBroken(path=path, detail=f"it does not begin with the names of its columns: {remedy}")
    convert = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[reading.csv_null],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = arrow_csv.ParseOptions(delimiter=reading.csv_delimiter, newlines_in_values=True)
    read = arrow_csv.ReadOptions(use_threads=False)
    try:
        return arrow_csv.read_csv(pa.BufferReader(text), read, parse, convert)
    except (pa.ArrowException, OSError) as e:
        raise FileBroken(path=path, detail=f"it is no CSV file: {e}") from e


def _are_names(line: list[str], null: str) -> bool:
    """Can this be what a file begins with, and not its first row? That would be lost, and name the columns."""
    first = line[line[0] == OPERATION :][:1]
    is_row = line[0] in _OPERATIONS or any(_NUMBER.fullmatch(name) for name in first)
    return not is_row and len(set(line)) == len(line) and not {"", null} & set(line)


def _rows(table: pa.Table, row: int, place: _Place) -> Rows:
    count = table.num_rows
    is_load = place.time_ms is None
    alone = "READ" if is_load else "INSERT"
    change = pa.repeat(pa.scalar(alone), count)
    if OPERATION in table.column_names and not is_load:
        letters = _chunk(table.column(OPERATION)).cast(pa.string())
        places = pc.index_in(letters, value_set=pa.array(list(_OPERATIONS)))
        change = pc.coalesce(pa.array(list(_OPERATIONS.values())).take(places), letters, pa.scalar("none"))
    numbers = np.arange(row, row + count, dtype=np.int64)
    top = {
        "uuid": pa.array([f"{number:032x}" for number in numbers.tolist()], pa.string()),
        "source_timestamp": pa.repeat(pa.scalar(place.time_ms, pa.int64()), count),
        "read_timestamp": pa.repeat(pa.scalar(place.rest, pa.int64()), count),
        "read_method": pa.repeat(pa.scalar("dms-backfill" if is_load else "dms"), count),
        "object": pa.repeat(pa.scalar(place.table.route), count),
        "schema_key": pa.repeat(pa.scalar(""), count),
    }
    names = {"schema": place.table.schema, "table": place.table.table}
    source = {name: pa.repeat(pa.scalar(value), count) for name, value in names.items()}
    columns = [name for name in table.column_names if name != OPERATION]
    payload = [(name, *as_stored(_chunk(table.column(name)))) for name in columns]
    return Rows(numbers, top, {**source, "change_type": change}, payload)


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
