"""Batches from source to decision, on real Delta tables: versions, limits, outages, changes at the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.engine.messages.micro_batch import Fanout
from distributary.errors import (
    AlreadyRunning,
    QuarantineLimit,
    RegistryDown,
    SourceHistoryGone,
    SourceMissing,
    SourceRewritten,
    StoreDown,
)
from distributary.schemas.registry.embedded import EmbeddedRegistry
from distributary.sources.data_files import BatchFiles
from distributary.state.ledger import Ledger
from distributary.state.lock import only_run
from distributary_simulate.games.records import Faults, Plan
from tests.scenarios import Scenario, dying, message

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


def event(scenario: Scenario, route: str, user: str = "x") -> bytes:
    return scenario.event(route, scenario.schema("shared-value", EVENT), message(EVENT, "event", user=user))


# -- versions and new routes -------------------------------------------------------------------------------


def test_every_record_is_in_its_table_or_in_the_quarantine(lake: Path) -> None:
    """Cases E1, W6, W7, W8, W13: three versions with faults of every kind."""
    scenario = Scenario(lake)
    faults = Faults(corrupt=7, unknown_id=5, empty_name=3, tombstones=4, bad_envelope=2, id_mismatch=6)
    games = scenario.games(Plan(games=4, versions=3, records=10, faults=faults))
    for version in (1, 2, 3):
        scenario.send_games(games, version)
        scenario.run()
    scenario.check(tombstones=4)
    assert scenario.reasons() == {
        "CORRUPT_PAYLOAD": 7, "UNKNOWN_SCHEMA_ID": 5, "NO_ROUTE": 3, "CORRUPT_ENVELOPE": 2,
    }  # fmt: skip
    assert len(scenario.batches) == 3


@pytest.mark.parametrize("way", ["files", "rows"])
def test_the_tasks_read_the_files_of_a_delta_source_and_spark_the_rows_where_they_cannot(lake: Path, way: str) -> None:
    scenario = Scenario(lake)
    taken: list[str] = []
    cut = Fanout.cut

    def seen(self: Fanout, rows: Any, refused: Any) -> Any:
        taken.append("files" if isinstance(rows, BatchFiles) else "rows")
        return cut(self, rows, refused)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fanout, "cut", seen)
        if way == "rows":
            patch.setattr("distributary.sources.delta_source.batch_files", lambda *_: None)
        for _ in range(2):
            scenario.send(event(scenario, "a_game"), None, event(scenario, "b_game"), b"no envelope")
            scenario.run()
    assert taken == [way, way]
    scenario.check(tombstones=2)


def test_all_versions_mixed_in_one_batch_then_the_oldest_again(lake: Path) -> None:
    """Case E1: producers still on v1 after v3 is registered; the order of arrival does not matter."""
    scenario = Scenario(lake)
    games = scenario.games(Plan(games=2, versions=3, records=6))
    for version in (1, 2, 3):
        games.register(version)
    for version in (3, 1, 2):
        scenario.send_games(games, version)
    scenario.run()
    scenario.send_games(games, 1, start=6, records=3)
    scenario.run()
    game = games.names[0]
    assert [c for c in scenario.columns(game) if c.startswith("col_")] == [f"col_{game}_{n}" for n in (1, 2, 3)]
    assert len(scenario.batches) == 2
    scenario.check()


def test_new_versions_and_new_games_need_no_restart(lake: Path) -> None:
    """Case E2: registered while the stream runs, between two batches and in the middle of one; 0 extra batches."""
    scenario = Scenario(lake, trigger="continuous")
    games = scenario.games(Plan(games=3, versions=3, records=5))
    first, second, late = games.names
    scenario.send_games(games, 1, [first, second])
    spec = Fanout.spec
    with scenario.running() as running, pytest.MonkeyPatch.context() as patch:
        running.wait_rows(10)

        def meanwhile(self: Fanout, *args: Any) -> Any:
            """The batch of version 2 is under way: its schemas are looked up, no table is written yet."""
            patch.setattr(Fanout, "spec", spec)
            scenario.send_games(games, 3, [first, late])
            return spec(self, *args)

        patch.setattr(Fanout, "spec", meanwhile)
        scenario.send_games(games, 2, [first, second])
        running.wait_rows(30)
    assert [b.rows_in for b in scenario.batches] == [10, 10, 10]
    assert [len(b.created) for b in scenario.batches] == [2, 0, 1]
    assert len({b.stream for b in scenario.batches}) == 1
    scenario.check()


def test_a_field_that_is_renamed_is_a_new_column_and_the_old_one_stays(lake: Path) -> None:
    """Case E5: columns go by name; history is never moved or dropped."""
    scenario = Scenario(lake)
    for name in ("foo", "foobar"):
        text = f'syntax = "proto3"; message event {{ string {name} = 1; }}'
        scenario.send(scenario.event("a", scenario.schema("a-value", text), message(text, "event", **{name: "x"})))
        scenario.run()
    assert [(r["foo"], r["foobar"]) for r in scenario.rows("a")] == [("x", None), (None, "x")]
    scenario.check()


def test_two_messages_of_one_schema_share_the_routes_table(lake: Path) -> None:
    """Cases W1 to W4 through the whole pipeline: the header's index says which message it is."""
    text = (
        'syntax = "proto3"; message A { string user = 1; message In { int32 n = 1; } } message B { string boss = 1; }'
    )
    scenario = Scenario(lake)
    schema_id = scenario.schema("a-value", text)
    scenario.send(
        scenario.event("a", schema_id, message(text, "A", user="x")),
        scenario.event("a", schema_id, message(text, "B", boss="y"), (1,)),
        scenario.event("a", schema_id, message(text, "A.In", n=3), (0, 0)),
        scenario.event("a", schema_id, b"", (2,)),
    )
    scenario.run()
    assert [(r["user"], r["boss"], r["n"]) for r in scenario.rows("a")] == [
        ("x", None, None),
        (None, "y", None),
        (None, None, 3),
    ]
    assert scenario.reasons() == {"BAD_INDEX": 1}
    scenario.check()


