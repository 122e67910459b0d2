"""Values of keys with a schema, as the columns that the pipeline file names."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from distributary.config.source_keys import RecordKey
from distributary.engine.messages.record_keys import as_objects, read_keys
from distributary.schemas import header
from distributary.schemas.avro.payload import AvroSchema

LONGEST = Decimal("1234567890123456789012345678.91")


def read(kind: Any, value: Any, column: str) -> tuple[list[Any], dict[int, str]]:
    """A key of one field in Avro."""
    schema = {"type": "record", "name": "Key", "fields": [{"name": "k", "type": kind}]}
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"k": value})
    record_key = RecordKey(format="avro", columns={"k": column})
    keys = pa.array([header.frame(1, body.getvalue())], pa.binary())
    objects = as_objects(keys, record_key, {1: AvroSchema(1, (json.dumps(schema),))}, {}, lambda _: None)
    columns, bad = read_keys(objects, record_key, True)
    return columns.column("k").to_pylist(), bad


def decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": scale}


@pytest.mark.parametrize(
    ("kind", "value", "column", "expected"),
    [
        (decimal(2), Decimal("123.45"), "decimal(20,2)", Decimal("123.45")),
        (decimal(2), Decimal("-123.00"), "decimal(20,2)", Decimal("-123.00")),
        (decimal(10), Decimal("1E-10"), "decimal(20,10)", Decimal("0.0000000001")),
        (decimal(2), LONGEST, "decimal(30,2)", LONGEST),
        ("double", 1e22, "double", 1e22),
        ("double", 5e-324, "double", 5e-324),
        ("long", 2**63 - 1, "bigint", 2**63 - 1),
        ("bytes", b"\xff\x00", "binary", b"\xff\x00"),
        ("boolean", True, "boolean", True),
        (["null", "string"], None, "string", None),
        ({"type": "map", "values": "int"}, {"a": 1}, "map<string,bigint>", [("a", 1)]),
        ({"type": "map", "values": decimal(2)}, {"a": LONGEST}, "map<string,decimal(30,2)>", [("a", LONGEST)]),
        ({"type": "array", "items": decimal(1)}, [Decimal("0.5")], "array<decimal(20,1)>", [Decimal("0.5")]),
    ],
)  # fmt: skip
def test_a_value_of_a_key_is_what_its_message_says(kind: Any, value: Any, column: str, expected: Any) -> None:
    assert read(kind, value, column) == ([expected], {})


@pytest.mark.parametrize(("value", "word"), [(float("NaN"), "NaN"), (float("-inf"), "-Infinity")])
def test_a_key_that_is_no_number_is_set_aside_by_its_column_and_value(value: float, word: str) -> None:
    assert read("double", value, "double") == (
        [None],
        {0: f'the record\'s key: /k: "{word}" is no number that a double holds'},
    )
