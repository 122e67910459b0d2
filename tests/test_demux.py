"""Envelopes to chunks, in process: which row goes where, and that none is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.judge.opened_records import Record, RecordOpener
from distributary.config import Pipeline, RegistryConfig
from distributary.engine.messages import chunks, demux, opening
from distributary.engine.messages.chunks import CHUNK_SCHEMA, read_records, read_rejected
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.task_spec import fingerprint
from distributary.engine.schemas import schemas_of
from distributary.errors import Reason
from distributary.schemas import header
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry import open_registry
from distributary.schemas.registry.compile import compile_text
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.exceptions import all_types, instance
from tests.scenarios import SOURCE_SCHEMA, TOPIC, message

WRAPPER_ID = 1
READER = EnvelopeReader(
    format="protobuf",
    framed=True,
    route="game_name",
    schema_id="schema_id",
    payload="payload",
    schemas={WRAPPER_ID: compile_text(WRAPPER_TEXT, id=WRAPPER_ID)},
)


def body(route: str | None, payload: bytes | None, schema_id: int | None = None) -> bytes:
    return message(WRAPPER_TEXT, "wrapper", game_name=route, payload=payload, schema_id=schema_id)


def envelope(route: str | None, payload: bytes | None, schema_id: int | None = None) -> bytes:
    return frame(WRAPPER_ID, body(route, payload, schema_id))


def source(values: Sequence[bytes | None]) -> pa.RecordBatch:
    rows = len(values)
    columns = [
        pa.array(values, pa.binary()),
        pa.repeat(TOPIC, rows),
        pa.repeat(pa.scalar(0, pa.int32()), rows),
        pa.array(range(rows), pa.int64()),
        pa.array(range(rows), pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


def cut(
    values: Sequence[bytes | None], reader: EnvelopeReader = READER, batch_rows: int = 1_000_000
) -> list[dict[str, Any]]:
    whole = source(values)
    batches = [whole.slice(i, batch_rows) for i in range(0, len(values), batch_rows)]
    return as_chunks(list(demux.demux(batches, reader, task=3)))


def as_chunks(found: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    for batch in found:
        assert batch.schema == CHUNK_SCHEMA
    return [chunk for batch in found for chunk in batch.to_pylist()]


def records(found: Sequence[dict[str, Any]]) -> list[tuple[str, int, str, bytes, int, int | None]]:
    """(route, schema id, message, payload, offset, envelope's schema id) of each record."""
    flat = []
    for chunk in found:
        if chunk["kind"] != "rows":
            continue
        writers = [(g[0], g[1]) for g in json.loads(chunk["groups"]) for _ in range(g[2])]
        rows = read_records(chunk["blob"]).to_pylist()
        assert len(rows) == len(writers) == chunk["rows"]
        for (schema_id, index), row in zip(writers, rows, strict=True):
            wrapped = row["envelope_schema_id"]
            flat.append((chunk["route"], schema_id, index, row["payload"], row["offset"], wrapped))
    return sorted(flat, key=lambda r: r[4])


def rejected(found: Sequence[dict[str, Any]]) -> list[tuple[int, str, str, str | None]]:
    """(offset, reason, level, route) of each row set aside."""
    rows = [row for c in found if c["kind"] == "bad" for row in read_rejected(c["blob"]).to_pylist()]
    return sorted((r["offset"], r["reason"], r["level"], r["route"]) for r in rows)


def tombstones(found: Sequence[dict[str, Any]]) -> dict[str | None, int]:
    return {c["route"]: c["rows"] for c in found if c["kind"] == "tombstones"}


def test_rows_of_one_route_are_one_chunk_sorted_by_writer() -> None:
    """Case E1: ids v1, v3, v2 interleaved."""
    found = cut([envelope("a", frame(i, b"x%d" % n)) for n, i in enumerate([11, 13, 12, 11, 13])])
    assert [(c["task"], c["seq"], c["route"], c["rows"]) for c in found] == [(3, 0, "a", 5)]
    assert json.loads(found[0]["groups"]) == [[11, "0", 2], [12, "0", 1], [13, "0", 2]]
    assert [r[3] for r in records(found)] == [b"x0", b"x1", b"x2", b"x3", b"x4"]


def test_an_envelope_that_breaks_its_decoder_is_set_aside_alone_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = decoder_for(READER.schemas[WRAPPER_ID], "0")
    raised: list[BaseException] = [instance(kind) or OSError() for kind in all_types()]

    class Breaking:
        columns, full_name = whole.columns, whole.full_name

        def decode(self, bodies: pa.Array) -> Any:
            if any(b"break" in one for one in bodies.to_pylist()):
                raise raised[-1]
            return whole.decode(bodies)

    monkeypatch.setattr(opening, "decoder_for", lambda *_, **__: Breaking())
    values = [envelope("a", frame(11, b"x%d" % n)) for n in range(5)]
    values[3] = envelope("a", frame(11, b"break"))
    while raised:
        found = cut([*values, b"no envelope", None])
        assert [r[4] for r in records(found)] == [0, 1, 2, 4]
        assert rejected(found) == [(3, "CORRUPT_ENVELOPE", "envelope", None), (5, "BAD_MAGIC", "envelope", None)]
        assert tombstones(found) == {None: 1}
        raised.pop()


def test_an_envelope_that_is_known_to_end_its_reader_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decoder_for(READER.schemas[WRAPPER_ID], "0")
    values = [envelope("a", frame(11, b"x%d" % n)) for n in range(4)]

    class Deadly:
        columns, full_name = whole.columns, whole.full_name

        def decode(self, bodies: pa.Array) -> Any:
            assert not any(b"x2" in one for one in bodies.to_pylist())
            return whole.decode(bodies)

    monkeypatch.setattr(opening, "decoder_for", lambda *_, **__: Deadly())
    found = cut([*values, None, values[2]], replace(READER, killed={fingerprint(values[2]): "SIGSEGV"}))
    assert [r[4] for r in records(found)] == [0, 1, 3]
    assert rejected(found) == [(n, "KILLED_READER", "envelope", None) for n in (2, 5)]
    assert tombstones(found) == {None: 1}


def test_a_schema_that_no_decoder_can_be_made_of_sets_its_envelopes_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(opening, "decoder_for", broken)
    found = cut([envelope("a", frame(11, b"x")), envelope("b", frame(11, b"y"))])
    assert records(found) == []
    assert [r[:2] for r in rejected(found)] == [(0, "CORRUPT_ENVELOPE"), (1, "CORRUPT_ENVELOPE")]


def test_a_null_value_is_a_tombstone_and_never_a_row() -> None:
    """Case W6."""
    found = cut([None, envelope("a", frame(11, b"x")), None])
    assert tombstones(found) == {None: 2}
    assert [r[4] for r in records(found)] == [1]
    assert not rejected(found)


def test_an_envelope_without_a_payload_is_a_tombstone_of_its_route() -> None:
    """Case W6: only an absent payload is one; an empty one is a frame that is too short."""
    found = cut([envelope("a", None), envelope("a", None), envelope("b", None), envelope("a", b"")])
    assert tombstones(found) == {"a": 2, "b": 1}
    assert rejected(found) == [(3, "TOO_SHORT", "payload", "a")]


def test_empty_bytes_are_a_malformed_envelope() -> None:
    """Case W6."""
    assert rejected(cut([b""])) == [(0, "TOO_SHORT", "envelope", None)]


def test_a_header_without_a_body_is_an_envelope_without_a_route() -> None:
    """Case W6: a valid message of defaults; but no route is no table (W13)."""
    assert rejected(cut([frame(WRAPPER_ID, b"")])) == [(0, "NO_ROUTE", "payload", None)]


def test_a_payload_header_without_a_body_is_a_record() -> None:
    """Case W6: a valid message with all defaults."""
    assert records(cut([envelope("a", frame(5, b""))])) == [("a", 5, "0", b"", 0, None)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x0a\x01a\x1a\x02hi", Reason.BAD_MAGIC),
        (b"\x00\x00\x00", Reason.TOO_SHORT),
        (b"\x01" + bytes(16) + b"\x00", Reason.BAD_MAGIC),
        (b"\x00\x00\x00\x00\x05\x01", Reason.BAD_INDEX),
    ],
    ids=["no header", "three bytes", "a GUID header", "a negative index"],
)
def test_values_without_a_good_header_are_set_aside_by_name(value: bytes, reason: Reason) -> None:
    """Case W7, in the envelope's header and in the payload's."""
    good = envelope("a", frame(5, b"x"))
    found = cut([value, envelope("a", value), good])
    assert rejected(found) == [(0, reason, "envelope", None), (1, reason, "payload", "a")]
    assert [r[4] for r in records(found)] == [2]


