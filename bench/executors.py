"""A batch on a Spark standalone cluster of 1, 2 and 4 executors: its CPU seconds, and the bytes that cross it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from tests.services import wait_until
from tests.services.standalone import Standalone

from bench import event_log
from bench.measure import MIB, Meter
from bench.result import Case, Result
from bench.stream import HeldStream, written
from bench.workload import Place, Workload, WrongRows, check_games, in_child, say
from distributary.running.stream import RUN_CONF
from distributary.spark.session import build_session
from distributary_simulate.games.sinks import write_delta

NOTE = (
    "CPU seconds of a warm batch in all processes of the cluster, median: a stream over a Delta source on Spark "
    "standalone, executors of one core and 512 MiB of heap. Ours: on so many executors. Other: on one. In a row's "
    "details: the driver's part (Python and JVM) and each executor's (JVM and Python workers), tasks, MiB that tasks "
    "wrote for a shuffle and that came from another executor (Spark's event log), of the source and of the tables. "
    "What bounds it: two cores, so that four executors take turns and their time says nothing; one machine, so that "
    "what comes from another executor comes over loopback (Spark's short way, a neighbour's disk, is switched off), "
    "and source and tables lie in one folder. No store and no network is in it."
)
FILES = 8
"""Of the source in each batch, so that the tasks of four executors get as many."""
ONCE = 3600.0
"""Of a meter that looks at the beginning and at the end only."""


@dataclass(frozen=True)
class Batch:
    driver_sec: float
    executor_secs: tuple[float, ...]
    began: float
    ended: float

    @property
    def cpu_sec(self) -> float:
        return self.driver_sec + sum(self.executor_secs)


@dataclass(frozen=True)
class Found:
    """Medians of the warm batches of one size; bytes are of one batch."""

    cpu_sec: float
    driver_sec: float
    executor_secs: tuple[float, ...]
    tasks: float
    shuffled: float
    from_others: float
    source: float
    tables: float

    def details(self) -> dict[str, object]:
        return {
            "driver s": self.driver_sec,
            "executors s": list(self.executor_secs),
            "tasks": self.tasks,
            "shuffle MiB": self.shuffled / MIB,
            "from another executor MiB": self.from_others / MIB,
            "source MiB": self.source / MIB,
            "tables MiB": self.tables / MIB,
        }


def run(place: Place) -> Result:
    counts = place.size((4, 2, 1), (2, 1))
    sizes = place.size(((1_000, 100), (10, 40_000)), ((4, 10), (2, 20)))
    found = {count: in_child(measure, place.part(f"executors-{count}"), count, sizes) for count in counts}
    cases = []
    for number, (tables, rows) in enumerate(sizes):
        one = found[1][number]
        for count in counts:
            ours = found[count][number]
            say(f"{count} executors, {tables} tables: {ours.cpu_sec:.2f} s of CPU")
            label = f"{tables:,} tables x {rows:,} rows, {count} executor{'s' if count > 1 else ''}"
            other = one.cpu_sec if count > 1 else None
            cases.append(Case(label, "s of CPU", ours.cpu_sec, other, details=ours.details()))
    return Result("executors", NOTE, tuple(cases))


def measure(place: Place, executors: int, sizes: tuple[tuple[int, int], ...]) -> list[Found]:
    """Each size on a cluster of so many executors."""
    nodes, log = place.part("nodes").root, place.part("log").root
    with Standalone(nodes, workers=executors) as cluster:
        spark = _session(cluster, executors, log)
        taken = [_batches(place.part(f"tables-{size[0]}"), spark, cluster, *size) for size in sizes]
        spark.stop()
    tasks = list(event_log.ended_tasks(log))
    return [
        _found(place.root / f"tables-{size[0]}", batches, tasks) for size, batches in zip(sizes, taken, strict=True)
    ]


def _session(cluster: Standalone, executors: int, log: Path) -> SparkSession:
    conf = {
        **RUN_CONF,
        **event_log.CONF,
        "spark.eventLog.dir": log.as_uri(),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(executors),
        "spark.shuffle.readHostLocalDisk": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    spark = build_session("distributary bench", master=cluster.url, conf=conf)
    known = spark.sparkContext._jsc.sc()
    wait_until(lambda: known.getExecutorMemoryStatus().size() > executors, 60, f"{executors} executors")
    return spark


def _batches(place: Place, spark: SparkSession, cluster: Standalone, tables: int, rows: int) -> list[Batch]:
    """Of these tables and rows of each; those that warm up are not among them."""
    warm, measured = place.size((4, 5), (1, 1))
    work = Workload(place.root, tables)
    config = work.config("ours", work.delta_source())

    def feed(number: int) -> None:
        envelopes = work.games.envelopes_table(1, rows, start=number * rows)
        write_delta(str(place.root / "source"), envelopes, rows_per_commit=-(-envelopes.num_rows // FILES))

    feed(0)
    found = []
    with HeldStream(spark, config) as stream:
        for number in range(1, warm + measured + 1):
            driver = Meter(every=ONCE, apart=cluster.pids)
            with ExitStack() as metered:
                nodes = [metered.enter_context(Meter(every=ONCE, root=pid)) for pid in cluster.worker_pids]
                timed = stream.batch(lambda n=number: feed(n), driver)  # type: ignore[misc]
                ended = time.time()
            written(timed, tables * rows)
            took = tuple(node.usage.cpu_sec for node in nodes)
            found.append(Batch(driver.usage.cpu_sec, took, ended - timed.wall_sec, ended))
    check_games(config, rows * (warm + measured + 1), work.names)
    return found[warm:]


def _found(root: Path, batches: list[Batch], tasks: list[event_log.EndedTask]) -> Found:
    moved = [event_log.between(tasks, batch.began, batch.ended) for batch in batches]
    shuffled = median(sum(task.written for task in ended) for ended in moved)
    if not shuffled:
        raise WrongRows("nothing was shuffled")
    fed = len(list((root / "source").glob("*.parquet"))) // FILES
    return Found(
        median(batch.cpu_sec for batch in batches),
        median(batch.driver_sec for batch in batches),
        tuple(median(secs) for secs in zip(*(batch.executor_secs for batch in batches), strict=True)),
        median(len(ended) for ended in moved),
        shuffled,
        median(sum(task.from_others for task in ended) for ended in moved),
        _size(root / "source", "*.parquet") / fed,
        _size(root / "ours", "*/*.parquet") / fed,
    )


def _size(folder: Path, files: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(files))
