"""Schemas as registries really hold them: what the wire needs is compiled, whatever is wrong with the rest."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from distributary.config import RegistryConfig
from distributary.engine.schemas import Schemas
from distributary.errors import ConfigError, SchemaBroken
from distributary.schemas.registry import open_registry
from distributary.schemas.registry.by_hand import check_texts
from distributary.schemas.registry.compile import ProtobufSchema, compile_text
from distributary.schemas.registry.embedded import EmbeddedRegistry

P3 = 'syntax = "proto3";\n'


def message(compiled: ProtobufSchema, name: str = "A") -> Descriptor:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled.descriptor_set).file:
        pool.Add(file)
    return pool.FindMessageTypeByName(name)


def as_base64(text: str, name: str, imports: dict[str, str] | None = None) -> str:
    """What Confluent's Python client registers for a file."""
    files = FileDescriptorSet.FromString(compile_text(text, imports, file=name).descriptor_set).file
    return base64.b64encode(files[-1].SerializeToString()).decode()


INNER = P3 + "package p; message Inner { int32 x = 1; }"
OUTER = (
    P3 + 'import "p/inner.proto"; import "google/protobuf/timestamp.proto"; import "google/type/money.proto";'
    "message A { p.Inner inner = 1; google.protobuf.Timestamp at = 2; google.type.Money price = 3; }"
)


@pytest.mark.parametrize("inner_as_text", [True, False])
@pytest.mark.parametrize("outer_as_text", [True, False])
def test_a_file_may_be_a_descriptor_in_base64(inner_as_text: bool, outer_as_text: bool) -> None:
    inner = INNER if inner_as_text else as_base64(INNER, "p/inner.proto")
    outer = OUTER if outer_as_text else as_base64(OUTER, "outer.proto", {"p/inner.proto": INNER})
    compiled = compile_text(outer, {"p/inner.proto": inner}, id=4, file="schema_4.proto")
    files = [file.name for file in FileDescriptorSet.FromString(compiled.descriptor_set).file]
    assert files[-1] == "schema_4.proto"
    assert files.index("p/inner.proto") < len(files) - 1
    found = message(compiled)
    payload = bytes.fromhex("0a020805" + "12020807" + "1a05" + "0a03455552")
    read: Any = GetMessageClass(found)()
    read.ParseFromString(payload)
    assert (read.inner.x, read.at.seconds, read.price.currency_code) == (5, 7, "EUR")


def test_a_descriptor_in_base64_needs_no_import_that_only_options_use() -> None:
    annotations = {
        "v/validate.proto": 'syntax = "proto2"; import "google/protobuf/descriptor.proto"; package v;'
        "extend google.protobuf.FieldOptions { optional int32 max = 50123; }"
    }
    text = P3 + 'import "v/validate.proto"; message A { int32 n = 1 [(v.max) = 3]; }'
    assert message(compile_text(as_base64(text, "a.proto", annotations))).fields_by_name["n"].number == 1


@pytest.mark.parametrize("text", ["garbage", "AAAA", "====", "Zm9vYmFy", base64.b64encode(b"\x0a").decode()])
def test_base64_of_anything_else_is_a_broken_schema(text: str) -> None:
    with pytest.raises(SchemaBroken):
        compile_text(text)


def test_a_descriptor_whose_type_is_nowhere_is_a_broken_schema() -> None:
    file = FileDescriptorProto.FromString(base64.b64decode(as_base64(OUTER, "o.proto", {"p/inner.proto": INNER})))
    with pytest.raises(SchemaBroken, match=r"p\.Inner"):
        compile_text(base64.b64encode(file.SerializeToString()).decode())


def test_options_that_a_registry_wrote_wrongly_play_no_part() -> None:
    text = (
        P3
        + """
    import "google/protobuf/descriptor.proto";
    option java_package = "x"; option (o.file) = { a: [1, 2], b: "};" };
    enum Kind { option allow_alias = "true"; NONE = 0; ONE = 1 [deprecated = "true"]; UNO = 1; }
    message A {
      option (o.lists) = ["a", "b"];
      repeated int32 packed = 1 [packed = "false", (o.kind) = "LARGE", ctype = "CORD"];
      Kind kind = 2 [(o.many) = [{x: 1}, {x: 2}], jstype = "JS_STRING"];
      oneof choice { option (o.c) = ["q"]; string option_like = 3 [json_name = "k"]; }
      map<string, int32> counts = 4 [(o.m) = []];
      reserved 10 to 12, 20; reserved "gone"; // ] } option
      /* option x = [ */ string last = 5;
    }
    service S { option (o.s) = [1]; rpc Call (A) returns (gone.Reply) { option (google.api.http) = { get: "/v1" }; } }
    """
    )
    found = message(compile_text(text))
    assert [field.name for field in found.fields] == ["packed", "kind", "option_like", "counts", "last"]
    assert not found.fields_by_name["packed"].is_packed
    assert found.fields_by_name["kind"].enum_type is not None
    assert [v.name for v in found.fields_by_name["kind"].enum_type.values] == ["NONE", "ONE", "UNO"]