def test_a_row_set_aside_keeps_its_bytes_and_its_origin() -> None:
    found = cut([b"\x07junk", envelope("a", b"\x07junk", schema_id=9)])
    rows = [row for c in found for row in read_rejected(c["blob"]).to_pylist()]
    rows.sort(key=lambda r: r["offset"])
    assert [r["value"] for r in rows] == [b"\x07junk", b"\x07junk"]
    assert [(r["topic"], r["partition"], r["offset"], r["envelope_schema_id"]) for r in rows] == [
        (TOPIC, 0, 0, None),
        (TOPIC, 0, 1, 9),
    ]


def test_routing_follows_the_envelope_and_the_payload_header_decides_the_writer() -> None:
    """Case W13: the envelope's schema id is kept beside it."""
    assert records(cut([envelope("ann_game", frame(7, b"x"), schema_id=5)])) == [("ann_game", 7, "0", b"x", 0, 5)]


@pytest.mark.parametrize("route", [None, ""])
def test_an_envelope_that_names_no_route_is_set_aside(route: str | None) -> None:
    """Cases W13, D3."""
    assert rejected(cut([envelope(route, frame(7, b"x"))])) == [(0, "NO_ROUTE", "payload", None)]


def test_routes_are_told_apart_by_their_exact_text() -> None:
    """Cases D2, D3, L5: nothing is folded, trimmed or unified here."""
    routes = ["Ann", "ann", "a-b", "a_b", "é", "e\u0301", " ", "new york", "x" * 300, "'; DROP TABLE x; --"]
    found = cut([envelope(r, frame(7, b"x")) for r in routes])
    assert [r[0] for r in records(found)] == routes
    assert sorted(c["route"] for c in found) == sorted(routes)


