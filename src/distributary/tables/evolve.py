"""How a table's columns grow: (table schema, incoming schemas, policy) -> one schema and a way into it for each.

Pure functions over Arrow types; nothing here touches a table. A row is treated as a struct, so one rule serves
the top level and every nested struct, list and map:

- a field that the table lacks is added (`add`), or the values that need it are kept aside (`quarantine`, `freeze`);
- a field whose type differs is read as the table's type when that is lossless (int32 into bigint), else the column
  is widened (`widen`: int -> bigint, float -> double, any integer -> decimal(20,0) ..., the lossless pairs of Delta's
  type widening), else the value gets a second column named `<name>__<type>` (`new_column`), else it is kept aside.
  Where a second column holds values of that type already, they go on there: whether a column may be widened can change
  (its table grows), where a value is found cannot.

Incoming schemas are merged in the order of their schema ids, so the result does not depend on the order of arrival.
Names compare in lower case, as Delta does (delta-io/delta: duplicate columns are found case-insensitively). A field
that has a number (protobuf) is never taken for one whose name differs by case: its column is its exact name, else
`<name>__<number>`, so that values stay in their column whatever other fields come and go. Two fields of one schema
never share a column: of names without a number that differ in case only, the one that is spelled as the column has it,
and the other gets a second column, which stays its own, whoever else is in its message. Untyped fields (null,
list<null>) get no column: Delta refuses array<void>, and a streaming read refuses void (delta-io/delta#6965).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Literal

import pyarrow as pa

from distributary.errors import Reason
from distributary.tables.column_names import folded, home, leaves, type_text, type_word
from distributary.tables.comments import comment_of, commented, commented_anew
from distributary.tables.common_types import common_type

KEPT, KEPT_BYTES = 2_048, 16_384
"""Answers of `evolve` that a process keeps: a batch asks what the one before it asked. Not those of wider schemas."""
_NUMBER, _NAME = b"number", b"name"
"""What a field says of where it comes from (`schemas.protobuf.columns`)."""

NewColumn = Literal["add", "quarantine", "freeze"]
TypeChange = Literal["widen", "new_column", "quarantine", "freeze"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What may happen to a table's columns. `can_widen`: a column that is there can get another type.

    `is_new`: the table does not exist yet, so any column may still be added and any type still grow.
    How a column that is there gets another type (`widening`): by Delta's feature where `type_widening` asks for it,
    else by writing anew a table of up to `rewrite_up_to` bytes (None: of no size).
    `max_columns`: the most leaf columns of the table (None: any number). A schema that would bring more adds none of
    its own (`full`); values that need one are kept aside.
    """

    new_column: NewColumn = "add"
    type_change: TypeChange = "widen"
    can_widen: bool = True
    is_new: bool = False
    type_widening: bool = False
    rewrite_up_to: int | None = None
    max_columns: int | None = None
    full: bool = False
    comments: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of new columns, by path; they go before those of the incoming fields."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one incoming field goes: the target field's name, how its value changes, or why it may not enter."""

    source: str
    target: str | None
    children: tuple[Slot, ...] = ()
    reject: Reason | None = None
    # `fit`: only values that the target type holds may enter; the others are kept aside row by row.
    fit: bool = False


@dataclass(frozen=True, slots=True)
class Evolution:
    """The table's schema after this batch, what has to change for it, and each incoming schema's way into it."""

    schema: pa.Schema
    changed: bool
    widened: tuple[tuple[tuple[str, ...], pa.DataType], ...]
    """(parts of the column's path, new type) of each leaf whose type grew."""
    slots: tuple[tuple[Slot, ...], ...]

    @property
    def widening(self) -> str | None:
        """Which columns get wider, in words; None for none."""
        return f"widening {', '.join('.'.join(path) for path, _ in self.widened)}" if self.widened else None


