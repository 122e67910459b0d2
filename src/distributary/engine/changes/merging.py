"""Events of a route into its merged table: reduced to the newest per key, then merged under the batch's transaction.

In the task that holds the events (`merge_now`), or out of data files that tasks have written: the parts of a route that
several tasks read, or the log's rows since the last merge (`merge_files`). Files are read a piece at a time and reduced
as they come; where they are many, once per share of the keys (`engine.changes.gather`), each share a merge of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.anew import BegunAnew
from distributary.changes.handed_on import HandedOn
from distributary.changes.model import SourceTable
from distributary.changes.reduce import Reduced, reduce_rows
from distributary.changes.truncates import Truncates, apart
from distributary.changes.unfilled import Unfilled
from distributary.engine.changes.emptying import all_truncates, older_rows, remember, remembering, without_truncates
from distributary.engine.changes.fitting import Fitted, RouteEvents, with_origin
from distributary.engine.changes.gather import Gathered, by_share
from distributary.engine.changes.key_columns import KeyTypes, key_columns, key_types, whole
from distributary.engine.changes.key_shares import key_shares
from distributary.engine.changes.keyed_table import Into, absent, check_keys, hold, with_wider_keys
from distributary.engine.changes.late_upserts import late_upserts
from distributary.engine.changes.log_append import payload_schema
from distributary.engine.changes.log_rows import log_rows
from distributary.engine.changes.orphans import resolve, split
from distributary.engine.changes.recording import record
from distributary.engine.changes.rejected_events import rejected_events
from distributary.engine.changes.task_spec import ORIGIN, ChangeSpec
from distributary.engine.changes.transactions import Asked, log_of
from distributary.engine.memory import give_back
from distributary.engine.outcomes import Merge, Outcome, SourceEvents
from distributary.errors import KeysChanged, LogBegunAnew, Reason
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.engines import by_settings
from distributary.tables.merge import Merged, MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import MergeRules
from distributary.tables.snapshot import Snapshot, Txn
from distributary.tables.table import retried
from distributary.tables.tombstones import with_tombstones


@dataclass(frozen=True)
class MergeWork:
    """Data files in `folder` whose rows are to be merged. `upto`: the newest batch in them that is meant; `after`:
    batches up to this one are merged already. `brought`: columns by schema key. `key_types`: of the
    rows of all files together (`engine.changes.key_columns`)."""

    source: SourceTable
    keys: tuple[str, ...]
    folder: str
    files: tuple[str, ...]
    upto: int
    after: int = -1
    brought: tuple[tuple[str, tuple[str, ...]], ...] = ()
    key_types: KeyTypes = field(default_factory=dict)


def merge_now(
    events: RouteEvents, keys: Sequence[tuple[str, ...]], fitted: Fitted, spec: ChangeSpec, outcome: Outcome
) -> Merge:
    """Merge what a task holds of a route, or say why not now.

    Raises KeysChanged, TableCollision, CommitConflict, TableFault, OSError.
    """
    when = spec.decision(events.source.route).merge
    about, uri = outcome.events, None if outcome.merge is None else outcome.merge.table
    assert about is not None
    if not about.keys:
        return Merge(uri, "append_only")
    if uri is None:
        return Merge()
    if when in ("later", "parked"):
        return Merge(uri, "waiting" if when == "later" else "parked")
    keys = [key_columns(fitted.table.column_names, names) for names in keys]
    if len({frozenset(k) for k in keys}) > 1:
        raise KeysChanged(route=events.source.route, table=uri, known=", ".join(keys[0]), found=", ".join(keys[-1]))
    if when == "rows" or outcome.append.state == "files":
        return Merge(uri, "rows")
    if outcome.append.other:
        # A replay that finds fewer rows than the log took: the log has them all.
        return Merge(uri, "waiting")
    return merge(Into(events.source, uri, about.keys, about.brought), fitted.table, spec, spec.txn)


def merge(into: Into, rows: pa.Table, spec: ChangeSpec, txn: Txn) -> Merge:
    """Reduce `rows` (columns of a log table) and merge them; returns what was done.

    Raises KeysChanged, LogBegunAnew, TableCollision, CommitConflict, TableFault, OSError.
    """
    rows, came = apart(rows)
    into = replace(into, truncates=(*into.truncates, came) if len(came) else into.truncates)
    with of_one_log(into.route, into.uri):
        widened: dict[str, str] = {}
        merged = retried(lambda: _merged(into, rows, spec, txn, widened))
    return replace(merged, widened={**widened, **merged.widened})


def _merged(into: Into, rows: pa.Table, spec: ChangeSpec, txn: Txn, widened: dict[str, str]) -> Merge:
    questions = Asked()
    while True:
        try:
            merged = None if questions else _on_tip(into, rows, spec, txn)
            return merged or _opened(into, rows, spec, txn, widened, questions)
        except HandedOn as e:
            # The table is met file after file, so more may be asked for.
            questions = replace(questions, transactions=questions.transactions | e.transactions)
        except Unfilled as e:
            questions = replace(questions, keys=e.keys)


@contextmanager
def of_one_log(route: str, table: str) -> Iterator[None]:
    """Says of which table it is that two changes cannot be of one log. Raises LogBegunAnew."""
    try:
        yield
    except BegunAnew as e:
        raise LogBegunAnew(route=route, table=table, detail=e.detail, since=e.since) from e


def _on_tip(into: Into, rows: pa.Table, spec: ChangeSpec, txn: Txn) -> Merge | None:
    """Without opening the table, where its newest version is known; None where that does not do."""
    route, named = into.route, spec.named
    tip = spec.merge_tips.get(route)
    # Events that wait for another one look for it in the table.
    if tip is None or spec.waiting.get(route) or into.truncates or by_settings(named.tables, route) is not None:
        return None
    types = key_types(rows.schema, into.keys, tip.arrow_schema())
    if not hold(tip.arrow_schema(), types):
        return None
    rows = whole(rows, types)
    if split(rows, into.keys)[1].num_rows:
        return None
    record(into, rows, spec, txn)
    started = time.monotonic()
    rules = named.rules(into.source, tip.purged_until)
    reduced = reduce_rows(rows, into.keys, rules.order, rules.gaps(absent(rows, into.brought)))
    looked = time.monotonic()
    target = MergeTarget(into.table(spec), None, named.policy(route))
    merged = merge_on_tip(target, tip, _plain(reduced), into.keys, rules, txn)
    if merged is None or merged.why_spark is not None:
        return None
    seconds = {"reduce": looked - started, "merge": time.monotonic() - looked}
    return replace(done_by(into, merged, reduced.rows), seconds=seconds)


def _plain(reduced: Reduced) -> Reduced:
    return replace(reduced, rows=reduced.rows.drop_columns([ORIGIN]))


def _opened(into: Into, rows: pa.Table, spec: ChangeSpec, txn: Txn, widened: dict[str, str], questions: Asked) -> Merge:
    """`widened`: the key columns that got a wider type for this, also where the merge is not done in the end.

    Raises HandedOn, Unfilled where the log is to be asked for more."""
    route, named = into.route, spec.named
    table = into.table(spec).open()
    check_keys(into, table)
    table, types = with_wider_keys(into, table, rows.schema, spec, widened)
    rules = named.rules(into.source, purged_until(table))
    started = time.monotonic()
    events, begun = _identified(into, whole(rows, types), table, spec)
    events, rules = questions.answered(into.source, into.keys, spec, events, types, rules)
    record(into, events, spec, txn)
    truncates = all_truncates(table, into.truncates, rules.order).newest()
    if into.truncates and table is not None:
        remember(table, truncates)
        begun = begun.then(_emptied(into, table, types, truncates, rules, spec, txn))
        table = into.table(spec).open()
    events = truncates.emptied(events, into.keys)
    reduced = reduce_rows(events, into.keys, rules.order, rules.gaps(absent(events, into.brought)))
    looked = time.monotonic()
    begun = replace(begun, truncates=truncates.written() if truncates else "", seconds={"reduce": looked - started})
    if table is not None and table.has(txn):
        late = _late_events(route, late_upserts(reduced.rows, into.keys, rules.purged_until, table))
        return begun.then(replace(into.begun(), late=late))
    # Under the batch's transaction one of the two merges, so with what is left to Spark all is.
    if (why := by_settings(named.tables, route) or begun.why_spark) is None:
        target = MergeTarget(remembering(into.table(spec), truncates), table, named.policy(route))
        merged = merge_rows(target, _plain(reduced), into.keys, rules, txn)
        why = merged.why_spark
    if why is not None:
        return begun.then(_left_to_spark(into, reduced, spec, why))
    if truncates:  # of which the tip does not say
        merged = replace(merged, tip=None)
    return begun.then(replace(done_by(into, merged, reduced.rows), seconds={"merge": time.monotonic() - looked}))


def _emptied(
    into: Into, table: Snapshot, types: KeyTypes, truncates: Truncates, rules: MergeRules, spec: ChangeSpec, txn: Txn
) -> Merge:
    """Delete the table's rows that are older than the newest TRUNCATE."""
    merge, txn = into.begun(), Txn(f"{txn.app_id}+truncate", txn.version)
    why = by_settings(spec.named.tables, into.route)
    for rows in older_rows(table, into.keys, types, truncates, rules.order):
        columns = payload_schema(table.schema)
        reduced = reduce_rows(truncates.deletes(rows, into.keys, columns), into.keys, rules.order)
        target = MergeTarget(into.table(spec), into.table(spec).open(), spec.named.policy(into.route))
        merged = Merged(why_spark=why) if why else merge_rows(target, reduced, into.keys, rules, txn)
        if merged.why_spark is not None:
            merge = merge.then(_left_to_spark(into, reduced, spec, merged.why_spark))
        else:
            merge = merge.then(replace(done_by(into, merged, reduced.rows), tip=None))
    return merge


