"""Before each start: is the checkpoint the one that wrote these tables, and the topic the one that it has read?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from distributary.config import StateFolder
from distributary.errors import CheckpointLost, LayoutChanged, SourceDataLost, TablesMoved
from distributary.sources import kafka_source
from distributary.sources.kafka import Topic
from distributary.state.checkpoint import check_checkpoint, check_source, read_offsets, stream_id
from distributary.state.cleaning import at_work
from distributary.state.ledger import LOSS, Entry, Ledger, replay_stream
from distributary.tables.store import Store
from tests.lake import Lake
from tests.scenarios import Scenario, message

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


class State:
    """A pipeline's state as files: what the ledger has finished, and what the checkpoint says."""

    def __init__(self, root: Path, **source: Any) -> None:
        self.scenario = Scenario(root, source=source or {"type": "delta"})
        self.config = self.scenario.config
        self.store = Store()
        self.folder = Path(self.config.checkpoint_path)

    def finished(self, stream: str, *batches: int) -> State:
        for batch in batches:
            self.ledger.record(stream, batch, [Entry(stream, batch, None)], {})
        return self

    def checkpoint(self, stream: str, *batches: int, offsets: Any = None) -> State:
        (self.folder / "offsets").mkdir(parents=True)
        (self.folder / "metadata").write_text(json.dumps({"id": stream}))
        for batch in batches:
            text = "v1\n" + json.dumps({"batchWatermarkMs": 0}) + "\n" + json.dumps(offsets or {})
            (self.folder / "offsets" / str(batch)).write_text(text)
        return self

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.config.state_root, self.config.pipeline, self.store)

    def check(self) -> None:
        check_checkpoint(self.config, self.ledger)


def test_nothing_written_and_no_checkpoint_is_a_first_start(lake: Path) -> None:
    State(lake).check()


def test_a_checkpoint_without_a_finished_batch_is_fine(lake: Path) -> None:
    State(lake).checkpoint("s", 0).check()


def test_the_checkpoint_that_the_ledger_knows_is_fine(lake: Path) -> None:
    State(lake).finished("s", 0, 1).checkpoint("s", 0, 1, 2).check()


def test_a_lost_checkpoint_is_refused(lake: Path) -> None:
    """Case S1: starting over would write every row twice."""
    state = State(lake).finished("s", 0)
    with pytest.raises(CheckpointLost) as caught:
        state.check()
    assert caught.value.parameters["known"] == "s"
    assert caught.value.parameters["checkpoint"] == state.config.checkpoint_path


def test_a_foreign_checkpoint_is_refused(lake: Path) -> None:
    """Case S1: batch 0 of another stream."""
    with pytest.raises(CheckpointLost) as caught:
        State(lake).finished("s", 0).checkpoint("other", 0).check()
    assert "other" in caught.value.parameters["found"]


def test_a_checkpoint_older_than_the_ledger_is_refused(lake: Path) -> None:
    """A restored copy would use batch ids again for other rows, which the tables would skip as replays."""
    with pytest.raises(CheckpointLost):
        State(lake).finished("s", 0, 1, 2).checkpoint("s", 0, 1).check()


def test_replays_and_notes_are_no_streams(lake: Path) -> None:
    state = State(lake).finished(replay_stream(4), 4).finished(LOSS, 0)
    state.check()
    state.finished("s", 0).checkpoint("s", 0).check()


def test_offsets_and_the_stream_id_are_read_as_spark_writes_them(lake: Path) -> None:
    state = State(lake).checkpoint("abc", 3, offsets={"events": {"0": 5}})
    assert stream_id(str(state.folder), Store()) == "abc"
    assert read_offsets(str(state.folder), Store(), 3) == [{"events": {"0": 5}}]
    assert read_offsets(str(state.folder), Store(), 4) is None
    assert stream_id(str(lake / "elsewhere"), Store()) is None


# -- topics ------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> list[Topic]:
    """What the broker says of the topics; the real one is in test_kafka_pipeline.py."""
    topics = [Topic("events", "id-1", {0: 0, 1: 0}, {0: 9, 1: 9})]
    monkeypatch.setattr(kafka_source, "describe_topics", lambda _: topics)
    return topics


def kafka_state(root: Path, on_data_loss: str = "fail") -> State:
    return State(root, type="kafka", bootstrap_servers="127.0.0.1:1", topic="events", on_data_loss=on_data_loss)