def evolve(table: pa.Schema | None, incoming: Sequence[pa.Schema], policy: Policy) -> Evolution:
    """Merge `incoming` (in the order given: by schema id) into `table` (None: it does not exist yet).

    A table that does not exist yet takes every column and the widest type, whatever the policy says. Types that cannot
    share a column are treated as the policy says even then: a replay finds the table, and must decide the same.
    """
    columns, brought = None if table is None else _Keyed.of(table), tuple(map(_Keyed.of, incoming))
    size = sum(len(keyed.text) for keyed in (columns, *brought) if keyed is not None)
    return (_evolved if size <= KEPT_BYTES else _evolved.__wrapped__)(columns, brought, policy)


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A schema that is equal only with what its fields say of themselves (their metadata), unlike pyarrow's."""

    text: bytes
    schema: pa.Schema = field(compare=False)

    @classmethod
    def of(cls, schema: pa.Schema) -> _Keyed:
        return cls(schema.serialize().to_pybytes(), schema)


@lru_cache(KEPT)
def _evolved(columns: _Keyed | None, brought: tuple[_Keyed, ...], policy: Policy) -> Evolution:
    table, incoming = None if columns is None else columns.schema, [keyed.schema for keyed in brought]
    rules = policy if table is not None else replace(policy, new_column="add", is_new=True)
    before = list(table) if table is not None else []
    fields, slots = before, []
    for schema in incoming:
        # Fields that differ in case only are told apart by a schema that has both: their columns come first.
        plain = [f.name for f in schema if not _is_numbered(f)]
        if len({folded(name) for name in plain}) < len(plain):
            fields, _ = _merged(fields, list(schema), rules)
    for schema in incoming:
        fields, ways = _merged(fields, list(schema), rules)
        slots.append(ways)
    fields = [
        *(commented_anew(new, old, policy.comments) for new, old in zip(fields, before, strict=False)),
        *(commented(new, policy.comments) for new in fields[len(before) :]),
    ]
    widened = tuple(widenings(before, fields))
    return Evolution(pa.schema(fields), table is not None and fields != before, widened, tuple(slots))


# -- merging -----------------------------------------------------------------------------------------------


def _merged(
    fields: Sequence[pa.Field], incoming: Sequence[pa.Field], policy: Policy
) -> tuple[list[pa.Field], tuple[Slot, ...]]:
    """`_merge_fields` of a whole row, within `Policy.max_columns`."""
    merged, ways = _merge_fields(fields, incoming, policy)
    most = policy.max_columns
    if most is None or merged == fields or leaves(merged) <= max(most, leaves(fields)):
        return merged, ways
    return _merge_fields(fields, incoming, replace(policy, full=True))


@dataclass(frozen=True, slots=True)
class _Way:
    """The type of a column once values of an incoming type may enter it, and what their slot says of them."""

    kind: pa.DataType
    children: tuple[Slot, ...] = ()
    fit: bool = False

    def slot(self, source: str, target: str) -> Slot:
        return Slot(source, target, self.children, Reason.VALUE_OUT_OF_RANGE if self.fit else None, self.fit)


def _merge_fields(
    fields: Sequence[pa.Field], incoming: Sequence[pa.Field], policy: Policy
) -> tuple[list[pa.Field], tuple[Slot, ...]]:
    """The fields of a row or struct after `incoming`, and the slot of each incoming field.

    A slot stays right when later schemas merge: columns are never renamed or moved, and types only grow.
    """
    columns = _Columns(list(fields), policy, frozenset(folded(f.name) for f in incoming))
    # A column is first of all that of the field which is spelled as it is.
    exact = [_is_numbered(new) or new.name in columns.exact for new in incoming]
    order = sorted(range(len(incoming)), key=lambda number: not exact[number])
    slots = {number: columns.place(incoming[number]) for number in order}
    return columns.fields, tuple(slots[number] for number in range(len(incoming)))


