"""A pipeline's state, gathered from its ledger, quarantine, checkpoint, lock and source. Changes nothing."""

from __future__ import annotations

import fcntl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from distributary.audit.recount import QuarantineCount, count_quarantine
from distributary.audit.status.lag import pipeline_lag
from distributary.config import Pipeline
from distributary.errors import Exit, Reason
from distributary.names import shown
from distributary.sources.port import SourceLag
from distributary.state.divisions import current_parts, parts
from distributary.state.ledger import Entry, Ledger, is_batch, read_entries, totals
from distributary.state.refused import is_refused, last_with_rows, refused_rows
from distributary.state.streams import StreamRecord, StreamState, read_streams
from distributary.supervisor.stream_table import attention_line
from distributary.tables.faults import reading
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store, local_path
from distributary.tables.table import Table

QUARANTINED = "quarantined"


@dataclass(frozen=True)
class TableStatus:
    """One table. Times are ISO 8601 in UTC.

    `state`: of its newest batch: written, replayed, parked, empty (it had no rows for the table), or quarantined: rows
    came, and more than half of them were. `refused`: rows of its last batch with rows that were. `age_sec`: since rows
    were written last. `lag_sec`: how old its newest record is, by the time at the source, which need not be now.
    Of change files, `table` is the log table, `merged` the merged one, and `merge_state` one of merged, waiting (until
    the next merge), parked, append_only (the source table has no key), off. Of messages with keys `merged` is the table
    with the newest of each key, `table` its log, or the same. `history`: the table of all versions. `upserts`,
    `deletes`: rows that were written to `merged` and deleted, one per key and batch; `stale`: keys of batches for which
    it had a newer event.
    `lag_rows`: rows that wait in the quarantine because the table could not be written; `quarantined`: all rows of this
    route that are there. `failures`, `retry_at`, `error`: of a parked table. `warnings`: rows that were written and
    break an expectation, by its name, or that hold an extension, which has no column. `decoders`: which library reads
    the rows of each schema id: ptars, or protobuf (exact and slow); avro, or fastavro. `widened`: columns
    that got a wider type: `score` -> `int -> bigint`. `reasons`: of the rows that are in the quarantine.
    """

    route: str
    table: str | None
    engine: str
    state: str
    rows: int
    last_batch: int | None
    last_write: str | None
    age_sec: float | None
    lag_sec: float | None
    lag_rows: int
    quarantined: int
    failures: int = 0
    retry_at: str | None = None
    error: str | None = None
    merged: str | None = None
    merge_state: str | None = None
    history: str | None = None
    upserts: int = 0
    deletes: int = 0
    stale: int = 0
    warnings: Mapping[str, int] = field(default_factory=dict)
    decoders: Mapping[int, str] = field(default_factory=dict)
    widened: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0

    @property
    def is_well(self) -> bool:
        """Does it take its rows in?"""
        return self.state not in ("parked", QUARANTINED)


@dataclass(frozen=True)
class Status:
    """The pipeline. `running` and `lag_rows` (rows that wait at the source) are None where nobody can say; change files
    that wait are counted in `files_waiting` and `bytes_waiting`.

    `attention`: what somebody should look at, in words; `notes`: what could not be found out, and why. `streams`:
    of the supervisor, where one runs or ran.
    """

    pipeline: str
    at: str
    running: bool | None
    last_batch: int | None
    finished_at: str | None
    lag_rows: int | None
    rows: int
    quarantined: int
    tables: tuple[TableStatus, ...]
    attention: tuple[str, ...]
    notes: tuple[str, ...]
    streams: tuple[StreamRecord, ...] = ()
    files_waiting: int | None = None
    bytes_waiting: int | None = None
    all_quarantined: bool = False
    """More than half of the rows of the newest batch that had any."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Of the rows that are in the quarantine, those without a route included."""

    @property
    def parked(self) -> tuple[str, ...]:
        """Routes whose table is parked."""
        return tuple(t.route for t in self.tables if t.state == "parked")

    @property
    def exit_code(self) -> Exit:
        """ATTENTION where a table or the whole pipeline does not take its rows in: parked, fallen, or most of them
        quarantined."""
        return Exit.ATTENTION if self.unwell else Exit.OK

    @property
    def unwell(self) -> tuple[str, ...]:
        """What is not well, in a few words each; nothing where all is. The exit code says the same."""
        fallen = sum(s.state in (StreamState.PARKED, StreamState.RESTING) for s in self.streams)
        refused = sum(t.state == QUARANTINED for t in self.tables)
        counts = ((len(self.parked), "parked"), (refused, "refused"))
        reasons_found = [f"{number:,} table{'' if number == 1 else 's'} {words}" for number, words in counts if number]
        if fallen:
            reasons_found.append(f"{fallen:,} stream{'' if fallen == 1 else 's'} fallen")
        if self.all_quarantined:
            reasons_found.append("the last batch was refused")
        return tuple(reasons_found)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


