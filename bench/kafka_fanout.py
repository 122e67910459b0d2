"""From a Kafka topic to tables: wall time, CPU and memory of a warm batch."""

from __future__ import annotations

from contextlib import nullcontext
from statistics import median
from typing import Any

from tests.services.kafka import Kafka

from bench.bare_kafka import BareKafka
from bench.measure import MIB, Meter, heap_of
from bench.result import Case, Result
from bench.stream import HeldStream, Timed, written
from bench.workload import TOPIC, Place, Workload, check_games, check_tables, in_child, say, session
from distributary_simulate.games.sinks import write_kafka

NOTE = (
    "A warm batch of a running stream over a topic of 2 partitions whose records are there already: the stream has "
    "written batches before, and is held while the next one's records are produced. Seconds from the moment it goes "
    "on (offsets committed, trigger, broker asked) until tables and ledger are written; median. CPU seconds and memory "
    "are those of the driver, its JVM and the Python workers, without the broker's; memory is the peak of all three "
    "together, less what the JVM's heap holds, in MiB. Other, of the large batch, in turns with it: a plain process "
    "for each partition consumes the same records with confluent-kafka, opens the envelopes and decodes the payloads "
    "with ptars, and appends them with deltalake; no origin column, no checks, no offsets kept."
)
PARTITIONS = 2
WARM_BATCHES = 8
"""Of 100,000 rows; two of the large ones."""
OVER_HEAP_MIB = 2048
LARGE = 100_000
"""Rows of a table and batch from which on bare processes do the same beside it."""


def run(place: Place) -> Result:
    rounds = place.size(3, 1)
    shapes = place.size(((100, 1000), (1000, 100), (10, 200_000)), ((4, 30),))
    found = {shape: in_child(measure, place.part(f"{shape[0]}"), *shape, rounds) for shape in shapes}
    cases = []
    for (games, rows), values in found.items():
        label = f"{games} tables x {rows:,} rows"
        seconds, bare, details = values.pop("seconds"), values.pop("bare"), values
        if bare is not None:
            speed, limit = games * rows / seconds, games * rows / bare
            about = Case(label, "rows/s", speed, less_is_better=False, goal=800_000, goal_of="ours", details=details)
            cases += [
                about,
                Case(f"{label}, against bare processes", "rows/s", speed, limit, less_is_better=False, goal=0.7),
            ]
        else:
            goal = 0.5 if games <= 100 else 4.0
            cases.append(Case(label, "s", seconds, goal=goal, goal_of="ours", details=details))
        over = values["over_heap_mib"]
        cases.append(Case(f"{label}, memory over the heap", "MiB", over, goal=OVER_HEAP_MIB, goal_of="ours"))
    return Result("kafka_fanout", NOTE, tuple(cases))


def measure(place: Place, games: int, rows: int, rounds: int) -> dict[str, Any]:
    """One shape, with a broker of its own."""
    warm = place.size(WARM_BATCHES if games * rows <= 100_000 else 2, 1)
    work = Workload(place.root, games)
    with Kafka(place.root / "kafka") as kafka:
        source = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "topic": TOPIC}
        config = work.config("ours", source)

        def produce(number: int) -> None:
            blocks = work.games.envelope_blocks(1, rows, start=number * rows)
            write_kafka(kafka.bootstrap_servers, TOPIC, blocks, partitions=PARTITIONS)

        produce(0)
        spark = session()
        timed, bare = [], []
        limit = BareKafka(work, kafka.bootstrap_servers, PARTITIONS) if rows >= LARGE or place.quick else None
        with HeldStream(spark, config) as stream, limit or nullcontext():
            for number in range(1, rounds + warm + 1):
                apart = {kafka.pid, *(limit.pids if limit is not None else ())}
                meter = Meter(apart=apart, heap=heap_of(spark))
                batch = written(stream.batch(lambda n=number: produce(n), meter), games * rows)  # type: ignore[misc]
                seconds = limit.round() if limit is not None else 0.0
                say(f"{games} x {rows}: {batch.wall_sec:.2f} s, {batch.usage.cpu_sec:.2f} CPU s; bare {seconds:.2f} s")
                if number > warm:
                    timed.append(batch)
                    bare.append(seconds)
        check_games(config, rows * (rounds + warm + 1), work.names)
        if limit is not None:
            check_tables(limit.uris, rows * (rounds + warm + 1))
        spark.stop()
    return {**_summary(timed), "bare": median(bare) if limit is not None else None}


def _summary(timed: list[Timed]) -> dict[str, Any]:
    last = timed[-1].report.seconds
    return {
        "seconds": median(t.wall_sec for t in timed),
        "all": [t.wall_sec for t in timed],
        "cpu s": median(t.usage.cpu_sec for t in timed),
        "split": {k: last[k] for k in ("cut", "deliver")},
        **{
            f"{n}_mib": max(getattr(t.usage, n) for t in timed) // MIB for n in ("over_heap", "total", "jvm", "workers")
        },
        "heap_held_mib": max(t.usage.heap_held for t in timed) // MIB,
    }
