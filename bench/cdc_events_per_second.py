"""Change files to log and merged tables, end to end, against the bare limit and against a stream per table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionConfig, SessionContext
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from bench.result import Case, Result
from bench.workload import CORES, Place, WrongRows, in_child, say
from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.running.stream import RUN_CONF
from distributary.running.stream import run as run_pipeline
from distributary.spark.session import build_session
from distributary_simulate.change_files.bulk import BulkPlan, BulkTable, write_bulk

NOTE = (
    "Change events per second: 20 MySQL tables of ten columns, avro files as Datastream writes them. Ours: a whole run "
    "over a backlog, warm batches of about 1,000,000 events, from one finished batch to the next: Spark's stream, file "
    "ledger, reading, log tables, reduction, merge, ledger. The limit: as many plain Python processes as there are "
    "cores read the same files with DataFusion (without the `sort_keys`, which it cannot read), write the events with "
    "deltalake, take the newest per key with DataFusion and merge with deltalake; nothing is checked, typed or kept "
    "aside. Other: a Spark stream per table, as connectors do it today: readStream avro, foreachBatch, append, MERGE; "
    "fewer events, since it takes so long. The split adds up the seconds of all tasks."
)
AVRO = "org.apache.spark:spark-avro_2.13:4.2.0"
TABLES = 20


def run(place: Place) -> Result:
    events, rounds = place.size((1_000_000, 4), (20_000, 2))
    plan = BulkPlan(place.root / "files", events=events * rounds, tables=TABLES, keys=10_000)
    made = write_bulk(plan)
    size = sum(t.bytes for t in made.values())
    ours, split = in_child(_ours, place.root, size // rounds)
    _check(place.root / "ours", made)
    say(f"ours {ours:,.0f} events/s")
    limit = _limit(plan.root, place.root / "limit", sum(t.events for t in made.values()))
    say(f"the limit {limit:,.0f} events/s")
    few = BulkPlan(place.root / "few", events=place.size(200_000, 10_000), tables=TABLES, keys=10_000)
    write_bulk(few)
    other = in_child(_streams, few.root, place.root / "other", few.events)
    say(f"a stream per table {other:,.0f} events/s")
    details = {
        "the limit": limit,
        "ours / the limit": ours / limit,
        "seconds": split,
        "bytes per event": size / plan.events,
    }
    cases = (
        Case("ours, against 200,000", "events/s", ours, None, False, goal=200_000, goal_of="ours", details=details),
        Case("against the bare limit", "events/s", ours, limit, False, goal=0.5),
        Case("against a stream per table", "events/s", ours, other, False, goal=10),
    )
    return Result("cdc_events_per_second", NOTE, cases)


# -- ours --------------------------------------------------------------------------------------------------


def _ours(root: Path, batch_bytes: int) -> tuple[float, dict[str, float]]:
    config = Pipeline.model_validate(
        {
            "pipeline": "ours",
            "source": {
                "type": "datastream",
                "path": str(root / "files"),
                "max_bytes_per_batch": int(batch_bytes * 1.02),
                "max_files_per_batch": 10_000,
            },
            "tables": {"root": str(root / "ours")},
            "spark": {"master": f"local[{CORES}]"},
        }
    )
    ends: list[tuple[float, BatchReport]] = []
    run_pipeline(config, once=True, progress=lambda report: ends.append((time.monotonic(), report)))
    rates = [b.rows_in / (at - before) for (before, _), (at, b) in pairwise(ends)]
    last = ends[-1][1].seconds
    return median(rates), {name: round(value, 2) for name, value in last.items()}


def _check(lake: Path, made: Mapping[str, BulkTable]) -> None:
    """Every event is in its log, and the living rows are the source's."""
    for route, table in made.items():
        name = route.replace(".", "_")
        if (found := DeltaTable(str(lake / f"{name}_log")).to_pyarrow_dataset().count_rows()) != table.events:
            raise WrongRows(f"{name}_log: {found} events, not {table.events}")
        rows = DeltaTable(str(lake / name)).to_pyarrow_table(columns=["id", "revision", "_deleted"])
        rows = rows.filter(pc.invert(rows.column("_deleted"))).sort_by("id")
        ids, revisions = table.alive
        if rows.column("id").to_pylist() != ids.tolist() or rows.column("revision").to_pylist() != revisions.tolist():
            raise WrongRows(f"{name}: not the rows of the source")


# -- the bare limit ----------------------------------------------------------------------------------------


