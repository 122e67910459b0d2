"""Columns of JSON that nothing declares: the same value is in the same column, whatever records are beside it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.judge import json_bare as judge
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.schemas import Schemas
from distributary.schemas.json import bare, inferred
from distributary.schemas.json.decoder import JsonDecoder
from distributary.schemas.json.inferred import shapes, with_shape
from distributary.schemas.json.nodes import Tree
from distributary.schemas.registry.absent import NoRegistry
from tests.decoder_contract import Lane

Columns = dict[str, str]


def read(bodies: list[bytes], columns: Columns, at_once: int, route: str = "go") -> list[Any]:
    """Each record's row without what is null; the detail where it is bad. `at_once`: so many share a window."""
    schema = bare.without_schema(columns)
    declared = bare.declared_record(schema.columns)
    found: list[Any] = []
    for begin in range(0, len(bodies), at_once):
        some = bodies[begin : begin + at_once]
        messages = shapes(pa.array([route] * len(some)), pa.array(some, pa.binary()), declared).to_pylist()
        rows: dict[int, Any] = {}
        for message in dict.fromkeys(messages):
            places = [place for place, one in enumerate(messages) if one == message]
            split = bare.decoder_for(schema, message).decode(pa.array([some[place] for place in places], pa.binary()))
            good = split.positions.to_pylist() if split.positions is not None else range(len(places))
            rows |= {places[at]: _without_nulls(row) for at, row in zip(good, split.rows.to_pylist(), strict=True)}
            rows |= {places[bad.position]: bad.detail for bad in split.rejected}
        found += [rows[place] for place in range(len(some))]
    return found


def _without_nulls(row: Any) -> Any:
    if isinstance(row, dict):
        return {name: kept for name, one in row.items() if (kept := _without_nulls(one)) is not None}
    return row


def one(value: str, **columns: str) -> Any:
    return read([value.encode()], columns, 1)[0]


def test_a_field_has_a_column_for_each_kind_of_value() -> None:
    assert one('{"s":"a","n":1,"d":1.50,"b":true,"l":[1,"a"],"o":{"x":1,"y":{"z":"q"}},"e":{},"nothing":null}') == {
        "s__string": "a",
        "n__bigint": 1,
        "d__double": 1.5,
        "b__boolean": True,
        "l__json": '[1,"a"]',
        "o": {"x__bigint": 1, "y": {"z__string": "q"}},
        "e__empty": "{}",
    }


@pytest.mark.parametrize(
    ("number", "column", "value"),
    [
        ("9223372036854775807", "n__bigint", 2**63 - 1),
        ("9223372036854775808", "n__json", "9223372036854775808"),
        ("1.0", "n__double", 1.0),
        ("1e400", "n__json", "1e400"),
        ("0.1", "n__double", 0.1),
        ("3.14159265358979323846", "n__json", "3.14159265358979323846"),
        ("-0", "n__bigint", 0),
    ],
)
def test_a_number_is_in_a_column_that_holds_it(number: str, column: str, value: Any) -> None:
    assert one(f'{{"n":{number}}}') == {column: value}


def test_what_is_declared_has_its_column_and_the_rest_is_inferred() -> None:
    columns = {"n": "double", "meta.at": "timestamp"}
    row = one('{"n":1,"meta":{"at":"2026-01-02T03:04:05Z","by":"ann"},"x":1}', **columns)
    assert row.pop("meta").keys() == {"at", "by__string"}
    assert row == {"n": 1.0, "x__bigint": 1}
    assert one('{"n":"1","x":1}', n="double") == '/n: "1" is no number that a double holds'


@pytest.mark.parametrize(
    "value",
    [
        '{"a":1,"A":"x"}',
        '{"x y":1}',
        '{"":1}',
        '{"a__string":1}',
        '{"_undeclared":1}',
        json.dumps({f"f{n}": n for n in range(1_001)}),
    ],
)
def test_what_can_have_no_column_of_its_own_is_kept_as_it_is(value: str) -> None:
    row = one(value)
    assert row.keys() == {"_undeclared"}
    assert json.loads(row["_undeclared"]) == json.loads(value)


def test_what_is_no_record_is_set_aside_and_spoils_no_other() -> None:
    rows = read([b'{"a":1}', b"[1]", b"{", b'{"a":"\xff"}', b'{"a":"x"}'], {}, 5)
    assert [isinstance(row, str) for row in rows] == [False, True, True, True, False]
    assert [rows[0], rows[4]] == [{"a__bigint": 1}, {"a__string": "x"}]


def test_empty_objects_of_two_spellings_are_apart() -> None:
    bodies = [b'{"a":{}}', b'{"A":{"d":null}}']
    assert read(bodies, {}, 2) == read(bodies, {}, 1)


_NAMES = st.sampled_from(["a", "b", "A", "meta", "x y", "a__string", "_origin", "n"])
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
_RECORDS = st.lists(st.dictionaries(_NAMES, _VALUES, max_size=4), min_size=1, max_size=6)


