"""Upkeep of a stream's tables: the batch time of a stream whose tables are kept up, against one whose are not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from deltalake import DeltaTable

from bench.measure import Meter
from bench.result import Case, Result
from bench.stream import HeldStream, Timed, written
from bench.workload import Place, Workload, check_games, in_child, say, table_uri
from bench.workload import session as new_session
from distributary.config import Pipeline
from distributary.running import gaps

NOTE = (
    "Seconds of a cycle (trigger, batch, ledger, offsets) of a stream that is never idle, median of all batches from "
    "the one on in which upkeep begins. Ours: a stream whose tables are kept up in its gaps, with a limit of 8 small "
    "files in place of the default of 64, so that more is due than its share of the time is enough for. Other: the "
    "same stream without upkeep. Both in one session and in turns, each first in every other round, and each held "
    "while the other has its batch. Files: of a table, mean at the end."
)
ROWS = 20
SMALL_FILES = 8
WARM_BATCHES = 6


def run(place: Place) -> Result:
    tables, rounds = place.size((1000, WARM_BATCHES + 16), (3, WARM_BATCHES + 3))
    return Result("maintain", NOTE, (in_child(_case, place, tables, rounds),))


def _case(place: Place, tables: int, rounds: int) -> Case:
    work = Workload(place.root, tables)
    work.feed_delta(ROWS)
    # Upkeep does not begin before so many batches; by default that is 16.
    gaps.TURN_BATCHES = WARM_BATCHES
    spark = new_session()
    kept = work.config("kept", work.delta_source(), maintenance={"small_files": SMALL_FILES})
    left = work.config("left", work.delta_source(), maintenance={"automatic": False})
    found: dict[str, list[Timed]] = {"kept": [], "left": []}
    with HeldStream(spark, kept) as ours, HeldStream(spark, left) as other:
        for number in range(1, rounds):
            work.feed_delta(ROWS)
            turn = [("kept", ours), ("left", other)]
            # Whoever reads the new rows first has them to fetch.
            for name, stream in turn if number % 2 else reversed(turn):
                found[name].append(written(stream.batch(lambda: None, Meter(every=60)), tables * ROWS))
            say(f"round {number}: {found['kept'][-1].wall_sec:.2f} s kept up, {found['left'][-1].wall_sec:.2f} s not")
    for config in (kept, left):
        check_games(config, rounds * ROWS, work.names)
    return _result(tables, found["kept"][WARM_BATCHES:], found["left"][WARM_BATCHES:], kept, left, work.names)


def _result(
    tables: int, kept: Sequence[Timed], left: Sequence[Timed], ours: Pipeline, other: Pipeline, names: Sequence[str]
) -> Case:
    details = {
        "batches": len(kept),
        "ours files": _files(ours, names),
        "other files": _files(other, names),
        "ours cpu s": median(one.usage.cpu_sec for one in kept),
        "other cpu s": median(one.usage.cpu_sec for one in left),
        "ours slowest": max(one.wall_sec for one in kept),
        "other slowest": max(one.wall_sec for one in left),
    }
    seconds, others = (median(one.wall_sec for one in side) for side in (kept, left))
    return Case(f"{tables:,} tables", "s", seconds, others, details=details)


def _files(config: Pipeline, names: Sequence[str]) -> float:
    return round(sum(len(DeltaTable(table_uri(config, name)).file_uris()) for name in names) / len(names), 1)
