"""Quarantined rows come into their tables exactly once after the cause is gone, however often a replay dies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributary.engine.batch import BatchWriter
from distributary.engine.replay import Replay
from distributary.engine.schemas import Schemas
from distributary.errors import AlreadyRunning, Reason, RegistryDown, StateOld
from distributary.schemas.protobuf.framing import frame
from distributary.state.ledger import Ledger
from distributary.state.lock import only_run
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.exceptions import panic
from tests.scenarios import Scenario, dying, message

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
LATE = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; string late = 3; }'
LONG = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; }'


class Unknown(Scenario):
    """Rows of schema ids that the registry does not know yet: `learn` registers the first one's text."""

    def __init__(self, root: Path, **keys: Any) -> None:
        super().__init__(root, **keys)
        self.known = self.schema("a-value", EVENT)
        self.late = self.envelope_id + 1

    def put(self, route: str, schema_id: int, user: str) -> bytes:
        return self.event(route, schema_id, message(EVENT, "event", user=user))

    def start(self) -> Unknown:
        """Table a with one good row; two rows of the late id in a, one in b; a corrupt one; an unreadable envelope."""
        self.send(
            self.put("a", self.known, "good"), self.put("a", self.late, "1"), self.put("a", self.late, "2"),
            self.put("b", self.late, "3"), self.event("a", self.known, b"\x0f"), b"not an envelope",
        )  # fmt: skip
        self.run()
        self.check()
        return self

    def learn(self, text: str = LATE) -> None:
        assert self.schema("late-value", text) == self.late


def test_a_table_that_fails_whatever_it_raises_stops_no_other_replay(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Unknown(lake).start()
    scenario.learn()

    def breaks(name: str, error: BaseException) -> Callable[..., Any]:
        whole = getattr(Replay, name)

        def step(self: Replay, *args: Any) -> Any:
            if args[0] == "a":
                raise error
            return whole(self, *args)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "_count_good", breaks("_count_good", panic()))
        found = scenario.replay()
    assert (found.rows, list(found.failed)) == ({"b": 1}, ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "_write", breaks("_write", RecursionError("deep")))
        assert list(scenario.replay().failed) == ["a"]
    assert scenario.replay().rows == {"a": 2}
    scenario.check()


def test_a_table_that_cannot_be_opened_stops_no_other_replay(lake: Path) -> None:
    """A run brings parked tables back by a replay: one that could not be opened ended the whole stream."""
    scenario = Unknown(lake).start()
    scenario.learn()
    table, away = scenario.path("a"), lake / "away"
    table.rename(away)
    table.write_text("in the way")
    found = scenario.replay()
    assert (found.rows, list(found.failed), found.left["a"]) == ({"b": 1}, ["a"], 3)
    table.unlink()
    away.rename(table)
    assert scenario.replay().rows == {"a": 2}
    scenario.check()


def test_rows_come_in_once_when_their_schema_becomes_known(lake: Path) -> None:
    """Case W8."""
    scenario = Unknown(lake).start()
    assert scenario.replay().rows == {}
    scenario.learn()
    state = Path(scenario.config.state_root)
    shutil.copytree(state, lake / "old")
    replayer = scenario.replayer()  # as that of a run, which keeps it
    before = {process.pid for process in psutil.Process().children()}
    found = replayer.run()
    assert {process.pid for process in psutil.Process().children()} <= before, "no process is left of it"
    assert (found.rows, found.left, found.failed) == ({"a": 2, "b": 1}, {"a": 1, "": 1}, {})
    assert scenario.values("a", "user") == ["good", "1", "2"]
    assert scenario.values("a", "late") == [None, "", ""]
    assert scenario.values("b", "user") == ["3"]
    assert scenario.replay().rows == {}
    assert scenario.reasons() == {"CORRUPT_PAYLOAD": 1, "BAD_MAGIC": 1}
    assert len(scenario.quarantined("replayed")) == 3
    scenario.check()

    # The state folder is put back from an older copy, in which these rows still wait.
    state.rename(lake / "newest")
    shutil.copytree(lake / "old", state)
    for route in (None, "a", "b"):
        with pytest.raises(StateOld) as caught:
            scenario.replay(route=route)
        assert caught.value.parameters["begun"] == 0
        assert caught.value.parameters["found"] in (1, 2), "of a, or of b"
    shutil.rmtree(state)
    (lake / "newest").rename(state)
    assert scenario.replay().rows == {}
    scenario.check()


