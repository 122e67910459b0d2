"""A JSON Schema as the tree that its reader follows.

A schema says which values are valid; a column has one type. So each part of a schema is asked for the one type that all
its values have. Where there is none, or several, the value is kept as the text of its JSON, which is always right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

from distributary.errors import SchemaBroken
from distributary.schemas.json.documents import Documents
from distributary.schemas.json.nodes import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    JSON,
    STRING,
    VALUE,
    Array,
    Field,
    Map,
    Node,
    Record,
    Scalar,
    Tree,
)
from distributary.schemas.protobuf.columns import MAX_FIELDS

__all__ = ["tree_of"]

DEEPEST: Final = 19
"""Objects, lists and maps inside each other: what a Delta table's columns may nest. Deeper is text."""
MOST_PARTS: Final = 100_000
"""Parts of a schema that are looked at: references may multiply them."""
_SCALARS: Final[Mapping[str, Scalar]] = {
    "integer": BIGINT,
    "number": DOUBLE,
    "string": STRING,
    "boolean": BOOLEAN,
}
_OBJECT: Final = ("properties", "patternProperties", "additionalProperties", "required")
_ARRAY: Final = ("items", "prefixItems", "additionalItems")
Known = Node | None
"""None: the schema says nothing of the type, or only that it may be null."""


def tree_of(texts: Mapping[str, str], subject: str) -> Tree:
    """The last of `texts` (name -> text, itself without a name), which may refer to the others. `subject`: in errors.

    Raises:
        SchemaBroken: a text is no JSON Schema, or more than a table can hold.
    """
    try:
        documents = Documents(texts)
        root = documents.root
        if not isinstance(root, dict | bool):
            raise ValueError("it is neither an object nor true or false")
        node = _Builder(documents).of(root, (), 0)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise SchemaBroken(what=subject, detail=f"it is no JSON Schema: {error}") from error
    title = root.get("title") if isinstance(root, dict) else None
    name = title if isinstance(title, str) and title else VALUE
    if isinstance(node, Record):
        return Tree(name, Record(tuple(_settled_fields(node))))
    return Tree(name, Record((Field(VALUE, _settled(node)),)), is_whole=True)


class _Builder:
    """Asks parts of a schema for their type. `path`: the schemas around a part, to see where one contains itself."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._parts, self._fields = MOST_PARTS, MAX_FIELDS

    def of(self, schema: Any, path: tuple[int, ...], depth: int) -> Known:
        self._parts -= 1
        if self._parts < 0:
            raise ValueError(f"with its references it has more than {MOST_PARTS:,} parts")
        if not isinstance(schema, dict):
            return None
        if id(schema) in path or depth > DEEPEST:
            return JSON
        path = (*path, id(schema))
        types: list[Known] = []
        if any(isinstance(schema.get(word), str) for word in ("$ref", "$dynamicRef", "$recursiveRef")):
            types.append(self.of(self._documents.ref(schema), path, depth))
            if self._documents.is_ref_alone(schema):
                return types[0]
        types.append(self._own(schema, path, depth))
        types += [self.of(branch, path, depth) for branch in _schemas(schema, "allOf")]
        for word in ("anyOf", "oneOf"):
            if branches := [branch for branch in _schemas(schema, word) if not _is_null(branch)]:
                types.append(_any([self.of(branch, path, depth) for branch in branches]))
        return reduce(_both, types, None)

    def _own(self, schema: Mapping[str, Any], path: tuple[int, ...], depth: int) -> Known:
        """What a schema's own keywords say."""
        kinds = schema.get("type")
        if isinstance(kinds, str):
            kinds = [kinds]
        if not isinstance(kinds, list):
            if any(word in schema for word in _OBJECT):
                kinds = ["object"]
            elif any(word in schema for word in _ARRAY):
                kinds = ["array"]
            else:
                return _of_values(schema)
        named = [self._typed(kind, schema, path, depth) for kind in kinds if kind != "null"]
        return _any(named) if named else None

    def _typed(self, kind: Any, schema: Mapping[str, Any], path: tuple[int, ...], depth: int) -> Node:
        if kind == "object":
            return self._object(schema, path, depth)
        if kind == "array":
            return Array(self._items(schema, path, depth) or JSON)
        if not isinstance(kind, str) or kind not in _SCALARS:
            raise ValueError(f"there is no type {kind!r}")
        return _SCALARS[kind]

    def _object(self, schema: Mapping[str, Any], path: tuple[int, ...], depth: int) -> Node:
        properties = schema.get("properties") or {}
        if properties:
            self._fields -= len(properties)
            if self._fields < 0:
                raise ValueError(f"it has more than {MAX_FIELDS:,} fields with all nested ones")
            fields = [Field(name, self.of(child, path, depth + 1) or JSON) for name, child in properties.items()]
            return Record(tuple(field for field in fields if field.name))
        patterns = list((schema.get("patternProperties") or {}).values())
        additional = schema.get("additionalProperties", True)
        if not patterns and not isinstance(additional, dict):
            return Record()
        value_schemas = patterns if additional is False else [*patterns, additional]
        return Map(_any([self.of(child, path, depth + 1) for child in value_schemas]) or JSON)

    def _items(self, schema: Mapping[str, Any], path: tuple[int, ...], depth: int) -> Known:
        items = schema.get("items")
        places = schema.get("prefixItems", items if isinstance(items, list) else [])
        if not places:
            return self.of(items, path, depth + 1)
        additional = schema.get("additionalItems") if isinstance(items, list) else items
        rest = [] if additional is False else [additional]
        return _any([self.of(child, path, depth + 1) for child in [*places, *rest]])


