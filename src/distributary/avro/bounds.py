"""What a file may ask of its reader: bounds that follow from its schema and its bytes.

fastavro believes a file. A schema that contains itself nests as deep as the bytes say, which overflows the stack of C;
a count of items that take no bytes is a loop without an end. So a schema is measured, and each event that fastavro is
to read is first walked over, without making its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distributary.avro.schema import Array, Map, Node, Record, Recursion, Scalar, Union

DEEPEST = 64
"""Levels of nesting, in a schema and in a value. PostgreSQL's arrays have six at the most."""
MOST_FIELDS = 20_000
"""Fields of a schema, each type counted wherever it is used. MySQL's tables have 4,096 columns, Oracle's 1,000."""
MOST_VALUES = 1_000_000
"""Values of one event."""
FIXED = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1}


class OutOfBounds(ValueError):
    """A file asks for more than its bytes can stand for."""


def check_schema(schema: Record) -> None:
    """Raises OutOfBounds: nested too deep, too many fields, or events that take no bytes."""
    sizes: dict[int, tuple[int, int]] = {}

    def measure(node: Node, depth: int) -> tuple[int, int]:
        """Fields and levels of a node; of one that is used in many places once."""
        if id(node) not in sizes:
            if depth > DEEPEST:
                raise OutOfBounds(f"its schema is nested more than {DEEPEST} deep")
            measures = [measure(child, depth + 1) for child in _children(node)]
            sizes[id(node)] = (
                1 + sum(fields for fields, _ in measures),
                1 + max((levels for _, levels in measures), default=0),
            )
        fields, levels = sizes[id(node)]
        if fields > MOST_FIELDS:
            raise OutOfBounds(f"its schema has more than {MOST_FIELDS:,} fields")
        if depth + levels > 2 * DEEPEST:
            raise OutOfBounds(f"its schema is nested more than {DEEPEST} deep")
        return fields, levels

    measure(schema, 0)
    if not smallest(schema):
        raise OutOfBounds("its events take no bytes")


def _children(node: Node) -> list[Node]:
    if isinstance(node, Record):
        return [field.node for field in node.fields]
    if isinstance(node, Array):
        return [node.items]
    if isinstance(node, Map):
        return [node.values]
    return list(node.branches) if isinstance(node, Union) else []


def smallest(node: Node) -> int:
    """The fewest bytes that a value takes."""
    if isinstance(node, Scalar):
        return node.size if node.kind == "fixed" else FIXED[node.kind]
    if isinstance(node, Record):
        return sum(smallest(field.node) for field in node.fields)
    return 1  # a count, the number of a branch; a record in itself stands behind one of these


class EventWalk:
    """Steps over one event after the other in a block, as avro's rules have it."""

    def __init__(self, schema: Record, data: memoryview) -> None:
        self._schema = schema
        self._data = data
        self._left = 0

    def end(self, begin: int) -> int:
        """Where the event that begins at `begin` ends. Raises OutOfBounds: in no place of these bytes."""
        self._left = MOST_VALUES
        return self._skip(self._schema, begin, 0, {})

    def _skip(self, node: Node, place: int, depth: int, records: Mapping[str, Record]) -> int:
        self._left -= 1
        if self._left < 0:
            raise OutOfBounds(f"an event of more than {MOST_VALUES:,} values")
        if isinstance(node, Scalar):
            return self._scalar(node, place)
        if depth > DEEPEST:
            raise OutOfBounds(f"a value is nested more than {DEEPEST} deep")
        if isinstance(node, Recursion):
            node = records[node.name]
        if isinstance(node, Record):
            scope = {**records, node.name: node}
            for field in node.fields:
                place = self._skip(field.node, place, depth + 1, scope)
            return place
        if isinstance(node, Union):
            branch, place = self._long(place)
            if not 0 <= branch < len(node.branches):
                raise OutOfBounds(f"a union has no branch {branch}")
            return self._skip(node.branches[branch], place, depth + 1, records)
        if isinstance(node, Array):
            return self._blocks(place, lambda place: self._skip(node.items, place, depth + 1, records))
        return self._blocks(place, lambda place: self._skip(node.values, self._bytes(place), depth + 1, records))

    def _scalar(self, node: Scalar, place: int) -> int:
        kind = node.kind
        if kind in ("string", "bytes"):
            return self._bytes(place)
        if kind in ("int", "long", "enum"):
            return self._long(place)[1]
        return self._within(place + (node.size if kind == "fixed" else FIXED[kind]))

    def _blocks(self, place: int, skip: Callable[[int], int]) -> int:
        while True:
            count, place = self._long(place)
            if count < 0:
                count = -count
                _, place = self._long(place)
            if not count:
                return place
            if count > self._left:
                raise OutOfBounds(f"a list of {count:,} items, more than its event may have")
            for _ in range(count):
                place = skip(place)

    def _bytes(self, place: int) -> int:
        size, place = self._long(place)
        if size < 0:
            raise OutOfBounds("a text of a negative length")
        return self._within(place + size)

    def _within(self, place: int) -> int:
        if place > len(self._data):
            raise OutOfBounds("a value goes on behind the end of its block")
        return place

    def _long(self, place: int) -> tuple[int, int]:
        value = shift = 0
        data = self._data
        while True:
            if place >= len(data) or shift > 63:
                raise OutOfBounds("a number goes on behind the end of its block, or has more than 64 bits")
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), place
            shift += 7
