"""The demo `games`: the main job end to end on this machine, with no server, in any layout.

A producer writes envelopes of twelve games into a Delta table while the pipeline runs in the same process. Each version
of the games' schemas is registered only when its first records are sent, and one game begins half-way. At the end the
tables are compared with what the producer says it sent, which the pipeline never sees.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from deltalake import DeltaTable, Schema

from distributary.audit.verify import Verification, verify
from distributary.config import Pipeline, load
from distributary.engine.batch import BatchReport
from distributary.engine.schemas import registry_of
from distributary.running.bronze.ingest import STREAM as BRONZE
from distributary.running.hops import TwoHop, run
from distributary.running.progress import Display, RunTotals
from distributary.running.report import RunReport
from distributary.running.stream import Run, session_of
from distributary.state.lock import only_run
from distributary_simulate.demo.answers import Comparison, Query, ask, compare
from distributary_simulate.errors import DemoFolderTaken
from distributary_simulate.games.encodings import Format
from distributary_simulate.games.records import VALUE_SCHEMA, Faults, Plan
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth

MARKER: Final = ".distributary-demo"
PIPELINE: Final = "games"
PLAN: Final = Plan(
    games=12,
    versions=3,
    records=2000,
    seed=7,
    faults=Faults(corrupt=24, unknown_id=6, empty_name=4, tombstones=5, bad_envelope=3),
    topic="events",
)
LONGEST_WAIT_SEC: Final = 30.0
"""How long the producer waits for its last records to arrive before it sends on."""

_FILE = """\
# Written by `distributary demo games`. All paths are absolute, so it works from any folder.
pipeline: {pipeline}
layout:   {layout}
source:   {{type: delta, path: {source}}}
registry: {{path: {registry}}}
payload:  {{format: {form}}}
tables:   {{root: {lake}}}
trigger:  {{every: 1 second}}
"""


@dataclass(frozen=True)
class Folder:
    """The demo's folder and what stands in it."""

    root: Path
    layout: str = "fanout"
    form: Format = "protobuf"

    @property
    def file(self) -> Path:
        return self.root / "pipeline.yaml"

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def registry(self) -> Path:
        return self.root / "registry"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def warehouse(self) -> Path:
        return self.root / "spark-warehouse"

    @property
    def truth(self) -> Path:
        return self.root / "truth.json"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Make the folder anew, in place of an earlier demo, and hold it against a second one.

        Raises DemoFolderTaken when somebody else's files are in it, AlreadyRunning.
        """
        if self.root.exists() and (not self.root.is_dir() or (any(self.root.iterdir()) and not self._is_ours())):
            raise DemoFolderTaken(folder=str(self.root))
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / MARKER).write_text("A folder of `distributary demo`: the next demo replaces what is in it.\n")
        with only_run(str(self.root), "demo", name=MARKER):
            for place in (self.source, self.registry, self.lake, self.warehouse):
                shutil.rmtree(place, ignore_errors=True)
            for place in (self.file, self.truth):
                place.unlink(missing_ok=True)
            yield

    def _is_ours(self) -> bool:
        return (self.root / MARKER).is_file()

    def write_pipeline(self) -> Pipeline:
        return self._write(_FILE, pipeline=PIPELINE, layout=self.layout, form=self.form)

    def _write(self, template: str, **names: str) -> Pipeline:
        """The pipeline file, and what it says. `template`: has places for `names`, source, registry and lake."""
        paths = {name: json.dumps(str(getattr(self, name))) for name in ("source", "registry", "lake")}
        self.file.write_text(template.format(**names, **paths), encoding="utf-8")
        return load(self.file)


# -- a run that is fed -------------------------------------------------------------------------------------


class Feeder(threading.Thread):
    """Fills the source while the pipeline runs; then ends the run."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.going: Run | TwoHop | None = None
        self.finished = False
        self._cancelled = False

    def feed(self, going: Run | TwoHop) -> bool:
        """Fill the source, and wait until all of it is taken. False: cancelled before."""
        raise NotImplementedError

    def all_taken(self, going: Run | TwoHop) -> bool:
        """Wait until all that was sent is taken, however long the stream takes to start. False: cancelled before."""
        while going.query is None and not self._cancelled:
            time.sleep(0.05)
        if going.query is not None and not self._cancelled:
            going.query.processAllAvailable()
        return not self._cancelled

    def cancel(self) -> None:
        """Send nothing more."""
        self._cancelled = True

    def arrived(self, rows: int) -> None:
        """So many records, tombstones included, are through the pipeline."""

    def run(self) -> None:
        assert self.going is not None
        try:
            self.finished = self.feed(self.going)
        except BaseException as e:
            self.failure = e
        finally:
            self.going.stop()


Handle = Callable[[Run | TwoHop], None]


