"""Tables that a catalog keeps, written and found by their names only (`tables.managed`), by Spark.

Here the catalog is Spark's own, whose managed tables tasks could write too. `python -m tests.unity_managed`
does the same with a real Unity Catalog, which keeps their commits too.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.audit.verify import Verification
from distributary.config import Pipeline, Tables, load_document
from distributary.errors import BadInput, ConfigError, TableCollision
from distributary.errors.border import TableFault
from distributary.kinds import kind_of
from distributary.repair.clean import apply, clean
from distributary.state.ledger import Ledger
from distributary.tables import spark_names
from distributary.tables.by_name import dotted, is_named, sql_name
from distributary.tables.engines import by_settings, kept_by_catalog, spark_needed
from distributary.tables.outage import is_store_fault
from distributary.tables.snapshot import Owner, Txn
from distributary.tables.spark_engine import create_text
from distributary.tables.spark_names import NamedFacts
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.scenarios import Scenario, dying, message

V1 = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
V2 = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; optional string boss = 3; }'
DATABASE = "managed_games"
SINK = {"silver_as": "sink", "gold_as": "none"}
MANAGED: dict[str, Any] = {"managed": True, "database": "main.silver"}
GAMES = {
    "pipeline": "games", "source": {"type": "delta", "path": "/lake/source"}, "registry": {"path": "/lake/registry"},
    "tables": MANAGED, "state": "/lake/state",
}  # fmt: skip


# -- the pipeline file -------------------------------------------------------------------------------------


def test_a_name_takes_the_place_of_the_folder_and_spark_writes_the_tables() -> None:
    config = load_document(GAMES)
    tables = config.tables
    assert tables.root == "catalog://main.silver"
    assert tables.for_route("a")[0] == "spark" and by_settings(tables, "a") == "tables.managed"
    assert ("catalog://main.silver", "PATH_READ_WRITE") not in tables.places, "no credentials are asked for a name"
    assert load_document(config.as_dict_masked()).tables == tables, "what is printed can be read again"
    address = f"{tables.root}/chess"
    assert (
        is_named(address) and dotted(address) == "main.silver.chess" and sql_name(address) == "`main`.`silver`.`chess`"
    )
    assert sql_name("/lake/chess") == "delta.`/lake/chess`"


@pytest.mark.parametrize(
    "keys, key, words",
    [
        ({"tables": {"managed": True}}, "tables.database", "main.silver"),
        ({"tables": {**MANAGED, "root": "/lake"}}, "tables.root", "leave root out"),
        ({"tables": {"root": "catalog://main.silver"}}, "tables.root", "managed: true"),
        ({"tables": {**MANAGED, "engine": "task"}}, "tables.engine", "leave engine out"),
        ({"tables": {**MANAGED, "routes": {"a": {"engine": "task"}}}}, "tables.routes.a.engine", "leave engine out"),
        ({"tables": {**MANAGED, "keys": ["i"], "log": "{route}_l", "history": "{route}_h"}}, "tables.history", "tasks"),
        ({"tables": {**MANAGED, "unity": {"url": "http://u", "names": True}}}, "tables.unity.names", "leave it out"),
        ({"state": None}, "state", "a folder of their own"),
        ({"layout": "wide"}, "layout", "fanout"),
        ({"layout": "two_hop"}, "bronze.path", "a folder of their own"),
        ({"layout": "declarative", "declarative": SINK}, "declarative.silver_as", "below tables.root"),
        ({"source": {"type": "datastream", "path": "/in"}, "registry": None}, "tables.managed", "messages only"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_managed_tables_is_refused_in_words(keys: dict[str, Any], key: str, words: str) -> None:
    document = {name: value for name, value in {**GAMES, **keys}.items() if value is not None}
    with pytest.raises(ConfigError) as raised:
        load_document(document)
    problems = {problem["key"]: problem["detail"] for problem in raised.value.parameters["problems"]}
    assert words in problems[key], problems


def test_a_table_by_its_name_is_made_by_one_command_with_all_that_it_gets() -> None:
    note = pa.field("note", pa.string(), nullable=False, metadata={b"comment": b"what she said"})
    schema = pa.schema([("score", pa.int64()), ("at", pa.struct([("x y", pa.string())])), note])
    target = Table(
        "catalog://main.silver/go", Store(), Owner("games", "it's"), {"delta.a": "1"}, ("score",), (), "it's"
    )
    assert create_text(target, schema) == (
        "CREATE TABLE IF NOT EXISTS `main`.`silver`.`go` (`score` bigint, `at` struct<`x y`: string>, `note` string "
        "NOT NULL COMMENT 'what she said') USING DELTA PARTITIONED BY (`score`) COMMENT 'it\\'s' TBLPROPERTIES "
        "('delta.columnMapping.mode' = 'name', 'delta.a' = '1', 'distributary.owner' = "
        """'{"distributary": {"pipeline": "games", "route": "it\\'s"}}')"""
    )


