"""One stream to many tables: names, neighbours, hot routes, tables that cannot be written."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.engine import packing
from distributary.engine.attempts import RouteFault
from distributary.engine.batch import BatchWriter
from distributary.engine.decisions import Decision
from distributary.engine.messages.attempt import Attempt
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.messages.spool import Spool
from distributary.engine.outcomes import Append, Fault, Outcome, join_into
from distributary.errors import Reason, StoreDown
from distributary.names import table_name
from distributary.state.ledger import Ledger
from distributary.tables.datafile import DataFile
from distributary.tables.store import Store
from distributary_simulate.games.records import Plan
from tests.scenarios import Scenario, dying, message

spark_test = pytest.mark.spark
EVENT = 'syntax = "proto3"; message event { string user = 1; }'
BROKEN = 'syntax = "proto3"; message event { string user = 1; } // a text of its own'


def event(scenario: Scenario, route: str, user: str = "x") -> bytes:
    return scenario.event(route, scenario.schema("shared-value", EVENT), message(EVENT, "event", user=user))


# -- names and neighbours ----------------------------------------------------------------------------------


@spark_test
@pytest.mark.usefixtures("spark")
def test_routes_that_look_alike_get_tables_of_their_own(lake: Path) -> None:
    """Cases D2, D3, L5: also on file systems and in catalogs that fold case; the raw route stays readable."""
    routes = [
        "Ann", "ann", "a-b", "a_b", "a.b", "é", "e\u0301", "new york", " ", "O'Brien", "'; DROP TABLE games; --",
        "x" * 300, "x" * 299 + "y", "__HIVE_DEFAULT_PARTITION__", "a/b", "../up", "x=y", "50% off", "col:on", "🎲",
        "_distributary", "con", "`tick`",
    ]  # fmt: skip
    scenario = Scenario(lake)
    scenario.send(*(event(scenario, r, f"{n}") for n, r in enumerate(routes)))
    scenario.run()
    scenario.send(*(event(scenario, r, f"{n}") for n, r in enumerate(routes)))
    scenario.run()
    names = [str(scenario.newest(route).table).rpartition("/")[2] for route in routes]
    assert len({n.lower() for n in names}) == len(routes)
    assert [names[routes.index(route)] for route in ("ann", "new york", "a-b")] == [
        "ann",
        "new_york",
        table_name("a-b"),
    ]
    assert scenario.table_names() == sorted(names)
    for number, (route, name) in enumerate(zip(routes, names, strict=True)):
        assert scenario.values(name, "user") == [f"{number}"] * 2
        assert scenario.newest(route).rows_written == 2
    scenario.check()


@spark_test
@pytest.mark.usefixtures("spark")
def test_rows_without_a_route_go_to_no_table(lake: Path) -> None:
    """Cases W13, D3."""
    scenario = Scenario(lake)
    schema_id = scenario.schema("shared-value", EVENT)
    payload = scenario.event("a", schema_id, b"")[6:]
    scenario.send(
        scenario.envelope("", payload), scenario.envelope(None, payload), event(scenario, "a"), b"", None,
        scenario.envelope("a", None),
    )  # fmt: skip
    scenario.run()
    assert scenario.table_names() == ["a"]
    assert scenario.reasons() == {"TOO_SHORT": 1, "NO_ROUTE": 2}
    assert scenario.newest("a").tombstones == 1
    scenario.check(tombstones=2)


@spark_test
@pytest.mark.usefixtures("spark")
def test_one_poisoned_game_does_not_stop_the_others(lake: Path) -> None:
    """Cases S10, S11: corrupt bytes, a schema that does not compile, and an id nobody knows, each in a game."""
    scenario = Scenario(lake)
    games = scenario.games(Plan(games=3, versions=1, records=5))
    scenario.send_games(games, 1)
    broken = scenario.schema("broken-value", BROKEN)
    file = lake / "registry" / "schemas" / f"{broken}.json"
    file.write_text(file.read_text().replace("string user", "strnig user"))
    scenario.send(
        scenario.event("poisoned", scenario.schema("shared-value", EVENT), b"\x0f\x01"),
        scenario.event("broken", broken, b""),
        scenario.event("unknown", 999_999, b""),
        scenario.event("index", scenario.schema("shared-value", EVENT), b"", (3,)),
    )
    report = scenario.run()
    assert scenario.reasons() == {
        "CORRUPT_PAYLOAD": 1, "BROKEN_SCHEMA": 1, "UNKNOWN_SCHEMA_ID": 1, "BAD_INDEX": 1,
    }  # fmt: skip
    assert (report.rows_written, report.parked) == (15, ())
    scenario.check()


@spark_test
def test_commits_on_a_known_tip_are_read_by_spark_like_any_other(lake: Path, spark: SparkSession) -> None:
    """Several batches of one run: from the second on, the table's log is not read. A new column opens it again."""
    scenario = Scenario(lake, source={"max_files_per_batch": 1})
    first = scenario.schema("a-value", EVENT)
    second = scenario.schema("a-value", 'syntax = "proto3"; message event { string user = 1; string boss = 2; }')
    for schema, text in ((first, "x"), (first, "y"), (second, "z"), (second, "w"), (first, "v")):
        scenario.send(scenario.event("a", schema, message(EVENT, "event", user=text)))
    scenario.run()
    assert len(scenario.batches) == 5
    path = str(scenario.tables / "a")
    engines = [commit["engineInfo"].split("/")[0] for commit in DeltaTable(path).history()][::-1]
    assert "distributary" in engines
    rows = spark.read.format("delta").load(path).select("user", "boss").collect()
    assert sorted((r.user, r.boss) for r in rows) == [("v", None), ("w", ""), ("x", None), ("y", None), ("z", "")]
    scenario.check()