def test_an_unknown_envelope_schema_is_asked_for_once_and_stops_no_other() -> None:
    """Case W8 at the envelope: the driver looks the id up and cuts again."""
    other = frame(8, body("b", frame(7, b"y")))
    found = cut([other, envelope("a", frame(7, b"x")), other])
    assert [json.loads(c["groups"]) for c in found if c["kind"] == "unknown"] == [[8]]
    assert [r[4] for r in records(found)] == [1]


def test_a_refused_envelope_schema_sets_its_rows_aside() -> None:
    """Case W8: an id that the registry does not have."""
    reader = replace(READER, refused={8: (Reason.UNKNOWN_SCHEMA_ID, "gone")})
    found = cut([frame(8, b"anything"), envelope("a", frame(7, b"x"))], reader)
    assert rejected(found) == [(0, "UNKNOWN_SCHEMA_ID", "envelope", None)]
    assert [r[4] for r in records(found)] == [1]


def test_a_corrupt_envelope_does_not_take_its_neighbours_along() -> None:
    values: list[bytes | None] = [envelope("a", frame(7, b"%d" % n)) for n in range(9)]
    values[4] = frame(WRAPPER_ID, b"\x0f\x01")
    found = cut(values)
    assert rejected(found) == [(4, "CORRUPT_ENVELOPE", "envelope", None)]
    assert [r[4] for r in records(found)] == [0, 1, 2, 3, 5, 6, 7, 8]


def test_an_envelope_message_that_the_schema_does_not_have_is_set_aside() -> None:
    """Case W3 at the envelope."""
    value = frame(WRAPPER_ID, body("a", frame(7, b"x")), (4,))
    assert rejected(cut([value])) == [(0, "CORRUPT_ENVELOPE", "envelope", None)]


