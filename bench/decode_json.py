"""JSON payloads: what does it bring to read all records at once, where each is right by itself?"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, WrongRows, game_event
from distributary.schemas.decoding import Decoder, Split
from distributary.schemas.json import bare
from distributary.schemas.json.inferred import shapes
from distributary.schemas.json.payload import JsonSchema, decoder_for

NOTE = (
    "JSON payloads to Arrow in one process, median of the rounds: rows per second of CPU time (ours) against "
    "json.loads of one record after the other and columns made of the values (other). Ten columns: texts, numbers, a "
    "time, a nullable text, a list and an object. Of the second case one record in a thousand is cut; of the third "
    "each has a field that the schema does not declare; of the fourth there is no schema, and four columns are "
    "declared; of the fifth none is, and they are inferred. Checked: both say the same."
)
GOAL = 150_000
"""A core's half of what two are to do."""
_PROPERTIES: dict[str, Any] = {
    "user": {"type": "string"},
    "score": {"type": "integer"},
    "ratio": {"type": "number"},
    "stable": {"type": "boolean"},
    "boss": {"type": ["null", "string"]},
    "kind": {"enum": ["A", "B", "C"]},
    "levels": {"type": "array", "items": {"type": "integer"}},
    "place": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}},
    "at": {"type": "string", "format": "date-time"},
    "micros": {"type": "integer"},
}
SCHEMA = {"type": "object", "properties": _PROPERTIES}
_COLUMNS = {"user": "string", "score": "bigint", "place.x": "bigint", "micros": "bigint"}


def run(place: Place) -> Result:
    rows, rounds = place.size(200_000, 500), place.size(5, 1)
    rnd = random.Random(7)
    records = [record(rnd) for _ in range(rows)]
    payloads = [json.dumps(record).encode() for record in records]
    cut = [payload[: len(payload) // 2] if n % 1000 == 7 else payload for n, payload in enumerate(payloads)]
    more = [json.dumps({**record, "mode": "duel"}).encode() for record in records]
    schema = decoder_for(JsonSchema(1, (("", json.dumps(SCHEMA)),)))
    cases = (
        _case("ten columns", schema, payloads, rounds, GOAL),
        _case("ten columns, 1 in 1,000 cut", schema, cut, rounds, GOAL),
        _case("ten columns, a field more", schema, more, rounds),
        _case("four columns, no schema", bare.decoder_for(bare.without_schema(_COLUMNS)), payloads, rounds),
        _case("ten columns, inferred", _Inferring(pa.array(payloads, pa.binary())), payloads, rounds, GOAL),
    )
    return Result("decode_json", NOTE, cases)


class _Inferring:
    """Finds the shape of records with each batch, as a stream does, and decodes them by it."""

    full_name, engine = "record", "json"

    def __init__(self, sample: pa.BinaryArray) -> None:
        self.columns = self._decoder(sample).columns

    def decode(self, payloads: pa.BinaryArray) -> Split:
        return self._decoder(payloads).decode(payloads)

    def _decoder(self, payloads: pa.BinaryArray) -> Decoder:
        (shape,) = shapes(pa.repeat("a", len(payloads)), payloads, bare.declared_record(())).unique().to_pylist()
        return bare.decoder_for(bare.without_schema({}), shape)


def record(rnd: random.Random) -> dict[str, Any]:
    return {
        **game_event(rnd),
        "at": f"2026-01-{1 + rnd.randrange(28):02}T12:00:00.{rnd.randrange(10**6):06}Z",
        "micros": 1_700_000_000_000_000 + rnd.randrange(10**12),
    }


def _case(label: str, decoder: Decoder, payloads: list[bytes], rounds: int, goal: int | None = None) -> Case:
    values = pa.array(payloads, pa.binary())
    told = _plain(payloads, decoder.columns)
    found = decoder.decode(values).rows
    found = found.set_column(len(told.columns) - 1, "_undeclared", pa.nulls(len(found), pa.string()))
    if not pa.Table.from_batches([found]).equals(told):
        raise WrongRows(f"{label}: json.loads reads other values")
    fast, slow = [], []
    for _ in range(rounds):
        began = time.process_time()
        decoder.decode(values)
        fast.append(len(payloads) / (time.process_time() - began))
        began = time.process_time()
        _plain(payloads, decoder.columns)
        slow.append(len(payloads) / (time.process_time() - began))
    details = {"rows": len(payloads), "bytes a row": round(sum(map(len, payloads)) / len(payloads))}
    return Case(
        label, "rows/s", median(fast), median(slow), less_is_better=False, goal=goal, goal_of="ours", details=details
    )


def _plain(payloads: list[bytes], columns: pa.Schema) -> pa.Table:
    """The columns of the records that are right; what is not declared is left out."""
    records = []
    for payload in payloads:
        try:
            records.append(json.loads(payload))
        except ValueError:
            continue
    return pa.Table.from_arrays(
        [
            pa.array([_said(record, field) for record in records], field.type)
            if "__" in str(field)
            else pa.array([record.get(field.name) for record in records], field.type)
            for field in columns
        ],
        schema=columns,
    )


def _said(record: Mapping[str, Any], field: pa.Field) -> Any:
    """What a record says of a column, which may be named for its type too (`levels__json`)."""
    name, _, kind = field.name.partition("__")
    value = record.get(name)
    if kind == "json":
        return json.dumps(value)
    return {one.name: _said(value, one) for one in field.type} if pa.types.is_struct(field.type) and value else value
