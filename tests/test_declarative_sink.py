"""`declarative.silver_as: sink`: one flow into all silver tables, held against an independent decode of the input."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from distributary.declarative.datasets import storage
from distributary.declarative.flows import Flows
from distributary.declarative.judge import judge_values
from distributary.declarative.known_routes import KnownRoutes
from distributary.declarative.silver_sink import (
    SOURCE_COLUMNS,
    TAKEN,
    check_whole,
    empty_silver,
    ready_tables,
    sink_options,
)
from distributary.declarative.verify import verify
from distributary.errors import BadInput, ConfigError, LayoutChanged
from distributary.repair.clean import clean
from distributary.sink.committing import BatchEnding
from distributary.sink.data_source import unpacked
from distributary.sink.sink_options import ROWS_OPTION
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan
from tests.declarative import World, connect_server
from tests.declarative_at_rest import Rest

FAULTS = Faults(corrupt=3, unknown_id=2, tombstones=2, bad_envelope=2)
SINK: dict[str, Any] = {"declarative": {"silver_as": "sink"}}


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def checked(world: World) -> None:
    world.check()
    found = verify(world.config)
    assert found.ok, found.problems


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_update_after_update_gives_what_was_sent(tmp_path: Path, remote: str) -> None:
    world = World(tmp_path, remote, Plan(games=3, versions=3, records=20, faults=FAULTS), **SINK)
    first, second, third = world.games.names
    world.send(1, [first, second])
    report = world.run()
    assert report.ok, (report.failed, report.error)
    checked(world)
    assert report.rows[world.datasets.silver(first)] == len(world.good(first))

    # New columns, a new field of a struct, a new game; nothing is made anew.
    world.send(3, [first, third])
    assert world.run().ok
    checked(world)

    # A schema id that comes late: set aside, then back by itself.
    world.send_as(second, 2, 100)
    assert world.run().ok
    world.register_as(100, f"{second}-value", world.text(second, 2))
    assert world.run().replayed == 20
    checked(world)

    # A broken table fails the flow, and nothing is lost; what comes meanwhile waits in bronze.
    log = Path(world.datasets.uri(world.datasets.silver(first))) / "_delta_log"
    commits = sorted(log.glob("*.json"))
    kept = {path: path.read_bytes() for path in commits}
    commits[-1].write_bytes(b"{not a log\n")
    world.send(1, [first, second], start=50)
    world.run()
    for path, body in kept.items():
        path.write_bytes(body)
    assert world.run().ok
    checked(world)

    # All anew from bronze, then all from the source.
    before = DeltaTable(world.datasets.uri(world.datasets.silver(second))).version()
    assert world.run(full_refresh=("silver",)).ok
    checked(world)
    assert DeltaTable(world.datasets.uri(world.datasets.silver(second))).version() > before

    shutil.rmtree(world.datasets.uri(world.datasets.silver(second)))
    with pytest.raises(BadInput, match="--full-refresh silver"):
        world.run()
    assert world.run(full_refresh=("bronze",)).ok
    checked(world)

    # All of it is the pipeline's own: nothing of the sink stays behind.
    plan = clean(world.config)
    assert {world.datasets.uri(world.datasets.silver(game)) for game in (first, second, third)} <= {
        target.path for target in plan.remove
    }
    assert not [path for path in plan.kept if path.path.startswith(world.config.tables.root + "/")], plan.kept

    world.configure()
    with pytest.raises(LayoutChanged):
        world.run()


class SinkAtRest(Rest):
    """What the flow into silver does, by the tasks' own functions."""

    batch = -1

    def silver(self, verdicts: pa.Table, known: KnownRoutes) -> None:
        self.batch += 1
        self.flow(verdicts, known)
        place = Path(storage(self.config), "_checkpoints", "silver", "silver", "0")
        version = DeltaTable(self.datasets.uri(self.datasets.bronze)).version() + 1
        for part, text in (("offsets", f'v1\n{{}}\n{{"reservoirVersion":{version},"index":-1}}'), ("commits", "v1")):
            (place / part).mkdir(parents=True, exist_ok=True)
            (place / part / str(self.batch)).write_text(text)

    def flow(self, verdicts: pa.Table, known: KnownRoutes) -> None:
        ready_tables(self.config, known, self.flows)
        rows: Any = unpacked(sink_options(self.config, known, False)[ROWS_OPTION])
        good = verdicts.filter(pc.and_(pc.is_null(verdicts.column("reason")), pc.is_valid(verdicts.column("route"))))
        empty = {name: pa.nulls(good.num_rows, kind) for name, kind in SOURCE_COLUMNS.items()}
        columns = [empty[name] if name in empty else good.column(name) for name in TAKEN]
        batches = pa.table(columns, names=list(TAKEN)).to_batches()
        BatchEnding(rows.options, Txn("flow", self.batch)).commit([rows.take(batches, "flow", self.batch, "0")])

    @property
    def flows(self) -> Flows:
        return Flows.of(self.config, Store())


