"""A checkpoint carried forward: the one before, and what the commits since have added.

delta-rs makes a checkpoint out of an opened table, and reads every commit since the last one twice for it: 13 ms of CPU
for 20 commits (deltalake 1.6.6; `make bench ONLY=append_vs_spark_jobs`), half a millisecond for each append. But where
those commits did nothing but add files, what the table holds is what it held, and these files; that takes a fifth.
Nothing here decides what a commit means that does anything else: then delta-rs makes the checkpoint
(Delta protocol, "Action Reconciliation", "Checkpoints").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.tables.commits import read_commit
from distributary.tables.store import Store, join, local_path

LAST = "_last_checkpoint"
FURTHEST = 60
"""Commits since the last checkpoint that are carried forward."""
READERS = 8
"""Commits that are asked of an object store at a time."""

_Action = Mapping[str, Any]
_COLUMNS = {"add", "remove", "metaData", "protocol", "txn", "domainMetadata", "sidecar"}
_ADD = {"path", "partitionValues", "size", "modificationTime", "dataChange", "stats"}
_OF_ADD = _ADD | {"tags", "deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider"}
"""Fields of a checkpoint's files. Those of `_ADD` are all that a file of ours has."""
_TXN = {"appId", "version", "lastUpdated"}
_FEATURES = {"appendOnly", "invariants", "timestampNtz", "deletionVectors", "changeDataFeed"}
"""Features under which an added file is no more than that."""
_SETTINGS = "delta.checkpoint."
"""Before the names of settings of a checkpoint's form."""


class _Unlike(Exception):
    """There is something that only delta-rs should make a checkpoint of."""


def carry_forward(uri: str, version: int, store: Store) -> bool:
    """Write the checkpoint of `version` of the table at `uri`; False where its log is not as expected: then nothing was
    written. Raises OSError, ValueError, KeyError, TypeError, AttributeError for what cannot be read."""
    log = join(uri, "_delta_log")
    try:
        begin = _newest(log, store)
        if not 0 < version - begin <= FURTHEST:
            return False
        before = _read(log, begin, store)
        since = _Since.of(_commits(uri, range(begin + 1, version + 1), store))
        after = _joined(before, since)
    except _Unlike:
        return False
    sink = pa.BufferOutputStream()
    pq.write_table(after, sink, store_schema=False)
    body = sink.getvalue().to_pybytes()
    store.put_whole(log, _name(version), body)
    files = len(after) - after.column("add").null_count
    last = {"version": version, "size": len(after), "sizeInBytes": len(body), "numOfAddFiles": files}
    store.put_whole(log, LAST, json.dumps(last, separators=(",", ":")).encode())
    return True


def _name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _newest(log: str, store: Store) -> int:
    """The version of the checkpoint of which the log says that it is the last one."""
    text = store.get(log, LAST)
    if text is None:
        raise _Unlike
    last = json.loads(text)
    if last.get("parts") is not None or last.get("v2Checkpoint") is not None:
        raise _Unlike
    return int(last["version"])


def _read(log: str, version: int, store: Store) -> pa.Table:
    """A checkpoint whose table may be carried forward."""
    body = store.get(log, _name(version))
    if body is None:
        raise _Unlike
    table = pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False).combine_chunks()
    files = {field.name for field in table.schema.field("add").type}
    if not set(table.column_names) <= _COLUMNS or not _ADD <= files <= _OF_ADD:
        raise _Unlike
    # Of Spark's each field may be null; those are not tried.
    if table.schema.field("add").type.field("path").nullable:
        raise _Unlike
    actions = {name: len(table) - table.column(name).null_count for name in table.column_names}
    if actions.get("sidecar") or sum(actions.values()) != len(table):
        raise _Unlike
    protocol, about = _only(table, "protocol"), _only(table, "metaData")
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    if not features <= _FEATURES or any(name.startswith(_SETTINGS) for name, _ in about["configuration"]):
        raise _Unlike
    return table


def _only(table: pa.Table, name: str) -> dict[str, Any]:
    """The one action of its kind."""
    (action,) = table.column(name).drop_null().to_pylist()
    return dict(action)


