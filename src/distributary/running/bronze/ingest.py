"""Hop 1: source -> bronze, one stream, exactly once by Spark's own Delta sink.

The sink writes (query id, batch id) into each commit of bronze and skips a batch that is there (Delta Lake,
`DeltaSink`, transaction identifiers), so a crash at any moment is repaired by running the batch again. Nothing else is
written: records without a route are in bronze too, and hop 2 brings them into the pipeline's quarantine.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from distributary.config import HopFolder, Pipeline
from distributary.engine.batch import BatchReport
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.schemas import schemas_of
from distributary.engine.workers import told_death
from distributary.errors import DistributaryError
from distributary.running.bronze.bronze_table import (
    Start,
    check_hop_1,
    first_hop,
    hop_1_checkpoint,
    hop_1_state,
    make_bronze,
    schema_of,
)
from distributary.running.bronze.unwrap import EnvelopeQuestions, unwrap_task
from distributary.running.failures import translated, tries
from distributary.running.report import build
from distributary.running.stream import rest_sec, triggered
from distributary.sources.bronze_rows import KEY
from distributary.state.checkpoint import TopicIdsSeen, position_after, read_offsets, stream_id
from distributary.state.identity import SourceIdentity
from distributary.state.journal import Refusals
from distributary.state.ledger import Ledger
from distributary.tables.faults import writing
from distributary.tables.snapshot import Snapshot
from distributary.tables.spark_engine import SPARK_ERRORS
from distributary.tables.store import Store

STREAM = "bronze"
"""In place of a stream id in the reports of hop 1."""
"""In hop 1's state folder: the ids of the envelope schemas that have come so far."""
LOOK_SEC = 1
ASK_AGAIN_SEC = 30.0
"""So often an envelope schema that the registry did not have is asked for again."""


