"""How a table's columns grow: every rule, and the laws that hold for any schemas."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import Reason
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry.compile import compile_text
from distributary.tables.column_names import home, leaves
from distributary.tables.common_types import common_type
from distributary.tables.evolve import KEPT_BYTES, Evolution, Policy, Slot, evolve
from tests.random_tables import TIMESTAMP, schemas, types

INT, LONG, FLOAT, DOUBLE, STRING = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()
UINT64 = pa.decimal128(20, 0)
POLICIES = [
    Policy(new_column, type_change, can_widen)
    for new_column in ("add", "quarantine", "freeze")
    for type_change in ("widen", "new_column", "quarantine", "freeze")
    for can_widen in (True, False)
]
policies = st.sampled_from(POLICIES)
adding = st.sampled_from([Policy(can_widen=True), Policy(can_widen=False), Policy(type_change="new_column")])


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


def array(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


def to_map(kind: pa.DataType) -> pa.DataType:
    return pa.map_(STRING, kind)


def add(table: pa.Schema, *incoming: pa.Schema, **policy: Any) -> Evolution:
    return evolve(table, incoming, Policy(**policy))


# -- laws --------------------------------------------------------------------------------------------------


@given(st.none() | schemas(), st.lists(schemas(), max_size=3), policies)
def test_evolving_again_with_the_same_schemas_changes_nothing(
    table: pa.Schema | None, incoming: list[pa.Schema], policy: Policy
) -> None:
    first = evolve(table, incoming, policy)
    second = evolve(first.schema, incoming, policy)
    assert second.schema == first.schema
    assert not second.changed
    assert second.widened == ()


numbers = schemas((INT, LONG, DOUBLE, pa.decimal128(5, 2), UINT64), names="ab")


@given(st.none() | numbers, st.lists(numbers, min_size=1, max_size=3), adding)
def test_where_a_value_goes_does_not_change_when_its_table_may_not_be_widened_any_more_or_again(
    table: pa.Schema | None, incoming: list[pa.Schema], policy: Policy
) -> None:
    first = evolve(table, incoming, policy)
    again = evolve(first.schema, incoming, policy)
    other = evolve(first.schema, incoming, replace(policy, can_widen=not policy.can_widen))
    assert other.schema == first.schema
    assert other.slots == again.slots


def test_values_that_have_a_second_column_of_their_own_stay_in_it_where_another_could_grow_for_them() -> None:
    """Found by the law above."""
    integral, exact = (schema(b=array(array(pa.decimal128(*digits)))) for digits in ((20, 0), (5, 2)))
    first = evolve(schema(b=INT), [integral, exact], Policy(can_widen=False))
    again = evolve(first.schema, [integral, exact], Policy())
    assert (again.schema, again.changed, again.slots) == (first.schema, False, first.slots)


@given(schemas(), st.lists(schemas(), max_size=3), policies)
def test_a_column_is_never_dropped_renamed_or_moved(
    table: pa.Schema, incoming: list[pa.Schema], policy: Policy
) -> None:
    def keeps(before: pa.DataType, after: pa.DataType) -> bool:
        if pa.types.is_struct(before):
            pairs = list(zip(before, list(after)[: before.num_fields], strict=True))
            return all(old.name == new.name and keeps(old.type, new.type) for old, new in pairs)
        if pa.types.is_list(before):
            return keeps(before.value_type, after.value_type)
        if pa.types.is_map(before):
            return before.key_type == after.key_type and keeps(before.item_type, after.item_type)
        return bool(common_type(before, after) == after)

    assert keeps(pa.struct(list(table)), pa.struct(list(evolve(table, incoming, policy).schema)))


@given(schemas(), st.lists(schemas(), max_size=3), policies)
def test_no_two_columns_differ_only_by_case(table: pa.Schema, incoming: list[pa.Schema], policy: Policy) -> None:
    def check(fields: list[pa.Field]) -> None:
        names = [f.name.lower() for f in fields]
        assert len(names) == len(set(names))
        for field in fields:
            if pa.types.is_struct(field.type):
                check(list(field.type))

    check(list(evolve(table, incoming, policy).schema))


@given(schemas(), st.lists(schemas(), max_size=3), policies)
def test_two_fields_of_one_schema_never_share_a_column(
    table: pa.Schema, incoming: list[pa.Schema], policy: Policy
) -> None:
    def check(slots: tuple[Slot, ...]) -> None:
        targets = [s.target for s in slots if s.target is not None]
        assert len(targets) == len(set(targets))
        for slot in slots:
            check(slot.children)

    for slots in evolve(table, incoming, policy).slots:
        check(slots)


@st.composite
def without_conflicts(draw: st.DrawFn) -> list[pa.Schema]:
    """Schemas that each have some of the same columns, in any order, at every level (case E1)."""

    def some(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            order = draw(st.permutations(list(kind)))
            kept = order[: draw(st.integers(1, len(order)))]
            return pa.struct([f.with_type(some(f.type)) for f in kept])
        if pa.types.is_list(kind):
            return array(some(kind.value_type))
        return pa.map_(kind.key_type, some(kind.item_type)) if pa.types.is_map(kind) else kind

    row = pa.struct(list(draw(schemas(names="abcd"))))
    return [pa.schema(list(some(row))) for _ in range(draw(st.integers(2, 3)))]


def canonical(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return sorted((f.name, canonical(f.type)) for f in kind)
    if pa.types.is_list(kind):
        return ["list", canonical(kind.value_type)]
    return ["map", str(kind.key_type), canonical(kind.item_type)] if pa.types.is_map(kind) else [str(kind)]


@given(without_conflicts())
def test_the_order_of_schemas_does_not_matter_without_a_conflict(incoming: list[pa.Schema]) -> None:
    found = [
        canonical(pa.struct(list(evolve(None, order, Policy()).schema))) for order in itertools.permutations(incoming)
    ]
    assert all(other == found[0] for other in found)


@given(types(), types())
def test_the_common_type_is_symmetric_and_holds_both(a: pa.DataType, b: pa.DataType) -> None:
    common = common_type(a, b)
    assert common == common_type(b, a)
    if common is not None:
        assert common_type(a, common) == common == common_type(common, b)


@given(schemas(), schemas())
def test_one_merge_after_the_other_is_the_same_as_both_at_once(first: pa.Schema, second: pa.Schema) -> None:
    """A batch that brings a new version later (case E2) must not give another table."""
    at_once = evolve(None, [first, second], Policy())
    one_by_one = evolve(evolve(None, [first], Policy()).schema, [second], Policy())
    assert at_once.schema == one_by_one.schema
    assert at_once.slots[1] == one_by_one.slots[0]


# -- new columns -------------------------------------------------------------------------------------------


def test_a_new_table_takes_every_column_whatever_the_policy_says() -> None:
    for policy in POLICIES:
        found = evolve(None, [schema(a=INT), schema(a=LONG, b=STRING)], policy)
        assert found.schema == schema(a=LONG, b=STRING)
        assert not found.changed
        assert found.widened == ()


def test_a_new_column_goes_to_the_end() -> None:
    found = add(schema(z=INT), schema(a=INT, z=INT))
    assert found.schema == schema(z=INT, a=INT)
    assert found.changed
    assert found.slots == ((Slot("a", "a"), Slot("z", "z")),)


@pytest.mark.parametrize(("policy", "reason"), [("quarantine", Reason.NEW_COLUMN), ("freeze", Reason.FROZEN_COLUMN)])
def test_a_new_column_that_may_not_be_added_is_rejected(policy: Any, reason: Reason) -> None:
    found = add(schema(a=INT), schema(a=INT, b=INT), new_column=policy)
    assert found.schema == schema(a=INT)
    assert not found.changed
    assert found.slots[0][1] == Slot("b", None, reject=reason)


@pytest.mark.parametrize("nest", [lambda s: s, array, to_map, lambda s: struct(inner=s)])
def test_a_new_field_is_added_at_any_depth(nest: Any) -> None:
    """Case E7: list<struct>, map<string,struct>, struct in struct; other field order."""
    old, new = nest(struct(x=INT, y=INT)), nest(struct(n=STRING, y=INT, x=INT))
    found = add(schema(c=old), schema(c=new))
    assert found.schema == schema(c=nest(struct(x=INT, y=INT, n=STRING)))
    assert found.changed
    assert found.widened == ()


def test_a_nested_new_field_may_be_rejected_too() -> None:
    found = add(schema(c=array(struct(x=INT))), schema(c=array(struct(x=INT, y=INT))), new_column="freeze")
    assert not found.changed
    assert found.slots[0][0].children[0].children[1] == Slot("y", None, reject=Reason.FROZEN_COLUMN)


def test_added_types_are_nullable_throughout() -> None:
    strict = pa.struct([pa.field("x", INT, nullable=False)])
    found = add(schema(), pa.schema([pa.field("c", array(strict), nullable=False)]))
    assert found.schema == schema(c=array(struct(x=INT)))


def test_nullability_of_a_table_is_left_alone() -> None:
    table = pa.schema(
        [
            pa.field("a", INT, nullable=False),
            pa.field("l", pa.list_(pa.field("element", INT, nullable=False))),
            pa.field("m", pa.map_(STRING, pa.field("value", INT, nullable=False))),
        ]
    )
    found = add(table, schema(a=INT, l=array(INT), m=to_map(INT)))
    assert found.schema == table
    assert not found.changed


# -- names -------------------------------------------------------------------------------------------------


def test_names_compare_without_case() -> None:
    """Case D2: the table's spelling stays."""
    found = add(schema(Score=INT), schema(sCORE=INT))
    assert found.schema == schema(Score=INT)
    assert found.slots[0] == (Slot("sCORE", "Score"),)


