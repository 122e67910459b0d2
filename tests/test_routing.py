"""Where routes come from, in process: each router by itself, and the cut of records by what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config import DeltaSource, Envelope, Payload
from distributary.engine.messages.chunks import Cut
from distributary.engine.messages.demux import split_payloads
from distributary.engine.messages.envelopes import message_router, record_router
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.routing import (
    AnyType,
    Constant,
    FieldOf,
    Header,
    Key,
    MessageRouter,
    MessageType,
    OneofMember,
    RouteFilter,
    TopicName,
)
from distributary.errors import ConfigError
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.protobuf.parts import decoder_for, whole_of
from distributary.schemas.protobuf.protobuf import BadIndex
from distributary.schemas.registry.compile import compile_text
from distributary.shares import Share
from distributary.sources.delta import needed_columns
from distributary.tables.quarantine import ORIGIN_FIELDS
from distributary_simulate.games.events import message_class
from tests.test_config import DELTA, load_document
from tests.test_demux import READER, cut, envelope, records, rejected, tombstones

TEXT = """syntax = "proto3"; package acme;
import "google/protobuf/any.proto"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message Outer {
  message Meta { Kind kind = 1; string name = 2; google.protobuf.StringValue note = 3; bool is_new = 4; }
  enum Kind { NONE = 0; ORDER = 1; }
  string id = 1; Meta meta = 2; map<string, A> more = 5; repeated A many = 9; optional int64 number = 10;
  oneof event { A a = 3; B b = 4; string text = 6; google.protobuf.Timestamp at = 11; }
  google.protobuf.Any details = 7; Again again = 8; Outer self = 12;
}
message Again { Outer.Meta meta = 1; oneof event { A a = 2; B b = 3; } }
message A { string user = 1; google.protobuf.Timestamp at = 2; }
message B { int32 n = 1; repeated A all = 2; }
"""
SCHEMA = compile_text(TEXT, id=7)
OUTER, A, B = (message_class(TEXT, f"acme.{name}") for name in ("Outer", "A", "B"))


def routes(router: MessageRouter, *values: Any) -> list[str | None]:
    """Of each message its route; "!" where it cannot be read."""
    bodies = [value if isinstance(value, bytes) else value.SerializeToString() for value in values]
    found = router.of(SCHEMA, "0")(pa.array(bodies, pa.binary()))
    routes: list[str | None] = ["!"] * len(values)
    at = range(len(values)) if found.positions is None else found.positions.to_pylist()
    for position, route in zip(at, found.route.to_pylist(), strict=True):
        routes[position] = route
    assert sorted(row.position for row in found.rejected) == [n for n, route in enumerate(routes) if route == "!"]
    return routes


def test_a_route_is_a_field_at_a_path_an_enum_by_its_name() -> None:
    meta = {"kind": 1, "name": "n", "note": {"value": "w"}, "is_new": True}
    full = OUTER(id="x", meta=meta, number=5, a={"user": "u"})
    bare = OUTER()
    odd = OUTER(meta={"kind": 9})
    assert routes(FieldOf(("id",)), full, bare, b"\xff") == ["x", "", "!"]
    assert routes(FieldOf(("meta", "kind")), full, bare, odd) == ["ORDER", None, "9"]
    assert routes(FieldOf(("meta", "note")), full, bare, odd) == ["w", None, None]
    assert routes(FieldOf(("meta", "is_new")), full, odd) == ["true", "false"]
    assert routes(FieldOf(("number",)), full, bare) == ["5", None]
    assert routes(FieldOf(("again", "meta", "name")), OUTER(again={"meta": {"name": "deep"}}), bare) == ["deep", None]


@pytest.mark.parametrize(
    "router",
    [
        FieldOf(("nothing",)),
        FieldOf(("meta",)),
        FieldOf(("many", "user")),
        FieldOf(("id", "x")),
        FieldOf(("more",)),
        OneofMember(("nothing",)),
        OneofMember(("meta", "event")),
        OneofMember(("many", "event")),
        OneofMember(("self", "event")),
        FieldOf(("self", "id")),
        AnyType(("nothing",)),
        AnyType(("id",)),
    ],
)
def test_a_schema_without_what_says_the_route_is_told_before_any_record_is_read(router: MessageRouter) -> None:
    with pytest.raises(BadIndex):
        router.of(SCHEMA, "0")
    with pytest.raises(BadIndex):
        MessageType().of(SCHEMA, "9")


def test_a_route_is_the_member_of_a_oneof_that_is_set_and_the_row_is_what_it_holds() -> None:
    router = OneofMember(("event",))
    members: list[Any] = [{"a": {"user": "u"}}, {"b": {"n": 3}}, {"text": ""}, {"id": "x"}, {"a": {}}, {"at": {}}]
    given = [OUTER(**member) for member in members]
    given.insert(4, b"\xff")
    assert routes(router, *given) == ["a", "b", "text", None, "!", "a", "at"]
    assert routes(OneofMember(("again", "event")), OUTER(again={"b": {}}), OUTER()) == ["b", None]
    parts = OneofMember(("again", "event")).part(pa.array(["0", "1.0"]), pa.array(["a", "b"]))
    assert parts.to_pylist() == ["0/again.a", "1.0/again.b"]
    bodies = pa.array([OUTER(a={"user": "u"}, id="x").SerializeToString(), OUTER(a={}).SerializeToString()])
    assert decoder_for(SCHEMA, "0/a").decode(bodies).rows.to_pylist() == [
        {"user": "u", "at": None},
        {"user": "", "at": None},
    ]
    text = pa.array([OUTER(text="t").SerializeToString()])
    assert decoder_for(SCHEMA, "0/text").decode(text).rows.to_pylist() == [{"text": "t"}]
    with pytest.raises(BadIndex):
        decoder_for(SCHEMA, "0/nothing")


def test_a_route_is_the_type_of_an_any_and_the_row_is_its_value() -> None:
    router = AnyType(("details",))

    def inside(url: str, value: bytes = b"") -> Any:
        return OUTER(details={"type_url": url, "value": value})

    broken = b"\x3a\x02\xff\xff"
    given = [inside("x/y/acme.A"), inside("acme.B"), inside(""), OUTER(), b"\xff", broken, inside("x/\n")]
    assert routes(router, *given) == ["acme.A", "acme.B", "", "", "!", None, "\n"]
    message = router.part(pa.array(["0"]), pa.array(["acme.A"]))[0].as_py()
    assert (message, whole_of(message)) == ("0/details/acme.A", "0")
    values = [A(user="u").SerializeToString(), b"\xff\xff", b""]
    bodies = pa.array([inside("t/acme.A", value).SerializeToString() for value in values])
    split = decoder_for(SCHEMA, message).decode(bodies)
    assert [row["user"] for row in split.rows.to_pylist()] == ["u", ""]
    assert split.positions is not None
    assert (split.positions.to_pylist(), [row.position for row in split.rejected]) == ([0, 2], [1])
    with pytest.raises(BadIndex):
        decoder_for(SCHEMA, "0/details/acme.Nobody")


MEMBERS = st.one_of(
    st.tuples(st.just("a"), st.fixed_dictionaries({"user": st.text(max_size=9)})),
    st.tuples(
        st.just("b"),
        st.fixed_dictionaries(
            {"n": st.integers(0, 99), "all": st.lists(st.fixed_dictionaries({"user": st.text(max_size=9)}))}
        ),
    ),
)


def serialised(messages: Sequence[Any]) -> pa.BinaryArray:
    return pa.array([message.SerializeToString() for message in messages], pa.binary())


@given(st.lists(MEMBERS, min_size=1, max_size=20), st.text(max_size=3))
def test_a_part_is_decoded_as_if_it_had_come_alone(members: list[tuple[str, Any]], name: str) -> None:
    for member, index, kind in (("a", "2", A), ("b", "3", B)):
        mine = [values for one, values in members if one == member]
        around = [OUTER(id=name, meta={"name": name}, many=[{}], **{member: values}) for values in mine]
        found = decoder_for(SCHEMA, f"0/{member}").decode(serialised(around))
        alone = decoder_for(SCHEMA, index).decode(serialised([kind(**values) for values in mine]))
        assert found.rows.equals(alone.rows)
        assert (found.positions, found.rejected) == (None, [])


# -- the cut --------------------------------------------------------------------------------------------------


def reader(route: Any, **more: Any) -> EnvelopeReader:
    envelope = Envelope.model_validate({"format": "none", "route": route})
    return EnvelopeReader(
        format="none",
        framed=True,
        route="route",
        schema_id="schema_id",
        payload="payload",
        schemas={7: SCHEMA},
        by_record=record_router(envelope),
        by_message=message_router(envelope, Payload()),
        **more,
    )


def test_messages_without_an_envelope_are_cut_by_what_they_say_and_keep_all_their_bytes() -> None:
    one, two = (frame(7, OUTER(id=name, a={"user": "u"}).SerializeToString()) for name in ("one", "two"))
    bad = frame(7, b"\xff")
    values = [one, two, None, bad, b"x", frame(7, b""), frame(8, b""), one]
    found = cut(values, reader("id"))
    assert [(r[0], r[1], r[2]) for r in records(found)] == [("one", 7, "0"), ("two", 7, "0"), ("one", 7, "0")]
    assert rejected(found) == [
        (3, "CORRUPT_ENVELOPE", "envelope", None),
        (4, "TOO_SHORT", "envelope", None),
        (5, "NO_ROUTE", "payload", None),
    ]
    assert tombstones(found) == {None: 1}
    assert [c["groups"] for c in found if c["kind"] == "unknown"] == ["[8]"]
    members = cut([one, two, bad], reader({"oneof": "event"}))
    assert [(r[0], r[2], r[3]) for r in records(members)] == [("a", "0/a", value[6:]) for value in (one, two)]


def test_a_record_that_says_its_route_is_set_aside_with_it_whatever_is_in_it() -> None:
    values = [frame(7, b"\xff"), b"x", None, frame(8, b"")]
    found = cut(values, reader({"constant": "all"}))
    assert [(r[0], r[1]) for r in records(found)] == [("all", 7), ("all", 8)]
    assert rejected(found) == [(1, "TOO_SHORT", "payload", "all")]
    assert tombstones(found) == {None: 1}
    assert {r[0] for r in records(cut(values, reader({"from": "topic"})))} == {"events"}


def test_an_envelope_is_opened_for_its_payload_where_the_record_says_the_route() -> None:
    payload = frame(11, b"x")
    values = [envelope("chess", payload), envelope(None, payload), b"no header", None]
    found = cut(values, replace(READER, by_record=Constant("all")))
    assert [(r[0], r[1], r[3]) for r in records(found)] == [("all", 11, b"x"), ("all", 11, b"x")]
    assert rejected(found) == [(2, "BAD_MAGIC", "envelope", None)]
    assert {r[0] for r in records(cut(values, replace(READER, by_record=TopicName())))} == {"events"}
    assert [r[1] for r in rejected(cut(values[:1], replace(READER, by_record=Constant("a" * 5_000))))] == [
        "ROUTE_TOO_LONG"
    ]


def test_a_table_whose_rows_say_their_topic_must_have_that_column() -> None:
    source = DeltaSource(type="delta", path="/x", value="body")
    by_topic = Envelope.model_validate({"format": "none", "route": {"from": "topic"}})
    assert needed_columns(source, by_topic) == {"body": ("value", "binary"), "topic": ("topic", "string")}
    assert needed_columns(source, Envelope()) == {"body": ("value", "binary")}


@pytest.mark.parametrize("route", [{"constant": "a" * 30}, "id"])
def test_routes_are_bounded_wherever_they_come_from(route: Any) -> None:
    value = frame(7, OUTER(id="a" * 30).SerializeToString())
    assert [r[1] for r in rejected(cut([value], reader(route, max_route_length=29)))] == ["ROUTE_TOO_LONG"]
    assert not rejected(cut([value], reader(route, max_route_length=30)))


def test_records_of_routes_that_are_left_out_are_counted_and_nothing_else() -> None:
    names = ["chess", "go", "test_1", "test_2", "chess", "Test_3", "[x]"]
    values = [frame(7, OUTER(id=name).SerializeToString()) for name in [*names, ""]]

    def kept(include: Sequence[str] = (), exclude: Sequence[str] = ()) -> tuple[list[str], int, int]:
        given = reader("id", route_filter=RouteFilter(tuple(include), tuple(exclude)))
        found = cut([*values, frame(7, b"\xff")], given)
        left_out = [c for c in found if c["kind"] == "excluded"]
        assert all(c["route"] is None for c in left_out)
        assert [reason for _, reason, *_ in rejected(found)] == ["NO_ROUTE", "CORRUPT_ENVELOPE"]
        return [r[0] for r in records(found)], sum(c["rows"] for c in left_out), len(left_out)

    assert kept() == (names, 0, 0)
    assert kept(exclude=["test_*"]) == (["chess", "go", "chess", "Test_3", "[x]"], 2, 1)
    assert kept(include=["chess", "test_?"], exclude=["test_2"]) == (["chess", "test_1", "chess"], 4, 1)
    assert kept(include=["nothing"]) == ([], 7, 1)
    assert kept(include=["[[]x]"]) == (["[x]"], 6, 1)


def test_each_share_counts_the_left_out_records_of_its_own_routes() -> None:
    values = [frame(7, OUTER(id=f"r{n}").SerializeToString()) for n in range(50)]
    wanted = RouteFilter(exclude=("r*",))
    counted = []
    for index in (0, 1):
        found = cut(values, reader("id", route_filter=wanted, share=Share(index, 2, f"s{index}", open=(0, 1))))
        counted.append(sum(c["rows"] for c in found if c["kind"] == "excluded"))
    assert sum(counted) == 50 and min(counted) > 0


def test_what_is_set_aside_is_cut_again_from_its_bytes_and_its_route() -> None:
    """As a replay and the second hop do it."""
    value = frame(7, OUTER(a={"user": "u"}).SerializeToString())
    again = Cut(0, 0)
    origin = pa.table([pa.nulls(1, f.type) for f in ORIGIN_FIELDS], schema=pa.schema(ORIGIN_FIELDS))
    ids = pa.nulls(1, pa.int32())
    split_payloads(pa.array(["a"]), ids, pa.array([value]), origin, reader({"oneof": "event"}), again)
    assert [(route, groups) for route, groups, _ in again.routes()] == [("a", [[7, "0/a", 1]])]


def test_keys_and_headers_are_routes_where_they_are_text() -> None:
    keys = pa.array([b"ann", None, b"\xff", b""], pa.binary())
    assert Key().of(pa.table({"key": keys})).to_pylist() == ["ann", None, None, ""]
    kind = next(f.type for f in ORIGIN_FIELDS if f.name == "headers")
    first = [("t", b"1"), ("u", b"2"), ("t", b"3")]
    headers = pa.array([first, None, [], [("u", b"x")], [("t", b"\xff")], [("t", None)]], kind)
    assert Header("t").of(pa.table({"headers": headers})).to_pylist() == ["3", None, None, None, None, None]
    assert Header("u").of(pa.table({"headers": headers.slice(1, 3)})).to_pylist() == [None, None, "x"]
    assert Header("u").of(pa.table({"headers": pa.nulls(2, kind)})).to_pylist() == [None, None]


# -- the pipeline file ----------------------------------------------------------------------------------------


INFERRED = {"format": "json", "framing": "none", "types": "inferred"}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("envelope.route.from", {"envelope": {"route": {}}}),
        ("envelope.route.from", {"envelope": {"route": {"from": "topic", "header": "x"}}}),
        ("envelope.route.field", {"envelope": {"route": {"field": "meta."}}}),
        ("envelope.route", {"envelope": {"format": "protobuf", "route": {"oneof": "event"}}}),
        ("envelope.route", {"envelope": {"route": {"from": "key"}}}),
        ("envelope.subject", {"envelope": {"format": "none", "subject": "x"}}),
        ("envelope.payload", {"envelope": {"format": "none", "payload": "x"}}),
        ("envelope.subject", {"envelope": {"format": "json", "subject": "x"}}),
        ("envelope.payload", {"envelope": {"format": "json", "payload": "a..b"}}),
        ("payload", {"envelope": {"format": "json", "route": "a"}}),
        ("envelope.route", {"envelope": {"format": "json", "route": {"from": "key"}}}),
        ("envelope.framing", {"envelope": {"format": "avro", "framing": "none"}}),
        ("envelope.message", {"envelope": {"format": "avro", "message": "x"}}),
        ("envelope.route", {"envelope": {"format": "json", "route": {"oneof": "x"}}}),
        ("envelope", {"envelope": "any"}),
        ("payload.types", {"payload": {"format": "json", "types": "inferred"}}),
        ("tables.keys", {"payload": INFERRED, "tables": {"root": "/x", "keys": ["a"]}}),
        ("envelope.format", {"envelope": {"format": "columns"}}),
        ("source.headers", {"envelope": {"format": "none", "route": {"header": "x"}}}),
        ("payload.framing", {"envelope": "none", "payload": {"framing": "none"}}),
        ("envelope.route", {"envelope": "none", "layout": "declarative"}),
        ("declarative.silver", {"declarative": {"silver": "s_{route|lower}"}, "layout": "declarative"}),
        ("tables.include", {"tables": {"root": "/x", "include": ["a"]}, "layout": "declarative"}),
        ("envelope.route", {"envelope": {"route": {"constant": "a"}}, "layout": "declarative"}),
        ("envelope.route", {"source": DELTA, "envelope": {"format": "none", "route": {"from": "key"}}}),
        ("envelope.route", {"source": DELTA, "envelope": {"format": "columns", "route": {"from": "topic"}}}),
    ],
)
def test_what_does_not_go_together_is_refused_at_its_key(key: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as e:
        load_document(tmp_path, **changes)
    assert e.value.parameters["key"] == key


def test_the_short_forms_of_a_pipeline_file_mean_what_the_long_ones_say(tmp_path: Path) -> None:
    def read(given: Any) -> Envelope:
        return load_document(tmp_path, envelope=given).envelope

    assert read("none") == read({"format": "none", "route": {"from": "topic"}})
    assert read({"route": {"oneof": "event"}}).format == "none"
    assert read({"route": {"from": "message_type"}}).format == "none"
    assert read({"route": "meta.kind"}) == read({"route": {"field": "meta.kind"}})
    assert read({"route": "meta.kind"}).columns == ("kind", "schema_id", "payload")
    assert read("none").columns == ("route", "schema_id", "payload")
    masked = load_document(tmp_path, envelope="none").as_dict_masked()
    assert masked["envelope"]["route"]["from"] == "topic"
