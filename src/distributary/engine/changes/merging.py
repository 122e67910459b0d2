"""Events of a route into its merged table: reduced to the newest per key, then merged under the batch's mark.

In the task that holds the events (`merge_now`), or out of data files that tasks have written: the parts of a route that
several tasks read, or the log's rows since the last merge (`merge_files`). Files are read a piece at a time and reduced
as they come; where they are many, once per share of the keys (`engine.changes.gather`), each share a merge of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.anew import BegunAnew
from distributary.changes.model import SourceTable
from distributary.changes.reduce import Reduced, reduce_rows
from distributary.engine.changes.fitting import RESERVED, Fitted, RouteEvents
from distributary.engine.changes.gather import Gathered, by_share
from distributary.engine.changes.keys import KeyTypes, key_columns, key_types, whole, with_types
from distributary.engine.changes.logs import log_rows
from distributary.engine.changes.orders import ORIGIN, ChangeOrders, ChangeOutcome
from distributary.engine.changes.orphans import resolve, split
from distributary.engine.changes.rejected import rejected_events
from distributary.engine.changes.unjudged import unjudged
from distributary.errors import KeysChanged, KeyTypeChanged, LogBegunAnew, Reason
from distributary.tables.datafile import write_data_file
from distributary.tables.engines import by_settings, spark_needed
from distributary.tables.evolve import common_type, widened_in_words
from distributary.tables.merge import Merged, Target, merge_on_tip, merge_rows
from distributary.tables.rewrite import rewrite_wider
from distributary.tables.snapshot import Mark, Snapshot
from distributary.tables.table import Table, retried


@dataclass(frozen=True)
class MergeWork:
    """Data files in `folder` whose rows are to be merged. `upto`: the newest batch in them that is meant; `after`:
    batches up to this one are merged already. `brought`: columns by schema key. `shares`: of the keys. `key_types`: of
    the rows of all files together (`engine.changes.keys`)."""

    source: SourceTable
    keys: tuple[str, ...]
    folder: str
    files: tuple[str, ...]
    upto: int
    after: int = -1
    brought: tuple[tuple[str, tuple[str, ...]], ...] = ()
    shares: int = 1
    key_types: KeyTypes = field(default_factory=dict)


def merge_now(
    events: RouteEvents, keys: Sequence[tuple[str, ...]], fitted: Fitted, orders: ChangeOrders, outcome: ChangeOutcome
) -> None:
    """Merge what a task holds of a route, or say why not now.

    Raises KeysChanged, TableCollision, CommitConflict, TableFault, OSError.
    """
    order = orders.order(events.source.route)
    if outcome.merged is None:
        outcome.merge_state = "off" if outcome.keys else "append_only"
        return
    if not outcome.keys:
        outcome.merge_state = "append_only"
        return
    if order.merge in ("later", "parked"):
        outcome.merge_state = "waiting" if order.merge == "later" else "parked"
        return
    keys = [key_columns(fitted.table.column_names, names) for names in keys]
    if len({frozenset(k) for k in keys}) > 1:
        raise KeysChanged(
            route=events.source.route, table=outcome.merged, known=", ".join(keys[0]), found=", ".join(keys[-1])
        )
    if order.merge == "rows" or outcome.state == "files":
        outcome.merge_state = "rows"
        return
    if outcome.changed:
        # A replay that finds fewer rows than the log took: the log has them all.
        outcome.merge_state = "waiting"
        return
    merge(events.source, fitted.table, orders, outcome, orders.mark)
    if outcome.state == "empty":
        # Without a log table, what is merged is what was written.
        outcome.state = "written"


def merge(source: SourceTable, rows: pa.Table, orders: ChangeOrders, outcome: ChangeOutcome, mark: Mark) -> None:
    """Reduce `rows` (columns of a log table) and merge them; enters what was done into `outcome`.

    Raises KeysChanged, LogBegunAnew, TableCollision, CommitConflict, TableFault, OSError.
    """
    with of_one_log(source.route, outcome.merged or ""):
        retried(lambda: _merge(source, rows, orders, outcome, mark))


@contextmanager
def of_one_log(route: str, table: str) -> Iterator[None]:
    """Says of which table it is that two changes cannot be of one log. Raises LogBegunAnew."""
    try:
        yield
    except BegunAnew as e:
        raise LogBegunAnew(route=route, table=table, detail=e.detail, since=e.since) from e


def _merge(source: SourceTable, rows: pa.Table, orders: ChangeOrders, outcome: ChangeOutcome, mark: Mark) -> None:
    outcome.late, outcome.resolved = [], []
    if not _on_tip(source, rows, orders, outcome, mark):
        _opened(source, rows, orders, outcome, mark)


def _on_tip(source: SourceTable, rows: pa.Table, orders: ChangeOrders, outcome: ChangeOutcome, mark: Mark) -> bool:
    """Without opening the table, where its newest version is known; False where that does not do."""
    route, named = source.route, orders.named
    tip = orders.merge_tips.get(route)
    # Events that wait for another one look for it in the table.
    if tip is None or orders.waiting.get(route) or by_settings(named.tables, route) is not None:
        return False
    types = key_types(rows.schema, outcome.keys, tip.arrow_schema())
    if not _hold(tip.arrow_schema(), types):
        return False
    rows = whole(rows, types)
    if split(rows, outcome.keys)[1].num_rows:
        return False
    assert outcome.merged is not None
    started = time.monotonic()
    rules = named.rules(source, tip.horizon)
    reduced = reduce_rows(rows, outcome.keys, rules.order, rules.gaps(absent(rows, outcome.brought)))
    outcome.seconds["reduce"] = time.monotonic() - started
    target = Target(orders.target(outcome.merged, route, outcome.keys), None, named.policy(route))
    merged = merge_on_tip(target, tip, _plain(reduced), outcome.keys, rules, mark)
    if merged is None or merged.why_spark is not None:
        return False
    outcome.seconds["merge"] = time.monotonic() - started - outcome.seconds["reduce"]
    take_merged(outcome, merged, reduced.rows)
    return True


def _plain(reduced: Reduced) -> Reduced:
    return replace(reduced, rows=reduced.rows.drop_columns([ORIGIN]))


def _opened(source: SourceTable, rows: pa.Table, orders: ChangeOrders, outcome: ChangeOutcome, mark: Mark) -> None:
    uri, route, named = outcome.merged, source.route, orders.named
    assert uri is not None
    place = orders.target(uri, route, outcome.keys)
    table = place.open()
    _check_keys(uri, route, table, outcome.keys)
    table, types = _with_wider_keys(place, route, table, rows.schema, orders, outcome)
    rules = named.rules(source, horizon(table))
    started = time.monotonic()
    events = _identified(source, whole(rows, types), table, orders, outcome)
    reduced = reduce_rows(events, outcome.keys, rules.order, rules.gaps(absent(events, outcome.brought)))
    outcome.seconds["reduce"] = time.monotonic() - started
    if table is not None and table.has(mark):
        outcome.merge_state = "merged"
        _set_aside(outcome, unjudged(reduced.rows, outcome.keys, rules.horizon, table))
        return
    if (why := by_settings(named.tables, route)) is None:
        target = Target(place, table, named.policy(route))
        merged = merge_rows(target, _plain(reduced), outcome.keys, rules, mark)
        why = merged.why_spark
    if why is not None:
        _leave_to_spark(reduced, orders, outcome, why)
        return
    outcome.seconds["merge"] = time.monotonic() - started - outcome.seconds["reduce"]
    take_merged(outcome, merged, reduced.rows)


def _hold(merged: pa.Schema, types: KeyTypes) -> bool:
    """Do the table's key columns have these types?"""
    return all(merged.field(key).type == kind for key, kind in types.items() if key in merged.names)


