"""The embedded registry: Confluent's rules of compatibility and deletion, files, processes, faults."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from distributary.errors import RegistryDown, SchemaBroken, SchemaIncompatible, SchemaInUse, SchemaNotFound
from distributary.schemas.formats import compile_payload
from distributary.schemas.registry import GLOBAL, Reference
from distributary.schemas.registry.compile import compile_schema
from distributary.schemas.registry.compiler import Compiler
from distributary.schemas.registry.embedded import EmbeddedRegistry

ALL_LEVELS = ["BACKWARD", "FORWARD", "FULL"]


@pytest.fixture
def registry(tmp_path: Path) -> EmbeddedRegistry:
    return EmbeddedRegistry(tmp_path / "registry")


def proto(body: str, *, package: str = "ann", syntax: str = "proto3") -> str:
    return f'syntax = "{syntax}"; package {package}; {body}'


def event(fields: str, *, also: str = "", syntax: str = "proto3", package: str = "ann") -> str:
    return proto(f"message Event {{ {fields} }} {also}", syntax=syntax, package=package)


def evolve(registry: EmbeddedRegistry, level: str, *texts: str) -> None:
    registry.set_compatibility("s", level)
    for text in texts:
        registry.register("s", text)


# -- kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "broken", "other"),
    [
        (
            "AVRO",
            '"string"',
            '{"type": "nothing"}',
            '{"type": "record", "name": "r", "fields": [{"name": "m", "type": "M"}]}',
        ),
        ("JSON", '{"type": "string"}', '{"type": "nothing"}', '{"properties": {"m": {"$ref": "M"}}}'),
    ],
)  # fmt: skip
def test_avro_and_json_schemas_are_kept_by_the_rules_of_ids_versions_and_references(
    registry: EmbeddedRegistry, kind: str, text: str, broken: str, other: str
) -> None:
    first = registry.register("a", text, kind=kind)
    assert (first.version, first.schema.kind, first.schema.text) == (1, kind, text)
    assert registry.register("a", text, kind=kind) == first
    assert registry.register("b", text, kind=kind).schema == first.schema
    assert registry.get(first.schema.id) == first.schema
    with pytest.raises(SchemaBroken, match="nothing"):
        registry.register("c", broken, kind=kind)
    with pytest.raises(SchemaBroken, match="M"):
        registry.register("c", other, kind=kind)
    named = '{"type": "enum", "name": "M", "symbols": ["X"]}' if kind == "AVRO" else text
    registry.register("m", named, kind=kind)
    found = registry.register("c", other, [Reference("M", "m", 1)], kind=kind)
    assert compile_payload(found.schema, registry, Compiler()).id == found.schema.id
    with pytest.raises(SchemaInUse):
        registry.delete_subject("m")


def test_a_subject_keeps_its_kind_unless_its_level_is_none(registry: EmbeddedRegistry) -> None:
    registry.register("s", '"string"', kind="AVRO")
    for kind, text in (("JSON", '"string"'), ("JSON", "{}"), ("PROTOBUF", event("int32 a = 1;"))):
        with pytest.raises((SchemaIncompatible, SchemaBroken)):
            registry.register("s", text, kind=kind)
    registry.set_compatibility("s", "NONE")
    assert registry.register("s", "{}", kind="JSON").version == 2
    assert registry.register("s", event("int32 a = 1;")).version == 3
    with pytest.raises(SchemaBroken, match="kind XML"):
        registry.register("s", "<a/>", kind="XML")


def test_one_text_of_two_kinds_has_two_ids(registry: EmbeddedRegistry) -> None:
    text = '{"type": "string"}'
    ids = {registry.register(kind, text, kind=kind).schema.id for kind in ("AVRO", "JSON")}
    assert len(ids) == 2


# -- compatibility ---------------------------------------------------------------------------------------------

COMPATIBLE = {
    "an optional field is added": ("int32 a = 1;", "int32 a = 1; optional string b = 2;"),
    "a plain field is added": ("int32 a = 1;", "int32 a = 1; string b = 2;"),
    "a field is removed": ("int32 a = 1; string b = 2;", "int32 a = 1;"),
    "a field is removed and reserved": ("int32 a = 1; string b = 2;", "int32 a = 1; reserved 2;"),
    "a field is renamed": ("int32 a = 1;", "int32 score = 1;"),
    "int32 to int64": ("int32 a = 1;", "int64 a = 1;"),
    "int32 to uint64": ("int32 a = 1;", "uint64 a = 1;"),
    "bool to uint32": ("bool a = 1;", "uint32 a = 1;"),
    "enum to int32": ("enum E { Z = 0; } E a = 1;", "enum E { Z = 0; } int32 a = 1;"),
    "string to bytes": ("string a = 1;", "bytes a = 1;"),
    "sint32 to sint64": ("sint32 a = 1;", "sint64 a = 1;"),
    "fixed32 to sfixed32": ("fixed32 a = 1;", "sfixed32 a = 1;"),
    "fixed64 to sfixed64": ("fixed64 a = 1;", "sfixed64 a = 1;"),
    "plain to optional": ("int32 a = 1;", "optional int32 a = 1;"),
    "a string turns repeated": ("string a = 1;", "repeated string a = 1;"),
    "a value is added to an enum": ("enum E { Z = 0; } E a = 1;", "enum E { Z = 0; Y = 1; } E a = 1;"),
    "a field is added to a oneof": ("oneof o { int32 a = 1; }", "oneof o { int32 a = 1; int32 b = 2; }"),
    "a map value changes inside its group": ("map<string, int32> a = 1;", "map<string, int64> a = 1;"),
    "a nested message gains a field": (
        "message In { int32 x = 1; } In a = 1;",
        "message In { int32 x = 1; int32 y = 2; } In a = 1;",
    ),
    "a recursive message gains a field": ("Event a = 1;", "Event a = 1; int32 b = 2;"),
}


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("change", sorted(COMPATIBLE.keys() - {"a field is added to a oneof"}))
def test_compatible_at_every_level(registry: EmbeddedRegistry, change: str, level: str) -> None:
    old, new = COMPATIBLE[change]
    evolve(registry, level, event(old), event(new))
    assert registry.versions("s") == [1, 2]


def test_a_field_added_to_a_oneof_is_backward_compatible_only(registry: EmbeddedRegistry) -> None:
    old, new = COMPATIBLE["a field is added to a oneof"]
    evolve(registry, "BACKWARD", event(old), event(new))
    registry.set_compatibility("t", "FORWARD")
    registry.register("t", event(old))
    with pytest.raises(SchemaIncompatible, match="oneof o"):
        registry.register("t", event(new))


INCOMPATIBLE = {
    "string to int32": (
        "string a = 1;",
        "int32 a = 1;",
        "message Event, field a \\(number 1\\): (string|int32) cannot be read as (int32|string)",
    ),
    "int32 to sint32": ("int32 a = 1;", "sint32 a = 1;", "field a"),
    "int32 to fixed32": ("int32 a = 1;", "fixed32 a = 1;", "field a"),
    "float to double": ("float a = 1;", "double a = 1;", "field a"),
    "string to message": ("string a = 1;", "message In { int32 x = 1; } In a = 1;", "field a"),
    "another number": ("int32 a = 1;", "int32 a = 2;", "message Event, field a: its number differs \\(1, 2\\)"),
    "two fields swap numbers": ("int32 a = 1; int32 b = 2;", "int32 b = 1; int32 a = 2;", "field a"),
    "a number turns repeated": ("int32 a = 1;", "repeated int32 a = 1;", "field a"),
    "another message": (
        "message In { int32 x = 1; } message Out { int32 x = 1; } In a = 1;",
        "message In { int32 x = 1; } message Out { int32 x = 1; } Out a = 1;",
        "field a",
    ),
    "a field of a nested message changes": (
        "message In { int32 x = 1; } In a = 1;",
        "message In { string x = 1; } In a = 1;",
        "message Event.In, field x",
    ),
    "a map value leaves its group": ("map<string, int32> a = 1;", "map<string, string> a = 1;", "field a .*map value"),
    "a map turns into a message": (
        "map<string, int32> a = 1;",
        "message In { int32 x = 1; } repeated In a = 1;",
        "field a",
    ),
}


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("change", INCOMPATIBLE)
def test_incompatible_at_every_level(registry: EmbeddedRegistry, change: str, level: str) -> None:
    old, new, detail = INCOMPATIBLE[change]
    with pytest.raises(SchemaIncompatible, match=detail) as caught:
        evolve(registry, level, event(old), event(new))
    assert (caught.value.parameters["level"], caught.value.parameters["version"]) == (level, 1)
    assert registry.versions("s") == [1]


def test_a_changed_package_is_refused(registry: EmbeddedRegistry) -> None:
    with pytest.raises(SchemaIncompatible, match="package"):
        evolve(registry, "BACKWARD", event("int32 a = 1;"), event("int32 a = 1;", package="bob"))


@pytest.mark.parametrize(("level", "refused"), [("BACKWARD", True), ("FULL", True), ("FORWARD", False)])
def test_a_removed_message_is_refused_for_readers_of_old_data(
    registry: EmbeddedRegistry, level: str, refused: bool
) -> None:
    texts = event("int32 a = 1;", also="message Place { int32 x = 1; }"), event("int32 a = 1;")
    if not refused:
        evolve(registry, level, *texts)
        return
    with pytest.raises(SchemaIncompatible, match="message Place is removed"):
        evolve(registry, level, *texts)


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_a_message_may_be_added_at_every_level(registry: EmbeddedRegistry, level: str) -> None:
    evolve(registry, level, event("int32 a = 1;"), event("int32 a = 1; In b = 2;", also="message In { int32 x = 1; }"))


def test_an_added_required_field_is_refused(registry: EmbeddedRegistry) -> None:
    texts = [event(fields, syntax="proto2") for fields in ("", "required int32 a = 1;")]
    with pytest.raises(SchemaIncompatible, match="required"):
        evolve(registry, "BACKWARD", *texts)


def test_two_fields_that_move_into_one_oneof_are_refused(registry: EmbeddedRegistry) -> None:
    with pytest.raises(SchemaIncompatible, match="oneof o"):
        evolve(registry, "BACKWARD", event("int32 a = 1; int32 b = 2;"), event("oneof o { int32 a = 1; int32 b = 2; }"))


def test_one_field_may_move_into_a_new_oneof(registry: EmbeddedRegistry) -> None:
    evolve(registry, "BACKWARD", event("int32 a = 1;"), event("oneof o { int32 a = 1; int32 b = 2; }"))


def test_a_change_inside_an_imported_message_is_found(registry: EmbeddedRegistry) -> None:
    text = 'syntax = "proto3"; package ann; import "in.proto"; message Event { geo.In a = 1; }'
    registry.set_compatibility("in", "NONE")
    registry.set_compatibility("s", "FULL")
    for version, fields in enumerate(("int32 x = 1;", "string x = 1;"), start=1):
        registry.register("in", proto(f"message In {{ {fields} }}", package="geo"))
        if version == 1:
            registry.register("s", text, [Reference("in.proto", "in", version)])
    with pytest.raises(SchemaIncompatible, match=r"geo\.In, field x"):
        registry.register("s", text, [Reference("in.proto", "in", 2)])


@pytest.mark.parametrize(
    ("level", "refused"),
    [("BACKWARD", False), ("BACKWARD_TRANSITIVE", True), ("FULL", False), ("FULL_TRANSITIVE", True)],
)
def test_only_transitive_levels_look_at_all_versions(registry: EmbeddedRegistry, level: str, refused: bool) -> None:
    texts = event("int32 a = 1; string b = 2;"), event("int32 a = 1;"), event("int32 a = 1; int32 c = 2;")
    if not refused:
        evolve(registry, level, *texts)
        return
    with pytest.raises(SchemaIncompatible) as caught:
        evolve(registry, level, *texts)
    assert caught.value.parameters["version"] == 1


def test_the_default_level_is_backward(registry: EmbeddedRegistry) -> None:
    registry.register("s", event("int32 a = 1;"))
    with pytest.raises(SchemaIncompatible) as caught:
        registry.register("s", event("string a = 1;"))
    assert caught.value.parameters["level"] == "BACKWARD"


def test_a_subjects_level_goes_before_the_global_one(registry: EmbeddedRegistry) -> None:
    registry.set_compatibility(GLOBAL, "NONE")
    registry.register("free", event("int32 a = 1;"))
    assert registry.register("free", event("string a = 1;")).version == 2
    with pytest.raises(SchemaIncompatible):
        evolve(registry, "FULL", event("int32 a = 1;"), event("string a = 1;"))


def test_softly_deleted_versions_are_not_compared_with(registry: EmbeddedRegistry) -> None:
    evolve(registry, "FULL_TRANSITIVE", event("int32 a = 1;"))
    registry.delete_subject("s")
    evolve(registry, "FULL_TRANSITIVE", event("string a = 1;"))
    assert registry.versions("s") == [2]


# -- references and deletion -----------------------------------------------------------------------------------


def diamond(registry: EmbeddedRegistry) -> int:
    """A imports B and D, B imports C, D imports C; names differ from subjects."""
    c = registry.register("c-subject", proto("message C { int32 x = 1; }", package="c"))
    ref_c = Reference("deep/c.proto", "c-subject", c.version)
    for name in ("b", "d"):
        text = f'syntax = "proto3"; package {name}; import "deep/c.proto"; message M {{ c.C c = 1; }}'
        registry.register(f"{name}-subject", text, [ref_c])
    refs = [Reference(f"x/{name}.proto", f"{name}-subject", 1) for name in ("b", "d")]
    text = (
        'syntax = "proto3"; import "x/b.proto"; import "x/d.proto"; import "google/protobuf/timestamp.proto";'
        " message Event { b.M b = 1; d.M d = 2; google.protobuf.Timestamp at = 3; }"
    )
    return registry.register("a-subject", text, refs).schema.id


def test_references_are_resolved_through_other_references(registry: EmbeddedRegistry) -> None:
    schema_id = diamond(registry)
    assert compile_schema(registry.get(schema_id), registry).descriptor_set


def test_a_missing_import_is_named(registry: EmbeddedRegistry) -> None:
    with pytest.raises(SchemaBroken, match=r"gone\.proto"):
        registry.register("s", 'syntax = "proto3"; import "gone.proto"; message Event { int32 a = 1; }')


def test_a_missing_type_is_named(registry: EmbeddedRegistry) -> None:
    with pytest.raises(SchemaBroken, match="Nowhere"):
        registry.register("s", event("Nowhere a = 1;"))


def test_a_broken_text_takes_no_id(registry: EmbeddedRegistry) -> None:
    with pytest.raises(SchemaBroken):
        registry.register("s", "message {")
    assert registry.register("s", event("int32 a = 1;")).schema.id == 1


def test_a_new_schema_cannot_refer_to_a_softly_deleted_one(registry: EmbeddedRegistry) -> None:
    registry.register("in", proto("message In { int32 x = 1; }", package="geo"))
    registry.delete_subject("in")
    text = 'syntax = "proto3"; import "in.proto"; message Event { geo.In a = 1; }'
    with pytest.raises(SchemaBroken, match="in version 1"):
        registry.register("s", text, [Reference("in.proto", "in", 1)])


def test_softly_deleted_references_still_resolve_for_old_data(registry: EmbeddedRegistry) -> None:
    schema_id = diamond(registry)
    with pytest.raises(SchemaInUse, match="refers to it"):
        registry.delete_subject("c-subject")
    for subject in ("a", "b", "d", "c"):
        registry.delete_subject(f"{subject}-subject")
    assert registry.subjects() == []
    assert registry.version("c-subject", 1).schema.kind == "PROTOBUF"
    assert b"message" not in compile_schema(registry.get(schema_id), registry).descriptor_set


def test_a_permanently_deleted_id_is_gone_once_no_subject_uses_it(registry: EmbeddedRegistry) -> None:
    done = registry.register("s", event("int32 a = 1;"))
    registry.register("t", event("int32 a = 1;"))
    registry.delete_subject("s", permanent=True)
    assert registry.get(done.schema.id) == done.schema
    registry.delete_subject("t")
    registry.delete_subject("t", permanent=True)
    with pytest.raises(SchemaNotFound):
        registry.get(done.schema.id)


def test_an_id_is_never_given_out_twice(registry: EmbeddedRegistry) -> None:
    first = registry.register("s", event("int32 a = 1;"))
    registry.delete_subject("s", permanent=True)
    assert registry.register("s", event("int32 a = 1;")).schema.id > first.schema.id


def test_a_delete_forgets_the_subjects_level(registry: EmbeddedRegistry) -> None:
    evolve(registry, "NONE", event("int32 a = 1;"))
    registry.delete_subject("s")
    registry.register("s", event("int32 a = 1;"))
    with pytest.raises(SchemaIncompatible):
        registry.register("s", event("string a = 1;"))


# -- files, processes, faults ----------------------------------------------------------------------------------


def test_another_object_on_the_same_folder_sees_everything(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    done = registry.register("s", event("int32 a = 1;"))
    other = EmbeddedRegistry(tmp_path / "registry")
    assert (other.get(done.schema.id), other.latest("s"), other.subjects()) == (done.schema, done, ["s"])


def test_a_path_without_a_registry_is_an_outage_and_not_an_unknown_id(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path / "mistyped")
    for call in (lambda: registry.get(1), lambda: registry.version("s", 1)):
        with pytest.raises(RegistryDown, match=r"registry\.path"):
            call()
    assert registry.subjects() == []
    assert not (tmp_path / "mistyped").exists()


def test_a_damaged_file_is_an_outage(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    done = registry.register("s", event("int32 a = 1;"))
    (tmp_path / "registry" / "schemas" / f"{done.schema.id}.json").write_text('{"id": 1, "te')
    with pytest.raises(RegistryDown):
        registry.get(done.schema.id)


def test_a_folder_that_cannot_be_written_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryDown):
        EmbeddedRegistry(tmp_path / "file" / "registry").register("s", event("int32 a = 1;"))


def test_long_subjects_and_subjects_that_differ_in_case_are_kept_apart(registry: EmbeddedRegistry) -> None:
    names = sorted(["x" * 300, "x" * 301, "CASE", "case", "../up", ".", "a/b"])
    for number, name in enumerate(names, start=1):
        registry.register(name, event(f"int32 a = {number};"))
    assert registry.subjects() == names
    assert len({registry.latest(name).schema.id for name in names}) == len(names)


def _register_many(path: str, worker: int) -> None:
    registry = EmbeddedRegistry(Path(path))
    for number in range(8):
        registry.register("shared", event(f"int32 a = 1; int32 b{worker} = {10 + worker}; int32 c = {100 + number};"))
        registry.register(f"own-{worker}", event(f"int32 own_{worker}_{number} = {number + 1};"))


def test_several_processes_register_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "registry"
    registry = EmbeddedRegistry(path)
    registry.set_compatibility(GLOBAL, "NONE")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_register_many, args=(str(path), worker)) for worker in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    assert [process.exitcode for process in workers] == [0, 0, 0]
    assert registry.versions("shared") == list(range(1, 25))
    subjects = registry.subjects()
    assert subjects == ["own-0", "own-1", "own-2", "shared"]
    ids = [registry.version(subject, v).schema.id for subject in subjects for v in registry.versions(subject)]
    assert sorted(ids) == list(range(1, 49))


def _register_for_ever(path: str) -> None:
    registry = EmbeddedRegistry(Path(path))
    while True:
        registry.register("s", event(f"int32 a{time.time_ns()} = 1;"))


@pytest.mark.crash
def test_a_killed_writer_leaves_a_registry_that_works(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path / "registry")
    registry.set_compatibility(GLOBAL, "NONE")
    context = multiprocessing.get_context("fork")
    for kills in range(1, 6):
        before = len(registry.versions("s")) if registry.subjects() else 0
        process = context.Process(target=_register_for_ever, args=(str(tmp_path / "registry"),))
        process.start()
        while not registry.subjects() or len(registry.versions("s")) < before + kills:
            time.sleep(0.002)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        versions = registry.versions("s")
        assert versions == list(range(1, len(versions) + 1))
        assert all(registry.version("s", version).schema.text for version in versions)
        added = registry.register("s", event(f"int32 after_{kills} = 1;"))
        assert added.version == len(versions) + 1
        ids = [registry.version("s", version).schema.id for version in registry.versions("s")]
        assert len(set(ids)) == len(ids)


def test_files_are_plain_json(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    registry.register("ann game", event("int32 a = 1;"))
    (file,) = (tmp_path / "registry" / "subjects").iterdir()
    assert file.name.startswith("ann%20game.")
    assert json.loads(file.read_text())["versions"] == [{"version": 1, "id": 1, "deleted": False}]
    assert [path.name for path in (tmp_path / "registry").rglob("*.tmp")] == []