def done_by(into: Into, merged: Merged, rows: pa.Table | None = None) -> Merge:
    """What a merge of `rows` did. Engine `spark` gives the rows that it could not judge itself."""
    late = _late_events(into.route, merged.late)
    if merged.late_rows and rows is not None:
        late += _late_events(into.route, rows.take(pa.array(merged.late_rows, pa.int64())))
    return replace(
        into.begun(),
        created=merged.created,
        widened=merged.widened,
        tip=merged.tip,
        upserts=merged.counts.inserted + merged.counts.updated,
        deletes=merged.counts.deleted,
        stale=merged.counts.ignored,
        late=late,
    )


def _late_events(route: str, late: pa.Table | None) -> tuple[pa.Table, ...]:
    if late is None or not late.num_rows:
        return ()
    detail = "it is older than the tombstones that have been purged, so nobody can say whether its row was deleted"
    return (_late(route, late, Reason.LATE_EVENT, detail),)


def _left_to_spark(into: Into, reduced: Reduced, spec: ChangeSpec, why: str) -> Merge:
    """The reduced rows wait in a file of ours until Spark has merged them."""
    return Merge(into.uri, "rows", why_spark=why, files=(write_reduced(reduced, spec),))


def write_reduced(reduced: Reduced, spec: ChangeSpec) -> DataFile:
    """Reduced rows as a file of ours, for Spark."""
    rows = reduced.rows
    for column, mask in reduced.unchanged.items():
        rows = rows.append_column(f"{UNSAID}{column}", mask)
    return write_data_file(spec.parts, rows, spec.store)


