"""Pipelines to be killed, one of each kind: what goes in, as which file, and what is wrong with what came out."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import write_deltalake

from distributary.config import RegistryConfig
from distributary.schemas.registry import open_registry
from tests.chaos import changes, tables
from tests.chaos.messages import GAMES, Producer
from tests.processes import SMALL_SPARK
from tests.services.kafka import Kafka


class Scenario(ABC):
    """A pipeline file below `root`, and its input. `command`: what runs it, and goes on until it is killed."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root = root
        self.dice = dice
        self.file = root / "pipeline.yaml"
        root.mkdir(parents=True)

    @property
    def command(self) -> list[str]:
        return ["run", str(self.file)]

    @abstractmethod
    def feed(self, progress: float) -> None:
        """More input; `progress` goes from 0 to 1."""

    @abstractmethod
    def differences(self) -> list[str]:
        """What is wrong with the tables, in words."""

    @abstractmethod
    def figures(self) -> dict[str, int]:
        """How much went in."""

    def finish(self) -> None:
        """The last input, before the run that ends."""
        return

    def close(self) -> None:
        """Stop what was started."""
        return

    def _configure(self, keys: Mapping[str, Any]) -> None:
        lake = {"root": str(self.root / "lake"), "retry_after": "1 second"}
        common = {"pipeline": "chaos", "quarantine": {"max_ratio": 1.0}, "trigger": "continuous", "spark": SMALL_SPARK}
        given = {**common, **keys, "tables": {**lake, **keys.get("tables", {})}}
        self.file.write_text(yaml.safe_dump(given), encoding="utf-8")


class Messages(Scenario):
    """Games in a Delta table."""

    keys: Mapping[str, Any] = {
        "source": {"type": "delta", "max_files_per_batch": 2},
        "tables": {"routes": {GAMES[1]: {"engine": "spark"}}},
    }

    def __init__(self, root: Path, dice: random.Random) -> None:
        super().__init__(root, dice)
        registry = open_registry(RegistryConfig(path=str(root / "registry")))
        self.producer = Producer(dice, lambda subject, text: registry.register(subject, text).schema.id)
        self._sent = 0
        self._configure({"registry": {"path": str(root / "registry")}, **self.keys, "source": self.source()})
        self.feed(0.0)

    def source(self) -> dict[str, Any]:
        return {**self.keys["source"], "path": str(self.root / "source")}

    def feed(self, progress: float) -> None:
        self.send(list(self.producer.records(self.dice.randint(1, 150), progress)))

    def send(self, values: list[bytes | None]) -> None:
        count = len(values)
        columns = {
            "value": pa.array(values, pa.binary()),
            "topic": pa.repeat("events", count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(range(self._sent, self._sent + count), pa.int64()),
            "timestamp": pa.array(range(count), pa.timestamp("us", tz="UTC")),
        }
        write_deltalake(str(self.root / "source"), pa.table(columns), mode="append")
        self._sent += count

    def differences(self) -> list[str]:
        return tables.differences(self.producer.truth, self.rows, self.quarantine())

    def figures(self) -> dict[str, int]:
        truth = self.producer.truth
        return {"rows": truth.good, "bad": truth.bad, "tombstones": truth.tombstones, "tables": len(truth.rows)}

    def rows(self, game: str) -> list[dict[str, Any]]:
        return tables.read(self.root / "lake" / game)

    def quarantine(self) -> list[Any]:
        folders = (self.root / "lake").rglob("quarantine/_delta_log")
        return [row for log in folders for row in tables.read(log.parent)]


class KafkaMessages(Messages):
    """Games in a topic."""

    keys: Mapping[str, Any] = {"source": {"type": "kafka", "starting_offsets": "earliest"}}

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.broker = Kafka(root.parent / f"{root.name}-broker").start()
        self.topic = self.broker.create_topic("events")
        super().__init__(root, dice)

    def source(self) -> dict[str, Any]:
        return {**self.keys["source"], **self.broker.source(self.topic)}

    def send(self, values: list[bytes | None]) -> None:
        self.broker.send(self.topic, [(number % 2, value) for number, value in enumerate(values)])

    def close(self) -> None:
        self.broker.stop()


class TwoHop(Messages):
    """By way of a bronze table."""

    keys: Mapping[str, Any] = {
        "layout": "two_hop",
        "source": {"type": "delta", "max_files_per_batch": 2},
        "bronze": {"max_files_per_batch": 2},
    }


class Wide(Messages):
    """All games in one table."""

    keys: Mapping[str, Any] = {
        "layout": "wide",
        "source": {"type": "delta", "max_files_per_batch": 2},
        "wide": {"name": "all"},
    }

    def rows(self, game: str) -> list[dict[str, Any]]:
        return [row[game] or {} for row in tables.read(self.root / "lake" / "all") if row["_route"] == game]


class Declarative(Messages):
    """A Spark Declarative Pipeline."""

    keys: Mapping[str, Any] = {"layout": "declarative", "source": {"type": "delta"}}

    @property
    def command(self) -> list[str]:
        return ["pipeline", "run", str(self.file), "--every", "1s"]

    def source(self) -> dict[str, Any]:
        return {"type": "delta", "path": str(self.root / "source")}

    def rows(self, game: str) -> list[dict[str, Any]]:
        return tables.read(self.root / "lake" / f"silver_{game}_events")

    def quarantine(self) -> list[Any]:
        """It is a view of bronze here."""
        return [row for row in tables.read(self.root / "lake" / "bronze") if row["reason"]]


class Changes(Scenario):
    """Change files of databases."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        super().__init__(root, dice)
        (root / "files").mkdir()
        self.databases = changes.Databases(dice, root / "files")
        source = {"type": "datastream", "path": str(root / "files"), "max_files_per_batch": 6}
        self._configure({"source": source, "tables": {"log": "{table}_log", "merged": "{table}"}})
        self.feed(0.0)

    def feed(self, progress: float) -> None:
        self.databases.go_on(self.dice.randint(5, 120))

    def finish(self) -> None:
        self.databases.finish()

    def figures(self) -> dict[str, int]:
        found = self.databases.tables
        return {"events": sum(t.events for t in found), "living": sum(len(t.rows) for t in found), "tables": len(found)}

    def differences(self) -> list[str]:
        names = [table.name for table in self.databases.tables]
        merged = {name: tables.read(self.root / "lake" / name) for name in names}
        logs = {name: tables.read(self.root / "lake" / f"{name}_log") for name in names}
        return changes.differences(self.databases, merged, logs)


SCENARIOS: dict[str, type[Scenario]] = {
    "fanout": Messages,
    "kafka": KafkaMessages,
    "two_hop": TwoHop,
    "wide": Wide,
    "declarative": Declarative,
    "changes": Changes,
}
