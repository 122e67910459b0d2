"""Columns as Spark hands them to a sink -> columns as a Delta table has them."""

from __future__ import annotations

import pyarrow as pa

from distributary.errors import BadInput
from distributary.tables.snapshot import delta_schema


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Every column may be null (another schema may lack it), and an instant is one in UTC.

    Raises BadInput: Delta has no word for the type of a column.
    """
    fields = [pa.field(field.name, plain(field.type)) for field in schema]
    for field in fields:
        try:
            delta_schema(pa.schema([field]))
        except ValueError as e:
            raise BadInput(detail=f"column {field.name!r}: a Delta table has no type for {field.type}; cast it") from e
    return pa.schema(fields)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type, as a table's column has it."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind
