"""The demo `declarative`: bronze, silver per game, gold and unified gold as a declarative pipeline, on this machine.

Between the updates of one runner a producer sends a new schema version and a new game; nothing is restarted. At the end
gold is shown, and the tables are compared with what was sent, which the pipeline never sees.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.audit.verify import Verification
from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets
from distributary.declarative.runner import Options, Runner, RunReport
from distributary.declarative.verify import verify
from distributary.engine.messages.task_spec import ORIGIN
from distributary.engine.schemas import registry_of
from distributary_simulate.demo.answers import by_version
from distributary_simulate.demo.games import Folder
from distributary_simulate.games.records import Faults, Plan
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth

PIPELINE: Final = "games"
PLAN: Final = Plan(
    games=3, versions=3, records=500, seed=7,
    faults=Faults(corrupt=12, unknown_id=4, empty_name=3, tombstones=3, bad_envelope=3), topic="events",
)  # fmt: skip

_FILE = """\
# Written by `distributary demo declarative`. All paths are absolute, so it works from any folder.
pipeline: {pipeline}
layout:   declarative
source:   {{type: delta, path: {source}}}
registry: {{path: {registry}}}
tables:   {{root: {lake}}}
spark:    {{master: "local[2]"}}
"""

Tell = Callable[[Mapping[str, Any]], None]
Parts = tuple[tuple[int, tuple[str, ...]], ...]


class DeclarativeFolder(Folder):
    """The demo's folder."""

    def write_pipeline(self) -> Pipeline:
        return self._write(_FILE, pipeline=PIPELINE)


def rounds(games: tuple[str, ...]) -> list[tuple[str, Parts]]:
    """What is sent before each update: (version, games) each, with all the records of the plan."""
    old, new = games[:-1], games[-1:]
    return [
        (f"{len(old)} games begin with version 1", ((1, old),)),
        (f"version 2 of all of them arrives, and a new game: {new[0]}", ((2, old), (1, new))),
        ("version 3 arrives", ((3, games), (2, new))),
    ]


@dataclass
class Result:
    """`gold`: rows of unified gold, as it is shown. `differences`: between what was sent and the tables, in words."""

    report: RunReport
    verification: Verification
    gold: list[tuple[Any, ...]]
    columns: tuple[str, ...]
    rows_sent: int
    rows_found: int
    differences: list[str]
    seconds: float

    @property
    def ok(self) -> bool:
        return self.report.ok and self.verification.ok and not self.differences

    def to_json(self) -> dict[str, Any]:
        comparison = {"rows_sent": self.rows_sent, "rows_found": self.rows_found, "differences": self.differences}
        gold = [dict(zip(self.columns, row, strict=True)) for row in self.gold]
        return {"kind": "demo", "ok": self.ok, "seconds": round(self.seconds, 1), **comparison, "gold": gold}


class _Play:
    """The producer between the updates, and the question to gold after the last one."""

    def __init__(self, folder: Folder, config: Pipeline, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say
        self.datasets = Datasets.of(config)
        self.games = Games(PLAN, registry_of(config))
        self.left = rounds(tuple(self.games.names))
        self.truth = Truth()
        self.gold: list[tuple[Any, ...]] = []
        self.columns: tuple[str, ...] = ()
        self.runner: Runner | None = None

    def send(self) -> None:
        says, round_parts = self.left.pop(0)
        sent = sum(
            write_delta(str(self.folder.source), self.games.records(v, g), on_written=self._sent)
            for v, g in round_parts
        )
        self.say(f"producer: {says} ({sent:,} records)")

    def _sent(self, truth: Truth) -> None:
        self.truth.merge(truth)
        self.truth.save(self.folder.truth)

    def after_update(self, spark: SparkSession) -> None:
        if self.left:
            self.send()
            return
        table = self.datasets.sql(self.datasets.unified)
        answer = spark.sql(
            f"SELECT route AS game, count(*) AS players, sum(events) AS events, min(first_event) AS first_event, "
            f"max(last_event) AS last_event FROM {table} GROUP BY route ORDER BY route"
        )
        self.columns, self.gold = tuple(answer.columns), [tuple(row) for row in answer.collect()]
        assert self.runner is not None
        self.runner.stop()


def play(folder: Folder, tell: Tell, say: Callable[[str], None], handle: Callable[[Runner], None]) -> Result:
    """The whole demo. `tell` gets what the runner tells; `handle` the runner, to stop it from a signal handler.

    Raises DemoFolderTaken, JavaMissing, SparkNotStarted, and KeyboardInterrupt when it was stopped before its end.
    """
    began = time.monotonic()
    with folder.taken():
        config = folder.write_pipeline()
        playing = _Play(folder, config, say)
        playing.send()
        runner = Runner(
            config,
            folder.root,
            Options(every_sec=0.0),
            tell,
            playing.after_update,
            lambda: handle(runner),
        )
        playing.runner = runner
        say("starting Spark (the first time on a machine, its jars are fetched)")
        report = runner.go()
        if not playing.gold:
            raise KeyboardInterrupt
        rows_found, differences = compare(config, playing.games, playing.truth)
        return Result(
            report, verify(config), playing.gold, playing.columns, playing.truth.rows_total, rows_found, differences,
            time.monotonic() - began,
        )  # fmt: skip


def compare(config: Pipeline, games: Games, truth: Truth) -> tuple[int, list[str]]:
    """(rows in silver, differences to what was sent), counted by game and schema version."""
    datasets, total = Datasets.of(config), 0
    differences: list[str] = []
    for game, sent in sorted(truth.rows.items()):
        table = DeltaTable(datasets.uri(datasets.silver(game))).to_pyarrow_table(columns=[ORIGIN])
        ids = Counter(pc.struct_field(table.column(ORIGIN), "schema_id").to_pylist())
        versions = {games.register(v, [game])[game].schema.id: v for v in sent}
        rows_by_version = {versions.get(schema_id, 0): rows for schema_id, rows in ids.items()}
        total += table.num_rows
        differences += by_version(game, sent, rows_by_version)
    return total, differences
