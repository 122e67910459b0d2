"""The supervisor: rests, the circuit, requests and the end by an injected clock; crashes and orphans with processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributary.errors import Exit, QuarantineLimit, RegistryDown, ShareInvalid, SourceMissing
from distributary.state.streams import (
    StreamRecord,
    StreamState,
    read_streams,
    request_restart,
    take_requests,
    write_streams,
)
from distributary.supervisor.child import Process, SupervisedStream, supervised_command
from distributary.supervisor.pipeline_board import StateBoard
from distributary.supervisor.policy import Ending, RestartPolicy, is_lasting
from distributary.supervisor.stream_table import ending_text
from distributary.supervisor.supervise import Edges, StreamChange, Supervisor
from distributary.tables.store import Store

POLICY = RestartPolicy(tries=3, first_rest_sec=30, longest_rest_sec=100, jitter=0.2, probe_sec=1000, grace_sec=60)
FAILED = Ending(3, "the broker is away", "SOURCE_DOWN")
BATCH = {"kind": "batch", "batch": 7, "rows_in": 10, "rows_written": 9, "rows_quarantined": 1, "parked": []}


class Script:
    """A stream's process that does what the test says: an in-memory Child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lines: list[dict[str, Any]] = []
        self.end: Ending | None = None
        self.asked = 0
        self.killed = False

    def said(self) -> list[dict[str, Any]]:
        found, self.lines = self.lines, []
        return found

    def ending(self) -> Ending | None:
        return self.end

    def terminate(self) -> None:
        self.asked += 1

    def kill(self) -> None:
        self.killed = True
        self.end = Ending(-9)


class World:
    """A supervisor on a clock that only the test moves."""

    def __init__(self, names: Sequence[str] = ("a", "b"), policy: RestartPolicy = POLICY) -> None:
        self.now = 1000.0
        self.chance = 1.0
        self.started: dict[str, list[Script]] = defaultdict(list)
        self.changes: list[StreamChange] = []
        self.shown: list[StreamRecord] = []
        self.asked: set[str] = set()
        edges = Edges(self._launch, lambda: self.now, lambda: self.chance, self._pause, self.changes.append)
        self.supervisor = Supervisor(
            [SupervisedStream(n, ("x",), Path(f"{n}.log")) for n in names], self, policy, edges
        )

    def _launch(self, stream: SupervisedStream) -> Script:
        script = Script(100 + sum(map(len, self.started.values())))
        self.started[stream.name].append(script)
        return script

    def _pause(self, seconds: float) -> None:
        self.now += seconds

    def show(self, records: Sequence[StreamRecord]) -> None:
        self.shown = list(records)

    def requests(self) -> set[str]:
        found, self.asked = self.asked, set()
        return found

    def after(self, seconds: float = 0) -> None:
        self.now += seconds
        self.supervisor.tick()

    def fails(self, name: str, ending: Ending = FAILED) -> None:
        self.started[name][-1].end = ending
        self.after()

    def __getitem__(self, name: str) -> StreamRecord:
        return next(r for r in self.supervisor.records if r.name == name)


# -- rests and the circuit -----------------------------------------------------------------------------------


def test_a_failed_stream_starts_again_after_rests_that_double_up_to_a_bound() -> None:
    world = World()
    world.after()
    for failure, rest in ((1, 30), (2, 60), (3, 100)):
        world.fails("a")
        assert (world["a"].state, world["a"].failures) == (StreamState.RESTING, failure)
        world.after(rest - 1)
        assert len(world.started["a"]) == failure
        world.after(1)
        assert len(world.started["a"]) == failure + 1
    assert world["a"].restarts == 3


def test_the_rest_is_spread_so_that_streams_do_not_come_back_together() -> None:
    assert [POLICY.rest(1, chance) for chance in (0, 0.5, 1)] == pytest.approx([24, 27, 30])
    assert POLICY.rest(10_000, 1) == pytest.approx(100)


def test_the_failure_of_one_stream_leaves_the_others_untouched() -> None:
    world = World()
    world.after()
    for _ in range(4):
        world.fails("a")
        world.after(500)
    assert len(world.started["b"]) == 1 and world["b"].state == StreamState.RUNNING
    assert world["b"].failures == 0


