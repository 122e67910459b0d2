"""Others at the same tables: people who tidy, restore, drop and widen them, second runs, verbs beside a run, and
processes that stand still for so long that everybody has given them up."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from distributary.audit.verify import verify
from distributary.config import load
from tests.faults.pipelines import Piped, Place, Seen, concluded, expect
from tests.processes import command

LONG_SEC = 300


def _others(place: Place, act: Callable[[DeltaTable], None]) -> Seen:
    """Somebody does it between two batches of a run that goes on, and between two runs."""
    seen = Seen()
    piped = Piped(place.folder)
    piped.feed()
    with piped.going() as run:
        run.wait_right()
        for _ in range(3):
            act(DeltaTable(place.folder / "lake" / "ash"))
            piped.feed()
            if not run.wait_right():
                seen.wrong.append("it did not go on by itself")
    act(DeltaTable(place.folder / "lake" / "ash"))
    piped.feed()
    seen.went_on = "by itself"
    seen = concluded(piped, seen)
    if not (said := verify(load(piped.file))).ok:
        seen.wrong.append(f"verify raises an alarm: {said}")
    return seen


def _optimise(table: DeltaTable) -> None:
    table.optimize.compact()


def _vacuum(table: DeltaTable) -> None:
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def _widen(table: DeltaTable) -> None:
    number = sum(f.name.startswith("theirs") for f in table.schema().fields)
    table.alter.add_columns([Field(f"theirs_{number}", PrimitiveType("string"))])


def _append(table: DeltaTable) -> None:
    table.create_checkpoint()
    table.cleanup_metadata()


def optimised(place: Place) -> Seen:
    return _others(place, _optimise)


def vacuumed(place: Place) -> Seen:
    return _others(place, _vacuum)


def evolved(place: Place) -> Seen:
    return _others(place, _widen)


def checkpointed(place: Place) -> Seen:
    return _others(place, _append)


def restored(place: Place) -> Seen:
    """Somebody restores an older version: `verify` says how many rows are missing; what comes later is there once."""
    seen = Seen()
    piped = Piped(place.folder)
    for _ in range(3):
        piped.feed()
        expect(seen, piped.run(), "")
    table = DeltaTable(place.folder / "lake" / "ash")
    newest, missing = table.version(), table.count()
    table.restore(newest - 1)
    missing -= table.count()
    said = verify(load(piped.file))
    if said.ok or said.rows_lost != missing:
        seen.wrong.append(f"{missing} rows are missing, verify says {said.rows_lost}")
    table.restore(newest)
    piped.feed()
    seen.went_on = "once the newest version was restored"
    return concluded(piped, seen)


def dropped(place: Place) -> Seen:
    """Somebody drops a table in the middle of a run: it is made anew with what comes; `verify` says what is gone."""
    seen = Seen()
    piped = Piped(place.folder)
    piped.feed()
    with piped.going() as run:
        run.wait_right()
        gone = len(piped.producer.truth.rows["ash"])
        shutil.rmtree(place.folder / "lake" / "ash")
        piped.producer.truth.rows["ash"] = []
        piped.feed()
        if not run.wait_right():
            seen.wrong.append("it did not go on by itself")
    said = verify(load(piped.file))
    if said.ok or said.rows_lost != gone:
        seen.wrong.append(f"{gone} rows are missing, verify says {said.rows_lost}")
    seen.went_on = "by itself"
    return concluded(piped, seen)


# -- processes -----------------------------------------------------------------------------------------------


def _started(piped: Piped, *arguments: str) -> psutil.Popen:
    with (piped.root / "processes.log").open("ab") as log:
        return psutil.Popen(command(*arguments), stdout=log, stderr=log, start_new_session=True)


def _said(piped: Piped) -> str:
    return (piped.root / "processes.log").read_text(errors="replace")


def _done(piped: Piped, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=LONG_SEC, check=False)
    return done.returncode, done.stdout + done.stderr


def _family(process: psutil.Popen) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(process.pid), *process.children(recursive=True)]
    return []


def _workers(process: psutil.Popen) -> list[psutil.Process]:
    found = []
    for one in _family(process)[1:]:
        with suppress(psutil.NoSuchProcess):
            found += [one] if "python" in one.name() else []
    return found


def _ended(process: psutil.Popen) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(90)
    except psutil.TimeoutExpired:
        for one in _family(process):
            one.kill()
        raise


def _until(condition: Callable[[], bool], process: psutil.Popen, timeout_sec: float = 240) -> bool:
    end = time.monotonic() + timeout_sec
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.3)
    return condition()


@contextmanager
def _running(piped: Piped, seen: Seen) -> Iterator[psutil.Popen]:
    """A process that runs, and has begun well, until the end of the block."""
    piped.feed()
    process = _started(piped, "run", str(piped.file))
    try:
        if not _until(piped.is_right, process):
            seen.wrong.append(f"the run did nothing: {_said(piped)[-300:]}")
        yield process
    finally:
        _ended(process)


def _goes_on(piped: Piped, process: psutil.Popen, seen: Seen) -> None:
    if not _until(piped.is_right, process):
        seen.wrong.append("the run did not go on")


def two_runs(place: Place) -> Seen:
    """A second run of the same file on this machine, in the middle of the first."""
    seen = Seen()
    piped = Piped(place.folder)
    with _running(piped, seen) as first:
        expect(seen, piped.run(), "ALREADY_RUNNING", names=(str(first.pid),))
        piped.feed()
        _goes_on(piped, first, seen)
    seen.went_on = "the first one by itself"
    return concluded(piped, seen)


def verbs_beside(place: Place) -> Seen:
    """`maintain`, `replay`, `verify` and `clean` while a run goes on."""
    seen = Seen()
    piped = Piped(place.folder)
    with _running(piped, seen) as run:
        file = str(piped.file)
        for arguments, codes in (
            (("maintain", file), {0}),
            (("replay", file), {0, 1}),
            (("clean", file, "--yes"), {2}),
            (("verify", file), {0}),
        ):
            piped.feed()
            code, said = _done(piped, *arguments)
            if code not in codes:
                seen.wrong.append(f"{arguments[0]} ended with {code}: {said[-300:]}")
            if arguments[0] == "clean":
                seen.words = said.strip()[-400:]
        _goes_on(piped, run, seen)
    seen.went_on = "by itself"
    return concluded(piped, seen)


def workers_stand_still(place: Place) -> Seen:
    """All Python workers of a run are stopped for 40 s, and go on."""
    seen = Seen()
    piped = Piped(place.folder)
    with _running(piped, seen) as run:
        workers = _workers(run)
        for worker in workers:
            worker.suspend()
        piped.feed()
        time.sleep(40)
        for worker in workers:
            if worker.is_running():
                worker.resume()
        if not workers:
            seen.wrong.append("there were no workers")
        _goes_on(piped, run, seen)
    seen.went_on = "by itself"
    return concluded(piped, seen)


def worker_killed(place: Place) -> Seen:
    """A Python worker is killed in the middle, again and again."""
    seen = Seen()
    piped = Piped(place.folder)
    with _running(piped, seen) as run:
        for _ in range(5):
            piped.feed()
            for worker in _workers(run):
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            time.sleep(1)
        _goes_on(piped, run, seen)
    seen.went_on = "by itself"
    return concluded(piped, seen)


def zombie(place: Place) -> Seen:
    """A run whose state is in a store stands still with all its processes, in the middle of its batches; another takes
    over, as after a machine that was given up; then the first goes on. Neither may write what the other has."""
    seen = Seen()
    bucket = place.s3().bucket()
    keys = {
        "tables": {"root": f"{bucket.url}/lake"},
        "state": f"{bucket.url}/state",
        "checkpoint": str(place.folder / "checkpoint"),
    }
    piped = Piped(place.folder, keys, options=bucket.options)
    for _ in range(4):
        piped.feed(30)
    first = _started(piped, "run", str(piped.file))
    frozen: list[psutil.Process] = []
    try:
        if not _until(lambda: bool(_rows(piped)), first):
            seen.wrong.append(f"the first run did nothing: {_said(piped)[-300:]}")
        for _ in range(12):
            piped.feed(30)
        time.sleep(1.5)
        frozen = _family(first)
        for one in frozen:
            one.suspend()
        taken_over = piped.run()
        if taken_over.condition:
            seen.wrong.append(f"the second run ended with {taken_over.condition}: {taken_over.words[:300]}")
        for _ in range(3):
            piped.feed(30)
        second = piped.run()
        if second.condition:
            seen.wrong.append(f"the second run ended with {second.condition}: {second.words[:300]}")
        for one in reversed(frozen):
            one.resume()
        piped.feed(30)
        _until(lambda: False, first, 20)
        seen.words = _said(piped)[-600:]
        if first.poll() is not None and "another process has gone on with" not in seen.words:
            seen.wrong.append(f"its words do not name the other one: {seen.words}")
    finally:
        for one in frozen:
            if one.is_running():
                one.resume()
        if first.poll() is None:
            _ended(first)
    seen.went_on = "by the second run"
    return concluded(piped, seen)


def _rows(piped: Piped) -> int:
    try:
        return sum(len(piped.rows(game)) for game in piped.producer.truth.rows)
    except Exception:  # some table is not there yet
        return 0


SCENARIOS = {
    "table optimised by another": optimised,
    "table optimised and vacuumed by another": vacuumed,
    "table widened by another": evolved,
    "table checkpointed by another": checkpointed,
    "table restored by another": restored,
    "table dropped by another": dropped,
    "two runs at once": two_runs,
    "verbs beside a run": verbs_beside,
    "workers stand still": workers_stand_still,
    "workers killed": worker_killed,
    "a whole run stands still, another takes over": zombie,
}