def facts(**others: Any) -> NamedFacts:
    schema = '{"type":"struct","fields":[{"name":"user","type":"string","nullable":true,"metadata":{}}]}'
    owner = Owner("games", "go").properties()
    features = frozenset({"catalogManaged", "deletionVectors"})
    return NamedFacts(
        **{
            "version": 7,
            "id": "x",
            "schema": schema,
            "properties": owner,
            "partitioned_by": (),
            "description": None,
            "protocol": (3, 7),
            "features": features,
            "newest": {"s": 4},
            **others,
        }
    )


def test_a_task_knows_of_a_table_by_its_name_what_the_driver_has_told_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # as in a task
    address, owner = "catalog://main.silver/go", Owner("games", "go")
    store = pickle.loads(
        pickle.dumps(Store(named={address: facts(), f"{address}_log": None, f"{address}_2": "no right"}))
    )
    table = Table(address, store, owner).open()
    assert table is not None and (table.version, table.schema.names, table.owner) == (7, ["user"], owner)
    assert table.has(Txn("s", 4)) and not table.has(Txn("s", 5)) and not table.has(Txn("another", 0))
    assert kept_by_catalog(table) and spark_needed(table) == "a table by its name"
    assert Table(f"{address}_log", store).open() is None, "there is none yet"
    with pytest.raises(TableFault, match="no right"):
        Table(f"{address}_2", store).open()
    with pytest.raises(TableFault, match="no session here"):
        Table(f"{address}_3", store).open()
    with pytest.raises(TableFault, match="changed by Spark only"):
        table.compact()
    with pytest.raises(TableCollision):
        Table(address, store, Owner("others", "go")).open()


@pytest.mark.parametrize("away", [True, False])
def test_a_catalog_that_does_not_answer_is_the_fault_of_no_table(away: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the batch fails and is tried again: no route is parked for it."""
    address = "catalog://main.silver/go"
    words = "java.net.ConnectException: Connection refused" if away else "java.lang.IllegalStateException: not ours"
    cause = SimpleNamespace(toString=lambda: words, getCause=lambda: None)
    outer = SimpleNamespace(toString=lambda: "io.unitycatalog.client.ApiException", getCause=lambda: cause)

    class Said(PySparkException):
        _origin = outer

    def asked(name: str) -> bool:
        raise Said(f"tableExists {name}")

    spark = SimpleNamespace(catalog=SimpleNamespace(tableExists=asked))
    monkeypatch.setattr(spark_names, "session", lambda: spark)
    with pytest.raises(ConnectionError if away else TableFault, match="refused" if away else "tableExists") as raised:
        Table(address, Store(), Owner("games", "go")).open()
    assert is_store_fault(raised.value) is away


def test_managed_tables_may_have_the_feature_that_other_tables_may_not() -> None:
    feature = {"delta.feature.catalogManaged": "supported"}
    assert load_document({**GAMES, "tables": {**MANAGED, "properties": feature}}).tables.properties == feature


def test_no_table_is_rebuilt_by_replacing_its_files() -> None:
    two_hop = {**GAMES, "layout": "two_hop", "bronze": {"path": "/lake/bronze"}}
    for document in (GAMES, two_hop):
        with pytest.raises(BadInput, match=r"managed table|keeps no rows"):
            kind_of(load_document(document), Path("games.yaml")).resync("a")


# -- by Spark ----------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(lake: Path, spark: SparkSession) -> Iterator[str]:
    """A schema of Spark's own catalog, below `lake`."""
    spark.sql(f"CREATE DATABASE {DATABASE} LOCATION '{lake / 'warehouse'}'")
    yield DATABASE
    spark.sql(f"DROP DATABASE {DATABASE} CASCADE")
    shutil.rmtree(lake / "warehouse", ignore_errors=True)


def managed(lake: Path, catalog: str, **tables: Any) -> Scenario:
    return Scenario(lake, state=str(lake / "state"), tables={"managed": True, "database": catalog, **tables})


def event(scenario: Scenario, text: str, route: str = "a", **values: Any) -> bytes:
    return scenario.event(route, scenario.schema(f"{route}-value", text), message(text, "event", **values))


def rows(spark: SparkSession, catalog: str, columns: str, table: str = "a") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(f"SELECT {columns} FROM {catalog}.{table} ORDER BY 1").collect()]