def test_names_compare_in_lower_case_not_folded() -> None:
    assert add(schema(straße=INT), schema(strasse=INT)).schema.names == ["straße", "strasse"]


@pytest.mark.parametrize("name", ["a b", "a.b", "Attr_227e-6a", "order", "1inch", "é", "a" * 300])
def test_a_name_is_taken_as_it_is(name: str) -> None:
    """Case D1: quoting is for those who write SQL."""
    assert evolve(None, [pa.schema([(name, INT)])], Policy()).schema.names == [name]


def test_two_fields_that_differ_by_case_get_two_columns() -> None:
    found = evolve(None, [pa.schema([("id", INT), ("Id", INT)])], Policy())
    assert found.schema == schema(id=INT, Id__int=INT)
    nested = evolve(None, [schema(s=pa.struct([("id", INT), ("ID", STRING)]))], Policy())
    assert nested.schema == schema(s=struct(id=INT, ID__string=STRING))


ONE, TWO = pa.int64(), pa.string()
TWINS = {"Score": "Score", "score": "score__bigint"}


@pytest.mark.parametrize("names", [("Score", "score"), ("score", "Score")], ids=" ".join)
@pytest.mark.parametrize("later", [[["Score"]], [["score"]], [["score", "Score"]], [["score"], ["Score"]]], ids=str)
def test_fields_that_differ_by_case_keep_their_columns_whoever_else_comes(
    names: tuple[str, str], later: list[list[str]]
) -> None:
    before = evolve(None, [schema(**dict.fromkeys(names, ONE))], Policy()).schema
    found = add(before, *(schema(**dict.fromkeys(one, ONE)) for one in later))
    columns = {names[0]: names[0], names[1]: f"{names[1]}__bigint"}
    assert all(slot.target == columns[slot.source] for slots in found.slots for slot in slots)
    assert found.schema == before


