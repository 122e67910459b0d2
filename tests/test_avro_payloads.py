"""Avro payloads: random schemas and records, damaged and hostile ones, and how they come into a table."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distributary.audit.judge import avro as judge
from distributary.audit.judge.plain_values import plain
from distributary.engine.messages.demux import demux
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.routing import AnyType, FieldOf, MessageRouter, MessageType, OneofMember
from distributary.engine.schemas import Schemas
from distributary.errors import Reason, SchemaBroken
from distributary.schemas.avro.decoder import NULLED
from distributary.schemas.avro.payload import AvroSchema, compile_payload
from distributary.schemas.avro.tree import tree_of
from distributary.schemas.avro.walk import PayloadWalker, Unfit
from distributary.schemas.decoding import BadIndex, Decoder, Split
from distributary.schemas.formats import decoder_for
from distributary.schemas.header import frame
from distributary.schemas.registry import Reference, Schema
from distributary.schemas.registry.compiler import Compiler, Limits
from tests.avro_records import Records, long, text
from tests.decoder_contract import Given, Lane, Sample, binary, check_all, places
from tests.test_demux import as_chunks, records, rejected, source

EVENT = '{"type": "record", "name": "event", "fields": [{"name": "user", "type": "string"}%s]}'
V1 = EVENT % ""
V2 = EVENT % ', {"name": "score", "type": "int"}'


def schema_of(text: Any, *before: str, schema_id: int = 7) -> AvroSchema:
    return AvroSchema(schema_id, (*before, text if isinstance(text, str) else json.dumps(text)))


def of_field(kind: Any) -> AvroSchema:
    """A record with one field `x`."""
    return schema_of({"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]})


def decoder(schema: AvroSchema, **options: Any) -> Decoder:
    return decoder_for(schema, format="avro", **options)


def decode(schema: AvroSchema, *payloads: bytes, **options: Any) -> Split:
    return decoder(schema, **options).decode(binary(payloads))


def values(split: Split) -> list[Any]:
    found: list[Any] = split.rows.column("x").to_pylist()
    return found


def test_avro_keeps_the_contract() -> None:
    good = [text(b"x") + long(1), text(b"") + long(-5), text(b"y" * 300) + long(2**31 - 1)]
    rows = [{"user": "x", "score": 1}, {"user": "", "score": -5}, {"user": "y" * 300, "score": 2**31 - 1}]
    columns = pa.schema([("user", pa.string()), ("score", pa.int32())])
    bad = [b"", b"\x02", text(b"x"), text(b"\xff") + long(1), text(b"x") + long(2**31), good[0] + b"\0", b"\xff" * 40]
    check_all(Sample("avro", schema_of(V2), columns, good, rows, bad))


@pytest.mark.parametrize("seed", range(60))
def test_random_records_of_random_schemas_are_what_was_written(seed: int) -> None:
    """By the walk, by fastavro alone, and by the judge, which reads them with fastavro and maps them itself."""
    records = Records(seed)
    schema = schema_of(records.schema)
    made = [records.one() for _ in range(40)]
    payloads = binary([body for body, _ in made])
    found = decoder(schema).decode(payloads)
    assert found.rejected == []
    found.rows.validate(full=True)
    assert found.rows.to_pylist() == [row for _, row in made]
    slow = type(decoder(schema))(decoder(schema)._tree)  # type: ignore[attr-defined, call-arg]
    slow._has_walk = False  # type: ignore[attr-defined]
    assert slow.decode(payloads).rows.equals(found.rows)
    read = judge.reader(schema, (0,))
    kept = [
        dict(zip(found.rows.schema.names, row, strict=True))
        for row in zip(*map(plain, found.rows.columns), strict=True)
    ]
    assert [read(body).differs(row) for (body, _), row in zip(made, kept, strict=True)] == [None] * len(made)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_records_never_raise_and_never_harm_others(seed: int) -> None:
    """Whatever is done to a record: it is rejected, or it is a row that fastavro reads too."""
    records, rnd = Records(seed), random.Random(seed)
    schema = schema_of(records.schema)
    made = [records.one() for _ in range(20)]
    payloads = []
    for n, (body, _) in enumerate(made):
        if n % 2 and body:
            damaged = bytearray(body)
            damaged[rnd.randrange(len(body))] ^= 1 << rnd.randrange(8)
            body = bytes(damaged[: rnd.randint(0, len(body))]) if rnd.random() < 0.3 else bytes(damaged)
        payloads.append(body)
    split = decode(schema, *payloads)
    found = places(split, len(payloads))
    assert sorted([*found, *(one.position for one in split.rejected)]) == list(range(len(payloads)))
    rows = dict(zip(found, split.rows.to_pylist(), strict=True))
    assert [rows[n] for n in range(0, len(made), 2)] == [row for _, row in made[::2]]
    slow = type(decoder(schema))(decoder(schema)._tree)  # type: ignore[attr-defined, call-arg]
    slow._has_walk = False  # type: ignore[attr-defined]
    again = slow.decode(binary(payloads))
    assert (again.positions, again.rows) == (split.positions, split.rows)


def test_a_judge_finds_a_value_that_is_not_its_records() -> None:
    said = judge.reader(schema_of(V2), (0,))(text(b"x") + long(1))
    assert said.differs({"user": "x", "score": 1}) is None
    assert said.differs({"user": "x", "score": 2}) == "score"
    assert said.differs({"user": "x"}) == "score"
    assert said.differs({"user": "x", "score": 1, "more": 5}) == "more"
    assert (said.text_at("user"), said.type_name) == ("x", "event")


def test_what_is_no_record_is_one_column() -> None:
    split = decode(schema_of('"string"'), text(b"x"))
    assert split.rows.to_pylist() == [{"value": "x"}]
    assert decode(schema_of('{"type": "array", "items": "int"}'), long(1) + long(5) + b"\0").rows.to_pylist() == [
        {"value": [5]}
    ]


def test_a_record_without_fields_is_a_row_that_is_there() -> None:
    empty = '{"type": "record", "name": "e", "fields": []}'
    assert decode(schema_of(empty), b"", b"", b"x").rows.to_pylist() == [{"_empty": True}] * 2
    assert values(decode(of_field(["null", json.loads(empty)]), long(1), long(0))) == [{"_empty": True}, None]


def test_a_union_of_several_types_says_which_it_was() -> None:
    split = decode(of_field(["null", "int", "long", "string"]), long(0), long(1) + long(5), long(2) + long(5))
    assert values(split) == [None, {"int": 5, "long": None, "string": None}, {"int": None, "long": 5, "string": None}]


def test_of_a_key_that_is_written_twice_the_last_value_counts() -> None:
    entry = text(b"k") + long(1), text(b"k") + long(2), text(b"m") + long(3)
    split = decode(of_field({"type": "map", "values": "int"}), long(3) + b"".join(entry) + b"\0", b"\0")
    assert [dict(value) for value in values(split)] == [{"k": 2, "m": 3}, {}]


def test_a_type_inside_itself_is_json_text() -> None:
    node = {"type": "record", "name": "node", "fields": [
        {"name": "n", "type": "int"}, {"name": "next", "type": ["null", "node"]}, {"name": "b", "type": "bytes"},
    ]}  # fmt: skip
    inner = long(2) + long(0) + text(b"\x01")
    schema = schema_of(node)
    split = decode(schema, long(1) + long(1) + inner + text(b""))
    assert split.rows.to_pylist() == [{"n": 1, "next": '{"n": 2, "next": null, "b": "01"}', "b": b""}]
    assert decoder(schema).engine == "fastavro"
    assert judge.reader(schema, (0,))(long(1) + long(1) + inner + text(b"")).differs(split.rows.to_pylist()[0]) is None


def test_a_record_that_nests_without_end_is_rejected() -> None:
    node = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}
    split = decode(schema_of(node), long(1) * 100_000 + long(0), long(0))
    assert [one.position for one in split.rejected] == [0]
    assert split.rows.to_pylist() == [{"next": None}]


@pytest.mark.parametrize("kind", ["long", "double", "string", "boolean", {"type": "fixed", "name": "f", "size": 4}])
def test_records_that_end_too_early_say_the_same_in_words(kind: Any) -> None:
    cut = long(9) + b"a" if kind == "string" else b""
    split = decode(of_field(kind), cut, cut)
    assert [one.detail for one in split.rejected] == ["ValueError: it ends in the middle of a value"] * 2


def test_a_record_with_bytes_behind_its_end_says_how_many() -> None:
    split = decode(of_field("long"), long(9) + b"x", long(9) + b"xy")
    assert [one.detail for one in split.rejected] == [f"ValueError: bytes behind its end: {n}" for n in (1, 2)]


def test_a_list_of_items_that_take_no_bytes_is_bounded() -> None:
    split = decode(of_field({"type": "array", "items": "null"}), long(2**40) + b"\0", long(3) + b"\0")
    assert ([one.position for one in split.rejected], values(split)) == ([0], [[None, None, None]])


def test_times_and_decimals_that_no_column_holds_are_rejected_or_null() -> None:
    moment = of_field(["null", {"type": "long", "logicalType": "timestamp-millis"}])
    there, beyond = long(1) + long(0), long(1) + long(2**60)
    split = decode(moment, there, beyond, there)
    assert ([one.position for one in split.rejected], split.rows.num_rows) == ([1], 2)
    split = decode(moment, there, beyond, null_out_of_range=True)
    assert (values(split)[1], split.warnings, split.rejected) == (None, {NULLED: 1}, [])
    money = of_field({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    split = decode(money, text(b"\x04\xd2"), text(b"\x7f\xff"), text((-1).to_bytes(30, "big", signed=True)))
    assert values(split) == [Decimal("12.34"), Decimal("-0.01")]
    assert [one.position for one in split.rejected] == [1]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -2},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        {"type": "bytes", "logicalType": "decimal", "precision": "4", "scale": "2"},
        {"type": "bytes", "logicalType": "decimal", "scale": 2},
        {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 5},
        {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 10**9},
    ],
)
def test_a_decimal_that_cannot_be_one_is_its_bytes(kind: dict[str, Any]) -> None:
    """By the specification, and by Java's library, an invalid logical type is ignored; registries take such schemas."""
    schema = of_field(kind)
    body = b"\x04\xd2" if kind["type"] == "fixed" else text(b"\x04\xd2")
    assert values(decode(schema, body)) == [b"\x04\xd2"]
    said = judge.reader(schema, (0,))(body)
    (name,) = decode(schema, body).rows.schema.names
    assert said.differs({name: b"\x04\xd2"}) is None and said.differs({name: b"\x04\xd3"}) == name


