"""Payloads that are taken as they are, `bytes` and `text`: one column, `value`, and no schema (id 0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from distributary.errors import Reason, SchemaBroken
from distributary.schemas.decoding import BadIndex, CompiledSchema, Rejected, Split
from distributary.schemas.header import WHOLE, unchanged
from distributary.schemas.protobuf.framing import Frames
from distributary.schemas.registry import Registry, Schema
from distributary.schemas.registry.compiler import Compiler

__all__ = ["BYTES", "TEXT", "RawFormat", "utf8_texts"]

VALUE: Final = "value"


@dataclass(frozen=True, slots=True)
class BytesSchema(CompiledSchema):
    format: ClassVar = "bytes"


@dataclass(frozen=True, slots=True)
class TextSchema(CompiledSchema):
    format: ClassVar = "text"


class RawDecoder:
    """Takes payloads as values of one type; a text must be UTF-8."""

    engine = "none"

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.full_name, self._kind = name, kind
        self.columns = pa.schema([pa.field(VALUE, kind)])

    def decode(self, payloads: pa.BinaryArray) -> Split:
        try:
            return Split(pa.RecordBatch.from_arrays([payloads.cast(self._kind)], schema=self.columns), None, [])
        except pa.ArrowInvalid:
            return self._apart(payloads)

    def _apart(self, payloads: pa.BinaryArray) -> Split:
        """Where some are no text."""
        texts: list[str] = []
        positions: list[int] = []
        rejected: list[Rejected] = []
        for position, payload in enumerate(payloads.to_pylist()):
            try:
                texts.append(payload.decode())
                positions.append(position)
            except UnicodeDecodeError as error:
                rejected.append(Rejected(position, Reason.CORRUPT_PAYLOAD, f"it is not UTF-8: {error}"))
        rows = pa.RecordBatch.from_arrays([pa.array(texts, self._kind)], schema=self.columns)
        return Split(rows, pa.array(positions, pa.int64()), rejected)


class RawFormat:
    """One of them as a payload format (`schemas.decoding.PayloadFormat`)."""

    KIND: str | None = None

    def __init__(self, schema: CompiledSchema, kind: pa.DataType) -> None:
        self._schema, self._decoder = schema, RawDecoder(schema.format, kind)

    def compile_payload(self, schema: Schema, registry: Registry, compiler: Compiler) -> CompiledSchema:
        raise SchemaBroken(what=f"id {schema.id}", detail=f"{self._schema.format} payloads have no schema")

    def without_schema(self, columns: Mapping[str, str]) -> CompiledSchema:
        return self._schema

    def split_frames(self, values: Any, *, legacy_varints: bool = False) -> Frames:
        return unchanged(values)

    def frame_all(self, schema_id: int, index: str, bodies: pa.Array) -> pa.Array:
        return bodies

    def decoder_for(self, schema: CompiledSchema, message: str = WHOLE, **options: bool) -> RawDecoder:
        if message != WHOLE:
            raise BadIndex(f"{self._schema.format} payloads have no message {message!r}")
        return self._decoder


BYTES: Final = RawFormat(BytesSchema(0), pa.binary())
TEXT: Final = RawFormat(TextSchema(0), pa.string())


def utf8_texts(values: pa.Array) -> pa.StringArray:
    """Bytes as text; null for what is not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
