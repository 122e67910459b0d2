"""Throughput of the whole pipeline, against the bare limit: plain processes decode and write the same payloads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig
from pyspark.sql import DataFrame, SparkSession

from bench.measure import Meter
from bench.result import Case, Result
from bench.stream import LONGEST_BATCH_SEC, HeldStream, written
from bench.workload import (
    CORES,
    Place,
    ReadyProcesses,
    Workload,
    WrongRows,
    check_games,
    check_tables,
    in_child,
    say,
    session,
)
from distributary.config import DeltaSource, Pipeline
from distributary.schemas.protobuf.framing import split_frames
from distributary.sources.delta import ORIGIN_COLUMNS

NOTE = (
    "Rows per second of a warm batch for 10 games, median. Ours: a running stream over a Delta "
    "source, from the trigger through envelope, shuffle, decoding, commits and ledger. Other, in turns with it: the "
    "bare payloads of the same rows, in memory and sorted by game beforehand, decoded by ptars and appended by "
    "deltalake in as many plain Python processes as there are cores; no envelope, no origin column, no checks. The "
    "source is written by another Spark process, as bronze tables are. Our tasks read its files themselves. The "
    "hand-over is what that spares: a batch of a stream over the same source that only hands its rows to Python "
    "functions that count them."
)
GAMES = 10
FILES = 10
"""Files of a batch in the source."""

WARM_ROUNDS = 16
"""So many, for the JVM's compiler takes a part of both cores while a stream is young."""
WIDE, NARROW = 12, 1
"""Versions of the games' event: 16 columns and 184 bytes a row, 5 columns and 56 bytes."""


