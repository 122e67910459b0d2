"""Engine `task`: events, one per key, into a merged table, as one commit from inside a Spark task.

    rows -> fit the columns -> meet the files that may hold their keys -> rewrite those that change -> remove + add

Copy-on-write by our own hand, or merge on read where that is asked for (`merge_on_read`): the MERGE of delta-rs plans a
query per table and reads whole rows of every file that it touches, and Spark's is several jobs. Here a file is judged
by its key columns alone, and only files with a row that is replaced are written anew
(`make bench ONLY=merge_vs_spark_small`, `merge_vs_spark_large`).

The commit is version + 1 of the version that all was decided upon, put only if absent: whoever loses starts anew. What
it leaves behind (`MergeTip`) is all that the stream's next merge into the table needs.
Merging is idempotent by the events' sequence, and each batch leaves its transaction, also where it changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distributary.changes.reduce import Places, Reduced
from distributary.changes.sequence import Bools
from distributary.tables.checkpoints import checkpoint_in_turn
from distributary.tables.commits import RemovedFile, commit_text, put_commit
from distributary.tables.common_types import types_before
from distributary.tables.conform import conform
from distributary.tables.datafile import DataFile
from distributary.tables.engines import in_place, made_by_spark, spark_needed
from distributary.tables.evolve import Evolution, Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.merge_bounds import event_bounds
from distributary.tables.merge_files import FileWriter, LiveFile, Reader, Unit, live_files, may_hold, rewrite
from distributary.tables.merge_on_read import TINY_BYTES, Marked, MergePlan, OnRead, is_for_marks
from distributary.tables.merge_rows import Counts, Incoming, MergeRules, MergeVerdict, as_merged
from distributary.tables.merge_tip import MergeTip
from distributary.tables.merge_values import Tail
from distributary.tables.rewrite import is_elsewhere, rewrite_wider
from distributary.tables.snapshot import Snapshot, Txn, columns_of
from distributary.tables.table import Table
from distributary.tables.tombstones import POLICY, Tombstones, are_beside, columns_beside, place_of
from distributary.tables.widening import evolve_table, said_of

TASK_ROWS = 20_000_000
"""Rows of the files that may hold a key of the batch, up to which a merge is one task's work. A task holds a byte for
each of them, the keys and sequence numbers of one file at a time, and two files of `FILE_BYTES` that it writes. Its
time grows with them: Spark rewrites a larger table with all its tasks."""
SMALL_BYTES, SMALL_FILES = 1 << 20, 8
"""Files smaller than that take in new rows where they are written anyway, and so many of them become one. A full one
(`FILE_BYTES` of rows) has more, also of the narrowest rows: their metadata is packed to a fortieth (`tables.codec`)."""


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    `late_rows`: numbers of the events that are older than the tombstones which have been purged; from engine `spark`,
    which does not number them, `late` has their rows. `why_spark`: why nothing was done, and engine `spark` must do it.
    `tip`: what is known of the table now. `widened`: columns that got a wider type, `score` -> `int -> bigint`.
    """

    counts: Counts = field(default_factory=Counts)
    created: bool = False
    evolved: bool = False
    late_rows: tuple[int, ...] = ()
    why_spark: str | None = None
    late: pa.Table | None = field(default=None, compare=False)
    version: int | None = field(default=None, compare=False)
    tip: MergeTip | None = field(default=None, compare=False)
    widened: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeTarget:
    """The merged table and what is for good about it. `before`: as opened now, None where there is none yet."""

    table: Table
    before: Snapshot | None
    policy: Policy


