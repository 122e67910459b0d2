"""One route with 90 % of the rows, against the same rows spread evenly."""

from __future__ import annotations

from statistics import median

from bench.result import Case, Result
from bench.stream import HeldStream, Timed, written
from bench.workload import CORES, Place, Workload, check_games, say, session

NOTE = (
    "Rows per second of a warm batch of a running stream over a Delta source, median. Ours: one of 10 routes has 90 % "
    "of the rows. Other: the even case, in turns with it."
)
GAMES = 10


def run(place: Place) -> Result:
    total, rounds = place.size(1_000_000, 2_000), place.size(3, 1)
    work = Workload(place.root, GAMES)
    even = dict.fromkeys(work.names, total // GAMES)
    rest = total // 10 // (GAMES - 1)
    skewed = {**dict.fromkeys(work.names, rest), work.names[0]: total - rest * (GAMES - 1)}
    spark = session()
    found: dict[str, list[Timed]] = {"even": [], "skewed": []}
    shares = {"even": even, "skewed": skewed}
    configs = {name: work.config(name, work.delta_source(f"source_{name}")) for name in shares}
    for name, share in shares.items():
        work.feed_delta(share, folder=f"source_{name}")
    with HeldStream(spark, configs["even"]) as one, HeldStream(spark, configs["skewed"]) as other:
        streams = {"even": one, "skewed": other}
        for number in range(rounds + 1):
            for name, stream in streams.items():
                start = (number + 1) * total
                timed = stream.batch(
                    lambda n=name, s=start: work.feed_delta(shares[n], folder=f"source_{n}", start=s)  # type: ignore[misc]
                )
                if number:
                    found[name].append(written(timed, total))
                say(f"{name}: {timed.wall_sec:.2f} s, {dict(timed.report.seconds)}")
    for name, share in shares.items():
        check_games(configs[name], {game: rows * (rounds + 2) for game, rows in share.items()})
    speed = {name: total / median(t.wall_sec for t in timed) for name, timed in found.items()}
    busy = {
        f"cores busy, {name}": median(t.usage.cpu_sec / t.usage.wall_sec for t in timed)
        for name, timed in found.items()
    }
    case = Case(
        "90 % in one route", "rows/s", speed["skewed"], speed["even"], less_is_better=False, goal=0.7,
        details={**busy, "cores": CORES, "rows": total},
    )  # fmt: skip
    return Result("skew", NOTE, (case,))
