"""Where a record's route comes from, chosen once from the pipeline file. Routers are plain values and ship to tasks.

Two kinds. A `RecordRouter` needs only what the source says of a record: its topic, its key, a header; or nothing. A
`MessageRouter` reads the message, by the schema of its writer. Which of the message's parts becomes the row follows
from the route again (`part`), so that a record needs to keep no more than its bytes and its route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.debezium.source_table import route_of_topic, routes_of
from distributary.changes.dialects import DIALECTS
from distributary.engine.messages.chunks import KEY
from distributary.engine.messages.stored_changes import routes_of_columns
from distributary.errors import Reason
from distributary.schemas.decoding import BadIndex, CompiledSchema, Decoder, Rejected, Split
from distributary.schemas.formats import decoder_for
from distributary.schemas.json.bare import BareSchema
from distributary.schemas.json.decoder import field_decoder
from distributary.schemas.json.payload import JsonSchema
from distributary.schemas.protobuf.parts import STEP, any_decoder, column_at, field_at, shallow_for
from distributary.schemas.protobuf.protobuf import descriptor_of
from distributary.schemas.raw import BytesSchema, utf8_texts
from distributary.schemas.registry.compile import ProtobufSchema


class RecordRouter(Protocol):
    """Finds the route before anything of the record is read."""

    def of(self, origin: pa.Table) -> pa.Array:
        """The route (string) of each record; null for none. `origin`: `ORIGIN_FIELDS`, and `KEY` where there is one."""
        ...


class MessageRouter(Protocol):
    """Finds the route in a message."""

    def of(self, schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
        """What finds the routes of one writer's messages. Raises BadIndex, SchemaBroken: none of them can have one."""
        ...

    def part(self, message: pa.StringArray, route: pa.StringArray) -> pa.StringArray:
        """What the row is: the message (by its header), or a part of it (`schemas.protobuf.parts`)."""
        ...


@dataclass(frozen=True)
class RouteFilter:
    """Which routes are written: those that a pattern of `include` matches (without any: all), and none of `exclude`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def unwanted(self, route: pa.StringArray) -> pa.BooleanArray | None:
        """Which of the routes are left out; None where none is. One look-up per distinct route."""
        if not self.include and not self.exclude:
            return None
        encoded = route.dictionary_encode("encode")
        left_out = pa.array([not self._wants(name) for name in encoded.dictionary.to_pylist()], pa.bool_())
        return left_out.take(encoded.indices) if left_out.true_count else None

    def _wants(self, route: str | None) -> bool:
        name = route or ""
        included = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


ALL = RouteFilter()


@dataclass(frozen=True)
class Routed:
    """Routes (string; null for none) of the messages that can be read, their positions, ascending (None: all), and the
    others."""

    route: pa.StringArray
    positions: pa.Int64Array | None
    rejected: list[Rejected]
    passed: int = 0
    """How many say nothing of a row, and are neither."""


# -- by the record --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """One route for all."""

    route: str

    def of(self, origin: pa.Table) -> pa.Array:
        return pa.repeat(self.route, origin.num_rows)


@dataclass(frozen=True)
class TopicName:
    def of(self, origin: pa.Table) -> pa.Array:
        return _one(origin.column("topic"))


@dataclass(frozen=True)
class Key:
    """The record's key, where it is text."""

    def of(self, origin: pa.Table) -> pa.Array:
        return utf8_texts(_one(origin.column(KEY)))


@dataclass(frozen=True)
class TopicTable:
    """The table that a topic of Debezium is named after."""

    def of(self, origin: pa.Table) -> pa.Array:
        coded = _one(origin.column("topic")).dictionary_encode("encode")
        routes = [None if topic is None else route_of_topic(topic) for topic in coded.dictionary.to_pylist()]
        return pa.array(routes, pa.string()).take(coded.indices)


@dataclass(frozen=True)
class Header:
    """The last header of a name, where it is text."""

    name: str

    def of(self, origin: pa.Table) -> pa.Array:
        headers = _one(origin.column("headers"))
        each = pc.list_flatten(headers)
        last_of = np.full(len(headers), -1, np.int64)
        named = np.flatnonzero(pc.fill_null(pc.equal(pc.struct_field(each, "key"), self.name), False))
        last_of[np.asarray(pc.list_parent_indices(headers))[named]] = named
        return utf8_texts(pc.struct_field(each, "value").take(pa.array(last_of, mask=last_of < 0)))


