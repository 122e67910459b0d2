"""A pipeline's state, gathered from its ledger, quarantine, checkpoint, lock and source. Changes nothing."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from deltalake.exceptions import DeltaError

from distributary.config import Pipeline
from distributary.errors import Exit, Reason, StoreUnreadable
from distributary.recount import Kept, count_quarantine
from distributary.state.ledger import Entry, Ledger, is_batch, totals
from distributary.status.lag import SourceLag, source_lag
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store, local_path


@dataclass(frozen=True)
class TableStatus:
    """One table. Times are ISO 8601 in UTC.

    `state`: of its newest batch: written, replayed, empty or parked. `lag_sec`: how old its newest record is.
    `lag_rows`: rows that wait in the quarantine because the table could not be written; `quarantined`: all rows of this
    route that are there. `failures`, `retry_at`, `error`: of a parked table.
    """

    route: str
    table: str | None
    engine: str
    state: str
    rows: int
    last_batch: int | None
    last_write: str | None
    lag_sec: float | None
    lag_rows: int
    quarantined: int
    failures: int = 0
    retry_at: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Status:
    """The pipeline. `running` and `lag_rows` (rows that wait at the source) are None where nobody can say.

    `attention`: what somebody should look at, in words; `notes`: what could not be found out, and why.
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

    @property
    def parked(self) -> tuple[str, ...]:
        """Routes whose table is parked."""
        return tuple(t.route for t in self.tables if t.state == "parked")

    @property
    def exit_code(self) -> Exit:
        return Exit.ATTENTION if self.parked else Exit.OK

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def status(config: Pipeline, *, now: Callable[[], float] = time.time) -> Status:
    """The state of a pipeline at this moment. `now`: seconds since 1970.

    Raises StoreUnreadable when its state folder cannot be read; a source that is down is a note.
    """
    store = Store.of(config.tables)
    try:
        ledger = Ledger(config.state_root, config.pipeline, store)
        entries = ledger.entries()
        quarantine = quarantine_uri(config.state_root)
        kept = count_quarantine(
            quarantine, store, entries, lambda stream, batch: is_batch(stream) or ledger.is_finished(stream, batch)
        )
        lag = source_lag(config, store)
    except (OSError, DeltaError) as e:
        raise StoreUnreadable(path=config.state_root, detail=f"{type(e).__name__}: {e}") from e
    at = now()
    tables = _tables(entries, kept, at)
    own = [e for e in entries if e.route is None and is_batch(e.stream)]
    running = is_running(config.state_root)
    return Status(
        pipeline=config.pipeline,
        at=_iso(int(at * 1e6)) or "",
        running=running,
        last_batch=own[-1].batch if own else None,
        finished_at=_iso(own[-1].finished_at) if own else None,
        lag_rows=lag.rows,
        rows=sum(t.rows for t in tables),
        quarantined=kept.rows.total(),
        tables=tuple(tables),
        attention=tuple(_attention(tables, entries, kept, running, lag)),
        notes=(lag.note,) if lag.note else (),
    )


def is_running(state_root: str) -> bool | None:
    """Does a process hold the pipeline's lock (lock.only_run)? None for state in an object store, which has none."""
    folder = local_path(state_root)
    if folder is None:
        return None
    try:
        with open(folder / "run.lock", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _tables(entries: Sequence[Entry], kept: Kept, now: float) -> list[TableStatus]:
    written: dict[str | None, Entry] = {e.route: e for e in entries if e.rows_written > 0}
    sums = totals(entries)
    routes = sorted(route for route in sums if route is not None)
    return [_table(route, sums[route], written.get(route), kept, now) for route in routes]


def _table(route: str, said: Entry, last: Entry | None, kept: Kept, now: float) -> TableStatus:
    parked = said.state == "parked"
    return TableStatus(
        route=route,
        table=said.table,
        engine=said.engine,
        state=said.state,
        rows=said.rows_written,
        last_batch=last.batch if last else None,
        last_write=_iso(last.finished_at) if last else None,
        lag_sec=None if said.newest is None else round(max(0.0, now - said.newest / 1e6), 3),
        lag_rows=kept.reasons[route, Reason.TABLE_PARKED.value],
        quarantined=kept.rows[route],
        failures=said.failures if parked else 0,
        retry_at=_iso(said.retry_at) if parked else None,
        error=said.error if parked else None,
    )


def _attention(
    tables: Sequence[TableStatus], entries: Sequence[Entry], kept: Kept, running: bool | None, lag: SourceLag
) -> list[str]:
    found = [
        f"the table of {t.route} is parked after {t.failures} failed attempts, {t.lag_rows} rows wait for it, next "
        f"attempt at {t.retry_at}: {t.error}"
        for t in tables
        if t.state == "parked"
    ]
    own = next((e for e in reversed(entries) if e.route is None and is_batch(e.stream)), Entry("", -1, None))
    newest = [e for e in entries if (e.stream, e.batch) == (own.stream, own.batch)]
    more = sum(e.rows_quarantined - e.reasons.get(Reason.TABLE_PARKED, 0) for e in newest)
    bad = sum(rows for (_, reason), rows in kept.reasons.items() if reason != Reason.TABLE_PARKED)
    if bad:
        growing = f", {more} of them from the last batch" if more > 0 else ""
        found.append(f"{bad} rows are in the quarantine{growing}; fix the cause, then: distributary replay FILE")
    if running is False and lag.rows:
        found.append(f"the pipeline is not running, and {lag.rows} rows wait at the source")
    return found


def _iso(micros: int | None) -> str | None:
    if micros is None:
        return None
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