@dataclass(slots=True)
class _Columns:
    """The columns of one row or struct while one incoming schema finds its places in them.

    `own`: the incoming schema's names; no other field of that schema may take one of them for a second column.
    """

    fields: list[pa.Field]
    policy: Policy
    own: frozenset[str]
    exact: dict[str, int] = field(init=False)
    index: dict[str, int] = field(init=False)
    taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.exact = {f.name: i for i, f in enumerate(self.fields)}
        self.index = {folded(name): i for name, i in reversed(self.exact.items())}

    def place(self, new: pa.Field) -> Slot:
        name, place = self._home(new)
        if place is None and self.policy.full:
            return Slot(new.name, None, reject=Reason.TOO_MANY_COLUMNS)
        if place is None:
            frozen = self.policy.new_column == "freeze"
            way = _fresh(new.type) if self.policy.new_column == "add" else None
            if way is None:
                return Slot(new.name, None, reject=Reason.FROZEN_COLUMN if frozen else Reason.NEW_COLUMN)
            return self._add(new, name, way)
        way = self._way_into(place, new)
        if way is not None:
            return self._enter(new, *(self._second_column(place, new, name) or (place, way)))
        if self.policy.type_change in ("quarantine", "freeze"):
            return Slot(new.name, None, reject=Reason.TYPE_CONFLICT)
        return self._beside(new, name)

    def _home(self, new: pa.Field) -> tuple[str, int | None]:
        """(the name that tells this field's columns from others', its column's place; None where it has none yet)."""
        if not _is_numbered(new):
            return self._home_by_name(new.name)
        name = new.metadata.get(_NAME, new.name.encode()).decode()
        numbered = f"{name}__{new.metadata[_NUMBER].decode()}"
        for candidate in (name, numbered):
            if (place := self.exact.get(candidate)) is not None:
                return candidate, place
        return numbered if folded(name) in self.index else name, self.index.get(folded(numbered))

    def _home_by_name(self, name: str) -> tuple[str, int | None]:
        """As `home`, of many names one after the other."""
        place = self.exact.get(name)
        if place is None and (place := self.index.get(folded(name))) is not None:
            place = self.exact[home(list(self.exact), name) or name]
        # Where another field of this message has the column, the spelling tells the two apart from now on.
        return name if place is None or place in self.taken else self.fields[place].name, place

    def _beside(self, new: pa.Field, column: str) -> Slot:
        """The column `<name>__<type>`; with a number behind it where that name holds something else already."""
        fresh = _fresh(new.type)
        if fresh is None:
            return Slot(new.name, None, reject=Reason.TYPE_CONFLICT)
        for name in _second_names(column, new.type):
            if folded(name) not in self.own:
                place = self.index.get(folded(name))
                if place is None and self.policy.full:
                    return Slot(new.name, None, reject=Reason.TOO_MANY_COLUMNS)
                if place is None:
                    return self._add(new, name, fresh)
                if (way := self._way_into(place, new)) is not None:
                    return self._enter(new, *(self._second_column(place, new, column) or (place, way)))
        raise AssertionError("names do not end")

    def _second_column(self, place: int, new: pa.Field, column: str) -> tuple[int, _Way] | None:
        """The second column that takes `new` as it is, where its own would have to grow for it."""
        as_is = replace(self.policy, can_widen=False, is_new=False)
        if pa.types.is_struct(_innermost(new.type)):
            # Its own fields see to it, each level for itself: to ask here as well would double the work at each.
            return None
        if _merge_type(self.fields[place].type, new.type, as_is) is not None:
            return None
        for name in _second_names(column, new.type):
            if folded(name) in self.own:
                continue
            second = self.index.get(folded(name))
            if second is None:
                return None
            way = None if second in self.taken else _merge_type(self.fields[second].type, new.type, as_is)
            if way is not None:
                return second, way
        return None

    def _way_into(self, place: int, new: pa.Field) -> _Way | None:
        return None if place in self.taken else _merge_type(self.fields[place].type, new.type, self.policy)

    def _enter(self, new: pa.Field, place: int, way: _Way) -> Slot:
        self.taken.add(place)
        self.fields[place] = self.fields[place].with_type(way.kind)
        return way.slot(new.name, self.fields[place].name)

    def _add(self, new: pa.Field, name: str, way: _Way) -> Slot:
        place = len(self.fields)
        self.exact[name] = self.index[folded(name)] = place
        self.taken.add(place)
        self.fields.append(pa.field(name, way.kind, metadata=comment_of(new)))
        return way.slot(new.name, name)


