"""The main job on a real broker and a real schema registry."""

from __future__ import annotations

import threading
import urllib.request
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.status.lag import pipeline_lag
from distributary.audit.verify import verify
from distributary.config import KafkaSource, RegistryConfig
from distributary.errors import RegistryDenied, RegistryDown, SourceDataLost, SourceDown, SourceMissing
from distributary.running import short_runs
from distributary.schemas.registry import Reference, open_registry
from distributary.sources.kafka import describe_topics
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan
from tests.scenarios import Scenario, message
from tests.services import free_ports
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


class KafkaScenario(Scenario):
    """As `Scenario`, but records go to a topic; the broker says which offset each got."""

    def __init__(self, root: Path, kafka: Kafka, topic: str, registry_url: str, **keys: Any) -> None:
        self.kafka = kafka
        self.topic = topic
        self.url = registry_url
        self.unique = uuid.uuid4().hex[:8]
        super().__init__(root, registry=open_registry(RegistryConfig(url=registry_url)), **keys)

    def configure(self, **keys: Any) -> Any:
        given = {**keys, "source": {**self.kafka.source(self.topic), **keys.get("source", {})}}
        given["registry"] = {"url": self.url, "attempts": 1, "timeout_sec": 5, **keys.get("registry", {})}
        return super().configure(**given)

    def send(self, *values: bytes | None, partition: int = 0) -> list[int]:
        sent = self.kafka.send(self.topic, ((partition, value) for value in values))
        self.sent.update(sent)
        return [offset for _, offset in sent]

    def named(self, name: str) -> str:
        """A subject of this scenario's own: the registry is shared by all tests."""
        return f"{name}-{self.unique}"

    def simple(self, route: str, user: str = "x") -> bytes:
        return self.event(route, self.schema(self.named("event"), EVENT), message(EVENT, "event", user=user))


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[str]:
    with kafka.topic(partitions=2) as name:
        yield name


@pytest.fixture
def scenario(lake: Path, kafka: Kafka, topic: str, registry_url: str) -> KafkaScenario:
    return KafkaScenario(lake, kafka, topic, registry_url)


def test_envelopes_of_both_partitions_land_once(scenario: KafkaScenario) -> None:
    """Cases E1, W8, W13 with a registry that gives out its own ids; who watches the group sees how far they are."""
    scenario.configure(source={"group_id": f"watch-{scenario.topic}"})
    faults = Faults(corrupt=3, unknown_id=2, empty_name=2, tombstones=3, bad_envelope=2, id_mismatch=2)
    games = scenario.games(Plan(games=3, versions=2, records=20, faults=faults, topic=scenario.topic))
    for version in (1, 2):
        versions = games.register(version).values()
        scenario.versions.update({v.schema.id: version for v in versions})
        records = list(games.records(version))
        for record in records:
            scenario.truth.add(record)
        for partition in (0, 1):
            scenario.send(*(r.value for r in records[partition::2]), partition=partition)
        scenario.run()
    scenario.check(tombstones=3)
    assert len(scenario.batches) == 2
    watcher = Consumer({**scenario.kafka.client(), "group.id": f"watch-{scenario.topic}"})
    places = watcher.committed([TopicPartition(scenario.topic, p) for p in (0, 1)], timeout=120)
    watcher.close()
    assert isinstance(source := scenario.config.source, KafkaSource)
    assert {place.partition: place.offset for place in places} == describe_topics(source)[0].latest
    assert scenario.rows(games.names[0])[0]["_origin"]["topic"] == scenario.topic
    assert scenario.rows(games.names[0])[0]["_origin"]["timestamp"] is not None
    assert all(r["topic"] == scenario.topic for r in scenario.quarantined())


def test_records_of_aborted_and_open_transactions_are_in_no_table(scenario: KafkaScenario) -> None:
    kafka, topic = scenario.kafka, scenario.topic
    scenario.send(scenario.simple("a", "before"))
    with kafka.transaction(topic, [scenario.simple("a", "aborted"), scenario.simple("b", "aborted")], commit=False):
        pass
    with kafka.transaction(topic, [scenario.simple("a", "committed")]):
        pass
    open_one = [scenario.simple("a", "open"), scenario.simple("a", "open too")]
    with kafka.transaction(topic, open_one, commit=False):
        scenario.send(scenario.simple("a", "behind it"), partition=1)
        scenario.run()
        assert sorted(scenario.values("a", "user")) == ["before", "behind it", "committed"]
        source = scenario.config.source
        assert isinstance(source, KafkaSource)
        (described,) = describe_topics(source)
        assert described.latest[0] == 6  # before, two aborted with their marker, committed with its own
        assert pipeline_lag(scenario.config, Store()).rows == 0
    scenario.run()
    with kafka.transaction(topic, [scenario.simple("a", "last")]):
        pass
    scenario.run()
    assert sorted(scenario.values("a", "user")) == ["before", "behind it", "committed", "last"]
    assert not scenario.reasons() and scenario.table_names() == ["a"]
    assert judge_payloads(scenario.config, verify(scenario.config), deep=True).ok, "gaps in the offsets are no loss"


