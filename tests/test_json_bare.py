"""JSON without a schema: the columns are those of the pipeline file, and a record is one row whatever its company."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.audit.judge import json_bare as judge
from distributary.audit.judge.plain_values import plain, spelled
from distributary.engine.messages.routing import FieldOf
from distributary.engine.schemas import Schemas
from distributary.schemas.formats import decoder_for
from distributary.schemas.json.bare import BareSchema, without_schema
from distributary.schemas.registry.absent import NoRegistry
from tests.decoder_contract import Lane, Sample, binary, check_all, places

COLUMNS = {"player": "bigint", "meta.at": "timestamp", "meta.tags": "array<string>"}
SCHEMA = without_schema(COLUMNS)


def decode(columns: dict[str, str], *payloads: str) -> list[dict[str, Any] | str]:
    """The rows, and in the place of bad records what is said of them."""
    split = decoder_for(without_schema(columns), format="json_bare").decode(binary([one.encode() for one in payloads]))
    found: dict[int, Any] = dict(zip(places(split, len(payloads)), split.rows.to_pylist(), strict=True))
    found |= {one.position: one.detail for one in split.rejected}
    return [found[n] for n in range(len(payloads))]


def one_value(kind: str, token: str) -> Any:
    (row,) = decode({"x": kind}, f'{{"x": {token}}}')
    return row if isinstance(row, str) else row["x"]


def test_json_without_a_schema_keeps_the_contract() -> None:
    good = [
        b'{"player": 1, "meta": {"at": "2026-01-02T03:04:05.25+01:00", "tags": ["a", null], "by": {"x": 1}}}',
        b'{"game": "chess", "score": 1.50}',
        b"{}",
    ]
    at = datetime(2026, 1, 2, 2, 4, 5, 250_000, UTC)
    rows: list[dict[str, Any]] = [
        {"player": 1, "meta": {"at": at, "tags": ["a", None]}, "_undeclared": '{"meta/by":{"x": 1}}'},
        {"player": None, "meta": None, "_undeclared": '{"game":"chess","score":1.50}'},
        {"player": None, "meta": None, "_undeclared": None},
    ]
    meta = pa.struct([("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.field("element", pa.string())))])
    columns = pa.schema([("player", pa.int64()), ("meta", meta), ("_undeclared", pa.string())])
    bad = [
        b"",
        b"[]",
        b'"x"',
        b'{"player": "1"}',
        b'{"meta": []}',
        b'{"meta": {"at": "yesterday"}}',
        b'{"meta": {"tags": [1]}}',
    ]
    check_all(Sample("json_bare", SCHEMA, columns, good, rows, bad))


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (
            "date",
            {'"2026-02-28"': date(2026, 2, 28)},
            ['"2026-02-30"', '"2026-02-28T00:00"', "5", '""', '"20260228"', '"2026-W05-6"'],
        ),
        (
            "timestamp",
            {
                '"2026-01-02T03:04:05Z"': datetime(2026, 1, 2, 3, 4, 5, 0, UTC),
                '"2026-01-02 03:04:05.123456000-02:30"': datetime(2026, 1, 2, 5, 34, 5, 123456, UTC),
                '"2026-01-02T03:04:05.5Z"': datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC),
            },
            ['"2026-01-02T03:04:05"', '"2026-01-02T03:04:05.1234567Z"', '"2026-01-02"', "1700000000", '"24:00"',
             '"2026-01-02T25:00:00Z"', '"0000-01-01T00:00:00Z"', '"2026-01-02T03:04:05.Z"',
             '"9999-12-31T23:59:59-01:00"', '"2026-01-02T03:04:05,1234567Z"', '"2026-W05-6T03:04:05Z"'],
        ),
        (
            "timestamp_ntz",
            {'"2026-01-02T03:04:05.25"': datetime(2026, 1, 2, 3, 4, 5, 250_000)},
            ['"2026-01-02T03:04:05Z"', '"x"'],
        ),
        (
            "decimal(5,2)",
            {"1.50": Decimal("1.50"), "999.99": Decimal("999.99"), "1e2": Decimal("100.00"), "-0": Decimal("0.00")},
            ["1.005", "1000", '"1.5"', "1e99", "1e-99", f"1e{'9' * 25}"],
        ),
        ("decimal(38,0)", {"9" * 38: Decimal("9" * 38)}, ["9" * 39, "0.5"]),
        ("binary", {'"AAE="': b"\0\1", '""': b""}, ['"?"', "5", '"AAE"']),
        ("json", {"1.50": "1.50", '"a"': '"a"', '{"b": [1]}': '{"b": [1]}'}, []),
        ("map<string,bigint>", {'{"a": 1, "b/c": null}': [("a", 1), ("b/c", None)], "{}": []}, ['{"a": "x"}', "[]"]),
        ("array<array<boolean>>", {"[[true], null, []]": [[True], None, []]}, ["[true]", "[[1]]", "{}"]),
    ],
)  # fmt: skip
def test_a_type_takes_what_it_holds_and_nothing_else(kind: str, right: dict[str, Any], wrong: list[str]) -> None:
    assert {token: one_value(kind, token) for token in right} == right
    assert one_value(kind, "null") is None
    for token in wrong:
        assert str(one_value(kind, token)).startswith("/x"), token


@pytest.mark.parametrize("seed", range(25))
def test_any_split_and_order_of_records_gives_the_same_columns_and_values(seed: int) -> None:
    rnd = random.Random(seed)
    payloads = [_random(rnd) for _ in range(60)]
    decoder = decoder_for(SCHEMA, format="json_bare")

    def decoded(order: Sequence[int], sizes: Sequence[int]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        begin = 0
        for size in sizes:
            part = order[begin : begin + size]
            begin += size
            split = decoder.decode(binary([payloads[n] for n in part]))
            assert split.rows.schema.equals(decoder.columns)
            found |= {part[at]: row for at, row in zip(places(split, size), split.rows.to_pylist(), strict=True)}
            found |= {part[one.position]: one.detail for one in split.rejected}
        return found

    alone = decoded(range(60), [1] * 60)
    assert len(alone) == 60 and any(isinstance(one, str) for one in alone.values())
    for _ in range(4):
        order = rnd.sample(range(60), 60)
        cuts = sorted(rnd.sample(range(61), rnd.randrange(5)))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, 60], strict=True)]
        assert decoded(order, sizes) == alone


@pytest.mark.parametrize("seed", range(3))
def test_batches_in_any_order_make_the_same_table(tmp_path: Path, seed: int) -> None:
    payloads = [_random(random.Random(n)) for n in range(40)]
    tables = []
    for way in range(2):
        rnd = random.Random(f"{seed} {way}")
        order = rnd.sample(payloads, 40)
        lane = Lane("json_bare", Schemas(NoRegistry(), plain=SCHEMA), tmp_path / str(way), framed=True)
        cut = rnd.randrange(1, 39)
        for part in (order[:cut], order[cut:]):
            lane.batch([(0, body) for body in part])
        rows = lane.rows()
        tables.append((list(rows[0]), sorted(map(repr, rows)), sorted(lane.aside())))
    assert tables[0] == tables[1]


def _random(rnd: random.Random) -> bytes:
    """A record of which any field may be of any type."""

    def value(depth: int = 0) -> Any:
        found: list[Any] = [None, True, 0, 7, 2**63, 1.5, "", "x", "2026-01-02T03:04:05Z", "5"]
        if depth < 2:
            found += [[value(depth + 1)], {"at": value(depth + 1), "tags": [value(2)]}]
        return rnd.choice(found)

    names = rnd.sample(["player", "meta", "game", "meta.at", "score", ""], rnd.randrange(5))
    record = {name: value() for name in names}
    if rnd.random() < 0.6:
        record |= {"player": rnd.randrange(99), "meta": {"at": "2026-01-02T03:04:05Z", "more": value()}}
    body = json.dumps(record).encode()
    return body[: rnd.randrange(len(body))] if rnd.random() < 0.1 else body


@pytest.mark.parametrize("seed", range(10))
def test_the_judge_reads_what_the_decoder_does(seed: int) -> None:
    rnd = random.Random(seed)
    payloads = [_random(rnd) for _ in range(60)]
    split = decoder_for(SCHEMA, format="json_bare").decode(binary(payloads))
    read = judge.reader(SCHEMA, (0,))
    names = split.rows.schema.names
    columns = [plain(column) for column in split.rows.columns]
    for at, values in zip(places(split, 60), zip(*columns, strict=True), strict=True):
        assert read(payloads[at]).differs(dict(zip(names, values, strict=True))) is None, payloads[at]


HUGE = f"1.{'0' * 20}e{'9' * 25}"
"""An exponent that Python's own numbers do not take."""


