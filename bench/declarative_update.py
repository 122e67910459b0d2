"""An update of a declarative pipeline, idle and busy, beside a batch of the fan-out layout over the same source."""

from __future__ import annotations

from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from bench.result import Case, Result
from bench.stream import HeldStream, written
from bench.workload import CORES, Place, Workload, WrongRows, check_games, check_tables, in_child, say, session
from distributary.declarative.datasets import Datasets
from distributary.declarative.runner import Options, Runner

NOTE = (
    "Seconds, median: every game gets 1,000 new rows of one Delta source. Both sides: a warm update of the declarative "
    "layout (bronze table, silver per game, gold as views), from its begin to the end of its run. Ours: `silver_as: "
    "sink`, one flow into all silver tables. Other: `silver_as: table`, a streaming table of Spark's each. `idle`: an "
    "update that finds nothing new. `first`: the update that makes all tables. `fan-out`: a warm batch of that layout "
    "with the same rows; a stream of it that finds nothing makes no batch. Each side and each size in a process of its "
    "own. Updates of many streaming tables take long, so of 20 games two are measured and of 60 games one; `first` has "
    "warmed everything up."
)
GOALS = {20: (4.6, 3.7), 60: (10.3, 9.6)}
"""How many times faster updates with one flow are to be, busy and idle, by games: 5, 7 and 4 s on a machine on which
streaming tables took 23 and 72 s, and 14.7 and 38.4 s where nothing was new."""
WARMED_BY = 20
"""Tables after which the update that makes them is warm-up enough."""


def run(place: Place) -> Result:
    rows = place.size(1000, 30)
    cases = []
    for games in place.size((20, 3, 60), (2,)):
        fan_out = in_child(fanout, place.part(f"fanout-{games}"), games, rows, place.size(3, 1))
        ours = in_child(declarative, place.part(f"sink-{games}"), games, rows, place.size(3, 1), "sink")
        rounds = place.size({3: 3, 20: 2, 60: 1}.get(games, 1), 1)
        other = in_child(declarative, place.part(f"table-{games}"), games, rows, rounds, "table")
        say(f"{games} games: one flow {ours['busy']:.2f} s, tables {other['busy']:.2f} s, fan-out {fan_out:.2f} s")
        details = {
            "first s": ours["first"], "all": ours["all"], "other first s": other["first"], "other all": other["all"],
            "fan-out s": fan_out,
        }  # fmt: skip
        busy_goal, idle_goal = GOALS.get(games, (None, None))
        cases += [
            Case(f"{games} games", "s", ours["busy"], other["busy"], goal=busy_goal, details=details),
            Case(f"{games} games, idle", "s", ours["idle"], other["idle"], goal=idle_goal),
        ]
    return Result("declarative_update", NOTE, tuple(cases))


def fanout(place: Place, games: int, rows: int, rounds: int) -> float:
    """Seconds of a warm batch."""
    work = Workload(place.root, games)
    work.feed_delta(rows)
    config = work.config("ours", work.delta_source())
    seconds = []
    with HeldStream(session(), config) as stream:
        for n in range(1, rounds + 2):
            timed = written(stream.batch(lambda n=n: work.feed_delta(rows, start=n * rows)), rows * games)  # type: ignore[misc]
            seconds.append(timed.wall_sec)
    check_games(config, rows * (rounds + 2), work.names)
    return median(seconds[1:])


def declarative(place: Place, games: int, rows: int, rounds: int, silver_as: str) -> dict[str, Any]:
    """Seconds of the update that makes the tables, of idle ones and of busy ones."""
    work = Workload(place.root, games)
    work.feed_delta(rows)
    as_silver = {"declarative": {"silver_as": silver_as}}
    spark = {"master": f"local[{CORES}]", "conf": {"spark.driver.memory": "2g"}}
    config = work.config("declarative", work.delta_source(), layout="declarative", spark=spark, **as_silver)
    # Of few tables, the first round after they were made still warms up.
    warm_up = 1 if games < WARMED_BY else 0
    plan = ["first", *["busy", "idle"] * (warm_up + rounds)]
    seconds: dict[str, list[float]] = {"first": [], "busy": [], "idle": []}
    fed = 1

    def tell(said: dict[str, Any]) -> None:
        if said["kind"] == "update":
            if not said["ok"]:
                raise WrongRows(str(said["failed"] or said["error"]))
            seconds[plan.pop(0)].append(said["seconds"])

    def after(_: SparkSession) -> None:
        nonlocal fed
        if not plan:
            runner.stop()
        elif plan[0] == "busy":
            work.feed_delta(rows, start=fed * rows)
            fed += 1

    runner = Runner(config, place.root, Options(every_sec=0.0), tell, after)
    runner.go()
    datasets = Datasets.of(config)
    check_tables({game: datasets.uri(datasets.silver(game)) for game in work.names}, rows * fed)
    busy, idle = seconds["busy"][warm_up:], seconds["idle"][warm_up:]
    return {"first": seconds["first"][0], "busy": median(busy), "idle": median(idle), "all": busy + idle}
