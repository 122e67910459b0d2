"""Run the scenarios, one line each; exits 1 where a row is lost or doubled, a run hung, or the words are wrong."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tests.faults import brokers, disks, logs, others, registries, stores, wires
from tests.faults.growth import growth, is_flat
from tests.faults.pipelines import Hung, Place, Seen
from tests.services import Server
from tests.services.kafka import Kafka
from tests.services.registry import Registry
from tests.services.stores import S3

MODULES = (brokers, wires, registries, stores, disks, logs, others)
SCENARIOS: dict[str, Callable[[Place], Seen]] = {n: one for module in MODULES for n, one in module.SCENARIOS.items()}


def main() -> int:
    asked = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="distributary-faults-", dir=asked.folder))
    found: dict[str, dict[str, Any]] = {}
    # With --only, what the file has of the others stays.
    result: dict[str, Any] = json.loads(asked.json.read_text()) if asked.only and _is_there(asked.json) else {}
    with ExitStack() as stack:
        place = _place(stack, folder)
        chosen = [name for name in SCENARIOS if not asked.only or any(part in name for part in asked.only)]
        for number, name in enumerate(chosen):
            seen = run(SCENARIOS[name], place(folder / f"s{number:02d}"))
            found[name] = asdict(seen)
            print(line(name, seen), flush=True)
            result["scenarios"] = {**result.get("scenarios", {}), **found}
            _write(asked.json, result)
    wrong = [name for name, one in found.items() if one["lost"] or one["doubled"] or one["hung"] or one["wrong"]]
    if asked.batches:
        result["growth"] = grown = growth(folder / "growth", asked.batches)
        print(f"growth: {grown['batches']} batches, {grown['lost']} lost, {grown['doubled']} doubled; {grown['grown']}")
        wrong += [] if is_flat(grown) else ["growth"]
        _write(asked.json, result)
    print(f"{len(found)} scenarios: " + (f"wrong: {', '.join(wrong)}; see {folder}" if wrong else "all right"))
    return int(bool(wrong))


def run(scenario: Callable[[Place], Seen], place: Place) -> Seen:
    """One scenario; whatever it raises is what is wrong."""
    began = time.monotonic()
    try:
        seen = scenario(place)
    except Hung as e:
        seen = Seen(hung=1, wrong=[str(e)])
    except Exception as e:
        seen = Seen(wrong=[f"{type(e).__name__}: {e}"[:500]])
    seen.seconds = round(time.monotonic() - began, 1)
    return seen


def _is_there(file: Path | None) -> bool:
    return file is not None and file.exists()


def _write(file: Path | None, result: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def line(name: str, seen: Seen) -> str:
    figures = f"{seen.rows} rows, {seen.lost} lost, {seen.doubled} doubled, {seen.hung} hung"
    said = ", ".join(dict.fromkeys(seen.said)) or "nothing"
    wrong = "".join(f"\n    wrong: {text}" for text in seen.wrong)
    return f"{name}: {figures}; said {said}; went on {seen.went_on or '-'}; {seen.seconds} s{wrong}"


def _place(stack: ExitStack, folder: Path) -> Callable[[Path], Place]:
    def started(server: type[Server], name: str) -> Callable[[], Any]:
        return cache(lambda: stack.enter_context(server(folder / name)))

    kafka, registry, s3 = started(Kafka, "kafka"), started(Registry, "registry"), started(S3, "s3")
    return lambda own: Place(own, kafka, registry, s3)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="scenarios whose name has one of these in it")
    parser.add_argument("--batches", type=int, default=500, help="of the run that must not grow; 0 leaves it out")
    parser.add_argument("--folder", help="where the pipelines are made (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