def test_defaults_of_proto2_survive_and_lose_the_quotes_that_are_no_part_of_them() -> None:
    text = """syntax = "proto2"; import "gone/options.proto";
    message A {
      enum Kind { NONE = 0; MINUS = -1; }
      optional Kind kind = 1 [default = "MINUS", (gone.o) = 1];
      optional string text = 2 [default = "a \\" b"];
      optional int32 n = 3 [default = -7];
      optional double d = 4 [(gone.o) = {x: 1}, default = -inf];
      optional bool b = 5 [default = "true"];
      repeated int32 list = 6 [packed = true];
      optional group G = 7 { optional int32 x = 1 [(gone.o) = [1]]; }
      extensions 100 to 199 [declaration = { number: 100 full_name: ".x" }];
    }"""
    fields = message(compile_text(text)).fields_by_name
    assert [fields[n].default_value for n in ("kind", "text", "n", "d", "b")] == [-1, 'a " b', -7, float("-inf"), True]
    assert fields["list"].is_packed
    assert fields["g"].type == fields["g"].TYPE_GROUP


def test_features_of_editions_stay() -> None:
    text = """edition = "2023"; import "gone.proto";
    option features.field_presence = "IMPLICIT"; option features.(pb.java).utf8_validation = VERIFY;
    message A {
      int32 plain = 1; int32 explicit = 2 [features.field_presence = EXPLICIT, (gone.o) = 1];
      A inner = 3 [features.message_encoding = DELIMITED];
      repeated int32 apart = 4 [features = { repeated_field_encoding: EXPANDED }];
    }"""
    fields = message(compile_text(text)).fields_by_name
    assert [fields[n].has_presence for n in ("plain", "explicit")] == [False, True]
    assert fields["inner"].type == fields["inner"].TYPE_GROUP
    assert not fields["apart"].is_packed


@pytest.mark.parametrize("path", ["gogoproto/gogo.proto", "google/api/field_behavior.proto"])
def test_imports_that_only_options_use_need_no_reference(path: str) -> None:
    text = f"""{P3} import "{path}"; import public "{path}";
    message A {{ string id = 1 [(google.api.field_behavior) = REQUIRED, (gogoproto.nullable) = false]; }}"""
    assert message(compile_text(text)).fields_by_name["id"].number == 1


def test_an_import_of_an_import_may_be_missing_too() -> None:
    middle = P3 + 'import "gone.proto"; import "also_gone.proto"; message M { int32 a = 1 [(gone.o) = 1]; }'
    text = P3 + 'import "middle.proto"; message A { M m = 1; }'
    assert message(compile_text(text, {"middle.proto": middle})).fields_by_name["m"].message_type is not None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ("KIND_NONE = 0; KIND_ONE = 1; ONE = 2;", {0: "KIND_NONE", 1: "KIND_ONE", 2: "ONE"}),
        ("none = 0; NONE = 1; wire_0000000a_x = 2;", {0: "none", 1: "NONE", 2: "wire_0000000a_x"}),
        ('NONE = 0; ONE = 1 [deprecated = true]; reserved 4; UN = 1; option wrong = "x";', {0: "NONE", 1: "UN"}),
    ],
)
@pytest.mark.parametrize("syntax", [P3, 'edition = "2023"; '])
def test_enum_values_that_protoc_takes_for_the_same_keep_their_names(
    syntax: str, values: str, names: dict[int, str]
) -> None:
    other = P3 + "package p; enum Other { OTHER_A = 0; a = 1; }"
    body = f"enum Kind {{ {values} }} Kind kind = 1; p.Other other = 2;"
    text = f'{syntax} import "p/other.proto"; message A {{ {body} }}'
    found = message(compile_text(text, {"p/other.proto": other}))
    kinds: list[Any] = [field.enum_type for field in found.fields]
    assert {number: value.name for number, value in kinds[0].values_by_number.items()} == names
    assert [value.name for value in kinds[1].values] == ["OTHER_A", "a"]


