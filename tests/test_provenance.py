"""A state folder that is lost, emptied or another one than before cannot double the rows of tables it left behind."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from distributary.engine.replay import Replay
from distributary.errors import ConfigError, StateLost, StateOld
from distributary.shares import Division
from distributary.state.checkpoint import check_checkpoint
from distributary.state.divisions import claim
from distributary.state.ledger import Entry, Ledger
from distributary.state.provenance import Provenance
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.quarantine import (
    REJECTED_SCHEMA,
    commit_quarantine,
    replay_app,
    update_rows,
    write_rejected,
)
from distributary.tables.snapshot import Owner, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests import sparkless
from tests.scenarios import Scenario
from tests.shop import backfilled, mysql_table, order
from tests.sparkless import Sparkless

STORE = Store()
ROWS = pa.table({"n": pa.array([1, 2], pa.int64())})
OLD, NEW = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


class Tables:
    """A pipeline's tables as some streams have left them; no Spark."""

    def __init__(self, root: Path, **keys: Any) -> None:
        self.scenario = Scenario(root, **keys)
        self.config = self.scenario.config
        self.root = Path(self.config.tables.root)

    def write(self, route: str, *apps: str, pipeline: str | None = None) -> None:
        uri = str(self.root / route)
        for batch, app in enumerate(apps):
            table = Table(uri, STORE).open()
            evolution = evolve(columns_of(table), [ROWS.schema], Policy())
            owner = Owner(pipeline or self.config.pipeline, route)
            Table(uri, STORE, owner).commit(table, evolution, [write_data_file(uri, ROWS, STORE)], Txn(app, batch))

    def check(
        self, *routes: str, stream: str = NEW, config: Any = None, batch: int = 0, begun: int | None = None
    ) -> None:
        part = config or self.config
        tables = {route: [str(self.root / route)] for route in routes}
        provenance = Provenance(part, Ledger(part.state_root, part.pipeline, STORE))
        provenance.begun = begun
        provenance.check(tables, stream, batch)


def test_a_table_of_a_stream_that_no_ledger_knows_is_refused(lake: Path) -> None:
    tables = Tables(lake)
    tables.write("a", OLD)
    tables.check("b")
    with pytest.raises(StateLost) as caught:
        tables.check("b", "a")
    assert caught.value.parameters["stream"] == OLD
    assert str(tables.root / "a") in caught.value.parameters["found"]


def test_a_stream_goes_on_over_its_own_tables_also_where_it_died_before_the_ledger(lake: Path) -> None:
    tables = Tables(lake)
    tables.write("a", NEW)
    tables.write("b", OLD, NEW)
    tables.check("a", "b", batch=1)


def test_upkeep_and_replays_say_nothing_of_a_table_nor_does_another_pipelines_table(lake: Path) -> None:
    tables = Tables(lake)
    tables.write("only-replayed", "replay-1")
    tables.write("others", OLD, pipeline="another")
    tables.write("kept", OLD, *(f"upkeep-{n}" for n in range(30)))
    tables.check("only-replayed", "others")
    with pytest.raises(StateLost):
        tables.check("kept")


def test_a_route_that_the_ledger_knows_is_not_looked_at_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(lake)
    tables.write("a", OLD)
    Ledger(tables.config.state_root, tables.config.pipeline, STORE).record(
        NEW, 0, [Entry(NEW, 0, "a", state="written"), Entry(NEW, 0, None)], {}
    )
    opened: list[str] = []
    monkeypatch.setattr(Table, "open", lambda self: opened.append(self.uri))
    provenance = Provenance(tables.config, Ledger(tables.config.state_root, tables.config.pipeline, STORE, []))
    for _ in range(3):
        provenance.check({"z": [str(tables.root / "z")]}, NEW, 0)
    assert opened == [str(tables.root / "z")], "once in a run"
    monkeypatch.undo()
    tables.check("a")