def test_a_schema_that_has_both_spellings_tells_those_that_have_one_apart() -> None:
    versions = [schema(Score=ONE), schema(score=ONE), schema(Score=ONE, score=ONE)]
    evolution = evolve(None, versions, Policy())
    targets = [{slot.source: slot.target for slot in slots} for slots in evolution.slots]
    assert targets == [{"Score": "Score"}, {"score": "score__bigint"}, TWINS]


def test_an_exact_name_wins_over_one_that_differs_by_case() -> None:
    found = add(schema(val=ONE), schema(Val=ONE, val=ONE))
    assert [slot.target for slot in found.slots[0]] == ["Val__bigint", "val"]


def test_a_value_of_another_type_does_not_make_another_spelling_a_field_of_its_own() -> None:
    once = add(schema(id=ONE), schema(ID=TWO)).schema
    assert once.names == ["id", "id__string"]
    again = add(once, schema(ID=ONE), schema(Id=TWO))
    assert [slots[0].target for slots in again.slots] == ["id", "id__string"] and again.schema == once


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        (["id"], "id", "id"),
        (["id"], "ID", "id"),
        (["id"], "key", None),
        (["Id", "id__bigint"], "id", "id__bigint"),
        (["Id", "id__bigint"], "Id", "Id"),
        (["id", "id__string"], "ID", "id"),
        (["Id", "id__list_string_2"], "id", "id__list_string_2"),
        (["Id", "id__note"], "id", "Id"),
    ],
)
def test_the_column_of_a_name_is_found_as_it_was_given(names: list[str], name: str, found: str | None) -> None:
    assert home(names, name) == found