def test_a_number_of_any_size_is_kept_where_nothing_declares_it_and_harms_no_other() -> None:
    rows = decode({"x": "double", "s": "string"}, f'{{"x": {HUGE}}}', '{"x": 1}', f'{{"s": "a {HUGE}", "y": {HUGE}}}')
    assert str(rows[0]).endswith("is no number that a double holds")
    assert rows[1:] == [
        {"x": 1.0, "s": None, "_undeclared": None},
        {"x": None, "s": f"a {HUGE}", "_undeclared": f'{{"y":{HUGE}}}'},
    ]


@pytest.mark.parametrize("number", [HUGE, f"1e-{'9' * 25}", "7" * 5_000], ids=["large", "small", "long"])
def test_the_judge_reads_a_number_of_any_size(number: str) -> None:
    payload = f'{{"y": {number}}}'
    (row,) = decode({}, payload)
    assert isinstance(row, dict) and row == {"_undeclared": f'{{"y":{number}}}'}
    said = judge.reader(without_schema({}), (0,))(payload.encode())
    assert said.differs(row) is None
    assert said.differs({"_undeclared": f'{{"y":{number}1}}'}) is not None


@pytest.mark.parametrize("text", ["2026-01-02t03:04:05.5z", "2026-01-02 03:04+0100", "2026-01-02T03:04:05-02"])
def test_the_judge_reads_a_time_however_it_may_be_spelled(text: str) -> None:
    schema, payload = without_schema({"x": "timestamp"}), f'{{"x": "{text}"}}'.encode()
    split = decoder_for(schema, format="json_bare").decode(binary([payload]))
    assert not split.rejected
    row = {name: plain(split.rows.column(name))[0] for name in split.rows.schema.names}
    assert judge.reader(schema, (0,))(payload).differs(row) is None