def _with_wider_keys(
    place: Table, route: str, table: Snapshot | None, rows: pa.Schema, orders: ChangeOrders, outcome: ChangeOutcome
) -> tuple[Snapshot | None, KeyTypes]:
    """The merged table with key columns that hold the keys of `rows` too, and the types of these.

    Raises KeyTypeChanged, CommitConflict, TableFault, OSError.
    """
    if table is None:
        return None, key_types(rows, outcome.keys)
    before = table.schema
    types = key_types(rows, outcome.keys, before)
    if _hold(before, types):
        return table, types
    policy = orders.named.policy(route)
    why = by_settings(orders.named.tables, route) or spark_needed(table, removes=True)
    if why is None:
        after = with_types(before, types)
        rewrite_wider(place.uri, before, after, orders.store)
        outcome.widened = {**outcome.widened, **widened_in_words(before, after)}
        return place.open(), types
    for key, kind in types.items():
        known = before.field(key).type if key in before.names else kind
        if common_type(known, kind) is None or policy.type_change != "widen" or not policy.can_widen:
            remedy = f"distributary resync FILE --route {route}"
            if spark_needed(table):
                remedy = f"remove the table, then {remedy}"
            raise KeyTypeChanged(
                route=route, table=place.uri, column=key, known=str(known), needed=str(kind), why=why, remedy=remedy
            )
    return table, types


