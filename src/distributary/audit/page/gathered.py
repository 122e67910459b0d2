"""What the page shows: the status, and out of the ledgers what came when. Changes nothing, takes no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from distributary.audit.history import RouteHistory, history
from distributary.audit.quarantined import Rejections, summarize
from distributary.audit.status import Status
from distributary.audit.status.pages import headline, state_of, worst_first
from distributary.config import Pipeline
from distributary.errors import DistributaryError
from distributary.errors.border import in_words
from distributary.state.divisions import current, parts
from distributary.state.ledger import Entry, is_batch, read_entries
from distributary.tables.store import Store

MOST_BATCHES = 2_000
MOST_CHANGES = 500
HISTORIES = 20
"""Routes of which a page that is a file has the whole history; a live one asks for them."""
QUARANTINE_SEC = 30.0
"""So often the quarantine's rows are read again, and only where their number has changed."""


@dataclass(frozen=True)
class Point:
    """One batch of one stream. `at`: seconds since 1970; `behind_sec`: how old its newest record was by then."""

    stream: str
    batch: int
    at: float
    rows: int
    quarantined: int
    behind_sec: float | None


@dataclass(frozen=True)
class RouteNews:
    """A batch that brought a route something new. `schemas`: writer schema ids that no batch before it had."""

    at: str
    route: str
    batch: int
    schemas: tuple[int, ...] = ()
    created: bool = False
    columns: bool = False
    widened: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """One cluster of a divided pipeline, with the routes that it has now."""

    name: str
    routes: tuple[str, ...]
    rows: int
    state: str | None = None


@dataclass(frozen=True)
class Facts:
    """All of the page. `rejections`: None where the quarantine could not be read."""

    status: Status
    batches: tuple[Point, ...]
    changes: tuple[RouteNews, ...]
    rejections: Rejections | None
    placement: tuple[Placed, ...] = ()
    histories: Mapping[str, RouteHistory] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What the page's script reads."""
        status = self.status
        tables = [
            {**asdict(item), "shown": state_of(item), "well": item.is_well} for item in worst_first(status.tables)
        ]
        return {
            "pipeline": status.pipeline,
            "at": status.at,
            "headline": headline(status),
            "unwell": list(status.unwell),
            "attention": list(status.attention),
            "notes": [*status.notes, *self.notes],
            "running": status.running,
            "last_batch": status.last_batch,
            "finished_at": status.finished_at,
            "waiting_rows": status.lag_rows,
            "waiting_files": status.files_waiting,
            "rows": status.rows,
            "quarantined": status.quarantined,
            "reasons": dict(status.reasons),
            "tables": tables,
            "batches": [asdict(item) for item in self.batches],
            "changes": [asdict(item) for item in self.changes],
            "groups": None if self.rejections is None else self.rejections.to_json()["groups"],
            "clusters": [asdict(item) for item in self.placement],
            "histories": {route: history.to_json() for route, history in self.histories.items()},
        }


def points(entries: Iterable[Entry]) -> list[Point]:
    """The batches that the ledger still has one by one, oldest first."""
    entries_of: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        if is_batch(entry.stream) and entry.batches == 1:
            entries_of.setdefault((entry.stream, entry.batch), []).append(entry)
    points_made = [_point(stream, batch, every) for (stream, batch), every in entries_of.items()]
    return sorted(points_made, key=lambda point: point.at)


def _point(stream: str, batch: int, entries: Sequence[Entry]) -> Point:
    at = max(entry.finished_at for entry in entries) / 1e6
    newest = max((entry.newest for entry in entries if entry.newest is not None), default=None)
    return Point(
        stream,
        batch,
        at,
        sum(entry.rows_written for entry in entries),
        sum(entry.rows_quarantined for entry in entries),
        None if newest is None else round(max(0.0, at - newest / 1e6), 3),
    )