def test_a_setting_reads_uncommitted_records_too(scenario: KafkaScenario) -> None:
    scenario.configure(source={"options": {"isolation.level": "read_uncommitted"}})
    with scenario.kafka.transaction(scenario.topic, [scenario.simple("a", "aborted")], commit=False):
        scenario.run()
    assert scenario.values("a", "user") == ["aborted"]


def test_null_empty_and_header_only_values_are_three_things(scenario: KafkaScenario) -> None:
    """Case W6: a tombstone, a malformed frame, a valid message of defaults."""
    schema_id = scenario.schema(scenario.named("event"), EVENT)
    scenario.send(None, b"", scenario.event("a", schema_id, b""), scenario.event("a", schema_id, b""))
    scenario.run()
    assert scenario.values("a", "user") == ["", ""]
    assert scenario.reasons() == {"TOO_SHORT": 1}
    scenario.check(tombstones=1)


def test_imports_are_resolved_and_deleted_schemas_still_decode(scenario: KafkaScenario) -> None:
    """Cases W10 (a diamond; names that differ from subjects; a well-known type) and W11 (a soft delete)."""
    name = scenario.named
    scenario.schema(name("c"), 'syntax = "proto3"; package c; message C { int32 n = 1; }')
    b = 'syntax = "proto3"; package b; import "path/c.proto"; message B { c.C c = 1; }'
    scenario.schema(name("b"), b, [Reference("path/c.proto", name("c"), 1)])
    a = """syntax = "proto3"; import "b.proto"; import "path/c.proto"; import "google/protobuf/timestamp.proto";
    message event { b.B b = 1; c.C c = 2; google.protobuf.Timestamp at = 3; }"""
    references = [Reference("b.proto", name("b"), 1), Reference("path/c.proto", name("c"), 1)]
    schema_id = scenario.schema(name("a"), a, references)
    scenario.registry.delete_subject(name("a"))
    scenario.send(scenario.event("a", schema_id, b"\x0a\x04\x0a\x02\x08\x07\x12\x02\x08\x09\x1a\x02\x08\x01"))
    scenario.run()
    (row,) = scenario.rows("a")
    assert (row["b"], row["c"], row["at"].timestamp()) == ({"c": {"n": 7}}, {"n": 9}, 1.0)
    scenario.check()


def test_small_batches_and_a_continuous_run_take_everything(scenario: KafkaScenario) -> None:
    scenario.configure(source={"max_offsets_per_batch": 10}, trigger="continuous")
    scenario.send(*(scenario.simple("a", str(n)) for n in range(25)))
    with scenario.running() as running:
        running.wait_rows(25)
        scenario.send(*(scenario.simple("b", str(n)) for n in range(5)), partition=1)
        running.wait_rows(30)
    assert len(scenario.batches) >= 4
    assert scenario.values("a", "user") == [str(n) for n in range(25)]
    scenario.check()


# -- outages -----------------------------------------------------------------------------------------------


class Front(HTTPServer):
    """In front of a registry: hands requests on, or answers all of them with `status`."""

    def __init__(self, target: str, status: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Fronted)
        self.target, _, self.path = target.partition("/apis/")
        self.status = status
        self.url = f"http://127.0.0.1:{self.server_port}/apis/{self.path}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Fronted(BaseHTTPRequestHandler):
    server: Front

    def do_GET(self) -> None:
        status, body = self.server.status, b'{"error_code": 40101, "message": "refused"}'
        if status is None:
            with urllib.request.urlopen(self.server.target + self.path, timeout=60) as answer:
                status, body = answer.status, answer.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


