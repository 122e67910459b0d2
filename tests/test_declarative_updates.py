"""Updates on a warm server: after each one, silver and gold equal an independent decode of the input.

An update costs seconds, so two stories hold many assertions each.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from distributary.declarative import runner
from distributary.declarative.replay import replay
from distributary.declarative.server import client
from distributary.declarative.silver_values import judge_silver
from distributary.declarative.status import status
from distributary.declarative.verify import verify
from distributary.errors import AlreadyRunning, BadInput, SourceMissing
from distributary.state.lock import only_run
from distributary_simulate.games.records import Faults, Plan
from tests.declarative import World, connect_server
from tests.extent import either
from tests.services.kafka import Kafka

pytestmark = pytest.mark.spark

FAULTS = Faults(corrupt=3, unknown_id=2, empty_name=2, tombstones=2, bad_envelope=2)

OWN = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import functions as F

BROKEN = Path(__file__).with_name("broken").exists()


@dp.table(name="own_events")
def own():
    rows = spark.readStream.table("silver_amber_anchor_game_events")
    check = F.expr("assert_true(false)" if BROKEN else "assert_true(true)")
    return rows.select("user_name", "event_timestamp", check.cast("string").alias("checked"))
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


class Reader(threading.Thread):
    """Reads unified gold again and again."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.counts: list[int] = []
        self.errors: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        table = self.world.datasets.sql(self.world.datasets.unified)
        with client(self.world.remote) as spark:
            while not self.done.wait(either(1.0, 0.2)):
                try:
                    self.counts.append(int(spark.sql(f"SELECT sum(events) FROM {table}").collect()[0][0] or 0))
                except Exception as e:
                    self.errors.append(str(e)[:300])


