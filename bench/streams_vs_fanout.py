"""A streaming query per table over one bronze table, against one fan-out stream over the same bronze table."""

from __future__ import annotations

from statistics import median
from typing import Any

from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Meter, Usage, heap_of
from bench.result import Case, Result
from bench.spark_jobs import append, create_tables, decode_in_stream
from bench.stream import Held, HeldQueries, HeldStream, written
from bench.workload import Place, Workload, check_games, check_tables, in_child, say, session

NOTE = (
    "Seconds of a warm round, median: every table gets 1,000 new rows of one bronze Delta table that is partitioned by "
    "game. Ours: one pipeline. Other: a streaming query per game, each with foreachBatch, decoding in Python workers "
    "and Spark's Delta writer, all in one driver. All streams run on; they are held while the round's rows are put "
    "into bronze, and then let go together. Each side and each size in a process of its own. Memory in MiB."
)


def run(place: Place) -> Result:
    rows = place.size(1000, 30)
    cases = []
    for count in place.size((40, 10, 20), (3,)):
        sides = {
            side: in_child(measure, place.part(f"{side}-{count}"), count, rows, place.size(3, 1))
            for side, measure in (("ours", fanout), ("other", queries))
        }
        say(f"{count} tables: " + ", ".join(f"{side} {found['seconds']:.2f} s" for side, found in sides.items()))
        details = {f"{side} {key}": found[key] for side, found in sides.items() for key in ("memory", "cpu s", "all")}
        cases.append(Case(f"{count} tables", "s", sides["ours"]["seconds"], sides["other"]["seconds"], details=details))
    return Result("streams_vs_fanout", NOTE, tuple(cases))


class Bronze:
    """The bronze table of a workload: plain columns, partitioned by game."""

    def __init__(self, work: Workload, rows: int) -> None:
        self.work = work
        self.path = str(work.root / "bronze")
        self.rows = rows
        self.rounds = 0

    def feed(self) -> None:
        """One commit with the next rows of every game."""
        table = self.work.games.envelopes_table(1, self.rows, start=self.rounds * self.rows, columns=True)
        write_deltalake(self.path, table, mode="append", partition_by=["game_name"])
        self.rounds += 1


def fanout(place: Place, games: int, rows: int, rounds: int) -> dict[str, Any]:
    """Our side."""
    work = Workload(place.root, games)
    bronze = Bronze(work, rows)
    bronze.feed()
    spark = session()
    config = work.config("ours", {"type": "delta", "path": bronze.path}, envelope={"format": "columns"})
    found = []
    with HeldStream(spark, config) as stream:
        for number in range(rounds + 1):
            timed = written(stream.batch(bronze.feed, Meter(heap=heap_of(spark))), games * rows)
            if number:
                found.append((timed.wall_sec, timed.usage))
    check_games(config, rows * bronze.rounds, work.names)
    return _summary(found)


def queries(place: Place, games: int, rows: int, rounds: int) -> dict[str, Any]:
    """The other side."""
    work = Workload(place.root, games)
    bronze = Bronze(work, rows)
    bronze.feed()
    spark = session()
    # Not our settings: what a session has by itself.
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    uris = create_tables(place.root / "tables", work.names)
    found = []
    streams = HeldQueries(uris, lambda game, held: query_of(spark, work, bronze.path, uris[game], game, held))
    try:
        streams.wait()
        for number in range(rounds + 1):
            bronze.feed()
            with Meter(heap=heap_of(spark)) as meter:
                seconds = streams.round()
            if number:
                found.append((seconds, meter.usage))
    finally:
        streams.stop()
    check_tables(uris, rows * bronze.rounds)
    return _summary(found)


def query_of(spark: SparkSession, work: Workload, bronze: str, uri: str, game: str, held: Held) -> StreamingQuery:
    schema = work.compiled(game)

    def write(rows: DataFrame, batch: int) -> None:
        append(decode_in_stream(rows, schema, game), uri, batch)
        held()

    rows = spark.readStream.format("delta").load(bronze).where(F.col("game_name") == game)
    place = str(work.root / "checkpoints" / game)
    return rows.writeStream.foreachBatch(write).option("checkpointLocation", place).start()


def _summary(found: list[tuple[float, Usage]]) -> dict[str, Any]:
    largest = max((usage for _, usage in found), key=lambda usage: usage.total)
    names = ("driver_mib", "jvm_mib", "workers_mib", "total_mib", "heap_used_mib")
    memory = {k: v for k, v in largest.memory_mib().items() if k in names}
    seconds = [wall for wall, _ in found]
    return {
        "seconds": median(seconds),
        "all": seconds,
        "cpu s": median(usage.cpu_sec for _, usage in found),
        "memory": memory,
    }