def test_after_so_many_tries_the_stream_is_parked_and_tried_once_now_and_then() -> None:
    world = World()
    world.after()
    for _ in range(4):
        world.fails("a")
        world.after(150)
    assert world["a"].state == StreamState.PARKED and len(world.started["a"]) == 4
    world.after(900)
    assert len(world.started["a"]) == 5
    world.fails("a")
    assert world["a"].state == StreamState.PARKED, "one try, not the whole row again"


def test_a_finished_batch_starts_the_count_anew() -> None:
    world = World()
    world.after()
    world.fails("a")
    world.after(30)
    world.started["a"][-1].lines.append(BATCH)
    world.after()
    assert (world["a"].failures, world["a"].error, world["a"].rows_in) == (0, None, 10)
    world.fails("a")
    assert world["a"].failures == 1


def test_what_a_process_said_before_it_fell_still_counts() -> None:
    world = World()
    world.after()
    world.started["a"][-1].lines.append(BATCH)
    world.fails("a")
    assert (world["a"].rows_in, world["a"].batch, world["a"].state) == (10, 7, StreamState.RESTING)


def test_an_error_that_a_new_start_does_not_mend_parks_at_once() -> None:
    world = World()
    world.after()
    world.fails("a", Ending(2, "the key is unknown", "CONFIG_INVALID", lasting=True))
    world.after(10_000)
    assert world["a"].state == StreamState.PARKED and len(world.started["a"]) == 1


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (ShareInvalid(what="x", detail="y"), True),
        (QuarantineLimit(batch=1, bad=1, rows=1, limit="x", reason="y"), True),
        (SourceMissing(source="bronze", what="table"), False),
        (RegistryDown(registry="x", attempts=1, detail="y"), False),
        (RuntimeError("?"), False),
    ],
)
def test_an_outage_and_a_table_that_is_yet_to_come_pass_and_a_wrong_file_does_not(
    error: Exception, lasting: bool
) -> None:
    assert is_lasting(error) is lasting


def test_a_parked_stream_starts_on_request() -> None:
    world = World()
    world.after()
    world.fails("a", Ending(2, "wrong", lasting=True))
    world.asked = {"a", "nobody"}
    world.after()
    assert world["a"].state == StreamState.RUNNING and world["a"].failures == 0


def test_a_request_does_not_disturb_a_stream_that_runs() -> None:
    world = World()
    world.after()
    world.asked = {"a"}
    world.after()
    assert len(world.started["a"]) == 1


def test_a_command_that_cannot_be_started_is_a_failure_and_not_the_end() -> None:
    world = World(["a"])
    world.supervisor.edges.launch = lambda _: (_ for _ in ()).throw(OSError("no such program"))
    world.after()
    assert world["a"].state == StreamState.RESTING and "no such program" in str(world["a"].error)


