"""Some records of a source taken apart, for a person: header, schema, message, fields, what the pipeline file makes of
them, and the lines that would fit."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import yaml

from distributary.audit.json_samples import fields_inside, json_fields, payload_field, proposed_columns
from distributary.audit.message_routes import NO_ROUTES, MessageRoutes, routes_in
from distributary.config import Pipeline
from distributary.engine.apart import Apart, WorkerDied
from distributary.engine.messages.chunks import asked_for, read_rejected
from distributary.engine.messages.demux import demux
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.schemas import Schemas, schemas_of
from distributary.errors import SchemaNotFound
from distributary.errors.border import contained
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import FORMATS, decoder_for
from distributary.schemas.looks import looks
from distributary.schemas.protobuf.protobuf import descriptor_of
from distributary.schemas.registry.compile import ProtobufSchema
from distributary.sources.port import ORIGIN
from distributary.sources.registered import origin_of

READ_SEC = 10.0
"""CPU time that one record may take."""
MAXWELL = frozenset({"database", "table", "type", "ts"})
OPENLOGREPLICATOR = frozenset({"c_scn", "e_scn"})
DEBEZIUM = frozenset({"op", "source.connector"})
"""Fields of every change that Debezium sends."""
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""What JSON writes as it is, and YAML takes for the end of a line, or for no text."""


@dataclass(frozen=True)
class InspectedMessage:
    """Bytes by the schema that their header names. `fields`: name -> type and value, as far as they can be read."""

    looks: str
    schema_id: int | None = None
    kind: str | None = None
    message: str | None = None
    fields: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    problem: str | None = None
    routes: MessageRoutes = NO_ROUTES


@dataclass(frozen=True)
class Inspected:
    """One record. `route`: the one that the pipeline file gives it; else `reason` and `detail`, why it has none."""

    origin: Mapping[str, Any]
    record: InspectedMessage
    payload: InspectedMessage | None
    route: str | None
    reason: str | None
    detail: str | None


@dataclass(frozen=True)
class Inspection:
    """`proposal`: lines of the pipeline file that would fit the records, where others than it has would."""

    pipeline: str
    source: str
    records: tuple[Inspected, ...]
    proposal: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Bytes as base64."""
        plain: dict[str, Any] = _without_bytes(asdict(self))
        return plain


def inspect(config: Pipeline, count: int) -> Inspection:
    """Take the newest `count` records apart. Starts no JVM; what a record does to its decoder stays with it.

    Raises BadInput (change files), SourceDown, SourceMissing, RegistryDown, RegistryDenied.
    """
    rows = origin_of(config).newest(count)
    schemas = schemas_of(config, keep=False)
    with Apart(READ_SEC) as apart:
        verdicts = _verdicts(rows, config, schemas, apart)
        name = "value" if "value" in rows.column_names else config.envelope.payload
        values = [_bytes(value) for value in rows.column(name).to_pylist()]
        records = [_message(value, schemas, apart) for value in values]
        inspected = []
        for n, (verdict, record) in enumerate(zip(verdicts, records, strict=True)):
            inner = record.fields.get(config.envelope.payload)
            nested = (
                inner is not None and isinstance(inner[1], bytes) and config.envelope.format in ("protobuf", "avro")
            )
            payload = _message(inner[1], schemas, apart) if inner is not None and nested else None
            inspected.append(Inspected(_origin(rows, n), record, payload, **verdict))
    return Inspection(config.pipeline, config.source.type, tuple(inspected), tuple(propose(config, inspected)))


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _without_bytes(item) for key, item in value.items()}
    return [_without_bytes(item) for item in value] if isinstance(value, list | tuple) else value


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _origin(rows: pa.Table, n: int) -> dict[str, Any]:
    row = rows.select([name for name in ORIGIN.names if name in rows.schema.names]).slice(n, 1).to_pylist()[0]
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items() if v not in (None, [])}


# -- what a record is ---------------------------------------------------------------------------------------


def _message(value: bytes | None, schemas: Schemas, apart: Apart) -> InspectedMessage:
    if value is None:
        return InspectedMessage("a tombstone: no value")
    look = looks(value)
    if look.schema_id is None:
        return InspectedMessage(look.words, fields=json_fields(value) if look.kind == "json" else {})
    try:
        schema = schemas.registry.get(look.schema_id)
    except SchemaNotFound as e:
        return InspectedMessage(look.words, look.schema_id, problem=str(e))
    if schema.kind not in (message_known.KIND for message_known in FORMATS.values()):
        return InspectedMessage(look.words, look.schema_id, schema.kind)
    compiled, refused = schemas.resolve([look.schema_id])
    if look.schema_id in refused:
        return InspectedMessage(look.words, look.schema_id, schema.kind, problem=refused[look.schema_id][1])
    (answer,) = apart.each(_decoded, [(value, compiled[look.schema_id])])
    message_known = InspectedMessage(look.words, look.schema_id, schema.kind)
    if isinstance(answer, WorkerDied):
        return replace(message_known, problem=answer.detail)
    if answer.result is None:
        return replace(message_known, problem=str(answer.error))
    message, fields, problem, routes = answer.result
    return replace(message_known, message=message, fields=fields, problem=problem, routes=routes)


_Fields = dict[str, tuple[str, Any]]


def _decoded(item: tuple[bytes, CompiledSchema]) -> tuple[str | None, _Fields, str | None, MessageRoutes]:
    value, compiled = item
    frames = FORMATS[compiled.format].split_frames(pa.array([value], pa.binary()))
    if (reason := frames.reason[0].as_py()) is not None:
        return None, {}, str(reason), NO_ROUTES
    index, routes = frames.index[0].as_py(), NO_ROUTES
    try:
        decoder = decoder_for(compiled, index, format=compiled.format)
        split = decoder.decode(frames.body)
        if isinstance(compiled, ProtobufSchema):
            routes = routes_in(descriptor_of(compiled, index))
    except Exception as e:
        return None, {}, contained(e), routes
    kinds = {f.name: str(f.type) for f in decoder.columns}
    if split.rejected:
        return decoder.full_name, {name: (kind, None) for name, kind in kinds.items()}, split.rejected[0].detail, routes
    row = split.rows.to_pylist()[0]
    return decoder.full_name, {name: (kinds[name], row[name]) for name in kinds}, None, routes


# -- what the pipeline file makes of it ------------------------------------------------------------------------


def _verdicts(rows: pa.Table, config: Pipeline, schemas: Schemas, apart: Apart) -> list[dict[str, str | None]]:
    """Route, or reason and detail, of each row; by the run's own code."""
    envelopes = Envelopes(config, schemas)
    batches = [rows.slice(n, 1) for n in range(rows.num_rows)]
    reader = envelopes.begin()
    while True:
        answers = apart.each(_cut, [(batch, reader) for batch in batches])
        unknown = {
            n for answer in answers if not isinstance(answer, WorkerDied) and answer.result for n in answer.result[1]
        }
        if not unknown - reader.schemas.keys() - reader.refused.keys():
            break
        newly = envelopes.learn(unknown, {})
        reader = replace(reader, schemas=envelopes.known(), refused={**reader.refused, **newly})
    return [_verdict(answer) for answer in answers]


