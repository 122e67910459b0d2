"""Records and files that end the process which reads them: found, set aside, and the batch goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from distributary.engine.apart import Apart, WorkerDied, WorkResult, killers
from distributary.errors import Reason
from distributary.state.journal import Journal
from distributary.tables.store import Store
from tests.deadly import end, raise_foreign, report, works
from tests.scenarios import Scenario, message
from tests.shop import Shop, change, mysql_table

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
PLANTS = Path(__file__).parent / "plants"


ENDS = ["fine", "sigkill", "raise", "fine", "segfault", "loop", "exit", "fine"]
HOW = {1: "SIGKILL", 4: "SIGSEGV", 5: "it took more than 1 s of CPU time", 6: "exit code 3"}


@pytest.mark.parametrize("threads", [1, 4])
def test_work_apart_tells_what_comes_of_each_item_also_of_those_that_end_it(threads: int) -> None:
    with Apart(cpu_sec=1, threads=threads) as apart:
        found = apart.each(report, ENDS)
        assert {n: one.how for n, one in enumerate(found) if isinstance(one, WorkerDied)} == HOW
        assert found[0] == found[3] == found[7] == WorkResult("FINE")
        assert isinstance(found[2], WorkResult)
        assert isinstance(found[2].error, SystemExit)
        assert apart.each(report, []) == []
        [foreign] = apart.each(raise_foreign, [""])
        assert isinstance(foreign, WorkResult)
        assert str(foreign.error) == "Foreign: a b"


def test_what_is_ended_from_outside_once_is_not_held_against_the_item(tmp_path: Path) -> None:
    with Apart(cpu_sec=60) as apart:
        assert apart.each(report, ["a", f"once {tmp_path / 'mark'}", "b"])[::2] == [WorkResult("A"), WorkResult("B")]
        assert (tmp_path / "mark").exists()


def test_the_answers_to_a_question_that_was_broken_off_are_not_taken_for_the_next_one() -> None:
    with Apart(cpu_sec=60) as apart:
        apart.each(report, ["z"])
        with pytest.raises(Exception, match="pickle"):
            apart.each(report, [threading.Lock()])  # type: ignore[arg-type]
        assert apart.each(report, ["a"]) == [WorkResult("A")]


def test_the_items_that_end_their_process_are_found_among_thousands_and_nothing_else_is() -> None:
    items = ["fine"] * 3_000
    for at, what in {0: "sigkill", 1_500: "segfault", 1_501: "raise", 2_999: "sigkill"}.items():
        items[at] = what
    with Apart(cpu_sec=60) as apart:
        expected = {0: "SIGKILL", 1_500: "SIGSEGV", 2_999: "SIGKILL"}
        assert killers(works, lambda begin, end: items[begin:end], len(items), apart) == expected
        assert killers(end, lambda begin, _: items[begin], 2, apart, singly=True) == {0: "SIGKILL"}
        assert killers(works, lambda begin, end: items[begin:end], 0, apart) == {}


def test_what_has_killed_is_written_down_for_the_next_attempt(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), Store())
    assert journal.killed("s", 3) == {}
    journal.write_killed("s", 3, {"a": "SIGKILL"})
    assert Journal(str(tmp_path), Store()).killed("s", 3) == {"a": "SIGKILL"}
    assert journal.killed("s", 4) == {}


RUN = "from distributary.running.hops import run; run(load(Path(file)), once=True)"
PLAN = """
from distributary.audit.plan import plan_changes
made = plan_changes(load(Path(file)))
say([made.reasons, len(made.notes)])"""


def planted(root: Path, *does: tuple[str, Path | None]) -> tuple[int, list[Any], str]:
    """Code about pipeline files, one after the other, in a process whose readers, and those of its workers, some bytes
    end: its status, what it said, and what else it wrote."""
    says = root / "said"
    says.write_text("")
    code = [
        "import json, os",
        "from pathlib import Path",
        "from distributary.config import load",
        f"def say(what): open({str(says)!r}, 'a').write(json.dumps(what) + chr(10))",
        *(f"file = {str(file)!r}\n{text}" for text, file in does),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PLANTS), str(PLANTS.parent.parent)]),
        "PLANTS_MARK": str(root / "mark"),
    }
    command = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1_500)
    return done.returncode, [json.loads(line) for line in says.read_text().splitlines()], done.stderr[-3000:]


def scenario(root: Path, *sent: tuple[str, str], **keys: Any) -> Scenario:
    """A pipeline with these (route, user)."""
    root.mkdir()
    made = Scenario(root, quarantine={"max_ratio": 1.0}, **keys)
    known = made.schema("a-value", EVENT)
    made.send(*(made.event(route, known, message(EVENT, "event", user=user)) for route, user in sent))
    return made


@pytest.mark.spark
def test_a_batch_goes_on_without_the_records_and_files_that_kill_its_workers(tmp_path: Path) -> None:
    of_a, of_b = ("1", "sigkill", "2", "3"), ("1", "segfault")
    sent = [("opening sigkill", "x"), *(("a", user) for user in of_a), *(("b", user) for user in of_b)]
    games = scenario(tmp_path / "games", *sent)
    by_spark = scenario(tmp_path / "by_spark", ("a", "sigkill"), ("a", "1"), tables={"engine": "spark"})
    shop = Shop(tmp_path / "shop")
    spec = mysql_table("orders")
    shop.send(*(change(spec, "INSERT", {"id": n, "status": "new"}, 100 + n) for n in range(3)))
    [late] = shop.send(change(spec, "INSERT", {"id": 9, "status": "new"}, 900, sec=70))
    deadly = late.rename(late.with_name(late.name.replace(".avro", "sigkill.avro")))
    status, said, words = planted(
        tmp_path, (PLAN, shop.file), (RUN, games.file), (RUN, by_spark.file), (RUN, shop.file)
    )
    assert status == 0, words
    assert said == [[{Reason.KILLED_READER: 1}, 1]]
    assert (by_spark.reasons(), by_spark.values("a", "user")) == ({Reason.KILLED_READER: 1}, ["1"])
    assert games.reasons() == {Reason.KILLED_READER: 3}
    ways = sorted(row["detail"].partition("read it: ")[2] for row in games.quarantined())
    assert ways == ["SIGKILL", "SIGKILL", "SIGSEGV"]
    assert games.values("b", "user") == ["1"]
    assert games.values("a", "user") == ["1", "2", "3"]
    games.check()
    assert shop.reasons() == {Reason.KILLED_READER: 1}
    assert [row["file"] for row in shop.quarantined()] == [str(deadly)]
    assert [row["id"] for row in shop.log("shop_orders_log")] == [0, 1, 2]
