"""Envelopes of JSON: where the route and the payload stand in them, byte for byte, and what is set aside."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.judge.opened_records import Record, RecordOpener
from distributary.config import Pipeline
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.schemas import schemas_of
from distributary.schemas.header import frame
from tests.test_demux import cut, records, rejected, tombstones


def pipeline(envelope: dict[str, Any], payload: dict[str, Any] | None = None, **keys: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"type": "kafka", "bootstrap_servers": "localhost:1", "topic": "t"},
            "envelope": {"format": "json", **envelope},
            "payload": payload or {"format": "json", "framing": "none"},
            "tables": {"root": "/nowhere"},
            **keys,
        }
    )


def reader(envelope: dict[str, Any], payload: dict[str, Any] | None = None, **keys: Any) -> EnvelopeReader:
    config = pipeline(envelope, payload, **keys)
    return Envelopes(config, schemas_of(config, keep=False)).begin()


def opened(found: EnvelopeReader, *values: bytes) -> list[tuple[str, bytes]]:
    return [(route, payload) for route, _, _, payload, _, _ in records(cut(values, found))]


KIND = {"route": "type", "payload": "data"}


def test_a_payload_is_an_object_as_it_is_written_or_the_text_that_holds_it() -> None:
    plain = reader(KIND)
    assert opened(
        plain,
        b'{"type":"go","data":{ "n": 1.50, "big":123456789012345678901234567890 }}',
        b'\xef\xbb\xbf {"data" : "{\\"n\\":\\u0031}" , "type" : "chess"}',
        b'{"type":true,"data":{"a":[{}]},"type":7}',
    ) == [
        ("go", b'{ "n": 1.50, "big":123456789012345678901234567890 }'),
        ("chess", b'{"n":1}'),
        ("7", b'{"a":[{}]}'),
    ]


def test_route_and_payload_stand_at_paths_also_inside_of_each_other() -> None:
    value = b'{"meta":{"event":{"kind":"go"}},"body":{"data":{"kind":"chess","n":1}}}'
    assert opened(reader({"route": "meta.event.kind", "payload": "body.data"}), value) == [
        ("go", b'{"kind":"chess","n":1}')
    ]
    assert opened(reader({"route": "body.data.kind", "payload": "body.data"}), value) == [
        ("chess", b'{"kind":"chess","n":1}')
    ]
    assert opened(reader({"route": {"from": "topic"}, "payload": "body.data"}), value) == [
        ("events", b'{"kind":"chess","n":1}')
    ]


def test_what_is_no_envelope_is_set_aside_alone_and_a_null_payload_is_a_tombstone() -> None:
    found = cut(
        [
            b'{"type":"go","data":{}}',
            b'{"type":"go"}',
            b'{"type":"go","data":null}',
            b'{"data":{}}',
            b"[1]",
            b'{"type":"go","data":{}',
            b'{"type":"\xff","data":{}}',
            b'{"type":["go"],"data":{}}',
            b'{"type":"go","data":{}}' * 2,
            b'{"type":"go","data":' + b"[" * 70 + b"]" * 70 + b"}",
        ],
        reader(KIND),
    )
    assert [(route, at) for route, _, _, _, at, _ in records(found)] == [("go", 0)]
    assert tombstones(found) == {"go": 1}
    assert rejected(found) == [
        (1, "CORRUPT_ENVELOPE", "envelope", None),
        (3, "NO_ROUTE", "payload", None),
        *((at, "CORRUPT_ENVELOPE", "envelope", None) for at in (4, 5, 6)),
        (7, "NO_ROUTE", "payload", None),
        *((at, "CORRUPT_ENVELOPE", "envelope", None) for at in (8, 9)),
    ]


def test_a_header_in_front_of_an_envelope_is_passed_over() -> None:
    found = cut(
        [frame(7, b'{"type":"go","data":{}}'), b'{"type":"go","data":{}}'], reader({**KIND, "framing": "confluent"})
    )
    assert [(route, payload) for route, _, _, payload, _, _ in records(found)] == [("go", b"{}")]
    assert rejected(found) == [(1, "BAD_MAGIC", "envelope", None)]


REGISTRY = {"registry": {"path": "/nowhere"}}


@pytest.mark.parametrize(
    ("payload", "more", "said", "expected"),
    [
        ({"format": "text"}, {}, '"a\\n"', (0, b"a\n")),
        ({"format": "text"}, {}, "[1, 2]", (0, b"[1, 2]")),
        ({"format": "bytes"}, {}, '"AAH/"', (0, b"\0\1\xff")),
        ({"format": "avro"}, REGISTRY, json.dumps(base64.b64encode(frame(9, b"xy")).decode()), (9, b"xy")),
        ({"format": "protobuf", "framing": "none"}, REGISTRY, '"eHk="', (12, b"xy")),
    ],
)
def test_payloads_of_other_formats_stand_in_it_as_texts(
    payload: dict[str, Any], more: dict[str, Any], said: str, expected: tuple[int, bytes]
) -> None:
    found = cut([f'{{"type":"go","schema_id":12,"data":{said}}}'.encode()], reader(KIND, payload, **more))
    assert [(schema_id, body) for _, schema_id, _, body, _, _ in records(found)] == [expected]


def test_a_payload_that_must_be_base64_and_is_not_is_set_aside_with_its_envelope() -> None:
    values = [b'{"type":"go","data":{}}', b'{"type":"go","data":"%"}', b'{"type":"go","schema_id":"x","data":"eHk="}']
    found = cut(values, reader(KIND, {"format": "protobuf", "framing": "none"}, **REGISTRY))
    assert [(at, reason) for at, reason, _, _ in rejected(found)] == [
        (0, "CORRUPT_ENVELOPE"),
        (1, "CORRUPT_ENVELOPE"),
        (2, "NO_SCHEMA_ID"),
    ]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "type"]), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["type", "data", "x"]), _JSON, max_size=3),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from(["type", "data.type", "x.a"]),
)
def test_the_judge_opens_what_the_product_does(
    value: dict[str, Any], indent: int | None, is_ascii: bool, route: str
) -> None:
    config = pipeline({"route": route, "payload": "data"})
    body = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    found = cut([body], Envelopes(config, schemas_of(config, keep=False)).begin())
    for said, _, _, payload, _, _ in records(found):
        assert RecordOpener(config).envelope(Record(body))[::2] == (said, payload)
