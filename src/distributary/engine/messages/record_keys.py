"""Records' keys as columns: a text, or a record of fields that the pipeline file names (`source.key`).

A key with a schema (Avro, protobuf) is read where its record is cut, since there the driver is asked for schemas that
are not known yet; from there on it is the text of a JSON object. A key of JSON is one already. So the task that writes
needs no schemas of keys, and what is kept aside is read again in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from distributary.changes.casts import named_type
from distributary.changes.key_text import as_type
from distributary.config.source_keys import RecordKey
from distributary.errors.border import contained
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import FORMATS, decoder_for
from distributary.schemas.json.bare import declared_record
from distributary.schemas.json.decoder import JsonDecoder
from distributary.schemas.json.nodes import UNDECLARED, Tree
from distributary.schemas.json.row_text import object_text
from distributary.schemas.raw import utf8_texts
from distributary.state.journal import Refusals

MAGIC: Final = b"\0"
"""Begins a key with a header, and no JSON."""
_NO_SCHEMA: Final = "the record's key: it cannot be read by the schema that its header names"


# -- where records are cut ----------------------------------------------------------------------------------


def as_objects(
    keys: pa.BinaryArray,
    record_key: RecordKey,
    schemas: Mapping[int, CompiledSchema],
    refused: Refusals,
    unknown: Callable[[int], None],
) -> pa.BinaryArray:
    """Keys with a header as texts of JSON; those that cannot be read stay as they are. `unknown` takes the ids of
    schemas that are in neither `schemas` nor `refused`."""
    values = keys.to_pylist()
    framed = [position for position, key in enumerate(values) if key is not None and key[:1] == MAGIC]
    if not framed or record_key.format == "text":
        return keys
    header = FORMATS[record_key.format]
    frames = header.split_frames(pa.array([values[position] for position in framed], pa.binary()))
    frames_found = zip(
        frames.schema_id.to_pylist(), frames.index.to_pylist(), frames.body.to_pylist(), framed, strict=True
    )
    by_writer: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
    for schema_id, index, body, position in frames_found:
        if schema_id is None or record_key.format == "json":
            values[position] = values[position] if schema_id is None else body
        elif schema_id in schemas:
            by_writer.setdefault((schema_id, index), []).append((position, body))
        elif schema_id not in refused:
            unknown(schema_id)
    for (schema_id, index), some in by_writer.items():
        texts = _decoded(schemas[schema_id], index, record_key.format, [body for _, body in some])
        for (position, _), text in zip(some, texts, strict=True):
            values[position] = values[position] if text is None else text
    return pa.array(values, pa.binary())


def _decoded(schema: CompiledSchema, index: str, format: str, bodies: list[bytes]) -> list[bytes | None]:
    """Keys of one writer as JSON; None for one that cannot be read."""
    texts: list[bytes | None] = [None] * len(bodies)
    try:
        split = decoder_for(schema, index, format=format).decode(pa.array(bodies, pa.binary()))
    except BaseException as e:
        contained(e)
        return texts
    places = range(len(bodies)) if split.positions is None else split.positions.to_pylist()
    kind = pa.struct(list(split.rows.schema))
    for position, row in zip(places, split.rows.to_pylist(), strict=True):
        texts[position] = object_text(row, kind)
    return texts


# -- where rows are written ---------------------------------------------------------------------------------


def key_fields(record_key: RecordKey | None, is_keyed: bool) -> pa.Schema:
    """The columns that keys are. `is_keyed`: the table has a key, of which a text is part by other rules (`events`)."""
    if record_key is None or (record_key.format == "text" and is_keyed):
        return pa.schema([])
    if record_key.format == "text":
        kind = None if record_key.type is None else named_type(record_key.type)
        return pa.schema([pa.field(str(record_key.column), kind or pa.string())])
    columns = _decoder(record_key).columns
    return pa.schema([f for f in columns if f.name != UNDECLARED])


def beside(columns: pa.Schema, fields: pa.Schema) -> pa.Schema:
    """Those of `fields` that a message does not have itself: its own field goes first."""
    message_names = {name.lower() for name in columns.names}
    return pa.schema([f for f in fields if f.name.lower() not in message_names])


def read_keys(keys: pa.BinaryArray, record_key: RecordKey, is_keyed: bool) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The columns of `key_fields`, null for a record without a key; and why some cannot be read, by place."""
    fields = key_fields(record_key, is_keyed)
    if record_key.format == "text":
        column = fitting(utf8_texts(keys), fields.field(0).type)
        lost = np.flatnonzero(np.asarray(column.is_null()) & np.asarray(keys.is_valid()))
        bad = dict.fromkeys(lost.tolist(), f"the record's key is no {record_key.type or 'text'}")
        return pa.RecordBatch.from_arrays([column], schema=fields), bad
    with_key = np.flatnonzero(np.asarray(keys.is_valid()))
    split = _decoder(record_key).decode(keys.take(pa.array(with_key)))
    bad = {int(with_key[rejection.position]): f"the record's key: {rejection.detail}" for rejection in split.rejected}
    bad |= {position: _NO_SCHEMA for position in bad if record_key.has_schema and keys[position].as_py()[:1] == MAGIC}
    good = with_key if split.positions is None else with_key[np.asarray(split.positions)]
    back = np.full(len(keys), -1, np.int64)
    back[good] = np.arange(len(good))
    return split.rows.select(fields.names).take(pa.array(back, mask=back < 0)), bad


def fitting(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """In the type that the pipeline file gives; null for a key that is none of it."""
    coded = texts.dictionary_encode()
    typed = [as_type(pa.array([text], pa.string()), kind) for text in coded.dictionary.to_pylist()]
    return pa.concat_arrays([pa.nulls(1, kind) if array is None else array for array in (*typed, None)]).take(
        coded.indices
    )


@cache
def _decoder_of(columns: tuple[tuple[str, str], ...]) -> JsonDecoder:
    return JsonDecoder(Tree("key", declared_record(columns)))


def _decoder(record_key: RecordKey) -> JsonDecoder:
    return _decoder_of(tuple(record_key.columns.items()))
