"""More and more tables for the same rows: seconds of a batch, and whether memory stays flat over many batches."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.measure import MIB, Meter, heap_of, live_heap
from bench.result import Case, Result
from bench.workload import Place, Workload, WrongRows, batch_writer, check_games, in_child, say, session

NOTE = (
    "Seconds of a warm batch of 100,000 rows spread over so many tables, median; each case in a process of its own. Up "
    "to 3,000 tables have had their first checkpoint before; of 10,000 each batch makes some of these. Memory in MiB "
    "at the start and at the end of the batches: the driver's Python, Spark's Python workers, and what the JVM's "
    "objects need after a full collection. Peak: of all three together, less what the JVM's heap holds."
)
WARM_BATCHES = 22
"""Then each table has its first checkpoint, which delta-rs makes: it costs as much as nine appends."""
MOST_WARMED = 3000
"""Tables; of more, the batches would take a quarter of an hour."""
GOALS = {1000: 1.0, 3000: 3.5, 10_000: 12.0}


def run(place: Place) -> Result:
    rows = place.size(100_000, 400)
    tables = place.size((1000, 10, 100, 300, 3000, 10_000), (8, 4))
    cases = []
    for count in tables:
        batches = place.size({1000: 40, 10_000: 4}.get(count, 8), 4)
        found = in_child(measure, place.part(str(count)), count, rows // count, batches)
        say(f"{count} tables: {found['median']:.2f} s a batch")
        details = {
            k: found[k]
            for k in ("batches", "first", "last", "cpu s", "memory at start", "memory at end", "peak", "split")
        }
        cases.append(
            Case(f"{count} tables", "s", found["median"], goal=GOALS.get(count), goal_of="ours", details=details)
        )
    return Result("tables_scale", NOTE, tuple(cases))


def measure(place: Place, tables: int, rows: int, batches: int) -> dict[str, Any]:
    """Batches of the same input into the same tables; the first ones make the tables and warm up."""
    warm = place.size(WARM_BATCHES if tables <= MOST_WARMED else 6, 2)
    work = Workload(place.root, tables)
    work.feed_delta(rows)
    spark = session()
    made = {"root": str(place.root / "ours"), "max_new_tables": 10_000}
    config = work.config("ours", work.delta_source(), tables=made)
    writer = batch_writer(spark, config)
    seconds, cpu, memory, split, peak = [], [], [], {}, 0
    for batch in range(batches + warm):
        frame = spark.read.format("delta").load(str(place.root / "source")).select("value", "timestamp")
        with Meter(heap=heap_of(spark)) as meter:
            report = writer.take(frame, "bench", batch)
        if report is None or report.rows_written != rows * tables:
            found = None if report is None else (report.rows_written, report.rows_quarantined)
            raise WrongRows(f"batch {batch} of {rows * tables} rows: (written, quarantined) are {found}")
        seconds.append(meter.usage.wall_sec)
        cpu.append(meter.usage.cpu_sec)
        split = dict(report.seconds)
        if batch in (warm, batches + warm - 1):
            usage = meter.usage
            live = round(live_heap(spark) / MIB)
            memory.append({"driver": usage.driver // MIB, "workers": usage.workers // MIB, "jvm_objects": live})
        peak = max(peak, meter.usage.over_heap // MIB)
    check_games(config, rows * (batches + warm), work.names)
    measured = seconds[warm:]
    return {
        "median": median(measured),
        "batches": batches,
        "first": measured[0],
        "last": measured[-1],
        "cpu s": median(cpu[warm:]),
        "memory at start": memory[0],
        "memory at end": memory[-1],
        "peak": peak,
        "split": split,
    }
