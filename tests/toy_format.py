"""A payload format of three lines, to try the port: a text of `key=value` lines; the schema text names the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from distributary.errors import Reason, SchemaBroken
from distributary.schemas.decoding import CompiledSchema, Rejected, Split
from distributary.schemas.header import frame_all, split_frames
from distributary.schemas.registry import Registry, Schema
from distributary.schemas.registry.compiler import Compiler

__all__ = ["KIND", "compile_payload", "decoder_for", "frame_all", "split_frames", "without_schema"]

KIND: str | None = "TOY"


@dataclass(frozen=True, slots=True)
class ToySchema(CompiledSchema):
    format: ClassVar = "toy"
    names: tuple[str, ...]


def compile_payload(schema: Schema, registry: Registry, compiler: Compiler) -> ToySchema:
    if not schema.text.strip():
        raise SchemaBroken(what=f"id {schema.id}", detail="it names no key")
    return ToySchema(schema.id, tuple(schema.text.split()))


def without_schema(columns: Mapping[str, str]) -> None:
    """A payload of this kind needs its schema."""


class ToyDecoder:
    full_name = "toy"
    engine = "toy"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.columns = pa.schema([(name, pa.string()) for name in names])

    def decode(self, payloads: pa.BinaryArray) -> Split:
        rows, positions, rejected = [], [], []
        for position, payload in enumerate(payloads.to_pylist()):
            try:
                rows.append(dict(line.split("=", 1) for line in payload.decode().splitlines()))
                positions.append(position)
            except ValueError as error:
                rejected.append(Rejected(position, Reason.CORRUPT_PAYLOAD, str(error)))
        batch = pa.RecordBatch.from_pylist(rows, self.columns)
        return Split(batch, None if not rejected else pa.array(positions, pa.int64()), rejected)


@lru_cache(maxsize=64)
def decoder_for(schema: ToySchema, message: str = "0", **options: Any) -> ToyDecoder:
    return ToyDecoder(schema.names)