def run_fed(config: Pipeline, feeder: Feeder, tally: RunTotals, display: Display, handle: Handle) -> RunReport:
    """Run a pipeline until its feeder ends it.

    Raises JavaMissing, SparkNotStarted, what the feeder raised, and KeyboardInterrupt when it did not finish.
    """

    def begin(going: Run | TwoHop) -> None:
        handle(going)
        feeder.going = going
        display.say("Spark is up, the pipeline runs")
        feeder.start()

    def batch(report: BatchReport) -> None:
        assert feeder.going is not None
        if report.stream == BRONZE:
            return
        tally.add(feeder.going, report)
        display.batch(report, tally)
        feeder.arrived(tally.rows_seen)

    display.say("starting Spark (the first time on a machine, its jars are fetched)")
    try:
        with display:
            report = run(config, progress=batch, handle=begin)
    finally:
        feeder.cancel()
    feeder.join()
    if feeder.failure is not None:
        raise feeder.failure
    if not feeder.finished:
        raise KeyboardInterrupt
    return report


# -- what is produced --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """What is sent at once: (version, games, first position) each, `records` records per game."""

    says: str
    parts: tuple[tuple[int, tuple[str, ...], int], ...]


def rounds(games: Sequence[str], records: int) -> list[Round]:
    """Six rounds of half the records each. The last game is new in the fourth; old versions go on beside new ones."""
    old, new, half = tuple(games[:-1]), (games[-1],), records // 2
    some, rest = old[::2], old[1::2]
    return [
        Round(f"{len(old)} games begin with version 1", ((1, old, 0),)),
        Round(
            "version 2 of half of the games arrives, the others go on with version 1", ((2, some, 0), (1, rest, half))
        ),
        Round("version 2 of the other half arrives", ((2, rest, 0), (1, some, half))),
        Round(f"a new game begins: {new[0]}", ((2, old, half), (1, new, 0), (1, new, half))),
        Round("version 3 of all games arrives", ((3, old, 0), (2, new, 0), (2, new, half))),
        Round("the last records are sent", ((3, old, half), (3, new, 0), (3, new, half))),
    ]


class Producer(Feeder):
    """Sends the rounds, each once the one before it has arrived."""

    def __init__(self, games: Games, folder: Folder, display: Display) -> None:
        super().__init__("producer")
        self.games = games
        self.folder = folder
        self.display = display
        self.truth = Truth()
        self._seen = threading.Condition()
        self._rows_seen = 0

    def cancel(self) -> None:
        with self._seen:
            super().cancel()
            self._seen.notify_all()

    def arrived(self, rows: int) -> None:
        with self._seen:
            self._rows_seen = rows
            self._seen.notify_all()

    def feed(self, going: Run | TwoHop) -> bool:
        self._wait(lambda: going.query is not None)
        for game_round in rounds(self.games.names, self.games.plan.records):
            if self._cancelled:
                return False
            self._send(game_round)
            self._wait(lambda: self._rows_seen >= self.truth.records_total)
        return self.all_taken(going)

    def _send(self, game_round: Round) -> None:
        half = self.games.plan.records // 2
        records = (
            record
            for version, games, start in game_round.parts
            for record in self.games.records(version, list(games), half, start=start)
        )
        sent = write_delta(str(self.folder.source), records, on_written=self._sent)
        self.display.say(f"producer: {game_round.says} ({sent:,} records)")

    def _sent(self, truth: Truth) -> None:
        self.truth.merge(truth)
        self.truth.save(self.folder.truth)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + LONGEST_WAIT_SEC
        with self._seen:
            while not (is_done() or self._cancelled) and time.monotonic() < end:
                self._seen.wait(0.05)


# -- the demo ----------------------------------------------------------------------------------------------


@dataclass
class Result:
    folder: Folder
    report: RunReport
    tally: RunTotals
    comparison: Comparison
    verification: Verification
    query: Query
    seconds: float = 0.0
    newcomer: str = field(default="")

    @property
    def ok(self) -> bool:
        return self.comparison.ok and self.verification.ok


def play(folder: Folder, display: Display, handle: Handle = lambda _: None, plan: Plan = PLAN) -> Result:
    """The whole demo in `folder`. `handle` gets the Run, to stop it from a signal handler.

    Raises DemoFolderTaken, JavaMissing, SparkNotStarted, and KeyboardInterrupt when the run was stopped before its end.
    """
    began = time.monotonic()
    with folder.taken():
        config = _own_warehouse(folder.write_pipeline(), folder)
        DeltaTable.create(str(folder.source), Schema.from_arrow(VALUE_SCHEMA))
        registry = registry_of(config)
        producer = Producer(Games(replace(plan, form=folder.form), registry), folder, display)
        tally = RunTotals()
        report = run_fed(config, producer, tally, display, handle)
        comparison = compare(config, registry, producer.truth)
        query = ask(session_of(config), config, producer.games.names[0])
        return Result(
            folder, report, tally, comparison, verify(config), query, time.monotonic() - began, producer.games.names[-1]
        )


def _own_warehouse(config: Pipeline, folder: Folder) -> Pipeline:
    """Spark SQL makes a folder `spark-warehouse` where it is started; here it belongs into the demo's own."""
    conf = {**config.spark.conf, "spark.sql.warehouse.dir": str(folder.warehouse)}
    return config.model_copy(update={"spark": config.spark.model_copy(update={"conf": conf})})
