"""How soon a record is visible in its table while a steady load comes in from Kafka."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from tests.services.kafka import Kafka

from bench.measure import Meter, heap_of
from bench.result import Case, Result
from bench.workload import CORES, TOPIC, Place, Workload, WrongRows, in_child, say, session, table_uri
from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.running.stream import Run
from distributary.tables.snapshot import BATCH_KEY
from distributary_simulate.games.live import produce_live
from distributary_simulate.games.sinks import write_kafka

NOTE = (
    "Seconds from the producer's send (Kafka's CreateTime) until the Delta commit that holds the record (the commit's "
    "own timestamp, joined by batch), over all records of a steady load but those of its first minute, in which the "
    "JVM still compiles: these are told apart. The producer, the broker and the pipeline share the machine."
)
WARM_SEC = 60.0
SETTLE_SEC = 300.0


def run(place: Place) -> Result:
    games, rate, seconds = place.size(500, 5), place.size(5_000, 100), place.size(300.0, 5.0)
    found = in_child(measure, place, games, rate, seconds)
    label = f"{games} routes, {rate:,} records/s, {seconds:g} s"
    details = {k: v for k, v in found.items() if k not in ("p50", "p95")}
    cases = (
        Case(f"p50 of {label}", "s", found["p50"], goal=0.8, goal_of="ours", details=details),
        Case("p95", "s", found["p95"], goal=1.5, goal_of="ours"),
    )
    return Result("freshness", NOTE, cases)


def measure(place: Place, games: int, rate: int, seconds: float) -> dict[str, Any]:
    work = Workload(place.root, games)
    with Kafka(place.root / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        config = work.config("ours", {"type": "kafka", "bootstrap_servers": servers, "topic": TOPIC})
        write_kafka(servers, TOPIC, work.games.envelope_blocks(1, 10), partitions=CORES)
        spark = session()
        live = Live(config, spark)
        live.wait_for(10 * games)
        producer = multiprocessing.get_context("spawn").Process(
            target=produce, args=(place.root, games, servers, rate, seconds)
        )
        began_us = time.time_ns() // 1000
        producer.start()
        assert producer.pid is not None
        with Meter(apart={kafka.pid, producer.pid}, heap=heap_of(spark)) as meter:
            producer.join()
            behind = round(rate * seconds) + 10 * games - live.rows
            live.wait_for(round(rate * seconds) + 10 * games)
        live.end()
        spark.stop()
    if producer.exitcode:
        raise WrongRows(f"the producer ended with {producer.exitcode}")
    sent, ages = delays(config, work.names, began_us)
    if len(ages) != round(rate * seconds):
        raise WrongRows(f"{len(ages)} records in the tables, not {round(rate * seconds)}")
    is_warm = sent >= sent.min() + place.size(WARM_SEC, 1.0)
    p50, p95, p99 = (float(v) for v in np.percentile(ages[is_warm], (50, 95, 99)))
    early_p50, early_p95 = (float(v) for v in np.percentile(ages[~is_warm], (50, 95)))
    return {
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": float(ages[is_warm].max()),
        "first minute": {"p50": early_p50, "p95": early_p95},
        "batches": live.batches,
        "records not yet written when the load ended": behind,
        "cpu s": meter.usage.cpu_sec,
        "cores busy": meter.usage.cpu_sec / meter.usage.wall_sec,
        **meter.usage.memory_mib(),
    }


def produce(root: Path, games: int, servers: str, rate: int, seconds: float) -> None:
    """In a process of its own: the steady load."""
    produce_live(servers, TOPIC, Workload(root, games).games, rate=rate, seconds=seconds, partitions=CORES)


class Live:
    """The pipeline's run, in a thread, and how far it is."""

    def __init__(self, config: Pipeline, spark: Any) -> None:
        self.rows = 0
        self.batches = 0
        self.failed: BaseException | None = None
        self._run = Run(config, spark, self._count)
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def wait_for(self, rows: int) -> None:
        """Until so many rows are written. Raises what ended the run, or WrongRows when it takes too long."""
        end = time.monotonic() + SETTLE_SEC
        while self.rows < rows:
            if self.failed is not None:
                raise self.failed
            if time.monotonic() > end:
                raise WrongRows(f"{self.rows} of {rows} rows were written in {SETTLE_SEC:g} s")
            time.sleep(0.05)

    def end(self) -> None:
        self._run.stop()
        self._thread.join(60)

    def _go(self) -> None:
        try:
            self._run.go(once=False)
        except BaseException as e:
            self.failed = e

    def _count(self, report: BatchReport) -> None:
        self.rows += report.rows_written
        self.batches += 1


def delays(config: Pipeline, games: list[str], after_us: int) -> tuple[Any, Any]:
    """Of every record sent after this instant: when, in seconds, and how many seconds later it was committed."""
    moments, ages = [], []
    for game in games:
        table = DeltaTable(table_uri(config, game))
        commits = {int(c[BATCH_KEY]): int(c["timestamp"]) for c in table.history() if BATCH_KEY in c}
        origin = table.to_pyarrow_table(columns=["_origin"]).column("_origin").combine_chunks()
        sent = np.asarray(pc.cast(origin.field("timestamp"), pa.int64()))
        seen = np.array([commits[b] for b in origin.field("batch").to_pylist()], dtype=np.int64) * 1000
        is_load = sent >= after_us // 1000 * 1000
        moments.append(sent[is_load] / 1e6)
        ages.append((seen - sent)[is_load] / 1e6)
    say(f"{sum(map(len, ages)):,} records read back")
    return np.concatenate(moments), np.concatenate(ages)
