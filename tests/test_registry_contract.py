"""What every registry must do, run over each adapter: the embedded one, the disk cache, and a real server."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from distributary.config import RegistryConfig
from distributary.errors import (
    RegistryRefused,
    SchemaBroken,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
)
from distributary.schemas.registry import GLOBAL, Reference, Registry, open_registry
from distributary.schemas.registry.compile import compile_schema

Subject = Callable[[str], str]

KINDS = ["embedded", "cached", pytest.param("confluent", marks=pytest.mark.services)]


@pytest.fixture(params=KINDS)
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Registry:
    if request.param == "confluent":
        return open_registry(RegistryConfig(url=request.getfixturevalue("registry_url")))
    cache = str(tmp_path / "cache") if request.param == "cached" else None
    return open_registry(RegistryConfig(path=str(tmp_path / "registry"), cache=cache))


@pytest.fixture
def subject() -> Subject:
    """Subject names of this test alone: a server is shared by all tests."""
    run = uuid.uuid4().hex[:12]
    return lambda name: f"{name}-{run}"


def proto(*fields: str, package: str = "ann", also: str = "") -> str:
    # The package makes texts of different tests different, so ids are not shared by accident.
    lines = " ".join(f"{field};" for field in fields)
    return f'syntax = "proto3"; package {package}; message Event {{ {lines} }} {also}'


V1 = ("string game_name = 1", "int32 score = 2")


def test_a_registered_schema_is_found_by_id_version_and_as_the_latest(registry: Registry, subject: Subject) -> None:
    name = subject("ann_game-value")
    text = proto(*V1, package=f"p{uuid.uuid4().hex}")
    done = registry.register(name, text)
    assert (done.subject, done.version) == (name, 1)
    assert (done.schema.kind, done.schema.text, done.schema.references) == ("PROTOBUF", text, ())
    assert registry.get(done.schema.id) == done.schema
    assert registry.version(name, 1) == done
    assert registry.latest(name) == done
    assert registry.versions(name) == [1]
    assert name in registry.subjects()


def test_subjects_are_sorted(registry: Registry, subject: Subject) -> None:
    for name in ("zoe", "ann", "bob"):
        registry.register(subject(name), proto(*V1))
    assert registry.subjects() == sorted(registry.subjects())


def test_registering_the_same_text_again_gives_the_same_version(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    first = registry.register(name, proto(*V1))
    assert registry.register(name, proto(*V1)) == first
    assert registry.versions(name) == [1]


def test_the_same_text_under_two_subjects_has_one_id(registry: Registry, subject: Subject) -> None:
    ann = registry.register(subject("ann"), proto(*V1))
    bob = registry.register(subject("bob"), proto(*V1))
    assert ann.schema.id == bob.schema.id


def test_another_text_has_another_id_and_the_next_version(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    registry.set_compatibility(name, "FULL")
    first = registry.register(name, proto(*V1))
    second = registry.register(name, proto(*V1, "optional string level = 3"))
    assert second.version == 2
    assert second.schema.id != first.schema.id
    assert registry.versions(name) == [1, 2]
    assert registry.latest(name) == second
    assert registry.version(name, 1) == first


def test_what_does_not_exist_is_not_found(registry: Registry, subject: Subject) -> None:
    registry.register(subject("ann"), proto(*V1))
    for call in (
        lambda: registry.get(999_999),
        lambda: registry.version(subject("ann"), 9),
        lambda: registry.version(subject("nobody"), 1),
        lambda: registry.latest(subject("nobody")),
        lambda: registry.versions(subject("nobody")),
        lambda: registry.delete_subject(subject("nobody")),
        lambda: registry.delete_subject(subject("nobody"), permanent=True),
    ):
        with pytest.raises(SchemaNotFound):
            call()


# -- compatibility: only what Confluent's registry and Apicurio's answer alike ---------------------------------


@pytest.mark.parametrize("level", ["BACKWARD", "BACKWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"])
def test_an_optional_field_may_be_added(registry: Registry, subject: Subject, level: str) -> None:
    name = subject("ann")
    registry.set_compatibility(name, level)
    registry.register(name, proto(*V1))
    registry.register(name, proto(*V1, "optional int64 col_ann_1 = 3"))
    done = registry.register(name, proto(*V1, "optional int64 col_ann_1 = 3", "optional string col_ann_2 = 4"))
    assert done.version == 3


def test_a_message_may_be_added(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    registry.set_compatibility(name, "BACKWARD")
    registry.register(name, proto(*V1))
    assert registry.register(name, proto(*V1, "Place at = 3", also="message Place { double x = 1; }")).version == 2


@pytest.mark.parametrize("level", ["BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"])
@pytest.mark.parametrize(
    "fields",
    [("string game_name = 1", "string score = 2"), ("string game_name = 1", "int32 score = 5")],
    ids=["type", "number"],
)
def test_a_changed_type_or_number_is_refused(
    registry: Registry, subject: Subject, level: str, fields: tuple[str, ...]
) -> None:
    name = subject("ann")
    registry.set_compatibility(name, level)
    registry.register(name, proto(*V1))
    with pytest.raises(SchemaIncompatible) as caught:
        registry.register(name, proto(*fields))
    assert caught.value.parameters["subject"] == name
    assert caught.value.parameters["level"] == level
    assert str(caught.value.parameters["version"]) == "1"
    assert registry.versions(name) == [1]


def test_level_none_takes_anything(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    # Both levels: Apicurio keeps NONE as the absence of a rule, so that the global level holds.
    registry.set_compatibility(GLOBAL, "NONE")
    try:
        registry.set_compatibility(name, "NONE")
        registry.register(name, proto(*V1))
        assert registry.register(name, proto("bytes other = 2")).version == 2
    finally:
        registry.set_compatibility(GLOBAL, "BACKWARD")


def test_the_global_level_holds_for_subjects_without_their_own(registry: Registry, subject: Subject) -> None:
    registry.set_compatibility(GLOBAL, "BACKWARD")
    registry.register(subject("ann"), proto(*V1))
    with pytest.raises(SchemaIncompatible) as caught:
        registry.register(subject("ann"), proto("int64 game_name = 1"))
    assert caught.value.parameters["level"] == "BACKWARD"


def test_an_unknown_level_is_refused_with_the_allowed_ones(registry: Registry, subject: Subject) -> None:
    with pytest.raises(RegistryRefused, match="FULL_TRANSITIVE"):
        registry.set_compatibility(subject("ann"), "SOMETIMES")


# -- broken texts, references ----------------------------------------------------------------------------------


def test_a_text_that_does_not_parse_is_broken_and_not_kept(registry: Registry, subject: Subject) -> None:
    with pytest.raises(SchemaBroken):
        registry.register(subject("ann"), "message {")
    with pytest.raises(SchemaNotFound):
        registry.versions(subject("ann"))


def test_references_are_kept_and_resolve(registry: Registry, subject: Subject) -> None:
    place = registry.register(subject("place"), proto("double x = 1", package="place").replace("Event", "Place"))
    imported = Reference("geo/place.proto", subject("place"), place.version)
    text = 'syntax = "proto3"; package ann; import "geo/place.proto"; message Event { place.Place at = 1; }'
    done = registry.register(subject("ann"), text, [imported])
    assert done.schema.references == (imported,)
    assert registry.get(done.schema.id) == done.schema
    assert compile_schema(done.schema, registry).descriptor_set


def test_a_reference_to_nothing_is_broken(registry: Registry, subject: Subject) -> None:
    text = 'syntax = "proto3"; import "gone.proto"; message Event { int32 a = 1; }'
    with pytest.raises(SchemaBroken):
        registry.register(subject("ann"), text, [Reference("gone.proto", subject("gone"), 1)])


# -- deletion --------------------------------------------------------------------------------------------------


def test_a_softly_deleted_schema_is_hidden_but_old_data_still_finds_it(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    done = registry.register(name, proto(*V1, package=f"p{uuid.uuid4().hex}"))
    registry.delete_subject(name)
    assert registry.get(done.schema.id) == done.schema
    assert name not in registry.subjects()
    for call in (registry.latest, registry.versions, registry.delete_subject):
        with pytest.raises(SchemaNotFound):
            call(name)


def test_registering_after_a_soft_delete_gives_the_next_version(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    first = registry.register(name, proto(*V1))
    registry.delete_subject(name)
    again = registry.register(name, proto(*V1))
    assert (again.version, again.schema.id) == (2, first.schema.id)
    assert registry.versions(name) == [2]
    assert registry.version(name, 1) == first


def test_a_permanent_delete_starts_over_at_version_1(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    registry.set_compatibility(name, "NONE")
    registry.register(name, proto(*V1))
    registry.register(name, proto(*V1, "bool on = 3"))
    registry.delete_subject(name, permanent=True)
    with pytest.raises(SchemaNotFound):
        registry.version(name, 1)
    text = proto("bytes other = 1")
    assert registry.register(name, text).version == 1
    assert registry.version(name, 1).schema.text == text


def test_a_permanent_delete_may_follow_a_soft_one(registry: Registry, subject: Subject) -> None:
    name = subject("ann")
    registry.register(name, proto(*V1))
    registry.delete_subject(name)
    registry.delete_subject(name, permanent=True)
    with pytest.raises(SchemaNotFound):
        registry.version(name, 1)


def test_only_the_named_subject_is_deleted(registry: Registry, subject: Subject) -> None:
    for name in ("ann", "bob"):
        registry.register(subject(name), proto(*V1))
    registry.delete_subject(subject("ann"), permanent=True)
    assert registry.latest(subject("bob")).schema.text == proto(*V1)
    assert registry.get(registry.latest(subject("bob")).schema.id).text == proto(*V1)


def _with_reference(registry: Registry, subject: Subject) -> int:
    registry.register(subject("place"), proto("double x = 1", package="place").replace("Event", "Place"))
    text = 'syntax = "proto3"; package ann; import "geo/place.proto"; message Event { place.Place at = 1; }'
    done = registry.register(subject("ann"), text, [Reference("geo/place.proto", subject("place"), 1)])
    return done.schema.id


@pytest.mark.parametrize("permanent", [False, True])
def test_a_referenced_subject_cannot_be_deleted(registry: Registry, subject: Subject, permanent: bool) -> None:
    _with_reference(registry, subject)
    with pytest.raises(SchemaInUse):
        registry.delete_subject(subject("place"), permanent=permanent)
    assert registry.versions(subject("place")) == [1]


# -- names and races -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["UPPER", "with space", "a%2Fb", "größe", "dots.and-dashes_"])
def test_any_subject_name_works(registry: Registry, subject: Subject, name: str) -> None:
    done = registry.register(subject(name), proto(*V1))
    assert registry.latest(subject(name)) == done
    assert subject(name) in registry.subjects()


def test_racing_registrations_of_one_text_give_one_version(registry: Registry, subject: Subject) -> None:
    text = proto(*V1, package=f"p{uuid.uuid4().hex}")
    found = []
    threads = [threading.Thread(target=lambda: found.append(registry.register(subject("ann"), text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({(done.version, done.schema.id) for done in found}) == 1
    assert registry.versions(subject("ann")) == [1]
