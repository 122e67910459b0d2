"""One route goes bad in a running stream: how soon do the others get their next batch?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.result import Case, Result
from bench.stream import HeldStream, Timed
from bench.workload import Place, Workload, WrongRows, check_games, say, session, table_uri
from distributary.repair.replays import replay
from distributary_simulate.games.records import Faults, Plan
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games

NOTE = (
    "Seconds from the moment the stream may take the poisoned rows until all other routes have theirs, median of the "
    "batches that follow (ours), against the median of the batches before (other): there is no batch in between. "
    "Checked: every other table has all its rows after each batch, the poisoned rows are in the quarantine, and at the "
    "end a replay brings those back whose table was in the way."
)


def run(place: Place) -> Result:
    cases = (payloads(place.part("payloads")), table(place.part("table")))
    return Result("poisoned_route", NOTE, cases)


class _Stream:
    """A fan-out stream over games of which the first one goes bad."""

    def __init__(self, place: Place) -> None:
        self.games, self.rows, self.rounds = place.size(50, 4), place.size(1000, 20), place.size(7, 1)
        self.work = Workload(place.root, self.games)
        limits = {"quarantine": {"max_ratio": 1.0}}
        self.config = self.work.config("ours", self.work.delta_source(), **limits)
        self.bad, *self.others = self.work.names
        self.fed = 0

    def feed(self, names: list[str]) -> None:
        self.work.feed_delta(dict.fromkeys(names, self.rows), start=self.fed * self.rows)
        self.fed += 1

    def good(self) -> None:
        self.feed(self.work.names)

    def check(self, timed: Timed, kept: int) -> Timed:
        """All of the others' rows are there; raises WrongRows."""
        if timed.report.rows_quarantined != kept:
            raise WrongRows(f"{timed.report.rows_quarantined} rows kept aside, not {kept}")
        check_games(self.config, self.fed * self.rows, self.others)
        return timed


def payloads(place: Place) -> Case:
    """Every payload of one route is corrupt from some moment on."""
    # Games have the same names whatever their number, so the only one of these is the one that goes bad.
    one = _Stream(place)
    broken = Games(
        Plan(games=1, versions=1, records=one.rows * one.rounds, seed=5, faults=Faults(corrupt=one.rows * one.rounds)),
        one.work.registry,
    )
    values = list(broken.records(1))

    def poison() -> None:
        one.feed(one.others)
        bad = values[: one.rows]
        del values[: one.rows]
        write_delta(str(one.work.root / "source"), bad)

    return _measure(one, "one route sends only corrupt payloads", poison, lambda: None)


def table(place: Place) -> Case:
    """One route's table is replaced by something that is no table."""
    one = _Stream(place)
    folder = Path(table_uri(one.config, one.bad))
    aside = folder.with_name("aside")

    def poison() -> None:
        if not aside.exists():
            folder.rename(aside)
            folder.write_text("not a table")
        one.good()

    def mend() -> None:
        folder.unlink()
        aside.rename(folder)
        if replay(one.config).failed:
            raise WrongRows("the replay failed")
        check_games(one.config, one.fed * one.rows, one.work.names)

    return _measure(one, "one route's table is in the way", poison, mend)


def _measure(one: _Stream, label: str, poison: Callable[[], None], mend: Callable[[], None]) -> Case:
    spark = session()
    one.good()
    with HeldStream(spark, one.config) as stream:
        stream.batch(one.good)
        before = [one.check(stream.batch(one.good), 0) for _ in range(one.rounds)]
        after = [one.check(stream.batch(poison), one.rows) for _ in range(one.rounds)]
    mend()
    spark.stop()
    ours, other = (median(timed.wall_sec for timed in found) for found in (after, before))
    say(f"{label}: {ours:.2f} s, before {other:.2f} s")
    details = {
        "first batch with it": after[0].wall_sec,
        "all after": [t.wall_sec for t in after],
        "all before": [t.wall_sec for t in before],
        "routes": one.games,
    }
    return Case(label, "s", ours, other, details=details)