# -- by the message -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MessageType:
    """The full name of the message that the record's header names: several types in one topic."""

    raw_nested_indexes: bool = False

    def of(self, schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
        if not isinstance(schema, ProtobufSchema):
            name = decoder_for(schema, message, format=schema.format).full_name
            return lambda bodies: Routed(pa.repeat(name, len(bodies)), None, [])
        descriptor = descriptor_of(schema, message, raw_nested_indexes=self.raw_nested_indexes)
        return lambda bodies: Routed(pa.repeat(descriptor.full_name, len(bodies)), None, [])

    def part(self, message: pa.StringArray, route: pa.StringArray) -> pa.StringArray:
        return message


@dataclass(frozen=True)
class FieldOf:
    """A field, at a path: text, a whole number, a truth value, or an enum by its name."""

    path: tuple[str, ...]
    raw_nested_indexes: bool = False

    def of(self, schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
        *steps, leaf = self.path
        decoder: Decoder
        if isinstance(schema, ProtobufSchema):
            raw = self.raw_nested_indexes
            decoder = shallow_for(schema, message, tuple(steps), leaf, raw_nested_indexes=raw).decoder
        elif isinstance(schema, JsonSchema | BareSchema):
            decoder = field_decoder(self.path)
        else:
            decoder = decoder_for(schema, message, format=schema.format)
        if (wrong := wrong_route(decoder.columns, self.path)) is not None:
            raise BadIndex(f"the message {decoder.full_name} {wrong}")

        def read(bodies: pa.BinaryArray) -> Routed:
            split = decoder.decode(bodies)
            return _routed(split, column_at(split.rows, self.path).cast(pa.string()))

        return read

    def part(self, message: pa.StringArray, route: pa.StringArray) -> pa.StringArray:
        return message


@dataclass(frozen=True)
class OneofMember:
    """The member of a oneof that is set. The row is what it holds."""

    path: tuple[str, ...]
    raw_nested_indexes: bool = False

    def of(self, schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
        *steps, _ = self.path
        around = shallow_for(_protobuf(schema), message, tuple(steps), raw_nested_indexes=self.raw_nested_indexes)
        members = around.members(self.path)

        def read(bodies: pa.BinaryArray) -> Routed:
            split = around.decoder.decode(bodies)
            route = pa.nulls(split.rows.num_rows, pa.string())
            for name in members:
                is_set = pc.is_valid(column_at(split.rows, [*steps, name]))
                route = pc.if_else(is_set, name, route)
            return _routed(split, route)

        return read

    def part(self, message: pa.StringArray, route: pa.StringArray) -> pa.StringArray:
        before = STEP + "".join(f"{step}." for step in self.path[:-1])
        return pc.binary_join_element_wise(message, before, route, "")


@dataclass(frozen=True)
class AnyType:
    """The type of an Any, by its full name. The row is its value."""

    path: tuple[str, ...]
    raw_nested_indexes: bool = False

    def of(self, schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
        *steps, leaf = self.path
        around = shallow_for(_protobuf(schema), message, tuple(steps), raw_nested_indexes=self.raw_nested_indexes)
        if around.type_at(self.path) != pa.binary():
            raise BadIndex(f"the field {leaf!r} of {around.decoder.full_name} is no google.protobuf.Any")

        def read(bodies: pa.BinaryArray) -> Routed:
            split = around.decoder.decode(bodies)
            # What stands before the last slash is where the type is described, which nothing asks.
            url = _type_urls(column_at(split.rows, self.path))
            return _routed(split, pc.replace_substring_regex(url, r"(?s)^.*/", ""))

        return read

    def part(self, message: pa.StringArray, route: pa.StringArray) -> pa.StringArray:
        return pc.binary_join_element_wise(message, f"{STEP}{'.'.join(self.path)}{STEP}", route, "")


@dataclass(frozen=True)
class ChangedTable:
    """The source table that a change is of: of Debezium, or of others (`changes.dialects`)."""

    dialect: str | None = None

    def of(self, schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
        if not isinstance(schema, BytesSchema):
            return _routes_by_schema(schema, message)

        def read(bodies: pa.BinaryArray) -> Routed:
            find = routes_of if self.dialect is None else DIALECTS[self.dialect].routes_of
            routes_found = find(bodies.to_pylist())
            bad = [Rejected(position, Reason.CORRUPT_EVENT, detail) for position, detail in routes_found.bad]
            return Routed(
                pa.array(routes_found.routes, pa.string()),
                pa.array(routes_found.positions, pa.int64()),
                bad,
                routes_found.passed,
            )

        return read

    def part(self, message: pa.StringArray, route: pa.StringArray) -> pa.StringArray:
        return message


def _routes_by_schema(schema: CompiledSchema, message: str) -> Callable[[pa.BinaryArray], Routed]:
    find_routes = routes_of_columns(schema, message)

    def read(bodies: pa.BinaryArray) -> Routed:
        split, route, passed, wrong = find_routes(bodies)
        at = np.arange(split.rows.num_rows) if split.positions is None else split.positions.to_numpy()
        detail = "it is no change of Debezium: it has no op, or no source that names its table"
        bad = [*split.rejected, *(Rejected(int(n), Reason.CORRUPT_EVENT, detail) for n in at[wrong])]
        good = ~(passed | wrong)
        bad = sorted(bad, key=lambda row: row.position)
        return Routed(route.filter(pa.array(good)), pa.array(at[good], pa.int64()), bad, int(passed.sum()))

    return read


def _type_urls(any_messages: pa.BinaryArray) -> pa.StringArray:
    """The types of serialised Anys; null for one that cannot be read."""
    named = any_decoder().decode(any_messages.fill_null(b""))
    if named.positions is None:
        return named.rows.column("type_url")
    back = np.full(len(any_messages), -1, np.int64)
    back[np.asarray(named.positions)] = np.arange(named.rows.num_rows)
    return named.rows.column("type_url").take(pa.array(back, mask=back < 0))


def _routed(split: Split, route: pa.Array) -> Routed:
    return Routed(_one(route), split.positions, list(split.rejected))


def _protobuf(schema: CompiledSchema) -> ProtobufSchema:
    """Raises BadIndex: the schema is of a format that has no such thing."""
    if not isinstance(schema, ProtobufSchema):
        raise BadIndex(f"only protobuf has a oneof or an Any, and schema {schema.id} is {schema.format}")
    return schema


def wrong_route(columns: pa.Schema, path: tuple[str, ...]) -> str | None:
    """Why the column at a path can be no route; None where it can."""
    name = ".".join(path)
    try:
        kind = field_at(columns, path).type
    except KeyError:
        return f"has no field {name!r}; it has: {', '.join(columns.names)}"
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return None
    return f"has a field {name!r} that is neither text nor a whole number"


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