def test_a_field_named_like_a_second_column_keeps_its_own() -> None:
    incoming = schema(score=STRING, score__string=STRING)
    for order in (incoming, pa.schema(reversed(list(incoming)))):
        found = add(schema(score=INT), order, type_change="new_column")
        targets = {s.source: s.target for s in found.slots[0]}
        assert targets == {"score": "score__string_2", "score__string": "score__string"}


# -- type changes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "new", "wide"),
    [
        (pa.int8(), pa.int16(), pa.int16()),
        (INT, LONG, LONG),
        (FLOAT, DOUBLE, DOUBLE),
        (INT, DOUBLE, DOUBLE),
        (INT, FLOAT, DOUBLE),
        (FLOAT, INT, DOUBLE),
        (LONG, UINT64, UINT64),
        (INT, UINT64, UINT64),
        (INT, pa.decimal128(5, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), pa.decimal128(12, 4)),
        (pa.decimal128(5, 0), LONG, pa.decimal128(20, 0)),
    ],
)
def test_a_column_is_widened_where_that_is_lossless(table: pa.DataType, new: pa.DataType, wide: pa.DataType) -> None:
    """Case E4; the pairs are those of Delta's type widening."""
    found = add(schema(c=table), schema(c=new))
    assert found.schema == schema(c=wide)
    assert found.widened == ((("c",), wide),)
    assert found.slots[0] == (Slot("c", "c"),)


@pytest.mark.parametrize(
    ("table", "narrow"),
    [(LONG, INT), (DOUBLE, FLOAT), (DOUBLE, INT), (UINT64, LONG), (pa.decimal128(12, 4), pa.decimal128(10, 2))],
)
def test_a_smaller_type_enters_as_it_is_under_every_policy(table: pa.DataType, narrow: pa.DataType) -> None:
    for policy in POLICIES:
        found = evolve(schema(c=table), [schema(c=narrow)], policy)
        assert (found.schema, found.changed) == (schema(c=table), False)
        assert found.slots[0] == (Slot("c", "c"),)