def test_a_listener_or_a_board_that_fails_does_not_end_the_supervisor(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no")

    world = World()
    world.supervisor.edges.changed = broken
    world.requests = world.show = broken  # type: ignore[method-assign,assignment]
    world.after()
    assert world["a"].state == StreamState.RUNNING and "no" in caplog.text


# -- the end -------------------------------------------------------------------------------------------------


def run(world: World, during: Callable[[int], None]) -> Exit:
    """The whole loop; `during` is called with the number of each pause."""
    count = iter(range(100_000))

    def pause(seconds: float) -> None:
        world.now += seconds
        during(next(count))

    world.supervisor.edges.pause = pause
    return world.supervisor.run()


def end_all(world: World, ending: Ending) -> Callable[[int], None]:
    def during(_: int) -> None:
        for scripts in world.started.values():
            scripts[-1].end = scripts[-1].end or ending

    return during


def test_streams_that_end_well_end_the_supervisor_with_0() -> None:
    world = World()
    assert run(world, end_all(world, Ending(0, reported=True))) == Exit.OK


def test_a_run_that_left_parked_tables_is_not_repeated_and_ends_with_1() -> None:
    world = World()
    assert run(world, end_all(world, Ending(1, reported=True))) == Exit.ATTENTION
    assert [len(s) for s in world.started.values()] == [1, 1]


def test_a_parked_stream_ends_it_with_1_once_the_others_are_done() -> None:
    world = World()

    def during(tick: int) -> None:
        if tick == 0:
            world.started["a"][-1].end = Ending(2, "wrong", lasting=True)
            world.started["b"][-1].end = Ending(0, reported=True)

    assert run(world, during) == Exit.ATTENTION


def test_stop_asks_all_at_once_and_waits_for_the_batch() -> None:
    world = World()

    def during(tick: int) -> None:
        if tick == 3:
            world.supervisor.stop()
        if tick == 100:
            for scripts in world.started.values():
                scripts[-1].lines.append(BATCH)
                scripts[-1].end = Ending(0, reported=True)

    assert run(world, during) == Exit.OK
    scripts = [s[-1] for s in world.started.values()]
    assert [s.asked for s in scripts] == [1, 1] and not any(s.killed for s in scripts)
    assert [r.rows_in for r in world.shown] == [10, 10]
    assert {r.state for r in world.shown} == {StreamState.STOPPED}


def test_a_stream_that_does_not_end_within_the_grace_is_killed() -> None:
    world = World()
    begun: list[float] = []

    def during(tick: int) -> None:
        if tick == 3:
            world.supervisor.stop()
            begun.append(world.now)
            world.started["a"][-1].end = Ending(0)

    run(world, during)
    assert world.started["b"][-1].killed and not world.started["a"][-1].killed
    assert 59 < world.now - begun[0] < 62


def test_a_second_stop_does_not_wait() -> None:
    world = World()

    def during(tick: int) -> None:
        if tick in (3, 5):
            world.supervisor.stop()

    run(world, during)
    assert all(s[-1].killed for s in world.started.values()) and world.now < 1010


def test_a_stop_while_a_stream_is_failing_is_not_a_good_end() -> None:
    world = World()

    def during(tick: int) -> None:
        if tick == 0:
            world.started["a"][-1].end = FAILED
        if tick == 3:
            world.supervisor.stop()
            world.started["b"][-1].end = Ending(0)

    assert run(world, during) == Exit.ATTENTION


# -- what others see -----------------------------------------------------------------------------------------


def test_records_and_requests_go_through_the_state_folder(tmp_path: Path) -> None:
    root, store = str(tmp_path / "state"), Store()
    assert read_streams(root, store) == [] and take_requests(root, store) == set()
    records = [StreamRecord("a", StreamState.PARKED, 12.5, error="no", parked_tables=("x", "y"), log="a.log")]
    write_streams(root, records, store)
    assert read_streams(root, store) == records
    request_restart(root, "1-of-3", store)
    assert take_requests(root, store) == {"1-of-3"} and take_requests(root, store) == set()
    with pytest.raises(ValueError, match="not the name"):
        request_restart(root, "../../x", store)


def test_a_record_of_a_later_version_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "streams.json").write_text(json.dumps([{"name": "a", "state": "running", "later": 1}]))
    assert read_streams(str(tmp_path), Store()) == [StreamRecord("a", StreamState.RUNNING)]


# -- processes -----------------------------------------------------------------------------------------------

FAST = RestartPolicy(tries=2, first_rest_sec=0.05, longest_rest_sec=0.1, grace_sec=10, probe_sec=None)
GOOD = "import time, json\nprint(json.dumps({'kind':'batch','batch':0,'rows_in':5}), flush=True)\ntime.sleep(60)"
CRASH = "import sys\nprint('it broke here', file=sys.stderr)\nsys.exit(3)"


def script(name: str, text: str, folder: Path) -> SupervisedStream:
    return SupervisedStream(name, (sys.executable, "-c", text), folder / f"{name}.log")


def until(condition: Callable[[], bool], timeout_sec: float = 180) -> None:
    end = time.monotonic() + timeout_sec
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., tuple[Supervisor, threading.Thread]]]:
    started: list[tuple[Supervisor, threading.Thread]] = []

    def start(*streams: SupervisedStream) -> tuple[Supervisor, threading.Thread]:
        supervisor = Supervisor(streams, StateBoard(str(tmp_path / "state"), Store()), FAST)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        started.append((supervisor, thread))
        return supervisor, thread

    yield start
    for supervisor, thread in started:
        supervisor.stop()
        supervisor.stop()
        thread.join(180)