def test_a_table_whose_newest_commit_is_the_streams_own_is_not_opened_in_the_first_batch_of_a_run(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(lake)
    tables.write("a", OLD, NEW, NEW)
    tables.write("kept", NEW, "upkeep-1")
    done = [Entry(NEW, 2, route, state="written") for route in ("a", "kept")]
    Ledger(tables.config.state_root, tables.config.pipeline, STORE).record(NEW, 2, [*done, Entry(NEW, 2, None)], {})
    opened: list[str] = []
    whole = Table.open
    monkeypatch.setattr(Table, "open", lambda self: opened.append(self.uri) or whole(self))  # type: ignore[func-returns-value]
    tables.check("a", "kept", batch=2)
    assert [uri for uri in opened if Path(uri).parent == tables.root] == [str(tables.root / "kept")]
    with pytest.raises(StateOld) as caught:
        tables.check("a", batch=1)
    assert caught.value.parameters["found"] == 2


def test_a_table_that_cannot_be_read_is_left_to_its_own_task(lake: Path) -> None:
    tables = Tables(lake)
    tables.write("a", OLD)
    (tables.root / "a/_delta_log" / f"{0:020d}.json").write_bytes(b"nonsense\n")
    tables.check("a")


def test_shares_know_the_streams_of_one_another_and_of_those_before_them(lake: Path) -> None:
    """A route may come to another share by a hand-over; its table then has the old share's marks."""
    tables = Tables(lake)
    division = Division.even(2)
    first, second = (tables.config.for_share(share) for share in division.shares(claim(tables.config, division, STORE)))
    Ledger(first.state_root, first.pipeline, STORE).record(OLD, 0, [Entry(OLD, 0, None)], {})
    tables.write("a", OLD)
    tables.write("b", str(uuid.UUID(int=3)))
    tables.check("a", config=second)
    with pytest.raises(StateLost):
        tables.check("b", config=second)


def test_to_go_on_knowingly_is_a_key(lake: Path) -> None:
    tables = Tables(lake, new_state="continue")
    tables.write("a", OLD)
    tables.check("a")
    with pytest.raises(ConfigError):
        Tables(lake, new_state="maybe")


def test_change_files_are_not_written_again_over_tables_of_a_state_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Sparkless(tmp_path)
    spec = mysql_table()
    shop.send(backfilled(spec, order(1, "new")), backfilled(spec, order(2, "new")))
    shop.run()
    before = shop.log("shop_orders_log")
    shutil.rmtree(shop.config.state_root)
    monkeypatch.setattr(sparkless, "STREAM", NEW)
    with pytest.raises(StateLost):
        shop.run()
    assert shop.log("shop_orders_log") == before
    shop.configure(new_state="continue")
    shop.run()
    assert len(shop.log("shop_orders_log")) == 2 * len(before)


@pytest.mark.parametrize("new_state", ["refuse", "continue"])
def test_a_state_that_is_older_than_the_tables_is_refused(lake: Path, new_state: str) -> None:
    """A batch that was planned when the run began may have been attempted; one that is planned anew may not."""
    tables = Tables(lake, new_state=new_state)
    tables.write("a", NEW, NEW, NEW)
    tables.check("a", batch=2, begun=2)
    tables.check("a", batch=3, begun=2)
    for batch, begun in ((1, 1), (2, 1)):
        with pytest.raises(StateOld) as caught:
            tables.check("b", "a", batch=batch, begun=begun)
        assert caught.value.parameters["found"] == 2
        assert caught.value.parameters["begun"] == 1
        assert caught.value.parameters["table"] == str(tables.root / "a")


@pytest.mark.parametrize("batches", [1, 2])
def test_a_copy_of_the_state_folder_that_is_so_many_batches_old_writes_nothing(tmp_path: Path, batches: int) -> None:
    shop, spec = Sparkless(tmp_path), mysql_table()
    shop.send(backfilled(spec, order(1, "new")))
    shop.run()
    state, copy, newest = Path(shop.config.state_root), tmp_path / "copy", tmp_path / "newest"
    shutil.copytree(state, copy)
    for number in range(batches):
        shop.send(backfilled(spec, order(2 + number, "new"), sec=100 + 100 * number))
        shop.run()
    state.rename(newest)
    copy.rename(state)
    shop.send(backfilled(spec, order(9, "new"), sec=900))
    before = shop.log("shop_orders_log")
    with pytest.raises(StateOld):
        shop.run()
    assert shop.log("shop_orders_log") == before
    shutil.rmtree(state)
    newest.rename(state)
    shop.run()
    assert len(shop.living("shop_orders")) == len(before) + 1
    shop.check()


def test_a_checkpoint_that_has_outlived_its_ledger_is_refused(lake: Path) -> None:
    """What was set aside is gone with the ledger, though the stream could go on."""
    config = Scenario(lake, checkpoint=str(lake / "apart")).config
    ledger = Ledger(config.state_root, config.pipeline, STORE)
    for folder in ("offsets", "commits"):
        (lake / "apart" / folder).mkdir(parents=True)
    (lake / "apart/metadata").write_text(json.dumps({"id": OLD}))
    (lake / "apart/offsets/0").write_text('v1\n{"batchWatermarkMs": 0}\n{}')
    check_checkpoint(config, ledger)
    (lake / "apart/commits/0").write_text('v1\n{"nextBatchWatermarkMs": 0}')
    with pytest.raises(StateLost) as caught:
        check_checkpoint(config, ledger)
    assert caught.value.parameters["stream"] == OLD
    check_checkpoint(config.model_copy(update={"new_state": "continue"}), ledger)


def test_a_quarantine_that_is_older_than_the_tables_is_refused_by_its_replays(lake: Path) -> None:
    """Also where only another route is to be replayed, whose replay would take the number."""
    tables = Tables(lake)
    uri = str(lake / "quarantine")
    row = {"route": "a", "reason": "UNKNOWN_SCHEMA_ID", "level": "payload", "value": b"x"}
    rejected = pa.Table.from_pylist([row, {**row, "route": "b"}], REJECTED_SCHEMA)
    commit_quarantine(uri, "games", [write_rejected(uri, [rejected], NEW, 0, "p", STORE)], NEW, 0, STORE)
    before = Table(uri, STORE).open()
    assert before is not None
    app = replay_app(before)
    spec = SimpleNamespace(stream=app, store=STORE, table=lambda route: str(tables.root / route))
    fanout: Any = SimpleNamespace(quarantine=uri, store=STORE, spec=lambda *_: spec)
    replay = Replay(tables.config, Ledger(tables.config.state_root, "games", STORE), fanout)
    tables.write("b", NEW)
    assert replay.finish_claimed().rows == {}
    tables.write("a", NEW, app)  # replay 1
    with pytest.raises(StateOld) as caught:
        replay.run("b")
    assert (caught.value.parameters["found"], caught.value.parameters["begun"]) == (1, 0)
    rows = before.query("SELECT id FROM t WHERE route = 'a'").column("id").to_pylist()
    update_rows(uri, STORE, rows, {"state": "'replayed'", "replay": "1"})
    assert replay.finish_claimed().rows == {}
