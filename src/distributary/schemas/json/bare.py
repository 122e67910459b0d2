"""JSON without any schema as a payload format: the pipeline file says which fields are columns, and their types.

What else there is has columns by the kinds of its values where the file asks for it (`inferred`), and is kept as it is
where not. Either way the same record always is the same row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, cast

import pyarrow as pa

from distributary.config.column_types import ColumnType, read_type
from distributary.errors import SchemaBroken
from distributary.schemas.decoding import BadIndex, CompiledSchema
from distributary.schemas.header import WHOLE, unchanged
from distributary.schemas.json.decoder import JsonDecoder
from distributary.schemas.json.inferred import with_shape
from distributary.schemas.json.nodes import Array, Field, Map, Node, Record, Scalar, Tree, ValueKind
from distributary.schemas.protobuf.framing import Frames
from distributary.schemas.registry import Registry, Schema
from distributary.schemas.registry.compiler import Compiler

__all__ = ["KIND", "BareSchema", "compile_payload", "decoder_for", "frame_all", "split_frames", "without_schema"]

KIND: str | None = None
NAME: Final = "record"


@dataclass(frozen=True, slots=True)
class BareSchema(CompiledSchema):
    """`columns`: path of a field -> its type, as the pipeline file has them."""

    format: ClassVar = "json_bare"
    columns: tuple[tuple[str, str], ...]


def compile_payload(schema: Schema, registry: Registry, compiler: Compiler) -> CompiledSchema:
    """Raises SchemaBroken: there is none to compile."""
    raise SchemaBroken(what=f"id {schema.id}", detail="with framing none, JSON payloads have no schema")


def without_schema(columns: Mapping[str, str]) -> BareSchema:
    return BareSchema(0, tuple(columns.items()))


def split_frames(values: Any, *, legacy_varints: bool = False) -> Frames:
    return unchanged(values)


def frame_all(schema_id: int, index: str, bodies: pa.Array) -> pa.Array:
    return bodies


def decoder_for(
    schema: BareSchema, message: str = WHOLE, *, raw_nested_indexes: bool = False, null_out_of_range: bool = False
) -> JsonDecoder:
    """The decoder of some columns, from this process's cache. Raises BadIndex."""
    if message != WHOLE and not message.startswith("["):
        raise BadIndex(f"JSON payloads have no message {message!r}")
    return _decoder(schema.columns, message)


@lru_cache(maxsize=256)
def _decoder(columns: tuple[tuple[str, str], ...], message: str) -> JsonDecoder:
    declared = declared_record(columns)
    if message == WHOLE:
        return JsonDecoder(Tree(NAME, declared))
    return JsonDecoder(Tree(NAME, with_shape(declared, message), is_inferred=True))


@lru_cache(maxsize=64)
def declared_record(columns: tuple[tuple[str, str], ...]) -> Record:
    """The fields that the pipeline file declares."""
    return _record([(path.split("."), read_type(kind)) for path, kind in columns])


def _record(paths: list[tuple[list[str], ColumnType]]) -> Record:
    """An object of the fields at these paths, in the order in which they are named."""
    inner: dict[str, list[tuple[list[str], ColumnType]]] = {}
    for (name, *rest), kind in paths:
        inner.setdefault(name, []).append((rest, kind))
    fields = []
    for name, below in inner.items():
        steps, kind = below[0]
        fields.append(Field(name, _record(below) if steps else _node(kind)))
    return Record(tuple(fields))


def _node(kind: ColumnType) -> Node:
    name, *inside = kind
    if name in ("array", "map"):
        inner = _node(cast(ColumnType, inside[0]))
        return Array(inner) if name == "array" else Map(inner)
    if name == "decimal":
        return Scalar("decimal", cast(int, inside[0]), cast(int, inside[1]))
    return Scalar(cast(ValueKind, name))