@pytest.mark.parametrize(
    ("table", "new", "name"),
    [
        (INT, STRING, "c__string"),
        (STRING, pa.binary(), "c__binary"),
        (pa.binary(), STRING, "c__string"),
        (STRING, INT, "c__int"),
        (FLOAT, STRING, "c__string"),
        (LONG, DOUBLE, "c__double"),
        (DOUBLE, LONG, "c__bigint"),
        (DOUBLE, UINT64, "c__decimal"),
        (INT, pa.bool_(), "c__boolean"),
        (INT, struct(x=INT), "c__struct"),
        (struct(x=INT), INT, "c__int"),
        (INT, array(INT), "c__list_int"),
        (array(INT), INT, "c__int"),
        (array(INT), array(STRING), "c__list_string"),
        (struct(x=INT), to_map(INT), "c__map"),
        (to_map(INT), struct(x=INT), "c__struct"),
        (to_map(INT), pa.map_(INT, INT), "c__map"),
        (to_map(INT), to_map(STRING), "c__map"),
        (TIMESTAMP, LONG, "c__bigint"),
        (pa.timestamp("us"), TIMESTAMP, "c__timestamp"),
        (TIMESTAMP, pa.timestamp("us"), "c__timestamp_ntz"),
        (STRING, pa.date32(), "c__date"),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), "c__decimal"),
    ],
)
def test_what_cannot_be_widened_gets_a_second_column(table: pa.DataType, new: pa.DataType, name: str) -> None:
    """Case E3: the stream goes on, and both values are kept."""
    for policy in ("widen", "new_column"):
        found = add(schema(c=table), schema(c=new), type_change=policy)
        assert found.schema == pa.schema([("c", table), (name, new)])
        assert found.slots[0][0].target == name
        assert found.widened == ()


@pytest.mark.parametrize(
    "policy", [Policy(type_change="new_column"), Policy(type_change="widen", can_widen=False)], ids=str
)
def test_without_widening_a_larger_type_gets_a_second_column(policy: Policy) -> None:
    found = evolve(schema(score=INT), [schema(score=LONG)], policy)
    assert found.schema == schema(score=INT, score__bigint=LONG)


def test_a_nested_conflict_stays_inside_its_struct() -> None:
    found = add(schema(p=array(struct(hp=INT))), schema(p=array(struct(hp=STRING))))
    assert found.schema == schema(p=array(struct(hp=INT, hp__string=STRING)))


@pytest.mark.parametrize("nest", [lambda kind: kind, array, to_map], ids=["plain", "list", "map"])
def test_a_type_that_has_a_second_column_goes_on_there(nest: Any) -> None:
    table = add(schema(c=nest(INT)), schema(c=nest(LONG)), can_widen=False).schema
    assert len(table) == 2
    found = add(table, schema(c=nest(LONG)), schema(c=nest(pa.int16())))
    assert (found.schema, found.widened) == (table, ())
    assert [slots[0].target for slots in found.slots] == [table.names[1], "c"]


@pytest.mark.parametrize("nest", [lambda kind: kind, array, to_map], ids=["plain", "list", "map"])
def test_each_level_of_a_deep_schema_is_looked_at_once(nest: Any) -> None:
    def deep(kind: pa.DataType) -> pa.Schema:
        for _ in range(40):
            kind = nest(struct(x=kind, y=INT))
        return schema(c=kind)

    assert len(add(deep(INT), deep(LONG)).widened) == 1
    table = add(deep(INT), deep(LONG), can_widen=False).schema
    assert add(table, deep(LONG)).schema == table


def test_a_nested_column_is_widened_by_its_path() -> None:
    found = add(
        schema(s=struct(x=INT), l=array(INT), m=to_map(struct(y=FLOAT))),
        schema(s=struct(x=LONG), l=array(LONG), m=to_map(struct(y=DOUBLE))),
    )
    assert found.widened == ((("s", "x"), LONG), (("l", "element"), LONG), (("m", "value", "y"), DOUBLE))


def test_a_second_column_that_holds_something_else_gets_a_number() -> None:
    table = schema(c=INT, c__map=to_map(INT))
    found = add(table, schema(c=pa.map_(INT, INT)))
    assert found.schema.names == ["c", "c__map", "c__map_2"]
    assert found.slots[0][0].target == "c__map_2"


def test_a_second_column_grows_like_any_other() -> None:
    found = add(schema(c=INT, c__struct=struct(x=INT)), schema(c=struct(y=INT)))
    assert found.schema == schema(c=INT, c__struct=struct(x=INT, y=INT))


