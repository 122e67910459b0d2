"""The `add` actions of a table as its log has them: with texts of statistics and deletion vectors, which delta-rs does
not hand out (deltalake 1.6.6).

By the Delta protocol ("Action Reconciliation"): those of the newest checkpoint, then of each commit since. A file's
path stands for it: no version has one path twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.errors.border import TableFault
from distributary.tables.commits import RemovedFile, read_commit
from distributary.tables.files import names_in
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, join
from distributary.tables.vectors import FEATURE

Add = Mapping[str, Any]
_PARTS = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_ANY = re.compile(r"(\d{20})\.checkpoint\..*")
_FIELDS = ("path", "partitionValues", "size", "modificationTime", "stats", "tags", "deletionVector")


def logged_adds(uri: str, store: Store, version: int) -> dict[str, Add] | None:
    """The files of version `version` of the table at `uri`, by path; None for a log whose newest checkpoint is of
    another form (V2). Raises TableFault where a commit is gone, OSError."""
    checkpoint = _newest(names_in(join(uri, "_delta_log"), store), version)
    if checkpoint is None:
        return None
    begin, names = checkpoint
    adds = {add["path"]: add for name in names for add in _in_checkpoint(uri, store, name)}
    for number in range(begin + 1, version + 1):
        text = read_commit(uri, store, number)
        if text is None:
            raise TableFault(f"version {number} of {uri} is gone from its log")
        _apply(text, adds)
    return adds


def places_of(table: Snapshot) -> list[RemovedFile]:
    """All files of the table as a commit removes them, with their vectors. Raises TableFault, OSError."""
    if FEATURE not in table.reader_features:
        return list(table.sizes().items())
    adds = logged_adds(table.uri, table.store, table.version)
    if adds is None:
        purge = f"REORG TABLE delta.`{table.uri}` APPLY (PURGE)"
        raise TableFault(
            f"{table.uri} has deletion vectors and a checkpoint of the form V2: take them out by Spark, {purge}"
        )
    return [
        (path, add["size"], add.get("partitionValues") or {}, add["deletionVector"])
        if "deletionVector" in add
        else (path, add["size"], add.get("partitionValues") or {})
        for path, add in adds.items()
    ]


def _newest(names: list[str], version: int) -> tuple[int, list[str]] | None:
    """(version, files) of the newest checkpoint up to `version`, (-1, none) where there is none."""
    checkpoints: dict[int, list[str]] = {}
    other = -1
    for name in names:
        parts, any_form = _PARTS.fullmatch(name), _ANY.fullmatch(name)
        if any_form is None or int(any_form[1]) > version:
            continue
        if parts is None:
            other = max(other, int(any_form[1]))
        else:
            checkpoints.setdefault(int(parts[1]), []).append(name)
    complete = [number for number, names_of in checkpoints.items() if _is_complete(names_of)]
    newest = max(complete, default=-1)
    if other > newest:
        return None
    return newest, checkpoints.get(newest, [])


def _is_complete(names: list[str]) -> bool:
    parts = {match[2] for name in names if (match := _PARTS.fullmatch(name)) is not None}
    return None in parts or len(names) == int(max(number for number in parts if number is not None))


def _in_checkpoint(uri: str, store: Store, name: str) -> list[Add]:
    with store.open(join(uri, "_delta_log"), name) as file:
        column = pq.read_table(file, columns=["add"], use_threads=False).column("add").combine_chunks()
    column = column.filter(pc.is_valid(column))
    fields_there = [field for field in _FIELDS if column.type.get_field_index(field) >= 0]
    rows = pa.table({field: pc.struct_field(column, field) for field in fields_there}).to_pylist(
        maps_as_pydicts="strict"
    )
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _apply(text: bytes, adds: dict[str, Add]) -> None:
    """A commit removes first: it may bring a path back with another vector."""
    new = []
    for line in text.splitlines():
        if line.startswith((b'{"add"', b'{"remove"')):
            action = json.loads(line)
            if "remove" in action:
                adds.pop(action["remove"]["path"], None)
            else:
                new.append({name: action["add"][name] for name in _FIELDS if action["add"].get(name) is not None})
    adds.update((add["path"], add) for add in new)
