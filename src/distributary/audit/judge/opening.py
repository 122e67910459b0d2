"""Records opened by the official library: whose they are, which schema wrote them, and what they say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from distributary.audit.judge.messages import message_class, unframed
from distributary.config import Pipeline
from distributary.config.text_files import read_text
from distributary.engine.schemas import schemas_of
from distributary.schemas.registry.compile import CompiledSchema, compile_schema, compile_text

UNREADABLE = (ValueError, IndexError, KeyError, TypeError)
"""What opening a record raises where it cannot be read; protobuf's own error is a ValueError."""


class Writer(NamedTuple):
    """Who wrote a payload: `message` by full name, or by its indexes."""

    schema_id: int | None
    message: str | tuple[int, ...]


class Opener:
    """Opens what a pipeline reads. All methods raise `UNREADABLE`."""

    def __init__(self, config: Pipeline) -> None:
        self._config = config
        self._schemas = schemas_of(config)
        self._class = cache(self._find_class)

    def envelope(self, value: bytes) -> tuple[str, int | None, bytes]:
        """(route, schema id, payload) of a record's value."""
        envelope, body = self._config.envelope, value
        if envelope.framing == "confluent":
            outer, path, body = unframed(value)
            opened = self._class(outer, envelope.message or tuple(path), False).FromString(body)
        else:
            opened = self._class(0, envelope.message or (0,), False).FromString(body)
        return getattr(opened, envelope.route), getattr(opened, envelope.schema_id), getattr(opened, envelope.payload)

    def payload(self, schema_id: int | None, payload: bytes) -> tuple[Writer, bytes]:
        """(who wrote it, its body). `schema_id`: as the envelope says."""
        if self._config.payload.framing == "confluent":
            # What writers of old did differs in their payloads' headers alone.
            found, path, body = unframed(payload, zigzag=not self._config.payload.legacy_varints)
            return Writer(found, tuple(path)), body
        return Writer(schema_id, self._config.payload.message or (0,)), payload

    def message(self, writer: Writer, body: bytes) -> Any:
        if writer.schema_id is None:
            raise ValueError("it names no schema id")
        return self._class(*writer, self._config.payload.raw_nested_indexes).FromString(body)

    def _find_class(self, schema_id: int, message: str | tuple[int, ...], raw: bool) -> Any:
        if schema_id == 0:
            return message_class(self._bare(), message, raw_indexes=raw)
        known, refused = self._schemas.resolve([schema_id])
        if schema_id not in known:
            raise ValueError(f"schema id {schema_id}: {refused[schema_id][1]}")
        return message_class(known[schema_id], message, raw_indexes=raw)

    def _bare(self) -> CompiledSchema:
        proto, subject = self._config.envelope.proto, self._config.envelope_subject
        if proto is not None:
            return compile_text(read_text(proto), file=Path(proto).name)
        registry = self._schemas.registry
        return compile_schema(registry.latest(str(subject)).schema, registry, self._schemas.compiler)
