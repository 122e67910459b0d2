"""Protobuf payloads to Arrow: good rows as a record batch, bad rows as values.

A payload is decoded with the schema of its writer. ptars reads it if it can vouch for the result (`ptars_decoder`),
otherwise the official library does (`official_decoder`); both give the same columns (`columns`), so a result never
depends on which of them read a row. Bad rows never stop good ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from distributary.errors import SchemaBroken
from distributary.schemas.decoding import BadIndex, Split
from distributary.schemas.protobuf.columns import NONE, message_columns
from distributary.schemas.protobuf.official_decoder import OfficialDecoder
from distributary.schemas.protobuf.ptars_decoder import PtarsDecoder
from distributary.schemas.protobuf.source_comments import comments_of
from distributary.schemas.protobuf.wire import WireMessage, reachable, why_official
from distributary.schemas.registry.compile import ProtobufSchema

__all__ = ["BadIndex", "MessageDecoder", "Split", "decoder_for"]

CACHE_SIZE: Final = 4_096
"""Decoders kept per process, the least recently used go first."""


class MessageDecoder:
    """Decodes one message of one writer schema. Build one per process: it does not pickle.

    Attributes:
        full_name: of the message.
        columns: Arrow schema of the decoded rows.
        engine: "ptars", or "protobuf" for schemas that only the official library reads right.
        engine_reason: why the engine is "protobuf"; None for ptars.
    """

    def __init__(
        self, descriptor: Descriptor, comments: Mapping[str, str] = NONE, *, null_out_of_range: bool = False
    ) -> None:
        """`descriptor` comes from a pool of its own, which the decoder keeps only if the schema holds an Any.
        `comments`: of fields, by full name."""
        message = message_columns(descriptor, comments)
        self.full_name: str = descriptor.full_name
        self.columns: pa.Schema = message.schema
        self.engine_reason = why_official(message)
        self.engine: Literal["ptars", "protobuf"] = "protobuf" if self.engine_reason else "ptars"
        self._message = message
        self._null_out_of_range = null_out_of_range
        self._schema = WireMessage.of(descriptor)
        has_any = any(reached.full_name == "google.protobuf.Any" for reached in reachable(descriptor))
        self._pool = descriptor.file.pool if has_any else None
        self._ptars = None if self.engine_reason else PtarsDecoder(message, lambda: self._official)

    def decode(self, payloads: pa.BinaryArray) -> Split:
        """Decode serialised messages; `payloads` has no nulls. Raises nothing on account of a payload."""
        if payloads.type != pa.binary():
            payloads = payloads.cast(pa.binary())
        count = len(payloads)
        if self._ptars is None:
            good, fast_positions = pa.array([], self._message.type), np.zeros(0, np.int64)
        else:
            good, fast_positions = self._ptars.decode(payloads)
            if len(fast_positions) == count:
                return Split(pa.RecordBatch.from_struct_array(good), None, [])
        is_left = np.ones(count, bool)
        is_left[fast_positions] = False
        rest = np.flatnonzero(is_left)
        rows, positions, rejected, warnings = self._official.decode(
            zip(rest.tolist(), payloads.take(pa.array(rest)).to_pylist(), strict=True)
        )
        order = np.concatenate((fast_positions, np.array(positions, np.int64)))
        merged = pa.concat_arrays([good, rows])
        if len(fast_positions) and len(positions):
            ranks = np.argsort(order)
            merged, order = merged.take(pa.array(ranks)), order[ranks]
        batch = pa.RecordBatch.from_struct_array(merged)
        return Split(batch, None if len(order) == count else pa.array(order, pa.int64()), rejected, warnings)

    @cached_property
    def _official(self) -> OfficialDecoder:
        """Built when a row needs it: most decoders never do."""
        return OfficialDecoder(self._schema, self._message, self._pool, null_out_of_range=self._null_out_of_range)


@lru_cache(maxsize=CACHE_SIZE)
def decoder_for(
    schema: ProtobufSchema, message: str = "0", *, raw_nested_indexes: bool = False, null_out_of_range: bool = False
) -> MessageDecoder:
    """The decoder of one message of a schema, from this process's cache.

    Args:
        schema: as the registry's compiler gives it.
        message: a message index path as text ("0", "0.1"), or the full name of a message.
        raw_nested_indexes: count map entries among nested messages, as confluent-kafka-python's serializer does
            (2.16.1). Off: they are not counted, as in Confluent's Java (`schema-registry#2359`).
        null_out_of_range: a Timestamp or Duration that no reader can hold is null. Off: its row is rejected.

    Raises:
        BadIndex: the path or name leads to no message, or to a map entry.
        SchemaBroken: the descriptors do not link, or the message is too large for a table.
    """
    descriptor = descriptor_of(schema, message, raw_nested_indexes=raw_nested_indexes)
    return MessageDecoder(descriptor, comments_of(schema.descriptor_set), null_out_of_range=null_out_of_range)


def descriptor_of(schema: ProtobufSchema, message: str, *, raw_nested_indexes: bool = False) -> Descriptor:
    """A message as the schema declares it, from a pool of its own. Arguments and errors: as of `decoder_for`."""
    files = FileDescriptorSet.FromString(schema.descriptor_set).file
    root, pool = files[-1], DescriptorPool()
    name = _name_at(list(root.message_type), root.package, message, raw_nested_indexes)
    try:
        for file in files:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise BadIndex(f"schema {schema.id} has no message {message}") from error
    except TypeError as error:
        raise SchemaBroken(what=f"id {schema.id}", detail=str(error)) from error
    if descriptor.GetOptions().map_entry:
        raise BadIndex(f"{message} of schema {schema.id} is a map entry, not a message")
    return descriptor


def _name_at(messages: list[DescriptorProto], scope: str, path: str, raw: bool) -> str:
    """Full name of the message at an index path; a name stays a name."""
    steps = path.split(".")
    if not all(step.isdecimal() for step in steps):
        return path
    for depth, step in enumerate(steps):
        index = int(step)
        if index >= len(messages) or messages[index].options.map_entry:
            path_so_far = ".".join(steps[: depth + 1])
            count = f"there are {len(messages)}, numbered"
            raise BadIndex(f"message index path {path}: no message at {path_so_far}, {count} from 0 on")
        message = messages[index]
        scope = f"{scope}.{message.name}" if scope else message.name
        messages = [inner for inner in message.nested_type if raw or not inner.options.map_entry]
    return scope