def test_a_type_conflict_under_quarantine_is_rejected() -> None:
    for table, new in [(INT, LONG), (INT, STRING), (array(INT), array(LONG)), (struct(x=INT), INT)]:
        found = add(schema(c=table), schema(c=new), type_change="quarantine")
        assert found.slots[0] == (Slot("c", None, reject=Reason.TYPE_CONFLICT),)
        assert not found.changed


def test_a_frozen_type_lets_in_the_values_that_fit() -> None:
    for table, new in [(INT, LONG), (INT, STRING), (struct(x=INT), INT)]:
        found = add(schema(c=table), schema(c=new), type_change="freeze")
        assert found.slots[0] == (Slot("c", "c", reject=Reason.VALUE_OUT_OF_RANGE, fit=True),)
        assert not found.changed
    nested = add(schema(c=array(INT)), schema(c=array(LONG)), type_change="freeze")
    assert nested.slots[0][0].children[0].fit


def test_mixed_versions_in_one_batch_end_in_one_schema() -> None:
    """Case E1: v1, v3 and v2 together, v1 again later; then the number is used anew with another type (case E3)."""
    v1, v2, v3 = schema(id=INT, lvl=INT), schema(id=INT), schema(id=INT, lvl=STRING, boss=STRING)
    found = evolve(None, [v1, v2, v3], Policy())
    assert found.schema == schema(id=INT, lvl=INT, lvl__string=STRING, boss=STRING)
    again = evolve(found.schema, [v1], Policy())
    assert not again.changed
    assert [s.target for s in again.slots[0]] == ["id", "lvl"]


# -- untyped fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("untyped", [pa.null(), array(pa.null()), to_map(pa.null()), struct(x=pa.null())])
def test_an_untyped_field_gets_no_column(untyped: pa.DataType) -> None:
    """Case D6: neither void nor array<void> may reach a table."""
    found = evolve(None, [schema(a=INT, v=untyped)], Policy())
    assert found.schema == schema(a=INT)
    assert found.slots[0][1].target is None
    typed = add(schema(a=INT), schema(v=array(INT)))
    assert typed.schema == schema(a=INT, v=array(INT))


def test_an_untyped_field_enters_the_column_that_is_there() -> None:
    found = add(schema(a=INT, l=array(INT)), schema(a=pa.null(), l=array(pa.null())), type_change="quarantine")
    assert not found.changed
    assert [s.target for s in found.slots[0]] == ["a", "l"]


# -- fields with numbers ------------------------------------------------------------------------------------


def numbered(*fields: tuple[str, int], kind: pa.DataType | None = None) -> pa.Schema:
    """The columns of a message with these fields."""
    kinds = {pa.int64(): "int64", pa.string(): "string"}
    body = " ".join(f"{kinds[kind or pa.int64()]} {name} = {number};" for name, number in fields)
    return decoder_for(compile_text(f'syntax = "proto3"; message M {{ {body} }}')).columns


