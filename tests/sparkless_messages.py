"""A pipeline of messages without Spark: everything is the product's own (demux, decisions, tasks, ledger, quarantine,
replay), but the tasks run here, one after the other. What only Spark may write is out of reach here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from distributary.config import Pipeline, RegistryConfig
from distributary.engine.batch import BatchReport, BatchWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.replay import Replay, ReplayReport
from distributary.engine.schemas import schemas_of
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from tests.scenarios import message

STREAM = "00000000-0000-0000-0000-000000000000"
SOURCE = pa.schema(
    [
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("topic", pa.string()),
    ]
)
_NUMBERS = pa.schema([("id", pa.int64())])
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Session:
    """Stands for Spark's on one machine."""

    def __init__(self, cores: int = 2) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=cores)
        self.conf = {"spark.master": f"local[{cores}]"}

    def range(self, start: int, end: int, step: int, tasks: int) -> Rows:
        return Rows(self, [pa.RecordBatch.from_pydict({"id": [n]}, schema=_NUMBERS) for n in range(start, end, step)])


class Rows:
    """Stands for a DataFrame: each batch is a task's."""

    def __init__(self, session: Session, batches: Iterable[pa.RecordBatch]) -> None:
        self.sparkSession = session
        self._batches = list(batches)

    def mapInArrow(self, task: Task, schema: Any) -> Rows:
        return Rows(self.sparkSession, [found for batch in self._batches for found in task(iter([batch]))])

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._batches)


class Players:
    """A pipeline of one topic. Each of its methods is a new process: nothing is remembered but what lies on disk."""

    def __init__(self, root: Path, texts: Mapping[int, str], topic: str = "players", **keys: Any) -> None:
        self.root, self.topic, self.offset = root, topic, 0
        self.sent: list[dict[str, Any]] = []
        registry = open_registry(RegistryConfig(path=str(root / "registry")))
        self.ids = {n: registry.register(f"{topic}-{n}", text).schema.id for n, text in texts.items()}
        self.texts = texts
        source = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": topic, **keys.pop("source", {})}
        self.config = Pipeline.model_validate(
            {
                "pipeline": "players",
                "source": source,
                "envelope": "none",
                "registry": {"path": str(root / "registry")},
                "tables": {"root": str(root / "lake"), "keys": ["id"], **keys.pop("tables", {})},
                "quarantine": {"max_ratio": 1.0},
                **keys,
            }
        )

    @property
    def table(self) -> str:
        return f"{self.config.tables.root}/{self.topic}"

    def record(self, key: Any, version: int | None = 1, schema_id: int | None = None, **values: Any) -> dict[str, Any]:
        """A message of the key by a version of its schema; `version` None: a record without a value."""
        value = None
        if version is not None:
            body = message(self.texts[version], "player", id=key, **values)
            value = frame(self.ids[version] if schema_id is None else schema_id, body)
        self.offset += 1
        at = datetime.fromtimestamp(1_700_000_000 + self.offset, UTC)
        here = {"partition": 0, "offset": self.offset - 1, "timestamp": at, "topic": self.topic}
        self.sent.append({"value": value, "key": str(key).encode(), **here})
        return self.sent[-1]

    def writer(self, cores: int = 2) -> BatchWriter:
        fanout, ledger = self._fanout(cores)
        return BatchWriter(self.config, fanout, ledger)

    def take(
        self,
        batch: int,
        records: list[dict[str, Any]],
        writer: BatchWriter | None = None,
        schema: pa.Schema = SOURCE,
    ) -> BatchReport:
        """One batch of the stream. `writer`: of a process that goes on; `schema`: of what the stream reads."""
        writer = writer or self.writer()
        rows = Rows(writer.delivery.spark, [pa.RecordBatch.from_pylist(records, schema=schema)])  # type: ignore[attr-defined]
        report = writer.take(rows, STREAM, batch)  # type: ignore[arg-type]
        self._commit_offsets(batch)
        return report

    def _commit_offsets(self, batch: int) -> None:
        """As Spark does: all that was sent is read."""
        checkpoint = Path(self.config.checkpoint_path)
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": STREAM}))
        offsets = json.dumps({self.topic: {"0": self.offset}})
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offsets}")
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def replay(self) -> ReplayReport:
        fanout, ledger = self._fanout(2)
        return Replay(self.config, ledger, fanout).run()

    def _fanout(self, cores: int) -> tuple[Fanout, Ledger]:
        store = Store.of(self.config.tables)
        fanout = Fanout(Session(cores), self.config, schemas_of(self.config), store)  # type: ignore[arg-type]
        return fanout, Ledger(self.config.state_root, self.config.pipeline, store)
