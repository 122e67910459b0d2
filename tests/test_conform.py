"""Decoded rows in a table's schema: nothing is lost, nothing is changed, what may not enter is said row by row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import Reason
from distributary.tables.conform import Conformed, conform
from distributary.tables.evolve import Evolution, Policy, evolve
from distributary.tables.exact import exact_cast
from tests.random_tables import SCALARS, batches, missing, schemas, types, values
from tests.test_evolve import DOUBLE, FLOAT, INT, LONG, STRING, UINT64, array, policies, schema, struct, to_map

WIDEN = Policy()
FROZEN = Policy("freeze", "freeze")


def as_rows(columns: list[pa.Array], of: pa.Schema) -> list[dict[str, Any]]:
    table = pa.table(columns, schema=of)
    table.validate(full=True)
    return list(table.to_pylist())


def enter(table: pa.Schema | None, batch: pa.RecordBatch, policy: Policy = WIDEN) -> tuple[Evolution, Conformed]:
    evolution = evolve(table, [batch.schema], policy)
    return evolution, conform(batch, evolution.slots[0], evolution.schema)


def rows_of(table: pa.Schema, batch: pa.RecordBatch, policy: Policy = WIDEN) -> list[dict[str, Any]]:
    evolution, found = enter(table, batch, policy)
    assert found.rejected == {}
    return as_rows(found.columns, evolution.schema)


def batch_of(of: pa.Schema, *rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=of)


def rejected(table: pa.Schema, batch: pa.RecordBatch, policy: Policy) -> dict[int, tuple[Reason, str]]:
    evolution, found = enter(table, batch, policy)
    as_rows(found.columns, evolution.schema)
    return found.rejected


# -- laws --------------------------------------------------------------------------------------------------


@given(st.data(), st.none() | schemas(), st.lists(schemas(), min_size=1, max_size=3), policies)
def test_each_value_is_written_or_its_row_is_rejected(
    data: st.DataObject, table: pa.Schema | None, incoming: list[pa.Schema], policy: Policy
) -> None:
    if policy.type_change == "freeze":
        policy = Policy(policy.new_column, "quarantine")  # a frozen column may spell a value otherwise: own test below
    evolution = evolve(table, incoming, policy)
    for slots, one in zip(evolution.slots, incoming, strict=True):
        batch = data.draw(batches(one))
        found = conform(batch, slots, evolution.schema)
        written = as_rows(found.columns, evolution.schema)
        assert len(written) == batch.num_rows
        for position, (before, after) in enumerate(zip(batch.to_pylist(), written, strict=True)):
            assert position in found.rejected or not missing(before, after)
            assert not missing(after, before)


@given(st.data(), st.none() | schemas(), st.lists(schemas(), min_size=1, max_size=3))
def test_no_row_is_rejected_where_columns_may_be_added(
    data: st.DataObject, table: pa.Schema | None, incoming: list[pa.Schema]
) -> None:
    evolution = evolve(table, incoming, Policy(type_change=data.draw(st.sampled_from(["widen", "new_column"]))))
    for slots, one in zip(evolution.slots, incoming, strict=True):
        assert conform(data.draw(batches(one)), slots, evolution.schema).rejected == {}


@given(st.data(), schemas())
def test_a_batch_in_its_own_schema_comes_back_as_it_was(data: st.DataObject, one: pa.Schema) -> None:
    batch = data.draw(batches(one))
    evolution, found = enter(None, batch)
    by_source = {s.source: s.target or "" for s in evolution.slots[0]}
    written = as_rows(found.columns, evolution.schema)
    for before, after in zip(batch.to_pylist(), written, strict=True):
        assert all(not missing(value, after[by_source[name]]) for name, value in before.items())


@given(st.data(), types(), types())
def test_a_frozen_column_keeps_each_value_or_rejects_its_row(
    data: st.DataObject, table: pa.DataType, new: pa.DataType
) -> None:
    batch = data.draw(batches(schema(c=new)))
    evolution, found = enter(schema(c=table), batch, FROZEN)
    assert evolution.schema == schema(c=table)
    as_rows(found.columns, evolution.schema)
    kept = [i for i in range(batch.num_rows) if i not in found.rejected]
    back_evolution, back = enter(
        batch.schema,
        pa.RecordBatch.from_arrays([found.columns[0].take(pa.array(kept, pa.int64()))], schema=evolution.schema),
        FROZEN,
    )
    assert back.rejected == {}
    came_back = as_rows(back.columns, back_evolution.schema)
    for position, after in zip(kept, came_back, strict=True):
        assert not missing(batch.slice(position, 1).to_pylist()[0], after)


@given(st.data(), st.sampled_from(SCALARS), st.sampled_from(SCALARS))
def test_an_exact_cast_can_be_undone(data: st.DataObject, old: pa.DataType, new: pa.DataType) -> None:
    column = pa.array(data.draw(st.lists(values(old), max_size=5)), old)
    there = exact_cast(column, new)
    assert there.type == new
    back = exact_cast(there, old)
    for before, there_value, after in zip(column.to_pylist(), there.to_pylist(), back.to_pylist(), strict=True):
        assert there_value is None or before == after


# -- shapes ------------------------------------------------------------------------------------------------


NESTED_TABLE = schema(s=struct(x=INT), l=array(struct(x=INT)), m=to_map(struct(x=INT)), ll=array(array(INT)))
NESTED_NEW = schema(
    m=to_map(struct(n=STRING, x=LONG)),
    ll=array(array(LONG)),
    l=array(struct(n=STRING, x=LONG)),
    s=struct(n=STRING, x=LONG),
)
NESTED_ROWS: list[dict[str, Any]] = [
    {"s": {"n": "a", "x": 1}, "l": [{"n": "b", "x": 2}, None], "m": [("k", {"n": "c", "x": 3})], "ll": [[1], None, []]},
    {"s": None, "l": None, "m": None, "ll": None},
    {"s": {"n": None, "x": None}, "l": [], "m": [], "ll": []},
    {
        "s": {"n": "d", "x": 4},
        "l": [{"n": None, "x": 5}],
        "m": [("k", None), ("j", {"n": "e", "x": None})],
        "ll": [[2]],
    },
]


@pytest.mark.parametrize(("begin", "rows"), [(0, 4), (1, 3), (2, 2), (3, 1), (1, 1), (2, 0), (4, 0)])
def test_nested_columns_evolve_at_any_offset(begin: int, rows: int) -> None:
    """Case E7, on slices: null stays null, empty stays empty."""
    whole = batch_of(NESTED_NEW, *NESTED_ROWS)
    assert rows_of(NESTED_TABLE, whole.slice(begin, rows)) == whole.to_pylist()[begin : begin + rows]


def test_old_rows_of_a_nested_column_get_null_for_new_fields() -> None:
    wide = evolve(NESTED_TABLE, [NESTED_NEW], Policy()).schema
    batch = batch_of(NESTED_TABLE, {"s": {"x": 1}, "l": [{"x": 2}], "m": [("k", {"x": 3})], "ll": [[4]]})
    assert rows_of(wide, batch) == [
        {"s": {"x": 1, "n": None}, "l": [{"x": 2, "n": None}], "m": [("k", {"x": 3, "n": None})], "ll": [[4]]}
    ]


def test_elements_under_a_null_list_are_left_out() -> None:
    """Arrow allows a null list to span elements; they are no values."""
    mask = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, 2**40, 2**40, 2]), mask=mask)
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), pa.array(list("abcd")), pa.array([1, 2**40, 2**40, 2]), mask=mask
    )
    batch = pa.RecordBatch.from_arrays([lists, maps], ["l", "m"])
    expected = [{"l": [1], "m": [("a", 1)]}, {"l": None, "m": None}, {"l": [2], "m": [("d", 2)]}]
    assert rows_of(schema(l=array(INT), m=to_map(INT)), batch, FROZEN) == expected
    assert rows_of(schema(l=array(UINT64), m=to_map(UINT64)), batch) == expected
    assert rows_of(schema(l=array(UINT64), m=to_map(INT)), batch.slice(1)) == expected[1:]


def test_children_under_a_null_struct_are_no_values() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array([2**40, 1]), pa.array(["x", "y"])], names=["x", "new"], mask=pa.array([True, False])
    )
    batch = pa.RecordBatch.from_arrays([hidden], ["s"])
    assert rejected(schema(s=struct(x=INT)), batch.slice(0, 1), FROZEN) == {}
    assert rejected(schema(s=struct(x=INT)), batch, FROZEN) == {1: (Reason.FROZEN_COLUMN, "s.new")}


def test_a_batch_without_rows_has_the_schema_s_types() -> None:
    for policy in (Policy(), FROZEN, Policy("quarantine", "quarantine")):
        evolution, found = enter(NESTED_TABLE, batch_of(NESTED_NEW), policy)
        assert as_rows(found.columns, evolution.schema) == []
        assert found.rejected == {}


def test_an_absent_column_is_null() -> None:
    batch = batch_of(schema(a=INT), {"a": 1})
    assert rows_of(pa.schema([*NESTED_TABLE, ("a", INT)]), batch) == [
        {"s": None, "l": None, "m": None, "ll": None, "a": 1}
    ]


def test_the_column_order_is_the_table_s() -> None:
    assert list(rows_of(schema(a=INT, b=INT), batch_of(schema(b=INT, a=INT), {"a": 1, "b": 2}))[0]) == ["a", "b"]


def test_names_without_case_meet_in_one_column() -> None:
    batch = batch_of(schema(ID=INT, s=struct(Hp=INT)), {"ID": 1, "s": {"Hp": 2}})
    assert rows_of(schema(id=INT, S=struct(hP=INT)), batch) == [{"id": 1, "S": {"hP": 2}}]


# -- types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "new", "value"),
    [
        (INT, LONG, 5_000_000_000),
        (FLOAT, DOUBLE, 0.1),
        (INT, DOUBLE, 0.1),
        (INT, FLOAT, 0.5),
        (LONG, UINT64, Decimal(2**64 - 1)),
        (UINT64, LONG, -(2**63)),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), Decimal("123456.7891")),
    ],
)
def test_a_widened_column_holds_the_value(table: pa.DataType, new: pa.DataType, value: Any) -> None:
    """Case E4: 5000000000 is not 705032704."""
    assert rows_of(schema(c=table), batch_of(schema(c=new), {"c": value}, {"c": None})) == [{"c": value}, {"c": None}]


@pytest.mark.parametrize(
    ("table", "new", "value"),
    [
        (INT, STRING, "boss"),
        (FLOAT, STRING, "0.1"),
        (STRING, pa.binary(), b"\xff"),
        (struct(x=INT), INT, 7),
        (INT, struct(x=INT), {"x": 1}),
        (array(INT), INT, 7),
        (INT, array(INT), [7]),
        (array(INT), array(STRING), ["x"]),
        (struct(x=INT), to_map(INT), [("k", 1)]),
        (to_map(INT), struct(x=INT), {"x": 1}),
        (to_map(INT), pa.map_(INT, INT), [(1, 1)]),
    ],
)
def test_a_conflict_keeps_the_value_in_a_second_column(table: pa.DataType, new: pa.DataType, value: Any) -> None:
    batch = batch_of(schema(c=new), {"c": value}, {"c": None})
    found = rows_of(schema(c=table), batch, Policy(type_change="new_column"))
    assert [row["c"] for row in found] == [None, None]
    assert [v for row in found for k, v in row.items() if k != "c"] == [value, None]


def test_a_conflict_in_quarantine_keeps_only_rows_with_a_value_aside() -> None:
    batch = batch_of(schema(a=INT, c=STRING), {"a": 1, "c": "x"}, {"a": 2})
    policy = Policy(type_change="quarantine")
    assert rejected(schema(a=INT, c=INT), batch, policy) == {0: (Reason.TYPE_CONFLICT, "c")}


def test_a_nested_conflict_in_quarantine_names_its_path() -> None:
    batch = batch_of(
        schema(p=array(struct(hp=STRING, mp=INT))),
        {"p": [{"mp": 1}, {"hp": "x"}]},
        {"p": [{"mp": 1}, None]},
        {"p": []},
        {"p": None},
        {"p": [{"hp": "y"}]},
    )
    found = rejected(schema(p=array(struct(hp=INT, mp=INT))), batch.slice(1), Policy(type_change="quarantine"))
    assert found == {3: (Reason.TYPE_CONFLICT, "p.hp")}


@pytest.mark.parametrize(
    ("table", "new", "fits", "does_not"),
    [
        (INT, LONG, [5, -(2**31), 2**31 - 1], [2**31, 5_000_000_000]),
        (LONG, UINT64, [Decimal(2**63 - 1)], [Decimal(2**63), Decimal(2**64 - 1)]),
        (pa.decimal128(5, 0), LONG, [99_999], [100_000]),
        (pa.decimal128(38, 20), LONG, [5], [2**62]),
        (pa.decimal128(5, 1), pa.decimal128(20, 2), [Decimal("1.50")], [Decimal("1.55"), Decimal("99999.00")]),
        (INT, DOUBLE, [5.0], [5.5, 1e300, float("inf"), float("nan")]),
        (LONG, DOUBLE, [2.0**62, -(2.0**63)], [2.0**63, 1e19]),
        (FLOAT, DOUBLE, [0.5, float("inf")], [0.1, 1e300]),
        (DOUBLE, LONG, [2**53, 2**62, -(2**63)], [2**53 + 1, 2**63 - 1]),
        (UINT64, DOUBLE, [5.0], [1.5, 1e25]),
        (INT, STRING, ["7", "-7"], ["boss", "07", "7.0", ""]),
        (STRING, INT, [7], []),
        (STRING, pa.binary(), [b"abc", b""], [b"\xff"]),
        (pa.binary(), STRING, ["é"], []),
        (pa.bool_(), INT, [0, 1], [2, -1]),
        (INT, pa.bool_(), [True], []),
        (pa.timestamp("us", "UTC"), LONG, [], [5]),
        (INT, struct(x=INT), [], [{"x": 1}]),
        (struct(x=INT), INT, [], [1]),
        (array(INT), INT, [], [1]),
        (array(INT), array(LONG), [[1, None], []], [[1, 2**40]]),
        (to_map(INT), to_map(LONG), [[("a", 1)], []], [[("a", 1), ("b", 2**40)]]),
        (to_map(INT), pa.map_(INT, INT), [], [[(1, 1)]]),
        (struct(x=INT), struct(x=LONG), [{"x": 1}], [{"x": 2**40}]),
        (array(struct(x=INT)), array(struct(x=LONG)), [[{"x": 1}, None]], [[{"x": 1}, {"x": 2**40}]]),
    ],
)
def test_a_frozen_type_takes_the_values_that_fit_and_only_those(
    table: pa.DataType, new: pa.DataType, fits: list[Any], does_not: list[Any]
) -> None:
    mixed = [{"c": v} for v in [*fits, None, *does_not, *fits]]
    evolution, found = enter(schema(c=table), batch_of(schema(c=new), *mixed), Policy(type_change="freeze"))
    assert sorted(found.rejected) == list(range(len(fits) + 1, len(fits) + 1 + len(does_not)))
    assert {reason for reason, _ in found.rejected.values()} <= {Reason.VALUE_OUT_OF_RANGE}
    written = [row["c"] for row in as_rows(found.columns, evolution.schema)]
    expected = exact_cast(pa.array(fits, new), table).to_pylist() if table in SCALARS else fits
    assert written[: len(fits)] == expected
    assert None not in expected
    assert written[len(fits) + 1 + len(does_not) :] == expected


def test_not_a_number_fits_a_frozen_float() -> None:
    assert rejected(schema(c=FLOAT), batch_of(schema(c=DOUBLE), {"c": float("nan")}), FROZEN) == {}


@pytest.mark.parametrize(("policy", "reason"), [("quarantine", Reason.NEW_COLUMN), ("freeze", Reason.FROZEN_COLUMN)])
def test_an_unknown_column_rejects_only_rows_with_a_value_in_it(policy: Any, reason: Reason) -> None:
    new = schema(a=INT, n=INT, l=array(INT), m=to_map(INT), s=struct(x=INT))
    rows: list[dict[str, Any]] = [
        {"a": 1},
        {"a": 1, "n": 0},
        {"a": 1, "l": [], "m": []},
        {"a": 1, "l": [None]},
        {"a": 1, "m": [("k", 1)]},
        {"a": 1, "s": {"x": None}},
    ]
    expected = {1: (reason, "n"), 3: (reason, "l"), 4: (reason, "m"), 5: (reason, "s")}
    for begin in (0, 1, 2):
        batch = batch_of(new, *rows).slice(begin)
        found = rejected(schema(a=INT), batch, Policy(new_column=policy))
        assert found == {row - begin: cause for row, cause in expected.items() if row >= begin}


def test_an_unknown_nested_field_rejects_only_rows_with_a_value_in_it() -> None:
    new = schema(m=to_map(struct(x=INT, n=STRING)))
    batch = batch_of(new, {"m": [("k", {"x": 1})]}, {"m": None}, {"m": [("k", None), ("j", {"n": "v"})]})
    policy = Policy(new_column="freeze")
    assert rejected(schema(m=to_map(struct(x=INT))), batch, policy) == {2: (Reason.FROZEN_COLUMN, "m.n")}
    assert rejected(schema(m=to_map(struct(x=INT))), batch.slice(2), policy) == {0: (Reason.FROZEN_COLUMN, "m.n")}


def test_a_row_s_first_cause_is_the_one_that_is_told() -> None:
    batch = batch_of(schema(a=LONG, n=INT), {"a": 2**40, "n": 1})
    assert rejected(schema(a=INT), batch, FROZEN) == {0: (Reason.VALUE_OUT_OF_RANGE, "a")}


def test_a_null_in_a_column_that_must_not_be_null_rejects_its_row() -> None:
    table = pa.schema(
        [
            pa.field("id", INT, nullable=False),
            pa.field("s", pa.struct([pa.field("x", INT, nullable=False)])),
            pa.field("l", pa.list_(pa.field("element", INT, nullable=False))),
        ]
    )
    new = schema(id=INT, s=struct(x=INT), l=array(INT))
    batch = batch_of(
        new,
        {"id": 1, "s": {"x": 1}, "l": [1]},
        {"id": None, "s": {"x": 1}, "l": [1]},
        {"id": 1, "s": {"x": None}, "l": [1]},
        {"id": 1, "s": {"x": 1}, "l": [1, None]},
        {"id": 1, "s": None, "l": None},
    )
    _, found = enter(table, batch)
    assert {row: column for row, (_, column) in found.rejected.items()} == {1: "id", 2: "s.x", 3: "l"}
    assert set(enter(table, batch_of(schema(s=struct(x=INT)), {"s": None}))[1].rejected) == {0}


def test_an_untyped_column_enters_as_null() -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(2), pa.array([[None], []], pa.list_(pa.null()))], ["a", "l"])
    assert rows_of(schema(a=struct(x=INT), l=array(INT)), batch) == [{"a": None, "l": [None]}, {"a": None, "l": []}]


def test_many_values_that_do_not_fit_are_found_in_few_casts() -> None:
    column = pa.array([2**40 if i % 1000 == 0 else i for i in range(65_536)])
    batch = pa.RecordBatch.from_arrays([column], ["c"])
    assert len(rejected(schema(c=INT), batch, FROZEN)) == 66
