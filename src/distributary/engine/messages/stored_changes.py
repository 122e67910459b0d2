"""Debezium's messages in Avro or protobuf: value and key, each by the schema that its own header names, to columns.

A record's writer is then a pair: the schema of its value, and in place of a message's name that of its key
(`key_writers`). Both are looked up by the driver, as any writer's is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.debezium.column_changes import StoredMessages
from distributary.changes.debezium.connect import Connect
from distributary.changes.debezium.connect_avro import parse_avro
from distributary.changes.debezium.connect_protobuf import parse_written, written
from distributary.changes.debezium.heads import table_names
from distributary.changes.debezium.json_messages import is_notice
from distributary.changes.model import Kind, SourceTable
from distributary.engine.messages.chunks import GONE, KEY, WriterSchema
from distributary.engine.messages.protobuf_kinds import kind_of
from distributary.errors import Reason, SchemaBroken
from distributary.schemas.avro.payload import AvroSchema
from distributary.schemas.avro.stored import stored_decoder
from distributary.schemas.decoding import CompiledSchema, Decoder, Rejected, Split
from distributary.schemas.formats import FORMATS
from distributary.schemas.formats import decoder_for as format_decoder
from distributary.schemas.header import WHOLE
from distributary.schemas.registry.compile import ProtobufSchema

KEYED: Final = "key "
"""Begins what stands for the schema of a record's key in its writer; then its id, or nothing for a record without."""
_ODD: Final = "?"
_KEY_COLUMN: Final = "\x00key"
_VALUE, _KEY = b"value", b"key"


def key_writers(keys: pa.Array, format: str, messages: pa.StringArray | None = None) -> pa.StringArray:
    """What stands for the schema of each record's key (binary; null for none). `messages`: which message of its schema
    each value is, and which its key is, is said too, where it is not the first one."""
    frames = FORMATS[format].split_frames(keys)
    ids = pc.fill_null(frames.schema_id.cast(pa.string()), _ODD)
    ids = pc.binary_join_element_wise(KEYED, ids, "")
    writers = pc.if_else(pc.fill_null(pc.greater(pc.binary_length(keys), 0), False), ids, KEYED)
    if messages is None:
        return writers
    key_messages, messages = pc.fill_null(frames.index, WHOLE), pc.fill_null(messages, WHOLE)
    first = pc.and_(pc.equal(key_messages, WHOLE), pc.equal(messages, WHOLE))
    return pc.if_else(first, writers, pc.binary_join_element_wise(writers, key_messages, messages, " "))


def key_id(writer: WriterSchema) -> int | None:
    """The id of the key's schema; None for a record without a key, and for other writers."""
    text = _parts(writer[1])[0]
    return int(text) if text.isdigit() else None


def value_message(message: str) -> str:
    """Which message of its schema a writer's value is. `message`: the writer's."""
    return _parts(message)[2] if message.startswith(KEYED) else message


def _parts(message: str) -> tuple[str, str, str]:
    """What stands for the key's id, which message of its schema the key is, and which the value."""
    key, _, messages = message.removeprefix(KEYED).partition(" ") if message.startswith(KEYED) else ("", "", "")
    key_message, _, message = messages.partition(" ")
    return key, key_message or WHOLE, message or WHOLE


def ids_of(writers: Iterable[WriterSchema]) -> set[int]:
    """Of all schemas that it takes to read what these wrote."""
    ids: set[int] = set()
    for writer in writers:
        ids |= {writer[0]} if writer[0] != GONE[0] else set()
        ids |= {key} if (key := key_id(writer)) is not None else set()
    return ids


def value_decoder(schema: CompiledSchema, message: str, *, null_out_of_range: bool = False) -> Decoder:
    """What reads the values, or the keys, that one schema wrote. Raises SchemaBroken, BadIndex."""
    if isinstance(schema, AvroSchema):
        return stored_decoder(schema)
    return format_decoder(schema, message, format=schema.format, null_out_of_range=null_out_of_range)


class ChangeDecoder:
    """Reads the records of one writer: the value's columns, and behind them a struct, the key's."""

    def __init__(
        self,
        writer: WriterSchema,
        schemas: Mapping[int, CompiledSchema],
        format: str,
        *,
        null_out_of_range: bool = False,
    ) -> None:
        """Raises SchemaBroken, BadIndex."""
        self._format = format
        value, key = schemas.get(writer[0]), key_id(writer)
        key_text, key_message, message = _parts(writer[1])
        for schema in (value, None if key is None else schemas[key]):
            if schema is not None and schema.format != format:
                detail = f"it is {schema.format}, and the pipeline file says {format} (payload.format)"
                raise SchemaBroken(what=f"id {schema.id}", detail=detail)
        decoder = partial(value_decoder, null_out_of_range=null_out_of_range)
        self._value = None if value is None else decoder(value, message)
        self._key = None if key is None else decoder(schemas[key], key_message)
        self._is_odd = key_text == _ODD
        schemas_of = ((_VALUE, value, message), (_KEY, None if key is None else schemas[key], key_message))
        self._about = {name: _said(schema, inner) for name, schema, inner in schemas_of if schema is not None}
        self.engine = "avro" if self._value is None else self._value.engine

    def decode(self, records: pa.RecordBatch) -> Split:
        """`records`: `RECORD_SCHEMA`."""
        if self._is_odd:
            why = "its key does not begin as the registry's messages do"
            rows = [Rejected(n, Reason.CORRUPT_EVENT, why) for n in range(len(records))]
            return Split(pa.RecordBatch.from_pylist([], pa.schema([])), pa.array([], pa.int64()), rows)
        rejected: dict[int, Rejected] = {}
        count = len(records)
        value, at = self._read(self._value, records.column("payload"), np.arange(count), "", rejected)
        key = None
        if self._key is not None:
            bodies = FORMATS[self._format].split_frames(records.column(KEY)).body
            key, good = self._read(self._key, bodies.take(pa.array(at)), at, "its key: ", rejected)
            if value is not None:
                value = value.take(pa.array(np.flatnonzero(np.isin(at, good))))
            at = good
        rows = _joined(value, key, len(at)).replace_schema_metadata(self._about)
        positions = None if len(at) == count else pa.array(at, pa.int64())
        return Split(rows, positions, [rejected[place] for place in sorted(rejected)])

    def _read(
        self, decoder: Decoder | None, bodies: Any, at: Any, prefix: str, rejected: dict[int, Rejected]
    ) -> tuple[pa.RecordBatch | None, Any]:
        """The rows that can be read, and which of `at` they are."""
        if decoder is None:
            return None, at
        split = decoder.decode(bodies)
        for row in split.rejected:
            place = int(at[row.position])
            rejected[place] = Rejected(place, row.reason, f"{prefix}{row.detail}")
        return split.rows, at if split.positions is None else at[split.positions.to_numpy()]