UNSAID = "_unsaid_"
"""Begins the names of columns that say which rows do not speak of a column; in files on their way to Spark only."""


def _identified(into: Into, rows: pa.Table, table: Snapshot | None, spec: ChangeSpec) -> tuple[pa.Table, Merge]:
    """Rows that all have a key: deletes by ROWID get theirs, those of earlier batches too; who finds none waits."""
    source = into.source
    waiting = spec.waiting.get(source.route, ())
    waiting_rows = [read_event(body) for _, body in waiting]
    rows, orphans = split(rows, into.keys)
    new = orphans.num_rows
    if waiting_rows:
        types = {key: rows.schema.field(key).type for key in into.keys}
        waiting_rows = [whole(event, types) for event in waiting_rows]
        orphans = pa.concat_tables([orphans, *waiting_rows], promote_options="permissive").select(rows.column_names)
    if not orphans.num_rows:
        return rows, into.begun()
    tables = [] if table is None else with_tombstones(table)
    places = [snapshot for snapshot in (*tables, log_of(source, spec)) if snapshot is not None]
    order = pa.array(range(orphans.num_rows), pa.int64())
    place, unresolved = resolve(orphans.append_column("_n", order), rows, into.keys, places)
    numbers = set(place.column("_n").to_pylist())
    late: tuple[pa.Table, ...] = ()
    if unresolved.num_rows and (unknown := unresolved.filter(pc.less(unresolved.column("_n"), new))).num_rows:
        detail = "no event with its row_id and transaction has come yet"
        late = (_late(source.route, unknown.drop_columns(["_n"]), Reason.ROW_NOT_FOUND, detail),)
    resolved = tuple(waiting[n - new][0] for n in numbers if n >= new)
    return pa.concat_tables([rows, place.drop_columns(["_n"])]), replace(into.begun(), late=late, resolved=resolved)