def _schemas(schema: Mapping[str, Any], word: str) -> list[Any]:
    listed = schema.get(word)
    return listed if isinstance(listed, list) else []


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and (schema.get("type") in ("null", ["null"]) or schema.get("const", 0) is None)


def _of_values(schema: Mapping[str, Any]) -> Known:
    """The type of the values of an enum or const."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    types = [_of_value(value) for value in values if value is not None]
    return _any(types) if types else None


def _of_value(value: Any) -> Node:
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return BIGINT
    if isinstance(value, float):
        return DOUBLE
    return STRING if isinstance(value, str) else JSON


def _any(types: Iterable[Known]) -> Known:
    """The type of what is of any of these types."""
    every = list(types)
    return None if None in every else reduce(_either, [kind for kind in every if kind is not None])


def _either(left: Node, right: Node) -> Node:
    if left == right:
        return left
    if {left, right} == {BIGINT, DOUBLE}:
        return DOUBLE
    if isinstance(left, Record) and isinstance(right, Record):
        return _merged(left, right, _either)
    if isinstance(left, Array) and isinstance(right, Array):
        return Array(_either(left.items, right.items))
    return Map(_either(left.values, right.values)) if isinstance(left, Map) and isinstance(right, Map) else JSON


def _both(left: Known, right: Known) -> Known:
    """The type of what is of both types."""
    if left is None or right is None:
        return left or right
    if left == right or right == JSON:
        return left
    if left == JSON:
        return right
    if {left, right} == {BIGINT, DOUBLE}:
        return BIGINT
    if isinstance(left, Record) and isinstance(right, Record):
        return _merged(left, right, _both)
    if isinstance(left, Array) and isinstance(right, Array):
        return Array(_both(left.items, right.items) or JSON)
    for declared, open_ in ((left, right), (right, left)):
        if isinstance(declared, Record) and isinstance(open_, Map):
            return declared if declared.fields else open_
    return JSON


def _merged(left: Record, right: Record, join: Any) -> Record:
    """The fields of both, in the order in which they are named."""
    nodes = {field.name: field.node for field in left.fields}
    for field in right.fields:
        nodes[field.name] = join(nodes[field.name], field.node) if field.name in nodes else field.node
    return Record(tuple(Field(name, node) for name, node in nodes.items()))


def _settled(node: Known) -> Node:
    """What is an object of no known fields is text; so is what has no type."""
    if isinstance(node, Record):
        fields = tuple(_settled_fields(node))
        return Record(fields) if fields else JSON
    if isinstance(node, Array):
        return Array(_settled(node.items))
    if isinstance(node, Map):
        return Map(_settled(node.values))
    return node or JSON


def _settled_fields(record: Record) -> Iterable[Field]:
    return (Field(field.name, _settled(field.node)) for field in record.fields)
