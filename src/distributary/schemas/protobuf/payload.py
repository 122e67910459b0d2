"""Protobuf as a payload format: the functions of `schemas.decoding.PayloadFormat`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from distributary.schemas.protobuf import framing
from distributary.schemas.protobuf.framing import split_frames
from distributary.schemas.protobuf.parts import decoder_for, whole_of
from distributary.schemas.registry.compile import compile_schema as compile_payload

__all__ = ["KIND", "compile_payload", "decoder_for", "frame_all", "split_frames", "without_schema"]

KIND: str | None = "PROTOBUF"


def without_schema(columns: Mapping[str, str]) -> None:
    """No protobuf payload can be read without a schema."""


def frame_all(schema_id: int, index: str, bodies: pa.Array) -> pa.Array:
    """Put one header in front of each of the messages, of which `index` may name a part."""
    return framing.frame_all(schema_id, whole_of(index), bodies)