def test_a_topic_seen_for_the_first_time_is_remembered(lake: Path, broker: list[Topic]) -> None:
    state = kafka_state(lake)
    check_source(state.config, state.store, state.ledger)
    check_source(state.config, state.store, state.ledger)
    assert state.ledger.entries() == []


def test_a_topic_made_again_is_refused(lake: Path, broker: list[Topic]) -> None:
    """Case S6: whatever its offsets are; one that has grown past the old offset would be read from the middle."""
    state = kafka_state(lake)
    check_source(state.config, state.store, state.ledger)
    broker[0] = Topic("events", "id-2", {0: 0, 1: 0}, {0: 99, 1: 99})
    for _ in range(2):
        with pytest.raises(SourceDataLost) as caught:
            check_source(state.config, state.store, state.ledger)
        assert "id-2" in caught.value.parameters["detail"]


def test_offsets_that_were_never_read_and_are_gone_are_named(lake: Path, broker: list[Topic]) -> None:
    """Case S6: topic, partition and range."""
    state = kafka_state(lake).finished("s", 4).checkpoint("s", 4, offsets={"events": {"0": 3, "1": 8}})
    check_source(state.config, state.store, state.ledger)
    broker[0] = Topic("events", "id-1", {0: 7, 1: 8}, {0: 9, 1: 9})
    with pytest.raises(SourceDataLost) as caught:
        check_source(state.config, state.store, state.ledger)
    assert caught.value.parameters["detail"] == "topic events partition 0: offsets 3 to 6 are gone"


def test_a_loss_that_was_agreed_to_is_noted_once(lake: Path, broker: list[Topic]) -> None:
    state = kafka_state(lake, "continue").finished("s", 4).checkpoint("s", 4, offsets={"events": {"0": 3, "1": 8}})
    check_source(state.config, state.store, state.ledger)
    broker[0] = Topic("events", "id-2", {0: 0, 1: 0}, {0: 9, 1: 9})
    check_source(state.config, state.store, state.ledger)
    check_source(state.config, state.store, state.ledger)
    notes = [e.error or "" for e in state.ledger.entries() if e.state == "loss"]
    assert len(notes) == 1
    assert "events was deleted and made again" in notes[0]


# -- whole runs --------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_run_without_its_checkpoint_is_refused_until_it_is_back(lake: Path) -> None:
    """Case S1, and RESTORE: the marks of a table that was taken back to an older version skip no new batch."""
    scenario = Scenario(lake)
    schema_id = scenario.schema("a-value", EVENT)

    def send(user: str) -> None:
        scenario.send(scenario.event("a", schema_id, message(EVENT, "event", user=user)))
        scenario.run()

    send("x")
    send("y")
    checkpoint, aside = Path(scenario.config.checkpoint_path), lake / "aside"
    shutil.move(checkpoint, aside)
    with pytest.raises(CheckpointLost):
        scenario.run()
    assert not checkpoint.exists()
    shutil.move(aside, checkpoint)
    scenario.table("a").restore(0)
    send("z")
    assert scenario.values("a", "user") == ["x", "z"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_kill_while_the_first_batch_s_offsets_are_written_keeps_no_run_from_beginning(lake: Path) -> None:
    """It leaves a temporary file of Spark's, after which Spark 4.2 by itself refuses batch 0 for good
    (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)."""
    scenario = Scenario(lake)
    scenario.send(scenario.event("a", scenario.schema("a-value", EVENT), message(EVENT, "event", user="x")))
    checkpoint = Path(scenario.config.checkpoint_path)
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        (checkpoint / folder / ".0.c87c7ffe-c16d-4ced-9047-6443b536078c.tmp").touch()
    (checkpoint / "metadata").write_text('{"id":"489ed1f3-3002-441b-b188-8486b2522984"}')
    scenario.run()
    assert scenario.values("a", "user") == ["x"]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("{lake}/elsewhere/chess", "by tables.root its place would now be {lake}/tables, "),
        ("{lake}/tables/silver_chess", "by tables.name its place would now be {lake}/tables/chess, "),
    ],
)
def test_tables_that_would_begin_anew_at_another_place_are_refused(lake: Path, table: str, says: str) -> None:
    state = State(lake)
    address = table.format(lake=lake)
    state.ledger.record("s", 0, [Entry("s", 0, "chess", table=address, rows_in=1, rows_written=1)], {})
    with pytest.raises(TablesMoved) as caught, at_work(state.config, state.store):
        pass
    assert f"has written {address}; " in str(caught.value)
    assert says.format(lake=lake) in str(caught.value)


