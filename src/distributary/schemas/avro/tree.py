"""A registered Avro schema as the tree that the readers walk, and as fastavro takes it.

Both are made of what fastavro parses, so names are full and checked. Four things are written anew, none of which
changes a byte of a record:

- a decimal that cannot be one (a scale below 0, or above its precision) is its bytes: by the specification a logical
  type that is not valid is ignored, as Java's library and so registries do, and fastavro refuses the schema for it;

- what is not a record at the top is a record with one field, `value`;
- the branches of a union of several types are records with one field each, named for the type: a reader then says
  which branch a value was in, also of `["int", "long"]`;
- logical types are taken away for fastavro: it gives what is stored, as the walk over the bytes does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from distributary.avro.schema import PRIMITIVES, Array, Field, Map, Node, Record, Recursion, Scalar, Union
from distributary.errors import SchemaBroken
from distributary.schemas.comment_text import one_line
from distributary.schemas.protobuf.columns import MAX_FIELDS

__all__ = ["MOST_BRANCHES", "Tree", "tree_of"]

DEEPEST: Final = 19
"""Records, lists and maps inside each other: what a Delta table's columns may nest, whatever they are."""
DEEPEST_TEXT: Final = 200
"""Levels of the schema's JSON: fastavro walks it on C's stack."""
MOST_BRANCHES: Final = 60
"""Types of a union: the number of each is one byte."""
VALUE: Final = "value"
_NULL = Scalar("null")


@dataclass(frozen=True, slots=True)
class Tree:
    """`record`: the tree; `reader`: what fastavro reads with; `has_cycle`: a type contains itself."""

    full_name: str
    record: Record
    reader: Any
    has_cycle: bool


def tree_of(texts: Sequence[str], subject: str) -> Tree:
    """The last of `texts`, which may use the types that those before it define. `subject`: in errors.

    Raises:
        SchemaBroken: a text is no Avro schema, or more than a table can hold.
    """
    named: dict[str, Any] = {}
    parsed: Any = None
    try:
        for text in texts:
            schema = json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
            _check_depth(schema)
            parsed = fastavro.parse_schema(_without_invalid(schema), named_schemas=named, expand=False)
        builder = _Builder(named)
        node = builder.node(parsed, (), 0)
        name = node.name if isinstance(node, Record) else VALUE
        record = node if isinstance(node, Record) else Record(VALUE, (Field(VALUE, node),))
        reader = fastavro.parse_schema(_Rewrite(named).top(parsed), named_schemas={})
    except (SchemaBroken, MemoryError):
        raise
    except Exception as error:  # fastavro lets its own and Python's errors through
        raise SchemaBroken(what=subject, detail=f"it is no Avro schema: {type(error).__name__}: {error}") from error
    return Tree(name, record, reader, builder.has_cycle)