def test_a_replay_can_be_of_one_route_or_of_one_reason(lake: Path) -> None:
    scenario = Unknown(lake).start()
    scenario.learn()
    assert scenario.replay(reasons=[Reason.TABLE_PARKED]).rows == {}
    assert scenario.replay(route="b").rows == {"b": 1}
    assert scenario.replay(reasons=[Reason.UNKNOWN_SCHEMA_ID]).rows == {"a": 2}
    scenario.check()


def test_rows_that_still_fail_stay_and_do_not_hold_the_others_back(lake: Path) -> None:
    """Under the late id's schema some of the rows turn out to be corrupt."""
    scenario = Unknown(lake)
    body = message(EVENT, "event", user="x")
    rows = [scenario.event("a", scenario.late, b"\x0f" if n in (1, 4, 5) else body) for n in range(9)]
    scenario.send(scenario.put("a", scenario.known, "good"), *rows)
    scenario.run()
    scenario.learn()
    found = scenario.replay()
    assert (found.rows, found.left) == ({"a": 6}, {"a": 3})
    assert [r["offset"] for r in scenario.quarantined()] == [2, 5, 6]
    scenario.check()


def test_an_envelope_whose_schema_becomes_known_finds_its_route(lake: Path) -> None:
    scenario = Unknown(lake)
    rows = [frame(scenario.late, scenario.put(r, scenario.known, r)[6:]) for r in ("a", "b", "a")]
    scenario.send(*rows)
    scenario.run()
    assert [r["level"] for r in scenario.quarantined()] == ["envelope"] * 3
    scenario.learn(WRAPPER_TEXT + "// the same, under another id\n")
    assert scenario.replay().rows == {"a": 2, "b": 1}
    scenario.check()


@pytest.mark.parametrize(
    ("target", "step", "after"),
    [
        (Replay, "_claim", True),
        (Replay, "_record", False),
        (Ledger, "record", False),
        (Ledger, "record", True),
    ],
    ids=["after the claim", "after the write", "before the ledger", "before the mark"],
)
def test_a_replay_that_dies_is_finished_by_the_next_one(lake: Path, target: Any, step: str, after: bool) -> None:
    scenario = Unknown(lake).start()
    scenario.learn()
    with dying(target, step, after=after):
        scenario.replay()
    assert len(scenario.quarantined("claimed")) == 2
    found = scenario.replay()
    assert found.rows == {"a": 2, "b": 1}
    assert scenario.values("a", "user") == ["good", "1", "2"]
    scenario.check()


def test_a_replay_that_died_is_finished_with_the_rows_it_had_claimed(lake: Path) -> None:
    """More rows of the same kind come in between; they are a replay of their own."""
    scenario = Unknown(lake).start()
    scenario.learn()
    with dying(Replay, "_record"):
        scenario.replay()
    scenario.send(scenario.put("a", scenario.late, "4"), scenario.event("a", 999_999, b""))
    scenario.run()
    assert scenario.replay().rows == {"a": 2, "b": 1}
    assert scenario.values("a", "user") == ["good", "1", "2", "4"]
    scenario.check()


@pytest.mark.parametrize(("type_change", "engine"), [("type_widening", "spark"), ("widen", "task")])
def test_a_replay_writes_by_engine_spark_only_where_the_table_needs_it(
    lake: Path, type_change: str, engine: str
) -> None:
    scenario = Unknown(lake, tables={"evolution": {"type_change": type_change}}).start()
    scenario.learn(LONG)
    assert scenario.replay("a").rows == {"a": 2}
    assert scenario.columns("a")["score"] == "int64"
    assert scenario.newest("a").engine == engine
    assert scenario.replay().rows == {"b": 1}
    scenario.check()


