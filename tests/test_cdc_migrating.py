"""The Scala connector's environment variables as a pipeline file."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.config import load
from distributary.config.migrating import VARIABLES, from_environment
from distributary.errors import ConfigError
from distributary_simulate.changes.unified import INTEGER, STRING
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

PLACES = {"BUCKET": "b", "DELTA_TABLE_PATH": "gs://lake/shop"}
GUIDE = Path(__file__).resolve().parents[1] / "docs" / "from-scala-connector.md"


def test_every_setting_of_the_connector_has_a_place(tmp_path: Path) -> None:
    made = from_environment(
        {
            "NAME": "My Connector", "BUCKET": "b", "SOURCE_PATH": "cdc/", "GENERATE_LOG_TABLE": "false",
            "READ_FORMAT": "json", "START_DATE": "2026-01-01T00:00:00.00Z", "FILE_READ_CONCURRENCY": "4",
            "DELTA_TABLE_PATH": "gs://lake/d/", "DELTA_TABLE_NAME_PREFIX": "raw_", "DELTA_DATABASE": "prod",
            "DELTA_MERGE_FREQUENCY_MINUTES": "5", "DELTA_SCHEMA_EVOLUTION_STRATEGY": "none",
            "DELTA_MICROBATCH_PARTITIONS": "8", "CHECKPOINT_DIR": "gs://lake/cp",
            "DATABRICKS_DELTA_AUTO_COMPACTION_ENABLED": "true", "DATABRICKS_DELTA_MIN_NUMBER_OF_FILES": "20",
            "DATABRICKS_DELTA_TARGET_FILE_SIZE_BYTES": "1048576", "DATABRICKS_DELTA_AUTO_OPTIMIZE_ENABLED": "true",
            "DATABRICKS_DELTA_MAX_FILE_SIZE_BYTES": "2097152",
        }
    )  # fmt: skip
    file = tmp_path / "made.yaml"
    file.write_text(made.text(), encoding="utf-8")
    config = load(file)
    assert (config.pipeline, config.source.path) == ("my-connector", "gs://b/cdc")  # type: ignore[union-attr]
    assert (config.tables.log, config.tables.merged) == (None, "raw_{table}")
    assert (config.tables.root, config.tables.database) == ("gs://lake/d", "prod")
    assert config.tables.evolution.new_column == "freeze"
    assert config.trigger.every == 300
    assert config.checkpoint_path == "gs://lake/cp/my-connector"
    assert (config.maintenance.min_files, config.maintenance.target_file_size) == (20, 1 << 20)
    assert config.spark.conf == {"spark.default.parallelism": "8"}
    assert len(made.notes) == 5


def test_the_connectors_own_defaults_make_a_valid_file(tmp_path: Path) -> None:
    file = tmp_path / "made.yaml"
    file.write_text(from_environment(PLACES).text(), encoding="utf-8")
    config = load(file)
    assert config.tables.root == "gs://lake/shop"
    assert config.tables.log == "{database}_{table}_log"


@pytest.mark.parametrize("database", [None, "prod"])
def test_what_readers_would_see_change_is_said_and_the_way_to_keep_it_works(
    tmp_path: Path, database: str | None
) -> None:
    given = {"DATASTREAM_TABLE_SOURCE_TYPE": "local-directory", "SOURCE_PATH": str(tmp_path / "files")}
    given |= {"DELTA_TABLE_PATH": str(tmp_path / "lake")} | ({} if database is None else {"DELTA_DATABASE": database})
    made = from_environment(given)
    said = "\n".join(made.seen)
    assert all(f"# - {line}" in made.text() for line in made.seen)
    assert made.document["tables"]["tombstones"] == "beside"
    assert (f"LOCATION '{tmp_path}/lake/shop_orders'" in said) is (database is None)
    assert ("TABLE_COLLISION" in said) is (database is not None)
    tables = made.document["tables"] | {
        "database": None,  # a catalog is Spark's
        "routes": {"shop.or.ders": {"merged": "or_ders", "log": "or_ders_log"}},
    }
    shop = Sparkless(tmp_path, tables=tables)
    rows = [{"id": id, "a.b": "x"} for id in (1, 2)]
    dotted, other = mysql_table("or.ders", {"id": INTEGER, "a.b": STRING}), mysql_table()
    changes = [change(dotted, "INSERT", row, at) for at, row in enumerate(rows)]
    shop.send(*changes, change(dotted, "DELETE", rows[1], 3), change(other, "INSERT", order(1, "a"), 4), format="json")
    assert shop.run().rows_written == 4
    if database is None:
        assert (tmp_path / "lake" / "shop_orders").is_dir()
    columns = {f.name for f in DeltaTable(str(tmp_path / "lake" / "or_ders")).schema().fields}
    assert {"a.b", "_deleted", "datastream_metadata", "datastream_metadata_source_timestamp"} <= columns
    rows_there = DeltaTable(str(tmp_path / "lake" / "or_ders")).to_pyarrow_table().to_pylist()
    assert [(row["id"], row["a.b"], row["_deleted"]) for row in rows_there] == [(1, "x", False)]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, "BUCKET"),
        ({"DATASTREAM_TABLE_SOURCE_TYPE": "local-directory"}, "SOURCE_PATH"),
        ({"BUCKET": "b"}, "DELTA_TABLE_PATH"),
        (PLACES | {"READ_FORMAT": "orc"}, "READ_FORMAT"),
        (PLACES | {"GENERATE_LOG_TABLE": "no"}, "GENERATE_LOG_TABLE"),
        (PLACES | {"DELTA_MERGE_FREQUENCY_MINUTES": "often"}, "DELTA_MERGE_FREQUENCY_MINUTES"),
    ],
)
def test_a_wrong_value_names_its_variable(given: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment(given)
    assert caught.value.parameters["key"] == key


def test_the_guide_has_every_variable() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for variable in VARIABLES:
        assert f"| `{variable.name}` | {variable.here} |" in text


@pytest.mark.parametrize(
    ("tables", "key", "detail"),
    [
        ("log: null, merge_every: 1 minute", "tables.merge_every", "it needs tables.log"),
        ("log: null, merged: null", "tables.merged", "at least one of them"),
        ("view: '{table}_now'", "tables.view", "tables.database"),
        ("tombstone_retention: 2 days", "tables.tombstone_retention", "3 days or more"),
    ],
)
def test_tables_that_could_not_be_kept_right_are_refused(tmp_path: Path, tables: str, key: str, detail: str) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"pipeline: shop\nsource: {{type: datastream, path: /files}}\ntables: {{root: /lake, {tables}}}\n", "utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.parameters["key"] == key
    assert detail in caught.value.parameters["detail"]
