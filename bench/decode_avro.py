"""Avro payloads: what does it bring to read all records of a schema side by side?"""

from __future__ import annotations

import io
import json
import random
import time
from statistics import median
from typing import Any

import fastavro
import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, WrongRows, game_event
from distributary.schemas.avro.payload import AvroSchema, decoder_for

NOTE = (
    "Avro payloads to Arrow in one process, median of the rounds: rows per second (ours) against fastavro, which reads "
    "one record after the other into Python's values (other; making columns of them is not counted). Ten columns: "
    "texts, numbers, a time, an enum, a nullable text, a list and a record. Of the second case one record in a "
    "thousand is cut. Checked: both give the same values."
)
_FIELDS: list[dict[str, Any]] = [
    {"name": "user", "type": "string"},
    {"name": "score", "type": "long"},
    {"name": "ratio", "type": "double"},
    {"name": "stable", "type": "boolean"},
    {"name": "boss", "type": ["null", "string"]},
    {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B", "C"]}},
    {"name": "levels", "type": {"type": "array", "items": "int"}},
    {"name": "place", "type": {"type": "record", "name": "place", "fields": [
        {"name": "x", "type": "int"}, {"name": "y", "type": "float"},
    ]}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "raw", "type": "bytes"},
]  # fmt: skip
SCHEMA = {"type": "record", "name": "event", "fields": _FIELDS}


def run(place: Place) -> Result:
    rows, rounds = place.size(200_000, 500), place.size(5, 1)
    parsed = fastavro.parse_schema(SCHEMA)
    rnd = random.Random(7)
    payloads = [_encoded(parsed, record(rnd)) for _ in range(rows)]
    cut = [payload[: len(payload) // 2] if n % 1000 == 7 else payload for n, payload in enumerate(payloads)]
    cases = (
        _case("ten columns", parsed, payloads, rounds),
        _case("ten columns, 1 in 1,000 cut", parsed, cut, rounds),
    )
    return Result("decode_avro", NOTE, cases)


def record(rnd: random.Random) -> dict[str, Any]:
    return {
        **game_event(rnd),
        "at": 1_700_000_000_000_000 + rnd.randrange(10**12),
        "raw": bytes(rnd.randrange(9)),
    }


def _encoded(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def _case(label: str, parsed: Any, payloads: list[bytes], rounds: int) -> Case:
    values = pa.array(payloads, pa.binary())
    decoder = decoder_for(AvroSchema(1, (json.dumps(SCHEMA),)))
    split = decoder.decode(values)
    told = [row for row in (_read(parsed, payload) for payload in payloads) if row is not None]
    if split.rows.to_pylist() != told or len(split.rejected) != len(payloads) - len(told):
        raise WrongRows(f"{label}: fastavro reads other values")
    fast, slow = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        decoder.decode(values)
        fast.append(len(payloads) / (time.perf_counter() - began))
        began = time.perf_counter()
        for payload in payloads:
            _read(parsed, payload)
        slow.append(len(payloads) / (time.perf_counter() - began))
    details = {"rows": len(payloads), "bytes a row": round(sum(map(len, payloads)) / len(payloads))}
    return Case(
        label, "rows/s", median(fast), median(slow), less_is_better=False, goal=500_000, goal_of="ours", details=details
    )


def _read(schema: Any, payload: bytes) -> Any:
    try:
        return fastavro.schemaless_reader(io.BytesIO(payload), schema, None)
    except (EOFError, ValueError, IndexError):
        return None