OpenBooks = Callable[[Pipeline, Store], tuple[list[Entry], QuarantineCount]]
Lag = Callable[[Pipeline, Store], SourceLag]


def status(
    config: Pipeline,
    *,
    now: Callable[[], float] = time.time,
    books: OpenBooks | None = None,
    lag_of: Lag = pipeline_lag,
) -> Status:
    """The state of a pipeline at this moment. `now`: seconds since 1970.

    `books`, `lag_of`: how a layout that keeps its quarantine or its checkpoint elsewhere is read.
    Raises StoreUnreadable when its state folder cannot be read; a source that is down is a note.
    """
    store = Store.of(config.tables)
    with reading(config.state_root):
        entries, quarantine = (books or _books)(config, store)
        running_parts = current_parts(config, store)
        lag = lag_of(config, store)
        streams = _streams(config, store)
    now_sec = now()
    tables = _tables(config, entries, quarantine, now_sec)
    last = max(_last_of_streams(entries), key=lambda e: e.finished_at, default=None)
    running = None if config.source.is_given else _any_runs(running_parts)  # a query of whoever has the DataFrame
    batch = _newest_batch(entries)
    return Status(
        pipeline=config.pipeline,
        at=_iso(int(now_sec * 1e6)) or "",
        running=running,
        last_batch=last.batch if last else None,
        finished_at=_iso(last.finished_at) if last else None,
        lag_rows=lag.rows,
        rows=sum(t.rows for t in tables),
        quarantined=quarantine.rows.total(),
        tables=tuple(tables),
        attention=(*_attention(tables, batch, quarantine, running, lag), *filter(None, map(attention_line, streams))),
        notes=(*((lag.note,) if lag.note else ()), *_append_only(tables)),
        streams=streams,
        files_waiting=lag.files,
        bytes_waiting=lag.bytes,
        all_quarantined=is_refused(batch) and quarantine.rows.total() > 0,
        reasons=_reasons(quarantine),
    )


def _books(config: Pipeline, store: Store) -> tuple[list[Entry], QuarantineCount]:
    """The ledgers and the quarantines of all streams that the pipeline has had, added up."""
    entries_of_all: list[Entry] = []
    quarantine_count = QuarantineCount()
    for stream_config in parts(config, store):
        entries = read_entries(stream_config.state_root, store)
        ledger = Ledger(stream_config.state_root, stream_config.pipeline, store, entries)

        def is_finished(stream: str, batch: int, ledger: Ledger = ledger) -> bool:
            return is_batch(stream) or ledger.is_finished(stream, batch)

        quarantine = quarantine_uri(stream_config.state_root)
        quarantine_count.add(count_quarantine(Table(quarantine, store).open(), quarantine, store, entries, is_finished))
        entries_of_all += entries
    return entries_of_all, quarantine_count


def _streams(config: Pipeline, store: Store) -> tuple[StreamRecord, ...]:
    """What the supervisor wrote last; where it is gone, its streams are gone with it."""
    records = read_streams(config.state_root, store)
    if is_running(config.state_root, "supervisor") is not False:
        return tuple(records)
    alive = (StreamState.RUNNING, StreamState.RESTING, StreamState.WAITING)
    why = "the supervisor ended without stopping it"
    return tuple(
        replace(r, state=StreamState.STOPPED, pid=None, next_try=None, error=r.error or why) if r.state in alive else r
        for r in records
    )


def _any_runs(running: Sequence[Pipeline]) -> bool | None:
    answers = [is_running(stream.state_root) for stream in running]
    return None if None in answers else any(answers)


