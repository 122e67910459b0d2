"""Records and files that end the process which reads them: found, set aside, and the batch goes on."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.engine.apart import killers
from distributary.errors import Reason
from distributary.state.journal import Journal
from distributary.tables.store import Store
from tests.scenarios import Scenario, message
from tests.shop import Shop, change, mysql_table

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
PLANTS = Path(__file__).parent / "plants"


def end(how: str) -> None:
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "raise":
        raise SystemExit(3)


def test_the_items_that_end_their_process_are_found_and_nothing_else_is() -> None:
    items = ["fine", "sigkill", "raise", "fine", "segfault", "fine"]
    assert killers(end, items) == {1: "SIGKILL", 4: "SIGSEGV"}
    assert killers(end, []) == {}


def test_what_has_killed_is_written_down_for_the_next_attempt(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), Store())
    assert journal.killed("s", 3) == {}
    journal.write_killed("s", 3, {"a": "SIGKILL"})
    assert Journal(str(tmp_path), Store()).killed("s", 3) == {"a": "SIGKILL"}
    assert journal.killed("s", 4) == {}


def planted(*files: Path) -> None:
    """Runs of pipelines, one after the other, in a process whose readers, and those of its workers, some bytes end."""
    program = (
        "import sys; from pathlib import Path\n"
        "from distributary.config import load; from distributary.running.pipeline import run\n"
        "for file in sys.argv[1:]: run(load(Path(file)), once=True)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PLANTS), str(PLANTS.parent.parent)])}
    command = [sys.executable, "-c", program, *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.spark
def test_a_batch_goes_on_without_the_records_and_files_that_kill_its_workers(tmp_path: Path) -> None:
    (tmp_path / "games").mkdir()
    scenario = Scenario(tmp_path / "games")
    known = scenario.schema("a-value", EVENT)
    users = ["1", "sigkill", "2", *(f"u{n}" for n in range(20)), "segfault", "3"]
    for route in ("a", "b"):
        scenario.send(
            *(
                scenario.event(route, known, message(EVENT, "event", user=user))
                for user in users[: 3 if route == "b" else None]
            )
        )
    shop = Shop(tmp_path / "shop")
    orders = mysql_table("orders")
    shop.send(*(change(orders, "INSERT", {"id": n, "status": "new"}, 100 + n) for n in range(3)))
    [late] = shop.send(change(orders, "INSERT", {"id": 9, "status": "new"}, 900, sec=70))
    deadly = late.with_name(late.name.replace(".avro", "") + "sigkill.avro")
    deadly.write_bytes(late.read_bytes())
    late.unlink()
    planted(scenario.file, shop.file)
    assert scenario.reasons() == {Reason.KILLED_READER: 3}
    assert sorted(row["detail"].rsplit(" ", 1)[1] for row in scenario.quarantined()) == [
        "SIGKILL",
        "SIGKILL",
        "SIGSEGV",
    ]
    assert scenario.values("b", "user") == ["1", "2"]
    assert len(scenario.values("a", "user")) == 23
    scenario.check()
    assert shop.reasons() == {Reason.KILLED_READER: 1}
    assert [row["file"] for row in shop.quarantined()] == [str(deadly)]
    assert [row["id"] for row in shop.log("shop_orders_log")] == [0, 1, 2]