def test_a_killed_process_is_brought_back_and_its_neighbour_never_notices(
    supervise: Callable[..., tuple[Supervisor, threading.Thread]], tmp_path: Path
) -> None:
    supervisor, _ = supervise(script("a", GOOD, tmp_path), script("b", GOOD, tmp_path))
    until(lambda: all(r.rows_in == 5 for r in supervisor.records))
    first, neighbour = (r.pid for r in supervisor.records)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: supervisor.records[0].rows_in == 10)
    again = supervisor.records
    assert again[0].pid != first and again[0].restarts == 1
    assert (again[1].pid, again[1].restarts) == (neighbour, 0)
    until(lambda: [r.restarts for r in read_streams(str(tmp_path / "state"), Store())] == [1, 0])


def test_a_process_that_always_falls_is_parked_with_its_last_words(
    supervise: Callable[..., tuple[Supervisor, threading.Thread]], tmp_path: Path
) -> None:
    supervisor, thread = supervise(script("a", CRASH, tmp_path))
    thread.join(180)
    record = supervisor.records[0]
    assert (record.state, record.failures, record.exit_code) == (StreamState.PARKED, 3, 3)
    assert record.error == "it broke here"
    assert (tmp_path / "a.log").read_text().count("it broke here") == 3


def test_the_end_says_what_became_of_the_streams_and_which_need_somebody() -> None:
    well = StreamRecord("c1", StreamState.STOPPED, rows_in=1000, log="logs/c1.log")
    assert ending_text([well, replace(well, name="c2")], "g.yaml") == "2 stopped; 2,000 rows in"
    parked = StreamRecord("c3", StreamState.PARKED, failures=11, error="no broker", log="logs/c3.log")
    lines = ending_text([well, parked, replace(well, name="c4", parked_tables=("ann",))], "g.yaml").splitlines()
    assert lines[0] == "2 stopped, 1 parked; 2,000 rows in"
    assert lines[1:3] == [
        "stream c3 is parked after 11 failures in a row: no broker",
        "stream c4: parked tables: ann",
    ]
    assert "distributary status g.yaml" in lines[3] and "logs/c3.log" in lines[3]


LEASHED = """\
import time
from distributary.cli import supervised
supervised.watch_parent(0.3)
import signal
signal.signal(signal.SIGTERM, {handler})
print('{{"kind": "batch", "batch": 0}}', flush=True)
time.sleep(60)
"""
HOLDER = """\
import sys, time
from pathlib import Path
from distributary.supervisor.child import Process, SupervisedStream
children = [Process(SupervisedStream(str(n), (sys.executable, "-c", text), Path(sys.argv[1]) / f"{n}.log"))
            for n, text in enumerate(sys.argv[2:])]
for child in children:
    while not child.said():
        time.sleep(0.01)
print(*(child.pid for child in children), flush=True)
time.sleep(60)
"""


def test_no_child_outlives_a_parent_that_was_killed_not_even_one_that_is_deaf(tmp_path: Path) -> None:
    texts = [LEASHED.format(handler=h) for h in ("signal.SIG_DFL", "signal.SIG_IGN")]
    command = [sys.executable, "-c", HOLDER, str(tmp_path), *texts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 2 and all(child.is_running() for child in children)
        parent.kill()
        _, alive = psutil.wait_procs(children, timeout=120)
        assert not alive


def test_a_supervised_command_says_its_error_as_json(tmp_path: Path) -> None:
    child = Process(
        SupervisedStream("a", supervised_command(["check", str(tmp_path / "none.yaml")], 1), tmp_path / "a.log")
    )
    until(lambda: child.ending() is not None)
    ending = child.ending()
    assert ending is not None
    assert (ending.code, ending.condition, ending.lasting) == (Exit.BAD_INPUT, "CONFIG_FILE_MISSING", True)
    assert "none.yaml" in (ending.error or "")
