"""Change files made to stop or to fill their reader: each is one fault, said at once, in a process that stays small."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import multiprocessing
import resource
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from distributary.changes.file_events import peek, read_events
from distributary.changes.model import Reading
from distributary.errors import FileBroken, Reason
from tests.event_files import avro, event, json_lines, parquet, record, schema

MEGABYTE = 1 << 20
SYNC = b"0123456789abcdef"
ID = schema([("id", "long")])
READING = Reading(max_unpacked_bytes=16 * MEGABYTE)
GOOD = [event(at) for at in range(3)]


def number(value: int) -> bytes:
    """As avro writes a long."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(body: bytes, count: int) -> bytes:
    return number(count) + number(len(body)) + body + SYNC


def event_body(kind: dict[str, Any], payload: bytes) -> bytes:
    """An event as stored, with these bytes in place of its payload."""
    one = avro(kind, [event(0, {})])
    start = one.index(SYNC) + len(SYNC)
    return one[start : -len(SYNC)][2 if one[start + 1] < 0x80 else 3 :] + payload


def head(kind: dict[str, Any], codec: str = "null") -> bytes:
    """The beginning of a container, of schemas too that no library would write."""
    meta = {b"avro.schema": json.dumps(kind).encode(), b"avro.codec": codec.encode()}
    texts = b"".join(number(len(text)) + text for pair in meta.items() for text in pair)
    return b"Obj\x01" + number(len(meta)) + texts + number(0) + SYNC


ITSELF = record("tree", [("next", ["null", "tree"])])
EMPTY = schema([])
NOTHING = record("nothing", [("a", "null"), ("b", record("inner", []))])