def merge_rows(target: MergeTarget, reduced: Reduced, keys: Sequence[str], rules: MergeRules, txn: Txn) -> Merged:
    """Merge events, one per key (`reduce_rows`), with their payload columns and `datastream_metadata`.

    Raises CommitConflict (open the table again and redo), ValueError for a key whose column changed its type,
    TableFault, OSError, pa.ArrowException.
    """
    table = target.before
    rows = as_merged(reduced.rows, keys, rules)
    evolution = evolve_table(table, columns_of(table), [rows.schema], target.policy)
    if evolution.widened and in_place(target.policy, table):
        return Merged(why_spark=evolution.widening)
    if table is None and (why := made_by_spark(target.table.properties)) is not None:
        return Merged(why_spark=why)
    on_read = OnRead(table) if table is not None and rules.on_read else None
    if table is not None and (why := spark_needed(table, removes=True, vectors=rules.on_read)) is not None:
        return Merged(why_spark=why)
    if on_read is not None and (why := on_read.why_spark()) is not None:
        return Merged(why_spark=why)
    rows, unchanged = fitted_rows(rows, reduced.unchanged, evolution, keys)
    incoming = Incoming(rows, keys, rules, reduced.since)
    beside = None
    if (rules.beside if table is None else are_beside(table)) and rules.deletes == "soft":
        beside = Tombstones.opened(target.table, table, columns_beside(rows.schema, keys, incoming.metadata), keys)
    if table is None:
        return _create(target, incoming, evolution, beside, txn)
    table.keep_owner()
    widened = said_of(table, evolution)
    if evolution.changed:
        table = with_columns(table, evolution)
        on_read = OnRead(table) if rules.on_read else None
    files = live_files(table, keys)
    if any(is_elsewhere(file.path) for file in files):
        return Merged(why_spark="files outside its folder, as in a clone")
    work = _Merge(target.table, table.version, incoming, unchanged, evolution.schema, on_read, beside)
    merged = work.run(files, txn)
    return replace(merged, evolved=evolution.changed, widened=widened)


def merge_on_tip(
    target: MergeTarget, tip: MergeTip, reduced: Reduced, keys: Sequence[str], rules: MergeRules, txn: Txn
) -> Merged | None:
    """As `merge_rows`, into a table whose newest commit is known and of an earlier batch (`target.before` is not asked
    for); None when that cannot be done without opening the table.

    Also None where the store refuses or is away: an error does not say that nothing was written, and who opens the
    table finds out. Raises ValueError, pa.ArrowException.
    """
    try:
        if (
            tip.keys != tuple(keys)
            or tip.purged_until != rules.purged_until
            or not tip.leads(target.table.uri, target.table.store)
        ):
            return None
        rows = as_merged(reduced.rows, keys, rules)
        evolution = evolve(tip.arrow_schema(), [rows.schema], target.policy)
        if evolution.changed or evolution.widened:
            return None
        rows, unchanged = fitted_rows(rows, reduced.unchanged, evolution, keys)
        incoming = Incoming(rows, keys, rules, reduced.since)
        beside = None if tip.beside is None else Tombstones(place_of(target.table), tip=tip.beside)
        work = _Merge(target.table, tip.version, incoming, unchanged, evolution.schema, beside=beside)
        return work.run(tip.files, txn)
    except (CommitConflict, OSError):
        return None


def _rows(file: LiveFile) -> int:
    """As logged; for a file without statistics a guess that is rather too high."""
    return file.rows if file.rows >= 0 else file.size // 16


def fitted_rows(
    rows: pa.Table, unchanged: Mapping[str, pa.Array], evolution: Evolution, keys: Sequence[str]
) -> tuple[pa.Table, Mapping[str, pa.Array]]:
    """The rows in the table's columns, and the masks by the names that these have there."""
    slots = {slot.source: slot for slot in evolution.slots[0]}
    for key in keys:
        if slots[key].target != key:
            raise ValueError(f"key column {key!r} has another type than in the table: rebuild it (distributary resync)")
    batch = rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
    conformed = conform(batch, evolution.slots[0], evolution.schema)
    if conformed.rejected:
        position, (reason, column) = next(iter(conformed.rejected.items()))
        raise ValueError(
            f"{len(conformed.rejected)} events do not fit the merged table, the first ({position}): "
            f"{reason.value}, column {column!r}"
        )
    named = {slots[name].target: mask for name, mask in unchanged.items()}
    return pa.table(conformed.columns, schema=evolution.schema), {n: m for n, m in named.items() if n is not None}


