"""A history table: every version of every row, and from when to when it held (slowly changing dimension, type 2).

    events -> fit the columns -> meet the versions that may change -> close them, add the new ones -> remove + add

Events of one key follow each other (`changes.spans`), so an event touches the version before it and those of its key
behind it, nothing else. Versions that an event has ended lie in files of their own, apart from the open ones: a batch
in order rewrites files with open versions, of which there is one per key, and adds the ended ones as a new file. Of
each ended version the table knows by which place in the order it ended (`_until`), and the files know the last such
place and the last end in them; so a file in which all ended before a batch's oldest event is not opened. A batch costs
what its own rows do, and a late event what lies behind it.

Taking an event twice changes nothing, so it does not matter how often a batch comes; the transaction says how far it
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.reduce import MissingColumns, Places
from distributary.changes.sequence import OrderSettings
from distributary.tables.checkpoints import checkpoint_in_turn
from distributary.tables.commits import commit_text, put_commit
from distributary.tables.datafile import DataFile
from distributary.tables.engines import in_place, spark_needed
from distributary.tables.faults import CommitConflict
from distributary.tables.history_rows import OPEN, UNTIL, VALID_TO, IncomingVersions, Met, as_history, own_names
from distributary.tables.merge import SMALL_BYTES, SMALL_FILES, MergeTarget, fitted_rows, with_columns
from distributary.tables.merge_files import FILE_BYTES, FileWriter, LiveFile, Reader, live_files, may_hold
from distributary.tables.rewrite import is_elsewhere
from distributary.tables.snapshot import Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.widening import evolve_table


def merge_history(
    target: MergeTarget,
    rows: pa.Table,
    keys: Sequence[str],
    order: OrderSettings,
    gaps: MissingColumns,
    txn: Txn,
    *,
    filled: bool = False,
    partial: bool = False,
) -> int:
    """Take events into the history table; returns the versions that were written. `rows`: with the payload's columns
    and their metadata, any number of a key. `filled`: among them is all that the log has of the keys that Unfilled
    named. `partial`: any event may have said only a part, also one whose metadata does not say so.

    Raises Unfilled (redo with all events of these keys), CommitConflict (open the table again and redo), ValueError for
    a table that a task must not write or a key whose column changed its type, TableFault, OSError, pa.ArrowException.
    """
    table = target.before
    named = own_names(rows.column_names)
    silent = {named[column]: pa.array(mask) for column, mask in gaps.unchanged(rows).items()}
    if table is not None and (why := spark_needed(table, removes=True)) is not None:
        raise ValueError(f"a history table is written by tasks, and this one needs Spark's own writer: {why}")
    rows = as_history(rows, keys)
    evolution = evolve_table(table, columns_of(table), [rows.schema], target.policy)
    if evolution.widened and in_place(target.policy, table):
        raise ValueError(f"a history table is written by tasks, which have no type widening: {evolution.widening}")
    rows, unchanged = fitted_rows(rows, silent, evolution, keys)
    incoming = IncomingVersions(rows, tuple(keys), order, unchanged, filled=filled, partial=partial)
    if table is None:
        versions = incoming.with_versions(Met.none(incoming))
        files = _Files(FileWriter(target.table.uri, target.table.store, (*keys, UNTIL)), keys)
        files.take(versions.written(None))
        target.table.commit(None, evolution, files.done(), txn)
        return files.rows
    if evolution.changed:
        table = with_columns(table, evolution)
    return _Into(target, table, incoming, evolution.schema).run(txn)


def history_files(
    uri: str, store: Store, rows: pa.Table, keys: Sequence[str], order: OrderSettings, gaps: MissingColumns
) -> list[DataFile]:
    """The whole history of some keys, of which `rows` are all events, as files in the folder `uri` that no commit names
    yet; their columns are those of `as_columns`. Raises as `merge_history`."""
    named = own_names(rows.column_names)
    silent = {named[column]: pa.array(mask) for column, mask in gaps.unchanged(rows).items()}
    incoming = IncomingVersions(as_history(rows, keys), tuple(keys), order, silent)
    files = _Files(FileWriter(uri, store, (*keys, UNTIL)), keys)
    files.take(incoming.with_versions(Met.none(incoming)).written(None))
    return files.done()


@dataclass
class _Files:
    """Takes rows and writes them as files, ended versions apart from open ones, in bounded memory."""

    writer: FileWriter
    keys: Sequence[str]
    rows: int = 0
    added: list[DataFile] = field(default_factory=list)
    _held: dict[bool, list[pa.Table]] = field(default_factory=lambda: {True: [], False: []})

    def take(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        is_open = pc.fill_null(pc.equal(rows.column(UNTIL), OPEN), True)
        for which, mask in ((True, is_open), (False, pc.invert(is_open))):
            if (some := rows.filter(mask)).num_rows:
                self._held[which].append(some)
                if sum(piece.nbytes for piece in self._held[which]) > FILE_BYTES:
                    self._write(which)

    def done(self) -> list[DataFile]:
        for which in (True, False):
            self._write(which)
        return self.added

    def _write(self, which: bool) -> None:
        pieces, self._held[which] = self._held[which], []
        self.added += self.writer.write(iter(pieces), sum(piece.num_rows for piece in pieces))[0]


class _Into:
    """Events into a table that is there, on top of its version."""

    def __init__(self, target: MergeTarget, table: Snapshot, incoming: IncomingVersions, schema: pa.Schema) -> None:
        self.uri, self.store, self.table = target.table.uri, target.table.store, table
        self.incoming, self.reader = incoming, Reader(target.table.uri, target.table.store, schema)

    def run(self, txn: Txn) -> int:
        files = live_files(self.table, (*self.incoming.keys, UNTIL))
        if any(is_elsewhere(file.path) for file in files):
            raise ValueError("a history table is written by tasks, and this one has files outside its folder")
        last_ends = _last_ends(self.table)
        keyed = [LiveFile(f.path, f.size, f.rows, f.bounds[:-1]) for f in files]
        near = may_hold(keyed, self.incoming.rows, self.incoming.keys)
        near = [n for n in near if self.incoming.touches(files[n], last_ends.get(files[n].path))]
        needed = self.incoming.needs(self.reader.schema)
        columns = ((n, self.reader.part(files[n], lambda _: needed)) for n in near)
        met = Met.joined([self.incoming.meet(n, file_rows) for n, file_rows in columns], self.incoming)
        versions = self.incoming.with_versions(met)
        if not versions.is_new():
            if not self.table.has(txn):
                self._commit([], [], 0, txn)
            return 0
        changed = versions.changed()
        rewritten = sorted({*met.file[changed].tolist()} | _small(files))
        self.reader.forget(file for n, file in enumerate(files) if n not in rewritten)
        out = _Files(FileWriter(self.uri, self.store, (*self.incoming.keys, UNTIL)), self.incoming.keys)
        taken_out = self._without(files, rewritten, met, changed, out)
        rows_kept = out.rows
        out.take(versions.written(taken_out))
        self._commit([files[n] for n in rewritten], out.done(), out.rows - rows_kept, txn)
        return out.rows - rows_kept

    def _without(
        self, files: Sequence[LiveFile], rewritten: Sequence[int], met: Met, changed: Places, out: _Files
    ) -> tuple[Places, pa.Table] | None:
        """The rows of the files go to `out`, but those that change: they are returned, and their numbers."""
        numbers: list[Places] = []
        taken_out: list[pa.Table] = []
        for number in rewritten:
            mine = changed[met.file[changed] == number]
            mine = mine[np.argsort(met.row[mine])]
            begin = 0
            for piece in self.reader.pieces(files[number]):
                met_here = mine[(met.row[mine] >= begin) & (met.row[mine] < begin + piece.num_rows)]
                places = met.row[met_here] - begin
                keep = np.ones(piece.num_rows, bool)
                keep[places] = False
                numbers.append(met_here)
                taken_out.append(piece.take(pa.array(places)))
                out.take(piece.filter(pa.array(keep)))
                begin += piece.num_rows
        return (np.concatenate(numbers), pa.concat_tables(taken_out)) if taken_out else None

    def _commit(self, removed: Sequence[LiveFile], added: Sequence[DataFile], rows: int, txn: Txn) -> None:
        version = self.table.version + 1
        metrics = {"numOutputRows": rows, "numTargetFilesAdded": len(added), "numTargetFilesRemoved": len(removed)}
        about = {"operation": "MERGE", "operationParameters": {}, "isBlindAppend": False}
        about["operationMetrics"] = {name: str(value) for name, value in metrics.items()}
        removed_files = [(file.path, file.size) for file in removed]
        if not put_commit(
            self.uri, self.store, version, commit_text(version - 1, txn, added, removed_files, about=about)
        ):
            raise CommitConflict(f"version {version} of {self.uri} was written by another writer")
        checkpoint_in_turn(self.uri, version, self.store)


def _small(files: Sequence[LiveFile]) -> set[int]:
    """Small files, once many: of the ended versions, of which a batch adds a file, and of the open ones."""
    small_paths: set[int] = set()
    for is_open in (True, False):
        small = {n for n, file in enumerate(files) if file.size < SMALL_BYTES and _is_open(file) == is_open}
        small_paths |= small if len(small) >= SMALL_FILES else set()
    return small_paths


def _is_open(file: LiveFile) -> bool:
    return file.bounds[-1] is None or file.bounds[-1][1] == OPEN


def _last_ends(table: Snapshot) -> dict[str, int]:
    """Path -> the greatest `valid_to` of the file's rows, in microseconds; of files that say so."""
    adds = table.adds()
    name = f"max.{VALID_TO}"
    if name not in adds.column_names:
        return {}
    ends = zip(adds.column("path").to_pylist(), adds.column(name).to_pylist(), strict=True)
    zero = datetime(1970, 1, 1, tzinfo=UTC)
    return {path: round((end.astimezone(UTC) - zero).total_seconds() * 1e6) for path, end in ends if end is not None}
