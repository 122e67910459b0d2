"""JSON payloads: random schemas and records, damaged and hostile ones, and how they come into a table."""

from __future__ import annotations

import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.audit.judge import json as judge
from distributary.audit.judge.by_value import missing
from distributary.audit.judge.opened_records import Writer
from distributary.audit.judge.plain_values import plain
from distributary.engine.schemas import Schemas
from distributary.errors import Reason, SchemaBroken
from distributary.schemas.decoding import Split
from distributary.schemas.formats import decoder_for
from distributary.schemas.json.alone import depth_of
from distributary.schemas.json.decoder import JsonDecoder
from distributary.schemas.json.fast import FastReader, plain_fields
from distributary.schemas.json.numbers import as_double, as_integer
from distributary.schemas.json.payload import JsonSchema, compile_payload
from distributary.schemas.json.tree import tree_of
from distributary.schemas.registry import Reference, Schema
from distributary.schemas.registry.compiler import Compiler, Limits
from tests.decoder_contract import Given, Lane, Sample, binary, check_all, places
from tests.json_records import Records

V1 = '{"title": "event", "type": "object", "properties": {"user": {"type": "string"}}}'
V2 = (
    '{"title": "event", "type": "object", "properties": {"user": {"type": "string"}, '
    '"score": {"type": "integer"}}, "required": ["user"]}'
)


def schema_of(schema: Any, **before: Any) -> JsonSchema:
    texts = {name.replace("__", "."): json.dumps(one) for name, one in before.items()}
    return JsonSchema(7, (*texts.items(), ("", schema if isinstance(schema, str) else json.dumps(schema))))


def of_field(kind: Any, **more: Any) -> JsonSchema:
    """An object with one field `x`."""
    return schema_of({"type": "object", "properties": {"x": kind}, **more})


def decode(schema: JsonSchema, *payloads: bytes | str) -> Split:
    bodies = [body.encode() if isinstance(body, str) else body for body in payloads]
    return decoder_for(schema, format="json").decode(binary(bodies))


def values(kind: Any, *tokens: str) -> list[Any]:
    """What a field of this type is, by its tokens; the words of its fault for a misfit."""
    split = decode(of_field(kind), *(f'{{"x": {token}}}' for token in tokens))
    found = dict(zip(places(split, len(tokens)), split.rows.column("x").to_pylist(), strict=True))
    found |= {one.position: one.detail for one in split.rejected}
    return [found[n] for n in range(len(tokens))]


def column(kind: Any, **more: Any) -> str:
    return str(decoder_for(of_field(kind, **more), format="json").columns.field("x").type)


def test_json_keeps_the_contract() -> None:
    good = [b'{"user": "x", "score": 1}', b'{"score":-5,"user":""}', b'{"user": "y\\n", "score": 2.0, "more": [1]}']
    rows = [
        {"user": "x", "score": 1, "_undeclared": None},
        {"user": "", "score": -5, "_undeclared": None},
        {"user": "y\n", "score": 2, "_undeclared": '{"more":[1]}'},
    ]
    columns = pa.schema([("user", pa.string()), ("score", pa.int64()), ("_undeclared", pa.string())])
    bad = [
        b"", b" ", b"null", b"[]", b"5", b"{", b'{"user": "x"} x', good[0] * 2, good[0] + b"\n" + good[1],
        b'{"user": 5}',
        b'{"score": "5"}', b'{"score": 1.5}', b'{"score": 9223372036854775808}', b'{"score": NaN}', b'{"user": "\xff"}',
        b'{"user": "\\ud800"}', b'{"user": "\xed\xa0\x80"}', b'{"user": "a\nb"}', b"{'user': 1}", b'{"score": 01}',
        b'{"user": "x",}', b'{"more": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", b'{"more": NaN}', b'{"more": "\xff"}',
        b'{"score": [1]}', b'{"user": {"x": 1}}', b'{"score": true}',
    ]  # fmt: skip
    check_all(Sample("json", schema_of(V2), columns, good, rows, bad))


