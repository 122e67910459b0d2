"""Records opened by the official library: whose they are, which schema wrote them, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from distributary.audit.judge import json_tokens as json
from distributary.audit.judge.formats import JUDGES
from distributary.audit.judge.protobuf_rows import ONLY, message_class, text_at, unframed
from distributary.audit.judge.read_payload import ReadPayload
from distributary.config import Pipeline
from distributary.config.text_files import read_text
from distributary.engine.schemas import schemas_of
from distributary.schemas.registry.compile import CompiledSchema, ProtobufSchema, compile_schema, compile_text


class Record(NamedTuple):
    """A record as the source has it. `whole`: `body` is the value, else the payload with `schema_id` beside it."""

    body: bytes
    schema_id: int | None = None
    whole: bool = True
    topic: str | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError)
"""What opening a record raises where it cannot be read."""


class Writer(NamedTuple):
    """Who wrote a payload: `message` by full name, or by its indexes."""

    schema_id: int | None
    message: str | tuple[int, ...]


class RecordOpener:
    """Opens what a pipeline reads. All methods raise `UNREADABLE`."""

    def __init__(self, config: Pipeline) -> None:
        self._config = config
        self._schemas = schemas_of(config)
        self._class = cache(self._find_class)
        self._judge = JUDGES[config.payload.encoding]
        self._reader = cache(self._find_reader)

    def envelope(self, record: Record) -> tuple[str | None, int | None, bytes]:
        """(route, schema id, payload) of a record's value; an empty route or None where it has none."""
        envelope, value = self._config.envelope, record.body
        body = value
        if envelope.format == "none":
            return self._route(record), None, value
        if envelope.format == "json":
            return self._of_json(record)
        if envelope.format == "avro":
            return self._of_avro(record)
        if envelope.framing == "confluent":
            outer, path, body = unframed(value)
            opened = self._class(outer, envelope.message or tuple(path), False).FromString(body)
        else:
            opened = self._class(0, envelope.message or (0,), False).FromString(body)
        field = envelope.route.field
        route = self._route(record) if field is None else text_at(opened, field)
        return route, getattr(opened, envelope.schema_id, None), getattr(opened, envelope.payload)

    def _of_avro(self, record: Record) -> tuple[str | None, int | None, bytes]:
        envelope = self._config.envelope
        schema_id, path, body = JUDGES["avro"].unframed(record.body)
        opened = JUDGES["avro"].reader(self._compiled(schema_id), tuple(path))(body)
        field = envelope.route.field
        route = self._route(record) if field is None else opened.text_at(field)
        return route, opened.value_of(envelope.schema_id), opened.value_of(envelope.payload)

    def _of_json(self, record: Record) -> tuple[str | None, int | None, bytes]:
        envelope, payload = self._config.envelope, self._config.payload
        text = json.text_of(record.body if envelope.framing == "none" else json.unheaded(record.body))
        is_text = payload.format == "text" or payload.encoding == "json_bare"
        field = envelope.route.field
        route = self._route(record) if field is None else json.word(json.token_at(text, field))
        schema_id = json.value_of(json.token_at(text, envelope.schema_id) or "null")
        return route, schema_id, json.bytes_of(json.token_at(text, envelope.payload), is_text)

    def _route(self, record: Record) -> str | None:
        """The route of a record that its envelope does not say."""
        route_config = self._config.envelope.route
        if route_config.constant is not None:
            return route_config.constant
        if route_config.place == "topic":
            return record.topic
        if route_config.place == "key" or route_config.header is not None:
            named = [value for name, value in record.headers if name == route_config.header]
            key_or_header = record.key if route_config.place == "key" else (named or [None])[-1]
            return None if key_or_header is None else key_or_header.decode()
        writer, body = self._header(record.body)
        if route_config.field is not None:
            return self.read(writer, body).text_at(route_config.field)
        if route_config.any is None and route_config.oneof is None:
            return self.read(writer, body).type_name
        opened = self.message(writer, body)
        if route_config.any is not None:
            return str(at_path(opened, route_config.any).type_url).rpartition("/")[2]
        holder, _, name = str(route_config.oneof).rpartition(".")
        return at_path(opened, holder).WhichOneof(name)  # type: ignore[no-any-return]

    def _header(self, payload: bytes) -> tuple[Writer, bytes]:
        # What writers of old did differs in their payloads' headers alone.
        schema_id, path, body = self._judge.unframed(payload, zigzag=not self._config.payload.legacy_varints)
        return Writer(schema_id, tuple(path)), body

    def payload(self, schema_id: int | None, payload: bytes) -> tuple[Writer, bytes]:
        """(who wrote it, its body). `schema_id`: as the envelope says."""
        if self._config.payload.is_framed:
            return self._part(*self._header(payload))
        return Writer(schema_id, self._config.payload.message or (0,)), payload

    def _part(self, writer: Writer, body: bytes) -> tuple[Writer, bytes]:
        """What the row is made of: the message, or what lies in it."""
        route_config = self._config.envelope.route
        if route_config.any is not None:
            inside = at_path(self.message(writer, body), route_config.any)
            return Writer(writer.schema_id, str(inside.type_url).rpartition("/")[2]), inside.value
        if route_config.oneof is not None:
            holder, _, name = route_config.oneof.rpartition(".")
            around = at_path(self.message(writer, body), holder)
            member = getattr(around, str(around.WhichOneof(name)))
            if hasattr(member, "DESCRIPTOR"):
                return Writer(writer.schema_id, member.DESCRIPTOR.full_name), member.SerializeToString()
            name = f"{around.DESCRIPTOR.full_name}{ONLY}{around.WhichOneof(name)}"
            return Writer(writer.schema_id, name), around.SerializeToString()
        return writer, body

    def key(self, record: Record) -> dict[str, Any]:
        """What the record's key says of the columns that it is, by name; None for all where it has none."""
        record_key = self._config.source.record_key
        if record_key is None or record.key is None:
            return dict.fromkeys(record_key.names if record_key is not None else ())
        if record_key.column is not None:
            return {record_key.column: record.key.decode()}
        if record_key.format == "json":
            body = record.key if record.key[:1] != b"\0" else json.unheaded(record.key)
            document = json.value_of(json.text_of(body))
            return {name: document.get(name) for name in record_key.names}
        schema_id, path, body = JUDGES[record_key.format].unframed(record.key)
        payload = JUDGES[record_key.format].reader(self._compiled(schema_id), tuple(path))(body)
        return {name: payload.value_of(name) for name in record_key.names}

    def read(self, writer: Writer, body: bytes) -> ReadPayload:
        """What a payload says."""
        if writer.schema_id is None:
            raise ValueError("it names no schema id")
        return self._reader(*writer)(body)

    def message(self, writer: Writer, body: bytes) -> Any:
        """A payload as a protobuf message."""
        if writer.schema_id is None:
            raise ValueError("it names no schema id")
        return self._class(*writer, self._config.payload.raw_nested_indexes).FromString(body)

    def _find_reader(self, schema_id: int, message: str | tuple[int, ...]) -> Callable[[bytes], ReadPayload]:
        schema, raw = self._compiled(schema_id), self._config.payload.raw_nested_indexes
        if schema.format != self._config.payload.encoding:
            raise ValueError(f"schema id {schema_id} is {schema.format}")
        return self._judge.reader(schema, message, raw_indexes=raw)

    def _compiled(self, schema_id: int) -> CompiledSchema:
        compiled, refused = self._schemas.resolve([schema_id])
        if schema_id not in compiled:
            raise ValueError(f"schema id {schema_id}: {refused[schema_id][1]}")
        return compiled[schema_id]

    def _find_class(self, schema_id: int, message: str | tuple[int, ...], raw: bool) -> Any:
        if schema_id == 0:
            return message_class(self._bare(), message, raw_indexes=raw)
        schema = self._compiled(schema_id)
        if not isinstance(schema, ProtobufSchema):
            raise ValueError(f"schema id {schema_id} is {schema.format}")
        return message_class(schema, message, raw_indexes=raw)

    def _bare(self) -> ProtobufSchema:
        proto, subject = self._config.envelope.proto, self._config.envelope_subject
        if proto is not None:
            return compile_text(read_text(proto), file=Path(proto).name)
        registry = self._schemas.registry
        return compile_schema(registry.latest(str(subject)).schema, registry, self._schemas.compiler)


def at_path(message: Any, path: str) -> Any:
    """What is at a path of fields; the message itself at the empty one."""
    for name in path.split(".") if path else ():
        message = getattr(message, name)
    return message
