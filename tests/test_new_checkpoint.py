"""A checkpoint that is gone, or older than what was written, can neither double a row nor skip one (case S1)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from distributary.audit.verify import verify
from distributary.errors import CheckpointDamaged, CheckpointLost, ConfigError, SourceDataLost
from distributary.repair.clean import apply, clean
from distributary.running import hops
from distributary.running.bronze.bronze_table import hop_1_checkpoint
from tests.layouts import FANOUT, TWO_HOP, Laid
from tests.scenarios import message
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


class Simple(Laid):
    def put(self, *users: str) -> None:
        schema = self.schema("a-value", EVENT)
        self.send(*(self.event("a", schema, message(EVENT, "event", user=user)) for user in users))


class OnKafka(Simple):
    """As `Simple`, from a topic."""

    def __init__(self, root: Path, kafka: Kafka, topic: str, **keys: Any) -> None:
        self.kafka, self.topic = kafka, topic
        super().__init__(root, TWO_HOP, **keys)

    def configure(self, **keys: Any) -> Any:
        source = {**self.kafka.source(self.topic), **keys.get("source", {})}
        return super().configure(**{"envelope": {"subject": "events-value"}, **keys, "source": source})

    def send(self, *values: bytes | None, partition: int = 0) -> list[int]:
        sent = self.kafka.send(self.topic, ((partition, value) for value in values))
        self.sent.update(sent)
        return [offset for _, offset in sent]

    def lose_checkpoint(self) -> None:
        shutil.rmtree(hop_1_checkpoint(self.config))


@pytest.mark.parametrize("where", ["hop1/checkpoint", "checkpoint"], ids=["hop 1", "hop 2"])
@pytest.mark.parametrize("older", [False, True], ids=["gone", "older"])
def test_a_checkpoint_that_is_not_the_one_that_wrote_is_refused(lake: Path, where: str, older: bool) -> None:
    laid = Simple(lake, TWO_HOP)
    laid.put("1")
    laid.run()
    checkpoint = Path(laid.config.state_root, where)
    if older:
        shutil.copytree(checkpoint, lake / "copy")
        laid.put("2")
        laid.run()
    shutil.rmtree(checkpoint)
    if older:
        shutil.copytree(lake / "copy", checkpoint)
    laid.put("3")
    with pytest.raises(CheckpointLost):
        laid.run()
    assert laid.values("a", "user") == ["1", "2"][: 1 + older]
    assert verify(laid.config).ok


GARBAGE = b"\x00\xff{"
DAMAGES: list[tuple[str, bytes | None, str]] = [
    ("offsets/0", None, "Copy offsets/1 over it"),
    ("offsets/0", GARBAGE, "Copy offsets/1 over it"),
    ("offsets/0", b"", "Copy offsets/1 over it"),
    ("offsets/1", b"", "Restore it"),
    ("offsets/1", b"v1\n{}", "Restore it"),
    ("offsets/1", GARBAGE, "Restore it"),
    ("offsets/2", b"", "Remove it"),
    ("commits/1", GARBAGE, "Remove it"),
    ("commits/1", b"", "Remove it"),
    ("metadata", b"", "Write this into it"),
    ("metadata", None, "Write this into it"),
    ("metadata", GARBAGE, "Write this into it"),
]
"""File of a checkpoint, what is in it in the end (None: it is gone), and the beginning of what the error advises."""


@pytest.mark.parametrize("layout", ["fanout", "hop 1"])
def test_a_damaged_checkpoint_is_told_with_file_and_remedy_and_the_remedy_works(lake: Path, layout: str) -> None:
    """The checkpoint is Spark's own, of two batches; all that is advised is done, and no row is lost or there twice."""
    laid = Simple(lake, TWO_HOP if layout == "hop 1" else FANOUT)
    for user in ("1", "2"):
        laid.put(user)
        laid.run()
    folder = Path(hop_1_checkpoint(laid.config) if layout == "hop 1" else laid.config.checkpoint_path)
    stream, sound = json.loads((folder / "metadata").read_text())["id"], lake / "sound"
    shutil.copytree(folder, sound)
    users = ["1", "2"]
    for file, body, advice in DAMAGES:
        damaged = folder / file
        (damaged.parent / f".{damaged.name}.crc").unlink(missing_ok=True)
        damaged.unlink(missing_ok=True) if body is None else damaged.write_bytes(body)
        if layout == "hop 1" and file == "metadata":
            error: type[Exception] = CheckpointLost if body is None else CheckpointDamaged
        else:
            error = CheckpointDamaged
        with pytest.raises(error) as caught:
            laid.run()
        parameters = caught.value.parameters  # type: ignore[attr-defined]
        if error is CheckpointDamaged:
            assert parameters["file"] == str(damaged)
            assert layout == "hop 1" or parameters["remedy"].startswith(advice)
        shutil.rmtree(folder)
        shutil.copytree(sound, folder)
    for file, remedy in (
        ("offsets/0", lambda: shutil.copy(folder / "offsets" / "1", folder / "offsets" / "0")),
        ("commits/1", lambda: (folder / "commits" / "1").unlink()),
        ("metadata", lambda: (folder / "metadata").write_text(json.dumps({"id": stream}))),
    ):
        for crc in folder.rglob(".*.crc"):
            crc.unlink()
        (folder / file).write_bytes(GARBAGE)
        remedy()
    laid.put("3")
    laid.run()
    assert laid.values("a", "user") == [*users, "3"]
    assert verify(laid.config).ok


