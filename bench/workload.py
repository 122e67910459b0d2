"""What the benchmarks run on: simulated games, a source, the product's own pipeline, and the count that proves it."""

from __future__ import annotations

import compileall
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import distributary
from distributary.config import Pipeline, RegistryConfig
from distributary.engine.batch import BatchWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.schemas import Schemas, registry_of
from distributary.names import table_name
from distributary.running.stream import RUN_CONF
from distributary.schemas.registry import Registry, open_registry
from distributary.schemas.registry.compile import ProtobufSchema, compile_schema
from distributary.spark.session import build_session
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary_simulate.games.records import Plan
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games

CORES = 2
"""Task slots of every session, whatever the machine has: the goals are for two cores."""
TOPIC = "events"

P = ParamSpec("P")
T = TypeVar("T")


class WrongRows(Exception):
    """What was measured did not do its work: there is no figure."""


@dataclass(frozen=True)
class Place:
    """Where a benchmark works, and how large. `quick`: tiny sizes, to see that it runs; its figures mean nothing."""

    root: Path
    quick: bool

    def size(self, whole: T, quick: T) -> T:
        return quick if self.quick else whole

    def part(self, name: str) -> Place:
        """A folder of its own for one case."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return Place(folder, self.quick)


class Workload:
    """Some games with their registry, in one folder."""

    def __init__(self, root: Path, games: int) -> None:
        self.root = root
        self.registry: Registry = open_registry(RegistryConfig(path=str(root / "registry")))
        self.games = Games(Plan(games=games, versions=12, records=1000, topic=TOPIC), self.registry)
        self.names = self.games.names

    def config(self, name: str, source: Mapping[str, Any], **more: Any) -> Pipeline:
        """A pipeline over `source` with tables of its own, batch after batch."""
        given = {
            "pipeline": name,
            "source": source,
            "registry": {"path": str(self.root / "registry")},
            "tables": {"root": str(self.root / name)},
            "trigger": "continuous",
            **more,
        }
        return Pipeline.model_validate(given)

    def delta_source(self, folder: str = "source") -> dict[str, Any]:
        return {"type": "delta", "path": str(self.root / folder)}

    def feed_delta(
        self, rows: int | Mapping[str, int], *, version: int = 1, start: int = 0, folder: str = "source"
    ) -> None:
        """Append envelopes to the Delta source, `rows` of every game or as the mapping says, in two files at least."""
        table = self.games.envelopes_table(version, rows, start=start)
        write_delta(str(self.root / folder), table, rows_per_commit=max(1, min(100_000, -(-table.num_rows // CORES))))

    def compiled(self, game: str, version: int = 1) -> ProtobufSchema:
        """Descriptors of a game's event."""
        return compile_schema(self.games.register(version, [game])[game].schema, self.registry)


SHUFFLE = "spark.sql.shuffle.partitions"
SPARK_TUNED = {SHUFFLE: str(2 * CORES), "spark.sql.adaptive.enabled": "true"}
"""Settings with which Spark's own MERGE is fast at these sizes."""


def session(heap: str = "2g", packages: Sequence[str] = (), **conf: str) -> SparkSession:
    """A session with the settings of a pipeline's run. `packages`: more jars."""
    return build_session(
        "distributary bench",
        master=f"local[{CORES}]",
        conf={**RUN_CONF, "spark.driver.memory": heap, **conf},
        packages=packages,
        local_state=True,
    )


def batch_writer(spark: SparkSession, config: Pipeline) -> BatchWriter:
    """What a run gives each of its batches to."""
    store = Store.of(config.tables)
    ledger = Ledger(config.state_root, config.pipeline, store)
    return BatchWriter(config, Fanout(spark, config, Schemas(registry_of(config)), store), ledger)


def table_uri(config: Pipeline, game: str) -> str:
    return f"{config.tables.root}/{table_name(game, config.tables.name)}"


def count(uri: str) -> int:
    """Rows of a table by its Parquet files' own footers."""
    return int(DeltaTable(uri).to_pyarrow_dataset().count_rows())


def check_tables(uris: Mapping[str, str], expected: Mapping[str, int] | int) -> None:
    """Raises WrongRows when a table (name -> address) does not hold the rows expected of it."""
    wrong = {}
    for name, uri in uris.items():
        wanted = expected if isinstance(expected, int) else expected[name]
        found = count(uri)
        if found != wanted:
            wrong[name] = f"{found} rows, not {wanted}"
    if wrong:
        raise WrongRows(f"{len(wrong)} of {len(uris)} tables: {dict(list(wrong.items())[:5])}")


def check_games(config: Pipeline, expected: Mapping[str, int] | int, games: list[str] | None = None) -> None:
    """Raises WrongRows when a game's table does not hold the rows expected of it."""
    names = games if games is not None else list(expected) if not isinstance(expected, int) else []
    check_tables({game: table_uri(config, game) for game in names}, expected)


def in_child(run: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `run` in a fresh process, so that no JVM or memory of an earlier case is in its figures."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *args, **kwargs).result()


class ReadyProcesses:
    """Within its `with` plain processes, one for each of `given`, that `prepare(*given)` has made ready; each `round`
    has all of them `work` once. `prepared`: what `prepare` answered in each."""

    def __init__(self, prepare: Callable[..., T], given: Sequence[tuple[Any, ...]], work: Callable[[], None]) -> None:
        self._prepare, self._given, self._work = prepare, given, work
        self.prepared: list[Any] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, mp_context=context) for _ in self._given]
        ready = [pool.submit(self._prepare, *given) for pool, given in zip(self._pools, self._given, strict=True)]
        self.prepared = [future.result() for future in ready]
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def round(self) -> float:
        """Seconds until all have done their work."""
        began = time.monotonic()
        for future in [pool.submit(self._work) for pool in self._pools]:
            future.result()
        return time.monotonic() - began


def as_installed(package: Path = Path(distributary.__file__).parent) -> None:
    """Have our modules compiled, as pip leaves them. Where Python may keep no bytecode (PYTHONDONTWRITEBYTECODE),
    each process that is measured would compile them anew: a quarter of what `status` takes."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    compileall.compile_dir(str(package), quiet=2)


def say(text: str) -> None:
    """Progress, for who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def game_event(rnd: random.Random) -> dict[str, Any]:
    """Eight fields of the ten that payloads of any format have in the benchmarks of their decoders."""
    return {
        "user": f"user{rnd.randrange(10**6)}",
        "score": rnd.randrange(10**9),
        "ratio": rnd.random(),
        "stable": rnd.random() < 0.9,
        "boss": None if rnd.random() < 0.3 else f"boss {rnd.randrange(100)}",
        "kind": rnd.choice("ABC"),
        "levels": [rnd.randrange(50) for _ in range(rnd.randrange(4))],
        "place": {"x": rnd.randrange(1000), "y": 0.5},
    }
