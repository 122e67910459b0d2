"""JSON with the schemas of a registry as a payload format: the functions of `schemas.decoding.PayloadFormat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from distributary.schemas.decoding import BadIndex, CompiledSchema
from distributary.schemas.header import WHOLE, frame_all, split_frames
from distributary.schemas.json.decoder import JsonDecoder
from distributary.schemas.json.tree import tree_of
from distributary.schemas.registry import Registry, Schema
from distributary.schemas.registry.compile import checked, referenced
from distributary.schemas.registry.compiler import Compiler

__all__ = ["KIND", "JsonSchema", "compile_payload", "decoder_for", "frame_all", "split_frames", "without_schema"]

KIND: str | None = "JSON"


@dataclass(frozen=True, slots=True)
class JsonSchema(CompiledSchema):
    """The text of a schema behind those that it refers to, each with the name by which it does."""

    format: ClassVar = "json"
    texts: tuple[tuple[str, str], ...]


def compile_payload(schema: Schema, registry: Registry, compiler: Compiler) -> JsonSchema:
    """Check a schema with all its references.

    Raises:
        SchemaBroken: it is no JSON Schema, too large, or a reference leads nowhere.
        RegistryDown, RegistryDenied: from the registry, unchanged.
    """
    subject = f"id {schema.id}"
    texts, lost = referenced(schema, registry, subject)
    compiled = JsonSchema(schema.id, (*texts.items(), ("", schema.text)))
    with checked(subject, (text for _, text in compiled.texts), lost, compiler):
        tree_of(dict(compiled.texts), subject)
    return compiled


def without_schema(columns: Mapping[str, str]) -> None:
    """Such a payload cannot be read without its writer's schema."""


def decoder_for(
    schema: JsonSchema, message: str = WHOLE, *, raw_nested_indexes: bool = False, null_out_of_range: bool = False
) -> JsonDecoder:
    """The decoder of a schema, from this process's cache. Raises BadIndex, SchemaBroken."""
    if message != WHOLE:
        raise BadIndex(f"a JSON Schema is one type, it has no message {message!r}")
    return _decoder(schema.texts, f"id {schema.id}")


@lru_cache(maxsize=1_024)
def _decoder(texts: tuple[tuple[str, str], ...], subject: str) -> JsonDecoder:
    return JsonDecoder(tree_of(dict(texts), subject))
