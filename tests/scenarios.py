"""Whole pipelines in a folder: a source, a registry, a producer, runs, and what came out of them.

Every record gets an offset of its own, so the one check that every test can make is `Scenario.check`: each record sent
is in one table, or in the quarantine, or a tombstone; never in two places, never in none.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError

from distributary.config import Pipeline, RegistryConfig, load
from distributary.engine.batch import BatchReport
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.replay import Replay, ReplayReport
from distributary.engine.schemas import Schemas
from distributary.errors import Reason
from distributary.running import hops
from distributary.running.report import RunReport
from distributary.running.stream import run, session_of
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import Reference, Registry, open_registry
from distributary.state.divisions import parts
from distributary.state.ledger import Entry, Ledger, totals
from distributary.tables.store import Store
from distributary_simulate.games.events import message_class
from distributary_simulate.games.records import Plan, Record
from distributary_simulate.games.schemas import WRAPPER_TEXT
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth
from tests.state_folders import unknown_names

SOURCE_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
TOPIC = "events"

_WRAPPER = message_class(WRAPPER_TEXT, "wrapper")


class Killed(Exception):
    """Stands for the end of the process; nothing in the product catches it."""


@contextmanager
def dying(
    target: Any, name: str, *, nth: int = 1, after: bool = False, raises: tuple[type[Exception], ...] = (Killed,)
) -> Iterator[None]:
    """The `nth` call of `target.name` raises Killed: before it does anything, or `after` it did everything. The block
    has to raise one of `raises` then."""
    whole, calls = getattr(target, name), count(1)

    def killed(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        result = whole(*args, **kwargs) if after or number < nth else None
        if number >= nth:
            raise Killed(name)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, killed)
        with pytest.raises(raises):
            yield


def message(text: str, name: str, **values: Any) -> bytes:
    """One message of a schema text as bytes."""
    return bytes(message_class(text, name)(**values).SerializeToString(deterministic=True))


def merged(into: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(into)
    for key, value in given.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
    return result


class Scenario:
    """A pipeline over a Delta source with an embedded registry, all below `root`.

    `keys` go into the pipeline file, over the defaults here; a `source` of another type replaces ours.
    """

    def __init__(self, root: Path, *, registry: Registry | None = None, **keys: Any) -> None:
        self.root = root
        self.source = str(root / "source")
        self.tables = root / "tables"
        self.registry = registry or open_registry(RegistryConfig(path=str(root / "registry")))
        self.file = root / "pipeline.yaml"
        self.config = self.configure(**keys)
        self.sent: dict[tuple[int, int], bytes | None] = {}
        self.truth = Truth()
        self.versions: dict[int, int] = {}
        self.batches: list[BatchReport] = []
        self._envelope_id: int | None = None

    def configure(self, **keys: Any) -> Pipeline:
        """Write the pipeline file and read it."""
        defaults: dict[str, Any] = {
            "pipeline": "games",
            "source": {"type": "delta", "path": self.source},
            "registry": {"path": str(self.root / "registry")},
            "tables": {"root": str(self.tables), "retry_after": "1 second"},
            "quarantine": {"max_ratio": 1.0},
            "trigger": "once",
        }
        if keys.get("source", {}).get("type", "delta") != "delta":
            del defaults["source"]
        if keys.get("tables", {}).get("managed"):
            del defaults["tables"]["root"]
        if "url" in keys.get("registry", {}):
            del defaults["registry"]
        self.file.write_text(yaml.safe_dump(merged(defaults, keys), allow_unicode=True), encoding="utf-8")
        self.config = load(self.file)
        return self.config

    # -- schemas and records ---------------------------------------------------------------------------------

    def schema(self, subject: str, text: str, references: Sequence[Reference] = ()) -> int:
        """Register a text, whatever the versions before it look like; its id."""
        self.registry.set_compatibility(subject, "NONE")
        return self.registry.register(subject, text, references).schema.id

    @property
    def envelope_id(self) -> int:
        if self._envelope_id is None:
            self._envelope_id = self.schema(f"{TOPIC}-value", WRAPPER_TEXT)
        return self._envelope_id

    def envelope(self, route: str | None, payload: bytes | None, *, wrapped_id: int | None = None) -> bytes:
        """A framed envelope; None leaves a field out."""
        body = _WRAPPER(game_name=route, schema_id=wrapped_id, payload=payload).SerializeToString()
        return frame(self.envelope_id, body)

    def event(self, route: str, schema_id: int, body: bytes, index: Sequence[int] = (0,)) -> bytes:
        """A framed envelope with a framed payload."""
        return self.envelope(route, frame(schema_id, body, index), wrapped_id=schema_id)

    def send(self, *values: bytes | None, partition: int = 0) -> list[int]:
        """Append records to the source in one commit; their offsets."""
        first = len(self.sent)
        offsets = list(range(first, first + len(values)))
        self.sent.update({(partition, o): v for o, v in zip(offsets, values, strict=True)})
        append_source(self.source, values, partition, first)
        return offsets

    def games(self, plan: Plan) -> Games:
        return Games(plan, self.registry)

    def send_games(self, games: Games, version: int, only: Sequence[str] | None = None, **more: Any) -> list[Record]:
        """Register a version and send its records, in one commit."""
        for registered in games.register(version, only).values():
            self.versions[registered.schema.id] = version
        records = list(games.records(version, only, **more))
        self.truth.merge(Truth.of(records))
        self.send(*(r.value for r in records))
        return records

    # -- runs ------------------------------------------------------------------------------------------------

    def streams(self) -> list[tuple[Pipeline, tuple[int, ...]]]:
        """What runs, each in a process of its own: the pipeline or a share of it, and its hops."""
        return [(self.config, hops.BOTH)]

    def run(self) -> RunReport:
        """Take what is there, to the end."""
        return run(self.config, once=True, progress=self.took)

    def running(self) -> Running:
        """A run that goes on in a thread of its own until the block ends."""
        return Running(self)

    def took(self, report: BatchReport) -> None:
        self.batches.append(report)

    def replay(self, route: str | None = None, reasons: Iterable[Reason] | None = None) -> ReplayReport:
        """As the command `replay` does it, in a process that knows nothing yet."""
        return self.replayer().run(route, None if reasons is None else set(reasons))

    def replayer(self) -> Replay:
        store = Store.of(self.config.tables)
        ledger = Ledger(self.config.state_root, self.config.pipeline, store)
        fanout = Fanout(session_of(self.config), self.config, Schemas(open_registry_of(self.config)), store)
        fanout.on_spark |= {e.route for e in ledger.newest.values() if e.engine == "spark" and e.route}
        return Replay(self.config, ledger, fanout)

    # -- what came out ---------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.tables / name

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.path(name))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table's rows in the order of their offsets."""
        try:
            found = self.table(name).to_pyarrow_table().to_pylist()
        except DeltaProtocolError:
            # Type widening: only Spark reads it.
            spark = session_of(self.config)
            found = spark.read.format("delta").load(str(self.path(name))).toArrow().to_pylist()
        return sorted(found, key=lambda r: (r["_origin"]["partition"], r["_origin"]["offset"]))

    def values(self, name: str, column: str) -> list[Any]:
        return [row[column] for row in self.rows(name)]

    def columns(self, name: str) -> dict[str, str]:
        """Column -> type, of all columns but the origin."""
        schema = pa.schema(self.table(name).schema().to_arrow())
        return {f.name: str(f.type) for f in schema if f.name != "_origin"}

    def table_names(self) -> list[str]:
        return sorted(p.parent.name for p in self.tables.glob("*/_delta_log"))

    def quarantined(self, *states: str) -> list[dict[str, Any]]:
        """The rows of all its quarantines in these states (default: those that were not replayed)."""
        wanted = states or ("open", "claimed")
        found: list[dict[str, Any]] = []
        for part in parts(self.config, Store()):
            path = Path(part.state_root) / "quarantine"
            if (path / "_delta_log").exists():
                found += [r for r in DeltaTable(path).to_pyarrow_table().to_pylist() if r["state"] in wanted]
        return sorted(found, key=lambda r: (r["partition"], r["offset"]))

    def reasons(self) -> dict[str, int]:
        return dict(Counter(r["reason"] for r in self.quarantined()))

    def entries(self) -> list[Entry]:
        """Of all its ledgers, oldest first."""
        books = (Ledger(part.state_root, part.pipeline, Store()) for part in parts(self.config, Store()))
        return sorted((e for book in books for e in book.entries()), key=lambda e: e.finished_at)

    def newest(self, route: str) -> Entry:
        """All of a route's entries added up, in the state of the newest."""
        return totals(self.entries())[route]

    def txns(self, name: str) -> list[tuple[str, str]]:
        """(stream, batch) of each append to a table, newest first."""
        about = [(c.get("distributary.app"), c.get("distributary.batch")) for c in self.table(name).history()]
        return [(app, batch) for app, batch in about if app is not None and batch is not None]

    # -- checks ----------------------------------------------------------------------------------------------

    def check(self, *, tombstones: int = 0) -> None:
        """Each record sent is at one place; the ledger says so too; the games' tables hold the truth."""
        places = Counter(self._places())
        twice = {k: n for k, n in places.items() if n > 1}
        assert not twice, f"rows at two places (or twice at one): {twice}"
        assert set(places) <= set(self.sent)
        lost = sorted(set(self.sent) - set(places))
        assert len(lost) == tombstones, f"rows at no place (tombstones: {tombstones}): {lost[:20]}"
        by_route = totals(self.entries())
        assert sum(e.rows_in for e in by_route.values()) == len(self.sent) - tombstones
        assert sum(e.tombstones for e in by_route.values()) == tombstones
        assert sum(e.rows_quarantined for e in by_route.values()) == len(self.quarantined())
        for route, entry in by_route.items():
            assert entry.rows_in == entry.rows_written + entry.rows_quarantined, entry
            if route is not None and entry.table and (Path(entry.table) / "_delta_log").is_dir():
                assert entry.rows_written == self.rows_of(route, entry), entry
        ids = [row["id"] for row in self.quarantined("open", "claimed", "replayed")]
        assert len(set(ids)) == len(ids), "a replay tells the quarantine's rows apart by their id"
        assert not unknown_names(self.config)
        self._check_truth()

    def rows_of(self, route: str, entry: Entry) -> int:
        """Rows of a route in its table."""
        return DeltaTable(str(entry.table)).count()

    def _places(self) -> Iterator[tuple[int, int]]:
        for name in self.table_names():
            for row in self.rows(name):
                yield row["_origin"]["partition"], row["_origin"]["offset"]
        for row in self.quarantined():
            yield row["partition"], row["offset"]

    def _check_truth(self) -> None:
        for game, versions in self.truth.rows.items():
            rows = self.rows(game)
            assert Counter(self.versions[r["_origin"]["schema_id"]] for r in rows) == Counter(versions), game
            assert {r["game_name"] for r in rows} <= {game}
            assert len({r["event_timestamp"] for r in rows}) == len(rows), f"{game}: an event came twice"