def test_a_default_finds_its_enum_value_again() -> None:
    body = "enum Kind { ONE = 1; UN = 1; TWO = 2; } optional Kind kind = 1 [default = TWO, json_name = 4];"
    found = message(compile_text(f'syntax = "proto2"; message A {{ {body} optional int32 n = 2 [default = 7]; }}'))
    assert [field.default_value for field in found.fields] == [2, 7]


def test_extensions_of_types_that_nobody_has_play_no_part() -> None:
    body = "message A { optional int32 x = 1; extend gone.B { optional int32 y = 9; } }"
    found = message(compile_text('syntax = "proto2"; import "gone.proto"; ' + body))
    assert [field.name for field in found.fields] == ["x"]


def test_a_missing_import_that_a_field_needs_is_still_said() -> None:
    with pytest.raises(SchemaBroken) as error:
        compile_text(P3 + 'import "gone.proto";\nmessage A { gone.Type t = 1 [(gone.o) = 1]; }')
    assert 'schema.proto:3: "gone.Type" is not defined' in error.value.parameters["detail"]
    assert "gone.proto: File not found" in error.value.parameters["detail"]


@pytest.mark.parametrize("syntax", ['syntax = "proto3";', 'syntax = "proto2";', 'edition = "2023";'])
def test_names_that_clash_in_json_only_are_two_fields(syntax: str) -> None:
    label = "optional " if "proto2" in syntax else ""
    text = f"""{syntax}
    message A {{ {label}string eventType = 1; {label}string event_type = 2; message B {{ {label}int32 a_b = 1; }} }}"""
    found = message(compile_text(text))
    assert [field.name for field in found.fields] == ["eventType", "event_type"]
    clash = compile_text(f'{syntax} message A {{ {label}int32 a = 1 [json_name = "b"]; {label}int32 b = 2; }}')
    assert [field.name for field in message(clash).fields] == ["a", "b"]


# -- texts by hand -----------------------------------------------------------------------------------------


def broken(tmp_path: Path) -> tuple[EmbeddedRegistry, int]:
    """A registry that holds a schema which does not compile."""
    registry = EmbeddedRegistry(tmp_path / "registry")
    schema_id = registry.register("game", P3 + "message A { int32 x = 1; }").schema.id
    stored = tmp_path / "registry" / "schemas" / f"{schema_id}.json"
    assert stored.is_file(), list((tmp_path / "registry").rglob("*"))
    stored.write_text(stored.read_text().replace("int32 x", "Gone x"))
    return registry, schema_id


def test_a_file_counts_in_place_of_a_text_that_does_not_compile(tmp_path: Path) -> None:
    _, schema_id = broken(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "inner.proto").write_text(P3 + 'import "more/most.proto"; message Inner { Most m = 1; }')
    (tmp_path / "more" / "most.proto").write_text(P3 + "message Most { int32 x = 1; }")
    fixed = tmp_path / "fixed.proto"
    imports = 'import "more/inner.proto";\nimport "gone.proto";'
    fixed.write_text(f"{P3}{imports} message A {{ Inner x = 1 [(gone.o) = 1]; }}")
    path = str(tmp_path / "registry")
    assert Schemas(open_registry(RegistryConfig(path=path))).resolve([schema_id])[1][schema_id][0] == "BROKEN_SCHEMA"

    config = RegistryConfig(path=path, texts={schema_id: str(fixed)})
    check_texts(config)
    compiled, refused = Schemas(open_registry(config)).resolve([schema_id, 99])
    assert list(refused) == [99]
    found = compiled[schema_id]
    assert isinstance(found, ProtobufSchema)
    assert message(found, "Inner").fields_by_name["m"].message_type is not None
    assert open_registry(config).latest("game").schema.text == fixed.read_text()


def test_a_file_needs_no_registry(tmp_path: Path) -> None:
    (tmp_path / "fixed.proto").write_text(P3 + "message A {}")
    config = RegistryConfig(url="http://127.0.0.1:1", attempts=1, texts={7: str(tmp_path / "fixed.proto")})
    assert Schemas(open_registry(config)).resolve([7])[0][7].id == 7


@pytest.mark.parametrize(("content", "said"), [(P3 + "message A { Gone g = 1; }", "Gone"), (None, "No such file")])
def test_check_lints_the_texts_by_hand(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "fixed.proto"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as error:
        check_texts(RegistryConfig(path=str(tmp_path), texts={7: str(file)}))
    assert (error.value.parameters["key"], error.value.parameters["file"]) == ("registry.texts.7", str(file))
    assert said in error.value.parameters["detail"]
