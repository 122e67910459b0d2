"""Temporary files: nobody else may open them, and a kill leaves none for longer than until the next run."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from distributary.scratch import PREFIX, Scratch, sweep


def left_by(program: str, folder: Path) -> list[Path]:
    """What a process that kills itself at the end of `program` leaves in its folder of temporary files."""
    killed = f"{textwrap.dedent(program)}\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    environ = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder)}
    done = subprocess.run([sys.executable, "-c", killed], env=environ, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return list(folder.iterdir())


def test_a_folder_is_its_users_own_and_goes_with_its_owner(tmp_path: Path) -> None:
    with Scratch("kind", tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "a").mkdir()
    kept = Scratch("kind", tmp_path)
    assert list(tmp_path.iterdir()) == [kept.folder]
    del kept
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    program = "from distributary.scratch import Scratch; one = Scratch('a'); (one.folder / 'x').mkdir()"
    with Scratch("b", tmp_path) as living:
        os.utime(living, (0, 0))
        assert len(left_by(program, tmp_path)) == 2
        sweep(tmp_path)
        assert list(tmp_path.iterdir()) == [living]


def test_a_process_that_inherits_the_lock_keeps_the_folder_of_one_that_was_killed(tmp_path: Path) -> None:
    program = """
        import subprocess, sys
        from distributary.scratch import Scratch
        one = Scratch("a")
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[one.lock],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (one.folder / "child").write_text(str(child.pid))
    """
    (folder,) = left_by(program, tmp_path)
    child = psutil.Process(int((folder / "child").read_text()))
    try:
        sweep(tmp_path)
        assert folder.exists()
    finally:
        child.kill()
    psutil.wait_procs([child], 60)
    until = time.monotonic() + 240
    while folder.exists() and time.monotonic() < until:
        sweep(tmp_path)
    assert not folder.exists()


def test_a_link_that_somebody_put_there_leads_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / f"{PREFIX}a-1").symlink_to(victim)
    inside = shared / f"{PREFIX}a-2"
    inside.mkdir()
    (inside / "link").symlink_to(victim)
    (shared / f"{PREFIX}a-3").touch()
    sweep(shared)
    assert (victim / "precious").exists()
    assert {path.name for path in shared.iterdir()} == {f"{PREFIX}a-1", f"{PREFIX}a-3"}


def test_another_users_folder_is_left_to_that_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}a-1").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep(tmp_path)
    assert list(tmp_path.iterdir())


def test_who_sweeps_takes_no_folder_from_who_is_making_one(tmp_path: Path) -> None:
    lost: list[Path] = []

    def work() -> None:
        for _ in range(200):
            with Scratch("a", tmp_path) as folder:
                if not folder.is_dir():
                    lost.append(folder)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert list(tmp_path.iterdir()) == []


WHOSE = {
    "a stream's chunks": """
        from distributary.engine.messages.spool import Spool, write_spool
        import pyarrow as pa
        spool = Spool(None)
        write_spool(spool.open(), [pa.py_buffer(b"x")])
    """,
    "the compiler of schemas": """
        from distributary.schemas.registry.compile import compile_text
        compile_text("message A {}")
    """,
    "events of many files by share": """
        import pyarrow as pa
        from distributary.engine.changes.gather import by_share
        from distributary.engine.changes.key_shares import KeyShares
        shares = by_share([pa.table({"k": list(range(100))})], KeyShares(("k",), 4))
        next(shares)
    """,
    "the events that verify sorts": """
        from distributary.audit.judge.by_key import ByKey
        kept = ByKey()
    """,
    "the checkpoint that plan reads": """
        import tempfile
        from distributary.audit.dry_run import _copied
        copied = _copied(tempfile.mkdtemp(dir="."), None)
        copied.__enter__()
    """,
    "a wrapped Java": """
        from pathlib import Path
        from distributary.spark.java import _wrapped
        _wrapped(Path("/java"), Path("/dev/null"))
    """,
}


@pytest.mark.parametrize("whose", WHOSE)
def test_the_next_run_removes_all_that_a_kill_left(whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    assert {path.name.startswith(PREFIX) for path in left_by(WHOSE[whose], folder)} == {True}
    sweep(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.spark
def test_the_next_run_removes_what_a_killed_sparks_jvm_left(tmp_path: Path) -> None:
    program = """
        from distributary.spark.session import build_session
        spark = build_session("killed", master="local[1]", conf={"spark.sql.catalogImplementation": "in-memory"})
        spark.range(3).cache().count()
        spark.sparkContext.broadcast([1] * 10)
        open("jvm", "w").write(str(spark.sparkContext._gateway.proc.pid))
    """
    (folder := tmp_path / "temporary").mkdir()
    code = f"import os; os.chdir({str(tmp_path)!r})\n{textwrap.dedent(program)}"
    left = left_by(code, folder)
    psutil.wait_procs(
        [psutil.Process(pid) for pid in [int((tmp_path / "jvm").read_text())] if psutil.pid_exists(pid)], 60
    )
    assert all(path.name.startswith(PREFIX) for path in left)
    sweep(folder)
    assert list(folder.iterdir()) == []