def test_a_table_can_be_read_by_its_name(lake: Path, spark: Any) -> None:
    scenario = Scenario(lake, tables={"database": "silver", "name": "game_{route}"})
    try:
        scenario.send(event(scenario, "new york"), event(scenario, "ann"))
        with dying(Ledger, "record"):
            scenario.run()
        scenario.run()
        assert spark.table("silver.game_new_york").count() == 1
        assert sorted(t.tableName for t in spark.sql("SHOW TABLES IN silver").collect()) == [
            "game_ann", "game_new_york",
        ]  # fmt: skip
    finally:
        spark.sql("DROP DATABASE IF EXISTS silver CASCADE")


# -- limits of the quarantine ------------------------------------------------------------------------------


def test_too_many_bad_rows_stop_the_stream_once_the_batch_is_finished(lake: Path) -> None:
    scenario = Scenario(lake, quarantine={"max_ratio": 0.4, "min_rows": 10})
    scenario.send(*(event(scenario, "a") for _ in range(5)), *(b"junk" for _ in range(5)))
    with pytest.raises(QuarantineLimit) as caught:
        scenario.run()
    assert {k: caught.value.parameters[k] for k in ("bad", "rows", "limit")} == {
        "bad": 5, "rows": 10, "limit": "max_ratio 0.4",
    }  # fmt: skip
    scenario.check()
    scenario.send(event(scenario, "a"))
    scenario.run()
    scenario.check()


def test_a_small_batch_or_a_parked_table_trips_no_limit(lake: Path) -> None:
    scenario = Scenario(lake, quarantine={"max_ratio": 0.0, "min_rows": 6, "max_bad_batches": 1})
    scenario.tables.mkdir()
    scenario.path("b").write_text("in the way")
    scenario.send(event(scenario, "a"), b"junk")
    scenario.run()
    scenario.send(*(event(scenario, "b") for _ in range(9)), event(scenario, "a"))
    assert scenario.run().parked == ("b",)
    scenario.check()


def test_too_many_bad_batches_in_a_row_stop_the_stream(lake: Path) -> None:
    source = {"type": "delta", "path": str(lake / "source"), "max_files_per_batch": 1}
    scenario = Scenario(lake, quarantine={"max_bad_batches": 2}, source=source)
    good, bad = event(scenario, "a"), b"junk"
    for value in (bad, bad, good, bad, bad, bad, good):
        scenario.send(good, value)
    with pytest.raises(QuarantineLimit) as caught:
        scenario.run()
    assert caught.value.parameters["limit"] == "max_bad_batches 2"
    assert len(scenario.entries()) == 2 * 6
    scenario.run()
    scenario.check()