def take_merged(outcome: ChangeOutcome, merged: Merged, rows: pa.Table | None = None) -> None:
    """Enter what a merge of `rows` did. Engine `spark` gives the rows that it could not judge itself."""
    outcome.merge_state, outcome.merge_created = "merged", merged.created
    outcome.upserts, outcome.deletes = merged.counts.inserted + merged.counts.updated, merged.counts.deleted
    outcome.stale, outcome.merge_tip = merged.counts.ignored, merged.tip
    outcome.widened = {**outcome.widened, **merged.widened}
    _set_aside(outcome, merged.late)
    if merged.unjudged and rows is not None:
        _set_aside(outcome, rows.take(pa.array(merged.unjudged, pa.int64())))


def _set_aside(outcome: ChangeOutcome, late: pa.Table | None) -> None:
    if late is not None and late.num_rows:
        detail = "it is older than the tombstones that have been purged, so nobody can say whether its row was deleted"
        outcome.late.append(_late(outcome.route, late, Reason.LATE_EVENT, detail))


def _leave_to_spark(reduced: Reduced, orders: ChangeOrders, outcome: ChangeOutcome, why: str) -> None:
    """The reduced rows wait in a file of ours until Spark has merged them."""
    rows = reduced.rows
    for column, mask in reduced.unsaid.items():
        rows = rows.append_column(f"{UNSAID}{column}", mask)
    outcome.merge_state, outcome.merge_spark = "rows", why
    outcome.merge_files = [write_data_file(orders.parts, rows, orders.store)]


UNSAID = "_unsaid_"
"""Begins the names of columns that say which rows do not speak of a column; in files on their way to Spark only."""


def _identified(
    source: SourceTable, rows: pa.Table, table: Snapshot | None, orders: ChangeOrders, outcome: ChangeOutcome
) -> pa.Table:
    """Rows that all have a key: deletes by ROWID get theirs, those of earlier batches too; who finds none waits."""
    waiting = orders.waiting.get(source.route, ())
    held = [read_event(body) for _, body in waiting]
    rows, orphans = split(rows, outcome.keys)
    new = orphans.num_rows
    if held:
        types = {key: rows.schema.field(key).type for key in outcome.keys}
        held = [whole(one, types) for one in held]
        orphans = pa.concat_tables([orphans, *held], promote_options="permissive").select(rows.column_names)
    if not orphans.num_rows:
        return rows
    places = [found for found in (table, _log_of(source, orders)) if found is not None]
    order = pa.array(range(orphans.num_rows), pa.int64())
    found, left = resolve(orphans.append_column("_n", order), rows, outcome.keys, places)
    numbers = set(found.column("_n").to_pylist())
    outcome.resolved = [waiting[n - new][0] for n in numbers if n >= new]
    if left.num_rows and (unknown := left.filter(pc.less(left.column("_n"), new))).num_rows:
        detail = "no event with its row_id and transaction has come yet"
        outcome.late.append(_late(source.route, unknown.drop_columns(["_n"]), Reason.ROW_NOT_FOUND, detail))
    return pa.concat_tables([rows, found.drop_columns(["_n"])])


def _log_of(source: SourceTable, orders: ChangeOrders) -> Snapshot | None:
    uri = orders.named.log(source)
    return None if uri is None else Table(uri, orders.store).open()


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