def is_running(state_root: str, name: str = "run") -> bool | None:
    """Does a process hold the pipeline's lock `name` (lock.only_run)? None for an object store, which has no locks."""
    folder = local_path(state_root)
    if folder is None:
        return None
    try:
        with open(folder / f"{name}.lock", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _tables(config: Pipeline, entries: Sequence[Entry], quarantine: QuarantineCount, now: float) -> list[TableStatus]:
    written: dict[str | None, Entry] = {e.route: e for e in entries if e.rows_written > 0}
    newest = last_with_rows(entries)
    sums = totals(entries)
    routes = sorted(route for route in sums if route is not None)
    tables = []
    for route in routes:
        # The last batch or replay that had rows of this route.
        last = [newest[route]] if route in newest else []
        entry = _judged(sums[route], last)
        table = _table(route, entry, written.get(route), quarantine, now)
        history = None if entry.merged is None else _history_of(config, entry)
        tables.append(replace(table, refused=max(0, refused_rows(last)), history=history))
    return tables


def _judged(entry: Entry, last: Sequence[Entry]) -> Entry:
    return replace(entry, state=QUARANTINED) if entry.state != "parked" and is_refused(last) else entry


def _table(route: str, entry: Entry, last: Entry | None, quarantine: QuarantineCount, now: float) -> TableStatus:
    parked = entry.state == "parked"
    return TableStatus(
        route=route,
        table=entry.table,
        engine=entry.engine,
        state=entry.state,
        rows=entry.rows_written,
        last_batch=last.batch if last else None,
        last_write=_iso(last.finished_at) if last else None,
        age_sec=None if last is None else round(max(0.0, now - last.finished_at / 1e6), 3),
        lag_sec=None if entry.newest is None else round(max(0.0, now - entry.newest / 1e6), 3),
        lag_rows=quarantine.reasons[route, Reason.TABLE_PARKED.value],
        quarantined=quarantine.rows[route],
        failures=entry.failures if parked else 0,
        retry_at=_iso(entry.retry_at) if parked else None,
        error=entry.error if parked else None,
        merged=entry.merged,
        merge_state=entry.merge_state,
        upserts=entry.upserts,
        deletes=entry.deletes,
        stale=entry.stale,
        warnings=dict(entry.warnings),
        decoders=dict(entry.decoders),
        widened=dict(entry.widened),
        reasons=_reasons(quarantine, route),
    )


def _reasons(quarantine: QuarantineCount, *routes: str) -> dict[str, int]:
    """Reason -> rows that are set aside, the most first: of some routes, or of all rows."""
    counts: Counter[str] = Counter()
    for (route, reason), rows in quarantine.reasons.items():
        if not routes or route in routes:
            counts[reason] += rows
    return dict(counts.most_common())


def _append_only(tables: Sequence[TableStatus]) -> list[str]:
    return [
        f"{shown(t.route)} has no key: its events are only appended, to {t.table}"
        for t in tables
        if t.merge_state == "append_only"
    ]


def _attention(
    tables: Sequence[TableStatus],
    newest: Sequence[Entry],
    quarantine: QuarantineCount,
    running: bool | None,
    lag: SourceLag,
) -> list[str]:
    sentences = [
        f"the table of {shown(t.route)} is parked after {t.failures} failed attempt{'' if t.failures == 1 else 's'}, "
        f"{t.lag_rows} rows wait for it, tried again after the first batch from {t.retry_at} on: {shown(t.error, 1000)}"
        for t in tables
        if t.state == "parked"
    ]
    refused_count = refused_rows(newest)
    refused = is_refused(newest) and quarantine.rows.total() > 0
    if refused:
        rows = sum(e.rows_in for e in newest)
        none = ", and none in a table" if refused_count == rows else ""
        which = f"all {rows}" if refused_count == rows else f"{refused_count} of {rows}"
        sentences.append(f"{which} rows of the last batch are in the quarantine{none}")
    sentences += [
        f"most or all rows of {shown(t.route)} in its last batch ({t.refused}) are in the quarantine"
        for t in tables
        if t.state == QUARANTINED and not refused
    ]
    bad = {reason: rows for reason, rows in _reasons(quarantine).items() if reason != Reason.TABLE_PARKED}
    if bad:
        growing = f", {refused_count} of them from the last batch" if refused_count > 0 else ""
        why = ", ".join(f"{reason} {rows}" for reason, rows in bad.items())
        sentences.append(
            f"{sum(bad.values())} rows are in the quarantine{growing} ({why}). What to do: distributary quarantine "
            "FILE; then: distributary replay FILE"
        )
    if running is False and lag.rows:
        sentences.append(f"the pipeline is not running, and {lag.rows} rows wait at the source")
    if running is False and lag.files:
        sentences.append(f"the pipeline is not running, and {lag.files} files wait at the source")
    return sentences


def _newest_batch(entries: Sequence[Entry]) -> list[Entry]:
    """Of all streams, the entries of the last batch that had rows, or of the last one where none has had any."""
    own_entries = [e for e in entries if e.route is None and is_batch(e.stream)]
    by_batch: dict[tuple[str, int], list[Entry]] = {(e.stream, e.batch): [] for e in own_entries}
    for entry in entries:
        by_batch.get((entry.stream, entry.batch), []).append(entry)
    filled = [e for e in own_entries if sum(route_entry.rows_in for route_entry in by_batch[e.stream, e.batch])]
    last = max(_last_of_streams(filled or own_entries), key=lambda e: e.finished_at, default=None)
    return [] if last is None else by_batch[last.stream, last.batch]


def _last_of_streams(entries: Sequence[Entry]) -> list[Entry]:
    """Each stream's own entry of its last batch. Only among streams side by side does the clock say which is newer."""
    return list({e.stream: e for e in entries if e.route is None and is_batch(e.stream)}.values())


def _iso(micros: int | None) -> str | None:
    if micros is None:
        return None
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _history_of(config: Pipeline, entry: Entry) -> str | None:
    # All that there is of change events comes with it: half of what `status` of plain tables would import.
    from distributary.engine.changes.table_settings import history_of

    return history_of(config, entry.about, entry.table)