# -- outages -----------------------------------------------------------------------------------------------


def test_an_unreachable_registry_fails_the_batch_and_advances_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case W8: no row is kept aside for an outage; the good rows land later."""
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a"))
    scenario.run()
    other = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
    scenario.send(scenario.event("a", scenario.schema("a-value", other), b""), event(scenario, "b"))

    def away(self: EmbeddedRegistry, schema_id: int) -> Any:
        raise RegistryDown(registry=self.name, attempts=5, detail="timed out")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedRegistry, "get", away)
        with pytest.raises(RegistryDown):
            scenario.run()
    assert scenario.table("a").version() == 0
    assert (scenario.table_names(), scenario.quarantined()) == (["a"], [])
    assert len(scenario.entries()) == 2
    scenario.run()
    assert scenario.quarantined() == []
    scenario.check()


def test_a_running_stream_outlives_an_outage(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts anew from the checkpoint until the registry answers again."""
    scenario = Scenario(lake, trigger="continuous")
    failures = iter([True, True, False])
    get = EmbeddedRegistry.get

    def flaky(self: EmbeddedRegistry, schema_id: int) -> Any:
        if next(failures, False):
            raise RegistryDown(registry=self.name, attempts=5, detail="timed out")
        return get(self, schema_id)

    monkeypatch.setattr("distributary.running.stream.FIRST_REST_SEC", 0.01)
    scenario.send(event(scenario, "a"))
    monkeypatch.setattr(EmbeddedRegistry, "get", flaky)
    with scenario.running() as running:
        running.wait_rows(1)
    scenario.check()


