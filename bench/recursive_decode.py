"""Messages that contain themselves: what is gained by leaving only the inner ones to the official library?"""

from __future__ import annotations

import random
import time
from statistics import median
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench.result import Case, Result
from bench.workload import Place, WrongRows
from distributary.schemas.protobuf.protobuf import MessageDecoder
from distributary.schemas.registry.compile import compile_text

NOTE = (
    "Payloads to Arrow in one process, median of the rounds: rows per second (ours) against the official library "
    "alone (other), which read all rows of such schemas before. Each round decodes both, in turn. Checked: both give "
    "the same rows. Plain log records set no inner messages; nested ones have three lists of values; the tree has 15 "
    "nodes; the Struct has five keys."
)

_LOGS = """
message Record { fixed64 at = 1; int32 severity = 2; string text = 3; AnyValue body = 5; repeated KeyValue about = 6; }
message AnyValue { oneof value { string s = 1; bool b = 2; int64 i = 3; double d = 4; Values list = 5;
  KeyValues map = 6; bytes raw = 7; } }
message Values { repeated AnyValue values = 1; }
message KeyValues { repeated KeyValue values = 1; }
message KeyValue { string key = 1; AnyValue value = 2; }
"""
_TREE = "message Node { int64 id = 1; string name = 2; repeated Node kids = 3; }"
_STRUCT = 'import "google/protobuf/struct.proto"; message Event { int64 id = 1; google.protobuf.Struct more = 2; }'


def run(place: Place) -> Result:
    rows, rounds = place.size(20_000, 50), place.size(5, 1)
    cases = (
        _case("log records, plain", _LOGS, "Record", lambda m, rnd: _log(m, rnd, nested=False), rows, rounds),
        _case("log records, nested", _LOGS, "Record", lambda m, rnd: _log(m, rnd, nested=True), rows, rounds),
        _case("a tree", _TREE, "Node", lambda m, rnd: _tree(m, rnd, 3), rows, rounds),
        _case("a Struct", _STRUCT, "Event", _struct, rows, rounds),
    )
    return Result("recursive_decode", NOTE, cases)


def _log(message: Any, rnd: random.Random, *, nested: bool) -> None:
    message.at, message.severity, message.text = rnd.getrandbits(60), rnd.randint(1, 24), "INFO"
    message.body.s = f"request {rnd.getrandbits(32)} took {rnd.randint(1, 900)} ms"
    for n in range(6):
        about = message.about.add(key=f"attribute.{n}")
        if n % 2:
            about.value.i = rnd.getrandbits(40)
        else:
            about.value.s = f"value {rnd.getrandbits(20)}"
    for n in range(3 * nested):
        values = message.about.add(key=f"list.{n}").value.list.values
        for _ in range(3):
            values.add().list.values.add().i = rnd.getrandbits(20)


def _tree(message: Any, rnd: random.Random, levels: int) -> None:
    message.id, message.name = rnd.getrandbits(40), f"node {rnd.getrandbits(20)}"
    for _ in range(2 * (levels > 0)):
        _tree(message.kids.add(), rnd, levels - 1)


def _struct(message: Any, rnd: random.Random) -> None:
    message.id = rnd.getrandbits(40)
    message.more.update({"a": rnd.getrandbits(20), "b": "text", "c": True, "d": [1, 2, 3], "e": {"f": None}})


def _case(label: str, body: str, root: str, fill: Any, rows: int, rounds: int) -> Case:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compile_text(f'syntax = "proto3"; {body}').descriptor_set).file:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName(root)
    rnd, class_ = random.Random(7), GetMessageClass(descriptor)
    payloads = []
    for _ in range(rows):
        message = class_()
        fill(message, rnd)
        payloads.append(message.SerializeToString())
    values = pa.array(payloads, pa.binary())
    ours, official = MessageDecoder(descriptor), MessageDecoder(descriptor)
    official._ptars = None
    if not ours.decode(values).rows.equals(official.decode(values).rows):
        raise WrongRows(f"{label}: the decoders do not agree")
    fast, slow = [], []
    for _ in range(rounds):
        fast.append(_rows_per_sec(ours, values))
        slow.append(_rows_per_sec(official, values))
    details = {"rows": rows, "bytes a row": round(sum(map(len, payloads)) / rows), "decoder": ours.engine}
    return Case(label, "rows/s", median(fast), median(slow), less_is_better=False, details=details)


def _rows_per_sec(decoder: MessageDecoder, values: pa.BinaryArray) -> float:
    began = time.perf_counter()
    decoder.decode(values)
    return len(values) / (time.perf_counter() - began)
