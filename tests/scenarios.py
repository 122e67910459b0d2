"""Whole pipelines in a folder: a source, a registry, a producer, runs, and what came out of them.

Every record gets an offset of its own, so the one check that every test can make is `Scenario.check`: each record sent
is in one table, or in the quarantine, or a tombstone; never in two places, never in none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError

from distributary.batch import BatchReport
from distributary.config import Pipeline, RegistryConfig, load
from distributary.errors import Reason
from distributary.fanout.micro_batch import Fanout
from distributary.formats.framing import frame
from distributary.pipeline import Run, RunReport, run, session_of
from distributary.registry import Reference, Registry, open_registry
from distributary.replay import Replay, ReplayReport
from distributary.schemas import Schemas
from distributary.simulate.games.events import message_class
from distributary.simulate.games.records import Plan, Record
from distributary.simulate.games.schemas import WRAPPER_TEXT
from distributary.simulate.games.stream import Games
from distributary.simulate.games.truth import Truth
from distributary.state.ledger import Entry, Ledger, totals
from distributary.tables.store import Store

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
def dying(target: Any, name: str, *, after: bool = False) -> Iterator[None]:
    """The first call of `target.name` raises Killed: before it does anything, or `after` it did everything."""
    whole = getattr(target, name)

    def killed(*args: Any, **kwargs: Any) -> Any:
        if after:
            whole(*args, **kwargs)
        raise Killed(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, killed)
        with pytest.raises(Killed):
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
        defaults = {
            "pipeline": "games",
            "source": {"type": "delta", "path": self.source},
            "registry": {"path": str(self.root / "registry")},
            "tables": {"root": str(self.tables), "retry_after": "1 second"},
            "quarantine": {"max_ratio": 1.0},
            "trigger": "once",
        }
        if keys.get("source", {}).get("type", "delta") != "delta":
            del defaults["source"]
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

    def run(self) -> RunReport:
        """Take what is there, to the end."""
        return run(self.config, once=True, progress=self.batches.append)

    @contextmanager
    def running(self) -> Iterator[Running]:
        """A run that goes on in a thread of its own until the block ends."""
        running = Running(self)
        running.start()
        try:
            yield running
        finally:
            running.stop()

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
        """The quarantine's rows in these states (default: those that were not replayed)."""
        path = Path(self.config.state_root) / "quarantine"
        if not (path / "_delta_log").exists():
            return []
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        wanted = states or ("open", "claimed")
        return sorted((r for r in rows if r["state"] in wanted), key=lambda r: (r["partition"], r["offset"]))

    def reasons(self) -> dict[str, int]:
        return dict(Counter(r["reason"] for r in self.quarantined()))

    def entries(self) -> list[Entry]:
        return Ledger(self.config.state_root, self.config.pipeline, Store()).entries()

    def newest(self, route: str) -> Entry:
        """All of a route's entries added up, in the state of the newest."""
        return totals(self.entries())[route]

    def marks(self, name: str) -> list[tuple[str, str]]:
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
    """A run in a thread. `wait` for a condition; `stop` ends it and raises what it raised."""

    def __init__(self, scenario: Scenario) -> None:
        self.run: Run | None = None
        self._scenario = scenario
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._go)

    def start(self) -> None:
        self._thread.start()

    def _go(self) -> None:
        try:
            run(self._scenario.config, progress=self._progress, handle=self._take)
        except BaseException as e:
            self._error = e
        with self._changed:
            self._changed.notify_all()

    def _take(self, run: Run) -> None:
        self.run = run

    def _progress(self, report: BatchReport) -> None:
        with self._changed:
            self._scenario.batches.append(report)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], timeout_sec: float = 120) -> None:
        """Wait until `condition` holds; asked again after each batch. Raises what the run raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or condition(), timeout_sec)
        self._raise()
        assert condition(), f"not after {timeout_sec} s; batches: {self._scenario.batches}"

    def wait_rows(self, rows: int) -> None:
        """Wait until so many rows came in, over all batches of the scenario."""
        self.wait(lambda: sum(b.rows_in for b in self._scenario.batches) >= rows)

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


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