def test_an_envelope_without_the_field_that_routes_is_set_aside() -> None:
    reader = replace(READER, route="tenant")
    assert rejected(cut([envelope("a", frame(7, b"x"))], reader)) == [(0, "CORRUPT_ENVELOPE", "envelope", None)]


def test_a_bare_envelope_is_read_without_a_header() -> None:
    reader = replace(READER, framed=False, schemas={0: compile_text(WRAPPER_TEXT)}, message="wrapper")
    found = cut([body("a", frame(7, b"x"), 7), None, b"\x0f\x01"], reader)
    assert records(found) == [("a", 7, "0", b"x", 0, 7)]
    assert tombstones(found) == {None: 1}
    assert rejected(found) == [(2, "CORRUPT_ENVELOPE", "envelope", None)]


def test_an_unframed_payload_takes_its_schema_from_the_envelope() -> None:
    reader = replace(READER, payload_framed=False, payload_message="pkg.Event")
    found = cut([envelope("a", b"raw", schema_id=5), envelope("a", b"raw"), envelope("a", b"", schema_id=5)], reader)
    assert records(found) == [("a", 5, "pkg.Event", b"raw", 0, 5), ("a", 5, "pkg.Event", b"", 2, 5)]
    assert rejected(found) == [(1, "NO_SCHEMA_ID", "payload", "a")]


def test_plain_columns_need_no_envelope() -> None:
    reader = replace(READER, format="columns")
    rows = pa.record_batch(
        {
            "game_name": pa.array(["a", None, "b", "a"]),
            "schema_id": pa.array([5, 5, None, 5], pa.int64()),
            "payload": pa.array([frame(7, b"x"), frame(7, b"y"), frame(8, b"z"), None]),
            "offset": pa.array([0, 1, 2, 3], pa.int64()),
        }
    )
    found = as_chunks(list(demux.demux([rows], reader, 0)))
    assert records(found) == [("a", 7, "0", b"x", 0, 5), ("b", 8, "0", b"z", 2, None)]
    assert rejected(found) == [(1, "NO_ROUTE", "payload", None)]
    assert tombstones(found) == {"a": 1}


def test_a_chunk_holds_no_more_than_its_share_of_a_hot_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 4)
    found = cut([envelope("hot" if n % 5 else "cold", frame(10 + n % 2, b"%d" % n)) for n in range(25)])
    assert [(c["route"], c["rows"]) for c in found] == [("cold", 4), ("cold", 1)] + [("hot", 4)] * 5
    assert [c["seq"] for c in found] == list(range(7))
    assert [r[3] for r in records(found)] == [b"%d" % n for n in range(25)]
    assert all(r[1] == 10 + r[4] % 2 for r in records(found))


def test_windows_cut_apart_number_their_chunks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demux, "WINDOW_BYTES", 1)
    found = cut([envelope("ab"[n % 2], frame(7, b"%d" % n)) for n in range(6)], batch_rows=2)
    assert [(c["seq"], c["route"], c["rows"]) for c in found] == [
        (0, "a", 1), (1, "b", 1), (2, "a", 1), (3, "b", 1), (4, "a", 1), (5, "b", 1),
    ]  # fmt: skip
    assert len(records(found)) == 6


def test_a_chunk_says_how_new_its_newest_record_is() -> None:
    found = cut([envelope("ab"[n % 2], frame(7, b"x")) for n in range(6)])
    assert {c["route"]: c["newest"] for c in found} == {"a": 4, "b": 5}


def test_no_rows_are_no_chunks() -> None:
    assert cut([]) == []
    assert as_chunks(list(demux.demux([source([])], READER, 0))) == []


VALUES = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.builds(
        envelope,
        st.sampled_from([None, "", "a", "b", "A"]),
        st.one_of(
            st.none(),
            st.binary(max_size=8),
            st.builds(
                frame, st.sampled_from([5, 7, 2**31 - 1]), st.binary(max_size=4), st.sampled_from([(0,), (0, 1)])
            ),
        ),
        st.sampled_from([None, 5]),
    ),
)