def merge_files(work: MergeWork, orders: ChangeOrders) -> ChangeOutcome:
    """Merge the rows of data files. Never raises for a fault of the table."""
    source = work.source
    outcome = begun_merge(source, work.keys, orders, work.brought)
    try:
        rows_of_files = log_rows(work.folder, work.files, orders.store, None, work.after, work.upto)
        pieces = (whole(piece, work.key_types) for piece in rows_of_files)
        for number, share in enumerate(by_share(pieces, work.keys, work.shares)):
            with of_one_log(source.route, outcome.merged or ""):
                rows = _gathered(work, share, orders)
            if rows is not None:
                # The last commit carries the batch's own mark: what comes before it is done again, or found.
                last = number == work.shares - 1 and outcome.merge_spark is None
                app = orders.app if last else f"{orders.app}+share {number} of {work.shares}"
                _merge_share(source, rows, orders, outcome, Mark(app, work.upto))
    except BaseException as e:
        outcome.park_merge(e)
    return outcome


def begun_merge(
    source: SourceTable,
    keys: tuple[str, ...],
    orders: ChangeOrders,
    brought: Iterable[tuple[str, tuple[str, ...]]] = (),
) -> ChangeOutcome:
    """The outcome of a merge out of a log to which nothing has happened yet."""
    named = orders.named
    log, merged = named.log(source), named.merged(source)
    return ChangeOutcome(
        source.route,
        log or merged or "",
        "empty",
        source=source,
        keys=keys,
        merged=merged,
        merge_state="merged",
        has_log=log is not None,
        brought=dict(brought),
        keeps=named.keeps,
    )


def _merge_share(source: SourceTable, rows: pa.Table, orders: ChangeOrders, outcome: ChangeOutcome, mark: Mark) -> None:
    """As `merge`, on top of what the shares before did."""
    done = replace(outcome, late=[], resolved=[], merge_files=[], seconds={}, upserts=0, deletes=0, stale=0)
    merge(source, rows, orders, done, mark)
    outcome.merge_state = "rows" if "rows" in (outcome.merge_state, done.merge_state) else done.merge_state
    outcome.merge_spark = outcome.merge_spark or done.merge_spark
    outcome.merge_created = outcome.merge_created or done.merge_created
    outcome.merge_tip = done.merge_tip
    for name in ("late", "resolved", "merge_files", "upserts", "deletes", "stale"):
        setattr(outcome, name, getattr(outcome, name) + getattr(done, name))
    for name, seconds in done.seconds.items():
        outcome.seconds[name] = outcome.seconds.get(name, 0.0) + seconds


def _gathered(work: MergeWork, pieces: Iterator[pa.Table], orders: ChangeOrders) -> pa.Table | None:
    """The newest event of each key, and all deletes by ROWID; None where no row is to be merged."""
    rules = orders.named.rules(work.source, None)
    held = Gathered(work.keys, rules.order, whole=rules.is_partial)
    orphans: list[pa.Table] = []
    for piece in pieces:
        rows, lost = split(piece, work.keys)
        held.add(rows)
        orphans += [lost] if lost.num_rows else []
    newest = held.rows()
    found = orphans if newest is None else [newest, *orphans]
    return pa.concat_tables(found, promote_options="permissive") if found else None


def _check_keys(uri: str, route: str, table: Snapshot | None, keys: tuple[str, ...]) -> None:
    """Raises KeysChanged when the table's rows are told apart by other columns."""
    known = table.owner if table is not None else None
    if known is not None and known.keys and set(known.keys) != set(keys):
        raise KeysChanged(route=route, table=uri, known=", ".join(known.keys), found=", ".join(keys))


HORIZON = "distributary.purgedUntil"
"""Table property: source time in ms up to which tombstones have been removed."""


def horizon(table: Snapshot | None) -> int | None:
    """Source time (ms) before which an event of an unknown key cannot be judged."""
    text = None if table is None else table.properties.get(HORIZON)
    return None if text is None else int(text)


def absent(rows: pa.Table, brought: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Schema key -> columns that its events do not speak of."""
    names = [n for n in rows.column_names if n not in RESERVED]
    return {key: [n for n in names if n not in set(said)] for key, said in brought.items()}