@pytest.mark.parametrize("seed", range(40))
def test_random_records_of_random_schemas_are_what_was_written(seed: int) -> None:
    """By the decoder, and by the judge, which reads them with Python's parser."""
    records = Records(seed)
    schema = schema_of(records.schema)
    made = [records.one() for _ in range(40)]
    found = decode(schema, *(body for body, _ in made))
    assert found.rejected == []
    found.rows.validate(full=True)
    got = found.rows.to_pylist()
    for row in got:
        row["_undeclared"] = row["_undeclared"] and json.loads(row["_undeclared"])
    assert got == [row for _, row in made]
    read = judge.reader(schema, (0,))
    names = found.rows.schema.names
    kept = [dict(zip(names, row, strict=True)) for row in zip(*map(plain, found.rows.columns), strict=True)]
    assert [read(body).differs(row) for (body, _), row in zip(made, kept, strict=True)] == [None] * len(made)


@pytest.mark.parametrize("seed", range(20))
def test_a_fast_reader_and_the_tokens_give_the_same(seed: int) -> None:
    """Of records that the fast one can read, some of which are damaged, or have numbers that no double holds."""
    rnd = random.Random(seed)
    kinds: dict[str, Any] = {name: {"type": name} for name in ("integer", "number", "string", "boolean")}
    parts = {**kinds, "list": {"items": {"items": kinds["number"]}}, "object": {"properties": kinds}}
    schema = schema_of({"properties": parts})
    payloads = [_plain(rnd) for _ in range(300)]
    decoder = decoder_for(schema, format="json")
    slow = JsonDecoder(tree_of(dict(schema.texts), "it"))
    slow._whole = slow._part = None
    found, told = decoder.decode(binary(payloads)), slow.decode(binary(payloads))
    assert found.rejected == told.rejected
    assert found.positions == told.positions
    assert found.rows.equals(told.rows)
    again = JsonDecoder(tree_of(dict(schema.texts), "it"))
    again._whole = None
    assert again.decode(binary(payloads)).rows.equals(told.rows), "with fields that are read by their tokens"
    reader = FastReader(plain_fields(tree_of(dict(schema.texts), "it")), is_strict=True)
    vouched = sum(len(at) for _, at in reader.read(payloads, np.zeros(300, bool)))
    assert vouched > 0


def _plain(rnd: random.Random) -> bytes:
    """A record that the fast reader may take, or one that it must not."""
    numbers = ["1", "1.5", "0.1", "1700000000000000", "9007199254740993", "0.30000000000000004", "1e400", "1e-400"]
    numbers += ["2.0", "0.1000000000000000055", "4e-324", "5e-324", "1E-105", "123456789012345678", "-0", "0e-999"]
    texts = ['"x"', '"1e-400"', '"9007199254740993"', '"a\\nb"', '"id 123456789012345678"', '"\\u00e9"', '"\\ud800"']
    usual = {"string": texts[:6], "boolean": ["true", "false"], "integer": ["1", "-5", "123456789012345678"]}

    def scalar(name: str) -> str:
        if rnd.random() < 0.002:
            return rnd.choice(["null", "[]", "{}", '"y"', "NaN", "true", texts[6]])
        return rnd.choice(usual.get(name, numbers if rnd.random() < 0.01 else numbers[:4]))

    def members() -> str:
        names = [name for name in ("integer", "number", "string", "boolean") if rnd.random() < 0.8]
        names += ["more"] if rnd.random() < 0.003 else []
        names += names[:1] if rnd.random() < 0.003 else []
        return rnd.choice([",", " , "]).join(f'"{name}":{scalar(name)}' for name in names)

    inner = rnd.choice(["null", "[]", f"[[{scalar('number')}], [null, {scalar('number')}], null, []]"])
    parts = ['"object": {' + members() + "}", f'"list": {inner}', members()]
    gap = rnd.choice([" ", " ", " ", "\n", "\r\n"])
    body = "{" + f",{gap}".join(part for part in parts if part) + "}"
    return (body + rnd.choice([*[""] * 300, " ", "\n", body, "null", ",", "\n{}"])).encode()


