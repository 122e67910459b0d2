"""A column of payloads -> a struct, each by the schema id in its own header; for DataFrames of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from distributary.config import RegistryConfig
from distributary.engine.schemas import Schemas
from distributary.errors import BadInput
from distributary.names import quoted
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import FORMATS, decoder_for
from distributary.schemas.registry import open_registry
from distributary.schemas.registry.compiler import Compiler, Limits
from distributary.tables.conform import conform
from distributary.tables.evolve import Policy, Slot, evolve
from distributary.tables.spark_engine import ddl


@dataclass(frozen=True)
class Readers:
    """What decodes the payloads. `slots`: by schema id, its way into `columns`. Ships to tasks."""

    format: str
    message: str
    columns: pa.Schema
    schemas: Mapping[int, CompiledSchema]
    slots: Mapping[int, tuple[Slot, ...]]


def readers(registry: RegistryConfig, format: str, ids: Iterable[int], subject: str | None, message: str) -> Readers:
    """Of the schema ids given, and of all versions of `subject`: the columns of all of them, as a table would have.

    Raises BadInput: no schema can be had. Raises RegistryDown, RegistryDenied, SchemaNotFound.
    """
    opened = open_registry(registry)
    schema_ids = set(ids)
    if subject is not None:
        schema_ids |= {opened.version(subject, number).schema.id for number in opened.versions(subject)}
    compiled, refused = Schemas(opened, Compiler(Limits.of(registry))).resolve(schema_ids, every=True)
    columns_of = {i: decoder_for(compiled[i], message, format=format).columns for i in sorted(compiled)}
    if not columns_of:
        why = "; ".join(f"{i}: {detail}" for i, (_, detail) in sorted(refused.items()))
        raise BadInput(detail=f"no schema to decode with: {why or 'give subject, or ids of schemas'}")
    evolution = evolve(None, list(columns_of.values()), Policy(type_change="new_column"))
    slots = dict(zip(columns_of, evolution.slots, strict=True))
    return Readers(format, message, evolution.schema, compiled, slots)


def with_struct(rows: DataFrame, payload: str, into: str, known_readers: Readers) -> DataFrame:
    """`rows`, and a struct column `into`. What cannot be decoded is null."""

    def run(values: pa.Array) -> pa.Array:
        return task(values)

    task = partial(decoded, known_readers=known_readers)
    decode_column: Callable[..., Column] = cast(Any, arrow_udf)(run, from_arrow_schema(known_readers.columns))
    # Cast: a type that Python has made is stored with a collation.
    column = decode_column(F.col(quoted(payload))).cast(ddl(pa.struct(list(known_readers.columns))))
    return rows.select("*", column.alias(into))


def decoded(values: pa.Array, known_readers: Readers) -> pa.StructArray:
    """Framed payloads -> structs, in the same order; null for what cannot be decoded, or whose schema is not known."""
    frames = FORMATS[known_readers.format].split_frames(values.cast(pa.binary()))
    parts: list[pa.Table] = []
    at: list[np.ndarray] = []
    good = np.asarray(pc.and_(pc.is_valid(values), pc.is_null(frames.reason)))
    for schema_id in pc.unique(frames.schema_id.drop_null()).to_pylist():
        mine = np.flatnonzero(good & np.asarray(pc.fill_null(pc.equal(frames.schema_id, schema_id), False)))
        if schema_id not in known_readers.slots or not len(mine):
            continue
        for index in pc.unique(frames.index.take(pa.array(mine))).to_pylist():
            if index != known_readers.message and known_readers.format == "protobuf":
                continue
            places = mine[np.asarray(pc.fill_null(pc.equal(frames.index.take(pa.array(mine)), index), False))]
            split = decoder_for(
                known_readers.schemas[schema_id], known_readers.message, format=known_readers.format
            ).decode(frames.body.take(pa.array(places)))
            good_places = places if split.positions is None else places[np.asarray(split.positions)]
            fitted = conform(split.rows, known_readers.slots[schema_id], known_readers.columns)
            parts.append(pa.table(fitted.columns, schema=known_readers.columns))
            at.append(good_places)
    table = pa.concat_tables([*parts, known_readers.columns.empty_table()]).combine_chunks()
    order = np.full(len(values), -1, np.int64)
    if at:
        order[np.concatenate(at)] = np.arange(table.num_rows)
    arrays = [column.combine_chunks() for column in table.take(pa.array(order, mask=order < 0)).columns]
    return pa.StructArray.from_arrays(arrays, fields=list(known_readers.columns), mask=pa.array(order < 0))