@given(st.lists(VALUES, max_size=40), st.integers(1, 9))
def test_every_row_comes_out_once(values: list[bytes | None], batch_rows: int) -> None:
    """Rows in = records + rows set aside + tombstones; whatever the bytes. Random bytes may name an unknown schema."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", 3)
        refused = {
            int.from_bytes(v[1:5], "big"): (Reason.UNKNOWN_SCHEMA_ID, "")
            for v in values
            if v and len(v) >= 5 and int.from_bytes(v[1:5], "big") != WRAPPER_ID
        }
        found = cut(values, replace(READER, refused=refused), batch_rows)
    offsets = [r[4] for r in records(found)] + [r[0] for r in rejected(found)]
    assert len(offsets) == len(set(offsets))
    assert len(offsets) + sum(c["rows"] for c in found if c["kind"] == "tombstones") == len(values)


def reader_of(text: str) -> EnvelopeReader:
    return replace(READER, schemas={WRAPPER_ID: compile_text(text, id=WRAPPER_ID)})


def test_a_route_that_is_a_number_is_its_text() -> None:
    text = 'syntax = "proto3"; message wrapper { uint32 game_name = 1; int32 schema_id = 2; bytes payload = 3; }'
    value = frame(WRAPPER_ID, message(text, "wrapper", game_name=2048, payload=frame(11, b"x")))
    assert [(r[0], r[1]) for r in records(cut([value], reader_of(text)))] == [("2048", 11)]


def test_a_schema_id_that_is_no_number_is_none_and_the_header_decides() -> None:
    text = 'syntax = "proto3"; message wrapper { string game_name = 1; string schema_id = 2; bytes payload = 3; }'
    value = frame(WRAPPER_ID, message(text, "wrapper", game_name="a", schema_id="v7", payload=frame(11, b"x")))
    assert [(r[1], r[5]) for r in records(cut([value], reader_of(text)))] == [(11, None)]
    unframed = replace(reader_of(text), payload_framed=False)
    assert rejected(cut([value], unframed)) == [(0, Reason.NO_SCHEMA_ID, "payload", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        "double game_name = 1; int32 schema_id = 2; bytes payload = 3;",
        "string game_name = 1; int32 schema_id = 2; int64 payload = 3;",
        "string game_name = 1; int32 schema_id = 2;",
    ],
)
def test_an_envelope_of_the_wrong_shape_is_set_aside_once_also_where_it_is_corrupt(fields: str) -> None:
    text = f'syntax = "proto3"; message wrapper {{ {fields} }}'
    values = [frame(WRAPPER_ID, message(text, "wrapper")), frame(WRAPPER_ID, b"\x0a\xff")]
    assert rejected(cut(values, reader_of(text))) == [(n, Reason.CORRUPT_ENVELOPE, "envelope", None) for n in (0, 1)]


def test_many_corrupt_envelopes_each_keep_their_own_detail() -> None:
    corrupt = [frame(WRAPPER_ID, b"\x0a\xff"), frame(WRAPPER_ID, b"\x1a\x05x")] * 500
    found = cut([*corrupt, envelope("a", frame(11, b"x"))])
    assert len(rejected(found)) == 1000
    assert [r[0] for r in records(found)] == ["a"]
    assert [c["kind"] for c in found].count("bad") == 1


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Wrapper",
    "fields": [
        {"name": "meta", "type": {"type": "record", "name": "Meta", "fields": [{"name": "kind", "type": "string"}]}},
        {"name": "schema_id", "type": ["null", "int"]},
        {"name": "payload", "type": ["null", "bytes"]},
    ],
}


def test_an_avro_envelope_is_opened_as_one_of_protobuf_and_by_the_judge_too(tmp_path: Path) -> None:
    registry = open_registry(RegistryConfig(path=str(tmp_path / "registry")))
    outer = registry.register("events-value", json.dumps(AVRO), kind="AVRO").schema.id
    config = Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"type": "kafka", "bootstrap_servers": "localhost:1", "topic": "events"},
            "registry": {"path": str(tmp_path / "registry")},
            "envelope": {"format": "avro", "route": "meta.kind"},
            "payload": {"format": "json", "framing": "none"},
            "tables": {"root": str(tmp_path)},
        }
    )

    def wrapped(kind: str, payload: bytes | None, schema_id: int | None = None) -> bytes:
        out = BytesIO()
        value = {"meta": {"kind": kind}, "schema_id": schema_id, "payload": payload}
        fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
        return header.frame(outer, out.getvalue())

    envelopes = Envelopes(config, schemas_of(config, keep=False))
    values = [wrapped("a", b"{}"), wrapped("b", b'{"n":1}', 7), wrapped("a", None), wrapped("", b"{}"), b"\0\0\0\0"]
    values.append(header.frame(outer, b"\x04"))
    assert envelopes.learn([outer], {}) == {}
    found = cut(values, envelopes.begin())
    assert [(r[0], r[3], r[5]) for r in records(found)] == [("a", b"{}", None), ("b", b'{"n":1}', 7)]
    assert tombstones(found) == {"a": 1}
    assert [(at, reason) for at, reason, _, _ in rejected(found)] == [
        (3, "NO_ROUTE"), (4, "TOO_SHORT"), (5, "CORRUPT_ENVELOPE")
    ]  # fmt: skip
    opener = RecordOpener(config)
    assert [opener.envelope(Record(value)) for value in values[:2]] == [("a", None, b"{}"), ("b", 7, b'{"n":1}')]


WRITERS = st.tuples(st.sampled_from([0, 1, 7, 2**31 - 1]), st.sampled_from(["0", "1", "0.2"]))


@pytest.mark.parametrize("most_counted", [chunks.MOST_COUNTED, 0])
@given(rows=st.lists(WRITERS, max_size=30))
def test_writers_are_told_apart_and_numbered_in_order_however_they_are_found(
    most_counted: int, rows: list[tuple[int, str]]
) -> None:
    columns = pa.array([r[0] for r in rows], pa.int32()), pa.array([r[1] for r in rows], pa.string())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MOST_COUNTED", most_counted)
        writers, numbers = chunks.writers_of(*columns)
    assert writers == sorted(set(rows))
    assert [writers[n] for n in numbers] == rows


def test_a_flood_of_envelope_schema_ids_asks_for_each_and_costs_what_its_rows_cost() -> None:
    """Each id once took a look at every row of the window."""
    ids = 300_000
    found = cut([frame(n, b"") for n in range(10, 10 + ids)])
    assert [json.loads(c["groups"]) for c in found] == [list(range(10, 10 + ids))]


def test_a_flood_of_routes_with_unreadable_records_costs_what_they_cost() -> None:
    """Each of these routes, too, once took a look at every row."""
    routes = [f"r{n:04}" for n in range(5_000)]
    alike = envelope("r0000", b"\7no header")
    found = cut([alike.replace(b"r0000", route.encode()) for route in routes])
    assert {(c["route"], c["rows"], c["groups"]) for c in found} == {(r, 1, '{"BAD_MAGIC": 1}') for r in routes}
    assert [(row[0], row[3]) for row in rejected(found)] == list(enumerate(routes))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.integers(0, 99)), max_size=20), st.integers(1, 5))
def test_rows_are_parted_by_a_text_and_keep_their_order(rows: list[tuple[str | None, int]], size: int) -> None:
    columns = {"text": pa.array([r[0] for r in rows], pa.string()), "n": pa.array([r[1] for r in rows], pa.int64())}
    table = pa.Table.from_batches(pa.table(columns).to_batches(max_chunksize=size), pa.table(columns).schema)
    parted: dict[str | None, list[int]] = {}
    for text, part in chunks.by_value(table, "text"):
        assert set(part.column("text").to_pylist()) == {text}
        parted.setdefault(text, []).extend(part.column("n").to_pylist())
    assert parted == {text: [n for t, n in rows if t == text] for text in {t for t, _ in rows}}
