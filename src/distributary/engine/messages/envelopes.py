"""The driver's side of reading envelopes: which schemas the envelope has, and how tasks are to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from distributary.config import Envelope, Payload, Pipeline, Tables
from distributary.config.debezium import decoded_format
from distributary.config.text_files import read_text
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.routing import (
    AnyType,
    ChangedTable,
    Constant,
    FieldOf,
    Header,
    Key,
    MessageRouter,
    MessageType,
    OneofMember,
    RecordRouter,
    RouteFilter,
    TopicName,
    TopicTable,
)
from distributary.engine.schemas import Schemas
from distributary.errors import ConfigError, DistributaryError, SchemaBroken
from distributary.schemas.json.bare import declared_record
from distributary.schemas.raw import BytesSchema
from distributary.schemas.registry.compile import CompiledSchema, compile_schema, compile_text
from distributary.state.journal import Refusals

VERSIONS = 32
"""So many of the envelope's newest versions are known beforehand; older ones once a record comes that has them."""


class Envelopes:
    """Builds the `EnvelopeReader` of a batch. A framed envelope names its schema id: new ones are learnt on the way."""

    def __init__(self, config: Pipeline, schemas: Schemas) -> None:
        self.config = config
        self.schemas = schemas
        self._known: dict[int, CompiledSchema] = {}

    def begin(self) -> EnvelopeReader:
        """The reader to begin a batch with: all that is known, nothing refused."""
        envelope, payload = self.config.envelope, self.config.payload
        topics, tables = self.config.source.topics, self.config.tables
        has_schemas = envelope.is_debezium and decoded_format(self.config) != "bytes"
        is_plain = envelope.format == "json" or (envelope.is_debezium and not has_schemas)
        bare = is_plain or (envelope.format == "protobuf" and envelope.framing == "none")
        if bare and not self._known:
            self._known[0] = BytesSchema(0) if is_plain else self._bare_schema()
        return EnvelopeReader(
            format="debezium"
            if envelope.format == "maxwell" or envelope.format == "openlogreplicator"
            else envelope.format,
            framed=not bare,
            route=envelope.route.field or envelope.columns[0],
            schema_id=envelope.schema_id,
            payload=envelope.payload,
            message=envelope.message,
            max_route_length=envelope.max_route_length,
            schemas=dict(self._known),
            payload_format=decoded_format(self.config),
            payload_framed=payload.is_framed,
            payload_message=payload.message or "0",
            skips_header=envelope.format == "json" and envelope.framing == "confluent",
            legacy_varints=payload.legacy_varints,
            topic=topics[0] if len(topics) == 1 else None,
            share=self.config.share,
            read_sec=self.config.quarantine.read_sec,
            needs_key=self.config.reads_keys,
            record_key=self.config.source.record_key,
            has_key_schemas=has_schemas,
            deletes=self._deletes(),
            dialect=envelope.dialect,
            own_keys={route: tuple(table.keys) for route, table in tables.routes.items() if table.keys},
            route_filter=RouteFilter(tuple(tables.include), tuple(tables.exclude)),
            infers=declared_record(tuple(payload.columns.items())) if payload.is_inferred else None,
            by_record=record_router(envelope),
            by_message=message_router(envelope, payload),
        )

    def batch(self) -> EnvelopeReader:
        """The reader of what the stream reads: the source's envelopes, or bronze, where hop 1 has opened them."""
        reader = self.begin()
        if self.config.bronze_table is None:
            return reader
        route, schema_id, payload = self.config.envelope.columns
        named = replace(reader, route=route, schema_id=schema_id, payload=payload)
        needs_key = self.config.source.record_key is not None
        return replace(named, format="columns", bronze=True, needs_key=needs_key, by_record=None)

    def _deletes(self) -> Callable[[str], bool] | None:
        """Of which routes a record without a value deletes the row of its key."""
        envelope = self.config.envelope
        if envelope.is_debezium:  # else it stands behind the change that says it
            return _every if envelope.flattened and envelope.order == "offset" else None
        if self.config.source.record_key is None or not self.config.tables.has_keys:
            return None
        return partial(_has_keys, self.config.tables)

    def learn(self, ids: Iterable[int], refused: Refusals) -> Refusals:
        """Look up envelope schema ids; returns those that cannot be had. Raises RegistryDown, RegistryDenied."""
        compiled, refusals = self.schemas.resolve(ids, refused)
        self._known.update(compiled)
        return refusals

    def registered(self) -> set[int]:
        """Ids of the versions of a framed envelope's schema, where its subject is known and the registry answers."""
        subject, reader = self.config.envelope_subject, self.begin()
        if subject is None or not reader.framed or reader.format == "columns":
            return set()
        registry = self.schemas.registry
        try:
            return {registry.version(subject, version).schema.id for version in registry.versions(subject)[-VERSIONS:]}
        except DistributaryError:
            return set()

    def known(self) -> dict[int, CompiledSchema]:
        return dict(self._known)

    def _bare_schema(self) -> CompiledSchema:
        """Schema of an unframed envelope: a .proto file, or the newest version of its subject."""
        proto, subject = self.config.envelope.proto, self.config.envelope_subject
        if proto is None:
            if subject is None:
                raise ConfigError(file="the pipeline", key="envelope.proto", detail="give proto or subject")
            return compile_schema(
                self.schemas.registry.latest(subject).schema, self.schemas.registry, self.schemas.compiler
            )
        try:
            return compile_text(read_text(proto), file=Path(proto).name)
        except (OSError, ValueError, SchemaBroken) as e:
            raise ConfigError(file=proto, key="envelope.proto", detail=str(e)) from e


def _every(route: str) -> bool:
    return True


def _has_keys(tables: Tables, route: str) -> bool:
    return bool(tables.keys_of(route))


def record_router(envelope: Envelope) -> RecordRouter | None:
    """What finds the route before a record is read; None where its message or its envelope says it."""
    route_config = envelope.route
    if envelope.is_debezium:
        return TopicTable() if envelope.flattened else None
    if route_config.header is not None:
        return Header(route_config.header)
    if route_config.constant is not None:
        return Constant(route_config.constant)
    places: dict[str | None, RecordRouter] = {"topic": TopicName(), "key": Key()}
    return places.get(route_config.place)


def message_router(envelope: Envelope, payload: Payload) -> MessageRouter | None:
    """What finds the route in a message that is the payload; None where something else says it."""
    route_config = envelope.route
    if envelope.is_debezium:
        return None if envelope.flattened else ChangedTable(envelope.dialect)
    if envelope.format != "none" or route_config.of_record:
        return None
    raw = payload.raw_nested_indexes
    if route_config.place == "message_type":
        return MessageType(raw)
    kinds = (("field", FieldOf), ("oneof", OneofMember), ("any", AnyType))
    return next(
        kind(tuple(path.split(".")), raw) for key, kind in kinds if (path := getattr(route_config, key)) is not None
    )
