"""Managed tables of a real Unity Catalog: `python -m tests.unity_managed FOLDER [appended|keyed|away]`. Some minutes;
not a part of CI.

The open-source server and its connector for Spark are built beforehand (`tests.services.unity`). A pipeline with tables
by name (`tables.managed`) takes its first batch; then each batch ends its process by SIGKILL at another moment, the
JVM with it, a new field among what comes. Another pipeline has keys and logs; while a third one runs, the catalog drops
connections or answers 503, all the time or to commits only. Then each record must be in its table once, by Spark's own
SQL in a session that is not the product's, and `status`, `verify`, `replay`, `maintain` and `clean` must find the
tables by their names.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import Row, SparkSession

from distributary.spark.session import PACKAGES
from tests.faults.proxy import WELL, Fault, Proxy, Rule
from tests.killing import processes
from tests.processes import SMALL_SPARK, command
from tests.scenarios import Scenario, message
from tests.services.unity import Unity

V1 = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; }'
V2 = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; optional string boss = 3; }'
ROUTES = ("chess", "go")
ROWS = 50
WHILE_WRITING = "a file of its rows is there"
"""A moment that is seen from outside, in the table's folder."""
OF_APPENDS = (
    WHILE_WRITING,
    "a table has its columns",
    "a table has its rows",
    "all tables have their rows",
    "the ledger has its lines",
)
OF_MERGES = (*OF_APPENDS, "a merge has its rows and not its mark")


BREAKS = {
    "drops connections": Rule(Fault.dropped()),
    "answers 503": Rule(Fault.answer(503, b"{}")),
    "drops those of commits": Rule(Fault.dropped(), "^POST .*commits"),
    "answers 503 to commits": Rule(Fault.answer(503, b"{}"), "^POST .*commits"),
    "does what it is asked and does not say so": Rule(Fault.unanswered(), "^POST .*commits"),
}


AWAY_SEC = 20
"""After the first request that has met it: longer than the catalog's client tries by itself."""


def main() -> int:
    """The exit code: 1 where something is not as it should be."""
    folder, *chosen = sys.argv[1:]
    trials = {"appended": _appended, "keyed": _keyed, "away": _away}
    root = Path(folder).resolve()
    with Unity(root / "unity") as unity:
        results = [trials[name](root / name, unity) for name in chosen or trials]
    return 0 if all(results) else 1


def _scenario(root: Path, conf: Mapping[str, str], schema: str, trigger: Any = "once", **tables: Any) -> Scenario:
    root.mkdir(parents=True)
    spark = {**SMALL_SPARK, "conf": {**SMALL_SPARK["conf"], **conf}}
    keys = {"managed": True, "database": f"main.{schema}", **tables}
    return Scenario(root, tables=keys, state=str(root / "state"), spark=spark, trigger=trigger)


def _send(scenario: Scenario, number: int) -> None:
    """The records of a round: new users and, from the second one on, all who came in the round before. The later half
    of the rounds has a new field."""
    text, more = (V1, {}) if number < 3 else (V2, {"boss": f"b{number}"})
    events = []
    for route in ROUTES:
        known = scenario.schema(f"{route}-value", text)
        for user in range(max(0, number - 1) * ROWS, (number + 1) * ROWS):
            body = message(text, "event", user=f"u{user}", score=number, **more)
            events.append(scenario.event(route, known, body))
    scenario.send(*events)


def _killed(scenario: Scenario, moments: Sequence[str], unity: Unity, log: Path) -> bool:
    """A first batch, then one for each of the moments, at which its process ends; the next one does the batch again
    and ends in the batch after it. Whether all of them did."""
    good = True
    with processes(scenario.file, log, len(moments) + 2, "tests.dying_child") as following:
        for number, moment in enumerate(["", *moments, ""]):
            _send(scenario, number)
            process = following()
            if moment == WHILE_WRITING:
                before = _files(scenario, unity)
                process.go([""])
                _wait(lambda: _files(scenario, unity) - before)  # noqa: B023
                process.kill()
            else:
                process.go([moment, str(number)] if moment else [""])
            code = process.finish(300)
            offsets, commits = (_newest(scenario, name) for name in ("offsets", "commits"))
            as_it_should = (code, offsets, commits) == ((-9, number, number - 1) if moment else (0, number, number))
            print(f"{moment or 'to its end'}: exit {code}, batch {offsets}, finished {commits}", flush=True)
            good &= as_it_should
    return good


def _files(scenario: Scenario, unity: Unity) -> set[str]:
    """Data files of the first route's table, which has rows of all batches."""
    about = unity.request("GET", f"/tables/{scenario.config.tables.database}.{ROUTES[0]}")
    folder = Path(urlsplit(about["storage_location"]).path)
    return {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def _newest(scenario: Scenario, name: str) -> int:
    """The newest batch that Spark's checkpoint has begun (`offsets`) or finished (`commits`)."""
    folder = Path(scenario.config.checkpoint_path) / name
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1)


def _wait(seen: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not seen():
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.002)