@pytest.mark.parametrize("versions", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("nested", [False, True])
def test_fields_that_differ_by_case_keep_their_column_whoever_else_is_there(
    versions: tuple[int, ...], nested: bool
) -> None:
    known = [
        numbered(("Score", 1)),
        numbered(("Score", 1), ("score", 2)),
        numbered(("score", 2)),
        numbered(("score", 2), ("SCORE", 3), ("Score", 1)),
    ]
    table, columns = None, dict[str, str]()
    for version in versions:
        schema = known[version]
        schema = pa.schema([("in", pa.struct(list(schema)))]) if nested else schema
        evolution = evolve(table, [schema], Policy())
        slots = evolution.slots[0][0].children if nested else evolution.slots[0]
        for slot, field in zip(slots, known[version], strict=True):
            number = field.metadata[b"number"].decode()
            assert slot.target is not None
            assert columns.setdefault(number, slot.target) == slot.target
        table = evolution.schema
    assert len(set(columns.values())) == 3
    names = table.field("in").type.names if table is not None and nested else (table or pa.schema([])).names
    assert len({name.lower() for name in names}) == len(names) == 3


def test_columns_of_an_older_table_are_found_by_name_and_number() -> None:
    table = pa.schema([("Score", pa.int64()), ("score__2", pa.int64())])
    evolution = evolve(table, [numbered(("score", 2))], Policy())
    assert ([slot.target for slot in evolution.slots[0]], evolution.changed) == (["score__2"], False)


def test_a_type_change_of_a_renamed_field_gets_its_column_beside_its_own() -> None:
    table = pa.schema([("Score", pa.int64()), ("score__2", pa.int64())])
    evolution = evolve(table, [numbered(("score", 2), kind=pa.string())], Policy(type_change="new_column"))
    assert [slot.target for slot in evolution.slots[0]] == ["score__2__string"]


def test_a_table_does_not_keep_what_fields_say_of_their_numbers() -> None:
    evolution = evolve(None, [pa.schema([("in", pa.struct(list(numbered(("a", 1)))))])], Policy())
    assert evolution.schema.field("in").type.field("a").metadata is None


def test_a_schema_that_would_bring_too_many_columns_adds_none_and_the_next_one_may() -> None:
    table, flood, small = schema(a=INT), schema(a=INT, x=INT, s=struct(y=INT, z=INT)), schema(a=INT, b=INT)
    found = evolve(table, [flood, small], Policy(max_columns=3))
    assert found.schema == schema(a=INT, b=INT)
    assert [slot.reject for slot in found.slots[0]] == [None, Reason.TOO_MANY_COLUMNS, Reason.TOO_MANY_COLUMNS]
    assert found.slots[1] == (Slot("a", "a"), Slot("b", "b"))
    assert evolve(found.schema, [flood, small], Policy(max_columns=3)).slots == found.slots, "a replay decides the same"


def test_second_columns_count_too_and_a_table_beyond_the_bound_still_takes_what_it_has() -> None:
    table = schema(a=INT, s=struct(x=INT))
    full = Policy(type_change="new_column", max_columns=2)
    assert evolve(table, [schema(a=STRING)], full).slots[0] == (Slot("a", None, reject=Reason.TOO_MANY_COLUMNS),)
    nested = evolve(table, [schema(s=struct(x=INT, y=INT))], replace(full, max_columns=1))
    assert nested.schema == table
    assert nested.slots[0][0].children[1] == Slot("y", None, reject=Reason.TOO_MANY_COLUMNS)
    assert not evolve(table, [table], replace(full, max_columns=1)).slots[0][0].reject


@given(st.data())
def test_no_table_grows_beyond_its_bound_whatever_comes(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 6))
    names = st.sets(st.sampled_from("abcdefgh"), min_size=1, max_size=8)
    found: pa.Schema | None = None
    for _ in range(4):
        kinds = {name: data.draw(st.sampled_from([INT, STRING, struct(n=INT)])) for name in data.draw(names)}
        found = evolve(found, [schema(**kinds)], Policy(max_columns=most)).schema
        assert leaves(found) <= most


def test_what_fields_say_of_themselves_is_asked_each_time() -> None:
    """Schemas that pyarrow takes for equal: an answer that was kept for one is not given for the other."""
    told = pa.schema([pa.field("a", INT, metadata={b"comment": b"points"})])
    told_otherwise = pa.schema([pa.field("a", INT, metadata={b"comment": b"goals"})])
    assert told == told_otherwise
    for schema_of_table in (told, told_otherwise, told):
        found = evolve(schema_of_table, [schema(a=INT)], Policy()).schema
        assert found.field("a").metadata == schema_of_table.field("a").metadata


def test_schemas_too_wide_to_be_kept_get_the_same_answer() -> None:
    wide = schema(**{f"column_{n}": INT for n in range(2_000)})
    more = schema(**{f"column_{n}": INT for n in range(2_001)})
    assert len(wide.serialize()) > KEPT_BYTES
    for _ in range(2):
        found = evolve(wide, [more], Policy())
        assert (found.schema, found.changed) == (more, True)
