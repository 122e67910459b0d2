"""A table's columns made wider by writing its files anew: every reader can open it, as no table feature is needed.

    live files that hold a narrower column -> the same rows in the wider type, in new files
    -> ONE COMMIT: metaData (the wider schema) + remove + add [+ a batch's own files and its transaction]

Delta protocol: a commit is the first writer of `<version>.json` and may do all of that at once ("Actions"); files that
only hold the removed rows anew are added, and the old ones removed, with `dataChange` false ("Add File").

Files come first, then the commit: who dies before it leaves files that belong to nothing, which vacuum removes. Whoever
else commits meanwhile is never overwritten: what they left is read, their files written anew too, and the commit put on
top of theirs. An append that was decided upon the old columns fails in its turn, by the new metaData.
Memory: one output file (`merge_files.FILE_BYTES`, decoded) and a piece of an input file at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from distributary.tables.checkpoints import checkpoint_in_turn
from distributary.tables.commits import commit_text, put_commit, read_commit
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import widened_in_words
from distributary.tables.faults import CommitConflict
from distributary.tables.merge_files import FileWriter, LiveFile, Reader
from distributary.tables.put_once import PUTS
from distributary.tables.snapshot import WIDENED_KEY, Snapshot, Txn
from distributary.tables.store import Store

SMALL_BYTES = 1 << 20
"""Files smaller than that are written together."""

Partition = Mapping[str, str]


def committed_widening(table: Snapshot, txn: Txn) -> dict[str, str]:
    """What the commit of `txn` widened, by the log: path -> `int -> bigint`."""
    commit = table.commit_of(txn) or {}
    widened: dict[str, str] = json.loads(commit.get(WIDENED_KEY) or "{}")
    return widened


def rewrite_wider(
    uri: str,
    before: pa.Schema,
    after: pa.Schema,
    store: Store,
    *,
    txn: Txn | None = None,
    added: Sequence[DataFile] = (),
    about: Mapping[str, Any] | None = None,
    within: Callable[[Partition], bool] | None = None,
) -> int:
    """Give the table at `uri` the columns `after`: those of `before`, in the same order, some of a wider type.

    `added`: a batch's rows in the columns `after`, taken in by the same commit under `txn`. `about`: more to say in
    the commit. `within`: the partitions that can hold a column which changes. Returns the commit's version.

    Raises CommitConflict (decide anew: the table is gone, has other columns than `before`, or has taken the batch),
    pa.ArrowInvalid for a value that the wider type does not hold, TableFault, OSError.
    """
    work = _Work(uri, before, after, store, within or (lambda _: True))
    for _ in range(PUTS):
        table = Snapshot.open(uri, store)
        if table is None:
            raise CommitConflict(f"{uri} is not there any more")
        if txn is not None and table.has(txn):
            raise CommitConflict(f"batch {txn.version} of {txn.app_id} is in the table already")
        if not table.schema.equals(before):
            raise CommitConflict(f"{uri} has got other columns")
        version = table.version + 1
        text = work.commit(table, txn, added, about or {})
        if _put(uri, store, version, text):
            checkpoint_in_turn(uri, version, store)
            return version
    raise CommitConflict(f"{uri}: somebody else was first {PUTS} times")


def _put(uri: str, store: Store, version: int, text: bytes) -> bool:
    """`put_commit`; an error does not say that nothing was written, so then the log is asked. Raises OSError."""
    try:
        return put_commit(uri, store, version, text)
    except OSError:
        if read_commit(uri, store, version) == text:
            return True
        raise


@dataclass(frozen=True, slots=True)
class Live:
    """A file of a table, and the values of its partition."""

    file: LiveFile
    partition: Partition


@dataclass(frozen=True, slots=True)
class _RewrittenFile:
    """Files of the table (`old`) and those that hold their rows in the wider columns."""

    old: tuple[Live, ...]
    new: tuple[DataFile, ...]


class _Work:
    """The rewriting of one table, kept over lost races: a round writes only what the ones before have not."""

    def __init__(
        self, uri: str, before: pa.Schema, after: pa.Schema, store: Store, within: Callable[[Partition], bool]
    ) -> None:
        self._uri, self._store, self._within = uri, store, within
        self._after = after
        self._changed = [new for old, new in zip(before, after, strict=True) if old.type != new.type]
        self._said = {WIDENED_KEY: json.dumps(widened_in_words(before, after), ensure_ascii=False)}
        self._done: list[_RewrittenFile] = []
        self._wide: set[str] = set()

    def commit(self, table: Snapshot, txn: Txn | None, added: Sequence[DataFile], about: Mapping[str, Any]) -> bytes:
        """The commit that makes `table`, as it is open, a table of the wider columns."""
        partitioned_by = table.partitioned_by
        live = {live_file.file.path: live_file for live_file in live_files(table)}
        self._done = [rewritten for rewritten in self._done if all(old.file.path in live for old in rewritten.old)]
        settled = self._wide | {old.file.path for rewritten in self._done for old in rewritten.old}
        reader = Reader(self._uri, self._store, _without(self._after, partitioned_by))
        narrow = [
            candidate for path, candidate in live.items() if path not in settled and self._is_narrow(candidate, reader)
        ]
        for together in _grouped(narrow):
            self._done.append(_RewrittenFile(together, tuple(self._written(together, reader))))
        removed = [(old.file.path, old.file.size, old.partition) for rewritten in self._done for old in rewritten.old]
        return commit_text(
            table.version,
            txn,
            added,
            removed,
            moved=[new for rewritten in self._done for new in rewritten.new],
            rows=None if txn is None else sum(file.rows for file in added),
            about={
                "operation": "CHANGE COLUMNS",
                "operationParameters": {},
                "isBlindAppend": False,
                **self._said,
                **about,
            },
            metadata=table.metadata_action(self._after),
        )

    def _is_narrow(self, live: Live, reader: Reader) -> bool:
        """Does the file hold a column that changes, in its old type? Files from before it was added do not."""
        if self._within(live.partition):
            columns = reader.columns(live.file)
            if any(
                _differs(columns.field(new.name).type, new.type) for new in self._changed if new.name in columns.names
            ):
                return True
        self._wide.add(live.file.path)
        return False

    def _written(self, together: Sequence[Live], reader: Reader) -> Iterable[DataFile]:
        rows = [live.file.rows for live in together]
        pieces = (piece for live in together for piece in reader.pieces(live.file))
        files, _ = FileWriter(self._uri, self._store, ()).write(pieces, 0 if min(rows) < 0 else sum(rows))
        return (replace(file, partition=together[0].partition) for file in files)


def live_files(table: Snapshot) -> Iterator[Live]:
    names = table.partitioned_by
    for row in table.adds(flatten=False).to_pylist():
        rows = row.get("num_records")
        partition = {name: row["partition"][name] for name in names}
        yield Live(LiveFile(row["path"], int(row["size_bytes"]), -1 if rows is None else int(rows), ()), partition)


def is_elsewhere(path: str) -> bool:
    """Is it outside of the table's folder, as files of a clone are?"""
    return path.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path) is not None


def _grouped(files: Sequence[Live]) -> Iterator[tuple[Live, ...]]:
    """Small files of a partition together, in the order of the log; each large one alone."""
    small: dict[tuple[tuple[str, str], ...], list[Live]] = {}
    for live in files:
        if live.file.size < SMALL_BYTES:
            small.setdefault(tuple(sorted(live.partition.items())), []).append(live)
        else:
            yield (live,)
    yield from map(tuple, small.values())


def _without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names])


def _differs(file_type: pa.DataType, table_type: pa.DataType) -> bool:
    """Is some leaf that the file has of another type? Fields of a struct that it lacks do not count."""
    if pa.types.is_struct(file_type) and pa.types.is_struct(table_type):
        file_fields = {field.name: field.type for field in file_type}
        return any(_differs(file_fields[field.name], field.type) for field in table_type if field.name in file_fields)
    if pa.types.is_list(file_type) and pa.types.is_list(table_type):
        return _differs(file_type.value_type, table_type.value_type)
    if pa.types.is_map(file_type) and pa.types.is_map(table_type):
        return _differs(file_type.key_type, table_type.key_type) or _differs(file_type.item_type, table_type.item_type)
    return bool(file_type != table_type)