def _create(
    target: MergeTarget, incoming: Incoming, evolution: Evolution, beside: Tombstones | None, txn: Txn
) -> Merged:
    table = target.table if beside is None else beside.remembered(target.table)
    if beside is not None:
        beside.read(incoming)
        incoming.meet_tombstones()
    verdict = incoming.verdict()
    counts = verdict.counts()
    late_rows = tuple(np.flatnonzero(verdict.late_rows).tolist())
    if beside is not None:
        verdict, dead = incoming.apart(verdict)
        if (why := _bury(beside, incoming, dead, txn)[1]) is not None:
            return Merged(why_spark=why)
    # In the order of their keys, so that bounds of files tell keys apart.
    new = _sorted(incoming.rows.filter(pa.array(verdict.new)), incoming.keys)
    if not new.num_rows and (beside is None or len(late_rows) == incoming.rows.num_rows):
        return Merged(counts, late_rows=late_rows)
    writer = FileWriter(table.uri, table.store, incoming.keys)
    files = writer.write(iter([new]), new.num_rows)[0] if new.num_rows else []
    version = table.commit(None, evolution, files, txn)
    return Merged(counts, late_rows=late_rows, created=True, version=version)


def _bury(beside: Tombstones, incoming: Incoming, dead: Bools, txn: Txn) -> tuple[MergeTip | None, str | None]:
    """Commit the events `dead` as tombstones, before the table: (what is known then, why it takes Spark)."""
    keys = incoming.keys
    if not dead.any() and beside.is_there:
        return beside.known(keys), None
    events = Reduced(incoming.rows.filter(pa.array(dead)).select([*keys, incoming.metadata]))
    rules = MergeRules(order=incoming.rules.order, small_files=1)  # every batch reads them
    target = MergeTarget(beside.table, None, POLICY)
    if beside.tip is not None:
        if (merged := merge_on_tip(target, beside.tip, events, keys, rules, txn)) is None:
            raise CommitConflict(f"{beside.table.uri} is to be opened")
        return merged.tip, merged.why_spark
    opened = beside.made(columns_beside(incoming.rows.schema, keys, incoming.metadata), keys)
    if not dead.any():
        return opened.known(keys), None
    written = merge_rows(replace(target, before=opened.before), events, keys, rules, txn)
    return written.tip, written.why_spark


