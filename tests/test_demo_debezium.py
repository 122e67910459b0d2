"""The demo of Debezium's topics: what its connector sends, and the whole of it, small."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.audit.inspection import inspect
from distributary.cli.entry import execute
from distributary.config import Pipeline
from distributary.engine.batch import BatchWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.schemas import schemas_of
from distributary.errors import Exit
from distributary.running.progress import LineDisplay
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary_simulate.change_messages.topics import Offsets
from distributary_simulate.changes.history import History
from distributary_simulate.demo.changes import prove
from distributary_simulate.demo.debezium import PLAN, Connector, DebeziumFolder, play_debezium, route_of
from tests.sparkless_messages import STREAM, Rows, Session


def test_the_messages_that_the_demo_sends_leave_the_sources_own_rows(tmp_path: Path) -> None:
    folder, history, offsets = DebeziumFolder(tmp_path / "demo"), History(PLAN), Offsets()
    with folder.taken():
        config = folder.write_pipeline()
    session: Any = Session(2)
    store = Store.of(config.tables)
    ledger = Ledger(config.state_root, config.pipeline, store)
    writer = BatchWriter(config, Fanout(session, config, schemas_of(config), store), ledger)
    connector = Connector(folder, SimpleNamespace(say=lambda _: None), history, 900)
    for batch, messages in enumerate(connector.rounds()):
        rows: Any = Rows(session, offsets.records(messages).to_batches())
        writer.take(rows, STREAM, batch)
    proofs = [prove(config, route_of(table.table), table) for table in history.truth().values()]
    assert [proof.differences for proof in proofs] == [()] * len(PLAN.tables)
    assert connector.again > 0 and sum(proof.rows for proof in proofs) > 100
    spoiled = DeltaTable(f"{config.tables.root}/shop_orders")
    spoiled.update({"status": "'other'"}, predicate="_deleted = false")
    truth = next(table for table in history.truth().values() if table.table.route.endswith("shop.orders"))
    assert prove(config, route_of(truth.table), truth).differences


@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_simulated_messages_lie_in_a_table_of_records(tmp_path: Path, form: str) -> None:
    table, registry = str(tmp_path / "records"), str(tmp_path / "registry")
    arguments = ["simulate", "debezium", "--delta", table, "--events", "60", "--truth", str(tmp_path / "truth.json")]
    assert execute([*arguments, "--format", form, "--registry-path", registry]) == Exit.OK
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    places = {(row["topic"], row["partition"], row["offset"]) for row in rows}
    assert len(places) == len(rows) > 60
    source = {"type": "delta", "path": table}
    given = {} if form == "json" else {"registry": {"path": registry}}
    tables = {"root": str(tmp_path / "lake")}
    document = {"pipeline": "shop", "source": source, "tables": tables, "payload": {"format": form}, **given}
    found = inspect(Pipeline.model_validate({**document, "envelope": "debezium"}), 20)
    routes = {one.route for one in found.records if one.record.looks != "a tombstone: no value"}
    assert None not in routes and routes


def test_messages_that_are_simulated_into_a_table_once_more_stand_behind_those_that_are_there(tmp_path: Path) -> None:
    table = str(tmp_path / "records")
    arguments = ["simulate", "debezium", "--delta", table, "--events", "20", "--truth", str(tmp_path / "truth.json")]
    for seed in ("1", "2"):
        assert execute([*arguments, "--seed", seed]) == Exit.OK
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({(row["topic"], row["offset"]) for row in rows}) == len(rows)


def test_simulated_messages_need_one_place_and_a_registry_for_schemas(tmp_path: Path) -> None:
    assert execute(["simulate", "debezium"]) == Exit.BAD_INPUT
    table = str(tmp_path / "records")
    assert execute(["simulate", "debezium", "--delta", table, "--format", "avro"]) == Exit.BAD_INPUT


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_each_merged_table_is_the_sources_own(tmp_path: Path) -> None:
    said: list[str] = []
    result = play_debezium(DebeziumFolder(tmp_path / "demo"), LineDisplay(said.append), changes=600)
    assert result.ok, ([p.differences for p in result.proofs], result.verification.problems)
    assert {p.kind for p in result.proofs} == {"mysql", "postgresql", "oracle", "sqlserver"}
    assert (result.verification.notes, result.report.rows_quarantined) == ((), 0)
    assert pa.table(DeltaTable(str(result.folder.source)).to_pyarrow_table()).num_rows == result.messages


def test_a_feeder_waits_for_a_stream_that_takes_its_time_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine Spark may take longer than the producer waits."""
    monkeypatch.setattr("distributary_simulate.demo.debezium.LONGEST_WAIT_SEC", 0)
    monkeypatch.setattr(Connector, "rounds", lambda self: iter(()))
    display: Any = SimpleNamespace(say=lambda _: None)
    connector = Connector(DebeziumFolder(tmp_path), display, History(PLAN), 10)
    taken: list[str] = []
    going: Any = SimpleNamespace(query=None, stop=lambda: taken.append("stopped"))
    connector.going = going
    connector.start()
    connector.join(0.2)
    assert connector.is_alive()
    going.query = SimpleNamespace(processAllAvailable=lambda: taken.append("all"))
    connector.join(240)
    assert (taken, connector.finished) == (["all", "stopped"], True)
