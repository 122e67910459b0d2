"""The ledger of a declarative pipeline: what each update brought, by route, counted in bronze.

Bronze decides, so bronze is what is counted: the files that came since the version that the last entry names. An entry
and that version are one commit, so an update that dies before it is counted by the next one, and none twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distributary.config import Pipeline
from distributary.declarative.bronze_counts import Bronze, Counts, RouteCount
from distributary.declarative.datasets import Datasets
from distributary.declarative.silver_sink import silver_flow
from distributary.errors import QuarantineLimit, Reason
from distributary.state.ledger import Entry, Ledger, totals
from distributary.tables.store import Store

Unknown = Mapping[str, Mapping[int, int]]
"""Rows that are set aside, by route ("" for none) and by the schema id that was not known (or `ENVELOPE`)."""


@dataclass(frozen=True)
class _News:
    """What came into bronze, up to `version`, since the ledger's last entry. `entries`: the batch's own one last."""

    stream: str
    version: int
    counts: Counts
    entries: list[Entry]
    unknown: Mapping[str, Mapping[str, int]]

    @property
    def any(self) -> bool:
        return len(self.entries) > 1 or None in self.counts


class Books:
    """Keeps the ledger. `settle` only under the pipeline's lock."""

    def __init__(self, config: Pipeline) -> None:
        self.config = config
        self.store = Store.of(config.tables)
        self.datasets = Datasets.of(config)
        self.flow = silver_flow(config)
        self.bronze = Bronze.of(self.datasets, self.store)
        self.ledger = Ledger(config.state_root, config.pipeline, self.store)

    def settle(self, states: Mapping[str, str], reasons: Mapping[str, str]) -> Counts:
        """Enter what came into bronze since the last time; returns the counts by route.

        `states`: of the datasets after the update, `reasons`: of those that failed. Raises TableFault, OSError.
        """
        news = self._news(states, reasons)
        if news is None:
            return {}
        if news.any:
            details = {"bronze_version": news.version, "unknown": news.unknown}
            self.ledger.record(news.stream, self._number(news.stream), news.entries, details)
        return news.counts

    def unsettled(self) -> list[Entry]:
        """What `settle` would enter now: of updates that Spark's own command has made. Raises TableFault, OSError."""
        news = self._news({}, {})
        if news is None or not news.any:
            return []
        table = self.bronze.open(news.version)
        finished_at = 0 if table is None else int(table.history(limit=1)[0]["timestamp"]) * 1000
        return [replace(entry, finished_at=finished_at) for entry in news.entries]

    def _news(self, states: Mapping[str, str], reasons: Mapping[str, str]) -> _News | None:
        table = self.bronze.open()
        if table is None:
            return None
        stream = table.id
        version = table.version
        last = self._last(stream)
        known_version = int(last.get("bronze_version", -1))
        files = self.bronze.added(table, known_version) if known_version >= 0 else None
        counts = self.bronze.count(table, files) if files != [] else {}
        if files is None and (entries := self.ledger.entries()):
            # Refreshed in full, or made anew: the sums are to say what is there now.
            counts = _difference(counts, totals(entries))
        unknown = _add_unknown(last.get("unknown", {}) if files is not None else {}, counts)
        entries = self._entries(stream, counts, states, reasons)
        entries.append(self._own_entry(stream, counts.get(None, RouteCount())))
        return _News(stream, version, counts, entries, unknown)

    def unknown(self) -> Unknown:
        """Rows set aside because their schema id was not known, as far as the ledger has come."""
        table = self.bronze.open()
        last = {} if table is None else self._last(table.id)
        return {r: {int(i): n for i, n in ids.items()} for r, ids in last.get("unknown", {}).items()}

    def waiting(self) -> set[str]:
        """Routes whose rows were set aside because their table could not be read, and now can."""
        parked = {route for route, entry in self.ledger.newest.items() if entry.state == "parked"}
        sums = totals(self.ledger.entries())
        return {route for route, e in sums.items() if route and e.reasons.get(Reason.TABLE_PARKED, 0) > 0} - parked

    def check_limits(self, counts: Counts) -> None:
        """Raises QuarantineLimit when too many of the rows that came were set aside."""
        limits = self.config.quarantine
        bad = sum(max(0, c.aside) for c in counts.values())
        rows = bad + sum(c.good for c in counts.values())
        if rows >= limits.min_rows and bad > limits.max_ratio * rows:
            reasons: Counter[str] = Counter()
            for count in counts.values():
                reasons.update(count.reasons)
            number = max(self.ledger.finished.values(), default=0)
            limit = f"max_ratio {limits.max_ratio}"
            raise QuarantineLimit(batch=number, bad=bad, rows=rows, limit=limit, reason=reasons.most_common(1)[0][0])

    def _last(self, stream: str) -> dict[str, Any]:
        return self.ledger.details(stream, self.ledger.finished.get(stream, -1))

    def _entries(
        self, stream: str, counts: Counts, states: Mapping[str, str], reasons: Mapping[str, str]
    ) -> list[Entry]:
        """Of each route that something came for, or whose table has failed, or works again."""
        routes = {*counts, *self.ledger.newest} - {None}
        entries = []
        for route in sorted(r for r in routes if r is not None):
            count, state = counts.get(route), states.get(self.flow or self.datasets.silver(route))
            before = self.ledger.newest.get(route)
            parked = before is not None and before.state == "parked"
            if count is not None or state == "FAILED" or (parked and state == "COMPLETED"):
                entries.append(self._entry(stream, route, count or RouteCount(), state, reasons))
        return entries

    def _own_entry(self, stream: str, nameless: RouteCount) -> Entry:
        """The update's own entry: of what has no route."""
        number = self._number(stream)
        return Entry(
            stream,
            number,
            None,
            table=self.bronze.uri,
            created=number == 0,
            rows_in=nameless.aside,
            rows_quarantined=nameless.aside,
            tombstones=nameless.tombstones,
            reasons=dict(nameless.reasons),
        )

    def _number(self, stream: str) -> int:
        return 1 + self.ledger.finished.get(stream, -1)

    def _entry(
        self, stream: str, route: str, count: RouteCount, state: str | None, reasons: Mapping[str, str]
    ) -> Entry:
        name = self.datasets.silver(route)
        before = self.ledger.newest.get(route)
        flow = self.flow or name
        failed = state == "FAILED"
        # A table that rests was not tried: it is as it was.
        parked = failed or (state != "COMPLETED" and before is not None and before.state == "parked")
        failures = before.failures if before is not None and before.state == "parked" else 0
        return Entry(
            stream,
            self._number(stream),
            route,
            table=self.datasets.uri(name),
            engine="spark",
            state="parked" if parked else "empty" if _is_empty(count) else "written",
            rows_in=count.good + count.aside + count.replayed,
            rows_written=count.good + count.replayed,
            rows_quarantined=count.aside,
            tombstones=count.tombstones,
            schema_ids=dict(count.schema_ids),
            reasons=dict(count.reasons),
            warnings=dict(count.warnings),
            newest=count.newest,
            created=before is None,
            error=reasons.get(flow) if failed else before.error if parked and before is not None else None,
            failures=failures + failed if parked else 0,
            retry_at=int(time.time() * 1e6) if parked else None,
        )


