"""Verdicts on records, and what silver makes of the good ones."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from distributary.declarative.judge import VERDICT_SCHEMA, decode_rows, judge_columns, judge_values
from distributary.declarative.known_routes import Route, discover
from distributary.engine.schemas import schemas_of
from distributary.errors import ExpectationBroken, Reason
from distributary.schemas import header
from distributary.schemas.protobuf.framing import frame
from distributary_simulate.games.records import REASONS
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.declarative_at_rest import Rest
from tests.exceptions import panic
from tests.scenarios import message


def decoded(verdicts: pa.StructArray, route: Route) -> pa.StructArray:
    """What silver makes of good records."""
    ids, messages, payloads = (pc.struct_field(verdicts, n) for n in ("schema_id", "message", "payload"))
    return decode_rows(ids, messages, payloads, route)


def test_each_record_gets_its_verdict_in_its_place(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1) + rest.send(2)
    verdicts = judge_values(pa.array([r.value for r in records], pa.binary()), rest.known()).to_pylist()
    for record, verdict in zip(records, verdicts, strict=True):
        expected = REASONS.get(record.fault) if record.fault is not None else None
        assert verdict["reason"] == expected, record
        if record.fault is None:
            assert (verdict["route"], verdict["schema_id"]) == (record.game, record.schema_id)
        assert (verdict["id"] is not None) == (expected is not None)
    ids = [v["id"] for v in verdicts if v["id"]]
    assert len(set(ids)) == len(ids)


def test_what_is_set_aside_keeps_its_bytes_as_they_came(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    verdicts = judge_values(pa.array([r.value for r in records], pa.binary()), rest.known()).to_pylist()
    for record, verdict in zip(records, verdicts, strict=True):
        if verdict["level"] == "payload":
            assert verdict["payload"] == record.envelope.payload
        elif verdict["level"] is not None:
            assert verdict["payload"] == record.value


def test_a_record_that_breaks_its_decoder_is_set_aside_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Rest(tmp_path)
    records = [r for r in rest.send(1) if r.fault is None]
    values, known = pa.array([r.value for r in records], pa.binary()), rest.known()
    bodies = [v["payload"] for v in judge_values(values, known).to_pylist()]
    whole = Route.decoder

    class Poisoned:
        def __init__(self, decoder: Any) -> None:
            self.decoder = decoder

        def decode(self, payloads: pa.Array) -> Any:
            if bodies[3] in payloads.to_pylist():
                raise panic()
            return self.decoder.decode(payloads)

    monkeypatch.setattr(Route, "decoder", lambda self, writer: Poisoned(whole(self, writer)))
    reasons = [v["reason"] for v in judge_values(values, known).to_pylist()]
    assert reasons == [Reason.DECODER_FAILED if body == bodies[3] else None for body in bodies]


@pytest.mark.parametrize("rows", [0, 3])
def test_no_records_and_tombstones_alone_are_no_trouble(tmp_path: Path, rows: int) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    verdicts = judge_values(pa.nulls(rows, pa.binary()), rest.known())
    assert verdicts.type == pa.struct(list(VERDICT_SCHEMA))
    assert [v["reason"] for v in verdicts.to_pylist()] == [None] * rows
    assert [v["payload"] for v in verdicts.to_pylist()] == [None] * rows


def test_columns_of_a_source_are_judged_as_envelopes_are(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = [r for r in rest.send(1) if r.fault in (None, "corrupt", "unknown_id")]
    known = rest.known()
    names = pa.array([r.envelope.game_name for r in records], pa.string())
    ids = pa.array([r.envelope.schema_id for r in records], pa.int32())
    payloads = pa.array([r.envelope.payload for r in records], pa.binary())
    by_columns = judge_columns(names, ids, payloads, replace(known, reader=replace(known.reader, format="columns")))
    by_values = judge_values(pa.array([r.value for r in records], pa.binary()), known)
    for name in ("route", "schema_id", "message", "reason", "payload"):
        assert pc.struct_field(by_columns, name).equals(pc.struct_field(by_values, name)), name


def test_an_unknown_schema_id_and_a_broken_schema_are_told_apart(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = [r for r in rest.send(1) if r.fault is None]
    known = rest.known()
    game = rest.games.names[0]
    none = replace(known.routes[game], slots={}, broken={})
    broken = replace(none, broken={records[0].schema_id: "does not compile"})
    values = pa.array([r.value for r in records if r.game == game], pa.binary())
    for route, reason in ((none, Reason.UNKNOWN_SCHEMA_ID), (broken, Reason.BROKEN_SCHEMA)):
        found = judge_values(values, replace(known, routes={**known.routes, game: route})).to_pylist()
        assert {v["reason"] for v in found} == {reason}
    assert {v["detail"] for v in found} == {"does not compile"}


def test_good_rows_come_out_of_silver_in_their_order_whatever_versions_are_mixed(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    good = [r for r in rest.send(1) + rest.send(2) if r.fault is None and r.game == rest.games.names[0]]
    mixed = [record for pair in zip(good, reversed(good), strict=True) for record in pair]
    known = rest.known()
    verdicts = judge_values(pa.array([r.value for r in mixed], pa.binary()), known)
    assert not pc.struct_field(verdicts, "reason").drop_null()
    rows = decoded(verdicts, known.routes[rest.games.names[0]])
    times = pc.struct_field(rows, "event_timestamp").to_pylist()
    assert times == [t for pair in zip(times[::2], reversed(times[::2]), strict=True) for t in pair]
    assert len(set(times)) == len(good)


def test_silver_stops_rather_than_lose_a_row_that_it_cannot_take(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    known = rest.known()
    game = rest.games.names[0]
    route = known.routes[game]
    writer = next(iter(route.slots))
    message, body = pa.array([writer[1]]), pa.array([b"\xff\xff"], pa.binary())
    with pytest.raises(ValueError, match="that bronze has called good does not fit"):
        decode_rows(pa.array([writer[0]], pa.int32()), message, body, route)
    with pytest.raises(ValueError, match="start the update again"):
        decode_rows(pa.array([999], pa.int32()), message, body, route)


def test_expectations_drop_in_bronze_warn_with_the_row_and_fail_in_silver(tmp_path: Path) -> None:
    rules = [
        {"name": "short", "that": "user_name < 'a'", "otherwise": "drop"},
        {"name": "early", "that": "user_name < 'b'"},
        {"name": "never", "that": "user_name IS NULL", "otherwise": "fail"},
    ]
    rest = Rest(tmp_path, tables={"expectations": rules[:1]})
    records = [r for r in rest.send(1) if r.fault is None]
    values = pa.array([r.value for r in records], pa.binary())
    dropped = judge_values(values, rest.known()).to_pylist()
    assert {(v["reason"], v["detail"]) for v in dropped} == {(Reason.EXPECTATION_FAILED, "short")}
    assert [v["payload"] for v in dropped] == [r.envelope.payload for r in records]

    warned = judge_values(values, Rest(tmp_path, tables={"expectations": rules[1:2]}).known()).to_pylist()
    assert Counter(tuple(v["warnings"] or ()) for v in warned) == {("early",): len(records)}

    known = Rest(tmp_path, tables={"expectations": rules[2:]}).known()
    game = rest.games.names[0]
    verdicts = judge_values(values, known).filter(pc.equal(pc.struct_field(judge_values(values, known), "route"), game))
    assert not pc.struct_field(verdicts, "reason").drop_null(), "`fail` takes no row out of bronze"
    with pytest.raises(ExpectationBroken) as caught:
        decoded(verdicts, known.routes[game])
    assert caught.value.parameters["name"] == "never"


_JSON = {"properties": {"user": {"type": "string"}}}


@pytest.mark.parametrize(
    ("keys", "text", "bodies", "more"),
    [
        (
            {"format": "avro"},
            '{"type": "record", "name": "event", "fields": [{"name": "user", "type": "string"}]}',
            (b"\x02x", b"\x02", b"\x04yz"),
            {},
        ),
        ({"format": "json"}, json.dumps(_JSON), (b'{"user":"x"}', b"{", b'{"user":"yz"}'), {"_undeclared": None}),
        (
            {"format": "json", "framing": "none", "columns": {"user": "string"}},
            "",
            (b'{"user":"x"}', b"{", b'{"user":"yz"}'),
            {"_undeclared": None},
        ),
    ],
)
def test_payloads_of_any_format_are_judged_and_decoded_as_protobuf_ones_are(
    tmp_path: Path, keys: dict[str, Any], text: str, bodies: tuple[bytes, ...], more: dict[str, Any]
) -> None:
    schema = tmp_path / {"avro": "event.avsc", "json": "event.json"}[keys["format"]]
    schema.write_text(text)
    registry = {"path": str(tmp_path / "registry"), "texts": {101: str(schema)} if text else {}}
    rest = Rest(tmp_path, registry=registry, payload=keys)
    wrapper = rest.registry.register("wrapper", WRAPPER_TEXT).schema.id
    payloads = [header.frame(101, body) if text else body for body in bodies]
    values = [frame(wrapper, message(WRAPPER_TEXT, "wrapper", game_name="a", payload=one)) for one in payloads]
    known = discover(rest.config, schemas_of(rest.config), {"a": {(101 if text else 0, "0")}})
    verdicts = judge_values(pa.array(values, pa.binary()), known).to_pylist()
    assert [v["reason"] for v in verdicts] == [None, Reason.CORRUPT_PAYLOAD, None]
    assert verdicts[1]["payload"] == payloads[1]
    good = [v for v in verdicts if v["reason"] is None]
    columns = (("schema_id", pa.int32()), ("message", pa.string()), ("payload", pa.binary()))
    ids, messages, payload = (pa.array([v[name] for v in good], kind) for name, kind in columns)
    decoded = decode_rows(ids, messages, payload, known.routes["a"]).to_pylist()
    assert decoded == [{"user": "x", **more}, {"user": "yz", **more}]
