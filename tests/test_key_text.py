"""The canonical spelling of keys: equal keys have one text whatever the type of their column, others never do."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.key_text import as_type, holding, holding_both, key_parts, key_texts, spelled

WIDE = pa.decimal128(38, 0)
NTZ, UTC_TIME = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def spelling(value: Any, kind: pa.DataType) -> str | None:
    (found,) = spelled(pa.array([value], kind)).to_pylist()
    assert found is None or isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1, pa.int32(), "1"),
        (-(2**63), pa.int64(), "-9223372036854775808"),
        (2**64 - 1, pa.uint64(), "18446744073709551615"),
        (True, pa.bool_(), "true"),
        (Decimal("1.50"), pa.decimal128(10, 2), "1.5"),
        (Decimal("100.00"), pa.decimal128(10, 2), "100"),
        (Decimal("-0.00"), pa.decimal128(10, 2), "0"),
        (Decimal("0.0000001"), pa.decimal128(20, 7), "0.0000001"),
        (Decimal(10**37), WIDE, f"1{'0' * 37}"),
        (Decimal("12345678901234567890123456789012345678"), WIDE, "12345678901234567890123456789012345678"),
        (Decimal("123456789012345678901234567.45670"), pa.decimal128(38, 5), "123456789012345678901234567.4567"),
        (1.0, pa.float64(), "1"),
        (-0.0, pa.float64(), "0"),
        (0.1, pa.float64(), "0.1"),
        (0.1, pa.float32(), "0.10000000149011612"),
        (1e22, pa.float64(), f"1{'0' * 22}"),
        (1e-7, pa.float64(), "0.0000001"),
        (float("nan"), pa.float64(), "NaN"),
        (float("-inf"), pa.float32(), "-Infinity"),
        ("", pa.string(), ""),
        (" a ", pa.large_string(), " a "),
        (b"\x00\xff", pa.binary(), "00ff"),
        (b"\x0a", pa.binary(1), "0a"),
        (date(2026, 1, 31), pa.date32(), "2026-01-31"),
        (date(1, 1, 1), pa.date64(), "0001-01-01"),
        (datetime(2026, 1, 31), NTZ, "2026-01-31"),
        (datetime(2026, 1, 31, 10), NTZ, "2026-01-31T10:00:00Z"),
        (datetime(2026, 1, 31, 10, 0, 10, 500_000, UTC), UTC_TIME, "2026-01-31T10:00:10.5Z"),
        (datetime(2026, 1, 31, 23, 30, tzinfo=UTC), pa.timestamp("ms", tz="Europe/Berlin"), "2026-01-31T23:30:00Z"),
        (time(10, 0, 0, 50), pa.time64("us"), "10:00:00.00005"),
        (time(0), pa.time64("us"), "00:00:00"),
        (["a", None], pa.list_(pa.string()), '["a",null]'),
        (None, pa.null(), None),
    ],
)  # fmt: skip
def test_a_value_is_spelled_by_the_published_rules(value: Any, kind: pa.DataType, text: str | None) -> None:
    assert spelling(value, kind) == text


LONGS = st.integers(-(2**63), 2**63 - 1)


@given(LONGS)
def test_an_integer_has_one_spelling_in_every_type_that_holds_it(value: int) -> None:
    kinds = [pa.int64(), WIDE, pa.decimal128(38, 4)]
    kinds += [pa.int32()] if abs(value) < 2**31 else []
    kinds += [pa.float64()] if abs(value) < 2**53 else []
    assert {spelling(value if kind != pa.float64() else float(value), kind) for kind in kinds} == {str(value)}


@given(st.lists(st.floats(width=32), max_size=5))
def test_a_float_keeps_its_spelling_as_a_double(values: list[float]) -> None:
    narrow = pa.array(values, pa.float32())
    assert spelled(narrow).equals(spelled(narrow.cast(pa.float64())))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**20), max_value=10**20))
def test_decimals_of_any_scale_are_spelled_alike(value: Decimal) -> None:
    assert spelling(value, pa.decimal128(30, 5)) == spelling(value, pa.decimal128(38, 9))


COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), LONGS),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (WIDE, st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (pa.decimal128(20, 6), st.decimals(-(10**13), 10**13, places=6)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (NTZ, st.datetimes()),
    (UTC_TIME, st.datetimes(timezones=st.just(UTC))),
]


def comparable(value: Any) -> Any:
    """One NaN, one zero, as every engine groups them."""
    return "NaN" if value != value else value


@given(st.data())
def test_two_values_of_a_column_share_a_spelling_only_if_they_are_equal(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(COLUMNS))
    one, other = data.draw(values), data.draw(values)
    assert (spelling(one, kind) == spelling(other, kind)) == (comparable(one) == comparable(other))


@given(st.data())
def test_a_column_comes_back_from_its_spelling(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(COLUMNS))
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=4)), kind)
    texts = spelled(column)
    back = as_type(texts, kind)
    assert back is not None and back.type == kind
    assert spelled(back).equals(texts)
    assert holding(kind, texts) == kind


@given(st.data())
def test_whatever_is_spelled_is_held_by_the_type_that_is_said_to_hold_it(data: st.DataObject) -> None:
    (kind, _), (other, values) = data.draw(st.sampled_from(COLUMNS)), data.draw(st.sampled_from(COLUMNS))
    texts = spelled(pa.array(data.draw(st.lists(values, max_size=4)), other))
    wider = holding(kind, texts)
    back = as_type(texts, wider)
    assert back is not None and spelled(back).equals(texts)
    assert as_type(texts, holding_both(other, kind)) is not None


@pytest.mark.parametrize(
    ("kind", "text", "wider"),
    [
        (pa.int32(), "7", pa.int32()),
        (pa.int32(), "1099511627776", pa.int64()),
        (pa.int64(), "9223372036854775811", WIDE),
        (pa.int64(), "007", pa.string()),
        (pa.int64(), "1.5", pa.string()),
        (pa.int64(), "6b6f1c9e-0000-0000-0000-000000000000", pa.string()),
        (WIDE, "1e5", pa.string()),
        (pa.date32(), "2026-01-31T10:00:00Z", pa.string()),
        (pa.float64(), "0.1", pa.float64()),
        (pa.float64(), "9007199254740993", pa.string()),
    ],
)
def test_a_key_column_gets_no_wider_than_it_must(kind: pa.DataType, text: str, wider: pa.DataType) -> None:
    assert holding(kind, pa.array([text])) == wider


KEYS = st.lists(st.tuples(st.none() | st.text(), st.none() | LONGS), max_size=5)


@given(KEYS)
def test_a_whole_key_is_the_json_array_of_its_spellings(rows: list[tuple[str | None, int | None]]) -> None:
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())]
    texts = key_texts(columns)
    said = [[text, None if number is None else str(number)] for text, number in rows]
    assert texts.to_pylist() == [json.dumps(key, ensure_ascii=False, separators=(",", ":")) for key in said]
    parts = key_parts(texts, 2)
    assert [list(key) for key in zip(*(part.to_pylist() for part in parts), strict=True)] == said
    assert key_parts(texts, 3)[0].null_count == len(rows)


def test_a_missing_key_has_no_parts() -> None:
    assert [part.to_pylist() for part in key_parts(pa.nulls(2, pa.string()), 1)] == [[None, None]]
