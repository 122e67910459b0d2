"""What the demo of games found at its end: the tables against what was sent, and one query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.config import Pipeline
from distributary.engine.messages.task_spec import ORIGIN
from distributary.names import quoted, table_name
from distributary.running.wide_views import view_text
from distributary.schemas.registry import Registry
from distributary.state.ledger import Ledger, totals
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store
from distributary.tables.wide import KEY
from distributary_simulate.games.records import REASONS
from distributary_simulate.games.schemas import game_subject
from distributary_simulate.games.truth import Truth


@dataclass(frozen=True)
class Comparison:
    """The tables against the producer's own counts. `differences`: in words, empty when all is as it was sent."""

    rows_sent: int
    rows_found: int
    distinct_events: int
    quarantined_sent: int
    quarantined_found: int
    tombstones_sent: int
    tombstones_found: int
    differences: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class Query:
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


# -- the check ---------------------------------------------------------------------------------------------


def compare(config: Pipeline, registry: Registry, truth: Truth) -> Comparison:
    """Count the tables' rows by game and schema version, with nothing of the pipeline's own counts but tombstones."""
    differences: list[str] = []
    found_rows = distinct = 0
    for game, sent in sorted(truth.rows.items()):
        rows = _rows(config, game)
        found_rows += rows.num_rows
        distinct += len(pc.unique(rows.column("event_timestamp")))
        differences += by_version(game, sent, _rows_by_version(rows, registry, game))
    if distinct != found_rows:
        differences.append(f"{found_rows - distinct} rows are in a table twice")
    quarantined = _quarantined(config)
    for fault, reason in REASONS.items():
        if truth.fault_total(fault) != quarantined.get(reason, 0):
            differences.append(
                f"{reason}: {truth.fault_total(fault)} sent, {quarantined.get(reason, 0)} in the quarantine"
            )
    passed = sum(e.tombstones for e in totals(_ledger(config).entries()).values())
    if passed != truth.tombstones:
        differences.append(f"tombstones: {truth.tombstones} sent, {passed} seen")
    return Comparison(
        truth.rows_total, found_rows, distinct, truth.quarantined, sum(quarantined.values()), truth.tombstones, passed,
        tuple(differences),
    )  # fmt: skip


def _rows(config: Pipeline, game: str) -> pa.Table:
    """Time and origin of a game's rows."""
    key = table_name(game)
    if config.shared_table is None:
        uri = f"{config.tables.root}/{table_name(game, config.tables.name)}"
        return DeltaTable(uri).to_pyarrow_table(columns=["event_timestamp", ORIGIN])
    rows = DeltaTable(config.wide_path).to_pyarrow_table(filters=[(KEY, "=", key)], columns=[key, ORIGIN])
    times = pc.struct_field(rows.column(key), "event_timestamp")
    return pa.table({"event_timestamp": times, ORIGIN: rows.column(ORIGIN)})


def by_version(game: str, sent: Mapping[int, int], stored: Mapping[int, int]) -> list[str]:
    """The versions of a game whose rows in the table are not as many as were sent, in words."""
    return [
        f"{game} version {version}: {sent.get(version, 0)} rows sent, {stored.get(version, 0)} in the table"
        for version in sorted({*sent, *stored})
        if sent.get(version, 0) != stored.get(version, 0)
    ]


def _rows_by_version(rows: pa.Table, registry: Registry, game: str) -> dict[int, int]:
    subject = game_subject(game)
    versions = {registry.version(subject, v).schema.id: v for v in registry.versions(subject)}
    counts = pc.value_counts(pc.struct_field(rows.column(ORIGIN), "schema_id")).to_pylist()
    return {versions[c["values"]]: c["counts"] for c in counts}


def _quarantined(config: Pipeline) -> Mapping[str, int]:
    uri = quarantine_uri(config.state_root)
    if not DeltaTable.is_deltatable(uri):
        return {}
    reasons = DeltaTable(uri).to_pyarrow_table(columns=["reason"]).column("reason")
    return {c["values"]: c["counts"] for c in pc.value_counts(reasons).to_pylist()}


def _ledger(config: Pipeline) -> Ledger:
    return Ledger(config.state_root, config.pipeline, Store.of(config.tables))


# -- the query ---------------------------------------------------------------------------------------------


def ask(spark: SparkSession, config: Pipeline, game: str) -> Query:
    """How a game's columns filled from version to version, by plain Spark SQL."""
    # A session of its own: the run's settings are for streams, and 200 shuffle partitions are for clusters.
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    table = f"delta.{quoted(f'{config.tables.root}/{table_name(game, config.tables.name)}')}"
    if config.shared_table is not None:
        table = quoted(table_name(game, config.tables.name))
        session.sql(str(view_text(config, game))).createOrReplaceTempView(table.strip("`"))
    filled = ",\n       ".join(f"count({quoted(f'col_{game}_{v}')}) AS with_column_{v}" for v in (1, 2, 3))
    sql = (
        f"SELECT {ORIGIN}.schema_id AS schema_id, count(*) AS rows, count(DISTINCT user_name) AS players,\n"
        f"       {filled}\nFROM {table}\nGROUP BY 1 ORDER BY 1"
    )
    answer = session.sql(sql)
    return Query(sql, tuple(answer.columns), tuple(tuple(row) for row in answer.collect()))