def _cut(item: tuple[pa.Table, EnvelopeReader]) -> tuple[dict[str, str | None], list[int]]:
    row, reader = item
    has_value = "value" not in row.column_names or row.column("value").null_count == 0
    detail = "it says nothing of a row, and is counted only" if has_value else "a tombstone, which is counted only"
    verdict: dict[str, str | None] = {"route": None, "reason": None, "detail": detail}
    unknown: list[int] = []
    for batch in demux(row.to_batches(), reader, 0):
        chunks = batch.to_pylist()
        unknown += asked_for(chunks)
        for chunk in chunks:
            if chunk["kind"] == "rows":
                verdict = {"route": chunk["route"], "reason": None, "detail": None}
            elif chunk["kind"] == "bad":
                bad = read_rejected(chunk["blob"]).to_pylist()[0]
                verdict = {"route": bad["route"], "reason": bad["reason"], "detail": bad["detail"]}
    return verdict, unknown


def _verdict(answer: Any) -> dict[str, str | None]:
    if isinstance(answer, WorkerDied):
        return {"route": None, "reason": "KILLED_READER", "detail": answer.detail}
    if answer.result is None:
        return {"route": None, "reason": "DECODER_FAILED", "detail": str(answer.error)}
    verdict: dict[str, str | None] = answer.result[0]
    return verdict


# -- what would fit ---------------------------------------------------------------------------------------------


def propose(config: Pipeline, records: Sequence[Inspected]) -> list[str]:
    """Lines that fit the records; none where the file's own do."""
    if not records or any(inspected.route is not None and inspected.reason is None for inspected in records):
        return []
    first = next((inspected.record for inspected in records if inspected.record.fields), records[-1].record)
    if first.fields:
        return _for_json(records) if first.schema_id is None else _for_message(first)
    if first.schema_id is None and "protobuf message" in first.looks:
        topic = getattr(config.source, "topic", None)
        subject = f"{topic}-value" if isinstance(topic, str) else "SUBJECT"
        return [f"envelope: {{framing: none, subject: {subject}}}  # protobuf without the registry's header"]
    return []


