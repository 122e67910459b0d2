"""A declarative pipeline in a folder, its input, and an independent decode of that input by the official library."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from google.protobuf.message import Message
from pyspark.sql import SparkSession

from distributary.config import Pipeline, RegistryConfig, load
from distributary.declarative.datasets import Datasets
from distributary.declarative.runner import Options, Runner, RunReport
from distributary.declarative.server import client
from distributary.declarative.update import Selection
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import Registry, open_registry
from distributary.state.ledger import Entry, Ledger, totals
from distributary.tables.store import Store
from distributary_simulate.games.events import message_class
from distributary_simulate.games.records import Plan, Record
from distributary_simulate.games.schemas import WRAPPER_TEXT, event_text
from distributary_simulate.games.sinks import write_delta, write_kafka
from distributary_simulate.games.stream import Games
from tests.processes import SMALL_SPARK

_SERVER = """
import json, sys
from pathlib import Path
from distributary.declarative.server import Server, catalog_conf
spark = json.loads(sys.argv[2])
conf = {**catalog_conf(Path(sys.argv[1])), **spark["conf"], "spark.sql.pipelines.maxFlowRetryAttempts": "0"}
with Server(conf, spark["master"]) as server:
    print(server.remote, flush=True)
    sys.stdin.read()
"""


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server in a process of its own; yields its address."""
    command = [sys.executable, "-c", _SERVER, str(folder), json.dumps(SMALL_SPARK)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        remote = process.stdout.readline().strip()
        if not remote:
            pytest.fail("the Spark Connect server did not start")
        yield remote
    finally:
        process.stdin.close()
        process.wait(240)
        process.stdout.close()


class World:
    """One pipeline over a Delta table, or over `plan.topic` of the broker `kafka`. `keys` go into its file."""

    def __init__(
        self, root: Path, remote: str, plan: Plan | None = None, *, kafka: str | None = None, **keys: Any
    ) -> None:
        self.root = root
        self.kafka = kafka
        self.remote = remote
        self.file = root / "pipeline.yaml"
        self.source = str(root / "source")
        self.registry: Registry = open_registry(RegistryConfig(path=str(root / "registry")))
        self.games = Games(plan or Plan(games=3, versions=3, records=20), self.registry)
        self.sent: list[Record] = []
        self.events: list[dict[str, Any]] = []
        self.configure(**keys)

    def configure(self, **keys: Any) -> Pipeline:
        given = {
            # One server has room for many pipelines: each has a database of its own.
            "pipeline": self.root.name.replace("-", "_").lower()[-40:],
            "layout": "declarative",
            "source": self._source(),
            "registry": {"path": str(self.root / "registry")},
            "tables": {"root": str(self.root / "lake"), **keys.pop("tables", {})},
            "quarantine": {"max_ratio": 1.0},
            **keys,
        }
        self.file.write_text(yaml.safe_dump(given), encoding="utf-8")
        self.config = load(self.file)
        self.datasets = Datasets.of(self.config)
        return self.config

    def _source(self) -> dict[str, Any]:
        if self.kafka is None:
            return {"type": "delta", "path": self.source}
        return {"type": "kafka", "bootstrap_servers": self.kafka, "topic": self.games.plan.topic}

    # -- input ---------------------------------------------------------------------------------------------

    def send(self, version: int, games: Sequence[str] | None = None, **more: Any) -> None:
        """Register a version and send its records."""
        records = list(self.games.records(version, games, **more))
        if self.kafka is None:
            write_delta(self.source, records)
        else:
            write_kafka(self.kafka, self.games.plan.topic, records)
        self.sent += records

    def text(self, game: str, version: int) -> str:
        return event_text(game, version)

    def send_as(self, game: str, version: int, schema_id: int) -> None:
        """Send the plan's records of a game under another schema id than its subject has."""
        apart = Games(self.games.plan, open_registry(RegistryConfig(path=str(self.root / "apart"))))
        records = [_under(r, schema_id) for r in apart.records(version, [game], start=1000 * version)]
        write_delta(self.source, records)
        self.sent += records

    def register_as(self, schema_id: int, subject: str, text: str) -> None:
        """Register a text so that it gets this id."""
        while (found := self.registry.register(f"{subject}-{time.monotonic_ns()}", text).schema.id) < schema_id:
            text = f"{text}\n// {found}"
        assert found == schema_id

    def runner(
        self, selection: Selection | None = None, after: Callable[[SparkSession], None] = lambda _: None
    ) -> Runner:
        options = Options(once=True, remote=self.remote, selection=selection or Selection())
        return Runner(self.config, self.root, options, self.events.append, after)

    def run(self, **selection: Any) -> RunReport:
        """Take what is there."""
        return self.runner(Selection(**selection)).go()

    # -- what came out -------------------------------------------------------------------------------------

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table's rows by plain delta-rs."""
        try:
            found: list[dict[str, Any]] = DeltaTable(self.datasets.uri(name)).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []
        return found

    def silver(self, game: str) -> list[dict[str, Any]]:
        return self.rows(self.datasets.silver(game))

    def query(self, sql: str) -> list[Any]:
        """`sql` may name datasets in braces: `SELECT * FROM {unified_gold}`."""
        names = {n: self.datasets.sql(n) for n in (self.datasets.unified, self.datasets.quarantine)}
        with client(self.remote) as spark:
            return [tuple(row) for row in spark.sql(sql.format(**names)).collect()]

    def totals(self) -> dict[str | None, Entry]:
        """The ledger's sums."""
        return totals(Ledger(self.config.state_root, self.config.pipeline, Store()).entries())

    def order(self, update: int) -> list[tuple[str, str]]:
        """(dataset, state) of the events of an update of the last run, in order."""
        last = max(n for n, e in enumerate(self.events[:-1]) if n == 0 or e["kind"] == "run")
        told = [e for e in self.events[last:] if e["kind"] == "event" and e["update"] == update and e["dataset"]]
        return [(e["dataset"], e["state"]) for e in told]

    # -- the independent decode ----------------------------------------------------------------------------

    def good(self, game: str, without: int | None = None) -> list[Record]:
        """A game's good records; `without` those of this schema id."""
        return [r for r in self.sent if r.game == game and r.fault is None and r.schema_id != without]

    def expected(self, game: str, without: int | None = None) -> list[dict[str, Any]]:
        """A game's rows as the official library reads them, with the columns of all versions that were sent."""
        good = self.good(game, without)
        newest = max((r.version for r in good), default=1)
        columns = [f.name for f in message_class(event_text(game, newest), "event").DESCRIPTOR.fields]
        return [_row(r, columns, newest) for r in good]

    def check(self) -> None:
        """Silver rows and gold numbers equal the independent decode; all the rest is in the quarantine, once."""
        self.check_silver()
        games = sorted({r.game for r in self.sent})
        gold = {(row[0], row[1]): row[2:] for row in self.query("SELECT * FROM {unified_gold}")}
        assert gold == self._gold(games)
        aside = Counter(r[0] for r in self.query("SELECT reason FROM {quarantine}"))
        bad = [r for r in self.sent if r.fault not in (None, "tombstones")]
        assert aside.total() == len(bad), aside

    def check_silver(self, without: int | None = None) -> None:
        """Silver rows equal the independent decode; but for records of this schema id."""
        for game in sorted({r.game for r in self.sent}):
            found = [{k: v for k, v in row.items() if k != "_origin"} for row in self.silver(game)]
            assert _multiset(found) == _multiset(self.expected(game, without)), game

    def _gold(self, games: Sequence[str]) -> dict[tuple[str, str], tuple[Any, ...]]:
        times: dict[tuple[str, str], list[Any]] = {}
        for game in games:
            for row in self.expected(game):
                times.setdefault((game, row["user_name"]), []).append(row["event_timestamp"].replace(tzinfo=None))
        return {key: (len(found), min(found), max(found)) for key, found in times.items()}


_WRAPPER = message_class(WRAPPER_TEXT, "wrapper")


def _under(record: Record, schema_id: int) -> Record:
    """The record as if its payload had been written with this schema id."""
    body = record.envelope.payload[len(frame(record.schema_id, b"")) :] if record.envelope.payload else b""
    return _enclosed(record, record.game, schema_id, body)


def with_user(record: Record, user: str, route: str | None = None) -> Record:
    """The record as if this user had sent it, under another route where one is given."""
    body = message_class(event_text(record.game, record.version), "event")(user_name=user).SerializeToString()
    return _enclosed(record, route or record.game, record.schema_id, body)


def _enclosed(record: Record, route: str, schema_id: int, body: bytes) -> Record:
    envelope = record.envelope._replace(game_name=route, schema_id=schema_id, payload=frame(schema_id, body))
    assert record.value is not None
    header = record.value[: len(frame(0, b""))]
    value = header + _WRAPPER(**envelope._asdict()).SerializeToString(deterministic=True)
    return record._replace(envelope=envelope, schema_id=schema_id, value=value)


def _row(record: Record, columns: Sequence[str], newest: int) -> dict[str, Any]:
    assert record.envelope.payload is not None
    body = record.envelope.payload[len(frame(record.schema_id, b"")) :]
    message = message_class(event_text(record.game, record.version), "event").FromString(body)
    return {name: _value(message, name, newest) for name in columns}


def _value(message: Message, name: str, newest: int) -> Any:
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None or (field.has_presence and not message.HasField(name)):
        return None
    value = getattr(message, name)
    if field.message_type is None:
        return value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return _utc(value)
    inner = ["zone", *(f"level_{v}" for v in range(1, newest + 1))]
    return {n: _value(value, n, newest) for n in inner}


def _utc(stamp: Any) -> Any:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def _multiset(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted((name, _plain(value)) for name, value in row.items())) for row in rows)


def _plain(value: Any) -> Any:
    """Times alike, whatever library made them."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