def values(rest: Rest, game: str) -> list[str]:
    rows = DeltaTable(rest.silver_uri(game)).to_pyarrow_table().drop_columns(["_origin"]).to_pylist()
    return sorted(str(sorted(row.items())) for row in rows)


def test_one_flow_writes_what_a_table_each_would_hold(tmp_path: Path) -> None:
    ours, other = SinkAtRest(tmp_path / "sink", **SINK), Rest(tmp_path / "table")
    for version in (1, 2):
        for rest in (ours, other):
            rest.take(rest.send(version))
    for game in ours.games.names:
        assert values(ours, game) == values(other, game)
    assert verify(ours.config).ok, verify(ours.config).problems

    # The same batch again adds nothing; a decoded row keeps the columns of the table.
    before = [values(ours, game) for game in ours.games.names]
    sent = [record for record in ours.sent if record.version == 2]
    verdicts = pa.Table.from_struct_array(judge_values(pa.array([r.value for r in sent], pa.binary()), ours.known()))
    ours.flow(verdicts, ours.known())
    assert [values(ours, game) for game in ours.games.names] == before


def test_a_table_that_was_dropped_is_told_and_all_are_emptied_to_be_filled_anew(tmp_path: Path) -> None:
    rest = SinkAtRest(tmp_path, **SINK)
    rest.take(rest.send(1))
    rest.books()
    first, second = rest.games.names
    shutil.rmtree(rest.silver_uri(first))
    with pytest.raises(BadInput, match="--full-refresh silver"):
        ready_tables(rest.config, rest.known(), rest.flows)
    empty_silver(rest.config, rest.known(), rest.flows)
    ready_tables(rest.config, rest.known(), rest.flows)
    assert (values(rest, first), values(rest, second)) == ([], [])
    assert not rest.flows.has_read("silver")


def test_rows_without_the_checkpoint_of_their_flow_are_told(tmp_path: Path) -> None:
    rest = SinkAtRest(tmp_path, **SINK)
    rest.take(rest.send(1))
    names = [rest.datasets.silver(game) for game in rest.games.names]
    check_whole(rest.flows, names)
    rest.flows.forget("silver")
    with pytest.raises(BadInput, match="--full-refresh silver"):
        check_whole(rest.flows, names)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"declarative": {"silver_as": "sink", "gold_as": "materialized_view"}}, "gold_as"),
        ({"declarative": {"silver_as": "sink", "unified": "silver"}}, "silver_as"),
        ({**SINK, "tables": {"function": "own.py:f"}}, "tables.function"),
        ({**SINK, "tables": {"expectations": [{"name": "n", "that": "a > 0", "otherwise": "fail"}]}}, "expectations"),
    ],
)
def test_what_one_flow_cannot_do_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        World(tmp_path, "none", **keys)
