"""Several processes for one pipeline: what each is told, and real ones that are killed or run on a real cluster."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributary.audit.verify import verify
from distributary.config import Notices
from distributary.errors import AlreadyRunning, BadInput, ClusterMissing, Exit, ShareConflict
from distributary.fleet.notices import Notice, Notifier
from distributary.fleet.workflow.local import LocalRun, _phases, check_master, supervise, tell
from distributary.running.bronze.bronze_table import make_bronze
from distributary.shares import Cluster, Division
from distributary.state.divisions import claim
from distributary.state.streams import StreamRecord, StreamState, read_streams
from distributary.supervisor.policy import Ending, RestartPolicy, ended, progressed, requested
from distributary.supervisor.supervise import StreamChange, Supervisor
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan
from tests.lake import Lake
from tests.processes import SERIAL, SPARK_JAVA
from tests.scenarios import Scenario
from tests.services.standalone import Standalone

STORE = Store()
ONE = Division.even(1)
TWO = Division((Cluster("c1", ("a",)), Cluster("c2")), ("c2",))


def local(lake: Path, division: Division = TWO, **keys: Any) -> LocalRun:
    pipeline = keys.pop("pipeline", {})
    return LocalRun(lake / "games.yaml", Lake(lake, **pipeline).config, division, lake / "logs", **keys)


def told(run: LocalRun) -> list[dict[str, str]]:
    """The --conf settings of each stream."""
    found = []
    for stream in run.streams(run.logs / "plan.json"):
        at = [n for n, word in enumerate(stream.command) if word == "--conf"]
        found.append(dict(stream.command[n + 1].split("=", 1) for n in at))
    return found


# -- what each process is told -------------------------------------------------------------------------------


def test_each_process_gets_its_cluster_and_its_part_of_the_cores(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    run = local(lake)
    assert told(run) == [{"spark.master": "local[4]"}] * 2
    names = [stream.command[stream.command.index("--cluster") + 1] for stream in run.streams(lake / "plan.json")]
    assert names == ["c1", "c2"] and len({stream.log for stream in run.streams(lake)}) == 2


def test_a_pipeline_that_is_one_stream_is_one_process_that_names_no_share(lake: Path) -> None:
    run = LocalRun(lake / "shop.yaml", Lake(lake).config, None, lake / "logs")
    (stream,) = run.streams(lake / "plan.json")
    assert stream.name == "whole" and not {"--cluster", "--plan-file"} & set(stream.command)
    assert run.about() == f"pipeline games: 1 process; logs in {lake}/logs"


def test_of_two_hops_the_shares_begin_once_there_is_a_bronze_table(lake: Path) -> None:
    def phases(run: LocalRun) -> list[list[str]]:
        found = _phases(run, run.streams(lake / "plan.json"), STORE)
        return [[f"{s.name}{' once' if '--once' in s.command else ''}" for s in streams] for streams in found]

    run = local(lake, pipeline={"layout": "two_hop"})
    assert phases(run) == [["hop-1 once"], ["hop-1", "c1", "c2"]]
    assert phases(replace(run, once=True)) == [["hop-1 once"], ["c1 once", "c2 once"]]
    hop_1 = run.first_hop(once=False).command
    assert hop_1[hop_1.index("--hop") + 1] == "1" and "--cluster" not in hop_1
    make_bronze(run.config, STORE)
    assert phases(run) == [["hop-1", "c1", "c2"]]
    assert phases(local(lake / "other")) == [["c1", "c2"]]
    assert run.about() == f"pipeline games: 2 processes and one for hop 1; logs in {lake}/logs"


def test_a_master_in_the_file_is_left_alone(lake: Path) -> None:
    assert told(local(lake, pipeline={"spark": {"master": "local[1]"}})) == [{}, {}]


def test_on_a_cluster_no_application_takes_all_cores(lake: Path) -> None:
    run = local(lake, via="spark://h:7077", cores=3, conf={"spark.executor.memory": "4g"})
    assert told(run)[0] == {"spark.master": "spark://h:7077", "spark.cores.max": "3", "spark.executor.memory": "4g"}
    assert told(local(lake, via="spark://h:7077", conf={"spark.cores.max": "9"}))[1]["spark.cores.max"] == "9"


def test_a_master_that_is_none_or_is_not_there_is_said_before_anything_starts(lake: Path) -> None:
    for url in ("yarn", "spark://", "http://h:1"):
        with pytest.raises(BadInput):
            check_master(url)
    with pytest.raises(ClusterMissing, match=re.escape("spark://127.0.0.1:1")):
        supervise(local(lake, via="spark://127.0.0.1:1"))
    assert read_streams(local(lake).config.state_root, STORE) == []


def test_a_pipeline_has_one_supervisor_and_one_division(lake: Path) -> None:
    from distributary.state.lock import only_run

    run = local(lake)
    with only_run(run.config.state_root, "games", "supervisor"), pytest.raises(AlreadyRunning):
        supervise(run)
    claim(run.config, Division.even(3), STORE)
    with pytest.raises(ShareConflict):
        supervise(run)


# -- notices -------------------------------------------------------------------------------------------------


def test_failures_parks_and_recoveries_of_a_stream_are_told() -> None:
    sent: list[Notice] = []
    notifier = Notifier("games", Notices(), senders=[sent.append])
    policy, record = RestartPolicy(tries=1), StreamRecord("c1", StreamState.RUNNING)

    def change(after: StreamRecord) -> StreamRecord:
        nonlocal record
        tell(notifier, StreamChange(record, after))
        record = after
        return after

    change(ended(record, Ending(3, "no broker"), 0, policy, 0.5))
    change(progressed(StreamRecord("c1", StreamState.RUNNING, failures=1), {"batch": 1}, 1))
    change(ended(record, Ending(2, "no file", lasting=True), 2, policy, 0.5))
    change(requested(record, 3))
    notifier.close()
    events = [(n.event, n.subject, n.detail) for n in sent]
    assert events == [
        ("failure", "stream c1", "no broker"),
        ("recovery", "stream c1", ""),
        ("parked", "stream c1", "no file"),
    ]


# -- real processes ------------------------------------------------------------------------------------------


class Supervised:
    """`supervise` in a thread, and what it says."""

    def __init__(self, run: LocalRun) -> None:
        self.supervisor: Supervisor | None = None
        self.batches: list[tuple[str, Mapping[str, Any]]] = []
        self.code: Exit | None = None
        self._run = run
        self._thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        self.code = supervise(self._run, batch=lambda n, b: self.batches.append((n, b)), handle=self._take)

    def _take(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    @property
    def rows(self) -> int:
        return sum(batch["rows_in"] for _, batch in self.batches)

    def wait_rows(self, rows: int, timeout_sec: float = 600) -> None:
        end = time.monotonic() + timeout_sec
        while self.rows < rows and time.monotonic() < end and self._thread.is_alive():
            time.sleep(0.1)
        assert self.rows >= rows, self.logs()

    def record(self, name: str) -> StreamRecord:
        assert self.supervisor is not None
        return next(r for r in self.supervisor.records if r.name == name)

    def logs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()[-800:]}" for p in self._run.logs.glob("*.log"))


@contextmanager
def supervised(run: LocalRun) -> Iterator[Supervised]:
    found = Supervised(run)
    found._thread.start()
    try:
        yield found
    finally:
        if found.supervisor is not None:
            found.supervisor.stop()
        found._thread.join(500)
    assert not found._thread.is_alive()


SMALL = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": f"{SPARK_JAVA} {SERIAL}",
    "spark.executor.extraJavaOptions": f"{SPARK_JAVA} {SERIAL}",
}


@pytest.mark.crash
@pytest.mark.spark
def test_a_killed_cluster_comes_back_while_the_other_goes_on_and_nothing_is_lost(tmp_path: Path) -> None:
    """Of two local clusters one is killed with SIGKILL in the middle of the work."""
    scenario = Scenario(tmp_path, trigger={"every": "200 ms"})
    games = scenario.games(Plan(games=6, records=10, versions=2, faults=Faults(corrupt=6, empty_name=4)))
    scenario.send_games(games, 1)
    division = Division.even(2)
    policy = RestartPolicy(first_rest_sec=0.5, grace_sec=30)
    run = LocalRun(scenario.file, scenario.config, division, tmp_path / "logs", conf=SMALL, policy=policy)
    with supervised(run) as found:
        found.wait_rows(len(scenario.sent))
        victim, other = found.record("2-of-2"), found.record("1-of-2").pid
        assert victim.pid is not None
        family = psutil.Process(victim.pid).children(recursive=True)
        scenario.send_games(games, 2)
        os.kill(victim.pid, signal.SIGKILL)
        found.wait_rows(len(scenario.sent))
        assert found.record("2-of-2").restarts == 1
        assert found.record("1-of-2").pid == other
        _, alive = psutil.wait_procs(family, timeout=120)
        assert not alive, "the killed driver left its JVM behind"
    assert found.code == Exit.OK
    _check(scenario)
    assert {r.state for r in read_streams(scenario.config.state_root, STORE)} == {StreamState.STOPPED}


@pytest.mark.spark
def test_a_standalone_cluster_with_two_workers_runs_the_pipeline(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path)
    games = scenario.games(Plan(games=4, records=10, versions=2, faults=Faults(corrupt=6, empty_name=4)))
    for version in (1, 2):
        scenario.send_games(games, version)
    conf = {**SMALL, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    conf["spark.executor.memory"] = "512m"
    with Standalone(tmp_path) as cluster:
        run = LocalRun(
            scenario.file, scenario.config, ONE, tmp_path / "logs", once=True, via=cluster.url, cores=2, conf=conf
        )
        with supervised(run) as found:
            found._thread.join(500)
        assert found.code == Exit.OK, found.logs()
        assert cluster.log("master").count("Registered app") == 1
        assert all("Asked to launch executor" in cluster.log(f"worker-{n}") for n in range(2))
    _check(scenario)


def _check(scenario: Scenario) -> None:
    """Every record sent is at one place, each share did its part, and `verify` says so."""
    assert sorted(scenario._places()) == sorted(scenario.sent)
    said = verify(scenario.config)
    assert said.ok, said.problems
    assert said.rows_in == len(scenario.sent)
