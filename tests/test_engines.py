"""What a table must look like after a batch, whichever engine wrote it: one suite for `task` and `spark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from distributary.engine import packing
from distributary.engine.batch import BatchWriter
from distributary.state.ledger import Ledger
from tests.scenarios import Scenario, dying, message

pytestmark = pytest.mark.spark

V1 = """syntax = "proto3";
message event {
  message Detail { string zone = 1; }
  string user = 1; int32 score = 2; Detail detail = 3; repeated Detail trail = 4; map<string, Detail> by_key = 5;
}"""
V2 = """syntax = "proto3";
message event {
  message Detail { string zone = 1; optional int64 level = 2; }
  string user = 1; int32 score = 2; Detail detail = 3; repeated Detail trail = 4; map<string, Detail> by_key = 5;
  optional string boss = 6;
}"""
LONG = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; }'
TEXT = 'syntax = "proto3"; message event { string user = 1; string score = 2; }'
TEXTS = {"v1": V1, "v2": V2, "long": LONG, "text": TEXT}


@pytest.fixture(params=["task", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scenario(engine: str, lake: Path, spark: SparkSession) -> Scenario:
    # `auto`, not `task`: a table that has to be widened may change over to Spark's writer.
    return Scenario(lake, tables={"engine": "auto" if engine == "task" else engine})


def event(scenario: Scenario, version: str, route: str = "a", **values: Any) -> bytes:
    schema_id = scenario.schema(f"{route}-value", TEXTS[version])
    return scenario.event(route, schema_id, message(TEXTS[version], "event", **values))


def corrupt(scenario: Scenario, route: str = "a") -> bytes:
    return scenario.event(route, scenario.schema(f"{route}-value", V1), b"\x0f\x01")


def test_rows_are_appended_with_their_origin_and_read_by_spark_sql(
    scenario: Scenario, spark: SparkSession, engine: str
) -> None:
    for first in (0, 2):
        scenario.send(event(scenario, "v1", user=f"u{first}", score=first), event(scenario, "v1", user="x"))
        scenario.run()
    assert [(r["user"], r["score"]) for r in scenario.rows("a")] == [("u0", 0), ("x", 0), ("u2", 2), ("x", 0)]
    found = spark.sql(
        f"SELECT user, score, _origin.topic, _origin.partition, _origin.offset, _origin.schema_id, _origin.batch "
        f"FROM delta.`{scenario.path('a')}` ORDER BY _origin.offset"
    ).collect()
    schema_id = scenario.schema("a-value", V1)
    assert [tuple(r) for r in found] == [
        ("u0", 0, "events", 0, 0, schema_id, 0),
        ("x", 0, "events", 0, 1, schema_id, 0),
        ("u2", 2, "events", 0, 2, schema_id, 1),
        ("x", 0, "events", 0, 3, schema_id, 1),
    ]
    entry = scenario.newest("a")
    assert (entry.engine, entry.state, entry.created, entry.schema_ids) == (engine, "written", True, {schema_id: 4})
    assert scenario.batches[0].created == ("a",)
    files = [pq.ParquetFile(path).schema for path in Path(scenario.path("a")).glob("*.parquet")]
    stored = {file.column(n).physical_type for file in files for n in range(len(file))}
    assert "INT64" in stored and "INT96" not in stored, "other readers take INT96 for nanoseconds"
    scenario.check()


def test_a_schema_of_which_no_row_is_written_adds_no_columns(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several tasks write the route, or Spark does, so that its columns are decided before."""
    monkeypatch.setattr(packing, "SHARE_ROWS", 10)
    monkeypatch.setattr(packing, "TABLE_WEIGHT", 1)
    bad = scenario.event("a", scenario.schema("a-value", V2), b"\x0f\x01")
    for user in ("x", "y"):
        scenario.send(*(event(scenario, "v1", user=f"{user}{n}") for n in range(30)), *[bad] * 10)
        scenario.run()
        assert set(scenario.rows("a")[0]) == {"user", "score", "detail", "trail", "by_key", "_origin"}
        assert scenario.newest("a").reasons == {"CORRUPT_PAYLOAD": 10 * len(scenario.batches)}
    scenario.send(
        *(event(scenario, "v1", user=f"z{n}") for n in range(30)), *[bad] * 200, event(scenario, "v2", boss="b")
    )
    scenario.run()
    assert [r["boss"] for r in scenario.rows("a") if r["boss"]] == ["b"]
    scenario.check()