def test_the_judge_tells_keys_and_order_by_the_time_and_not_by_its_text() -> None:
    schema = without_schema({"at": "timestamp"})
    read = judge.reader(schema, (0,))
    texts = ["2026-01-31T07:00:00+01:00", "2026-01-31T06:30:00Z", "2026-01-31T06:30:00.25Z"]
    payloads = [f'{{"at": "{text}"}}'.encode() for text in texts]
    rows = plain(decoder_for(schema, format="json_bare").decode(binary(payloads)).rows.column("at"))
    said = [read(payload).value_of("at") for payload in payloads]
    assert list(map(spelled, said)) == list(map(spelled, rows))
    assert sorted(said) == said


@pytest.mark.parametrize("columns", [{}, {"_undeclared": "string"}])
@pytest.mark.parametrize("payload", ['{"_undeclared": "{}"}', '{"_undeclared": "{x", "b": 2}'])
def test_the_judge_knows_a_field_that_is_called_as_the_column_of_the_rest(
    columns: dict[str, str], payload: str
) -> None:
    (row,) = decode(columns, payload)
    assert isinstance(row, dict)
    assert judge.reader(without_schema(columns), (0,))(payload.encode()).differs(row) is None


def test_a_route_is_any_field_of_text_a_whole_number_or_a_truth_value() -> None:
    read = FieldOf(("meta", "kind")).of(BareSchema(0, ()), "0")
    tokens = ['"sale"', "5", "true", "1.5", "null", "[]", '"a\\"b"']
    found = read(
        binary([*(f'{{"meta": {{"kind": {token}}}}}'.encode() for token in tokens), b"{}", b"{", b'{"meta": 5}'])
    )
    assert found.route.to_pylist() == ["sale", "5", "true", None, None, None, 'a"b', None]
    assert [one.position for one in found.rejected] == [8, 9]
    said = judge.reader(BareSchema(0, ()), (0,))(b'{"meta": {"kind": true}}')
    assert said.text_at("meta.kind") == "true"