def changes(entries: Iterable[Entry]) -> list[RouteNews]:
    """What came new to which route, newest first."""
    seen: dict[str, set[int]] = {}
    changes_found = []
    for entry in sorted(entries, key=lambda entry_of_route: entry_of_route.finished_at):
        if entry.route is None:
            continue
        known_ids = seen.setdefault(entry.route, set())
        new = tuple(sorted(entry.schema_ids.keys() - known_ids))
        known_ids.update(entry.schema_ids)
        # Of batches that were added up, nobody can say which of them it was.
        if entry.batches == 1 and (new or entry.created or entry.evolved or entry.widened):
            at = _iso(entry.finished_at)
            changes_found.append(
                RouteNews(at, entry.route, entry.batch, new, entry.created, entry.evolved, dict(entry.widened))
            )
    return changes_found[::-1]


class Gatherer:
    """Gathers the facts, again and again for a live page: what the ledger folds meanwhile is kept."""

    def __init__(
        self,
        config: Pipeline,
        status: Callable[[], Status],
        quarantined_rows: Callable[[], Iterator[pa.Table]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._status = status
        self._quarantined_rows = quarantined_rows
        self._clock = clock
        self._points: dict[tuple[str, int], Point] = {}
        self._rejections: tuple[float, int, Rejections] | None = None

    def gather(self, *, histories: int = 0) -> Facts:
        """`histories`: of so many routes, the last changed first. Raises StoreUnreadable; what else cannot be found
        out is a note."""
        status, notes = self._status(), list[str]()
        store = Store.of(self.config.tables)
        entries = self.entries(notes)
        self._points.update({(point.stream, point.batch): point for point in points(entries)})
        newest_points = sorted(self._points.values(), key=lambda point: point.at)[-MOST_BATCHES:]
        self._points = {(point.stream, point.batch): point for point in newest_points}
        came = changes(entries)
        routes = list(
            dict.fromkeys([*(change.route for change in came), *(t.route for t in worst_first(status.tables))])
        )
        return Facts(
            status,
            tuple(newest_points),
            tuple(came[:MOST_CHANGES]),
            self._kept_aside(status, notes),
            tuple(self._placement(status, store, notes)),
            {} if self.config.is_declarative else dict(self._histories(routes[:histories], notes)),
            tuple(notes),
        )

    def entries(self, notes: list[str]) -> list[Entry]:
        """Of all ledgers; none of a declarative pipeline, which has books of its own."""
        store = Store.of(self.config.tables)
        try:
            if self.config.is_declarative:
                return []
            return [entry for stream in parts(self.config, store) for entry in read_entries(stream.state_root, store)]
        except (OSError, DistributaryError) as e:
            notes.append(f"the ledger could not be read: {in_words(e)}")
            return []

    def _kept_aside(self, status: Status, notes: list[str]) -> Rejections | None:
        if self._rejections is not None:
            at, rows, known_rejections = self._rejections
            if rows == status.quarantined or self._clock() - at < QUARANTINE_SEC:
                return known_rejections
        try:
            rejections = summarize(self.config.pipeline, self._quarantined_rows())
        except (OSError, DistributaryError) as e:
            notes.append(f"the quarantine could not be read: {in_words(e)}")
            return None
        self._rejections = (self._clock(), status.quarantined, rejections)
        return rejections

    def _placement(self, status: Status, store: Store, notes: list[str]) -> Iterator[Placed]:
        try:
            followed = current(self.config, store)
        except (OSError, DistributaryError) as e:
            notes.append(f"the division of the routes could not be read: {in_words(e)}")
            return
        states = {record.name: record.state.value for record in status.streams}
        for share in () if followed is None else followed.division.shares(followed.generation):
            own = [table for table in status.tables if share.owns(table.route)]
            yield Placed(share.name, tuple(t.route for t in own), sum(t.rows for t in own), states.get(share.name))

    def _histories(self, routes: Iterable[str], notes: list[str]) -> Iterator[tuple[str, RouteHistory]]:
        for route in routes:
            try:
                yield route, history(self.config, route)
            except (OSError, DistributaryError) as e:
                notes.append(f"the history of {route} could not be read: {in_words(e)}")

    def history(self, route: str) -> RouteHistory:
        """Raises BadInput for a route that nobody has seen, StoreUnreadable."""
        return history(self.config, route)


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