@pytest.mark.parametrize("seed", range(15))
def test_damaged_records_never_raise_and_never_harm_others(seed: int) -> None:
    records, rnd = Records(seed), random.Random(seed)
    schema = schema_of(records.schema)
    made = [records.one()[0] for _ in range(20)]
    payloads = []
    for n, body in enumerate(made):
        if n % 2:
            damaged = bytearray(body)
            damaged[rnd.randrange(len(body))] ^= 1 << rnd.randrange(8)
            body = bytes(damaged[: rnd.randint(0, len(body))]) if rnd.random() < 0.3 else bytes(damaged)
        payloads.append(body)
    split = decode(schema, *payloads)
    found = places(split, len(payloads))
    assert sorted([*found, *(one.position for one in split.rejected)]) == list(range(len(payloads)))
    assert all(one.reason is Reason.CORRUPT_PAYLOAD and one.detail for one in split.rejected)
    rows = dict(zip(found, split.rows.to_pylist(), strict=True))
    for n, payload in enumerate(payloads):
        alone = decode(schema, payload)
        assert alone.rows.to_pylist() == ([rows[n]] if n in rows else []), payload
        assert [one.detail for one in alone.rejected] == [one.detail for one in split.rejected if one.position == n]


def test_a_value_that_does_not_fit_is_named_by_pointer_and_value() -> None:
    schema = schema_of(
        {"properties": {"a/b": {"properties": {"list": {"items": {"properties": {"n": {"type": "integer"}}}}}}}}
    )
    split = decode(schema, '{"a/b": {"list": [{"n": 1}, {"n": "two"}]}}', '{"a/b": [1]}', '{"a/b": {"list": 5}}')
    assert [one.detail for one in split.rejected] == [
        '/a~1b/list/1/n: "two" is no bigint',
        "/a~1b: [1] is no object",
        "/a~1b/list: 5 is no list",
    ]


def test_numbers_are_never_changed() -> None:
    tokens = ["5", "5.0", "5e0", "-0", "9223372036854775807", "9223372036854775808", "1e999999999", "5.5", "1e-5"]
    assert values({"type": "integer"}, *tokens)[:5] == [5, 5, 5, 0, 2**63 - 1]
    assert values({"type": "integer"}, *tokens)[5:] == [f"/x: {token} is no bigint" for token in tokens[5:]]
    right = ["0.1", "0.10000000000000001", "1", "1e3", "-0.0", "100", "5e-324", "9007199254740992", "2.50", "0e9"]
    assert values({"type": "number"}, *right) == [float(token) for token in right]
    wrong = ["9007199254740993", "3.14159265358979323846", "1e400", "1e-400", "0.1000000000000000001"]
    assert all(str(one).endswith("is no number that a double holds") for one in values({"type": "number"}, *wrong))


