"""Every metric, once: name, kind, unit, labels, meaning, remedy, the panel that draws it, the alert that watches it.

docs/metrics.md, the Grafana dashboard and the alert rules in deploy/ are made from this list; `board` may say nothing
that is not in it. All metrics have the labels `pipeline` and `stream` besides their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MetricKind = Literal["counter", "gauge"]
PREFIX: Final = "distributary_"
COMMON: Final = ("pipeline", "stream")
"""Labels of all metrics. `stream`: `whole`, or the cluster of a pipeline that is spread over several."""
OTHER: Final = "(other)"
"""The route label of all routes without series of their own."""
NO_ROUTE: Final = "(none)"
"""The route label of records of which nobody can say a route."""


@dataclass(frozen=True)
class Alert:
    """A rule of Prometheus. `when`: its expression; `lasts`: so long it must hold."""

    name: str
    when: str
    lasts: str
    severity: Literal["page", "ticket"]
    summary: str


@dataclass(frozen=True)
class Metric:
    """`series`: its name in Prometheus. `panel`: the expression that the dashboard draws; None: none.

    `remedy`: what to do when it is not as it should be.
    """

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    remedy: str
    labels: tuple[str, ...] = ()
    panel: str | None = None
    alert: Alert | None = None

    @property
    def series(self) -> str:
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def otlp(self) -> str:
        """Its name in OpenTelemetry."""
        return f"{PREFIX[:-1]}.{self.name}"


_QUARANTINE = (
    "`distributary quarantine FILE` says what was found, with a sample and what to do; then `distributary replay FILE`."
)
_STATUS = "`distributary status FILE` says why."
_SPARK = (
    "Compare with `trigger.every`: when batches take longer than that, give Spark more cores, or spread the routes."
)

METRICS: Final = (
    # -- the stream ----------------------------------------------------------------------------------------
    Metric(
        "up",
        "gauge",
        "1",
        "1 while the stream runs, also while it rests after an outage; 0 once it has failed.",
        "The run's last line says why it ended, and what to do.",
        panel="distributary_up",
        alert=Alert(
            "DistributaryStreamDown",
            "distributary_up == 0 or absent(distributary_up)",
            "5m",
            "page",
            "A stream has failed, or its process is gone: read its last lines, then start it again",
        ),
    ),
    Metric(
        "outages",
        "gauge",
        "outages",
        "Outages of source, registry or store since the last batch that went through.",
        "The log names the service that is away. Nothing is lost: the batch is tried again by itself.",
        panel="distributary_outages",
        alert=Alert(
            "DistributaryOutage",
            "distributary_outages > 3",
            "5m",
            "page",
            "A stream cannot get a batch through: source, registry or store is away (its log says which)",
        ),
    ),
    Metric(
        "batches",
        "counter",
        "batches",
        "Batches that were decided.",
        _SPARK,
        panel="rate(distributary_batches_total[5m])",
    ),
    Metric(
        "last_batch_timestamp_seconds",
        "gauge",
        "s",
        "When the last batch was decided, in seconds since 1970. Without new rows there is no batch.",
        "Old, while `data_available` is 1: a batch hangs or fails. Its log says in which phase. " + _STATUS,
        panel="time() - distributary_last_batch_timestamp_seconds",
        alert=Alert(
            "DistributaryStandsStill",
            "(time() - distributary_last_batch_timestamp_seconds > 900)"
            " and on (pipeline, stream) (distributary_data_available == 1)",
            "15m",
            "page",
            "There are new rows, and no batch was decided for 15 minutes",
        ),
    ),
    Metric(
        "data_available",
        "gauge",
        "1",
        "1 while Spark has new rows for a batch or is at one, 0 while it waits for some.",
        "Always 1: the stream never catches up. " + _SPARK,
        panel="avg_over_time(distributary_data_available[15m])",
    ),
    Metric("last_batch", "gauge", "1", "Number of the last batch, as log lines and `history` say it.", "None."),
    Metric(
        "batch_seconds",
        "counter",
        "s",
        "Time that batches took, by phase; phase `total` is the whole of a batch.",
        "The phase that grew says where: reading and decoding, writing, the ledger. " + _SPARK,
        ("phase",),
        panel="sum by (phase) (rate(distributary_batch_seconds_total[5m]))"
        " / ignoring (phase) group_left () sum (rate(distributary_batches_total[5m]))",
    ),
    Metric(
        "last_batch_seconds",
        "gauge",
        "s",
        "Time that the last batch took, by phase.",
        _SPARK,
        ("phase",),
        panel='distributary_last_batch_seconds{phase="total"}',
    ),
    # -- rows, by route ------------------------------------------------------------------------------------
    Metric(
        "rows_in",
        "counter",
        "rows",
        "Rows that came, each of which is written or quarantined.",
        "A route that falls silent: ask its producer.",
        ("route",),
        panel="topk(10, sum by (route) (rate(distributary_rows_in_total[5m])))",
    ),
    Metric(
        "rows_written",
        "counter",
        "rows",
        "Rows that were written to the route's table, those of replays too.",
        "Fewer than `rows_in`: see `rows_quarantined`.",
        ("route",),
        panel="topk(10, sum by (route) (rate(distributary_rows_written_total[5m])))",
    ),
    Metric(
        "bytes_written",
        "counter",
        "By",
        "Bytes of the files that were added to the route's table; not of wide tables, nor where Spark wrote them.",
        "Few bytes a commit make many small files: see `maintenance`.",
        ("route",),
        panel="topk(10, sum by (route) (rate(distributary_bytes_written_total[5m])))",
    ),
    Metric(
        "rows_quarantined",
        "counter",
        "rows",
        "Rows that were set aside, by reason (docs/quarantine.md).",
        _QUARANTINE,
        ("route", "reason"),
        panel="topk(10, sum by (route, reason) (rate(distributary_rows_quarantined_total[5m])))",
        alert=Alert(
            "DistributaryRowsRefused",
            'sum by (pipeline, stream) (rate(distributary_rows_quarantined_total{reason!="TABLE_PARKED"}[15m]))'
            " > 0.01 * sum by (pipeline, stream) (rate(distributary_rows_in_total[15m]))",
            "15m",
            "ticket",
            "More than one row in a hundred is set aside: distributary quarantine FILE says why",
        ),
    ),
    Metric(
        "tombstones",
        "counter",
        "records",
        "Records without a value.",
        "None: they are counted, and written nowhere.",
        ("route",),
    ),
    Metric(
        "rows_excluded",
        "counter",
        "rows",
        "Records of routes that the pipeline file leaves out.",
        "See `tables.include`, `tables.exclude`.",
    ),
    Metric(
        "merge_rows",
        "counter",
        "rows",
        "Keys written to merged tables, by change: `upsert`, `delete`, or `stale` (its event was older).",
        "Many stale ones: the source repeats itself, or its files come out of order.",
        ("route", "change"),
        panel="sum by (change) (rate(distributary_merge_rows_total[5m]))",
    ),
    Metric(
        "table_changes",
        "counter",
        "tables",
        "Tables that were made (`created`), got columns (`columns`) or wider types (`types`).",
        "Unexpected ones: ask the producer; `distributary history FILE --route R` says which schema version it was.",
        ("route", "change"),
        panel="sum by (route, change) (increase(distributary_table_changes_total[1h]) > 0)",
    ),
    # -- tables --------------------------------------------------------------------------------------------
    Metric(
        "table_parked",
        "gauge",
        "1",
        "1 where the route's table cannot be written: its rows wait in the quarantine. `(other)`: how many.",
        "It is tried again by itself. " + _STATUS,
        ("route",),
        panel="sum by (route) (distributary_table_parked) > 0",
        alert=Alert(
            "DistributaryTableParked",
            "distributary_table_parked > 0",
            "15m",
            "ticket",
            "A table cannot be written; its rows are kept: distributary status FILE says why",
        ),
    ),
    Metric(
        "last_write_timestamp_seconds",
        "gauge",
        "s",
        "Freshness: when rows were written to the route's table last, in seconds since 1970. `(other)`: the oldest.",
        "A table of a route that sends rows and gets none: see `rows_quarantined` and `table_parked`.",
        ("route",),
        panel="topk(10, time() - distributary_last_write_timestamp_seconds)",
    ),
    Metric(
        "newest_record_timestamp_seconds",
        "gauge",
        "s",
        "Lag: the source's own time of the route's newest record, in seconds since 1970. `(other)`: the oldest.",
        "Compare with the last write: a table written just now with old records means that the producer is behind.",
        ("route",),
        panel="topk(10, time() - distributary_newest_record_timestamp_seconds)",
    ),
    Metric(
        "tables",
        "gauge",
        "tables",
        "Tables by state: `ok`, `parked`, `refused` (most rows of its last batch with rows were quarantined).",
        _STATUS,
        ("state",),
        panel="distributary_tables",
        alert=Alert(
            "DistributaryTableRefused",
            'distributary_tables{state="refused"} > 0',
            "30m",
            "ticket",
            "Most rows of a route are set aside: its producer sends what cannot be read",
        ),
    ),
    Metric(
        "commits",
        "counter",
        "commits",
        "Commits to tables, by engine: `task` (the fast way) or `spark`.",
        "Many by `spark`: `distributary plan FILE` says which feature of a table needs it.",
        ("engine",),
        panel="sum by (engine) (rate(distributary_commits_total[5m]))",
    ),
    Metric(
        "merges",
        "counter",
        "merges",
        "Merges of keys into merged tables.",
        "See `merges_waiting`.",
        panel="rate(distributary_merges_total[5m])",
    ),
    Metric(
        "merges_waiting",
        "gauge",
        "tables",
        "Tables whose log is ahead of their merged table.",
        "See `tables.merge_every`; more cores where it grows.",
        panel="distributary_merges_waiting",
    ),
    Metric(
        "quarantine_rows",
        "gauge",
        "rows",
        "Rows that are in the quarantine, by reason: what the ledger said when the run began, and its own since.",
        _QUARANTINE,
        ("reason",),
        panel="distributary_quarantine_rows",
    ),
    # -- the source and Spark ------------------------------------------------------------------------------
    Metric(
        "source_backlog_rows",
        "gauge",
        "rows",
        "Rows at the source behind the last batch, where Spark says so (Kafka).",
        "Growing: batches are too slow for the source. " + _SPARK,
        panel="distributary_source_backlog_rows",
        alert=Alert(
            "DistributaryFallsBehind",
            "deriv(distributary_source_backlog_rows[30m]) > 0 and distributary_source_backlog_rows > 100000",
            "1h",
            "ticket",
            "The backlog at the source has grown for an hour: more cores, or more clusters",
        ),
    ),
    Metric(
        "source_backlog_bytes",
        "gauge",
        "By",
        "Bytes at the source behind the last batch (Delta).",
        _SPARK,
        panel="distributary_source_backlog_bytes",
    ),
    Metric("source_backlog_files", "gauge", "files", "Files at the source behind the last batch (Delta).", _SPARK),
    Metric(
        "spark_input_rows_per_second",
        "gauge",
        "rows/s",
        "Spark's own figure of the last batch: rows that came a second. 0 where tasks read a Delta source's files.",
        "Above `spark_processed_rows_per_second` for long: the stream falls behind.",
        panel="distributary_spark_input_rows_per_second",
    ),
    Metric(
        "spark_processed_rows_per_second",
        "gauge",
        "rows/s",
        "Spark's own figure of the last batch: rows processed a second. 0 where tasks read a Delta source's files.",
        _SPARK,
        panel="distributary_spark_processed_rows_per_second",
    ),
    Metric(
        "spark_phase_seconds",
        "gauge",
        "s",
        "Spark's own phases of the last batch: `addBatch` is ours, the others Spark's.",
        "Large `latestOffset`: the source is slow. Large `walCommit`, `commitOffsets`: the checkpoint's store is.",
        ("phase",),
        panel="distributary_spark_phase_seconds",
    ),
    # -- about the metrics ---------------------------------------------------------------------------------
    Metric(
        "routes",
        "gauge",
        "routes",
        "Routes that were ever seen. More than `metrics.routes` of them: the worst have series of their own.",
        "See `metrics.routes`.",
        panel="distributary_routes",
    ),
    Metric("build_info", "gauge", "1", "Always 1; the label says the version.", "None.", ("version",)),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