def _without_invalid(schema: Any) -> Any:
    """The schema without decimals that cannot be."""
    if isinstance(schema, list):
        return [_without_invalid(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") == "decimal" and not _is_decimal(schema):
        schema = {name: value for name, value in schema.items() if name != "logicalType"}
    return {name: _without_invalid(value) for name, value in schema.items()}


def _is_decimal(schema: dict[str, Any]) -> bool:
    precision, scale, size = schema.get("precision"), schema.get("scale", 0), schema.get("size")
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
        return False
    # As fastavro reckons, and without numbers of as many digits as a schema may ask for.
    return type(size) is not int or precision <= math.log10(2) * (8 * size - 1)


def _check_depth(schema: Any) -> None:
    level = [schema]
    for _ in range(DEEPEST_TEXT):
        level = [inner for node in level for inner in _inside(node)]
        if not level:
            return
    raise ValueError(f"its text is nested more than {DEEPEST_TEXT} deep")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


class _Builder:
    """Makes the tree; counts fields, for types that are used twice stand in it twice."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named, self._left, self.has_cycle = named, MAX_FIELDS, False

    def node(self, schema: Any, path: tuple[str, ...], depth: int) -> Node:
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return Scalar(schema)
            if schema in path:
                self.has_cycle = True
                return Recursion(schema)
            return self.node(self._named[schema], path, depth)
        if isinstance(schema, list):
            return self._union(schema, path, depth)
        kind = schema["type"]
        if isinstance(kind, dict | list) or (kind not in PRIMITIVES and kind not in _COMPLEX):
            return self.node(kind, path, depth)
        if kind in ("record", "error"):
            return self._record(schema, path, depth)
        if kind == "array":
            return Array(self.node(schema["items"], path, depth + 1))
        if kind == "map":
            return Map(self.node(schema["values"], path, depth + 1))
        return _scalar(kind, schema)

    def _record(self, schema: Any, path: tuple[str, ...], depth: int) -> Record:
        name = schema["name"]
        if name in path:
            self.has_cycle = True
        self._left -= max(1, len(schema["fields"]))
        if self._left < 0:
            raise ValueError(f"it has more than {MAX_FIELDS:,} fields with all nested ones")
        inside = (*path, name)
        fields = [
            Field(field["name"], self.node(field["type"], inside, depth + 1), one_line(field.get("doc")))
            for field in schema["fields"]
        ]
        return Record(name, tuple(fields))

    def _union(self, branches: list[Any], path: tuple[str, ...], depth: int) -> Node:
        if len(branches) > MOST_BRANCHES:
            raise ValueError(f"a union of more than {MOST_BRANCHES} types")
        several = sum(branch != "null" for branch in branches) > 1
        self._left -= len(branches) if several else 0
        nodes = [self.node(branch, path, depth + several) for branch in branches]
        if not several:
            return Union(tuple(nodes))
        names = _branch_names(branches)
        return Union(
            tuple(
                node if node == _NULL else Record("", (Field(name, node),))
                for name, node in zip(names, nodes, strict=True)
            )
        )


_COMPLEX = frozenset({"record", "error", "array", "map", "enum", "fixed"})


def _scalar(kind: str, schema: Any) -> Scalar:
    logical = schema.get("logicalType")
    return Scalar(
        kind,
        logical if isinstance(logical, str) else "",
        int(schema.get("precision", 0)) if logical == "decimal" else 0,
        int(schema.get("scale", 0)) if logical == "decimal" else 0,
        int(schema.get("size", 0)),
        tuple(schema.get("symbols", ())),
    )


def _branch_names(branches: list[Any]) -> list[str]:
    """The name of each type without its namespace; of two that are alike, with it."""
    full = [_type_name(branch) for branch in branches]
    short = [name.rpartition(".")[2] for name in full]
    lower = [name.lower() for name in short]
    return [
        short_name if lower.count(short_name.lower()) == 1 else full_name.replace(".", "_")
        for short_name, full_name in zip(short, full, strict=True)
    ]


def _type_name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    kind = branch["type"]
    return str(branch["name"] if kind in ("record", "error", "enum", "fixed") else kind)


class _Rewrite:
    """The schema as fastavro reads with it."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named, self._done, self._wrapped = named, set[str](), 0

    def top(self, schema: Any) -> Any:
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, dict) and schema["type"] in ("record", "error"):
            return self.schema(schema)
        return self._record_of(VALUE, schema)

    def schema(self, schema: Any) -> Any:
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES or schema in self._done else self.schema(self._named[schema])
        if isinstance(schema, list):
            return self._union(schema)
        kind = schema["type"]
        if isinstance(kind, dict | list) or (kind not in PRIMITIVES and kind not in _COMPLEX):
            return self.schema(kind)
        if kind in ("record", "error", "enum", "fixed"):
            if schema["name"] in self._done:
                return schema["name"]
            self._done.add(schema["name"])
        if kind in ("record", "error"):
            fields = [{"name": field["name"], "type": self.schema(field["type"])} for field in schema["fields"]]
            return {"type": "record", "name": schema["name"], "fields": fields}
        if kind == "array":
            return {"type": "array", "items": self.schema(schema["items"])}
        if kind == "map":
            return {"type": "map", "values": self.schema(schema["values"])}
        keys = ("type", "name", "symbols", "size")
        return {key: schema[key] for key in keys if key in schema} if kind in _COMPLEX else kind

    def _union(self, branches: list[Any]) -> list[Any]:
        if sum(branch != "null" for branch in branches) < 2:
            return [self.schema(branch) for branch in branches]
        names = _branch_names(branches)
        return [
            branch if branch == "null" else self._record_of(name, branch)
            for name, branch in zip(names, branches, strict=True)
        ]

    def _record_of(self, field: str, schema: Any) -> Any:
        self._wrapped += 1
        name = f"_{self._wrapped}"
        return {
            "type": "record",
            "name": name,
            "namespace": "distributary",
            "fields": [{"name": field, "type": self.schema(schema)}],
        }
