"""Schema text to descriptors: protoc over the text and everything it imports, once per schema id, on the driver.

protoc runs inside the process through the module that `grpc_tools` builds its own import hooks on: it takes
0.1 to 0.2 ms a schema, prints nothing and reports errors as values. The command-line entry (`protoc.main`) costs
2 ms and reports errors only on file descriptor 2, which belongs to the whole process.
"""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import _protoc_compiler as protoc

from distributary.errors import SchemaBroken, SchemaNotFound

if TYPE_CHECKING:
    from distributary.registry import Registry, Schema

_WELL_KNOWN: Final = str(resources.files("grpc_tools") / "_proto")
_DESCRIPTOR_CALL: Final = "DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile("

_CONFLUENT: Final = {
    "confluent/meta.proto": """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
}
"""Files that a Confluent registry resolves by itself, so that schemas import them without a reference."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """Descriptors of one schema id. Pickles, and ships to Spark tasks."""

    id: int
    file: str
    """Name of the root .proto in the set."""
    descriptor_set: bytes
    """A serialised `google.protobuf.FileDescriptorSet`: dependencies first, the root last."""


def compile_schema(schema: Schema, registry: Registry) -> CompiledSchema:
    """Compile a schema with all its references.

    References are followed depth first, and the first text found for an import path is the one that counts: the
    order in which Confluent's registry itself resolves them, hence the texts it accepted the schema with.

    Raises:
        SchemaBroken: the text does not compile, or a reference leads nowhere; the detail names line and symbol.
        RegistryDown, RegistryDenied: from the registry, unchanged.
    """
    what = f"id {schema.id}"
    if schema.kind != "PROTOBUF":
        raise SchemaBroken(what=what, detail=f"it is of kind {schema.kind}, not PROTOBUF")
    imports: dict[str, str] = {}
    _resolve(schema, registry, what, imports, set())
    file = f"schema_{schema.id}.proto"
    while file in imports:
        file = f"_{file}"
    return compile_text(schema.text, imports, id=schema.id, file=file)


def compile_text(
    text: str, imports: Mapping[str, str] | None = None, *, id: int = 0, file: str = "schema.proto"
) -> CompiledSchema:
    """Compile a schema text whose imports are given as import path -> text. Well-known types are built in.

    Raises:
        SchemaBroken: with protoc's messages, `file:line: message` each.
    """
    what = f"id {id}" if id else file
    texts = {**(imports or {}), file: text}
    with tempfile.TemporaryDirectory(prefix="distributary-proto-") as folder:
        for name, content in texts.items():
            _write(Path(folder), name, content, what)
        while True:
            try:
                generated = protoc.get_protos(os.fsencode(file), [os.fsencode(_WELL_KNOWN), os.fsencode(folder)])
                break
            except protoc.ProtocErrors as error:
                missing = {name: _built_in(name) for name in _missing(error) if name not in texts}
                found = {name: content for name, content in missing.items() if content is not None}
                if not found:
                    raise SchemaBroken(what=what, detail=_detail(error)) from None
                for name, content in found.items():
                    _write(Path(folder), name, content, what)
                texts |= found
    files = [FileDescriptorProto.FromString(_serialised(code.decode())) for _, code in generated]
    return CompiledSchema(id, file, FileDescriptorSet(file=files).SerializeToString(deterministic=True))


def _resolve(schema: Schema, registry: Registry, what: str, imports: dict[str, str], seen: set[str]) -> None:
    for reference in schema.references:
        if reference.name in seen:
            continue
        seen.add(reference.name)
        try:
            found = registry.version(reference.subject, reference.version).schema
        except SchemaNotFound as error:
            detail = f'import "{reference.name}": {error}'
            raise SchemaBroken(what=what, detail=detail) from error
        _resolve(found, registry, what, imports, seen)
        imports[reference.name] = found.text


def _write(folder: Path, name: str, text: str, what: str) -> None:
    """Write one file of the set; a name comes from a registry and must stay inside the folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or {"..", "."} & set(name.split("/")) or {"\\", "\0"} & set(name):
        raise SchemaBroken(what=what, detail=f"{name!r} is not a usable import path")
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    except (FileExistsError, NotADirectoryError, IsADirectoryError, UnicodeEncodeError) as error:
        raise SchemaBroken(what=what, detail=f"{name!r}: {error.args[-1]}") from error


def _built_in(name: str) -> str | None:
    """Text of an import that Confluent's registry knows without a reference (`google/type/*`, `confluent/*`)."""
    if name.startswith("google/type/") and name.count("/") == 2:
        file = resources.files("google.type") / name.rpartition("/")[2]
        return file.read_text() if file.is_file() else None
    return _CONFLUENT.get(name)


def _missing(error: protoc.ProtocErrors) -> list[str]:
    return [_text(e.filename) for e in error.errors() if _text(e.message) == "File not found."]


def _detail(error: protoc.ProtocErrors) -> str:
    """All messages; lines are counted from 0 by protoc, and -1 means the file as a whole."""
    return "; ".join(
        f"{_text(e.filename)}{f':{e.line + 1}' if e.line >= 0 else ''}: {_text(e.message)}" for e in error.errors()
    )


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _serialised(code: str) -> bytes:
    """The descriptor inside protoc's Python output: one line, one bytes literal."""
    calls = (line.strip() for line in code.split("\n"))
    call = next(line for line in calls if line.startswith(_DESCRIPTOR_CALL))
    literal: bytes = ast.literal_eval(call[len(_DESCRIPTOR_CALL) : -1])
    return literal
