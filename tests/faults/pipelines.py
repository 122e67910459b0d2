"""A pipeline whose neighbours fail: records of `tests.chaos` go in, it runs here, its tables are compared."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from distributary.config import RegistryConfig, load
from distributary.engine.batch import BatchReport
from distributary.errors import DistributaryError
from distributary.running import stream as product
from distributary.schemas.registry import open_registry
from tests.chaos import tables
from tests.chaos.messages import GAMES, Producer
from tests.processes import SMALL_SPARK
from tests.services.kafka import Kafka

BOUND_SEC = 300.0
"""Whatever a neighbour does, a run says something before this."""


@dataclass
class Attempt:
    """How one run ended: an error's condition (or its type), its words."""

    condition: str
    words: str
    seconds: float


@dataclass
class Seen:
    """What a scenario has come to. `wrong`: what should have been otherwise."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    hung: int = 0
    said: list[str] = field(default_factory=list)
    words: str = ""
    went_on: str = ""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Hung(Exception):
    """A run said nothing for `BOUND_SEC`."""


class Piped:
    """`keys` go into the pipeline file over the defaults. `broker`: records go to a topic of it, else to a Delta table.
    `register`: of another registry than the embedded one. `options`: of the store that `tables.root` is in;
    `straight`: those by which its tables are compared, past all faults."""

    def __init__(
        self,
        root: Path,
        keys: Mapping[str, Any] | None = None,
        *,
        broker: Kafka | None = None,
        register: Callable[[str, str], int] | None = None,
        options: Mapping[str, str] | None = None,
        straight: Mapping[str, str] | None = None,
        seed: int = 1,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.file = root / "pipeline.yaml"
        self.options = dict(options or {})
        self._straight = dict(straight or options or {})
        self.broker, self.topic = broker, ""
        self._sent = 0
        if register is None:
            registry = open_registry(RegistryConfig(path=str(root / "registry")))

            def register(subject: str, text: str) -> int:
                return registry.register(subject, text).schema.id

        self.producer = Producer(random.Random(seed), register)
        self.attempts: list[Attempt] = []
        self.reports: list[BatchReport] = []
        self.keys = self._defaults()
        self.configure(keys or {})

    def _defaults(self) -> dict[str, Any]:
        if self.broker is not None:
            self.topic = self.broker.create_topic(f"events-{self.root.name}")
            source: Any = {**self.broker.source(self.topic), "starting_offsets": "earliest"}
        else:
            source = {"type": "delta", "path": str(self.root / "source"), "max_files_per_batch": 1}
        return {
            "pipeline": "faults",
            "source": source,
            "registry": {"path": str(self.root / "registry")},
            "tables": {"root": str(self.root / "lake"), "retry_after": "1 second"},
            "quarantine": {"max_ratio": 1.0},
            "state": str(self.root / "state"),
            "trigger": "continuous",
            "spark": SMALL_SPARK,
        }

    def configure(self, keys: Mapping[str, Any]) -> None:
        """Over what the file has; a `registry` takes the place of the one before."""
        for key, value in keys.items():
            before: Any = self.keys.get(key)
            both = isinstance(value, dict) and isinstance(before, dict) and key != "registry"
            self.keys[key] = {**before, **value} if both else value
        if self.options:
            self.keys["tables"]["storage_options"] = self.options
        self.file.write_text(yaml.safe_dump(self.keys), encoding="utf-8")

    # -- what comes in -----------------------------------------------------------------------------------------

    def feed(self, count: int = 60, progress: float = 1.0) -> None:
        self.send(list(self.producer.records(count, progress)))

    def send(self, values: list[bytes | None], partition: int | None = None) -> None:
        first, self._sent = self._sent, self._sent + len(values)
        if self.broker is not None:
            self.broker.send(self.topic, [(n % 2 if partition is None else partition, v) for n, v in enumerate(values)])
            return
        columns = {
            "value": pa.array(values, pa.binary()),
            "topic": pa.repeat("events", len(values)),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), len(values)),
            "offset": pa.array(range(first, self._sent), pa.int64()),
            "timestamp": pa.array(range(len(values)), pa.timestamp("us", tz="UTC")),
        }
        write_deltalake(str(self.root / "source"), pa.table(columns), mode="append")

    # -- runs --------------------------------------------------------------------------------------------------

    def run(self) -> Attempt:
        """Take what is there; never raises for what the run says."""
        began = time.monotonic()
        errors: list[BaseException] = []

        def go() -> None:
            try:
                product.run(load(self.file), once=True, progress=self.reports.append)
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        thread.join(BOUND_SEC)
        if thread.is_alive():
            raise Hung(f"a run of {self.file} said nothing for {BOUND_SEC:g} s")
        return self._note(errors, began)

    def _note(self, errors: list[BaseException], began: float) -> Attempt:
        condition, words = "", ""
        if errors:
            error = errors[0]
            condition = error.condition if isinstance(error, DistributaryError) else type(error).__name__
            words = str(error)
        attempt = Attempt(condition, words, time.monotonic() - began)
        self.attempts.append(attempt)
        return attempt

    @contextmanager
    def going(self) -> Iterator[Going]:
        """A run that goes on, and is stopped at the end of the block."""
        run = Going(self)
        try:
            yield run
        finally:
            run.stop()

    # -- what came out -----------------------------------------------------------------------------------------

    def rows(self, game: str) -> list[dict[str, Any]]:
        root = str(self.keys["tables"]["root"])
        if "://" not in root:
            return tables.read(Path(root) / game)
        return self._read(f"{root}/{game}")

    def quarantine(self) -> list[Any]:
        state = str(self.keys["state"])
        found = self._read(f"{state}/quarantine") if "://" in state else tables.read(Path(state) / "quarantine")
        return [row for row in found if row["state"] != "replayed"]

    def _read(self, uri: str) -> list[Any]:
        try:
            return list(DeltaTable(uri, storage_options=self._straight).to_pyarrow_table().to_pylist())
        except TableNotFoundError:
            return []

    def compare(self, seen: Seen) -> None:
        """Every row of every table against what was sent."""
        truth = self.producer.truth
        for game in GAMES:
            columns = truth.columns(game) if game in truth.rows else set()
            found = Counter(tables.plain(row, columns) for row in (self.rows(game) if columns else ()))
            wanted = Counter(
                tables.plain({n: row.get(n) for n in columns}, columns) for row in truth.rows.get(game, ())
            )
            seen.lost += (wanted - found).total()
            seen.doubled += (found - wanted).total()
        aside = len(self.quarantine())
        seen.lost += max(0, truth.bad - aside)
        seen.doubled += max(0, aside - truth.bad)
        seen.rows = truth.good + truth.bad

    def is_right(self) -> bool:
        """Is every row there, once?"""
        seen = Seen()
        self.compare(seen)
        return not seen.lost and not seen.doubled


class Going:
    """A continuous run in a thread."""

    def __init__(self, piped: Piped) -> None:
        self._piped = piped
        self._runs: list[Any] = []
        self.errors: list[BaseException] = []
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def _go(self) -> None:
        try:
            piped = self._piped
            product.run(load(piped.file), progress=piped.reports.append, handle=self._runs.append)
        except BaseException as e:
            self.errors.append(e)

    def wait(self, condition: Callable[[], bool], timeout_sec: float = 240.0) -> bool:
        """Until it holds, or the run has ended."""
        end = time.monotonic() + timeout_sec
        while time.monotonic() < end and self._thread.is_alive():
            if condition():
                return True
            time.sleep(0.1)
        return condition()

    def wait_right(self, timeout_sec: float = 240.0) -> bool:
        """Until all that was sent is where it belongs."""
        return self.wait(self._piped.is_right, timeout_sec)

    def stop(self) -> None:
        for run in self._runs:
            run.stop()
        self._thread.join(BOUND_SEC)
        if self._thread.is_alive():
            raise Hung(f"a run of {self._piped.file} did not stop in {BOUND_SEC:g} s")
        if self.errors:
            self._piped._note(self.errors, self._began)


@dataclass
class Place:
    """Where a scenario works: a folder of its own, and servers that all share."""

    folder: Path
    kafka: Callable[[], Kafka]
    registry: Callable[[], Any]
    s3: Callable[[], Any]


def concluded(piped: Piped, seen: Seen | None = None) -> Seen:
    """Run to the end with all neighbours well, and compare."""
    seen = seen or Seen()
    last = piped.run()
    if last.condition:
        seen.wrong.append(f"with all well again a run ended with {last.condition}: {last.words[:300]}")
    piped.compare(seen)
    seen.said = [attempt.condition for attempt in piped.attempts if attempt.condition]
    return seen


def expect(seen: Seen, attempt: Attempt, *conditions: str, names: tuple[str, ...] = ()) -> None:
    """It ended with one of these, and its words hold all of `names`."""
    if attempt.condition not in conditions:
        seen.wrong.append(f"{attempt.condition or 'no error'}, not {' or '.join(conditions)}: {attempt.words[:300]}")
    missing = [name for name in names if name not in attempt.words]
    if missing:
        seen.wrong.append(f"nothing of {missing} in: {attempt.words[:300]}")
    seen.words = seen.words or attempt.words