def verified(config: Pipeline) -> Verification:
    return kind_of(config, Path("games.yaml")).verify(deep=True)


@pytest.mark.spark
def test_managed_tables_get_each_row_once_and_are_found_by_their_names(
    lake: Path, catalog: str, spark: SparkSession
) -> None:
    """A new column, a run that dies between its commits and the ledger, a record that cannot be read."""
    scenario = managed(lake, catalog)
    config = scenario.config
    scenario.send(event(scenario, V1, user="u0", score=0))
    scenario.run()
    bad = scenario.event("a", 404, b"")
    scenario.send(event(scenario, V2, user="u1", boss="x"), event(scenario, V1, user="u2"), bad)
    with dying(Ledger, "record"):
        scenario.run()
    scenario.run()
    assert rows(spark, catalog, "user, score, boss") == [("u0", 0, None), ("u1", 0, "x"), ("u2", 0, None)]
    about = spark.sql(f"DESCRIBE TABLE EXTENDED {catalog}.a").collect()
    assert ("Type", "MANAGED") in [(row["col_name"], row["data_type"]) for row in about]
    entry = scenario.newest("a")
    assert (entry.engine, entry.rows_written, entry.table) == ("spark", 3, f"catalog://{catalog}/a")
    assert scenario.reasons() == {"UNKNOWN_SCHEMA_ID": 1}

    verification = verified(config)
    assert verification.ok, verification.problems
    assert (verification.rows_written, [t.rows_compared for t in verification.tables]) == (3, [3])
    plan = clean(config)
    assert [target.path for target in plan.remove if target.kind == "table"] == [f"catalog://{catalog}/a"]
    apply(plan)
    assert spark.sql(f"SHOW TABLES IN {catalog}").count() == 0


@pytest.mark.spark
def test_managed_tables_hold_the_newest_message_of_each_key(lake: Path, catalog: str, spark: SparkSession) -> None:
    scenario = managed(lake, catalog, keys=["user"])
    scenario.send(event(scenario, V1, user="x", score=1), event(scenario, V1, user="y", score=1))
    scenario.run()
    scenario.send(event(scenario, V2, user="x", score=2, boss="b"), event(scenario, V1, user="z", score=3))
    with dying(Ledger, "record"):
        scenario.run()
    scenario.run()
    expected = [("x", 2, "b"), ("y", 1, None), ("z", 3, None)]
    assert rows(spark, catalog, "user, score, boss") == expected


@pytest.mark.spark
def test_another_s_table_of_the_name_parks_the_route_and_stays(lake: Path, catalog: str, spark: SparkSession) -> None:
    owner = Owner("others", "a").properties()["distributary.owner"]
    spark.sql(f"CREATE TABLE {catalog}.a (user STRING) USING DELTA TBLPROPERTIES ('distributary.owner' = '{owner}')")
    spark.sql(f"CREATE TABLE {catalog}.c (user STRING) USING PARQUET")
    scenario = managed(lake, catalog, name="{route|exact}")
    scenario.send(*(event(scenario, V1, route, user="u") for route in "abc"))
    scenario.run()
    assert {route: scenario.newest(route).state == "parked" for route in "abc"} == {"a": True, "b": False, "c": True}
    assert rows(spark, catalog, "user", "b") == [("u",)] and rows(spark, catalog, "count(*)", "a") == [(0,)]


def test_the_settings_of_tables_without_a_name_are_as_before() -> None:
    assert Tables.model_validate({"root": "/lake"}).root == "/lake"