def with_payload(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """The schema of events with a payload whose types are taken as they are."""
    kind = schema([])
    kind["fields"][-1]["type"] = record("payload", fields)
    return kind


def packed(codec: str, data: bytes) -> bytes:
    if codec == "deflate":
        return zlib.compress(data, wbits=-15)
    if codec == "zstandard":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    if codec == "snappy":
        return bytes(pa.compress(data, "snappy", asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")
    return bz2.compress(data) if codec == "bzip2" else lzma.compress(data)


def bomb(codec: str) -> bytes:
    """A block that unpacks to far more than the limit, behind one that is good."""
    plain = avro(ID, GOOD)
    events = plain[plain.index(SYNC) + len(SYNC) : -len(SYNC)]
    events = events[1 + len(number(len(events) - 3)) :]
    large = bytes(48 * MEGABYTE)
    return head(ID, codec) + block(packed(codec, events), len(GOOD)) + block(packed(codec, large), 1)


def false_footer() -> bytes:
    """A Parquet file whose footer says that its row group has 900,000 columns, which are all made before they are read
    (Thrift's compact protocol)."""
    schema = b"\x19\x1c" + b"\x48\x01r" + b"\x15\x00" + b"\x00"
    columns = b"\x19\xfc" + b"\xa0\xf7\x36"
    footer = b"\x15\x02" + schema + b"\x16\x02" + b"\x19\x1c" + columns + bytes(60)
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def many_rows() -> bytes:
    nothing = pa.array([None], pa.string()).take(pa.array([0] * 300_000, pa.int32()))
    table = pa.table({"object": nothing, **{f"c{at}": nothing for at in range(100)}})
    return parquet(table)


def chain(levels: int) -> dict[str, Any]:
    """A schema of a few lines that stands for 2 ** levels fields."""
    kind: Any = record("r0", [("a", "int"), ("b", "int")])
    for level in range(1, levels):
        kind = record(f"r{level}", [("a", kind), ("b", f"r{level - 1}")])
    return with_payload([("x", kind)])


def deep(levels: int) -> dict[str, Any]:
    kind: Any = "int"
    for level in range(levels):
        kind = record(f"r{level}", [("a", kind)])
    return with_payload([("x", kind)])


def lists_in_lists() -> bytes:
    kind: Any = "null"
    for _ in range(5):
        kind = {"type": "array", "items": kind}
    kind = with_payload([("l", kind)])
    return head(kind) + block(event_body(EMPTY, number(999) * 5 + bytes(4000)), 1)


TREE = with_payload([("t", ITSELF)])
FILES: dict[str, Callable[[], bytes]] = {
    "a schema that contains itself": lambda: head(TREE) + block(event_body(EMPTY, b"\x02" * 10_000), 1),
    "events that take no bytes": lambda: head(NOTHING) + block(b"", 1 << 40),
    "more events than bytes": lambda: head(ID) + block(b"", 1 << 40),
    "a list of nothing": lambda: head(with_payload([("l", {"type": "array", "items": "null"})]))
    + block(event_body(EMPTY, number(1 << 40) + b"\0"), 1),
    "a map of nothing": lambda: head(with_payload([("l", {"type": "map", "values": "null"})]))
    + block(event_body(EMPTY, number(1 << 40) + b"\0"), 1),
    "a list of fixed": lambda: head(
        with_payload([("l", {"type": "array", "items": {"type": "fixed", "name": "f", "size": 1 << 30}})])
    )
    + block(event_body(EMPTY, number(1 << 40)), 1),
    "lists in lists": lists_in_lists,
    "a text of a false length": lambda: head(ID) + block(number(1 << 40), 1),
    "a small schema of many fields": lambda: head(chain(40)) + block(b"\0", 1),
    "a schema of many levels": lambda: head(deep(200)) + block(b"\0", 1),
    "a schema of too many levels for its parser": lambda: b"Obj\x01"
    + number(1) + number(11) + b"avro.schema" + number(200_000) + b"[" * 200_000 + number(0) + SYNC,
    "gzip": lambda: gzip.compress(bytes(48 * MEGABYTE)),
    "gzip of many members": lambda: gzip.compress(bytes(10 * MEGABYTE)) * 8,
    "gzip in an avro file": lambda: gzip.compress(avro(ID, GOOD) + bytes(48 * MEGABYTE)),
    **{codec: lambda codec=codec: bomb(codec) for codec in ("deflate", "zstandard", "snappy", "bzip2", "xz")},  # type: ignore[misc]
    "a snappy block of a false length": lambda: head(ID, "snappy") + block(b"\xff\xff\xff\xff\x07" + bytes(8), 1),
    "a footer of a false length": false_footer,
    "a footer that is longer than its file": lambda: b"PAR1" + bytes(96) + struct.pack("<I", 1 << 31) + b"PAR1",
    "columns of one value": many_rows,
    "JSON nested deep": lambda: b'{"payload": ' + b"[" * 5_000_000,
    "JSON of objects nested deep": lambda: b'{"payload": ' + b'{"a":' * 1_000_000,
    "JSON of ever other fields": lambda: b"\n".join(
        json.dumps({**event(0), "payload": {f"c{at * 10 + n}": 1 for n in range(10)}}).encode() for at in range(10_000)
    ),
}  # fmt: skip


def _read_all(pipe: Any) -> None:
    for name, made in FILES.items():
        body = made()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.suppress(FileBroken):
            peek(body[: 256 << 10], "a.json", READING)
        try:
            found = read_events(body, "a.json", READING)
            result: Any = ([(bad.reason, bad.detail) for bad in found.bad], sum(len(one.rows) for one in found.events))
        except FileBroken as exc:
            result = ([(Reason.FILE_BROKEN, exc.parameters["detail"])], 0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        pipe.send((name, result, grown))
    pipe.send(None)


@pytest.fixture(scope="module")
def read() -> dict[str, tuple[list[tuple[Reason, str]], int, int]]:
    """What became of each file, in a process of its own: faults, events, megabytes by which it grew."""
    context = multiprocessing.get_context("spawn")
    mine, others = context.Pipe(duplex=False)
    child = context.Process(target=_read_all, args=(others,))
    child.start()
    others.close()
    found: dict[str, tuple[list[tuple[Reason, str]], int, int]] = {}
    try:
        while mine.poll(60) and (one := mine.recv()) is not None:
            name, (bad, events), grown = one
            found[name] = (bad, events, grown)
    except EOFError:
        pass
    finally:
        child.kill()
        child.join()
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_would_stop_or_fill_its_reader_is_one_fault(read: Any, name: str) -> None:
    assert name in read, f"the reader did not survive it, or hangs: {name}"
    bad, _, grown = read[name]
    assert len(bad) == 1 and bad[0][0] in (Reason.FILE_BROKEN, Reason.CORRUPT_EVENT, Reason.NO_KEY_VALUE)
    assert grown < 300


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "snappy", "bzip2", "xz"])
def test_the_blocks_before_one_that_unpacks_to_too_much_are_kept(read: Any, codec: str) -> None:
    ((reason, detail),), events, _ = read[codec]
    assert events == len(GOOD) and reason is Reason.FILE_BROKEN and "max_unpacked_bytes" in detail


def test_a_file_may_unpack_to_what_the_setting_says() -> None:
    body = gzip.compress(json_lines(GOOD))
    size = len(json_lines(GOOD))
    assert len(read_events(body, "a", Reading(max_unpacked_bytes=size)).events[0].rows) == len(GOOD)
    with pytest.raises(FileBroken):
        read_events(body, "a", Reading(max_unpacked_bytes=size - 1))
    assert len(read_events(json_lines(GOOD), "a", Reading(max_unpacked_bytes=10)).events[0].rows) == len(GOOD)


def test_the_first_event_of_a_zipped_file_is_found_behind_a_long_one() -> None:
    long = event(0, {"id": 0, "v": "x" * 3 * MEGABYTE})
    assert peek(gzip.compress(json_lines([long])), "a", Reading()) is not None