def _is_empty(count: RouteCount) -> bool:
    """Did rows come, and none of them for the table?"""
    return bool(count.aside or count.tombstones) and not (count.good or count.replayed)


def _difference(now: Counts, before: Mapping[str | None, Entry]) -> Counts:
    """What must be added to the ledger's sums for them to say what is in bronze now."""
    missing_counts: Counts = {}
    for route in now.keys() | before.keys():
        count, entry = now.get(route, RouteCount()), before.get(route, Entry("", 0, route))
        ids, reasons = Counter(count.schema_ids), Counter(count.reasons)
        warnings = Counter(count.warnings)
        warnings.subtract(entry.warnings)
        ids.subtract(entry.schema_ids)
        reasons.subtract(entry.reasons)
        missing_counts[route] = RouteCount(
            good=count.good + count.replayed - entry.rows_written,
            aside=count.aside - entry.rows_quarantined,
            tombstones=count.tombstones - entry.tombstones,
            schema_ids=ids,
            reasons=reasons,
            unknown=count.unknown,
            warnings=warnings,
            newest=count.newest,
        )
    return missing_counts


def _add_unknown(before: Mapping[str, Mapping[str, int]], counts: Counts) -> dict[str, dict[str, int]]:
    unknown_ids = {route: Counter({int(i): n for i, n in ids.items()}) for route, ids in before.items()}
    for route, count in counts.items():
        unknown_ids.setdefault(route or "", Counter()).update(count.unknown)
    return {r: {str(i): n for i, n in ids.items() if n > 0} for r, ids in unknown_ids.items() if any(ids.values())}
