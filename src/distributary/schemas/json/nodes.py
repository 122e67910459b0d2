"""What a JSON payload may hold, as the tree that its reader follows, and the columns of it.

docs/payloads.md has the table for users. One rule set, fixed for ever: a later change would break tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from distributary.changes import casts
from distributary.schemas.avro.columns import column_names

ValueKind = Literal[
    "bigint", "double", "boolean", "string", "json", "decimal", "date", "timestamp", "timestamp_ntz", "binary", "word"
]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of one column. `json`: anything, kept as the text of its JSON. `word`: what may be a route, else null."""

    kind: ValueKind
    precision: int = 0
    scale: int = 0


Only = Literal["bigint", "double", "boolean", "string", "json", "object", "empty"]


@dataclass(frozen=True, slots=True)
class Field:
    """`only`: the kind of value that it takes; one of another kind is another field's of this name (`inferred`), and
    null here. None: the field is the only one of its name. `beside`: what its column has behind the name."""

    name: str
    node: Node
    only: Only | None = None
    beside: str = ""

    @property
    def column(self) -> str:
        """What its column is called, where no other one is called so."""
        return self.name + self.beside


@dataclass(frozen=True, slots=True)
class Record:
    """An object of known fields. What else it holds goes to `UNDECLARED`."""

    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    """An object of any names, whose values are all alike."""

    values: Node


Node = Scalar | Record | Array | Map

JSON: Final = Scalar("json")
BIGINT: Final = Scalar("bigint")
DOUBLE: Final = Scalar("double")
STRING: Final = Scalar("string")
BOOLEAN: Final = Scalar("boolean")
UNDECLARED: Final = "_undeclared"
"""The column of all fields that nothing declares: the JSON text of an object, by their places in the record."""
VALUE: Final = "value"
"""The column of a payload that is no object."""


@dataclass(frozen=True, slots=True)
class Tree:
    """`is_whole`: the payload itself is the one field, `value`. `is_part`: what else a record holds does not matter."""

    full_name: str
    record: Record
    is_whole: bool = False
    is_part: bool = False
    is_inferred: bool = False
    """Is null never kept with what is not declared?"""

    @property
    def has_undeclared(self) -> bool:
        """Is there an object that may hold more than is declared?"""
        return not self.is_part and (not self.is_whole or has_record(self.record.fields[0].node))

    @property
    def columns(self) -> pa.Schema:
        """The columns of a row; what is not declared in the last one."""
        names = [field.column for field in self.record.fields]
        kinds = [column_type(field.node) for field in self.record.fields]
        if self.has_undeclared:
            names, kinds = [*names, UNDECLARED], [*kinds, pa.string()]
        return pa.schema(list(zip(column_names(names), kinds, strict=True)))


def has_record(node: Node) -> bool:
    """Is there an object of known fields in what a node says?"""
    if isinstance(node, Array):
        return has_record(node.items)
    return has_record(node.values) if isinstance(node, Map) else isinstance(node, Record)


_TYPES: Final = {
    "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "json": pa.string(),
    "date": pa.date32(), "timestamp": casts.TIMESTAMP, "timestamp_ntz": pa.timestamp("us"), "binary": pa.binary(),
    "word": pa.string(),
}  # fmt: skip


def column_type(node: Node) -> Any:
    """The Arrow type of a node's column."""
    if isinstance(node, Record):
        names = column_names([field.column for field in node.fields])
        return pa.struct([pa.field(name, column_type(f.node)) for name, f in zip(names, node.fields, strict=True)])
    if isinstance(node, Array):
        return pa.list_(pa.field("element", column_type(node.items)))
    if isinstance(node, Map):
        return pa.map_(pa.string(), column_type(node.values))
    return pa.decimal128(node.precision, node.scale) if node.kind == "decimal" else _TYPES[node.kind]