def test_a_batch_that_is_tried_again_in_the_same_run_is_written_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state's store was away after the tables' commits. The run knows these tables well, and must look again."""
    scenario = Scenario(lake, trigger="continuous")
    record = Ledger.record
    failures = iter([False, True, True, False])

    def flaky(self: Ledger, *args: Any) -> None:
        if next(failures, False):
            raise OSError("the store is away")
        record(self, *args)

    monkeypatch.setattr("distributary.running.stream.FIRST_REST_SEC", 0.01)
    monkeypatch.setattr(Ledger, "record", flaky)
    scenario.send(event(scenario, "a", "1"), event(scenario, "b", "1"))
    with scenario.running() as running:
        running.wait_rows(2)
        scenario.send(event(scenario, "a", "2"), event(scenario, "b", "2"))
        running.wait_rows(4)
        scenario.send(event(scenario, "a", "3"), event(scenario, "b", "3"))
        running.wait_rows(6)
    assert scenario.values("a", "user") == ["1", "2", "3"]
    scenario.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system needs root and the right to mount")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_advances_nothing_and_the_same_batch_lands_once_there_is_room(lake: Path, small_disk: Path) -> None:
    """The store is at fault, not a table: none is parked, no row is kept aside."""
    scenario = Scenario(lake, tables={"root": str(small_disk / "tables")}, state=str(lake / "state"))
    scenario.tables = small_disk / "tables"
    scenario.send(event(scenario, "a"))
    scenario.run()
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    scenario.send(event(scenario, "a"), event(scenario, "b"), event(scenario, "c"))
    with pytest.raises(StoreDown):
        scenario.run()
    assert scenario.quarantined() == []
    assert len(scenario.entries()) == 2
    ballast.unlink()
    scenario.run()
    scenario.check()


def test_a_second_run_of_a_pipeline_is_refused(lake: Path) -> None:
    """Case S12: by the other process's id, before Spark is touched; another pipeline may run."""
    scenario = Scenario(lake)
    code = (
        "import sys, time\nfrom distributary.state.lock import only_run\n"
        "with only_run(sys.argv[1], 'games'):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, scenario.config.state_root], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning) as caught:
            scenario.run()
        assert f"process {other.pid} " in caught.value.parameters["owner"]
        with only_run(str(lake / "elsewhere"), "games"):
            pass
        other.kill()
    scenario.send(event(scenario, "a"))
    scenario.run()
    scenario.check()


# -- changes at the source ---------------------------------------------------------------------------------


def test_rows_deleted_at_the_source_stop_the_stream_unless_that_is_agreed_to(lake: Path) -> None:
    """Case S8: and the agreed form reads no row twice."""
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a", "1"), event(scenario, "a", "2"))
    scenario.run()
    DeltaTable(scenario.source).delete("offset = 0")
    scenario.send(event(scenario, "a", "3"))
    with pytest.raises(SourceRewritten) as caught:
        scenario.run()
    assert "skip_change_commits" in str(caught.value)
    scenario.configure(source={"skip_change_commits": True})
    scenario.run()
    assert scenario.values("a", "user") == ["1", "2", "3"]
    scenario.check()


def test_compaction_of_the_source_changes_nothing(lake: Path) -> None:
    """Case S8: OPTIMIZE and VACUUM alone."""
    scenario = Scenario(lake)
    for user in ("1", "2"):
        scenario.send(event(scenario, "a", user))
    scenario.run()
    DeltaTable(scenario.source).optimize.compact()
    scenario.send(event(scenario, "a", "3"))
    scenario.run()
    assert scenario.values("a", "user") == ["1", "2", "3"]
    scenario.check()


def test_a_source_whose_log_was_cleaned_up_past_the_checkpoint_is_an_error(lake: Path) -> None:
    """Case S9: down for longer than the log is kept. Never a fresh start, never a silent gap."""
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a", "1"))
    scenario.run()
    for user in ("2", "3", "4"):
        scenario.send(event(scenario, "a", user))
    source = DeltaTable(scenario.source)
    source.create_checkpoint()
    for version in range(source.version()):
        (Path(scenario.source) / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SourceHistoryGone):
        scenario.run()
    assert scenario.values("a", "user") == ["1"]


def test_a_source_column_that_is_not_there_is_named(lake: Path) -> None:
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a"))
    scenario.configure(source={"value": "body"})
    with pytest.raises(SourceMissing) as caught:
        scenario.run()
    assert "'body'" in caught.value.parameters["what"]
    assert "value" in caught.value.parameters["what"]


def test_a_source_with_the_envelope_in_columns_needs_no_envelope(lake: Path) -> None:
    from distributary_simulate.games.sinks import write_delta

    scenario = Scenario(lake, envelope={"format": "columns"})
    games = scenario.games(Plan(games=2, versions=2, records=5, faults=Faults(corrupt=1, empty_name=2, tombstones=1)))
    for version in (1, 2):
        write_delta(scenario.source, games.records(version), columns=True)
        scenario.run()
    assert sum(len(scenario.table(g).to_pyarrow_table()) for g in games.names) == 16
    assert scenario.reasons() == {"CORRUPT_PAYLOAD": 1, "NO_ROUTE": 2}


def test_the_first_run_can_begin_at_a_version_of_the_source(lake: Path) -> None:
    scenario = Scenario(lake)
    for user in ("1", "2", "3"):
        scenario.send(event(scenario, "a", user))
    scenario.configure(source={"starting_version": 1})
    scenario.run()
    assert scenario.values("a", "user") == ["2", "3"]


def test_a_bare_envelope_is_read_by_its_proto_file(lake: Path) -> None:
    from distributary_simulate.games.schemas import WRAPPER_TEXT

    proto = lake / "wrapper.proto"
    proto.write_text(WRAPPER_TEXT)
    scenario = Scenario(lake, envelope={"framing": "none", "proto": str(proto)})
    games = scenario.games(Plan(games=2, versions=1, records=5, framed=False, faults=Faults(bad_envelope=1)))
    scenario.send_games(games, 1)
    scenario.run()
    assert scenario.reasons() == {"CORRUPT_ENVELOPE": 1}
    scenario.check()


def test_nothing_new_at_the_source_is_no_batch(lake: Path) -> None:
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a"))
    scenario.run()
    assert scenario.run().batches == 0
    assert len(scenario.batches) == 1


def test_a_table_removed_by_hand_is_made_anew_and_others_stay(lake: Path) -> None:
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a", "1"), event(scenario, "b", "1"))
    scenario.run()
    shutil.rmtree(scenario.path("a"))
    scenario.send(event(scenario, "a", "2"), event(scenario, "b", "2"))
    scenario.run()
    assert scenario.values("a", "user") == ["2"]
    assert scenario.values("b", "user") == ["1", "2"]