def test_a_checksum_that_does_not_fit_is_told_in_our_words(lake: Path) -> None:
    laid = Simple(lake, FANOUT)
    laid.put("1")
    laid.run()
    offsets = Path(laid.config.checkpoint_path) / "offsets" / "0"
    checksum = offsets.parent / ".0.crc"
    laid.put("2")
    for body, file in ((b"crc\0" + bytes(8), checksum), (b"", checksum), (b"crc\0\0\0\2\0" + b"none", offsets)):
        checksum.write_bytes(body)
        with pytest.raises(CheckpointDamaged) as caught:
            laid.run()
        assert caught.value.parameters["file"] == str(file)
    checksum.unlink()
    laid.run()
    assert laid.values("a", "user") == ["1", "2"]


def test_hop_2_that_has_lost_its_checkpoint_begins_anew_from_bronze(lake: Path) -> None:
    laid = Simple(lake, TWO_HOP)
    laid.put("1", "2")
    laid.run()
    shutil.rmtree(lake / "source")  # the topic has forgotten it
    shutil.rmtree(laid.config.checkpoint_path)
    apply(clean(laid.config, hop_2=True))
    assert not laid.path("a").exists()
    hops.run(laid.config, hops=(2,), once=True)
    assert laid.values("a", "user") == ["1", "2"]
    laid.check()


def test_hop_2_begins_where_its_setting_says_and_only_the_first_time(lake: Path) -> None:
    laid = Simple(lake, TWO_HOP)
    laid.put("1")
    hops.run(laid.config, hops=(1,), once=True)
    version = DeltaTable(laid.config.bronze_path).version() + 1
    laid.put("2")
    laid.configure(**TWO_HOP.keys, bronze={"starting_version": version})
    laid.run()
    assert laid.values("a", "user") == ["2"]
    laid.configure(**TWO_HOP.keys, bronze={"starting_version": 0})
    laid.put("3")
    laid.run()
    assert laid.values("a", "user") == ["2", "3"]
    assert verify(laid.config).ok


def test_only_kafka_says_where_bronze_ends(lake: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Simple(lake, TWO_HOP, bronze={"new_checkpoint": "continue"})
    assert caught.value.parameters["key"] == "bronze.new_checkpoint"


@pytest.mark.services
def test_a_new_checkpoint_of_hop_1_goes_on_where_bronze_ends_if_told_so(lake: Path, kafka: Kafka) -> None:
    with kafka.topic(partitions=2) as topic:
        laid = OnKafka(lake, kafka, topic)
        laid.put("1", "2")
        laid.send(None, partition=1)
        laid.run()
        laid.lose_checkpoint()
        laid.put("3")
        with pytest.raises(CheckpointLost):
            laid.run()
        laid.configure(**TWO_HOP.keys, bronze={"new_checkpoint": "continue"})
        for user in ("4", "5"):
            laid.run()
            laid.lose_checkpoint()
            laid.put(user)
        laid.run()
        assert sorted(laid.values("a", "user")) == ["1", "2", "3", "4", "5"]
        laid.check(tombstones=1)


@pytest.mark.services
def test_what_the_broker_has_lost_beyond_the_end_of_bronze_is_not_skipped_in_silence(lake: Path, kafka: Kafka) -> None:
    with kafka.topic(partitions=2) as topic:
        laid = OnKafka(lake, kafka, topic, bronze={"new_checkpoint": "continue"})
        laid.put("1")
        laid.run()
        laid.put("2")
        laid.lose_checkpoint()
        client = AdminClient(kafka.client())
        client.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0)].result()
        with pytest.raises(SourceDataLost):
            laid.run()
        DeltaTable(laid.config.bronze_path).delete('"offset" = 0')
        with pytest.raises(CheckpointLost, match="DELETE"):
            laid.run()
