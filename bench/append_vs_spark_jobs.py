"""A warm batch into many tables: our in-task writer against a Spark job per table."""

from __future__ import annotations

import time
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from bench.result import Case, Result
from bench.spark_jobs import create_tables, decode_all, write_batch
from bench.workload import Place, Workload, WrongRows, batch_writer, check_games, check_tables, say, session
from distributary.engine.batch import BatchWriter

NOTE = (
    "Seconds of a warm batch (tables exist, workers and JVM have done the same before), median. Ours: the whole batch, "
    "from envelopes in Parquet files through decoding, commits and ledger. Other: Spark's Delta writer in foreachBatch "
    "style, a job per table in 8 threads, from rows that are decoded and cached beforehand (not counted)."
)

WARM_BATCHES = 8
"""The JVM compiles what a batch runs for about so many batches; the other side runs as many jobs in its first one."""


def run(place: Place) -> Result:
    spark = session()
    if place.quick:
        return Result("append_vs_spark_jobs", NOTE, (_case(place, spark, 3, 40, rounds=1, goal=40),))
    some = _case(place.part("some"), spark, 100, 1000, rounds=3, goal=40)
    many = _case(place.part("many"), spark, 1000, 100, rounds=1, goal=100)
    return Result("append_vs_spark_jobs", NOTE, (some, many))


def _case(place: Place, spark: SparkSession, games: int, rows: int, *, rounds: int, goal: float) -> Case:
    work = Workload(place.root, games)
    work.feed_delta(rows)
    decode_all(work, place.root / "decoded", rows)
    config = work.config("ours", work.delta_source())
    writer = batch_writer(spark, config)
    uris = create_tables(place.root / "other", work.names)
    cached = spark.read.parquet(str(place.root / "decoded")).cache()
    if cached.count() != games * rows:
        raise WrongRows(f"{cached.count()} decoded rows, not {games * rows}")
    warm = _Rounds(spark, writer, str(place.root / "source"), cached, uris, games * rows)
    for _ in range(place.size(WARM_BATCHES, 2)):
        warm.ours()
    # The other side's tables exist; what it must have done before is any batch. A part of it is enough.
    warm.other(dict(list(uris.items())[:100]))
    before = warm.first_part
    ours, other = [], []
    for number in range(rounds):
        ours += [warm.ours() for _ in range(3)]
        other.append(warm.other(uris))
        say(f"{games} x {rows}, round {number + 1}: ours {median(ours[-3:]):.2f} s, other {other[-1]:.2f} s")
    check_games(config, rows * warm.batches_of_ours, work.names)
    check_tables(uris, {game: rows * (rounds + (game in before)) for game in uris})
    cached.unpersist()
    details = {"all ours": ours, "all other": other, "split of our last batch": dict(warm.split)}
    return Case(f"{games} tables x {rows} rows", "s", median(ours), median(other), goal=goal, details=details)


class _Rounds:
    """Both sides on the same input, a batch at a time."""

    def __init__(
        self, spark: SparkSession, writer: BatchWriter, source: str, cached: DataFrame, uris: dict[str, str], rows: int
    ) -> None:
        self.spark, self.writer, self.source, self.cached, self.rows = spark, writer, source, cached, rows
        self.batches_of_ours = 0
        self.batches_of_other = 0
        self.first_part: dict[str, str] = {}
        self.split: dict[str, float] = {}

    def ours(self) -> float:
        began = time.monotonic()
        # Files without a log, as a stream's batch has them: reading a Delta log is no part of a batch.
        rows = self.spark.read.schema("value binary, timestamp timestamp").parquet(self.source)
        report = self.writer.take(rows, "bench", self.batches_of_ours)
        taken = time.monotonic() - began
        if report is None or report.rows_written != self.rows:
            raise WrongRows(f"a batch of {self.rows} rows became {report}")
        self.batches_of_ours += 1
        self.split = dict(report.seconds)
        return taken

    def other(self, uris: dict[str, str]) -> float:
        if not self.batches_of_other:
            self.first_part = uris
        began = time.monotonic()
        write_batch(self.cached, uris, self.batches_of_other)
        self.batches_of_other += 1
        return time.monotonic() - began
