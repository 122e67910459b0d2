"""What `plan` says is what `run` then does, and saying it changes nothing."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import distributary as dy
from distributary.audit.plan import PlanReport, TablePlan, plan
from distributary.audit.verify import verify
from distributary.cli.render import plan_text
from distributary.cli.terminal import PlainConsole
from distributary.config import Pipeline, RegistryConfig, load
from distributary.errors import CheckpointLost, FirstBatchUnreadable, QuarantineLimit
from distributary.names import table_name
from distributary.running.stream import run
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import Registry, open_registry
from distributary.state.ledger import Entry, Ledger, is_batch, totals
from distributary.tables.store import Store
from distributary_simulate.games.events import message_class
from distributary_simulate.games.records import VALUE_SCHEMA, Faults
from distributary_simulate.games.records import Plan as Order
from distributary_simulate.games.schemas import WRAPPER_TEXT
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ORDER = Order(
    games=3, versions=3, records=40, seed=5,
    faults=Faults(corrupt=5, unknown_id=3, empty_name=2, tombstones=2, bad_envelope=2),
)  # fmt: skip


class Stage:
    """A source, a registry and a pipeline file in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry: Registry = open_registry(RegistryConfig(path=str(root / "registry")))
        self.games = Games(ORDER, self.registry)
        self.truth = Truth()

    def send(self, version: int, games: Sequence[str] | None = None) -> None:
        write_delta(str(self.root / "source"), self.games.records(version, games), on_written=self.truth.merge)

    def send_values(self, values: Sequence[bytes | None]) -> None:
        rows = [{"value": value, "key": None, "timestamp": None} for value in values]
        write_delta(str(self.root / "source"), pa.Table.from_pylist(rows, schema=VALUE_SCHEMA))

    def config(self, evolution: str = "{}", more: str = "", more_tables: str = "", quarantine: str = "{}") -> Pipeline:
        file = self.root / "pipeline.yaml"
        file.write_text(
            f"pipeline: games\nsource: {{type: delta, path: {self.root}/source{more}}}\n"
            f"registry: {{path: {self.root}/registry}}\nquarantine: {quarantine}\n"
            f"tables: {{root: {self.root}/lake, evolution: {evolution}{more_tables}}}\n"
        )
        return load(file)

    def tree(self) -> dict[str, str]:
        """Every file below the folder with a digest of its bytes."""
        files = sorted(p for p in self.root.rglob("*") if p.is_file() and p.name != "pipeline.yaml")
        return {str(p.relative_to(self.root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def table(found: PlanReport, route: str) -> TablePlan:
    return next(t for t in found.tables if t.route == route)


def agree(config: Pipeline) -> PlanReport:
    """What `plan` says, held against what a run then enters into its ledger, route by route."""
    ledger = Ledger(config.state_root, config.pipeline, Store())
    before, batches = totals(ledger.entries()), dict(ledger.finished)
    found = plan(config)
    with suppress(QuarantineLimit):
        run(config, once=True)
    ledger = Ledger(config.state_root, config.pipeline, Store())
    entries = [e for e in ledger.entries() if is_batch(e.stream) and e.batch > batches.get(e.stream, -1)]
    after = totals(entries)
    none = Entry("", 0, None)
    total = [sum(getattr(e, n) for e in after.values()) for n in ("rows_in", "rows_written", "rows_quarantined")]
    assert [found.rows_in, found.rows_written, found.rows_quarantined] == total
    assert found.batches == len({(e.stream, e.batch) for e in entries})
    assert found.reasons == dict(sum((Counter(e.reasons) for e in after.values()), Counter()))
    assert {t.route for t in found.tables} == {r for r, e in after.items() if r is not None}
    for one in found.tables:
        entry = after.get(one.route, none)
        assert (one.rows_in, one.rows_written) == (entry.rows_in, entry.rows_written), one.route
        assert (one.rows_quarantined, one.reasons) == (entry.rows_quarantined, dict(entry.reasons)), one.route
        assert one.new == entry.created, one.route
        assert (one.parked is not None) == (entry.state == "parked"), one.route
        if one.rows_written:
            assert one.engine == entry.engine
            columns = {f.name for f in DeltaTable(one.table).schema().fields}
            assert {name.split(".")[0] for name in one.new_columns} <= columns
        elif one.route not in before:
            assert not (Path(one.table) / "_delta_log").exists()
    return found


def test_rows_of_a_table_that_rests_are_planned_as_quarantined(stage: Stage) -> None:
    config = stage.config(more_tables=", retry_after: 1 hour")
    stage.send(1)
    game, *others = stage.games.names
    uri = Path(config.tables.root) / table_name(game)
    uri.parent.mkdir(parents=True)
    uri.write_text("no folder")
    first = agree(config)
    assert table(first, game).parked is not None
    stage.send(2)
    uri.unlink()
    found = agree(config)
    one = table(found, game)
    assert (one.rows_written, one.new, one.new_columns) == (0, False, {})
    assert one.reasons["TABLE_PARKED"] > 0
    assert all(table(found, other).rows_written for other in others)
    assert verify(config).ok


def test_tables_of_which_every_row_would_be_quarantined_are_not_counted_as_new(stage: Stage) -> None:
    """Of routes whose schema id nobody has, no table is made."""
    wrapper_id = stage.registry.register("events-value", WRAPPER_TEXT).schema.id
    wrapper = message_class(WRAPPER_TEXT, "wrapper")
    bad = [wrapper(game_name=f"game_{n}", schema_id=900 + n, payload=frame(900 + n, b"")) for n in range(14)]
    good = [scored(stage, "int32", n) for n in range(4)]
    stage.send_values([*good, *(frame(wrapper_id, envelope.SerializeToString()) for envelope in bad)])
    config = stage.config(quarantine="{max_ratio: 1.0}")
    found = agree(config)
    assert [t.route for t in found.tables if t.new] == ["chess"]
    console = PlainConsole(width=1000)
    console.file = io.StringIO()
    console.print(plan_text(found))
    assert "write 4 rows to 1 table (1 new) and quarantine 14." in console.file.getvalue()


def test_a_plan_ends_at_the_limit_of_the_quarantine_where_the_run_does(stage: Stage) -> None:
    config = stage.config(more=", max_files_per_batch: 1", quarantine="{max_ratio: 0.1, min_rows: 1}")
    for values in ([scored(stage, "int32", 1)] * 9, [b"?"], [scored(stage, "int32", 2)]):
        stage.send_values(values)
    found = agree(config)
    assert (found.batches, found.rows_written, found.stops) == (2, 9, "max_ratio 0.1")
    rest = agree(config)
    assert (rest.batches, rest.rows_written, rest.stops) == (1, 1, None)


def test_a_first_plan_writes_nothing_and_names_new_tables(stage: Stage) -> None:
    stage.send(1)
    before, config = stage.tree(), stage.config()
    found = plan(config)
    assert stage.tree() == before
    assert found.after_batch is None
    assert [t.route for t in found.tables] == stage.games.names
    assert all(t.new and t.engine == "task" and "user_name" in t.new_columns for t in found.tables)
    assert found.rows_written == stage.truth.rows_total


def test_a_plan_begins_where_the_run_would_and_says_what_the_run_then_does(stage: Stage) -> None:
    config = stage.config()
    stage.send(1)
    run(config, once=True)
    stage.send(2)
    stage.send(3)
    before = stage.tree()
    found = plan(config)
    assert stage.tree() == before
    report = run(config, once=True)
    assert found.after_batch == 0
    assert (found.rows_in, found.rows_written, found.rows_quarantined, found.tombstones) == (
        report.rows_in, report.rows_written, report.rows_quarantined, report.tombstones,
    )  # fmt: skip
    for game in stage.games.names:
        one = table(found, game)
        assert not one.new
        assert {f"col_{game}_2", f"col_{game}_3"} == set(one.new_columns)
        columns = {f.name for f in DeltaTable(one.table).schema().fields}
        assert set(one.new_columns) <= columns
    assert plan(config).rows_in == 0


def test_bad_rows_are_counted_by_reason_and_unknown_ids_are_named(stage: Stage) -> None:
    for version in (1, 2, 3):
        stage.send(version)
    found = plan(stage.config())
    assert found.reasons == {"CORRUPT_PAYLOAD": 5, "UNKNOWN_SCHEMA_ID": 3, "NO_ROUTE": 2, "CORRUPT_ENVELOPE": 2}
    assert found.unknown_schema_ids == {999_999: 3}
    assert found.tombstones == 2
    assert found.rows_in == found.rows_written + found.rows_quarantined


def test_several_batches_are_planned_one_after_the_other(stage: Stage) -> None:
    for version in (1, 2, 3):
        stage.send(version)
    found = plan(stage.config(more=", max_files_per_batch: 1"))
    assert found.batches == 3
    assert found.rows_written == stage.truth.rows_total
    assert all(t.new for t in found.tables)


SCORES = 'syntax = "proto3"; message event {{ string user_name = 1; {} score = 2; }}'


def scored(stage: Stage, kind: str, value: int | str) -> bytes:
    """An envelope of route `chess` whose score has this type; registers its schema."""
    text = SCORES.format(kind)
    stage.registry.set_compatibility("chess-value", "NONE")
    schema_id = stage.registry.register("chess-value", text).schema.id
    wrapper_id = stage.registry.register("events-value", WRAPPER_TEXT).schema.id
    body = message_class(text, "event")(user_name="ada", score=value).SerializeToString()
    wrapper = message_class(WRAPPER_TEXT, "wrapper")
    envelope = wrapper(game_name="chess", schema_id=schema_id, payload=frame(schema_id, body))
    return frame(wrapper_id, envelope.SerializeToString())


def test_a_wider_type_is_a_type_change_by_engine_spark_only_where_type_widening_is_asked_for(stage: Stage) -> None:
    config = stage.config()
    stage.send_values([scored(stage, "int32", 1)])
    run(config, once=True)
    stage.send_values([scored(stage, "int64", 2**40)])
    one = table(plan(config), "chess")
    assert one.type_changes == {"score": ["int", "bigint"]}
    assert (one.engine, one.why_spark, one.new_columns) == ("task", None, {})
    asked = config.tables.evolution.model_copy(update={"type_change": "type_widening"})
    tables = config.tables.model_copy(update={"evolution": asked})
    one = table(plan(config.model_copy(update={"tables": tables})), "chess")
    assert one.type_changes == {"score": ["int", "bigint"]}
    assert (one.engine, one.why_spark, one.new_columns) == ("spark", "widening score", {})


def test_another_type_is_a_second_column_or_a_quarantined_row_as_the_file_says(stage: Stage) -> None:
    config = stage.config()
    stage.send_values([scored(stage, "int32", 1)])
    run(config, once=True)
    stage.send_values([scored(stage, "string", "many")])
    one = table(plan(config), "chess")
    assert (one.new_columns, one.rows_written) == ({"score__string": "string"}, 1)
    one = table(plan(stage.config(evolution="{type_change: quarantine}")), "chess")
    assert (one.new_columns, one.rows_written, one.reasons) == ({}, 0, {"TYPE_CONFLICT": 1})


def test_a_table_of_somebody_else_is_planned_as_parked(stage: Stage) -> None:
    game = stage.games.names[0]
    stage.send(1)
    first = stage.config()
    uri = f"{first.tables.root}/{table_name(game)}"
    owner = '{"distributary": {"pipeline": "other", "route": "x"}}'
    write_deltalake(uri, pa.table({"a": [1]}), description=owner)
    found = plan(first)
    one = table(found, game)
    assert one.parked is not None
    assert "pipeline other" in one.parked
    assert one.rows_written == 0
    assert table(found, stage.games.names[1]).rows_written > 0


def test_a_plan_refuses_what_a_run_would_refuse(stage: Stage) -> None:
    config = stage.config()
    stage.send(1)
    run(config, once=True)
    shutil.rmtree(config.checkpoint_path)
    with pytest.raises(CheckpointLost):
        plan(config)


def test_a_first_batch_of_which_nothing_can_be_read_ends_plan_and_run_and_force_sets_it_aside(stage: Stage) -> None:
    stage.send_values([b'{"game": "chess"}'] * 3)
    config = stage.config(quarantine="{max_ratio: 1.0}")
    before = stage.tree()
    for act in (plan, lambda one: run(one, once=True)):
        with pytest.raises(FirstBatchUnreadable) as raised:
            act(config)
        assert (raised.value.parameters["rows"], raised.value.parameters["reason"]) == (3, "BAD_MAGIC")
        assert "JSON" in raised.value.parameters["looks"]
        assert not [name for name in stage.tree().keys() - before.keys() if name.endswith(".parquet")]
    report = run(config, once=True, force=True)
    assert (report.rows_quarantined, dict(report.waiting)) == (3, {"BAD_MAGIC": 3})
    stage.send(1)
    assert run(config, once=True).rows_written > 0
    assert verify(config).ok


def test_the_python_interface_plans_runs_and_verifies(stage: Stage) -> None:
    stage.send(1)
    stage.config()
    pipeline = dy.load(stage.root / "pipeline.yaml")
    planned, seen = pipeline.plan(), []
    report = pipeline.run(once=True, progress=lambda batch: seen.append(batch.batch))
    assert (planned.rows_written, planned.rows_quarantined) == (report.rows_written, report.rows_quarantined)
    assert seen == [0] and report.waiting
    assert pipeline.quarantine().rows == report.rows_quarantined
    verified = pipeline.verify(deep=True)
    assert verified.ok and verified.notes == (), "damaged envelopes keep no other record from being compared"
    assert sum(t.rows_compared for t in verified.tables) == report.rows_written
    assert pipeline.inspect(2).records