def json_lines(records: Sequence[Inspected]) -> list[str]:
    """Lines that read the records as JSON without a schema, where each of them is such an object (or a tombstone)."""
    messages = [inspected.record for inspected in records if not inspected.record.looks.startswith("a tombstone")]
    if not messages or not all(message.fields and message.schema_id is None for message in messages):
        return []
    return _for_json(records)


def _for_json(records: Sequence[Inspected]) -> list[str]:
    """Of JSON that names no schema: its fields as columns."""
    paths = {path for inspected in records for path in inspected.record.fields}
    if paths >= DEBEZIUM or {f"payload.{path}" for path in DEBEZIUM} <= paths:
        return ["envelope: debezium  # a log and a merged table for each source table", "payload: {format: json}"]
    if "payload" in paths and paths & OPENLOGREPLICATOR:
        return [
            "envelope: openlogreplicator  # a log and a merged table for each source table",
            "payload: {format: json}",
        ]
    if paths >= MAXWELL and any(path.startswith("data.") for path in paths):
        return ["envelope: maxwell  # a log and a merged table for each source table", "payload: {format: json}"]
    fields = [
        inspected.record.fields
        for inspected in records
        if inspected.record.fields and inspected.record.schema_id is None
    ]
    columns = proposed_columns(fields)
    lines = ["envelope: none  # a table for each topic"]
    texts = [path for path, kind in columns.items() if kind == "string"]
    if texts:
        lines.append(
            f"envelope: {{format: none, route: {in_yaml(_likely(texts))}}}  # a table for each value of the field"
        )
    inner = payload_field(fields)
    if inner is not None and (outside := [path for path in texts if path.split(".")[0] != inner]):
        envelope = f"{{format: json, route: {in_yaml(_likely(outside))}, payload: {inner}}}"
        payload = _json_payload(proposed_columns(fields_inside(inspected, inner) for inspected in fields))
        lines.append(f"envelope: {envelope}  # the row is what {inner} holds; with this:\n{payload}")
    return [*lines, _json_payload(columns)]


def _json_payload(columns: Mapping[str, str]) -> str:
    written = ", ".join(f"{in_yaml(path)}: {json.dumps(kind)}" for path, kind in columns.items())
    return f"payload: {{format: json, framing: none, columns: {{{written}}}}}"


def _for_message(message: InspectedMessage) -> list[str]:
    """Of a message of the registry: an envelope where it has bytes and a text, else the message itself."""
    kinds = {name: kind for name, (kind, _) in message.fields.items()}
    if "op" in kinds and "connector: string" in kinds.get("source", ""):
        form = str(message.kind).lower()
        return ["envelope: debezium  # a log and a merged table for each source table", f"payload: {{format: {form}}}"]
    texts = [name for name, kind in kinds.items() if kind == "string"]
    if message.kind in ("AVRO", "JSON"):
        return ["envelope: none  # a table for each topic", f"payload: {{format: {message.kind.lower()}}}"]
    blobs = [name for name, kind in kinds.items() if kind == "binary"]
    ids = [name for name, kind in kinds.items() if kind == "int32" and "id" in name.lower()]
    inner = [path for path in message.routes.inner if "." in path or path not in texts]
    if blobs and (texts or inner):
        texts = texts or inner
        schema_id = f", schema_id: {ids[0]}" if ids else ""
        return [f"envelope: {{route: {in_yaml(_likely(texts))}{schema_id}, payload: {blobs[0]}}}"]
    lines = [
        f"envelope: {{route: {{oneof: {in_yaml(name)}}}}}  # a table for each member, the row is what it holds"
        for name in message.routes.oneofs
    ]
    lines += [
        f"envelope: {{route: {{any: {in_yaml(name)}}}}}  # a table for each type, the row is what it holds"
        for name in message.routes.anys
    ]
    lines.append("envelope: none  # a table for each topic")
    if texts or inner:
        route = in_yaml(_likely([*texts, *inner]))
        lines.append(f"envelope: {{format: none, route: {route}}}  # a table for each value of the field")
    return [*lines, "envelope: {route: {from: message_type}}  # a table for each type of message"]


def _likely(names: Sequence[str]) -> str:
    """The field that most looks like a route."""
    words = ("game", "route", "event_type", "event", "type", "kind", "name", "topic", "table")
    return next((name for word in words for name in names if word in name.lower()), names[0])


def in_yaml(value: Any) -> str:
    """A value on one line of YAML: plain words as they are, all else as JSON, which YAML reads too."""
    word = value.replace("_", "").replace("-", "") if isinstance(value, str) else ""
    if word.isascii() and word.isalnum() and value[0].isalpha() and yaml.safe_load(value) == value:
        return str(value)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