@pytest.mark.parametrize("after", [False, True])
def test_a_replay_by_engine_spark_that_dies_is_finished(lake: Path, after: bool) -> None:
    scenario = Unknown(lake, tables={"engine": "spark"}).start()
    scenario.learn()
    with dying(Ledger, "record", after=after):
        scenario.replay()
    assert scenario.replay().rows == {"a": 2, "b": 1}
    scenario.check()


def test_an_outage_leaves_everything_as_it_was(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Unknown(lake).start()
    scenario.learn()

    def away(*_: Any, **__: Any) -> None:
        raise RegistryDown(registry="r", attempts=5, detail="timed out")

    with monkeypatch.context() as patch, pytest.raises(RegistryDown):
        patch.setattr(Schemas, "resolve", away)
        scenario.replay()
    assert {r["state"] for r in scenario.quarantined()} == {"open"}
    assert scenario.replay().rows == {"a": 2, "b": 1}
    scenario.check()


def test_a_quarantine_that_is_not_there_is_nothing_to_replay(lake: Path) -> None:
    found = Scenario(lake).replay()
    assert (found.rows, found.left, found.failed) == ({}, {}, {})


def test_rows_whose_table_had_taken_them_after_all_are_not_written_again(lake: Path) -> None:
    """The table's commit came through, then the process died; at the next attempt the table could not be read."""
    scenario = Unknown(lake)
    scenario.send(scenario.put("a", scenario.known, "1"), scenario.put("b", scenario.known, "1"))
    with dying(Ledger, "record"):
        scenario.run()
    log = scenario.path("a") / "_delta_log"
    log.rename(log.with_name("aside"))
    log.write_text("in the way")
    scenario.run()
    assert scenario.reasons() == {"TABLE_PARKED": 1}
    log.unlink()
    log.with_name("aside").rename(log)
    assert scenario.replay().rows == {"a": 1}
    assert scenario.values("a", "user") == ["1"]
    scenario.check()


def test_a_run_and_a_replay_do_not_bring_rows_back_twice(lake: Path) -> None:
    """The run brings back parked rows between batches: while another process replays, it leaves that alone."""
    scenario = Unknown(lake)
    scenario.tables.mkdir()
    scenario.path("b").write_text("in the way")
    scenario.send(scenario.put("a", scenario.known, "1"), scenario.put("b", scenario.known, "1"))
    scenario.run()
    scenario.path("b").unlink()
    scenario.send(scenario.put("a", scenario.known, "2"))
    with only_run(scenario.config.state_root, "games", "replay"):
        with pytest.raises(AlreadyRunning), only_run(scenario.config.state_root, "games", "replay"):
            pass
        scenario.run()
    assert scenario.reasons() == {"TABLE_PARKED": 1}
    time.sleep(1)
    scenario.send(scenario.put("a", scenario.known, "3"))
    scenario.run()
    assert scenario.quarantined() == []
    scenario.check()


def test_what_a_run_had_still_to_bring_back_is_brought_back_by_the_next(lake: Path) -> None:
    """It died after the batch in which the table worked again, before it brought the older rows back."""
    scenario = Unknown(lake)
    scenario.tables.mkdir()
    scenario.path("b").write_text("in the way")
    scenario.send(scenario.put("a", scenario.known, "1"), scenario.put("b", scenario.known, "1"))
    scenario.run()
    scenario.path("b").unlink()
    time.sleep(1)
    scenario.send(scenario.put("b", scenario.known, "2"))
    with dying(BatchWriter, "retry"):
        scenario.run()
    scenario.send(scenario.put("a", scenario.known, "2"))
    scenario.run()
    assert scenario.values("b", "user") == ["1", "2"]
    scenario.check()