def _commits(uri: str, versions: Iterable[int], store: Store) -> Iterator[bytes | None]:
    def read(version: int) -> bytes | None:
        return read_commit(uri, store, version)

    if local_path(uri) is not None:
        return map(read, versions)
    with ThreadPoolExecutor(READERS) as pool:
        return iter(list(pool.map(read, versions)))


@dataclass(frozen=True)
class _Since:
    """What commits have brought: files, and the newest batch of each stream."""

    adds: list[_Action]
    txns: dict[str, _Action]

    @classmethod
    def of(cls, commits: Iterable[bytes | None]) -> _Since:
        adds: list[_Action] = []
        txns: dict[str, _Action] = {}
        for text in commits:
            # One that is gone, or is empty: who opens the table says so.
            if not text:
                raise _Unlike
            for line in text.splitlines():
                ((kind, action),) = json.loads(line).items()
                if kind == "add" and _is_plain(action):
                    adds.append(action)
                elif kind == "txn" and action.keys() <= _TXN:
                    txns[action["appId"]] = action
                elif kind != "commitInfo":
                    raise _Unlike
        return cls(adds, txns)


def _is_plain(add: _Action) -> bool:
    """Whether a file has what ours have, and nothing else. delta-rs (1.6.6) writes null where it has nothing to say."""
    unsaid = {name for name, value in add.items() if value is None} - _ADD
    return add.keys() - (unsaid & _OF_ADD) == _ADD and add["dataChange"] is True


def _joined(before: pa.Table, since: _Since) -> pa.Table:
    """The actions of a checkpoint, and those that came since."""
    add, remove, txn = (before.column(name).chunk(0) for name in ("add", "remove", "txn"))
    paths = pa.array([action["path"] for action in since.adds], pa.string())
    # A path that comes twice, or that was there before, is another matter than a new file.
    if len(paths.unique()) < len(paths) or any(_any_of(column, "path", paths) for column in (add, remove)):
        raise _Unlike
    staying = np.flatnonzero(~_among(txn, "appId", pa.array(list(since.txns), pa.string())))
    files, txns = len(since.adds), len(since.txns)
    a_file, no_file = _index(add, null=False), _index(add, null=True)
    # A row of a file is null in all columns but its own: so are those that come to it in the others.
    rows = np.concatenate((staying, np.full(files + txns, a_file)))
    new = {
        "add": [_taken(add, staying), _files(add, since.adds), _taken(add, np.full(txns, no_file))],
        "txn": [_taken(txn, rows[: len(staying) + files]), pa.array(list(since.txns.values()), txn.type)],
    }
    columns = [
        pa.concat_arrays(new[name]) if name in new else _taken(before.column(name).chunk(0), rows)
        for name in before.column_names
    ]
    return pa.table(columns, schema=before.schema)


def _files(files: pa.StructArray, adds: Sequence[_Action]) -> pa.StructArray:
    """New files as a checkpoint has them. What they lack is null as it is in one of `files`: in a column that
    `pa.nulls` makes, what is required within a struct is null as well, which Arrow's writer refuses."""
    values_of = {name: [add[name] for add in adds] for name in _ADD}
    values_of["partitionValues"] = [list(values.items()) for values in values_of["partitionValues"]]
    columns = [
        pa.array(values_of[field.name], field.type)
        if field.name in values_of
        else _taken(files.field(field.name), np.full(len(adds), _index(files.field(field.name), null=True)))
        for field in files.type
    ]
    return pa.StructArray.from_arrays(columns, fields=list(files.type))


def _among(actions: pa.StructArray, field: str, values: pa.Array) -> np.ndarray:
    return np.asarray(pc.is_in(pc.struct_field(actions, field), value_set=values).to_numpy(zero_copy_only=False))


def _any_of(actions: pa.StructArray, field: str, values: pa.Array) -> bool:
    return bool(_among(actions, field, values).any())


def _index(values: pa.Array, *, null: bool) -> int:
    """The first that is null, or that is not."""
    where = int(pc.index(pc.is_null(values), null).as_py())
    if where < 0:
        raise _Unlike
    return where


def _taken(values: pa.Array, rows: np.ndarray) -> pa.Array:
    return values.take(pa.array(rows, pa.int64()))