def _joined(value: pa.RecordBatch | None, key: pa.RecordBatch | None, count: int) -> pa.RecordBatch:
    arrays = [] if value is None else list(value.columns)
    fields = [] if value is None else list(value.schema)
    if key is not None:
        arrays.append(pa.StructArray.from_arrays(key.columns, fields=list(key.schema)))
        fields.append(pa.field(_KEY_COLUMN, arrays[-1].type))
    if not arrays:
        arrays, fields = [pa.nulls(count)], [pa.field("", pa.null())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _said(schema: CompiledSchema, message: str) -> bytes:
    if isinstance(schema, ProtobufSchema):
        return written(kind_of(schema, message)).encode()
    return json.dumps(schema.texts if isinstance(schema, AvroSchema) else None).encode()


def columns_of(rows: pa.RecordBatch) -> StoredMessages:
    """Rows that `ChangeDecoder` has read. Raises ValueError: their schema is none of Connect's."""
    about = rows.schema.metadata or {}
    at = rows.schema.get_field_index(_KEY_COLUMN)
    value = rows if at < 0 else rows.select([n for n in range(rows.num_columns) if n != at])
    key = None
    if at >= 0:
        struct = rows.column(at)
        key = pa.RecordBatch.from_arrays(struct.flatten(), schema=pa.schema(list(struct.type)))
    return StoredMessages(value, _kind(about.get(_VALUE)), key, _kind(about.get(_KEY)))


def _kind(schema_json: bytes | None) -> Connect | None:
    if schema_json is None or schema_json.startswith(b"{"):
        return None if schema_json is None else parse_written(schema_json.decode())
    texts = json.loads(schema_json)
    return None if texts is None else parse_avro(tuple(texts))


# -- routes ----------------------------------------------------------------------------------------------------


def routes_of_columns(
    schema: CompiledSchema, message: str
) -> Callable[[pa.BinaryArray], tuple[Split, pa.Array, Any, Any]]:
    """What finds the routes of one schema's messages: (what was read, route, which of these say nothing of a row, which
    are no change)."""
    # A time that no reader can hold is not a route's matter: who reads the row says what becomes of it.
    decoder = value_decoder(schema, message, null_out_of_range=True)
    says_nothing = is_notice(decoder.columns.names)

    def read(bodies: pa.BinaryArray) -> tuple[Split, pa.Array, Any, Any]:
        split = decoder.decode(bodies)
        rows, count = split.rows, split.rows.num_rows
        names = rows.schema.names
        if says_nothing or "op" not in names or not pa.types.is_struct(_type(rows, "source")):
            wrong = np.full(count, not says_nothing)
            return split, pa.nulls(count, pa.string()), ~wrong, wrong
        op = rows.column("op")
        passed = np.asarray(pc.fill_null(pc.equal(op, "m"), False).to_numpy(zero_copy_only=False), bool)
        route = _routes(rows.column("source"))
        wrong = np.asarray(pc.or_(route.is_null(), op.is_null()).to_numpy(zero_copy_only=False), bool) & ~passed
        return split, route, passed, wrong

    return read


def _type(rows: pa.RecordBatch, name: str) -> pa.DataType:
    at = rows.schema.get_field_index(name)
    return pa.null() if at < 0 else rows.schema.field(at).type


def _routes(source: pa.StructArray) -> pa.Array:
    names = [name for name in _NAMES if source.type.get_field_index(name) >= 0]
    texts = [pc.struct_field(source, name) for name in names]
    texts = [column if pa.types.is_string(column.type) else pa.nulls(len(source), pa.string()) for column in texts]
    if not texts:
        return pa.nulls(len(source), pa.string())
    coded = pc.binary_join_element_wise(*(pc.fill_null(column, "") for column in texts), "\x1f").dictionary_encode()
    return pa.array([_route(names, text) for text in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


_NAMES = ("connector", "db", "schema", "table", "collection")


def _route(names: Iterable[str], text: str) -> str | None:
    table = table_names(dict(zip(names, text.split("\x1f"), strict=True)))
    return None if table is None else SourceTable(Kind.GENERIC, *table).route