# -- hot routes --------------------------------------------------------------------------------------------


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route of a few rows counts as large enough for several tasks."""
    monkeypatch.setattr(packing, "SHARE_ROWS", 10)
    monkeypatch.setattr(packing, "TABLE_WEIGHT", 1)


@spark_test
@pytest.mark.usefixtures("spark", "small_shares")
@pytest.mark.parametrize("crash", [None, "before", "after"])
def test_a_hot_route_is_written_by_several_tasks_in_one_commit(lake: Path, crash: str | None) -> None:
    """90 % of the rows in one route; also when the batch is attempted again. A new column comes in the second batch."""
    scenario = Scenario(lake)
    games = scenario.games(Plan(games=3, versions=2, records=30))
    hot, *cold = games.names
    for version in (1, 2):
        for part in range(3):
            scenario.send_games(games, version, [hot], records=30, start=30 * part)
        scenario.send_games(games, version, cold, records=3)
        if crash:
            with dying(Ledger, "record", after=crash == "after"):
                scenario.run()
        scenario.run()
    table = scenario.table(hot)
    assert len(scenario.txns(hot)) == 2, "one commit per batch"
    assert len(table.file_uris()) > 2, "several files per commit"
    assert scenario.newest(hot).schema_ids == dict.fromkeys(table_ids(scenario, hot), 90)
    scenario.check()


def table_ids(scenario: Scenario, name: str) -> set[int]:
    return {row["_origin"]["schema_id"] for row in scenario.rows(name)}


@spark_test
@pytest.mark.usefixtures("spark", "small_shares")
def test_a_hot_route_whose_table_is_in_the_way_parks_whole(lake: Path) -> None:
    scenario = Scenario(lake)
    games = scenario.games(Plan(games=2, versions=1, records=30))
    hot, cold = games.names
    scenario.tables.mkdir()
    scenario.path(hot).write_text("in the way")
    for part in range(3):
        scenario.send_games(games, 1, [hot], records=30, start=30 * part)
    scenario.send_games(games, 1, [cold], records=3)
    assert scenario.run().parked == (hot,)
    assert scenario.reasons() == {"TABLE_PARKED": 90}
    scenario.path(hot).unlink()
    assert scenario.replay().rows == {hot: 90}
    scenario.check()


def attempt() -> Attempt:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    orders: Any = SimpleNamespace(decision=lambda _: Decision("files"), table=lambda route: f"/lake/{route}")
    unused: Any = None
    return Attempt(spark, Store(), unused, set(), unused, unused, {}, orders, {})


@pytest.mark.parametrize("good_first", [True, False])
@pytest.mark.parametrize("store_fault", [True, False])
def test_a_shared_route_is_committed_whole_or_not_at_all(good_first: bool, store_fault: bool) -> None:
    """One of its tasks failed: committing the others' files would make the failed rows look like a replay's."""
    file = DataFile("part-0.parquet", 1, 2, "{}", 0)
    parts = [
        Outcome("a", "/lake/a", 2, Append("files", 2, files=(file,))),
        Outcome("a", "/lake/a", 2, fault=Fault("OSError: broken", of_store=store_fault), reasons={"TABLE_PARKED": 2}),
    ]
    found: dict[str, Outcome] = {}
    for part in parts if good_first else parts[::-1]:
        join_into(found, part)
    done: Any = SimpleNamespace(outcomes=found)
    with pytest.raises(StoreDown if store_fault else RouteFault):
        attempt()._commit_shared(done)


# -- tables that cannot be written -------------------------------------------------------------------------


def in_the_way(scenario: Scenario, name: str) -> Path:
    scenario.tables.mkdir(exist_ok=True)
    path = scenario.path(name)
    path.write_text("in the way")
    return path


@spark_test
@pytest.mark.usefixtures("spark")
def test_a_table_that_is_in_the_way_parks_alone_and_comes_back_by_itself(lake: Path) -> None:
    """Its rows are kept; after the obstacle is gone the next batch brings them back, in the right number."""
    scenario = Scenario(lake)
    obstacle = in_the_way(scenario, "b")
    for user in ("1", "2"):
        scenario.send(event(scenario, "a", user), event(scenario, "b", user))
        assert scenario.run().parked == ("b",)
    assert scenario.reasons() == {"TABLE_PARKED": 2}
    entry = scenario.newest("b")
    assert (entry.state, entry.rows_quarantined) == ("parked", 2)
    assert entry.error
    scenario.check()
    obstacle.unlink()
    time.sleep(max(0.0, (entry.retry_at or 0) / 1e6 - time.time()) + 0.1)
    scenario.send(event(scenario, "a", "3"))
    assert scenario.run().parked == ()
    assert scenario.values("b", "user") == ["1", "2"]
    assert scenario.quarantined() == []
    assert len(scenario.quarantined("replayed")) == 2
    scenario.check()


@spark_test
@pytest.mark.usefixtures("spark")
def test_a_parked_table_that_gets_new_rows_takes_them_and_the_old_ones(lake: Path) -> None:
    scenario = Scenario(lake)
    obstacle = in_the_way(scenario, "b")
    scenario.send(event(scenario, "b", "1"), event(scenario, "a"))
    scenario.run()
    obstacle.unlink()
    time.sleep(1.5)
    scenario.send(event(scenario, "b", "2"))
    scenario.run()
    assert scenario.batches[-1].recovered == ("b",)
    assert scenario.values("b", "user") == ["1", "2"]
    scenario.check()


@spark_test
@pytest.mark.usefixtures("spark")
def test_a_parked_table_rests_longer_each_time_and_is_not_tried_before(lake: Path) -> None:
    scenario = Scenario(lake, tables={"retry_after": "1 hour"})
    obstacle = in_the_way(scenario, "b")
    scenario.send(event(scenario, "b", "1"), event(scenario, "a"))
    scenario.run()
    obstacle.unlink()
    scenario.send(event(scenario, "b", "2"))
    assert scenario.run().parked == ("b",)
    assert not scenario.path("b").exists()
    assert scenario.newest("b").failures == 1
    assert scenario.replay("b").rows == {"b": 2}, "a replay by hand does not wait"
    scenario.send(event(scenario, "b", "3"))
    assert scenario.run().parked == ()
    assert scenario.values("b", "user") == ["1", "2", "3"]
    scenario.check()


@spark_test
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("engine", ["task", "spark"])
def test_a_table_of_another_pipeline_is_not_touched(lake: Path, engine: str) -> None:
    """Case D2: the owner is written into the table; a second pipeline parks its route and says whose it is."""
    theirs = Scenario(lake)
    theirs.send(event(theirs, "a", "theirs"))
    theirs.run()
    ours = Scenario(lake, pipeline="ours", tables={"engine": engine}, source={"path": str(lake / "ours")})
    ours.source = str(lake / "ours")
    ours.send(event(ours, "a", "ours"), event(ours, "b", "ours"))
    assert ours.run().parked == ("a",)
    assert "games" in (ours.newest("a").error or "")
    assert ours.values("a", "user") == ["theirs"]
    assert ours.values("b", "user") == ["ours"]
    assert ours.reasons() == {"TABLE_PARKED": 1}
    shutil.rmtree(ours.path("a"))
    assert ours.replay().rows == {"a": 1}
    assert ours.values("a", "user") == ["ours"]
    ours.check()


@spark_test
@pytest.mark.usefixtures("spark")
def test_a_root_that_cannot_be_written_is_the_stores_fault(lake: Path) -> None:
    """No single table is parked for it, no row is kept aside, and the same batch lands later."""
    scenario = Scenario(lake, state=str(lake / "state"))
    scenario.tables.write_text("in the way")
    scenario.send(event(scenario, "a"), event(scenario, "b"))
    with pytest.raises(StoreDown):
        scenario.run()
    assert scenario.entries() == []
    assert scenario.quarantined() == []
    scenario.tables.unlink()
    scenario.run()
    scenario.check()


@spark_test
@pytest.mark.usefixtures("spark")
def test_a_state_folder_that_cannot_be_written_is_the_stores_fault(lake: Path) -> None:
    scenario = Scenario(lake, state=str(lake / "state"), checkpoint=str(lake / "checkpoint"))
    (lake / "state").mkdir()
    (lake / "state" / "plans").write_text("in the way")
    scenario.send(event(scenario, "a"))
    with pytest.raises(StoreDown):
        scenario.run()
    assert scenario.table_names() == [], "the plan comes before any table"
    (lake / "state" / "plans").unlink()
    scenario.run()
    scenario.check()


# -- crashes between the steps -----------------------------------------------------------------------------


@spark_test
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("target", "step", "after"),
    [
        (Fanout, "cut", True),
        (Fanout, "_deliver", True),
        (Ledger, "record", True),
        (BatchWriter, "_complete", True),
        (BatchWriter, "take", True),
    ],
    ids=["after the cut", "after the tables", "after the ledger", "after the quarantine", "before Spark's offsets"],
)
def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(
    lake: Path, target: Any, step: str, after: bool
) -> None:
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a", "1"), event(scenario, "b", "1"))
    scenario.run()
    obstacle = in_the_way(scenario, "c")
    scenario.send(
        event(scenario, "a", "2"), event(scenario, "c", "2"), event(scenario, "d", "2"), b"not an envelope", None,
        scenario.event("a", scenario.schema("shared-value", EVENT), b"\xff"),
    )  # fmt: skip
    with dying(target, step, after=after):
        scenario.run()
    scenario.run()
    assert scenario.reasons() == {"TABLE_PARKED": 1, "BAD_MAGIC": 1, "CORRUPT_PAYLOAD": 1}
    scenario.check(tombstones=1)
    obstacle.unlink()
    assert scenario.replay(reasons=[Reason.TABLE_PARKED]).rows == {"c": 1}
    scenario.check(tombstones=1)


# -- where a batch's bytes lie between its jobs --------------------------------------------------------------


@spark_test
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("one_machine", [True, False])
def test_chunks_pass_through_files_on_one_machine_and_through_spark_elsewhere(
    lake: Path, tmp_path: Path, one_machine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(tmp_path)) if one_machine else None
    made: list[str] = []
    opened = Spool.open

    def open_(self: Spool) -> str:
        made.append(opened(self))
        return made[-1]

    monkeypatch.setattr(Spool, "open", open_)
    plain = Fanout.__init__

    def init(self: Fanout, *args: Any) -> None:
        plain(self, *args)
        self.spool = spool

    monkeypatch.setattr(Fanout, "__init__", init)
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a", "1"), event(scenario, "b", "2"), b"not an envelope")
    scenario.run()
    assert scenario.values("a", "user") == ["1"]
    assert scenario.values("b", "user") == ["2"]
    assert len(scenario.quarantined()) == 1
    assert bool(made) == one_machine
    assert not [folder for folder in made if Path(folder).exists()]