def _rows(unity: Unity, *queries: str) -> list[list[Row]]:
    """By Spark alone."""
    conf: dict[str, Any] = {
        **unity.spark(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.jars.packages": PACKAGES[0],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    try:
        return [spark.sql(query).collect() for query in queries]
    finally:
        spark.stop()


def _sent(rounds: int) -> list[tuple[str, int, str | None]]:
    """(user, score, boss) of each record of one route, in the order in which they were sent."""
    return [
        (f"u{user}", number, None if number < 3 else f"b{number}")
        for number in range(rounds)
        for user in range(max(0, number - 1) * ROWS, (number + 1) * ROWS)
    ]


def _appended(root: Path, unity: Unity) -> bool:
    scenario = _scenario(root, unity.spark(), "appended")
    scenario.send(scenario.event("chess", 404, b""))
    good = _killed(scenario, OF_APPENDS, unity, root / "run.log")
    columns = "user, score, boss, _origin.offset"
    for route, rows in zip(
        ROUTES, _rows(unity, *(f"SELECT {columns} FROM main.appended.{route}" for route in ROUTES)), strict=True
    ):
        good &= _each_once(f"appended.{route}", rows, len(OF_APPENDS) + 2, unity)
    return good & _commands(scenario)


def _keyed(root: Path, unity: Unity) -> bool:
    scenario = _scenario(root, unity.spark(), "keyed", keys=["user"], log="{route}_log")
    good = _killed(scenario, OF_MERGES, unity, root / "run.log")
    rounds = len(OF_MERGES) + 2
    newest = {user: (score, boss) for user, score, boss in _sent(rounds)}
    queries = [f"SELECT user, score, boss FROM main.keyed.{route}" for route in ROUTES]
    place = "concat_ws(' ', _origin.file, _origin.row) AS offset"
    queries += [f"SELECT user, score, boss, {place} FROM main.keyed.{route}_log" for route in ROUTES]
    merged_and_logs = _rows(unity, *queries)
    for route, rows in zip(ROUTES, merged_and_logs, strict=False):
        is_newest = {row["user"]: (row["score"], row["boss"]) for row in rows} == newest and len(rows) == len(newest)
        print(f"keyed.{route}: {len(rows)} rows, the newest of each key: {is_newest}", flush=True)
        good &= is_newest
    for route, rows in zip(ROUTES, merged_and_logs[len(ROUTES) :], strict=True):
        good &= _each_once(f"keyed.{route}_log", rows, rounds, unity)
    return good & _commands(scenario)


def _away(root: Path, unity: Unity) -> bool:
    with Proxy(unity.url) as proxy:
        conf = {**unity.spark(), "spark.sql.catalog.main.uri": proxy.endpoint}
        scenario, log = _scenario(root, conf, "away", {"every": "1 second"}), root / "run.log"
        with processes(scenario.file, log, 1) as following:
            process = following()
            process.go(["run", str(scenario.file)])
            for number, (what, rule) in enumerate(BREAKS.items()):
                proxy.rule, met = rule, proxy.hits
                done = log.read_text().count(" rows in ")
                _send(scenario, number)
                _wait(lambda: proxy.hits > met)  # noqa: B023
                time.sleep(AWAY_SEC)
                met = proxy.hits - met
                proxy.rule = WELL
                _wait(lambda: log.read_text().count(" rows in ") > done)  # noqa: B023
                print(f"the catalog {what}: {met} requests met it, then the batch was taken", flush=True)
    good = "PARKED" not in log.read_text() and not scenario.quarantined()
    print(f"parked, set aside: {'none' if good else 'SOME'}", flush=True)
    columns = "user, score, boss, _origin.offset"
    for route, rows in zip(
        ROUTES, _rows(unity, *(f"SELECT {columns} FROM main.away.{route}" for route in ROUTES)), strict=True
    ):
        good &= _each_once(f"away.{route}", rows, len(BREAKS), unity)
    return good


def _each_once(table: str, rows: Sequence[Row], rounds: int, unity: Unity) -> bool:
    found, offsets = Counter((row["user"], row["score"], row["boss"]) for row in rows), {row["offset"] for row in rows}
    is_once = found == Counter(_sent(rounds)) and len(offsets) == len(rows)
    kind = unity.request("GET", f"/tables/main.{table}")["table_type"]
    print(f"{table}: {len(rows)} rows, each record once: {is_once}, {kind}", flush=True)
    return is_once and kind == "MANAGED"


def _commands(scenario: Scenario) -> bool:
    """Each as a process of its own, in the words that it says. A record that cannot be read stays in the quarantine,
    which `replay` says by its exit code."""
    is_right = True
    orders = [["status"], ["verify", "--deep"], ["replay"], ["maintain"], ["history", "--route", "chess"]]
    for words in [*orders, ["clean"], ["clean", "--yes"]]:
        arguments = command(words[0], str(scenario.file), *words[1:])
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        is_right &= done.returncode in ((0, 1) if words == ["replay"] else (0,))
        print(f"$ distributary {' '.join(words)}   ({done.returncode})", flush=True)
        print(f"{done.stdout[-1500:]}{done.stderr[-1500:]}", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(main())
