"""The wire header of formats of which a schema is one type: magic byte and schema id, no message indexes.

    00 | schema id, 4 bytes big-endian | body

Source: docs.confluent.io, "Wire format": Avro and JSON Schema. `protobuf.framing` has the header with indexes.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.schemas.protobuf import framing
from distributary.schemas.protobuf.framing import MAGIC, Frames

WHOLE = "0"
"""The message index path of each record: there is one type only."""


def split_frames(values: pa.BinaryArray, *, legacy_varints: bool = False) -> Frames:
    """Split framed records into schema id and body; reasons as in `protobuf.framing`, none of them of an index."""
    return framing.split_frames(values, indexes=False)


def frame(schema_id: int, body: bytes) -> bytes:
    """Put the header in front of a body."""
    return struct.pack(">bi", MAGIC, schema_id) + body


def frame_all(schema_id: int, index: str, bodies: pa.Array) -> pa.Array:
    """Put one header in front of each of the bodies; a null stays one."""
    header = pa.scalar(frame(schema_id, b""), pa.binary())
    return pc.binary_join_element_wise(header, bodies, pa.scalar(b"", pa.binary()))


def unchanged(values: Any, *, legacy_varints: bool = False) -> Frames:
    """As `split_frames`, of payloads that need no schema (`PayloadFormat.without_schema`): all body, schema id 0."""
    rows = len(values)
    is_valid = values.is_valid()
    return Frames(
        schema_id=pc.if_else(is_valid, pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32())),
        index=pc.if_else(is_valid, WHOLE, pa.scalar(None, pa.string())),
        body=values,
        reason=pa.nulls(rows, pa.string()),
    )