def test_a_registry_that_is_away_or_refuses_fails_the_batch_and_the_rows_land_later(scenario: KafkaScenario) -> None:
    """Case W8: nothing is advanced, nothing is kept aside, and the secret is not in the message."""
    scenario.send(scenario.simple("a"), scenario.simple("b"))
    secret = {"username": "reader", "password": "s3cret-word"}

    def fails_with(error: type[Exception], registry: dict[str, str]) -> None:
        scenario.configure(registry=registry)
        with pytest.raises(error) as caught:
            scenario.run()
        assert "s3cret-word" not in str(caught.value)
        assert (scenario.table_names(), scenario.entries(), scenario.quarantined()) == ([], [], [])

    with Front(scenario.url, status=401) as front:
        fails_with(RegistryDenied, {"url": front.url, **secret})
    with Front(scenario.url, status=503) as front:
        fails_with(RegistryDown, {"url": front.url})
    fails_with(RegistryDown, {"url": front.url})
    scenario.configure()
    scenario.run()
    assert scenario.quarantined() == []
    scenario.check()


def test_known_ids_in_the_disk_cache_need_no_registry(scenario: KafkaScenario, lake: Path) -> None:
    """Case W8: ids are immutable, so what is in the cache outlives an outage, also in a new process."""
    value = scenario.simple("a")
    with Front(scenario.url) as front:
        scenario.configure(registry={"url": front.url, "cache": str(lake / "cache")})
        scenario.send(value)
        scenario.run()
    scenario.send(value)
    scenario.run()
    scenario.check()


def test_a_broker_that_is_away_and_a_topic_that_is_not_there_are_said(scenario: KafkaScenario) -> None:
    scenario.configure(source={"topic": "no-such-topic"})
    with pytest.raises(SourceMissing) as missing:
        scenario.run()
    assert "no-such-topic" in str(missing.value)
    scenario.configure(source={"bootstrap_servers": f"127.0.0.1:{free_ports(1)[0]}"})
    with pytest.raises(SourceDown):
        scenario.run()


# -- case S6: data lost at the source ----------------------------------------------------------------------


def forget(scenario: KafkaScenario, before: int, partition: int = 0) -> None:
    """What retention does: offsets below `before` are gone."""
    admin = AdminClient(scenario.kafka.client())
    part = TopicPartition(scenario.topic, partition, before)
    admin.delete_records([part])[part].result(120)


def test_offsets_past_retention_are_an_error_that_names_partition_and_range(scenario: KafkaScenario) -> None:
    scenario.send(*(scenario.simple("a", str(n)) for n in range(3)))
    scenario.run()
    scenario.send(*(scenario.simple("a", str(n)) for n in range(3, 9)))
    forget(scenario, before=6)
    with pytest.raises(SourceDataLost) as caught:
        scenario.run()
    assert f"topic {scenario.topic} partition 0: offsets 3 to 5 are gone" in caught.value.parameters["detail"]
    scenario.configure(source={"on_data_loss": "continue"})
    scenario.run()
    assert scenario.values("a", "user") == ["0", "1", "2", "6", "7", "8"]
    (note,) = [e for e in scenario.entries() if e.state == "loss"]
    assert "offsets 3 to 5 are gone" in (note.error or "")
    assert scenario.run().batches == 0


def test_a_topic_that_was_deleted_and_made_again_is_refused(scenario: KafkaScenario) -> None:
    """Also when it has grown past the old offset, where it would be read from the middle without a word."""
    scenario.send(*(scenario.simple("a", str(n)) for n in range(3)))
    scenario.run()
    scenario.kafka.delete_topic(scenario.topic)
    scenario.kafka.create_topic(scenario.topic, partitions=2)
    scenario.sent.clear()
    scenario.send(*(scenario.simple("a", f"new {n}") for n in range(5)))
    for _ in range(2):
        with pytest.raises(SourceDataLost) as caught:
            scenario.run()
    assert "deleted and made again" in caught.value.parameters["detail"]
    assert scenario.values("a", "user") == ["0", "1", "2"]
    scenario.configure(source={"on_data_loss": "continue"})
    scenario.run()
    (note,) = [e for e in scenario.entries() if e.state == "loss"]
    assert scenario.topic in (note.error or "")
    scenario.send(scenario.simple("a", "later"))
    scenario.run()
    assert scenario.values("a", "user")[-1] == "later"


def test_a_run_over_a_topic_is_short_where_it_ends_and_little_waits(
    scenario: KafkaScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.send(scenario.simple("a", "one"), scenario.simple("a", "two"))
    assert short_runs.is_short(scenario.config, once=True)
    monkeypatch.setattr(short_runs, "FEW_ROWS", 1)
    assert not short_runs.is_short(scenario.config, once=True)
    scenario.run()
    assert short_runs.is_short(scenario.config, once=True), "what was read does not wait"