def _limit(files: Path, lake: Path, events: int) -> float:
    folders = sorted(str(p) for p in files.iterdir())
    shares = [folders[n::CORES] for n in range(CORES)]
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        list(pool.map(_warm, shares))
        started = time.monotonic()
        list(pool.map(_bare, shares, [str(lake)] * CORES))
        return events / (time.monotonic() - started)


def _warm(share: Sequence[str]) -> None:
    path = next(Path(share[0]).rglob("*.avro"))
    _read([str(path)])


def _bare(share: Sequence[str], lake: str) -> None:
    for folder in share:
        paths = sorted(str(p) for p in Path(folder).rglob("*.avro"))
        name = Path(folder).name
        # About as many events of a table at a time as one batch of ours has.
        for begin in range(0, len(paths), 2):
            rows = _read(paths[begin : begin + 2])
            write_deltalake(f"{lake}/{name}_log", rows, mode="append", schema_mode="merge")
            _merge(f"{lake}/{name}", _newest(rows))


def _read(paths: Sequence[str]) -> pa.Table:
    parts = []
    for path in paths:
        context = SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(65_536))
        rows = context.read_avro(path)
        parts.append(rows.select(*(n for n in rows.schema().names if n != "sort_keys")).to_arrow_table())
    rows = pa.concat_tables(parts)
    payload = rows.column("payload").combine_chunks()
    columns = {f.name: pc.struct_field(payload, f.name) for f in payload.type}
    others = {n: rows.column(n) for n in rows.column_names if n != "payload"}
    return pa.table({**columns, **others})


def _newest(rows: pa.Table) -> pa.Table:
    context = SessionContext(SessionConfig().with_target_partitions(1))
    context.register_record_batches("events", [rows.to_batches()])
    order = "source_metadata['log_file'] DESC, source_metadata['log_position'] DESC"
    numbered = f"SELECT *, row_number() OVER (PARTITION BY id ORDER BY {order}) AS n FROM events"
    return context.sql(f"SELECT * FROM ({numbered}) WHERE n = 1").to_arrow_table().drop_columns(["n"])


def _merge(uri: str, rows: pa.Table) -> None:
    if not DeltaTable.is_deltatable(uri):
        write_deltalake(uri, rows)
        return
    newer = "s.source_metadata['log_position'] > t.source_metadata['log_position']"
    merge = DeltaTable(uri).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all(predicate=newer).when_not_matched_insert_all().execute()


# -- a stream per table ------------------------------------------------------------------------------------


def _streams(files: Path, lake: Path, events: int) -> float:
    spark = build_session(
        "bench",
        master=f"local[{CORES}]",
        conf={**RUN_CONF, "spark.driver.memory": "3g"},
        packages=[AVRO],
        local_state=True,
    )
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    folders = sorted(files.iterdir())
    schema = spark.read.format("avro").load(str(next(folders[0].rglob("*.avro")))).schema
    started = time.monotonic()
    queries = [_stream(spark, folder, schema, lake) for folder in folders]
    for query in queries:
        query.awaitTermination()
    return events / (time.monotonic() - started)


def _stream(spark: SparkSession, folder: Path, schema: Any, lake: Path) -> Any:
    log, merged = str(lake / f"{folder.name}_log"), str(lake / folder.name)

    def batch(rows: DataFrame, _: int) -> None:
        rows.persist()
        rows.write.format("delta").mode("append").option("mergeSchema", "true").save(log)
        newest = rows.selectExpr(
            "payload.*", "source_timestamp", "source_metadata",
            "row_number() OVER (PARTITION BY payload.id ORDER BY source_timestamp DESC, source_metadata.log_file DESC, "
            "source_metadata.log_position DESC) AS n",
        ).where("n = 1").drop("n")  # fmt: skip
        if not SparkDeltaTable.isDeltaTable(rows.sparkSession, merged):
            newest.write.format("delta").save(merged)
        else:
            target = SparkDeltaTable.forPath(rows.sparkSession, merged).alias("t")
            newer = "s.source_timestamp >= t.source_timestamp"
            merge = target.merge(newest.alias("s"), "t.id = s.id").whenMatchedUpdateAll(newer)
            merge.whenNotMatchedInsertAll().execute()
        rows.unpersist()

    stream = spark.readStream.format("avro").schema(schema).option("maxFilesPerTrigger", 2)
    writer = stream.load(f"{folder}/*/*/*/*/*").writeStream.foreachBatch(batch).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(lake / "checkpoints" / folder.name)).start()
