"""Processes: the stock command on the generated project, kills at any moment, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributary.declarative.bronze_counts import Bronze
from distributary.declarative.verify import verify
from distributary.errors import Exit, Reason
from distributary.spark.java import find_java
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan
from distributary_simulate.games.sinks import write_delta
from tests.declarative import World, with_user
from tests.doors import doors, family, shown_by
from tests.extent import either
from tests.processes import SMALL_SPARK, command
from tests.test_killed import PLANTS

SECRET = "canary-store-bird"
TOKEN = re.compile(r"token\W{1,3}[0-9a-f]{32}")
"""As a Connect server's stands on a command line, in an address, in a log."""


def started(*arguments: str, cwd: Path, planted: bool = False) -> subprocess.Popen[str]:
    """`planted`: some bytes end what reads them (tests/plants)."""
    environment = {**os.environ, **({"PYTHONPATH": str(PLANTS)} if planted else {})}
    with (cwd / "errors.log").open("a") as errors:
        return subprocess.Popen(
            command(*arguments), cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )


def jvms(of: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(of).children(recursive=True) if "java" in p.name()]


def world_in(root: Path) -> World:
    plan = Plan(games=2, versions=2, records=10, faults=Faults(corrupt=1, unknown_id=1, tombstones=1))
    (root / "key").write_text(SECRET)
    conf = {**SMALL_SPARK["conf"], "spark.hadoop.fs.s3a.secret.key": f"${{file:{root / 'key'}}}"}
    return World(root, "", plan, spark={**SMALL_SPARK, "conf": conf})


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_the_stock_command_and_the_runner_run_the_same_project_and_no_kill_loses_a_row(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    world.send(1)
    out = tmp_path / "project"
    init = started("pipeline", "init", str(world.file), "--out", str(out), cwd=tmp_path)
    init.communicate(timeout=300)
    assert init.returncode == Exit.OK, (tmp_path / "errors.log").read_text()
    # Killed at any moment, the runner takes its JVM with it, and the next run is exact.
    moments = random.Random(4)
    for kill in range(either(1, 10)):
        if kill:
            world.send(1, start=1000 * kill)
        kill_at(started("pipeline", "run", str(world.file), "--every", "1s", "--json", cwd=tmp_path), moments)

    # A JVM that dies in the middle of an update is one update's loss: another one is started. Records that end the
    # workers that read them fail an update; the next one finds them, and takes the rest.
    world.send(2, start=100)
    good = next(r for r in world.sent if r.fault is None)
    deadly = [with_user(good, "sigkill"), with_user(good, "segfault"), with_user(good, "x", "opening sigkill")]
    write_delta(world.source, deadly)
    run = started("pipeline", "run", str(world.file), "--every", "1s", "--json", cwd=tmp_path, planted=True)
    wait_for(run, lambda said: said["kind"] == "event" and said["state"] == "RUNNING")
    for child in jvms(run.pid):
        child.kill()
    wait_for(run, lambda said: said.get("condition") == "SERVER_GONE")
    wait_for(run, lambda said: said["kind"] == "update" and said["ok"] and said["set_aside"] >= len(deadly))

    assert_keeps_its_secrets(run.pid, tmp_path)

    # A clean stop: SIGTERM ends it after an update, with its JVM, and the exit code says that all is well.
    children = jvms(run.pid)
    assert children
    run.terminate()
    rest, _ = run.communicate(timeout=400)
    assert run.returncode == Exit.OK, (tmp_path / "errors.log").read_text()[-2000:]
    assert json.loads(rest.splitlines()[-1])["kind"] == "run"
    assert_gone(children)
    assert_rows(world)
    killed = Bronze.of(world.datasets, Store()).quarantined_rows([Reason.KILLED_READER]).column("payload").to_pylist()
    assert len(killed) == len(deadly)
    assert set(killed) == {*(record.envelope.payload for record in deadly[:2]), deadly[2].value}

    # Spark's own command goes on from there.
    world.send(2, start=200)
    stock(out)
    assert_rows(world)


def assert_keeps_its_secrets(pid: int, root: Path) -> None:
    """No process shows a store's key or the server's token, no file but its own holds one, and all listen here only."""
    pids = family(pid)
    shown = [shown_by(one) for one in pids]
    assert len(pids) > 1 and any("java" in text for text in shown)
    assert not [text for text in shown if SECRET in text or TOKEN.search(text)]
    listening = doors(pids)
    assert listening and [door for door in listening if not door.is_loopback] == []
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "key"}
    assert not [path for path, body in files.items() if SECRET.encode() in body]
    assert not TOKEN.search((root / "errors.log").read_text())


def kill_at(run: subprocess.Popen[str], moments: random.Random) -> None:
    """SIGKILL in the middle of an update."""
    wait_for(run, lambda said: said["kind"] == "event" and said["state"] == "RUNNING")
    time.sleep(moments.uniform(0, 5))
    children = jvms(run.pid)
    os.kill(run.pid, signal.SIGKILL)
    run.wait(60)
    assert_gone(children)
    assert run.stdout is not None
    run.stdout.close()


def wait_for(run: subprocess.Popen[str], condition: Callable[[dict[str, Any]], bool]) -> None:
    assert run.stdout is not None
    for line in run.stdout:
        if condition(json.loads(line)):
            return
    pytest.fail("the runner ended")


def assert_gone(processes: list[psutil.Process]) -> None:
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert not alive, "a JVM was left behind"


def stock(project: Path) -> None:
    environ = {
        **os.environ,
        "SPARK_CONF_DIR": str(project / "conf"),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java(os.environ)),
        # A port of its own for the server of the command, which else is 15002 whoever else has that.
        "SPARK_TESTING": "1",
    }
    pipelines = str(Path(sys.executable).parent / "spark-pipelines")
    done = subprocess.run(
        [pipelines, "--remote", "local[2]", "run"],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


def assert_rows(world: World) -> None:
    """Silver is what was sent; source, bronze and silver agree."""
    for game in world.games.names:
        assert len(world.silver(game)) == len(world.good(game)), game
    world.check_silver()
    found = verify(world.config)
    assert found.ok, found.problems