def run(place: Place) -> Result:
    if place.quick:
        return Result("pipeline_vs_limit", NOTE, (_case(place, WIDE, "16 columns", 300, 1, 1),))
    wide = _case(place.part("wide"), WIDE, "16 columns", 100_000, WARM_ROUNDS, 3, goal=0.85)
    large = _case(place.part("large"), WIDE, "16 columns", 400_000, WARM_ROUNDS // 4, 3)
    narrow = _case(place.part("narrow"), NARROW, "5 columns", 100_000, WARM_ROUNDS, 3, goal=0.6)
    return Result("pipeline_vs_limit", NOTE, (wide, large, narrow))


def _case(
    place: Place, version: int, columns: str, rows: int, warm: int, rounds: int, goal: float | None = None
) -> Case:
    """Batches of `rows` rows of each game: `warm` that do not count, then `rounds`."""
    work = Workload(place.root, GAMES)
    spark = session()
    config = work.config("ours", work.delta_source())
    limit = Limit(work, rows, version)
    ours, other, splits, usages = [], [], [], []
    with SparkWriter(work, rows, version) as source, HeldStream(spark, config) as stream, limit:
        for number in range(warm + rounds):
            feed = partial(source.feed, number + 1)
            timed = written(stream.batch(feed, Meter(every=LONGEST_BATCH_SEC)), rows * GAMES)
            bare = limit.round()
            say(f"{columns}: ours {timed.wall_sec:.2f} s {dict(timed.report.seconds)}, bare {bare:.2f} s")
            if number >= warm:
                ours.append(timed.wall_sec)
                other.append(bare)
                usages.append(timed.usage)
                splits.append({**timed.report.seconds, "wall": timed.wall_sec})
    handover = hand_over(spark, config, warm + rounds + 1, rows * GAMES)
    check_games(config, rows * (warm + rounds + 1), work.names)
    check_tables(limit.uris, rows * (warm + rounds))
    split = {key: median(s[key] for s in splits) for key in ("cut", "deliver")}
    split["ledger, offsets, trigger"] = median(s["wall"] - s["cut"] - s["deliver"] for s in splits)
    split["hand-over alone"] = handover
    total = rows * GAMES
    details = {
        "seconds of ours": split,
        "CPU seconds of ours": {kind: median(u.cpu_by_kind[kind] for u in usages) for kind in usages[0].cpu_by_kind},
        "CPU seconds of other": median(other) * CORES,
        "cores busy": median(u.cpu_sec / u.wall_sec for u in usages),
    }
    return Case(
        f"{GAMES} games x {rows:,} rows of {columns}", "rows/s", total / median(ours), total / median(other),
        less_is_better=False, goal=goal, details=details,
    )  # fmt: skip


def hand_over(spark: SparkSession, config: Pipeline, batches: int, rows: int) -> float:
    """Seconds of a stream's batch that reads `rows` rows of the source, hands them to Python, and does nothing else.

    The source has been fed `batches` times.
    """
    assert isinstance(config.source, DeltaSource)
    files = len(DeltaTable(config.source.path).file_uris()) // batches
    table = spark.readStream.format("delta").option("maxFilesPerTrigger", files).load(config.source.path)
    wanted = table.select(config.source.value, *(c for c in ORIGIN_COLUMNS if c in table.columns))

    def batch(found: DataFrame, _: int) -> None:
        taken = found.mapInArrow(count, "rows bigint").collect()
        if sum(row.rows for row in taken) != rows:
            raise WrongRows(f"{taken} rows in a batch, not {rows}")

    query = wanted.writeStream.foreachBatch(batch).trigger(availableNow=True).start()
    query.awaitTermination()
    return median(found.durationMs["triggerExecution"] for found in query.recentProgress[1:]) / 1000


def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: only how many rows there are."""
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


class SparkWriter:
    """Feeds the source from a Spark of its own, so that each version has the checksum file that Spark writes.

    Within its `with` the source has the rows of one batch from the beginning.
    """

    def __init__(self, work: Workload, rows: int, version: int) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._given = work.root, rows, version

    def __enter__(self) -> Self:
        self.feed(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def feed(self, number: int) -> None:
        """Append envelopes, the same number of rows of every game, in `FILES` files."""
        self._pool.submit(append_by_spark, *self._given, number).result()


def append_by_spark(root: Path, rows: int, version: int, number: int) -> None:
    """In a process of its own: one append to the source."""
    table = Workload(root, GAMES).games.envelopes_table(version, rows, start=number * rows)
    frame = session("3g").createDataFrame(table).repartition(FILES)
    frame.write.format("delta").mode("append").save(str(root / "source"))


class Limit(ReadyProcesses):
    """As many processes as cores; each decodes and appends its share of the games, again each round."""

    def __init__(self, work: Workload, rows: int, version: int) -> None:
        self.uris = {game: str(work.root / "bare" / game) for game in work.names}
        folder = work.root / "payloads"
        in_child(payloads, work.root, rows, version, folder)
        tasks = [
            (work.compiled(game, version).descriptor_set, str(folder / game), self.uris[game]) for game in work.names
        ]
        super().__init__(prepare, [(tasks[core::CORES],) for core in range(CORES)], decode_and_write)


def payloads(root: Path, rows: int, version: int, folder: Path) -> None:
    """Each game's bare payloads as an Arrow file."""
    work = Workload(root, GAMES)
    table = work.games.envelopes_table(version, rows, start=rows, columns=True)
    folder.mkdir()
    for game in work.names:
        framed = table.filter(pa.compute.equal(table["game_name"], game))["payload"].combine_chunks()
        body = split_frames(framed).body
        batch = pa.record_batch([body], names=["payload"])
        with pa.OSFile(str(folder / game), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write(batch)


_READY: list[tuple[HandlerPool, object, pa.Array, str]] = []
"""What `prepare` left in this process."""


def prepare(tasks: list[tuple[bytes, str, str]]) -> None:
    """In a worker process: load the payloads and build the decoders."""
    for descriptor_set, path, uri in tasks:
        files = FileDescriptorSet.FromString(descriptor_set).file
        pool = DescriptorPool()
        for file in files:
            pool.Add(file)
        message = pool.FindFileByName(files[-1].name).message_types_by_name["event"]
        handlers = HandlerPool([message.file], PtarsConfig(timestamp_unit="us"))
        with pa.memory_map(path) as source:
            column = pa.ipc.open_file(source).read_all().column(0).combine_chunks()
        array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        _READY.append((handlers, message, array, uri))


def decode_and_write() -> None:
    """In a worker process: one round of its games."""
    for handlers, message, array, uri in _READY:
        batch = handlers.get_for_message(message).array_to_record_batch(array)
        write_deltalake(uri, batch, mode="append")