def _innermost(kind: pa.DataType) -> pa.DataType:
    """What the lists and maps of a type hold in the end."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return kind


def _second_names(column: str, kind: pa.DataType) -> Iterator[str]:
    base = f"{column}__{type_word(kind)}"
    yield base
    yield from (f"{base}_{number}" for number in count(2))


def _fresh(new: pa.DataType) -> _Way | None:
    """A new column for `new`: the same type, nullable throughout; None where nothing in it is typed yet."""
    if pa.types.is_null(new):
        return None
    if pa.types.is_struct(new):
        fields, slots = _merge_fields([], list(new), Policy())
        return _Way(pa.struct(fields), slots) if fields else None
    if pa.types.is_list(new):
        element = _fresh(new.value_type)
        return element and _Way(pa.list_(pa.field("element", element.kind)), (element.slot("element", "element"),))
    if pa.types.is_map(new):
        value = _fresh(new.item_type)
        return value and _Way(pa.map_(new.key_type, value.kind), (value.slot("value", "value"),))
    return _Way(new)


def _merge_type(old: pa.DataType, new: pa.DataType, policy: Policy) -> _Way | None:
    """How `new` shares a column of type `old`, as the policy allows; None when it cannot."""
    if pa.types.is_null(new):
        return _Way(old)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        fields, slots = _merge_fields(list(old), list(new), policy)
        return _Way(pa.struct(fields), slots)
    if pa.types.is_list(old) and pa.types.is_list(new):
        # An element cannot get a second column, so a conflict here is one of the whole column.
        element = _merge_type(old.value_type, new.value_type, policy)
        kind = element and pa.list_(old.value_field.with_type(element.kind))
        return element and _Way(kind, (element.slot("element", "element"),))
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        value = _merge_type(old.item_type, new.item_type, policy)
        kind = value and pa.map_(old.key_type, old.item_field.with_type(value.kind))
        return value and _Way(kind, (value.slot("value", "value"),))
    common = common_type(old, new)
    grows = policy.is_new or (policy.type_change == "widen" and policy.can_widen)
    if common is not None and (common == old or grows):
        return _Way(common)
    return _Way(old, fit=True) if policy.type_change == "freeze" else None


def widenings(
    before: Iterable[pa.Field], after: Iterable[pa.Field], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """(parts of the column path as ALTER TABLE has them, new type) for each existing leaf whose type grew."""
    for old, new in zip(before, after, strict=False):
        yield from _widened(old.type, new.type, (*path, old.name))


def _widened(
    old: pa.DataType, new: pa.DataType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    if pa.types.is_struct(old):
        yield from widenings(old, new, path)
    elif pa.types.is_list(old):
        yield from _widened(old.value_type, new.value_type, (*path, "element"))
    elif pa.types.is_map(old):
        yield from _widened(old.item_type, new.item_type, (*path, "value"))
    elif old != new:
        yield path, new


def widened_in_words(before: Iterable[pa.Field], after: Iterable[pa.Field]) -> dict[str, str]:
    """Path of each leaf that gets another type -> `int -> bigint`."""
    old = dict(_leaf_types(before, ()))
    return {".".join(path): f"{type_text(old[path])} -> {type_text(kind)}" for path, kind in widenings(before, after)}


def _leaf_types(fields: Iterable[pa.Field], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    for child in fields:
        yield from _leaves_of(child.type, (*path, child.name))


def _leaves_of(kind: pa.DataType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    if pa.types.is_struct(kind):
        yield from _leaf_types(kind, path)
    elif pa.types.is_list(kind):
        yield from _leaves_of(kind.value_type, (*path, "element"))
    elif pa.types.is_map(kind):
        yield from _leaves_of(kind.item_type, (*path, "value"))
    else:
        yield path, kind


def _is_numbered(new: pa.Field) -> bool:
    return new.metadata is not None and _NUMBER in new.metadata
