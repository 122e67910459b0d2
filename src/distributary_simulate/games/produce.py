"""One order to the producer: which games, where to, and the files that say what was sent and made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from distributary.schemas.registry import Registry
from distributary_simulate.errors import SimulationInvalid
from distributary_simulate.games.manifest import Manifest
from distributary_simulate.games.records import Plan
from distributary_simulate.games.sinks import kafka_from_delta, write_delta, write_kafka
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth


@dataclass(frozen=True)
class Target:
    """Where records go: a Delta table, a Kafka topic, or the table first and the topic from it.

    `columns`: the table has the envelope taken apart. `kafka_config`: further librdkafka settings, e.g. of SASL.
    """

    delta: str | None = None
    kafka: str | None = None
    topic: str = "events"
    partitions: int = 1
    columns: bool = False
    kafka_config: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.delta is None and self.kafka is None:
            raise SimulationInvalid(what="sink", detail="give --delta PATH, --kafka SERVERS, or both")
        if self.columns and self.kafka is not None:
            raise SimulationInvalid(what="--columns", detail="a topic needs whole envelopes; use it with --delta alone")


def produce(
    plan: Plan, registry: Registry, target: Target, *, truth: Path, manifest_path: Path, say: Callable[[str], None]
) -> Truth:
    """Register and send every version of every game, oldest version first; returns what was sent.

    `truth`: file to which the counts are added as soon as records are durable. `manifest_path`: what was created.
    Raises SimulationInvalid, StoreDown, KafkaDown, SchemaIncompatible, RegistryDown, RegistryDenied.
    """
    if target.delta is not None and target.kafka is not None and DeltaTable.is_deltatable(target.delta):
        detail = "the table is there already, and all of its rows would go to the topic; name a new one"
        raise SimulationInvalid(what=f"--delta {target.delta}", detail=detail)
    manifest = Manifest.open(manifest_path)
    games = Games(plan, registry, manifest=manifest)
    sent = Truth()

    def written(counts: Truth) -> None:
        sent.merge(counts)
        counts.merge_into(truth)

    before = 0
    for version in range(1, plan.versions + 1):
        records = games.records(version)
        if target.delta is not None:
            write_delta(target.delta, records, columns=target.columns, manifest=manifest, on_written=written)
        else:
            write_kafka(
                str(target.kafka), target.topic, records, partitions=target.partitions,
                config=dict(target.kafka_config), manifest=manifest, on_written=written,
            )  # fmt: skip
        say(f"version {version}: {sent.records_total - before:,} records of {plan.games} games")
        before = sent.records_total
    if target.delta is not None and target.kafka is not None:
        copied = kafka_from_delta(
            target.delta, target.kafka, target.topic, partitions=target.partitions,
            config=dict(target.kafka_config), manifest=manifest,
        )  # fmt: skip
        say(f"topic {target.topic}: {copied:,} records from {target.delta}")
    return sent
