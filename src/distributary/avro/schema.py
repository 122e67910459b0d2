"""An avro schema as a small tree that the readers and the type mapping walk.

Datastream's schemas deviate from the book in two ways, and files of both kinds exist: a logical type may stand on the
FIELD in place of its type, and unknown logical types (`json`, `number`, `varchar`, `unsupported`) are the rule.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


@dataclass(frozen=True, slots=True)
class Scalar:
    """A primitive, an enum (`symbols`) or a fixed (`size` bytes)."""

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """`doc`: what the schema says of it, for people."""

    name: str
    node: Node
    doc: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Node | None:
        return next((field.node for field in self.fields if field.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


@dataclass(frozen=True, slots=True)
class Array:
    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    values: Node


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Recursion:
    """A record that contains itself: PostgreSQL's `multidimensionalArray_<column>`."""

    name: str


Node = Scalar | Record | Array | Map | Union | Recursion
NULL = Scalar("null")


def parse(text: str) -> Record:
    """The tree of a schema text.

    Raises:
        ValueError: the text is no JSON, or no avro record.
    """
    node = _Parser().node(json.loads(text), "")
    if not isinstance(node, Record):
        raise ValueError("the schema is not a record")
    return node


def solid(node: Node) -> Node:
    """A union of null and one type is that type, one of null alone is null; anything else is itself."""
    if isinstance(node, Union):
        rest = [branch for branch in node.branches if branch != NULL]
        if len(rest) < 2:
            return rest[0] if rest else NULL
    return node


def without_logical_types(schema: Any) -> Any:
    """A schema's JSON with which a reader gives the values as they are stored."""
    if isinstance(schema, list):
        return [without_logical_types(member) for member in schema]
    if isinstance(schema, dict):
        return {key: without_logical_types(member) for key, member in schema.items() if key != "logicalType"}
    return schema


class _Parser:
    def __init__(self) -> None:
        self._known: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str) -> Node:
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            return Union(tuple(self.node(branch, namespace) for branch in schema))
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError(f"{str(schema)[:80]!r} is no type")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, namespace)
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind == "array":
            return Array(self.node(schema["items"], namespace))
        if kind == "map":
            return Map(self.node(schema["values"], namespace))
        if kind in ("enum", "fixed"):
            node = _logical(
                Scalar(kind, size=int(schema.get("size", 0)), symbols=tuple(schema.get("symbols", ()))), schema
            )
            self._learn(schema, namespace, node)
            return node
        return _logical(self._named(kind, namespace), schema)

    def _record(self, schema: dict[str, Any], namespace: str) -> Record:
        name = str(schema.get("name", ""))
        inner = str(schema.get("namespace", name.rpartition(".")[0] or namespace))
        self._learn(schema, namespace, Recursion(name))
        fields = []
        for declared in schema["fields"]:
            # the field's own attributes count as its type's: Datastream's documentation writes them there
            fields.append(Field(str(declared["name"]), _logical(self.node(declared["type"], inner), declared)))
        record = Record(name, tuple(fields))
        self._learn(schema, namespace, record)
        return record

    def _learn(self, schema: dict[str, Any], namespace: str, node: Node) -> None:
        name = str(schema.get("name", ""))
        space = str(schema.get("namespace", namespace))
        self._known[name] = node
        if space and "." not in name:
            self._known[f"{space}.{name}"] = node

    def _named(self, name: str, namespace: str) -> Node:
        if name in PRIMITIVES:
            return Scalar(name)
        for full_name in (f"{namespace}.{name}", name, name.rpartition(".")[2]):
            if full_name in self._known:
                return self._known[full_name]
        raise ValueError(f"the type {name!r} is not defined")


def _logical(node: Node, attributes: dict[str, Any]) -> Node:
    """`node` with the logical type that `attributes` name; one that it has of its own stays."""
    name = attributes.get("logicalType")
    if not isinstance(name, str):
        return node
    if isinstance(node, Union):
        return Union(tuple(branch if branch == NULL else _logical(branch, attributes) for branch in node.branches))
    if isinstance(node, Scalar) and not node.logical and not (node == NULL and name != "unsupported"):
        precision, scale = int(attributes.get("precision", 0)), int(attributes.get("scale", 0))
        return Scalar(node.kind, name, precision, scale, node.size, node.symbols)
    return node