@pytest.mark.timeout(1800)
def test_run_after_run_gives_what_was_sent_whatever_comes_fails_or_is_refreshed(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ATTEMPTS_ONCE", 2)
    monkeypatch.setattr(runner, "FIRST_REST_SEC", 0.1)
    (tmp_path / "own.py").write_text(OWN)
    plan = Plan(games=2, versions=3, records=20, faults=FAULTS)
    world = World(tmp_path, remote, plan, declarative={"libraries": ["own.py"]})
    first, second = world.games.names
    silver = {game: world.datasets.silver(game) for game in world.games.names}

    # A game that no subject names: the first update sets its rows aside, the second one has them.
    world.send(1, [first])
    elsewhere = world.registry.register("elsewhere", world.text(second, 1)).schema.id
    world.send_as(second, 1, elsewhere)
    with only_run(world.config.state_root, world.config.pipeline), pytest.raises(AlreadyRunning):
        world.run()
    report = world.run()
    assert (report.ok, report.updates, report.replayed) == (True, 2, len(world.good(second)))
    world.check()

    # New versions, one with a struct that grows, beside a reader of gold, and a flow of the user's that fails.
    (tmp_path / "broken").touch()
    before = len([r for r in world.sent if r.fault is None])
    world.send(2, [first])
    world.send(3, [first])
    at_first: list[int] = []
    reader = Reader(world)
    reader.start()
    broken = world.runner(after=lambda _: at_first.append(len(world.silver(first)))).go()
    reader.done.set()
    reader.join(240)
    assert (broken.ok, list(broken.failed), broken.updates) == (False, ["own_events"], 2)
    assert at_first[0] == len(world.good(first)), "new versions are there after one update, whatever else fails"
    world.check()
    assert not reader.errors
    assert reader.counts, "the reader has read"
    assert min(reader.counts) >= before, "gold was empty for a moment"

    # Mended: the next update has today's definitions. Of the rest nothing is new, and the order of flows is right
    # although every table is there: none begins before what it reads has ended.
    (tmp_path / "broken").unlink()
    mended = world.run()
    assert mended.ok
    assert {name for name, rows in mended.rows.items() if rows} == {"own_events"}
    world.check()
    assert len(world.rows("own_events")) == len(world.silver(first))
    told = world.order(1)
    for name in silver.values():
        assert told.index((world.datasets.bronze, "COMPLETED")) < told.index((name, "RUNNING"))
    assert told.index((silver[first], "COMPLETED")) < told.index(("own_events", "RUNNING"))

    # A table that somebody dropped is filled anew, and so is what reads it as a stream; an id that nobody knows waits.
    unknown = elsewhere + 50
    world.send_as(second, 2, unknown)
    with client(remote) as spark:
        spark.sql(f"DROP TABLE {world.datasets.sql(silver[first])}")
    assert world.run().replayed == 0
    waiting = world.query(f"SELECT count(*) FROM {{quarantine}} WHERE schema_id = {unknown}")
    assert waiting == [(len(world.good(second)) - len(world.good(second, without=unknown)),)]
    world.check_silver(without=unknown)
    assert len(world.rows("own_events")) == len(world.silver(first))
    assert verify(world.config).ok

    # Registered at last, it comes back with its columns, exactly once, although all is refreshed in full.
    world.register_as(unknown, "late", world.text(second, 2))
    healed = world.run(full_refresh=(world.datasets.bronze,))
    assert healed.ok
    world.check()
    assert replay(world.config, world.registry).rows == {}
    check_books(world)


def test_a_source_that_is_not_there_is_bad_input_and_not_a_broken_definition(tmp_path: Path, remote: str) -> None:
    """Over Spark Connect nothing is looked at before it is asked for."""
    with pytest.raises(SourceMissing, match=r"Check source\.path"):
        World(tmp_path, remote).run()


def check_books(world: World) -> None:
    """Recount, ledger and status say the same."""
    found = verify(world.config)
    assert found.ok, found.problems
    assert found.rows_in == len([r for r in world.sent if r.fault != "tombstones"])
    sums = world.totals()
    assert sum(e.rows_in for e in sums.values()) == found.rows_in
    assert sum(e.rows_quarantined for e in sums.values()) == found.rows_quarantined
    assert sum(e.tombstones for e in sums.values()) == found.tombstones
    shown = status(world.config)
    assert (shown.rows, shown.quarantined) == (found.rows_written, found.rows_quarantined)
    assert (shown.lag_rows, shown.parked, shown.running) == (0, (), False)


def test_rules_columns_a_function_and_materialized_gold_are_exact_on_the_second_run_too(
    tmp_path: Path, remote: str, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a topic of Kafka, which the other story is not."""
    monkeypatch.setattr(runner, "ATTEMPTS_ONCE", 1)
    (tmp_path / "own.py").write_text("def loud(rows):\n    return rows.selectExpr('*', 'upper(player) AS loud')\n")
    materialized = {"gold_as": "materialized_view"}
    plan = Plan(games=1, versions=2, records=20, topic=kafka.create_topic(f"declarative-{uuid.uuid4().hex[:8]}", 2))
    world = World(tmp_path, remote, plan, kafka=kafka.bootstrap_servers, declarative=materialized, tables={
        "select": ["* EXCEPT (is_connection_stable)", "user_name AS player"],
        "function": "own.py:loud",
        "expectations": [
            {"name": "stable", "that": "is_connection_stable", "otherwise": "drop"},
            {"name": "early", "that": "user_name < 'm'"},
            {"name": "zoned", "that": "col_amber_anchor_game_2['zone'] <> 'nowhere'", "otherwise": "drop"},
        ],
    })  # fmt: skip
    (game,) = world.games.names
    silver = world.datasets.silver(game)
    world.send(1)
    assert world.run(dry_run=True).ok
    assert (world.rows(world.datasets.bronze), world.silver(game)) == ([], []), "a dry run makes no table"
    with pytest.raises(BadInput):
        world.run(refresh=("nosuch",))
    assert world.run().ok
    world.send(2)
    assert world.run().ok

    sent = world.expected(game)
    stable = [r for r in sent if r["is_connection_stable"]]
    rows = world.silver(game)
    assert sorted(r["loud"] for r in rows) == sorted(r["user_name"].upper() for r in stable)
    assert "is_connection_stable" not in rows[0]
    aside = world.query("SELECT reason, detail, count(*) FROM {quarantine} GROUP BY ALL")
    assert aside == [("EXPECTATION_FAILED", "stable", len(sent) - len(stable))]
    ledger = world.totals()[game]
    assert ledger.reasons == {"EXPECTATION_FAILED": len(sent) - len(stable)}
    assert ledger.warnings == {"early": sum(not r["user_name"] < "m" for r in stable)}
    check_books(world)

    kept = DeltaTable(world.datasets.uri(world.datasets.unified))
    assert kept.version() > 3, "it was refreshed, not dropped and made anew"

    # Gold is computed by each update: all tables are there, and still nothing is read before it is filled.
    gold = world.query("SELECT sum(events), count(*) FROM {unified_gold}")
    assert gold == [(len(stable), len({r["user_name"] for r in stable}))]
    told = world.order(1)
    steps = [world.datasets.bronze, silver, world.datasets.gold(game), world.datasets.unified]
    for above, below in pairwise(steps):
        assert told.index((above, "COMPLETED")) < told.index((below, "RUNNING"))

    # `fail`: the table waits, its rows are in bronze; once the rule is mended they are in silver.
    world.configure(tables={"expectations": [{"name": "never", "that": "user_name = ''", "otherwise": "fail"}]})
    world.send(2, start=100)
    report = world.run()
    assert list(report.failed) == [silver]
    assert "never" in report.failed[silver]
    assert len(world.silver(game)) == len(stable)
    assert status(world.config).parked == (game,)
    assert verify(world.config).tables[0].rows_pending == 20
    world.configure()
    assert world.run().ok
    assert len(world.silver(game)) == len(stable) + 20
    # Gold has become views meanwhile: the tables made way for them.
    assert world.query("SELECT sum(events) FROM {unified_gold}") == [(len(stable) + 20,)]
    assert world.rows(world.datasets.unified) == []
    assert status(world.config).parked == ()


def test_a_table_that_the_catalog_does_not_know_is_taken_up_as_it_is(remote: str, tmp_path: Path) -> None:
    """As after a kill between a table's first commit and its entry in the catalog."""
    world = World(tmp_path, remote, Plan(games=1, versions=2, records=5))
    world.send(1)
    world.run()
    bronze = Path(world.datasets.uri(world.datasets.bronze))
    shutil.copytree(bronze, tmp_path / "kept")
    with client(remote) as spark:
        spark.sql(f"DROP TABLE {world.datasets.sql(world.datasets.bronze)}")
    shutil.rmtree(bronze, ignore_errors=True)
    (tmp_path / "kept").rename(bronze)
    world.send(2, start=5)
    assert world.run().ok
    world.check()


def test_a_table_that_cannot_be_read_stops_no_other_and_gets_its_rows_once_it_can(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ATTEMPTS_ONCE", 1)
    world = World(tmp_path, remote, Plan(games=2, versions=2, records=5))
    first, second = world.games.names
    world.send(1)
    assert world.run().ok
    log = Path(world.datasets.uri(world.datasets.silver(second)), "_delta_log", f"{0:020}.json")
    whole = log.read_text()
    log.write_text("{broken")
    world.send(2)
    report = world.run()
    assert (report.ok, list(report.failed)) == (False, [world.datasets.silver(second)])
    assert len(world.silver(first)) == len(world.good(first))
    log.write_text(whole)
    mended = world.run()
    assert (mended.ok, mended.replayed) == (True, 5)
    world.check()
    assert verify(world.config).ok
    judged = judge_silver(world.config, verify(world.config), deep=True)
    assert judged.problems == ()
    assert [t.rows_compared for t in judged.tables] == [t.rows_written for t in judged.tables]


def test_json_without_a_schema_and_its_records_keys_become_silver(tmp_path: Path, remote: str, kafka: Kafka) -> None:
    topic = kafka.create_topic(f"inferred-{uuid.uuid4().hex[:8]}", 2)
    source = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "topic": topic, "key": "player"}
    world = World(
        tmp_path, remote, source=source, envelope={"format": "none", "route": "kind"},
        payload={"format": "json", "framing": "none", "types": "inferred"}, declarative={"gold_as": "none"},
    )  # fmt: skip
    producer = Producer(kafka.client())
    expected: list[dict[str, Any]] = []
    rounds: list[tuple[str, dict[str, Any]]] = [
        ('"score":1', {"score__bigint": 1}),
        ('"at":{"zone":"x"},"score":"1"', {"at": "x", "score__string": "1"}),
    ]
    for number, (more, columns) in enumerate(rounds):
        records: list[tuple[str, dict[str, Any]]] = [(more, columns), ('"n":null', {})]
        for place, (text, row) in enumerate(records):
            producer.produce(topic, b'{"kind":"go",%s}' % text.encode(), key=b"p%d" % number, partition=place)
            expected.append({"kind__string": "go", **row, "player": f"p{number}"})
        assert producer.flush(30) == 0
        report = world.run()
        assert report.ok and report.updates == 2, report
    rows = [{name: value for name, value in row.items() if name != "_origin"} for row in world.silver("go")]
    rows = [row | {"at": row["at"] and row["at"]["zone__string"]} for row in rows]
    assert _counted(rows) == _counted(expected)
    assert world.totals()["go"].rows_written == len(expected)
    checked = judge_silver(world.config, verify(world.config), deep=True)
    assert checked.ok, checked.problems


def _counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted((name, value) for name, value in row.items() if value is not None)) for row in rows)
