"""Avro as a payload format: the functions of `schemas.decoding.PayloadFormat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distributary.schemas.avro.decoder import AvroDecoder, avro_decoder
from distributary.schemas.avro.tree import tree_of
from distributary.schemas.decoding import BadIndex, CompiledSchema
from distributary.schemas.header import WHOLE, frame_all, split_frames
from distributary.schemas.registry import Registry, Schema
from distributary.schemas.registry.compile import checked, referenced
from distributary.schemas.registry.compiler import Compiler

__all__ = ["KIND", "AvroSchema", "compile_payload", "decoder_for", "frame_all", "split_frames", "without_schema"]

KIND: str | None = "AVRO"


@dataclass(frozen=True, slots=True)
class AvroSchema(CompiledSchema):
    """The text of a schema, behind those that it refers to."""

    format: ClassVar = "avro"
    texts: tuple[str, ...]


def compile_payload(schema: Schema, registry: Registry, compiler: Compiler) -> AvroSchema:
    """Check a schema with all its references.

    Raises:
        SchemaBroken: it is no Avro schema, too large, or a reference leads nowhere.
        RegistryDown, RegistryDenied: from the registry, unchanged.
    """
    subject = f"id {schema.id}"
    texts, lost = referenced(schema, registry, subject)
    compiled = AvroSchema(schema.id, (*texts.values(), schema.text))
    with checked(subject, compiled.texts, lost, compiler):
        tree_of(compiled.texts, subject)
    return compiled


def without_schema(columns: Mapping[str, str]) -> None:
    """No Avro payload can be read without its writer's schema."""


def decoder_for(
    schema: AvroSchema, message: str = WHOLE, *, raw_nested_indexes: bool = False, null_out_of_range: bool = False
) -> AvroDecoder:
    """The decoder of a schema, from this process's cache. Raises BadIndex, SchemaBroken."""
    if message != WHOLE:
        raise BadIndex(f"an Avro schema is one type, it has no message {message!r}")
    return avro_decoder(schema.texts, f"id {schema.id}", null_out_of_range)
