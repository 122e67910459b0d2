"""What the bytes of a record look like."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.schemas.looks import looks
from distributary.schemas.protobuf.framing import frame


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (b"", "nothing", "no bytes"),
        (b'{"game": "chess", "score": 3}', "json", "game, score"),
        (b"[1, 2]", "json", "array"),
        (b"Obj\x01rest", "avro file", "Avro"),
        (b"\xc3\x01" + bytes(8), "avro message", "single-object"),
        (b"PAR1....PAR1", "parquet file", "Parquet"),
        ("naïve text, and more of it".encode(), "text", "26 characters"),
        (b"\xff\xfe\xfd", "bytes", "ff fe fd"),
        (b"\x0a\x05chess\x10\x03", "protobuf", "1 (text), 2 (a number)"),
    ],
)
def test_each_kind_is_recognised(value: bytes, kind: str, words: str) -> None:
    found = looks(value)
    assert found.kind == kind
    assert words in found.words


def test_a_header_says_its_id_and_what_follows() -> None:
    found = looks(frame(7, b"\x0a\x05chess"))
    assert (found.kind, found.schema_id) == ("framed", 7)
    assert "then a protobuf message" in found.words
    assert looks(bytes(5)).words.endswith("no bytes")


def test_no_value_is_said_for_it_may_stand_in_a_log() -> None:
    for value in (
        b'{"password": "hunter2"}',
        b"\x0a\x07hunter2",
        b"my password is hunter2",
        frame(7, b"\x0a\x07hunter2"),
    ):
        assert "hunter2" not in looks(value).words


def test_a_record_of_many_fields_is_said_in_short() -> None:
    found = looks(json.dumps({f"field {n}": n for n in range(1000)}).encode())
    assert "988 more" in found.words


@given(st.binary(max_size=300))
def test_anything_looks_like_something(value: bytes) -> None:
    assert looks(value).words.isprintable()
