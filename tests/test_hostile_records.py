"""Records that are made to stop, fill or mislead their reader: each ends in its table or in the quarantine, once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from distributary.config import Tables
from distributary.engine.messages.deliver import deliver
from distributary.engine.messages.demux import demux
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.task_spec import MessageSpec
from distributary.errors import Reason
from distributary.schemas.registry.compile import compile_text
from distributary.tables.store import Store
from distributary_simulate.games.schemas import WRAPPER_TEXT

EVENT = """syntax = "proto3";
message event {
  string user = 1; repeated int32 packed = 2; message Empty {} repeated Empty many = 3; map<string, int32> map = 4;
  event inner = 5; repeated double doubles = 6;
}"""
SCHEMAS = {1: compile_text(WRAPPER_TEXT, id=1), 2: compile_text(EVENT, id=2)}
REFUSED = {-1: (Reason.UNKNOWN_SCHEMA_ID, "")}
READER = EnvelopeReader("protobuf", True, "game_name", "schema_id", "payload", schemas={1: SCHEMAS[1]}, refused=REFUSED)
MANY = 50_000


def varint(value: int) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def field(number: int, body: bytes) -> bytes:
    """A length-delimited field, as the wire has it."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def nested(levels: int) -> bytes:
    body = b""
    for _ in range(levels):
        body = field(5, body)
    return body


HEADER = b"\0\0\0\0\2"
START, END = varint(9 << 3 | 3), varint(9 << 3 | 4)
GOOD = HEADER + b"\0" + field(1, b"x")
IN_TABLE = ""
PAYLOADS: dict[str, tuple[bytes, str]] = {
    "a million indexes": (HEADER + varint(2_000_000) + b"\0" * 100, Reason.BAD_INDEX),
    "2^31 indexes": (HEADER + varint(2**32 - 2) + b"\0", Reason.BAD_INDEX),
    "an index that does not end": (HEADER + b"\xff" * 300, Reason.BAD_INDEX),
    **{
        f"a text of {size} bytes": (HEADER + b"\0\x0a" + varint(size), Reason.CORRUPT_PAYLOAD)
        for size in (2**31, 2**63, 2**64 - 1)
    },
    "many zeros packed": (HEADER + b"\0" + field(2, b"\0" * MANY), IN_TABLE),
    "packed doubles cut": (HEADER + b"\0" + field(6, b"\0" * 9), Reason.CORRUPT_PAYLOAD),
    "many empty messages": (HEADER + b"\0" + field(3, b"") * MANY, IN_TABLE),
    "a key many times": (HEADER + b"\0" + field(4, field(1, b"k")) * MANY, IN_TABLE),
    "many keys": (HEADER + b"\0" + b"".join(field(4, field(1, b"%d" % n)) for n in range(MANY)), IN_TABLE),
    "many unknown fields": (HEADER + b"\0" + varint(100 << 3) * MANY, IN_TABLE),
    "groups in groups": (HEADER + b"\0" + START * 5_000 + END * 5_000, Reason.CORRUPT_PAYLOAD),
    "groups that do not end": (HEADER + b"\0" + START * MANY, Reason.CORRUPT_PAYLOAD),
    "messages 3000 deep": (HEADER + b"\0" + nested(3_000), Reason.CORRUPT_PAYLOAD),
    "messages 99 deep": (HEADER + b"\0" + nested(99), IN_TABLE),
    "wire type 7": (HEADER + b"\0\x0f" + b"a" * 10, Reason.CORRUPT_PAYLOAD),
    "field 0": (HEADER + b"\0\0\0", Reason.CORRUPT_PAYLOAD),
    "no UTF-8": (HEADER + b"\0" + field(1, b"\xff\xfe"), Reason.CORRUPT_PAYLOAD),
    "a lone surrogate": (HEADER + b"\0" + field(1, b"\xed\xa0\x80"), Reason.CORRUPT_PAYLOAD),
    "NUL in a text": (HEADER + b"\0" + field(1, b"a\0b"), IN_TABLE),
    "5 MB without a header": (b"\1" * 5_000_000, Reason.BAD_MAGIC),
}
ROUTES: dict[bytes, str] = {
    **{
        route.encode(): IN_TABLE
        for route in (
            *("..", ".", "/", "a/b", "../../etc", "%2e%2e", "c:", "CON", "nul.txt", "a\0b", " ", "\n", "a\\b", "*"),
            *("Ä", "A\u0308", "ä", "Red", "RED", "red", "\u202e", "\U0001f600", "x" * 300, "x" * 300 + "y", "{route}"),
            *("_delta_log", "_distributary", "-rf", "file://x", "s3://b/k", "$(x)", "_origin", "x" * 4_096),
        )
    },
    b"x" * 4_097: Reason.ROUTE_TOO_LONG,
    b"\xff\xfe": Reason.CORRUPT_ENVELOPE,
    b"\xed\xa0\x80": Reason.CORRUPT_ENVELOPE,
    b"": Reason.NO_ROUTE,
}


def envelope(route: bytes, payload: bytes) -> bytes:
    return b"\0\0\0\0\1\0" + field(1, route) + field(3, payload)


SENT: list[tuple[str, bytes, str]] = [
    *((what, envelope(b"p", payload), reason) for what, (payload, reason) in PAYLOADS.items()),
    *((f"the route {route[:40]!a}", envelope(route, GOOD), reason) for route, reason in ROUTES.items()),
    ("no envelope", b"\0\0\0\0\1\0" + b"\xff" * 50, Reason.CORRUPT_ENVELOPE),
    ("only unknown fields", b"\0\0\0\0\1\0" + varint(100 << 3) * MANY, Reason.NO_ROUTE),
    ("an id below 0", b"\0\xff\xff\xff\xff\0", Reason.UNKNOWN_SCHEMA_ID),
    ("nothing", b"", Reason.TOO_SHORT),
]


def test_each_hostile_record_is_in_its_table_or_in_the_quarantine_with_its_reason(tmp_path: Path) -> None:
    tables, quarantine = tmp_path / "tables", tmp_path / "quarantine"
    spec = MessageSpec(
        pipeline="g",
        stream="s",
        batch=0,
        tables=Tables(root=str(tables)),
        store=Store(),
        quarantine=str(quarantine),
        payload_framed=True,
        raw_nested_indexes=False,
    )
    rows = range(len(SENT))
    batch = pa.record_batch(
        {
            "value": pa.array([value for _, value, _ in SENT], pa.binary()),
            "partition": pa.array([0 for _ in rows], pa.int32()),
            "offset": pa.array(rows, pa.int64()),
        }
    )
    chunks = [chunk for found in demux([batch], READER, 0) for chunk in found.to_pylist()]
    list(deliver(chunks, spec, SCHEMAS, "p"))
    places: dict[int, list[str]] = {n: [] for n in rows}
    for folder in tables.iterdir():
        for row in DeltaTable(folder).to_pyarrow_table(columns=["_origin"]).to_pylist():
            places[row["_origin"]["offset"]].append(IN_TABLE)
    for file in quarantine.glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            places[row["offset"]].append(row["reason"])
    found = [(what, places[number]) for number, (what, _, _) in enumerate(SENT)]
    assert found == [(what, [reason]) for what, _, reason in SENT]
    assert len(list(tables.iterdir())) == 1 + sum(reason == IN_TABLE for reason in ROUTES.values())