def test_a_bad_item_of_a_list_rejects_its_own_record_only() -> None:
    days = of_field({"type": "array", "items": {"type": "int", "logicalType": "date"}})
    good, bad = long(1) + long(1) + b"\0", long(2) + long(1) + long(2**31 - 1) + b"\0"
    split = decode(days, b"\0", good, bad, b"\0", good)
    assert ([one.position for one in split.rejected], split.rows.num_rows) == ([2], 4)


def test_a_text_that_is_not_utf8_costs_no_other_record() -> None:
    good = [text(b"u%d" % n) for n in range(500)]
    split = decode(schema_of(V1), *good[:250], text(b"\xc3\x28"), *good[250:])
    assert [one.position for one in split.rejected] == [250]
    assert split.rows.column("user").to_pylist() == [f"u{n}" for n in range(500)]


def test_most_records_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one is left to fastavro alone, not its neighbours."""
    found = decoder(schema_of(V2))
    asked: list[bytes] = []
    one = type(found)._one  # type: ignore[attr-defined]
    monkeypatch.setattr(type(found), "_one", lambda self, body: asked.append(body) or one(self, body))  # type: ignore[func-returns-value]
    found.decode(binary([text(b"x") + long(n) for n in range(1_000)] + [b"\x02"]))
    assert asked == [b"\x02"]


def test_a_walk_over_very_many_items_is_given_up() -> None:
    one = long(200) + (long(200) + long(1) * 200 + b"\0") * 200 + b"\0"
    schema = of_field({"type": "array", "items": {"type": "array", "items": "int"}})
    walker = PayloadWalker(pa.py_buffer(one + bytes(16)))
    with pytest.raises(Unfit):
        walker.records(tree_of(schema.texts, "it").record, np.array([0]), np.array([len(one)]))
    assert values(decode(schema, one)) == [[[1] * 200] * 200]


# -- schemas -----------------------------------------------------------------------------------------------------


def test_references_are_types_of_other_subjects() -> None:
    money = Schema(1, "AVRO", '{"type": "record", "name": "a.money", "fields": [{"name": "cents", "type": "long"}]}')
    fields = '[{"name": "net", "type": "money"}, {"name": "tax", "type": "a.money"}]'
    price = f'{{"type": "record", "name": "a.price", "fields": {fields}}}'
    registry = Given(money=money)
    schema = compile_payload(Schema(2, "AVRO", price, (Reference("a.money", "money", 1),)), registry, Compiler())
    split = decode(schema, long(5) + long(1))
    assert split.rows.to_pylist() == [{"net": {"cents": 5}, "tax": {"cents": 1}}]
    with pytest.raises(SchemaBroken):
        compile_payload(Schema(3, "AVRO", price, (Reference("a.money", "gone", 1),)), registry, Compiler())


DOUBLING = {"type": "record", "name": "r0", "fields": [{"name": "a", "type": "int"}]}
for _n in range(1, 17):
    DOUBLING = {"type": "record", "name": f"r{_n}", "fields": [
        {"name": "a", "type": DOUBLING}, {"name": "b", "type": f"r{_n - 1}"},
    ]}  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        '{"type": "record"}',
        '"gone"',
        '{"type": "enum", "name": "e"}',
        "[" * 50_000,
        '{"type": "array", "items": ' * 5_000 + '"int"' + "}" * 5_000,
        json.dumps(DOUBLING),
        json.dumps([{"type": "fixed", "name": f"f{n}", "size": 1} for n in range(70)]),
    ],
)
def test_a_text_that_is_no_schema_of_a_table_is_broken(broken: str) -> None:
    with pytest.raises(SchemaBroken):
        compile_payload(Schema(1, "AVRO", broken), Given(), Compiler())


def test_a_schema_is_bounded_in_size() -> None:
    with pytest.raises(SchemaBroken):
        compile_payload(Schema(1, "AVRO", V1), Given(), Compiler(Limits(size=10)))


# -- into a table ------------------------------------------------------------------------------------------------


def test_records_of_several_schemas_come_into_one_table_and_bad_ones_are_set_aside(lake: Path) -> None:
    wide = EVENT % ', {"name": "score", "type": "long"}, {"name": "boss", "type": ["null", "string"]}'
    schemas = Schemas(
        Given(Schema(1, "AVRO", V1), Schema(2, "AVRO", V2), Schema(3, "AVRO", wide), Schema(4, "AVRO", "{"))
    )
    lane = Lane("avro", schemas, lake)
    lane.batch([(2, text(b"y") + long(1)), (1, text(b"x")), (1, b"\x7f"), (4, b""), (9, b"")])
    lane.batch([(3, text(b"z") + long(2) + long(1) + text(b"b"))])
    assert lane.rows() == [
        {"user": "y", "score": 1, "boss": None},
        {"user": "x", "score": None, "boss": None},
        {"user": "z", "score": 2, "boss": "b"},
    ]
    assert lane.aside() == [Reason.CORRUPT_PAYLOAD, Reason.BROKEN_SCHEMA, Reason.UNKNOWN_SCHEMA_ID]


# -- where the route is ------------------------------------------------------------------------------------------

ROUTED = schema_of(
    {"type": "record", "name": "event", "namespace": "acme", "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["ORDER", "PAYMENT"]}},
        {"name": "meta", "type": ["null", {
            "type": "record", "name": "meta", "fields": [{"name": "shop", "type": "long"}],
        }]},
        {"name": "raw", "type": "bytes"},
    ]}
)  # fmt: skip
ORDER, PAYMENT = long(0) + long(1) + long(7) + text(b"x"), long(1) + long(0) + text(b"")


@pytest.mark.parametrize(
    ("path", "routes"), [("kind", ["ORDER", "PAYMENT"]), ("meta.shop", ["7", None])], ids=["an enum", "at a path"]
)
def test_a_field_of_a_record_is_its_route(path: str, routes: list[str | None]) -> None:
    found = FieldOf(tuple(path.split("."))).of(ROUTED, "0")(binary([ORDER, b"\x7f", PAYMENT]))
    assert found.positions is not None
    assert (found.route.to_pylist(), found.positions.to_pylist()) == (routes, [0, 2])
    assert [one.position for one in found.rejected] == [1]
    read = judge.reader(ROUTED, (0,))
    assert [read(body).text_at(path) for body in (ORDER, PAYMENT)] == routes


def test_the_name_of_a_record_is_its_route() -> None:
    found = MessageType().of(ROUTED, "0")(binary([ORDER, PAYMENT]))
    assert found.route.to_pylist() == ["acme.event"] * 2
    assert judge.reader(ROUTED, (0,))(ORDER).type_name == "acme.event"


@pytest.mark.parametrize("router", [FieldOf(("raw",)), FieldOf(("gone",)), OneofMember(("kind",)), AnyType(("raw",))])
def test_what_a_record_does_not_have_is_no_route(router: MessageRouter) -> None:
    with pytest.raises(BadIndex):
        router.of(ROUTED, "0")


def test_a_record_of_many_routes_is_cut_by_them() -> None:
    reader = EnvelopeReader(
        format="none", framed=True, route="kind", schema_id="", payload="", payload_format="avro",
        by_message=FieldOf(("kind",)), schemas={7: ROUTED},
    )  # fmt: skip
    found = as_chunks(list(demux([source([frame(7, ORDER), frame(7, PAYMENT), frame(7, b"\x7f")])], reader, 0)))
    assert [(route, schema_id, body) for route, schema_id, _, body, _, _ in records(found)] == [
        ("ORDER", 7, ORDER), ("PAYMENT", 7, PAYMENT),
    ]  # fmt: skip
    assert [reason for _, reason, _, _ in rejected(found)] == [Reason.CORRUPT_ENVELOPE]
