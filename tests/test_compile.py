"""Schema text to descriptors: references, well-known types, broken schemas."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from distributary.errors import RegistryDown, SchemaBroken, SchemaNotFound
from distributary.schemas.registry import Reference, Registry, Schema, SchemaVersion
from distributary.schemas.registry.compile import ProtobufSchema, compile_schema, compile_text

P3 = 'syntax = "proto3"; '


class Subjects:
    """The part of a registry that compiling needs; counts what is asked."""

    name = "test"

    def __init__(self, **subjects: Schema) -> None:
        self.subjects, self.asked = subjects, list[tuple[str, int]]()

    def version(self, subject: str, version: int) -> SchemaVersion:
        self.asked.append((subject, version))
        if subject not in self.subjects:
            raise SchemaNotFound(registry=self.name, what=f"{subject} version {version}")
        return SchemaVersion(subject, version, self.subjects[subject])


def build(root: Schema, **subjects: Schema) -> tuple[ProtobufSchema, Subjects]:
    registry = Subjects(**subjects)
    return compile_schema(root, cast(Registry, registry)), registry


def schema(text: str, *references: tuple[str, str], id: int = 1) -> Schema:
    return Schema(id, "PROTOBUF", text, tuple(Reference(name, subject, 1) for name, subject in references))


def files(compiled: ProtobufSchema) -> list[str]:
    return [file.name for file in FileDescriptorSet.FromString(compiled.descriptor_set).file]


def linked(compiled: ProtobufSchema) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled.descriptor_set).file:
        pool.Add(file)
    return pool


def type_of(compiled: ProtobufSchema, field: str) -> str:
    """Full name of the message type of a field of message A."""
    message = linked(compiled).FindMessageTypeByName("A").fields_by_name[field].message_type
    assert message is not None
    return message.full_name


C = schema(P3 + "package c; message C { int32 x = 1; }")
B = schema(P3 + 'package b; import "c.proto"; message B { c.C c = 1; }', ("c.proto", "c_value"))
A = schema(
    P3 + 'import "b.proto"; import "c.proto"; import "google/protobuf/timestamp.proto";'
    " message A { b.B b = 1; c.C c = 2; google.protobuf.Timestamp at = 3; }",
    ("b.proto", "some.subject"),
    ("c.proto", "c_value"),
    id=7,
)


def test_references_are_resolved_transitively_and_a_diamond_once() -> None:
    compiled, registry = build(A, **{"some.subject": B, "c_value": C})
    assert registry.asked == [("some.subject", 1), ("c_value", 1)]
    assert compiled.id == 7
    assert files(compiled)[-1] == compiled.file
    assert sorted(files(compiled)[:-1]) == ["b.proto", "c.proto", "google/protobuf/timestamp.proto"]
    assert type_of(compiled, "b") == "b.B"


def test_the_first_text_of_an_import_path_counts_as_in_the_registry() -> None:
    newer = schema(P3 + "package c; message C { int32 x = 1; string later = 2; }")
    root = schema(A.text, ("b.proto", "b"), ("c.proto", "c_newer"))
    compiled, _ = build(root, b=B, c_value=C, c_newer=newer)
    assert "later" not in linked(compiled).FindMessageTypeByName("c.C").fields_by_name


def test_schemas_that_refer_to_each_other_end_in_a_broken_schema() -> None:
    one = schema(P3 + 'import "two.proto";', ("two.proto", "two"))
    two = schema(P3 + 'import "one.proto";', ("one.proto", "one"))
    with pytest.raises(SchemaBroken, match="recursively imports itself"):
        build(one, one=one, two=two)


def test_a_missing_import_names_the_symbol_and_the_line() -> None:
    text = P3 + '\nimport "x/y.proto";\nmessage A {\n  y.Gone g = 1;\n}'
    with pytest.raises(SchemaBroken) as error:
        compile_text(text, id=3)
    assert error.value.parameters["what"] == "id 3"
    assert 'schema.proto:4: "y.Gone" is not defined' in error.value.parameters["detail"]
    assert "x/y.proto" in error.value.parameters["detail"]


def test_a_type_used_without_its_import_statement_is_broken() -> None:
    with pytest.raises(SchemaBroken, match=r'schema_7\.proto:1: "c\.C" is not defined'):
        build(schema(P3 + "message A { c.C c = 1; }", ("c.proto", "c"), id=7), c=C)


def test_a_reference_that_is_not_in_the_registry_breaks_only_this_schema() -> None:
    with pytest.raises(SchemaBroken, match=r'import "c.proto": .*c_value version 1'):
        build(B)


def test_an_outage_while_references_are_read_is_not_a_broken_schema() -> None:
    class Down(Subjects):
        def version(self, subject: str, version: int) -> SchemaVersion:
            raise RegistryDown(registry="test", attempts=1, detail="503")

    with pytest.raises(RegistryDown):
        compile_schema(B, cast(Registry, Down()))


def test_another_kind_of_schema_is_refused_by_name() -> None:
    with pytest.raises(SchemaBroken, match="AVRO"):
        compile_schema(Schema(1, "AVRO", '"string"'), cast(Registry, Subjects()))


@pytest.mark.parametrize(
    ("path", "type"),
    [
        ("google/protobuf/struct.proto", "google.protobuf.Struct"),
        ("google/protobuf/any.proto", "google.protobuf.Any"),
        ("google/protobuf/wrappers.proto", "google.protobuf.Int64Value"),
        ("google/protobuf/empty.proto", "google.protobuf.Empty"),
        ("google/type/money.proto", "google.type.Money"),
        ("google/type/datetime.proto", "google.type.DateTime"),
        ("confluent/type/decimal.proto", "confluent.type.Decimal"),
    ],
)
def test_types_that_a_registry_knows_need_no_reference(path: str, type: str) -> None:
    compiled = compile_text(f'{P3} import "{path}"; message A {{ {type} v = 1; }}')
    assert type_of(compiled, "v") == type


def test_confluent_annotations_compile() -> None:
    text = P3 + 'import "confluent/meta.proto"; message A { int32 v = 1 [(confluent.field_meta).doc = "x"]; }'
    assert linked(compile_text(text)).FindMessageTypeByName("A")


@pytest.mark.parametrize("edition", ["2023", "2024"])
def test_editions_compile(edition: str) -> None:
    field = linked(compile_text(f'edition = "{edition}"; message A {{ int32 v = 1; }}')).FindMessageTypeByName("A")
    assert field.fields_by_name["v"].has_presence


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        P3 + "message A { int32 a = 1; int32 b = 1; }",
        P3 + "message A { int32 a = 0; }",
        'syntax = "proto4"; message A {}',
        P3 + "message A {",
        P3 + "message A { string s = 1; } // \ud800",
    ],
)
def test_a_text_that_does_not_compile_is_a_broken_schema(text: str) -> None:
    with pytest.raises(SchemaBroken):
        compile_text(text)


@pytest.mark.parametrize("name", ["../escape.proto", "/etc/escape.proto", "a/../../escape.proto", "", "a\\b.proto"])
def test_an_import_path_never_leaves_the_folder(name: str) -> None:
    with pytest.raises(SchemaBroken):
        compile_text(P3, {name: P3})


def test_a_reference_named_like_the_root_does_not_replace_it() -> None:
    inner = schema(P3 + "message Inner {}")
    root = schema(P3 + 'import "schema_1.proto"; message Outer { Inner i = 1; }', ("schema_1.proto", "inner"))
    compiled, _ = build(root, inner=inner)
    assert linked(compiled).FindMessageTypeByName("Outer")
    assert compiled.file != "schema_1.proto"


@pytest.mark.parametrize("attempt", [lambda: compile_text(P3 + "message A {}"), lambda: compile_text("broken")])
def test_no_files_are_left_behind(
    attempt: Callable[[], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with contextlib.suppress(SchemaBroken):
        attempt()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SchemaBroken):
        compile_text(P3 + 'import "gone.proto"; message A { Gone g = 1; }')
    compile_text("message without_a_syntax_line {}")
    compile_text(P3 + 'import "google/protobuf/any.proto"; message A {}')
    assert capfd.readouterr() == ("", "")


def test_compiling_is_deterministic_and_pickles() -> None:
    compiled = compile_text(A.text, {"b.proto": B.text, "c.proto": C.text}, id=7)
    assert compiled == compile_text(A.text, {"b.proto": B.text, "c.proto": C.text}, id=7)
    assert pickle.loads(pickle.dumps(compiled)) == compiled


TRICKY = r"""syntax = "proto2"; package tricky.type;
message A {
  optional string text = 1 [default = "quote \" slash \\ tab \t bell \a é \xff"];
  optional bytes raw = 2 [default = "\000\001\xfe'"];
  optional double d = 3 [default = -inf];
  repeated int32 packed = 4 [packed = true];
  map<string, A> kids = 5;
  optional group G = 6 { optional int32 x = 1; }
  oneof choice { int32 one = 7; string two = 8; }
  extensions 100 to 199;
  enum Kind { ZERO = 0; MINUS = -1; }
  optional Kind kind = 9 [default = MINUS];
  reserved 20, 30 to 40; reserved "gone";
}
extend A { optional int32 more = 100; }
"""


def test_descriptors_are_those_that_protoc_writes(tmp_path: Path) -> None:
    (tmp_path / "schema.proto").write_text(TRICKY)
    out = tmp_path / "set.bin"
    assert protoc.main(["protoc", f"-I{tmp_path}", f"--descriptor_set_out={out}", "schema.proto"]) == 0
    (expected,) = FileDescriptorSet.FromString(out.read_bytes()).file
    (actual,) = FileDescriptorSet.FromString(compile_text(TRICKY).descriptor_set).file
    assert actual == _without_json_names(expected)


def _without_json_names(file: FileDescriptorProto) -> FileDescriptorProto:
    todo = list(file.message_type)
    while todo:
        message = todo.pop()
        todo += message.nested_type
        for field in [*message.field, *message.extension]:
            field.ClearField("json_name")
    for field in file.extension:
        field.ClearField("json_name")
    return file
