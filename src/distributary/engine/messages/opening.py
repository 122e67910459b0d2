"""What a task needs to open a source value, and how: the fields of an envelope, or what a message says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import pyarrow as pa

from distributary.config.source_keys import RecordKey
from distributary.engine.messages.routing import ALL, MessageRouter, RecordRouter, Routed, RouteFilter, wrong_route
from distributary.schemas.decoding import BadIndex, CompiledSchema, Rejected, Split
from distributary.schemas.formats import decoder_for
from distributary.schemas.json.nodes import Record
from distributary.schemas.json.opened import JsonEnvelope
from distributary.schemas.protobuf.parts import column_at
from distributary.shares import Share
from distributary.state.journal import Refusals


@dataclass(frozen=True)
class EnvelopeReader:
    """How a task reads envelopes: plain values and descriptors, so that it ships to any task.

    `schemas`: envelope schemas by id (framed) or under 0 (bare). `refused`: envelope ids that the registry does not
    have or that do not compile, and why. `bronze`: the rows come from bronze, which also keeps rows without a route.
    `route`: the column, or the field by its path; `by_record`, `by_message`: what else says the route. With format none
    the message is the payload, and `schemas` are those of messages. `skips_header`: the envelope has one that does not
    matter (JSON).
    """

    format: Literal["protobuf", "avro", "json", "columns", "none", "debezium"]
    framed: bool
    route: str
    schema_id: str
    payload: str
    message: str | None = None
    schemas: Mapping[int, CompiledSchema] = field(default_factory=dict)
    refused: Refusals = field(default_factory=dict)
    payload_format: str = "protobuf"
    payload_framed: bool = True
    payload_message: str = "0"
    skips_header: bool = False
    legacy_varints: bool = False
    topic: str | None = None
    share: Share | None = None
    bronze: bool = False
    max_route_length: int = 4_096
    killed: Mapping[str, str] = field(default_factory=dict)
    """Source values, by `fingerprint`, that end the process which opens them, and how."""
    read_sec: float = 300
    """CPU time that a window may take."""
    needs_key: bool = False
    record_key: RecordKey | None = None
    has_key_schemas: bool = False
    """Has a record's key a schema of its own, which belongs to its writer (`stored_changes`)?"""
    deletes: Callable[[str], bool] | None = None
    """Of which routes a record without a value deletes the row of its key; None: of none."""
    dialect: str | None = None
    """Whose messages are read as Debezium's (`changes.dialects`); None for none."""
    own_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The key's columns by route, as far as the pipeline file names them: such a message may be two changes."""
    route_filter: RouteFilter = ALL
    infers: Record | None = None
    """What is declared of payloads whose other fields have columns by the kinds of their values."""
    by_record: RecordRouter | None = None
    by_message: MessageRouter | None = None

    @property
    def names(self) -> tuple[str, str, str]:
        return self.route, self.schema_id, self.payload

    @property
    def path(self) -> tuple[str, ...]:
        """The way to the route in an envelope."""
        return tuple(self.route.split("."))

    @property
    def no_route(self) -> str:
        """In words why a record has no route."""
        noun = "envelope" if self.format != "none" and self.by_record is None else "record"
        return f"the {noun} names no route"

    @property
    def opens(self) -> bool:
        """Is anything of a source value read before its payload's header?"""
        return self.format in ("protobuf", "avro", "json") or self.by_message is not None


@dataclass(frozen=True)
class OpenedValues:
    """What was read of some values. `positions`: of those that can be read (None: all); `rejected`: the others.
    `route`: None where the record says it; `payload`: None where it is the whole value. `passed`: how many say
    nothing of a row, and are neither."""

    route: pa.Array | None
    schema_id: pa.Array
    payload: pa.Array | None
    positions: pa.Array | None
    rejected: list[Rejected]
    passed: int = 0


def reading(reader: EnvelopeReader, schema_id: int, message: str) -> Callable[[pa.BinaryArray], OpenedValues]:
    """What opens the values that one schema wrote. Raises BadIndex, SchemaBroken: none of them can be opened."""
    schema = reader.schemas[schema_id]
    if reader.by_message is not None:
        routes = reader.by_message.of(schema, message)
        return lambda bodies: _of_message(routes(bodies))
    if reader.format == "json":
        return partial(_of_json, envelope=json_envelope(reader), is_by_record=reader.by_record is not None)
    decoder = decoder_for(schema, message, format=reader.format)
    if (wrong := wrong_fields(decoder.columns, reader)) is not None:
        raise BadIndex(f"the envelope {decoder.full_name} {wrong}")
    return lambda bodies: _of_envelope(decoder.decode(bodies), reader)


def _of_message(routed: Routed) -> OpenedValues:
    return OpenedValues(
        routed.route, pa.nulls(len(routed.route), pa.int32()), None, routed.positions, routed.rejected, routed.passed
    )


def json_envelope(reader: EnvelopeReader) -> JsonEnvelope:
    """Where things stand in a JSON envelope; its payload is bytes where it is neither a text nor JSON alone."""
    schema_id, payload = (tuple(name.split(".")) for name in (reader.schema_id, reader.payload))
    return JsonEnvelope(reader.path, schema_id, payload, is_binary=reader.payload_format not in ("json_bare", "text"))


def _of_json(bodies: pa.BinaryArray, envelope: JsonEnvelope, is_by_record: bool) -> OpenedValues:
    opened = envelope.open(bodies)
    route = None if is_by_record else opened.route
    return OpenedValues(route, opened.schema_id, opened.payload, opened.positions, opened.rejected)


def _of_envelope(split: Split, reader: EnvelopeReader) -> OpenedValues:
    rows = split.rows
    route = None if reader.by_record else column_at(rows, reader.path).cast(pa.string())
    payload = rows.column(reader.payload).cast(pa.binary())
    return OpenedValues(route, _schema_ids(rows, reader), payload, split.positions, list(split.rejected))


def wrong_fields(columns: pa.Schema, reader: EnvelopeReader) -> str | None:
    """Why envelopes of this schema cannot be read, whatever they hold; None where they can."""
    if reader.by_record is None and (wrong := wrong_route(columns, reader.path)) is not None:
        return wrong
    if reader.payload not in columns.names:
        return f"has no field {reader.payload!r}"
    if columns.field(reader.payload).type not in (pa.binary(), pa.string()):
        return f"has a field {reader.payload!r} that is not bytes"
    return None


def _schema_ids(rows: pa.RecordBatch, reader: EnvelopeReader) -> pa.Array:
    """The envelope's own word for the payload's schema; null where it has none that could be an id."""
    if reader.schema_id in rows.schema.names and pa.types.is_integer(rows.schema.field(reader.schema_id).type):
        return rows.column(reader.schema_id).cast(pa.int32(), safe=False)
    return pa.nulls(rows.num_rows, pa.int32())