@pytest.mark.parametrize("seed", range(5))
def test_a_double_is_any_number_that_it_prints_as(seed: int) -> None:
    rnd = random.Random(seed)
    tokens = []
    for _ in range(100):
        value = rnd.choice([rnd.random(), rnd.uniform(-1e9, 1e9), 10.0 ** rnd.randint(-300, 300) * rnd.random()])
        for digits in (1, 5, 14, 15, 16, 17, 20):
            tokens.append(token := f"{value:.{digits}e}")
            told = as_double(token)
            if digits < 15 or digits == 16 or Decimal(token) == Decimal(value):
                assert told == float(token), token
            if told is not None:
                assert Decimal(f"{told:.{digits}e}") == Decimal(token)
        whole = rnd.choice([rnd.randrange(-(2**64), 2**64), rnd.randrange(100)])
        assert as_integer(str(whole)) == (whole if -(2**63) <= whole < 2**63 else None)
    misfit = "/x: {} is no number that a double holds"
    expected = [as_double(token) if as_double(token) is not None else misfit.format(token) for token in tokens]
    assert values({"type": "number"}, *tokens) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({"type": "integer"}, "int64"),
        ({"type": ["null", "integer"]}, "int64"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["string", "integer"]}, "string"),
        ({"type": "string", "format": "date-time"}, "string"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2.5]}, "double"),
        ({"const": True}, "bool"),
        ({"enum": [1, "a"]}, "string"),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, "double"),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "string"),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "int64"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}, "string"),
        ({"type": "integer", "oneOf": [{"minimum": 5}, {"maximum": 1}]}, "int64"),
        ({"properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {}]}, "struct<a: string>"),
        (
            {"oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "number"}}}]},
            "struct<a: string, b: double>",
        ),
        (
            {"oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "number"}}}]},
            "struct<a: string>",
        ),
        ({"type": "array", "items": {"type": "integer"}}, "list<element: int64>"),
        ({"type": "array"}, "list<element: string>"),
        ({"type": "array", "items": [{"type": "integer"}, {"type": "number"}]}, "list<element: string>"),
        (
            {"type": "array", "items": [{"type": "integer"}, {"type": "number"}], "additionalItems": False},
            "list<element: double>",
        ),
        ({"prefixItems": [{"type": "integer"}], "items": False}, "list<element: int64>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string, int64>"),
        ({"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False}, "map<string, int64>"),
        ({"patternProperties": {"^a": {"type": "integer"}}}, "map<string, string>"),
        ({"type": "object"}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"$ref": "#"}, "string"),
        ({"$ref": "#/definitions/n"}, "int64"),
        ({"$ref": "#/$defs/n~1m"}, "double"),
        ({"$ref": "#named"}, "bool"),
    ],
)  # fmt: skip
def test_a_column_has_the_one_type_that_all_values_have(kind: Any, expected: str) -> None:
    more = {
        "definitions": {"n": {"type": "integer"}, "b": {"$id": "#named", "type": "boolean"}},
        "$defs": {"n/m": {"type": "number"}},
    }
    assert column(kind, **more) == expected


def test_what_has_no_one_type_is_the_text_of_its_json() -> None:
    tokens = ['"a"', "5", "1.50", '{"k": [1, {}]}', "true", "null"]
    assert values({}, *tokens) == [*tokens[:-1], None]


def test_beside_a_reference_counts_what_the_draft_says() -> None:
    kind = {"$ref": "#/definitions/o", "properties": {"b": {"type": "integer"}}}
    more: dict[str, Any] = {"definitions": {"o": {"properties": {"a": {"type": "string"}}}}}
    assert column(kind, **more) == "struct<a: string>"
    new = "https://json-schema.org/draft/2020-12/schema"
    assert column(kind, **more, **{"$schema": new}) == "struct<a: string, b: int64>"


def test_an_object_inside_itself_is_text_from_there_on() -> None:
    schema = schema_of({"title": "t", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}})
    split = decode(schema, '{"n": 1, "next": {"n": 2, "next": null}}')
    assert split.rows.to_pylist() == [{"n": 1, "next": '{"n": 2, "next": null}', "_undeclared": None}]


def test_references_lead_to_other_subjects() -> None:
    money = (
        '{"$id": "http://shop/money.json", "$defs": {"c": {"type": "string"}}, '
        '"properties": {"amount": {"type": "number"}, "in": {"$ref": "#/$defs/c"}}}'
    )
    order = '{"properties": {"price": {"$ref": "money.json"}, "fee": {"$ref": "money.json#/properties/amount"}}}'
    schema = Schema(1, "JSON", order, (Reference("money.json", "money", 1),))
    compiled = compile_payload(schema, Given(schema, money=Schema(2, "JSON", money)), Compiler())
    split = decode(compiled, '{"price": {"amount": 2, "in": "EUR"}, "fee": 1}')
    assert split.rows.to_pylist() == [{"price": {"amount": 2.0, "in": "EUR"}, "fee": 1.0, "_undeclared": None}]
    with pytest.raises(SchemaBroken, match=r"money\.json"):
        compile_payload(schema, Given(schema), Compiler())


@pytest.mark.parametrize(
    "text",
    ["", "5", "{", '{"type": "text"}', '{"properties": 5}', '{"properties": {"x": {"$ref": "#/nowhere"}}}',
     '{"properties": {"x": {"$ref": "http://other/y.json"}}}', '{"a":' * 300 + "1" + "}" * 300],
)  # fmt: skip
def test_what_is_no_schema_is_broken(text: str) -> None:
    with pytest.raises(SchemaBroken):
        compile_payload(Schema(1, "JSON", text), Given(), Compiler())


def test_a_schema_that_multiplies_itself_is_broken_and_ends() -> None:
    parts = {
        f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(30)
    }
    with pytest.raises(SchemaBroken, match="more than"):
        tree_of({"": json.dumps({"$ref": "#/$defs/d0", "$defs": {**parts, "d30": {}}})}, "it")


def test_too_long_a_schema_is_broken() -> None:
    limits = Limits(size=100)
    with pytest.raises(SchemaBroken, match="max_schema_size"):
        compile_payload(Schema(1, "JSON", json.dumps({"title": "x" * 200})), Given(), Compiler(limits))


def test_the_last_of_a_field_that_is_written_twice_counts() -> None:
    split = decode(schema_of(V2), '{"score": 1, "score": 2, "m": 1, "m": 2}')
    assert split.rows.to_pylist() == [{"user": None, "score": 2, "_undeclared": '{"m":2}'}]


def test_a_byte_order_mark_is_no_fault() -> None:
    split = decode(schema_of(V2), b'\xef\xbb\xbf{"user": "x"}', b'\xef\xbb\xbf{"user": 5}', b"\xef\xbb\xbf")
    assert split.rows.column("user").to_pylist() == ["x"]
    assert split.rejected[0].detail == "/user: 5 is no string"


@pytest.mark.parametrize("seed", range(5))
def test_depth_is_that_of_the_value_whatever_its_texts_hold(seed: int) -> None:
    rnd = random.Random(seed)

    def text() -> str:
        return "".join(rnd.choices('a{}[]"\\\n', k=rnd.randrange(6)))

    def nested(most: int) -> tuple[Any, int]:
        if most == 0 or rnd.random() < 0.2:
            return text(), 0
        inside = [nested(most - 1) for _ in range(rnd.randrange(4))]
        values = [value for value, _ in inside]
        depth = 1 + max((found for _, found in inside), default=0)
        return (values if rnd.random() < 0.5 else {f"{n}{text()}": v for n, v in enumerate(values)}), depth

    for _ in range(200):
        value, depth = nested(6)
        assert depth_of(json.dumps(value).encode()) == depth


def test_depth_counts_brackets_outside_of_texts() -> None:
    deep = '{"more": ' + "[" * 63 + "]" * 63 + "}"
    deeper = '{"more": ' + "[" * 64 + "]" * 64 + "}"
    quoted = json.dumps({"more": '[{"\\' * 100})
    split = decode(schema_of(V2), deep, deeper, quoted)
    assert places(split, 3) == [0, 2]
    assert split.rejected[0].detail == "it is nested more than 64 levels deep"


def test_fields_that_differ_in_case_only_have_columns_of_their_own() -> None:
    schema = schema_of({"properties": {"a": {"type": "integer"}, "A": {"type": "integer"}}})
    assert decode(schema, '{"a": 1, "A": 2}').rows.to_pylist() == [{"a": 1, "A__2": 2, "_undeclared": None}]


def test_what_is_no_object_is_one_column() -> None:
    assert decode(schema_of({"type": "string"}), '"x"', "null", "5").rows.to_pylist() == [
        {"value": "x"},
        {"value": None},
    ]
    listed = schema_of({"items": {"properties": {"a": {"type": "integer"}}}})
    assert decode(listed, '[{"a": 1, "b": 2}]').rows.to_pylist() == [
        {"value": [{"a": 1}], "_undeclared": '{"value/0/b":2}'}
    ]


def test_a_schema_of_no_fields_keeps_all_as_it_is() -> None:
    assert decode(schema_of({"type": "object"}), '{"a": {"b": 1.50}}').rows.to_pylist() == [
        {"_undeclared": '{"a":{"b": 1.50}}'}
    ]


@pytest.mark.parametrize("wrong", [{"user": "y"}, {"score": 2}, {"score": None}, {"_undeclared": None}, {"more": 5},
                                   {"_undeclared": '{"m":[2]}'}, {"_undeclared": '{"m":[1],"n":1}'}])  # fmt: skip
def test_a_judge_finds_a_value_that_is_not_its_records(wrong: dict[str, Any]) -> None:
    said = judge.reader(schema_of(V2), (0,))(b'{"user": "x", "score": 1, "m": [1]}')
    row = {"user": "x", "score": 1, "_undeclared": '{"m":[1]}'}
    assert said.differs(row) is None
    assert said.differs({**row, **wrong}) is not None
    assert (said.text_at("user"), said.text_at("score"), said.type_name) == ("x", "1", "event")


def test_versions_and_bad_records_of_one_route_come_into_one_table(tmp_path: Path) -> None:
    texts = {1: V1, 2: V2, 3: V2.replace("integer", "string")}
    schemas = [Schema(i, "JSON", text) for i, text in texts.items()]
    lane = Lane("json", Schemas(Given(*schemas, Schema(4, "JSON", "{"), Schema(5, "AVRO", '"int"'))), tmp_path)
    lane.batch(
        [(2, b'{"user": "b", "score": 7}'), (1, b'{"user": "a", "score": 6}'), (2, b"{"), (4, b"{}"), (9, b"{}")]
    )
    assert lane.rows() == [
        {"user": "b", "score": 7, "_undeclared": None},
        {"user": "a", "score": None, "_undeclared": '{"score":6}'},
    ]
    assert lane.aside() == ["CORRUPT_PAYLOAD", "BROKEN_SCHEMA", "UNKNOWN_SCHEMA_ID"]
    lane.batch([(3, b'{"user": "c", "score": "8"}'), (5, b"\0")])
    assert lane.rows()[-1] == {"user": "c", "score": None, "_undeclared": None, "score__string": "8"}
    assert sorted(lane.aside()) == ["BROKEN_SCHEMA", "BROKEN_SCHEMA", "CORRUPT_PAYLOAD", "UNKNOWN_SCHEMA_ID"]


def test_rows_that_name_no_record_are_found_by_their_values(tmp_path: Path) -> None:
    bodies = [b'{"user": "a", "score": 5.0, "m": [1]}', b'{"user": "b", "score": 6}', b'{"score": null, "user": "c"}']
    lane = Lane("json", Schemas(Given(Schema(7, "JSON", V2))), tmp_path)
    lane.batch([(7, body) for body in bodies])
    table = DeltaTable(str(tmp_path / "a")).to_pyarrow_table()
    read = judge.reader(schema_of(V2), (0,))
    opener: Any = SimpleNamespace(read=lambda writer, body: read(body))
    payloads = Counter({(Writer(7, (0,)), body): 1 for body in bodies})
    assert missing(opener, payloads, [table]) == (3, 0)
    payloads[Writer(7, (0,)), b'{"user": "b", "score": "6"}'] = 1
    payloads[Writer(7, (0,)), b'{"user": ["b"], "score": true}'] = 1
    assert missing(opener, payloads, [table]) == (3, 2)
    assert missing(opener, payloads, [table.slice(1)])[1] == 3