def _sorted(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    return rows.sort_by([(key, "ascending") for key in keys])


def with_columns(table: Snapshot, evolution: Evolution) -> Snapshot:
    """Add the new columns and widen others, in commits of their own: what is there already is left alone."""
    before = types_before(table.schema, evolution.schema)
    if before != table.schema:
        table.add_columns(before)
    if evolution.widened:
        rewrite_wider(table.uri, before, evolution.schema, table.store)
    snapshot = Snapshot.open(table.uri, table.store)
    if snapshot is None or snapshot.schema != evolution.schema:
        raise CommitConflict(f"{table.uri} was changed by another writer")
    return snapshot


class _Merge:
    """One merge into a table that is there, on top of its `version`."""

    def __init__(
        self,
        table: Table,
        version: int,
        incoming: Incoming,
        unchanged: Mapping[str, pa.Array],
        schema: pa.Schema,
        on_read: OnRead | None = None,
        beside: Tombstones | None = None,
    ) -> None:
        self.beside = beside
        self.table = table
        self.version = version
        self.incoming = incoming
        self.unchanged = unchanged
        self.on_read = on_read
        self.vectors = None if on_read is None else on_read.reader(schema)
        self.reader = self.vectors or Reader(table.uri, table.store, schema)

    def run(self, files: Sequence[LiveFile], txn: Txn) -> Merged:
        """`files`: all live ones."""
        candidates = may_hold(files, self.incoming.rows, self.incoming.keys)
        limit = self.incoming.rules.task_rows or TASK_ROWS
        if (rows_to_read := sum(_rows(files[n]) for n in candidates)) > limit:
            why = f"{rows_to_read:,} rows in the files that may hold the batch's keys; a task takes {limit:,}"
            return Merged(why_spark=why)
        if self.beside is not None:
            self.beside.read(self.incoming)
        met = {number: self._meet(files[number]) for number in candidates}
        self.incoming.meet_tombstones()
        verdict, tombstones = self.incoming.verdict(), None
        counts = verdict.counts()
        if self.beside is not None:
            verdict, dead = self.incoming.apart(verdict)
            tombstones, why_spark = _bury(self.beside, self.incoming, dead, txn)
            if why_spark is not None:
                return Merged(why_spark=why_spark)
        plan = self._plan(self._units(files, met, verdict), files, grows=bool(verdict.new.any()))
        extra = self._with_marked(verdict, plan.txns)
        written = {file.path for unit in plan.units for file in unit.files}
        self.reader.forget(file for file in files if file.path not in written)
        writer = FileWriter(self.table.uri, self.table.store, self.incoming.keys)
        added, new = rewrite(plan.units, self.reader, writer, extra)
        text = self._commit(plan, added, counts, txn)
        live = [*(file for file in files if file.path not in written), *new]
        late_rows = tuple(np.flatnonzero(verdict.late_rows).tolist())
        return Merged(counts, late_rows=late_rows, version=self.version + 1, tip=self._tip(text, live, tombstones))

    def _tip(self, text: bytes, live: Sequence[LiveFile], tombstones: MergeTip | None) -> MergeTip | None:
        rules = self.incoming.rules
        if self.beside is not None and tombstones is None:
            return None
        # Marks are made on a table as its log has it.
        if rules.on_read and any(file.size > TINY_BYTES for file in live):
            return None
        # Another writer marks tiny files too.
        if self.on_read is not None and any(file.path in self.on_read.vectors for file in live):
            return None
        about = (self.incoming.keys, rules.purged_until, tombstones)
        return MergeTip.after(self.version + 1, text, self.reader.schema, live, *about)

    def _plan(self, units: list[Unit], files: Sequence[LiveFile], *, grows: bool) -> MergePlan:
        if self.on_read is not None:
            return self.on_read.plan(units, files, grows=grows)
        if self.incoming.rules.on_read and any(is_for_marks(unit, {}) for unit in units):
            raise CommitConflict(f"{self.table.uri} is to be opened, for rows are to be marked in it")
        joins = (self.incoming.rules.small_files or SMALL_FILES) if grows else None
        return MergePlan([], _arranged(units, files, joins))

    def _with_marked(self, verdict: MergeVerdict, txns: Sequence[Unit]) -> pa.Table:
        """The new rows, and the new versions of those that are marked as deleted, in the order of their keys."""
        of_events, versions = verdict.new.copy(), []
        for unit in txns:
            tail = unit.tail[0]
            assert isinstance(tail, Tail)
            if tail.asks_old:
                versions.append(self._versions(unit, tail))
            else:
                of_events[tail.places] = True
        rows = self.incoming.rows.filter(pa.array(of_events))
        return _sorted(pa.concat_tables([rows, *versions]), self.incoming.keys)

    def _versions(self, unit: Unit, tail: Tail) -> pa.Table:
        drop = unit.drop[0]
        assert drop is not None
        old, begin = [], 0
        for piece in self.reader.pieces(unit.files[0]):
            old.append(piece.filter(pa.array(drop[begin : begin + piece.num_rows])))
            begin += piece.num_rows
        return tail(pa.concat_tables(old) if old else None, np.flatnonzero(drop))

    def _meet(self, file: LiveFile) -> tuple[int, Places, Places]:
        """(the file's rows, places in it that an event may replace, those events)."""
        columns = self.reader.part(file, self._needs)
        places, mine, wins = self.incoming.meet(columns)
        return columns.num_rows, places[wins], mine[wins]

    def _needs(self, footer: pq.FileMetaData | None) -> pa.Schema:
        bounds = None if footer is None else event_bounds(footer, self.incoming.metadata)
        return self.incoming.needs(self.reader.schema, bounds)

    def _units(
        self, files: Sequence[LiveFile], met: Mapping[int, tuple[int, Places, Places]], verdict: MergeVerdict
    ) -> list[Unit]:
        takes = verdict.replaces | verdict.removes
        writes = np.full(self.incoming.rows.num_rows, -1, np.int64)
        changes: list[tuple[int, int, Places, Places]] = []
        for number, (rows, old_places, mine) in met.items():
            old_places, mine = old_places[takes[mine]], mine[takes[mine]]
            if len(old_places):
                changes.append((number, rows, old_places, mine))
                # A key that another tool wrote twice: its new version goes to one place.
                writes[mine] = number
        units = []
        for number, rows, old_places, mine in changes:
            drop = np.zeros(rows, bool)
            drop[old_places] = True
            places = np.flatnonzero((writes == number) & verdict.replaces)
            tail = Tail(self.incoming, self.unchanged, places, mine)
            units.append(Unit((replace(files[number], rows=rows),), (drop,), (tail,)))
        return units

    def _commit(self, plan: MergePlan, new: Sequence[DataFile], counts: Counts, txn: Txn) -> bytes:
        version = self.version + 1
        removed = [file for unit in (*plan.units, *plan.txns) for file in unit.files]
        places: list[RemovedFile] = [(file.path, file.size) for file in removed]
        marked: list[Marked] = []
        if self.on_read is not None and self.vectors is not None:
            places = self.on_read.places(removed)
            marked = self.on_read.marked(plan.txns, self.vectors)
        metadata, protocol = self.on_read.upgrade() if self.on_read is not None and marked else (None, None)
        about = _about(counts, len(new), len(removed) - len(marked), len(marked))
        text = commit_text(version - 1, txn, [*new, *marked], places, about=about, metadata=metadata, protocol=protocol)
        if not put_commit(self.table.uri, self.table.store, version, text):
            raise CommitConflict(f"version {version} of {self.table.uri} was written by another writer")
        checkpoint_in_turn(self.table.uri, version, self.table.store)
        return text


def _arranged(units: Sequence[Unit], files: Sequence[LiveFile], joins: int | None) -> list[Unit]:
    """The files to write, the small ones of them together; with them small ones that nobody asked for, once `joins`."""
    paths_taken = {file.path for unit in units for file in unit.files}
    small_files = [f for f in files if f.path not in paths_taken and f.size < SMALL_BYTES]
    small = [unit for unit in units if unit.files[0].size < SMALL_BYTES]
    if joins is not None and len(small_files) >= joins:
        small += [Unit((file,), (None,), (None,)) for file in small_files]
    large = [unit for unit in units if unit.files[0].size >= SMALL_BYTES]
    return [Unit.joined(small), *large] if small else large


def _about(counts: Counts, added: int, removed: int, marked: int) -> dict[str, Any]:
    metrics = {
        "numTargetRowsInserted": counts.inserted,
        "numTargetRowsUpdated": counts.updated,
        "numTargetRowsDeleted": counts.deleted,
        "numTargetFilesAdded": added,
        "numTargetFilesRemoved": removed,
        **({"numTargetDeletionVectorsAdded": marked} if marked else {}),
    }
    texts = {name: str(value) for name, value in metrics.items()}
    return {"operation": "MERGE", "operationParameters": {}, "operationMetrics": texts, "isBlindAppend": False}
