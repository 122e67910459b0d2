"""The demo `games`: the main job end to end on this machine, with no server.

A producer writes envelopes of twelve games into a Delta table while the pipeline runs in the same process. Each version
of the games' schemas is registered only when its first records are sent, and one game begins half-way. At the end the
tables are compared with what the producer says it sent, which the pipeline never sees.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from pyspark.sql import SparkSession

from distributary.batch import BatchReport
from distributary.config import Pipeline, load
from distributary.errors import DemoFolderTaken
from distributary.fanout.orders import ORIGIN
from distributary.names import quoted, table_name
from distributary.pipeline import Run, RunReport, registry_of, run, session_of
from distributary.progress import Display, Tally
from distributary.registry import Registry
from distributary.simulate.games import Games
from distributary.simulate.records import REASONS, VALUE_SCHEMA, Faults, Plan
from distributary.simulate.schemas import game_subject
from distributary.simulate.sinks import write_delta
from distributary.simulate.truth import Truth
from distributary.state.ledger import Ledger, totals
from distributary.state.lock import only_run
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store
from distributary.verify import Verification, verify

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
source:   {{type: delta, path: {source}}}
registry: {{path: {registry}}}
tables:   {{root: {lake}}}
trigger:  {{every: 1 second}}
"""


@dataclass(frozen=True)
class Folder:
    """The demo's folder and what stands in it."""

    root: Path

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
            for made in (self.source, self.registry, self.lake, self.warehouse):
                shutil.rmtree(made, ignore_errors=True)
            for made in (self.file, self.truth):
                made.unlink(missing_ok=True)
            yield

    def _is_ours(self) -> bool:
        return (self.root / MARKER).is_file()

    def write_pipeline(self) -> Pipeline:
        paths = {name: json.dumps(str(getattr(self, name))) for name in ("source", "registry", "lake")}
        self.file.write_text(_FILE.format(pipeline=PIPELINE, **paths), encoding="utf-8")
        return load(self.file)


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


class Producer(threading.Thread):
    """Sends the rounds, each once the one before it has arrived; then ends the run."""

    def __init__(self, games: Games, folder: Folder, display: Display) -> None:
        super().__init__(name="producer", daemon=True)
        self.games = games
        self.folder = folder
        self.display = display
        self.truth = Truth()
        self.failure: BaseException | None = None
        self.going: Run | None = None
        self.finished = False
        self._seen = threading.Condition()
        self._rows_seen = 0
        self._cancelled = False

    def cancel(self) -> None:
        """Send nothing more."""
        with self._seen:
            self._cancelled = True
            self._seen.notify_all()

    def arrived(self, rows: int) -> None:
        """So many records, tombstones included, are through the pipeline."""
        with self._seen:
            self._rows_seen = rows
            self._seen.notify_all()

    def run(self) -> None:
        assert self.going is not None
        try:
            self.finished = self._send_all(self.going)
        except BaseException as e:
            self.failure = e
        finally:
            self.going.stop()

    def _send_all(self, going: Run) -> bool:
        self._wait(lambda: going.query is not None)
        for one in rounds(self.games.names, self.games.plan.records):
            if self._cancelled:
                return False
            self._send(one)
            self._wait(lambda: self._rows_seen >= self.truth.records_total)
        if going.query is not None and not self._cancelled:
            going.query.processAllAvailable()
        return not self._cancelled

    def _send(self, one: Round) -> None:
        half = self.games.plan.records // 2
        records = (
            record
            for version, games, start in one.parts
            for record in self.games.records(version, list(games), half, start=start)
        )
        sent = write_delta(str(self.folder.source), records, on_written=self._sent)
        self.display.say(f"producer: {one.says} ({sent:,} records)")

    def _sent(self, truth: Truth) -> None:
        self.truth.merge(truth)
        self.truth.save(self.folder.truth)

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + LONGEST_WAIT_SEC
        with self._seen:
            while not (done() or self._cancelled) and time.monotonic() < end:
                self._seen.wait(0.05)


Handle = Callable[[Run], None]

# -- the demo ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The tables against the producer's own counts. `differences`: in words, empty when all is as it was sent."""

    rows_sent: int
    rows_found: int
    distinct_events: int
    quarantined_sent: int
    quarantined_found: int
    tombstones_sent: int
    tombstones_found: int
    differences: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class Query:
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass
class Result:
    folder: Folder
    report: RunReport
    tally: Tally
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
        producer = Producer(Games(plan, registry), folder, display)
        tally = Tally()
        report = _run(config, producer, tally, display, handle)
        comparison = compare(config, registry, producer.truth)
        query = ask(session_of(config), config, producer.games.names[0])
        return Result(
            folder, report, tally, comparison, verify(config), query, time.monotonic() - began, producer.games.names[-1]
        )