@pytest.mark.parametrize("rows", [0, 1])
def test_tables_stay_where_they_are_and_one_that_never_had_rows_is_free(lake: Path, rows: int) -> None:
    state = State(lake)
    place = "tables" if rows else "elsewhere"
    entry = Entry("s", 0, "chess", table=f"file://{lake}/{place}/chess", rows_in=rows, rows_written=rows)
    state.ledger.record("s", 0, [entry], {})
    with at_work(state.config, state.store):
        pass


def test_another_layout_is_told_as_that_and_not_as_tables_that_have_moved(lake: Path) -> None:
    state = State(lake)
    address = f"{lake}/tables/chess"
    state.ledger.record("s", 0, [Entry("s", 0, "chess", table=address, rows_in=1, rows_written=1)], {})
    state.store.put_whole(state.config.state_root, StateFolder.layout.name, b'{"layout": "fanout"}')
    state.config = state.config.model_copy(update={"layout": "wide"})
    with pytest.raises(LayoutChanged), at_work(state.config, state.store):
        pass


@pytest.mark.parametrize("name", ["acme_order_placed", "acme_x2e__x4f_rder_x50_laced"])
def test_a_table_stays_under_any_name_that_its_route_can_have(lake: Path, name: str) -> None:
    state = State(lake)
    address = f"{state.config.tables.root}/{name}"
    entry = Entry("s", 0, "acme.OrderPlaced", table=address, rows_in=1, rows_written=1)
    state.ledger.record("s", 0, [entry], {})
    with at_work(state.config, state.store):
        pass


@pytest.mark.parametrize(
    ("written", "tables", "key"),
    [
        ("silver_chess", {"name": "gold_{route|last|snake}"}, "tables.name"),
        ("chess", {"name": "{route|lower}"}, "tables.name"),
        ("cards", {"routes": {"a.Chess": {"name": "decks"}}}, "tables.routes.a.Chess.name"),
        ("a_chess", {"name": "{route|lower}"}, None),
        ("x_x43_hess", {"name": "{route|last|snake}"}, "tables.name"),
        ("a_x2e__x43_hess", {"routes": {"a.Chess": {"name": "decks"}}}, None),
    ],
)
def test_a_name_under_which_a_table_would_begin_again_is_refused_also_by_rules_and_of_one_route(
    lake: Path, written: str, tables: dict[str, Any], key: str | None
) -> None:
    games = Lake(lake, tables=tables)
    entry = Entry("s", 0, "a.Chess", table=f"{lake}/{written}", rows_in=1, rows_written=1)
    games.ledger.record("s", 0, [entry], {})
    refused = None
    try:
        with at_work(games.config, games.store):
            pass
    except TablesMoved as e:
        refused = e.parameters["key"]
    assert refused == key


@pytest.mark.parametrize(
    ("tables", "key"), [({"merged": "now_{table}"}, "tables.merged"), ({"log": "{table}_events"}, "tables.log")]
)
def test_tables_of_change_files_keep_their_names(lake: Path, tables: dict[str, Any], key: str) -> None:
    about = json.dumps({"source": ["mysql", "shop", "", "orders"], "keys": ["id"]})
    shop = Lake(lake, "shop", {"type": "datastream", "path": "/f"}, registry=None)
    log, merged = f"{lake}/shop_orders_log", f"{lake}/shop_orders"
    entry = Entry("s", 0, "shop.orders", table=log, merged=merged, about=about, rows_in=1, rows_written=1)
    shop.ledger.record("s", 0, [entry], {})
    with at_work(shop.config, shop.store):
        pass
    other = Lake(lake, "shop", {"type": "datastream", "path": "/f"}, registry=None, tables=tables)
    with pytest.raises(TablesMoved) as caught, at_work(other.config, other.store):
        pass
    assert caught.value.parameters["key"] == key


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_a_route_whose_keys_are_taken_away_keeps_its_table(lake: Path, keys: list[str]) -> None:
    """It is parked with what to do about it; nothing is at another place."""
    players = Lake(lake, tables={"keys": keys})
    entry = Entry("s", 0, "players", table=f"{lake}/players_log", merged=f"{lake}/players", rows_in=1, rows_written=1)
    players.ledger.record("s", 0, [entry], {})
    with at_work(players.config, players.store):
        pass