def test_new_fields_are_added_at_the_top_and_inside(scenario: Scenario) -> None:
    """Cases E1, E7: both versions in one batch after the table was made by the first, then the old producer again."""
    old: dict[str, Any] = {
        "user": "x",
        "detail": {"zone": "n"},
        "trail": [{"zone": "e"}],
        "by_key": {"k": {"zone": "w"}},
    }
    new: dict[str, Any] = {
        "user": "y", "boss": "b", "detail": {"zone": "n", "level": 1},
        "trail": [{"zone": "e", "level": 2}, {"zone": "s"}], "by_key": {"k": {"level": 3}},
    }  # fmt: skip
    scenario.send(event(scenario, "v1", **old))
    scenario.run()
    scenario.send(event(scenario, "v2", **new), event(scenario, "v1", **old))
    scenario.run()
    first, second, third = scenario.rows("a")
    assert second["detail"] == {"zone": "n", "level": 1}
    assert second["trail"] == [{"zone": "e", "level": 2}, {"zone": "s", "level": None}]
    assert second["by_key"] == [("k", {"zone": "", "level": 3})]
    for row in (first, third):
        assert row["boss"] is None
        assert row["detail"] == {"zone": "n", "level": None}
        assert row["trail"] == [{"zone": "e", "level": None}]
        assert row["by_key"] == [("k", {"zone": "w", "level": None})]
    assert scenario.batches[1].evolved == ("a",)
    scenario.check()


def asks_for_type_widening(scenario: Scenario) -> None:
    keys = {"engine": scenario.config.tables.engine, "evolution": {"type_change": "type_widening"}}
    scenario.configure(tables=keys)


def test_a_column_is_widened_in_the_batch_that_brings_the_wider_type(scenario: Scenario) -> None:
    """Case E4: int32 -> int64. The table moves to engine `spark` at once, which the ledger shows, and stays there,
    also when the setting that brought it there is gone."""
    asks_for_type_widening(scenario)
    scenario.send(event(scenario, "v1", user="x", score=1))
    scenario.run()
    scenario.send(event(scenario, "long", user="y", score=5_000_000_000), event(scenario, "v1", user="z", score=3))
    scenario.send(event(scenario, "v1", "b", user="neighbour"))
    scenario.run()
    scenario.configure(tables={"engine": scenario.config.tables.engine})
    scenario.send(event(scenario, "v1", user="old producer", score=4))
    scenario.run()
    assert scenario.columns("a")["score"] == "int64"
    assert scenario.values("a", "score") == [1, 5_000_000_000, 3, 4]
    engines = [e.engine for e in scenario.entries() if e.route == "a"]
    assert engines[1:] == ["spark", "spark"]
    assert len(scenario.batches) == 3
    scenario.check()


def test_a_payload_without_a_header_is_kept_aside_once_also_where_the_table_moves_to_spark(scenario: Scenario) -> None:
    """Its route is known, but it is no row that could be decoded: neither engine may be handed it as one."""
    asks_for_type_widening(scenario)
    headless = scenario.envelope("a", b"no header", wrapped_id=1)
    scenario.send(event(scenario, "v1", user="x", score=1), headless)
    scenario.run()
    scenario.send(event(scenario, "long", user="y", score=5_000_000_000), headless)
    scenario.run()
    scenario.send(event(scenario, "v1", user="z", score=3), headless)
    scenario.run()
    assert scenario.values("a", "score") == [1, 5_000_000_000, 3]
    assert scenario.reasons() == {"BAD_MAGIC": 3}
    scenario.check()


def test_by_default_a_wider_type_leaves_a_table_that_every_reader_can_open(scenario: Scenario, engine: str) -> None:
    """Engine `task` writes the files anew, Spark's tables get a second column, whatever dies before the ledger."""
    scenario.send(event(scenario, "v1", user="x", score=1))
    scenario.run()
    scenario.send(event(scenario, "long", user="y", score=5_000_000_000), event(scenario, "v1", user="z", score=3))
    with dying(Ledger, "record"):
        scenario.run()
    scenario.run()
    scenario.send(event(scenario, "v1", user="old producer", score=4))
    scenario.run()
    assert not scenario.table("a").protocol().reader_features
    one_column = engine == "task"
    assert scenario.values("a", "score") == ([1, 5_000_000_000, 3, 4] if one_column else [1, None, 3, 4])
    assert [e.widened for e in scenario.entries() if e.route == "a"] == (
        [{}, {"score": "int -> bigint"}, {}] if one_column else [{}, {}, {}]
    )
    if not one_column:
        assert scenario.values("a", "score__bigint") == [None, 5_000_000_000, None, None]
    scenario.check()


def test_a_conflicting_type_gets_a_second_column(scenario: Scenario) -> None:
    """Case E3: a number that is used again for another type stops nothing."""
    scenario.send(event(scenario, "v1", user="x", score=1))
    scenario.run()
    scenario.send(event(scenario, "text", user="y", score="high"), event(scenario, "v1", user="z", score=3))
    scenario.run()
    assert [(r["score"], r["score__string"]) for r in scenario.rows("a")] == [(1, None), (None, "high"), (3, None)]
    scenario.check()


