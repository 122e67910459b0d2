"""Lakeflow runs the definitions as they are: by what is documented of it, without what only open-source Spark has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from distributary.config import Pipeline, RegistryConfig, load
from distributary.engine.replay import ReplayReport
from distributary.errors import BadInput, Reason
from distributary.fleet.workflow.pipeline_bundle import pipeline_bundle
from distributary.kinds import kind_of
from distributary.repair.clean import clean
from distributary.running.maintain import maintain
from distributary.schemas.registry import open_registry
from distributary.tables.by_name import sql_name
from tests.declarative_at_rest import Rest
from tests.workspace import small_wheel

EVENT = 'syntax = "proto3"; message event { string user_name = 1; int64 event_timestamp = 2; }'
WRAPPER = 'syntax = "proto3"; message wrapper { string game_name = 1; int32 schema_id = 2; bytes payload = 3; }'
MANAGED: dict[str, Any] = {"managed": True, "database": "main.games"}
BELOW: dict[str, Any] = {"root": "/Volumes/main/games/lake", "database": "main.games"}


def pipeline(folder: Path, tables: dict[str, Any], **keys: Any) -> Path:
    """A pipeline file with two games in its registry."""
    registry = open_registry(RegistryConfig(path=str(folder / "registry")))
    registry.register("events-value", WRAPPER)
    for game in ("chess", "go"):
        registry.register(f"{game}-value", EVENT)
    document = {
        "pipeline": "games", "layout": "declarative", "registry": {"path": str(folder / "registry")},
        "source": {"type": "delta", "path": "/Volumes/main/games/events"}, "envelope": {"route": "game_name"},
        "tables": tables, "state": str(folder / "state"), **keys,
    }  # fmt: skip
    file = folder / "games.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.parametrize("tables", [MANAGED, BELOW])
def test_the_definitions_use_what_databricks_documents_and_nothing_else(tmp_path: Path, tables: dict[str, Any]) -> None:
    file = pipeline(tmp_path, tables)
    environ = {**os.environ, "SPARK_CONNECT_MODE_ENABLED": "1", "DATABRICKS_RUNTIME_VERSION": "17.3"}
    command = [sys.executable, "-m", "tests.lakeflow_child", str(file)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    said = json.loads(result.stdout)
    assert said == {
        "defined": {
            "bronze": "table",
            **{f"silver_{game}_events": "table" for game in ("chess", "go")},
            **{f"gold_{game}_player_agg": "materialized_view" for game in ("chess", "go")},
            "unified_gold": "materialized_view",
        },
        "problems": [],
        "internal": [],
    }


def test_the_quarantine_is_a_view_of_sql_in_the_bundle(tmp_path: Path) -> None:
    file = pipeline(tmp_path, MANAGED)
    bundle = pipeline_bundle(load(file), file, small_wheel(tmp_path))
    text = bundle.files()["src/transformations/quarantine.sql"].decode()
    assert text.startswith("CREATE VIEW `quarantine`\nAS SELECT") and "`main`.`games`.`bronze`" in text


def test_what_lakeflow_does_itself_is_refused_in_words(tmp_path: Path) -> None:
    config = load(pipeline(tmp_path, MANAGED))
    with pytest.raises(BadInput, match="looks after them by itself"):
        list(maintain(config))
    with pytest.raises(BadInput, match="delete the pipeline there"):
        clean(config)


@pytest.mark.spark
def test_status_verify_and_replay_find_the_tables_by_their_names(tmp_path: Path, spark: SparkSession) -> None:
    """What an update has written, known to Spark by name, and asked without a word of where it lies."""
    rest, database = Rest(tmp_path), "lakeflow_games"
    rest.take(rest.send(1))
    early = rest.known()
    second = rest.send(2)
    rest.take(second, early)
    spark.sql(f"CREATE DATABASE {database}")
    try:
        for name in ("bronze", *(rest.datasets.silver(game) for game in rest.games.names)):
            spark.sql(f"CREATE TABLE {database}.{name} USING DELTA LOCATION '{rest.datasets.uri(name)}'")
        document = {**rest.config.model_dump(exclude_unset=True), "state": str(tmp_path / "state")}
        config = Pipeline.model_validate({**document, "tables": {"managed": True, "database": database}})
        kind = kind_of(config, tmp_path / "games.yaml")
        verification = kind.verify(deep=True)
        assert verification.ok, verification.problems
        assert verification.rows_written == sum(table.rows_compared for table in verification.tables)
        assert {table.table for table in verification.tables} == {
            f"catalog://{database}/{rest.datasets.silver(game)}" for game in rest.games.names
        }
        aside = verification.quarantine["open"]
        status = kind.status()
        assert (status.quarantined, status.lag_rows) == (aside, None)
        assert sum(rows.num_rows for rows in kind.quarantined_rows()) == aside
        good = sum(record.fault is None for record in second)
        report = kind.replay(None, {Reason.UNKNOWN_SCHEMA_ID})
        assert isinstance(report, ReplayReport) and sum(report.rows.values()) == good
        copies = spark.sql(
            f"SELECT count(*) FROM {sql_name(config.tables.root + '/bronze')} WHERE replay_of IS NOT NULL"
        )
        assert copies.collect()[0][0] == good
    finally:
        spark.sql(f"DROP DATABASE {database} CASCADE")
