"""All payload formats, by name (`config.Payload.encoding`). A new one is a module and a line here.

`schemas.decoding` has the port that each of them fulfils.
"""

from __future__ import annotations

from typing import Final

from distributary.errors import SchemaBroken
from distributary.schemas.avro import payload as avro
from distributary.schemas.decoding import BadIndex, CompiledSchema, Decoder, PayloadFormat
from distributary.schemas.json import bare as json_bare
from distributary.schemas.json import payload as json
from distributary.schemas.protobuf import payload as protobuf
from distributary.schemas.raw import BYTES, TEXT
from distributary.schemas.registry import Registry, Schema
from distributary.schemas.registry.compiler import Compiler

__all__ = ["FORMATS", "BadIndex", "compile_payload", "decoder_for"]

FORMATS: Final[dict[str, PayloadFormat]] = {
    "protobuf": protobuf,
    "avro": avro,
    "json": json,
    "json_bare": json_bare,
    "bytes": BYTES,
    "text": TEXT,
}


def compile_payload(schema: Schema, registry: Registry, compiler: Compiler) -> CompiledSchema:
    """Compile a registered schema by the format that it is of.

    Raises:
        SchemaBroken: it does not compile, or no format here is of its kind.
        RegistryDown, RegistryDenied: from the registry, unchanged.
    """
    for payload_format in FORMATS.values():
        if schema.kind == payload_format.KIND:
            return payload_format.compile_payload(schema, registry, compiler)
    kinds = ", ".join(sorted(payload_format.KIND for payload_format in FORMATS.values() if payload_format.KIND))
    raise SchemaBroken(what=f"id {schema.id}", detail=f"it is of kind {schema.kind}; known are {kinds}")


def decoder_for(
    schema: CompiledSchema,
    message: str = "0",
    *,
    format: str = "protobuf",
    raw_nested_indexes: bool = False,
    null_out_of_range: bool = False,
) -> Decoder:
    """The decoder of a schema (`PayloadFormat.decoder_for`). `format`: what the payload is said to be.

    Raises:
        BadIndex: there is no such message.
        SchemaBroken: the schema is of another format, or cannot be the columns of a table.
    """
    if schema.format != format:
        detail = f"it is {schema.format}, and the pipeline file says {format} (payload.format, envelope.format)"
        raise SchemaBroken(what=f"id {schema.id}", detail=detail)
    return FORMATS[format].decoder_for(
        schema, message, raw_nested_indexes=raw_nested_indexes, null_out_of_range=null_out_of_range
    )