def test_rows_that_may_not_enter_are_counted_once(scenario: Scenario) -> None:
    keys = {"engine": scenario.config.tables.engine, "evolution": {"type_change": "quarantine", "new_column": "freeze"}}
    scenario.send(event(scenario, "v1", user="x", score=1), corrupt(scenario))
    scenario.run()
    scenario.configure(tables=keys)
    scenario.send(event(scenario, "text", user="y", score="high"), event(scenario, "v2", user="z", boss="b"))
    scenario.send(event(scenario, "v2", user="fine"), corrupt(scenario))
    scenario.run()
    assert scenario.reasons() == {"CORRUPT_PAYLOAD": 2, "TYPE_CONFLICT": 1, "FROZEN_COLUMN": 1}
    assert scenario.newest("a").reasons == scenario.reasons()
    assert scenario.values("a", "user") == ["x", "fine"]
    scenario.check()


@pytest.mark.parametrize("rule", ["widen", "quarantine"])
def test_a_first_batch_with_conflicting_types_is_treated_alike(scenario: Scenario, rule: str, engine: str) -> None:
    """Both engines, first attempt and replay come to the same decision for every row."""
    scenario.configure(
        tables={"engine": scenario.config.tables.engine, "evolution": {"type_change": rule}},
    )
    scenario.send(event(scenario, "v1", user="x", score=1), event(scenario, "text", user="y", score="high"))
    scenario.send(event(scenario, "long", user="z", score=5_000_000_000))
    with dying(Ledger, "record"):
        scenario.run()
    scenario.run()
    assert scenario.values("a", "score") == ([1, None, 5_000_000_000] if rule == "widen" else [1, 5_000_000_000])
    assert scenario.reasons() == ({} if rule == "widen" else {"TYPE_CONFLICT": 1})
    scenario.check()


@pytest.mark.parametrize("step", ["record", "_complete"])
def test_a_batch_that_is_attempted_again_is_written_once(scenario: Scenario, step: str) -> None:
    """Killed after the tables' commits, or after the ledger's: no row twice, none lost."""
    scenario.send(event(scenario, "v1", user="x"), corrupt(scenario))
    scenario.run()
    scenario.send(event(scenario, "v2", user="y", boss="b"), corrupt(scenario), event(scenario, "v1", "b", user="z"))
    with dying(Ledger if step == "record" else BatchWriter, step):
        scenario.run()
    scenario.run()
    assert len(set(scenario.txns("a"))) == len(scenario.txns("a"))
    scenario.check()


def test_an_empty_message_is_a_row_of_defaults(scenario: Scenario) -> None:
    """Case W6: a header and nothing else."""
    scenario.send(scenario.event("a", scenario.schema("a-value", V1), b""))
    scenario.run()
    (row,) = scenario.rows("a")
    assert (row["user"], row["score"], row["detail"], row["trail"]) == ("", 0, None, [])
    scenario.check()


def test_tables_are_partitioned_clustered_and_commented_as_the_settings_say(lake: Path, spark: SparkSession) -> None:
    text = V1.replace("string user = 1;", "string user = 1; // who played\n")
    patterns = [{"routes": ["a", "d"], "partition_by": ["score"]}, {"routes": ["b"], "cluster_by": ["user"]}]
    own = {"c": {"partition_by": ["gone"]}}
    comments = {"comment": "Events of {route}", "column_comments": {"score": "points"}}
    scenario = Scenario(lake, tables={**comments, "patterns": patterns, "routes": own})
    for version in (text, V2):
        for route in "abc":
            schema_id = scenario.schema(f"{route}-value", version)
            rows = (message(version, "event", user=user, score=score) for user, score in (("x", 1), ("y", 2)))
            scenario.send(*(scenario.event(route, schema_id, row) for row in rows))
        scenario.run()
    details = {
        route: spark.sql(f"DESCRIBE DETAIL delta.`{scenario.path(route)}`").collect()[0].asDict() for route in "ab"
    }
    assert [details[r]["partitionColumns"] for r in "ab"] == [["score"], []]
    assert [details[r]["clusteringColumns"] for r in "ab"] == [[], ["user"]]
    assert [details[r]["description"] for r in "ab"] == ["Events of a", "Events of b"]
    for route in "ab":
        columns = spark.table(f"delta.`{scenario.path(route)}`").schema
        assert [columns[name].metadata.get("comment") for name in ("user", "score", "boss")] == [
            "who played", "points", None,
        ]  # fmt: skip
        assert sorted((r["user"], r["score"]) for r in scenario.rows(route)) == [("x", 1)] * 2 + [("y", 2)] * 2
        assert scenario.newest(route).engine == "spark"
    assert scenario.newest("c").state == "parked"
    scenario.check()
