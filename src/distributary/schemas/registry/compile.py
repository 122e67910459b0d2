"""Schema ids to descriptors: the text and everything it imports, compiled once per id, on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from distributary.errors import SchemaBroken, SchemaNotFound
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.registry.compiler import Compiler

if TYPE_CHECKING:
    from distributary.schemas.registry import Registry, Schema

__all__ = ["CompiledSchema", "ProtobufSchema", "checked", "compile_schema", "compile_text", "referenced"]

_ALONE: Final = Compiler()
MAX_IMPORTS: Final = 2_000
MAX_IMPORT_LEVELS: Final = 100
"""References that lead to references; each level costs the driver a frame of its stack."""


@dataclass(frozen=True, slots=True)
class ProtobufSchema(CompiledSchema):
    """Descriptors of one schema id."""

    format: ClassVar = "protobuf"
    file: str
    """Name of the root .proto in the set."""
    descriptor_set: bytes
    """A serialised `google.protobuf.FileDescriptorSet`: dependencies first, the root last."""


def compile_schema(schema: Schema, registry: Registry, compiler: Compiler = _ALONE) -> ProtobufSchema:
    """Compile a schema with all its references.

    References are followed depth first, and the first text found for an import path is the one that counts: the
    order in which Confluent's registry itself resolves them, hence the texts it accepted the schema with. A text is
    .proto source or a `FileDescriptorProto` in base64. Options and imports that only options need may be wrong or
    missing (`lenient`).

    Raises:
        SchemaBroken: the text does not compile, or a reference that the wire needs leads nowhere; the detail names
            line and symbol.
        RegistryDown, RegistryDenied: from the registry, unchanged.
        CompilerDown: the compiler cannot be run at all.
    """
    subject = f"id {schema.id}"
    if schema.kind != "PROTOBUF":
        raise SchemaBroken(what=subject, detail=f"it is of kind {schema.kind}, not PROTOBUF")
    imports, lost = referenced(schema, registry, subject)
    file = f"schema_{schema.id}.proto"
    while file in imports:
        file = f"_{file}"
    try:
        return compile_text(schema.text, imports, id=schema.id, file=file, compiler=compiler)
    except SchemaBroken as error:
        detail = "; ".join([*lost, error.parameters["detail"]])
        raise SchemaBroken(what=subject, detail=detail) from None


def compile_text(
    text: str,
    imports: Mapping[str, str] | None = None,
    *,
    id: int = 0,
    file: str = "schema.proto",
    compiler: Compiler = _ALONE,
    strict: bool = False,
) -> ProtobufSchema:
    """Compile a schema text whose imports are given as import path -> text. Well-known types are built in.

    `strict`: whatever is wrong counts, also what no payload needs: as a registry takes texts in.

    Raises:
        SchemaBroken: with protoc's messages, `file:line: message` each.
        CompilerDown: the compiler cannot be run at all.
    """
    subject = f"id {id}" if id else file
    return ProtobufSchema(id, file, compiler.compile(file, {**(imports or {}), file: text}, subject, strict=strict))


def referenced(schema: Schema, registry: Registry, subject: str) -> tuple[dict[str, str], list[str]]:
    """Texts of all references by name, those that others need first; and what is said of those that lead nowhere."""
    texts: dict[str, str] = {}
    return texts, _resolve(schema, registry, subject, texts, set(), 0)


@contextmanager
def checked(subject: str, texts: Iterable[str], lost: Sequence[str], compiler: Compiler) -> Iterator[None]:
    """Around the reading of a schema that needs no compiler. `texts`: its own and those of its references. `lost`: what
    `referenced` says of some. Raises SchemaBroken: they are too large, or what the reading raises, behind `lost`."""
    if (size := sum(map(len, texts))) > compiler.limits.size:
        over = f"it has {size:,} bytes with its references; registry.max_schema_size allows {compiler.limits.size:,}"
        raise SchemaBroken(what=subject, detail=over)
    try:
        yield
    except SchemaBroken as error:
        raise SchemaBroken(what=subject, detail="; ".join([*lost, error.parameters["detail"]])) from None


def _resolve(
    schema: Schema, registry: Registry, subject: str, imports: dict[str, str], names_seen: set[str], level: int
) -> list[str]:
    """Fill `imports`; returns what is said of references that lead nowhere: only options may need them."""
    lost: list[str] = []
    for reference in schema.references:
        if reference.name in names_seen:
            continue
        names_seen.add(reference.name)
        if len(names_seen) > MAX_IMPORTS or level == MAX_IMPORT_LEVELS:
            detail = f"it has more than {MAX_IMPORTS} references, or more than {MAX_IMPORT_LEVELS} levels of them"
            raise SchemaBroken(what=subject, detail=detail)
        try:
            referred = registry.version(reference.subject, reference.version).schema
        except SchemaNotFound as error:
            lost.append(f'import "{reference.name}": {error}')
            continue
        lost += _resolve(referred, registry, subject, imports, names_seen, level + 1)
        imports[reference.name] = referred.text
    return lost