def _own_warehouse(config: Pipeline, folder: Folder) -> Pipeline:
    """Spark SQL makes a folder `spark-warehouse` where it is started; here it belongs into the demo's own."""
    conf = {**config.spark.conf, "spark.sql.warehouse.dir": str(folder.warehouse)}
    return config.model_copy(update={"spark": config.spark.model_copy(update={"conf": conf})})


def _run(config: Pipeline, producer: Producer, tally: Tally, display: Display, handle: Handle) -> RunReport:
    def begin(going: Run) -> None:
        handle(going)
        producer.going = going
        display.say("Spark is up, the pipeline runs")
        producer.start()

    def batch(report: BatchReport) -> None:
        assert producer.going is not None
        tally.add(producer.going, report)
        display.batch(report, tally)
        producer.arrived(tally.rows_seen)

    display.say("starting Spark (the first time on a machine, its jars are fetched)")
    try:
        with display:
            report = run(config, progress=batch, handle=begin)
    finally:
        producer.cancel()
    producer.join()
    if producer.failure is not None:
        raise producer.failure
    if not producer.finished:
        raise KeyboardInterrupt
    return report


# -- the check ---------------------------------------------------------------------------------------------


def compare(config: Pipeline, registry: Registry, truth: Truth) -> Comparison:
    """Count the tables' rows by game and schema version, with nothing of the pipeline's own counts but tombstones."""
    differences: list[str] = []
    found_rows = distinct = 0
    for game, sent in sorted(truth.rows.items()):
        rows = DeltaTable(f"{config.tables.root}/{table_name(game, config.tables.name)}").to_pyarrow_table(
            columns=["event_timestamp", ORIGIN]
        )
        found_rows += rows.num_rows
        distinct += len(pc.unique(rows.column("event_timestamp")))
        found = _by_version(rows, registry, game)
        differences += [
            f"{game} version {version}: {sent.get(version, 0)} rows sent, {found.get(version, 0)} in the table"
            for version in sorted({*sent, *found})
            if sent.get(version, 0) != found.get(version, 0)
        ]
    if distinct != found_rows:
        differences.append(f"{found_rows - distinct} rows are in a table twice")
    kept = _quarantined(config)
    for fault, reason in REASONS.items():
        if truth.fault_total(fault) != kept.get(reason, 0):
            differences.append(f"{reason}: {truth.fault_total(fault)} sent, {kept.get(reason, 0)} in the quarantine")
    passed = sum(e.tombstones for e in totals(_ledger(config).entries()).values())
    if passed != truth.tombstones:
        differences.append(f"tombstones: {truth.tombstones} sent, {passed} seen")
    return Comparison(
        truth.rows_total, found_rows, distinct, truth.quarantined, sum(kept.values()), truth.tombstones, passed,
        tuple(differences),
    )  # fmt: skip


def _by_version(rows: pa.Table, registry: Registry, game: str) -> dict[int, int]:
    subject = game_subject(game)
    versions = {registry.version(subject, v).schema.id: v for v in registry.versions(subject)}
    counts = pc.value_counts(pc.struct_field(rows.column(ORIGIN), "schema_id")).to_pylist()
    return {versions[c["values"]]: c["counts"] for c in counts}


def _quarantined(config: Pipeline) -> Mapping[str, int]:
    uri = quarantine_uri(config.state_root)
    if not DeltaTable.is_deltatable(uri):
        return {}
    reasons = DeltaTable(uri).to_pyarrow_table(columns=["reason"]).column("reason")
    return {c["values"]: c["counts"] for c in pc.value_counts(reasons).to_pylist()}


def _ledger(config: Pipeline) -> Ledger:
    return Ledger(config.state_root, config.pipeline, Store.of(config.tables))


# -- the query ---------------------------------------------------------------------------------------------


def ask(spark: SparkSession, config: Pipeline, game: str) -> Query:
    """How a game's columns filled from version to version, by plain Spark SQL."""
    table = f"{config.tables.root}/{table_name(game, config.tables.name)}"
    filled = ",\n       ".join(f"count({quoted(f'col_{game}_{v}')}) AS with_column_{v}" for v in (1, 2, 3))
    sql = (
        f"SELECT {ORIGIN}.schema_id AS schema_id, count(*) AS rows, count(DISTINCT user_name) AS players,\n"
        f"       {filled}\nFROM delta.{quoted(table)}\nGROUP BY 1 ORDER BY 1"
    )
    # A session of its own: the run's settings are for streams, and 200 shuffle partitions are for clusters.
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    answer = own.sql(sql)
    return Query(sql, tuple(answer.columns), tuple(tuple(row) for row in answer.collect()))