class Running:
    """The streams of a pipeline that goes on, each in a thread as a process would run it, until the block ends."""

    wait_sec: ClassVar[float] = 480
    stop_sec: ClassVar[float] = 60

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []
        self._runs: list[Any] = []
        self._threads = [threading.Thread(target=self._go, args=one) for one in scenario.streams()]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._runs:
            one.stop()
        for thread in self._threads:
            thread.join(self.stop_sec)
            assert not thread.is_alive()
        self._raise()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it holds; asked again after each batch and ten times a second. Raises what a run raised."""
        self._wait(condition)
        self._raise()
        assert condition(), f"{what}: not after {self.wait_sec} s; batches: {self._scenario.batches}"

    def wait_rows(self, rows: int) -> None:
        """Wait until so many rows came in, over all batches of the scenario."""
        self.wait(lambda: sum(b.rows_in for b in self._scenario.batches) >= rows, f"{rows} rows")

    def _go(self, part: Pipeline, of: tuple[int, ...]) -> None:
        try:
            self._run(part, of)
        except BaseException as e:
            self._errors.append(e)
        with self._changed:
            self._changed.notify_all()

    def _run(self, part: Pipeline, of: tuple[int, ...]) -> None:
        hops.run(part, hops=of, progress=self._took, handle=self._runs.append)

    def _took(self, report: BatchReport) -> None:
        with self._changed:
            self._scenario.took(report)
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + self.wait_sec
        with self._changed:
            while not (self._errors or condition()) and time.monotonic() < end:
                self._changed.wait(0.1)

    def _raise(self) -> None:
        if self._errors:
            raise self._errors.pop(0)


def open_registry_of(config: Pipeline) -> Registry:
    assert config.registry is not None
    return open_registry(config.registry)


def append_source(path: str, values: Sequence[bytes | None], partition: int, first: int) -> None:
    rows = len(values)
    table = pa.table(
        [
            pa.array(values, pa.binary()),
            pa.repeat(TOPIC, rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            pa.array(range(first, first + rows), pa.int64()),
            pa.array(range(1_700_000_000_000_000 + first, 1_700_000_000_000_000 + first + rows), pa.int64()),
        ],
        names=SOURCE_SCHEMA.names,
    ).cast(SOURCE_SCHEMA)
    write_deltalake(path, table, mode="append", commit_properties=CommitProperties(max_commit_retries=20))
