"""What Delta's features of a table cost: to write it, to merge into it, to read it and to keep it in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.result import Case, Result
from bench.workload import Place, Workload, WrongRows, batch_writer, say, session, table_uri

NOTE = (
    "Seconds of a warm batch of ours into one table of messages, median, in turns. Ours: the table with the feature. "
    "Other: a table without it that the same engine writes, so a ratio below 1 is what the feature costs. Then, of the "
    "same tables, each figure with the feature / without: bytes a row; a MERGE by Spark that changes one row in a "
    "hundred, in seconds, and in bytes of all files that it writes, the log's too, for each row it changes; Spark's "
    "`OPTIMIZE`; a query by Spark of all rows, and one of a single user's, before the MERGE and after `OPTIMIZE`."
)
WARM = 2
"""Batches before those that count."""

PLAIN = {"task": "no feature, written by tasks", "spark": "no feature, written by Spark"}
FEATURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "deletion vectors": ("task", {"properties": {"delta.enableDeletionVectors": "true"}}),
    "change data feed": ("task", {"properties": {"delta.enableChangeDataFeed": "true"}}),
    "row tracking": ("spark", {"properties": {"delta.enableRowTracking": "true"}}),
    "column mapping": ("spark", {"properties": {"delta.columnMapping.mode": "name"}}),
    "type widening": ("spark", {"properties": {"delta.enableTypeWidening": "true"}}),
    "in-commit timestamps": ("spark", {"properties": {"delta.enableInCommitTimestamps": "true"}}),
    "liquid clustering": ("spark", {"cluster_by": ["user_name"]}),
    "ten partitions": ("spark", {"partition_by": ["part"], "select": ["*", "substr(user_name, -1) AS part"]}),
}
"""Feature -> the engine that such a table has by itself, and what `tables` says for it."""


def run(place: Place) -> Result:
    spark = session()
    rows, batches = place.size((50_000, 5), (500, 1))
    features = {name: FEATURES[name] for name in place.size(tuple(FEATURES), ("deletion vectors", "liquid clustering"))}
    given: dict[str, tuple[str, Mapping[str, Any]]] = {
        PLAIN["task"]: ("task", {}),
        PLAIN["spark"]: ("spark", {"engine": "spark"}),
        **features,
    }
    tables = {
        name: _Table(place.part(f"table{n}"), spark, name, engine, settings, rows)
        for n, (name, (engine, settings)) in enumerate(given.items())
    }
    for number in range(WARM + batches):
        for table in tables.values():
            table.batch()
        say(f"batch {number}: " + ", ".join(f"{name} {table.seconds[-1]:.2f} s" for name, table in tables.items()))
    for step in (_Table.read, _Table.merge, _Table.optimize, _Table.read_again):
        for table in tables.values():
            step(table)
        say(f"{step.__name__} is done")
    plain = {engine: tables[name] for engine, name in PLAIN.items()}
    cases = [_case(plain["spark"], plain["task"])]
    cases += [_case(tables[name], plain[engine]) for name, (engine, _) in features.items()]
    return Result("table_features", NOTE, tuple(cases))


def _case(table: _Table, plain: _Table) -> Case:
    details = {name: f"{_short(found)} / {_short(plain.figures[name])}" for name, found in table.figures.items()}
    return Case(table.name, "s", table.batch_sec(), plain.batch_sec(), details=details)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


class _Table:
    """One table, from its first batch on. `figures`: what was found, by what it is."""

    def __init__(
        self, place: Place, spark: SparkSession, name: str, engine: str, settings: Mapping[str, Any], rows: int
    ) -> None:
        work = Workload(place.root, 1)
        work.feed_delta(rows)
        config = work.config("ours", work.delta_source(), tables={"root": str(work.root / "ours"), **settings})
        self.name, self.spark, self.engine, self.rows = name, spark, engine, rows
        self.reads = place.size(5, 1)
        self.source = str(work.root / "source")
        self.writer = batch_writer(spark, config)
        self.uri = table_uri(config, work.names[0])
        self.seconds: list[float] = []
        self.figures: dict[str, float] = {}

    def batch(self) -> None:
        records = self.spark.read.schema("value binary, timestamp timestamp").parquet(self.source)
        before, began = self._files(), time.monotonic()
        report = self.writer.take(records, "bench", len(self.seconds))
        self.seconds.append(time.monotonic() - began)
        if report is None or report.rows_written != self.rows:
            raise WrongRows(f"{self.name}: a batch of {self.rows} rows became {report}")
        if len(self.seconds) == 1 and self._engine() != self.engine:
            raise WrongRows(f"{self.name}: {self._engine()} has written it, not {self.engine}")
        self.figures["bytes a row"] = self._written(before, log=False) / self.rows

    def batch_sec(self) -> float:
        return median(self.seconds[WARM:])

    def read(self) -> None:
        self._read("before")

    def read_again(self) -> None:
        self._read("after")

    def _read(self, when: str) -> None:
        user = self.spark.sql(f"SELECT min(user_name) FROM {self._sql}").collect()[0][0]
        self.figures[f"all rows s, {when}"] = self._timed("")
        self.figures[f"one user s, {when}"] = self._timed(f"WHERE user_name = '{user}'")

    def merge(self) -> None:
        """Change one row in a hundred by a MERGE, as people write it."""
        picked = f"SELECT DISTINCT user_name, event_timestamp FROM {self._sql} WHERE {ONE_IN_100}"
        self.spark.sql(picked).write.parquet(f"{self.uri}-picked")
        changes = f"parquet.`{self.uri}-picked`"
        changed = self._count(f"SELECT count(*) FROM {self._sql} WHERE {ONE_IN_100}")
        before, began = self._files(), time.monotonic()
        self.spark.sql(
            f"MERGE INTO {self._sql} t USING {changes} c ON t.user_name = c.user_name AND "
            "t.event_timestamp = c.event_timestamp WHEN MATCHED THEN UPDATE SET game_name = 'changed'"
        )
        self.figures["merge s"] = time.monotonic() - began
        if not changed or self._count(f"SELECT count(*) FROM {self._sql} WHERE game_name = 'changed'") != changed:
            raise WrongRows(f"{self.name}: not just {changed} rows were changed")
        self.figures["merge bytes a changed row"] = self._written(before, log=True) / changed

    def optimize(self) -> None:
        began = time.monotonic()
        self.spark.sql(f"OPTIMIZE {self._sql}")
        self.figures["optimize s"] = time.monotonic() - began
        if self._count(f"SELECT count(*) FROM {self._sql}") != self.rows * len(self.seconds):
            raise WrongRows(f"{self.name}: rows were lost or doubled")

    @property
    def _sql(self) -> str:
        return f"delta.`{self.uri}`"

    def _count(self, query: str) -> int:
        return int(self.spark.sql(query).collect()[0][0])

    def _timed(self, where: str) -> float:
        """Median seconds of a query, which is warm."""
        query = f"SELECT count(event_timestamp), max(user_name) FROM {self._sql} {where}"
        self.spark.sql(query).collect()
        return median(_seconds(lambda: self.spark.sql(query).collect()) for _ in range(self.reads))

    def _engine(self) -> str:
        """Who made the table's first rows."""
        said: Sequence[Mapping[str, Any]] = DeltaTable(self.uri).history()
        return "spark" if any("Apache-Spark" in str(commit.get("engineInfo")) for commit in said) else "task"

    def _files(self) -> dict[str, int]:
        """Those of the table, without the checksums that Hadoop puts beside files on a disk."""
        found = Path(self.uri).rglob("*")
        return {str(path): path.stat().st_size for path in found if path.is_file() and path.suffix != ".crc"}

    def _written(self, before: Mapping[str, int], *, log: bool) -> int:
        """Bytes of the files that were not there before."""
        new = {name: size for name, size in self._files().items() if name not in before}
        return sum(size for name, size in new.items() if log or "_delta_log" not in name)


ONE_IN_100 = "pmod(xxhash64(user_name, event_timestamp), 100) = 0"


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
