"""The disk cache: known ids need no registry, unknown ones are asked again soon, damage costs a request."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from distributary.config import RegistryConfig
from distributary.errors import DistributaryError, RegistryDenied, RegistryDown, SchemaNotFound
from distributary.schemas.registry import Reference, Registry, Schema, SchemaVersion, open_registry
from distributary.schemas.registry.cache import CachedRegistry
from distributary.schemas.registry.confluent import ConfluentRegistry
from distributary.schemas.registry.embedded import EmbeddedRegistry

TEXT = 'syntax = "proto3"; message Event { int32 a = 1; }'
OTHER = 'syntax = "proto3"; message Event { int32 a = 1; int32 b = 2; }'


@dataclass
class Counting:
    """A real registry that counts what it is asked, and can be made to fail."""

    inner: Registry
    asked: list[str] = field(default_factory=list)
    fault: DistributaryError | None = None
    name: str = "http://registry.test"

    def _ask(self, what: str) -> Registry:
        self.asked.append(what)
        if self.fault is not None:
            raise self.fault
        return self.inner

    def get(self, schema_id: int) -> Schema:
        return self._ask(f"get {schema_id}").get(schema_id)

    def version(self, subject: str, version: int) -> SchemaVersion:
        return self._ask(f"version {subject} {version}").version(subject, version)

    def latest(self, subject: str) -> SchemaVersion:
        return self._ask(f"latest {subject}").latest(subject)

    def versions(self, subject: str) -> list[int]:
        return self._ask(f"versions {subject}").versions(subject)

    def subjects(self) -> list[str]:
        return self._ask("subjects").subjects()

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        return self._ask(f"register {subject}").register(subject, text, references)

    def set_compatibility(self, subject: str, level: str) -> None:
        self._ask("set_compatibility").set_compatibility(subject, level)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        self._ask("delete_subject").delete_subject(subject, permanent=permanent)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


DOWN = RegistryDown(registry="http://registry.test", attempts=5, detail="HTTP 503")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def behind(tmp_path: Path) -> Counting:
    return Counting(EmbeddedRegistry(tmp_path / "registry"))


@pytest.fixture
def cache(behind: Counting, tmp_path: Path, clock: Clock) -> CachedRegistry:
    return CachedRegistry(behind, tmp_path / "cache", missing_ttl_sec=10.0, clock=clock)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.json"))


def test_an_id_is_asked_once(cache: CachedRegistry, behind: Counting) -> None:
    schema = behind.inner.register("s", TEXT).schema
    assert [cache.get(schema.id) for _ in range(3)] == [schema] * 3
    assert behind.asked == [f"get {schema.id}"]


def test_a_version_is_asked_once(cache: CachedRegistry, behind: Counting) -> None:
    done = behind.inner.register("größe/1", TEXT)
    assert [cache.version("größe/1", 1) for _ in range(3)] == [done] * 3
    assert behind.asked == ["version größe/1 1"]


def test_a_version_that_was_read_makes_its_id_known(cache: CachedRegistry, behind: Counting) -> None:
    done = behind.inner.register("s", TEXT)
    cache.version("s", 1)
    assert cache.get(done.schema.id) == done.schema
    assert behind.asked == ["version s 1"]


def test_what_was_registered_here_is_known(cache: CachedRegistry, behind: Counting) -> None:
    done = cache.register("s", TEXT)
    assert (cache.get(done.schema.id), cache.version("s", 1)) == (done.schema, done)
    assert behind.asked == ["register s"]


def test_what_may_change_is_asked_every_time(cache: CachedRegistry, behind: Counting) -> None:
    behind.inner.register("s", TEXT)
    for _ in range(2):
        cache.latest("s")
        cache.versions("s")
        cache.subjects()
    assert behind.asked == ["latest s", "versions s", "subjects"] * 2
    behind.inner.register("s", OTHER)
    assert (cache.latest("s").version, cache.versions("s")) == (2, [1, 2])


@pytest.mark.parametrize("fault", [DOWN, RegistryDenied(registry="r", status=401, keys="token")])
def test_known_ids_survive_an_outage_and_a_restart(
    cache: CachedRegistry, behind: Counting, tmp_path: Path, fault: DistributaryError
) -> None:
    reference = Reference("in.proto", "in", 1)
    behind.inner.register("in", 'syntax = "proto3"; message In { int32 x = 1; }')
    done = behind.inner.register("s", 'syntax = "proto3"; import "in.proto"; message E { In a = 1; }', [reference])
    cache.get(done.schema.id)
    cache.version("in", 1)
    behind.fault = fault
    restarted = CachedRegistry(behind, tmp_path / "cache")
    assert restarted.get(done.schema.id) == done.schema
    assert restarted.version("in", 1).schema.id == 1
    with pytest.raises(type(fault)):
        restarted.get(77)
    with pytest.raises(type(fault)):
        restarted.latest("s")


def test_an_outage_is_never_remembered_as_a_missing_schema(cache: CachedRegistry, behind: Counting) -> None:
    done = behind.inner.register("s", TEXT)
    behind.fault = DOWN
    with pytest.raises(RegistryDown):
        cache.get(done.schema.id)
    behind.fault = None
    assert cache.get(done.schema.id) == done.schema


def test_a_missing_id_is_asked_again_only_after_a_while(cache: CachedRegistry, behind: Counting, clock: Clock) -> None:
    behind.inner.register("s", TEXT)
    for _ in range(3):
        with pytest.raises(SchemaNotFound) as caught:
            cache.get(999_999)
        assert caught.value.parameters["what"] == "id 999999"
    assert behind.asked == ["get 999999"]
    clock.now += 9.9
    with pytest.raises(SchemaNotFound):
        cache.get(999_999)
    assert len(behind.asked) == 1
    clock.now += 0.2
    with pytest.raises(SchemaNotFound):
        cache.get(999_999)
    assert len(behind.asked) == 2


def test_a_missing_id_is_not_written_to_disk(cache: CachedRegistry, behind: Counting, tmp_path: Path) -> None:
    behind.inner.register("s", TEXT)
    with pytest.raises(SchemaNotFound):
        cache.get(2)
    assert files(tmp_path) == []
    behind.inner.register("s", OTHER)
    assert CachedRegistry(behind, tmp_path / "cache").get(2).text == OTHER


def test_registering_here_ends_the_wait_for_a_missing_id(cache: CachedRegistry, behind: Counting) -> None:
    behind.inner.register("s", TEXT)
    with pytest.raises(SchemaNotFound):
        cache.get(2)
    cache.register("s", OTHER)
    assert cache.get(2).text == OTHER


def test_missing_ids_do_not_pile_up_in_memory(cache: CachedRegistry, behind: Counting, clock: Clock) -> None:
    behind.inner.register("s", TEXT)
    for number in range(100, 200):
        clock.now += 1
        with pytest.raises(SchemaNotFound):
            cache.get(number)
    assert len(cache._missing) <= 11


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"sha256": "',
        b"\xff\xfe\x00",
        b"[]",
        b'{"sha256": "0", "schema": {"id": 1, "kind": "PROTOBUF", "text": "x", "references": []}}',
        b'{"sha256": "0", "schema": {"id": 1}}',
        b"[" * 100_000,
    ],
    ids=["empty", "cut", "no text", "a list", "wrong checksum", "no keys", "deep"],
)
def test_a_damaged_file_is_a_miss_and_is_mended(
    cache: CachedRegistry, behind: Counting, tmp_path: Path, content: bytes
) -> None:
    done = behind.inner.register("s", TEXT)
    cache.version("s", 1)
    for file in files(tmp_path):
        file.write_bytes(content)
    assert (cache.get(done.schema.id), cache.version("s", 1)) == (done.schema, done)
    asked = len(behind.asked)
    assert (cache.get(done.schema.id), cache.version("s", 1)) == (done.schema, done)
    assert len(behind.asked) == asked


def test_a_changed_text_in_a_file_is_noticed(cache: CachedRegistry, behind: Counting, tmp_path: Path) -> None:
    done = behind.inner.register("s", TEXT)
    cache.get(done.schema.id)
    (file,) = files(tmp_path)
    stored = json.loads(file.read_text())
    stored["schema"]["text"] = OTHER
    file.write_text(json.dumps(stored))
    assert cache.get(done.schema.id).text == TEXT


def test_a_file_under_another_id_is_a_miss(cache: CachedRegistry, behind: Counting, tmp_path: Path) -> None:
    done = behind.inner.register("s", TEXT)
    behind.inner.register("s", OTHER)
    cache.get(done.schema.id)
    (file,) = files(tmp_path)
    file.rename(file.with_name("2.json"))
    assert cache.get(2).text == OTHER


def test_a_cache_that_cannot_be_written_costs_requests_only(behind: Counting, tmp_path: Path) -> None:
    done = behind.inner.register("s", TEXT)
    (tmp_path / "file").write_text("")
    cache = CachedRegistry(behind, tmp_path / "file" / "cache")
    assert [cache.get(done.schema.id) for _ in range(2)] == [done.schema] * 2
    assert len(behind.asked) == 2


def test_two_registries_share_a_folder_without_mixing_ids(behind: Counting, tmp_path: Path) -> None:
    behind.inner.register("s", TEXT)
    other = Counting(EmbeddedRegistry(tmp_path / "other"), name="http://other.test")
    other.inner.register("s", OTHER)
    assert CachedRegistry(behind, tmp_path / "cache").get(1).text == TEXT
    assert CachedRegistry(other, tmp_path / "cache").get(1).text == OTHER


def test_a_rebuilt_registry_drops_what_was_known_of_the_old_one(behind: Counting, tmp_path: Path) -> None:
    cache = CachedRegistry(behind, tmp_path / "cache")
    cache.register("s", TEXT)
    cache.register("s", OTHER)
    behind.inner = EmbeddedRegistry(tmp_path / "rebuilt")
    cache.register("s", OTHER)
    assert cache.get(1).text == OTHER
    with pytest.raises(SchemaNotFound):
        cache.get(2)


def test_a_permanent_delete_forgets_versions_and_keeps_ids(cache: CachedRegistry, behind: Counting) -> None:
    done = cache.register("s", TEXT)
    cache.delete_subject("s", permanent=True)
    with pytest.raises(SchemaNotFound):
        cache.version("s", 1)
    assert cache.get(done.schema.id) == done.schema
    cache.register("s", OTHER)
    assert cache.version("s", 1).schema.text == OTHER


def _read_all(registry: str, cache: str, rounds: int) -> None:
    cached = CachedRegistry(EmbeddedRegistry(Path(registry)), Path(cache))
    for _ in range(rounds):
        for schema_id in range(1, 21):
            assert cached.get(schema_id).id == schema_id
            assert cached.version(f"s{schema_id}", 1).schema.id == schema_id


def test_several_processes_share_one_cache(behind: Counting, tmp_path: Path) -> None:
    for number in range(1, 21):
        behind.inner.register(f"s{number}", f'syntax = "proto3"; message Event {{ int32 a = {number}; }}')
    context = multiprocessing.get_context("spawn")
    arguments = (str(tmp_path / "registry"), str(tmp_path / "cache"), 3)
    workers = [context.Process(target=_read_all, args=arguments) for _ in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    assert [process.exitcode for process in workers] == [0, 0, 0]
    assert len(files(tmp_path)) == 40
    assert list((tmp_path / "cache").rglob("*.tmp")) == []


def test_open_registry_builds_what_the_file_names(tmp_path: Path) -> None:
    assert isinstance(open_registry(RegistryConfig(path=str(tmp_path / "r"))), EmbeddedRegistry)
    server = open_registry(RegistryConfig(url="http://127.0.0.1:1/apis/ccompat/v7/"))
    assert isinstance(server, ConfluentRegistry)
    assert server.name == "http://127.0.0.1:1/apis/ccompat/v7"
    cached = open_registry(RegistryConfig(path=str(tmp_path / "r"), cache=str(tmp_path / "c")))
    assert isinstance(cached, CachedRegistry)
    assert cached.name == str(tmp_path / "r")