@given(_RECORDS, st.integers(0, 9), st.sampled_from([{}, {"n": "bigint"}, {"meta.a": "json", "b": "json"}]))
def test_a_record_is_the_same_row_whatever_company_it_keeps(records: list[Any], seed: int, columns: Columns) -> None:
    bodies = [json.dumps(record).encode() for record in records]
    alone = read(bodies, columns, 1)
    assert read(bodies, columns, len(bodies)) == alone
    order = random.Random(seed).sample(range(len(bodies)), len(bodies))
    assert read([bodies[place] for place in order], columns, 3) == [alone[place] for place in order]


@given(_RECORDS, st.sampled_from([{}, {"n": "bigint"}, {"meta.a": "json", "b": "json"}]))
def test_what_many_records_are_read_by_at_once_says_the_same_as_one_by_one(
    records: list[Any], columns: Columns
) -> None:
    bodies = [json.dumps(record).encode() for record in records]
    declared = bare.declared_record(tuple(columns.items()))
    routes, values = pa.array(["go"] * len(bodies)), pa.array(bodies, pa.binary())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inferred, "FIRST", 1)
        patch.setattr(inferred, "AT_ONCE", 2)
        at_once = shapes(routes, values, declared).to_pylist()
    one_by_one = shapes(routes, values, declared).to_pylist()
    assert [len(shape) > 1 for shape in at_once] == [len(shape) > 1 for shape in one_by_one]
    for message in {*at_once, *one_by_one} - {"0"}:
        typed = JsonDecoder(Tree("record", with_shape(declared, message), is_inferred=True))
        plain = JsonDecoder(Tree("record", with_shape(declared, message), is_inferred=True))
        plain._typed = plain._whole = None
        for shapes_of in (at_once, one_by_one):
            of_shape = [body for body, shape in zip(bodies, shapes_of, strict=True) if shape == message]
            some = pa.array(of_shape, pa.binary())
            assert typed.decode(some).rows.to_pylist() == plain.decode(some).rows.to_pylist()


@pytest.mark.parametrize(
    "odd",
    [
        '{"d":7}', '{"d":1e400}', '{"d":"x"}', '{"n":7.0}', '{"n":9223372036854775808}', '{"s":"\\ud800"}',
        '{"o":{}}', '{"o":{"x":null}}', '{"o":{"x":1,"y":2}}', '{"l":{}}', '{"l":1}', '{"e":[1]}', '{"S":"a"}',
        '{"n":1,"n":"a"}', "{}", '{"n":null}', "[]", '{"n":1}{}', '{"d":0.1234567890123456789}', '{"l":[01]}',
    ],
)  # fmt: skip
def test_a_record_that_is_not_as_those_before_is_the_row_that_it_is_alone(odd: str) -> None:
    plain = '{"s":"a","n":1,"d":1.5,"b":true,"l":[1],"o":{"x":1},"e":{}}'
    bodies = [plain.encode()] * 70 + [odd.encode(), plain.encode()]
    found = read(bodies, {}, len(bodies))
    assert found[70:] == [one(odd), one(plain)]
    assert found[:70] == [one(plain)] * 70


def test_names_that_differ_in_case_only_are_kept_as_they_are_behind_others_too() -> None:
    odd = '{"A":1.5,"a":null}'
    before = ['{"A":1.5}', '{"a":{"b":1}}']
    bodies = [body.encode() for body in [*before * 40, odd]]
    assert read(bodies, {}, len(bodies))[-1] == one(odd) == {"_undeclared": odd}


@given(_RECORDS)
def test_the_judge_finds_every_value_of_a_record_in_its_row(records: list[Any]) -> None:
    bodies = [json.dumps(record).encode() for record in records]
    said = judge.reader(bare.without_schema({}), "0")
    for body, row in zip(bodies, read(bodies, {}, len(bodies)), strict=True):
        assert said(body).differs(row) is None
        for name in row:
            assert said(body).differs({**row, name: "another"}) is not None


class Inferring(Lane):
    @property
    def reader(self) -> EnvelopeReader:
        return replace(super().reader, infers=bare.declared_record(()))


@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_cut_and_order_make_the_same_table(tmp_path: Path, seed: int) -> None:
    rnd = random.Random(seed)
    values = [1, 1.5, "1", True, None, [1], {"x": 1}, {"x": "a", "y": 2}, {}, 2**64]
    bodies = [json.dumps({name: rnd.choice(values) for name in ("a", "b", "C")}).encode() for _ in range(40)]
    tables = []
    for way in range(3):
        order = rnd.sample(bodies, 40)
        lane = Inferring("json_bare", Schemas(NoRegistry(), plain=bare.without_schema({})), tmp_path / f"{seed}{way}")
        cuts = sorted(rnd.sample(range(1, 40), way))
        for begin, end in zip([0, *cuts], [*cuts, 40], strict=True):
            lane.batch([(0, body) for body in order[begin:end]])
        assert not lane.aside()
        tables.append(sorted(json.dumps(row, sort_keys=True) for row in map(_without_nulls, lane.rows())))
    assert tables[0] == tables[1] == tables[2]