class Ingest:
    """Hop 1 of one pipeline, in this process."""

    def __init__(self, config: Pipeline, spark: SparkSession, progress: Callable[[BatchReport], None]) -> None:
        self.config = config
        self.spark = spark
        self.progress = progress
        self.store = Store.of(config.tables)
        self.envelopes = Envelopes(config, schemas_of(config))
        self.refused: Refusals = {}
        self.query: StreamingQuery | None = None
        self._known: set[int] = set()
        self._asked = EnvelopeQuestions(HopFolder(hop_1_state(config)).asked, self.store)
        self.identity = SourceIdentity(first_hop(config), self.store)
        self._start: Start | None = None
        self._outages = 0
        self._careful = False
        """A worker has died: envelopes are tried in processes apart first, until a batch is through."""
        self._stopping = threading.Event()

    @property
    def outages(self) -> int:
        """Since the last batch that went through."""
        return self._outages

    def go(self, once: bool) -> None:
        """Run to the end (`once`), or until `stop`. Raises CheckpointLost, SourceDataLost, and what ends the stream."""
        start = self._start or self.begin()
        while not self._stopping.is_set():
            try:
                if self._run_query(start, once):
                    return
            except DistributaryError as e:
                self._outages += 1
                if not e.retryable or self._outages > tries(e, once):
                    raise
                self._stopping.wait(rest_sec(self._outages))

    def stop(self) -> None:
        """End it. A batch that is cut off is taken again by the next run; bronze has all of a batch or nothing."""
        self._stopping.set()
        if self.query is not None:
            self.query.stop()

    # -- before the first batch ----------------------------------------------------------------------------

    def begin(self) -> Start:
        """Make bronze, see whether the stream may go on. Raises as `go`."""
        with writing(self.config.bronze_path):
            table = make_bronze(self.config, self.store)
            start = check_hop_1(self.config, table, self.store)
            self._check_topics(table, start)
            envelope_ids = json.loads(self.store.get(hop_1_state(self.config), HopFolder.envelopes.name) or b"[]")
        # One that tasks are not given costs a batch as many attempts as `spark.task.maxFailures` says.
        self._learn(set(envelope_ids) | self.envelopes.registered())
        self._start = start
        return start

    def _check_topics(self, table: Snapshot, start: Start) -> None:
        checkpoint = hop_1_checkpoint(self.config)
        stream = stream_id(checkpoint, self.store)
        last_batch = -1 if stream is None else table.newest(stream)
        offsets = read_offsets(checkpoint, self.store, last_batch) or [] if last_batch >= 0 else []
        if start.offsets is not None:
            offsets = [dict(start.offsets)]
        seen_ids = TopicIdsSeen(hop_1_state(self.config), self.store)
        if lost := self.identity.source.lost(offsets[0] if offsets else {}, seen_ids):
            Ledger(self.config.state_root, self.config.pipeline, self.store).note_loss(lost)

    def _learn(self, ids: set[int]) -> None:
        """Look envelope schemas up; those that the registry does not have set their rows apart."""
        newly = self.envelopes.learn(ids, {})
        self.refused = {**{i: why for i, why in self.refused.items() if i not in ids}, **newly}
        self._known |= ids
        self.store.put_whole(
            hop_1_state(self.config), HopFolder.envelopes.name, json.dumps(sorted(self._known)).encode()
        )

    # -- the stream ----------------------------------------------------------------------------------------

    def _run_query(self, start: Start, once: bool) -> bool:
        """One query from its start to its end; False when it must begin again with more envelope schemas."""
        writer = self._rows(start).writeStream.format("delta").partitionBy(KEY).option("mergeSchema", "true")
        writer = writer.option("checkpointLocation", hop_1_checkpoint(self.config)).outputMode("append")
        try:
            self.query = triggered(writer, self.config, once).start(self.config.bronze_path)
            if self._stopping.is_set():
                self.query.stop()
            return self._watch(self.query)
        except SPARK_ERRORS as e:
            if self._stopping.is_set():
                return True
            if unknown := self._asked.take() - self._known:
                self._learn(unknown)
                return False
            if told_death(str(e)) and not self._careful:
                self._careful = True
                return False
            raise translated(e, build(self.config).source, hop_1_checkpoint(self.config)) from e

    def _rows(self, start: Start) -> DataFrame:
        config, schema, source = self.config, schema_of(self.config), self.identity.source
        if start.offsets is not None:
            source = source.beginning_at(start.offsets)
        reader = replace(self.envelopes.begin(), share=None, refused=self.refused)
        same = self.identity.for_tasks()
        task = partial(
            unwrap_task, reader=reader, schema=schema, questions=self._asked, same=same, careful=self._careful
        )
        rows = source.stream(self.spark, all_shares=True).mapInArrow(task, from_arrow_schema(schema))
        if "delta.autoOptimize.optimizeWrite" in config.bronze.properties:
            return rows
        # Each route's rows in one task, so that a batch adds one file per route and not one per route and task.
        return rows.repartition(self.spark.sparkContext.defaultParallelism, KEY)

    def _watch(self, query: StreamingQuery) -> bool:
        """Wait for the query's end, and tell of its batches."""
        told_batch, asked_at, seen_time = -1, time.monotonic(), None
        over = False
        while not over:
            over = bool(query.awaitTermination(LOOK_SEC))
            # Spark keeps a hundred, and each is a call to the JVM: they are asked for when there is a new one.
            newest = query.lastProgress
            if newest is not None and newest["timestamp"] != seen_time:
                seen_time = newest["timestamp"]
                self._check_source(query, int(newest["batchId"]))
                for report in query.recentProgress:
                    if report["batchId"] > told_batch and report["numInputRows"]:
                        told_batch = report["batchId"]
                        self._outages = 0
                        self.progress(_report(report))
                self._tell(told_batch)
                if self._careful and told_batch >= 0:
                    self._careful = False
                    query.stop()
                    return False
            if self.refused and time.monotonic() > asked_at + ASK_AGAIN_SEC:
                asked_at = time.monotonic()
                if self._found_again():
                    query.stop()
                    return False
        return True

    def _tell(self, batch: int) -> None:
        if batch >= 0:
            checkpoint = hop_1_checkpoint(self.config)
            self.identity.source.decided(partial(position_after, checkpoint, self.store, batch))

    def _check_source(self, query: StreamingQuery, batch: int) -> None:
        """After each batch: is the source still the one that the stream began with? The batch's own tasks have asked
        (`SameSource`); here a loss that is agreed to is noted, and the ids of topics that are new.

        Raises SourceDataLost, SourceReplaced, SourceMissing, SourceDown.
        """
        try:
            lost = self.identity.check(batch)
        except BaseException:
            query.stop()
            raise
        if lost:
            Ledger(self.config.state_root, self.config.pipeline, self.store).note_loss(lost)

    def _found_again(self) -> bool:
        """Has the registry got an envelope schema now that it did not have?"""
        before = set(self.refused)
        try:
            self._learn(before)
        except DistributaryError:
            return False
        return before != set(self.refused)


def _report(progress: Any) -> BatchReport:
    """Spark's progress as a batch's report: rows into bronze."""
    rows = int(progress["numInputRows"])
    return BatchReport(
        stream=STREAM,
        batch=int(progress["batchId"]),
        rows_in=rows,
        rows_written=rows,
        rows_quarantined=0,
        tombstones=0,
        tables=1,
        created=(),
        evolved=(),
        parked=(),
        recovered=(),
        seconds={"total": progress["durationMs"].get("triggerExecution", 0) / 1000},
    )
