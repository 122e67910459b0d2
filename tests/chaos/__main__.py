"""Run the scenarios, kill them, compare: exits 1 where a row is lost, doubled or wrong; FILE gets the figures."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.scenarios import SCENARIOS, Declarative, Scenario
from tests.killing import Process, processes
from tests.processes import command

WAIT_SEC = (0.3, 7.0)
LAST_SEC = 600


def main() -> int:
    asked = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="distributary-chaos-", dir=asked.folder))
    found: dict[str, Any] = {}
    share = max(1, asked.kills // len(asked.scenarios))
    for number, name in enumerate(asked.scenarios):
        dice = random.Random(f"{asked.seed} {name}")
        with closing(SCENARIOS[name](folder / name, dice)) as scenario:
            found[name] = run(scenario, dice, share + (number < asked.kills - share * len(asked.scenarios)))
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    wrong = [f"{name}: {text}" for name, one in found.items() for text in one["differences"]]
    kills = sum(one["kills"] for one in found.values())
    if asked.json:
        result = {"seed": asked.seed, "kills": kills, "ok": not wrong, "scenarios": found}
        asked.json.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join([*wrong, f"{kills} kills with seed {asked.seed}: {f'see {folder}' if wrong else 'all right'}"]))
    return int(bool(wrong))


def run(scenario: Scenario, dice: random.Random, kills: int) -> dict[str, Any]:
    """Kill it so often, let it end, and compare."""
    log = scenario.root / "processes.log"
    began = time.monotonic()
    done = 0
    with _starting(scenario, log, kills) as following:
        for process in following:
            process.go(scenario.command)
            wait = dice.uniform(*WAIT_SEC)
            time.sleep(wait / 2)
            scenario.feed(done / kills)
            time.sleep(wait / 2)
            done += process.kill()
    scenario.finish()
    wrong = _to_the_end(scenario, log)
    wrong += scenario.differences()
    return {"kills": done, "seconds": round(time.monotonic() - began), "differences": wrong, **scenario.figures()}


@contextmanager
def _starting(scenario: Scenario, log: Path, kills: int) -> Iterator[Iterator[Any]]:
    """Processes that wait for their command with Spark up, the next one while the one before is at work. A declarative
    run starts a Spark of its own: there is nothing to prepare."""
    if isinstance(scenario, Declarative):
        yield (_Cold(log) for _ in range(kills))
        return
    with processes(scenario.file, log, kills) as following:
        yield (following() for _ in range(kills))


class _Cold(Process):
    """The command itself, from its start on."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")

    def go(self, arguments: Any) -> None:
        self._process = subprocess.Popen(
            command(*arguments), stdout=self._log, stderr=self._log, text=True, start_new_session=True
        )
        # Its Spark takes this long to start; a kill before that proves little.
        time.sleep(12)


def _to_the_end(scenario: Scenario, log: Path) -> list[str]:
    """Run what is there to its end, then ask `verify`; what went wrong, in words."""
    wrong = []
    once = [word for word in scenario.command if word not in ("--every", "1s")] + ["--once"]
    for arguments in (once, ["verify", str(scenario.file)]):
        with log.open("ab") as output:
            done = subprocess.run(command(*arguments), stdout=output, stderr=output, timeout=LAST_SEC, check=False)
        if done.returncode:
            wrong.append(f"{arguments[0]} ended with {done.returncode}, see {log}")
    return wrong


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=12, help="over all scenarios")
    parser.add_argument("--folder", help="where the pipelines are made (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS), metavar="NAME")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
