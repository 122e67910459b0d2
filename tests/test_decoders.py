"""The port of payload formats: every format keeps its contract, and a new one is a module and a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.audit.judge.formats import JUDGES
from distributary.engine.schemas import Schemas
from distributary.errors import Reason, SchemaBroken
from distributary.schemas.formats import FORMATS, decoder_for
from distributary.schemas.registry import Schema
from distributary.schemas.registry.absent import NoRegistry
from distributary.schemas.registry.compile import compile_text
from tests import toy_format
from tests.decoder_contract import Given, Lane, Sample, check_all
from tests.scenarios import message

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    """The toy format, in the table of formats."""
    monkeypatch.setitem(FORMATS, "toy", toy_format)
    return "toy"


def test_protobuf_keeps_the_contract() -> None:
    schema = compile_text(EVENT, id=7)
    good = [message(EVENT, "event", user="x", score=1), b"", message(EVENT, "event", user="y" * 300)]
    rows: list[dict[str, Any]] = [{"user": "x", "score": 1}, {"user": "", "score": 0}, {"user": "y" * 300, "score": 0}]
    columns = decoder_for(schema).columns
    check_all(Sample("protobuf", schema, columns, good, rows, [b"\xff", b"\x0a\x05a"]))


def test_a_format_made_for_this_test_keeps_the_contract(toy: str) -> None:
    columns = pa.schema([("user", pa.string()), ("score", pa.string())])
    schema = toy_format.ToySchema(7, ("user", "score"))
    rows: list[dict[str, Any]] = [{"user": "x", "score": "1"}, {"user": None, "score": None}]
    check_all(Sample(toy, schema, columns, [b"user=x\nscore=1", b""], rows, [b"\xff", b"no sign"]))


@pytest.mark.parametrize(("form", "kind"), [("bytes", pa.binary()), ("text", pa.string())])
def test_payloads_that_are_taken_as_they_are_keep_the_contract(form: str, kind: pa.DataType) -> None:
    schema = FORMATS[form].without_schema({})
    assert schema is not None
    good = [b"x", b"", "grün".encode(), b"y" * 300]
    rows = [{"value": one.decode() if form == "text" else one} for one in good]
    bad = [b"\xff\xfe", b"a\xc3"] if form == "text" else []
    check_all(Sample(form, schema, pa.schema([("value", kind)]), good, rows, bad))
    said = JUDGES[form].reader(schema, (0,))(b"x")
    assert (said.differs({"value": rows[0]["value"]}), said.differs({"value": "z"})) == (None, "value")


def test_text_comes_into_a_table_without_a_registry(lake: Path) -> None:
    lane = Lane("text", Schemas(NoRegistry(), plain=FORMATS["text"].without_schema({})), lake)
    lane.batch([(0, b"x"), (0, b"\xff"), (0, b"")])
    assert lane.rows() == [{"value": "x"}, {"value": ""}]
    assert lane.aside() == [Reason.CORRUPT_PAYLOAD]


def test_a_pipeline_reads_a_format_made_for_this_test(toy: str, lake: Path) -> None:
    """Header, writer schema, decoding, evolution, the table, and quarantine: nothing else was written for it."""
    schemas = Schemas(Given(Schema(1, "TOY", "user"), Schema(2, "TOY", "user score"), Schema(3, "TOY", " ")))
    lane = Lane(toy, schemas, lake)
    lane.batch([(1, b"user=x"), (2, b"user=y\nscore=1"), (1, b"bad"), (3, b"user=z"), (4, b"user=z")])
    assert lane.rows() == [{"user": "x", "score": None}, {"user": "y", "score": "1"}]
    assert lane.aside() == [Reason.CORRUPT_PAYLOAD, Reason.BROKEN_SCHEMA, Reason.UNKNOWN_SCHEMA_ID]


def test_a_schema_of_another_format_than_the_pipeline_file_says_is_broken(toy: str) -> None:
    with pytest.raises(SchemaBroken):
        decoder_for(toy_format.ToySchema(1, ("user",)))
    refused = Schemas(Given(Schema(1, "XML", "<a/>"))).resolve([1])[1]
    assert refused[1][0] == Reason.BROKEN_SCHEMA