def _late(route: str, rows: pa.Table, reason: Reason, detail: str) -> pa.Table:
    """Rows that are in the log, but cannot be merged now; each whole, so that it can be merged later."""
    origin = rows.column(ORIGIN).combine_chunks()
    values = pa.array([write_event(rows.slice(n, 1)) for n in range(rows.num_rows)], pa.binary())
    return rejected_events(route, origin, reason, detail, values, level="merge")


def write_event(row: pa.Table) -> bytes:
    """One row with its schema (Arrow IPC)."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_table(row)
    return bytes(sink.getvalue().to_pybytes())


def read_event(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


def merge_files(work: MergeWork, spec: ChangeSpec) -> Outcome:
    """Merge the rows of data files. Never raises for a fault of the table."""
    outcome = begun_merge(work.source, work.keys, spec, work.brought)
    assert outcome.merge is not None
    merged = outcome.merge
    into = Into(work.source, merged.table or "", work.keys, dict(work.brought))
    try:
        rows_of_files = log_rows(work.folder, work.files, spec.store, None, work.after, work.upto)
        truncates: list[pa.Array] = []
        pieces = (whole(piece, work.key_types) for piece in without_truncates(rows_of_files, truncates))
        shares = key_shares(work.folder, work.files, work.keys, work.key_types, spec.store)
        any_rows, order = False, spec.named.order(work.source)
        for share in by_share(pieces, shares):
            with of_one_log(into.route, into.uri):
                rows = _gathered(work, share.pieces, spec)
            if rows is not None:
                any_rows = True
                # The last commit carries the batch's own transaction: what comes before it is done again, or found.
                last = share.is_last and merged.why_spark is None
                app = spec.app if last else f"{spec.app}+{shares.name(share.number, order)}"
                # All files have been read by now, so that the TRUNCATEs of all of them are at hand.
                into = replace(into, truncates=tuple(truncates))
                merged = merged.then(merge(into, rows, spec, Txn(app, work.upto)))
        table = into.table(spec).open() if truncates and not any_rows else None
        if table is not None:
            into, columns = replace(into, truncates=tuple(truncates)), with_origin(payload_schema(table.schema))
            merged = merged.then(merge(into, columns.empty_table(), spec, Txn(spec.app, work.upto)))
    except BaseException as e:
        merged = merged.parked(e)
    finally:
        give_back()
    return replace(outcome, merge=merged)


def begun_merge(
    source: SourceTable,
    keys: tuple[str, ...],
    spec: ChangeSpec,
    brought: Iterable[tuple[str, tuple[str, ...]]] = (),
) -> Outcome:
    """The outcome of a merge out of a log to which nothing has happened yet."""
    named = spec.named
    log, merged = named.log(source), named.merged(source)
    about = SourceEvents(source, keys, log is not None, brought=dict(brought), keeps=named.keeps)
    return Outcome(source.route, log or merged or "", merge=Merge(merged, "merged"), events=about)


def _gathered(work: MergeWork, pieces: Iterator[pa.Table], spec: ChangeSpec) -> pa.Table | None:
    """The newest event of each key, and all deletes by ROWID; None where no row is to be merged."""
    rules = spec.named.rules(work.source, None)
    every = rules.is_partial or spec.named.history(work.source) is not None
    gathered = Gathered(work.keys, rules.order, keeps_all=every)
    orphans: list[pa.Table] = []
    for piece in pieces:
        rows, lost = split(piece, work.keys)
        gathered.add(rows)
        orphans += [lost] if lost.num_rows else []
    newest = gathered.rows()
    tables = orphans if newest is None else [newest, *orphans]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


HORIZON = "distributary.purgedUntil"
"""Table property: source time in ms up to which tombstones have been removed."""


def purged_until(table: Snapshot | None) -> int | None:
    """Source time (ms) before which an event of an unknown key cannot be judged."""
    text = None if table is None else table.properties.get(HORIZON)
    return None if text is None else int(text)
