"""Random schemas, messages, damaged bytes and headers, read by the product and judged by the official library.

The judge shares nothing with what it judges: schemas are descriptors that no compiler has seen, headers are read byte
by byte, and rows are compared with what the official library's messages of the writer's own descriptors say.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf import any_pb2, duration_pb2, json_format, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from distributary.errors import SchemaBroken
from distributary.schemas.protobuf.framing import split_frames
from distributary.schemas.protobuf.protobuf import BadIndex, decoder_for
from distributary.schemas.registry.compile import ProtobufSchema

HELP = "payloads and frames against the official protobuf library"
ROWS = 400
"""Records of one schema."""
F = FieldDescriptorProto
SCALARS: list[Any] = [kind for kind in range(1, 19) if kind not in (F.TYPE_GROUP, F.TYPE_MESSAGE, F.TYPE_ENUM)]
_OTHERS = (F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_BOOL)
INTEGERS: list[Any] = [kind for kind in SCALARS if kind not in _OTHERS]
IMPORTS = [module.DESCRIPTOR for module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)]
WELL_KNOWN = [
    f".google.protobuf.{name}"
    for name in (
        *("Timestamp", "Duration", "Any", "Struct", "Value", "ListValue", "Timestamp", "Duration"),
        *("DoubleValue", "Int64Value", "UInt64Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue"),
    )
]


class Difference(Exception):
    """The product and the official library do not agree."""


@dataclass
class Counts:
    schemas: int = 0
    records: int = 0
    good: int = 0
    unsure: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    decoders: Counter[str] = field(default_factory=Counter)


# -- schemas -----------------------------------------------------------------------------------------------


def random_file(rnd: random.Random) -> FileDescriptorProto:
    proto2 = rnd.random() < 0.3
    file = FileDescriptorProto(
        name="fuzz.proto", package=rnd.choice(["", "f.z"]), syntax="proto2" if proto2 else "proto3"
    )
    file.dependency.extend(found.name for found in IMPORTS)
    scope = f".{file.package}." if file.package else "."
    enum = file.enum_type.add(name="Kind")
    for name, number in (("ZERO", 0), ("ONE", 1), ("BIG", 70_000), ("NEGATIVE", -3)):
        enum.value.add(name=name, number=number)
    names = [f"M{n}" for n in range(rnd.randint(1, 4))]
    recursive = rnd.random() < 0.3
    for at, name in enumerate(names):
        message = file.message_type.add(name=name)
        targets = names if recursive else names[at + 1 :]
        _fields(rnd, message, [scope + target for target in targets], scope, proto2)
        if rnd.random() < 0.3:
            _fields(rnd, message.nested_type.add(name="In"), [scope + t for t in names[at + 1 :]], scope, proto2)
        if proto2 and rnd.random() < 0.3:
            message.extension_range.add(start=6_000, end=6_100)
    return file


def _fields(rnd: random.Random, message: DescriptorProto, targets: list[str], scope: str, proto2: bool) -> None:
    numbers = rnd.sample([*range(1, 18), 100, 2_047, 2_048, 30_000], rnd.randint(0 if rnd.random() < 0.05 else 1, 8))
    for number in numbers:
        one = message.field.add(name=f"x{number}", number=number, label=F.LABEL_OPTIONAL)
        _type(rnd, one, targets, scope)
        shape = rnd.choice(["plain", "plain", "plain", "repeated", "repeated", "map", "oneof"])
        if shape == "repeated":
            one.label = F.LABEL_REPEATED
            if one.type not in (F.TYPE_MESSAGE, F.TYPE_STRING, F.TYPE_BYTES):
                one.options.packed = rnd.random() < 0.5
        elif shape == "map":
            entry = message.nested_type.add(name=f"X{number}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=rnd.choice([*INTEGERS, F.TYPE_STRING]))
            value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=one.type)
            if one.type_name:
                value.type_name = one.type_name
            one.label, one.type = F.LABEL_REPEATED, F.TYPE_MESSAGE
            one.type_name = entry.name  # resolved from the message outwards
        elif shape == "oneof":
            one.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"o{number}")
            other = message.field.add(name=f"y{number}", number=number + 40_000, label=F.LABEL_OPTIONAL)
            other.type, other.oneof_index = rnd.choice(SCALARS), one.oneof_index
        elif proto2 and rnd.random() < 0.2:
            one.label = F.LABEL_REQUIRED
        elif proto2 and one.type in INTEGERS and rnd.random() < 0.4:
            one.default_value = str(rnd.randint(0, 300))


def _type(rnd: random.Random, one: FieldDescriptorProto, targets: list[str], scope: str) -> None:
    what = rnd.random()
    if what < 0.2 and targets:
        one.type, one.type_name = F.TYPE_MESSAGE, rnd.choice(targets)
    elif what < 0.4:
        one.type, one.type_name = F.TYPE_MESSAGE, rnd.choice(WELL_KNOWN)
    elif what < 0.5:
        one.type, one.type_name = F.TYPE_ENUM, f"{scope}Kind"
    else:
        one.type = rnd.choice(SCALARS)


# -- bytes -------------------------------------------------------------------------------------------------


def fill(rnd: random.Random, message: Any, depth: int = 0) -> Any:
    """A message with random values in random fields."""
    for one in message.DESCRIPTOR.fields:
        if rnd.random() < 0.4 or depth > 5:
            continue
        value = getattr(message, one.name)
        target = one.message_type
        if target is not None and target.GetOptions().map_entry:
            for _ in range(rnd.randint(0, 3)):
                key = scalar(rnd, target.fields_by_name["key"])
                if target.fields_by_name["value"].message_type is not None:
                    fill(rnd, value[key], depth + 1)
                else:
                    value[key] = scalar(rnd, target.fields_by_name["value"])
        elif target is not None and one.is_repeated:
            for _ in range(rnd.randint(0, 3)):
                fill(rnd, value.add(), depth + 1)
        elif target is not None:
            value.SetInParent()
            fill(rnd, value, depth + 1)
        elif one.is_repeated:
            value.extend(scalar(rnd, one) for _ in range(rnd.choice([0, 1, 2, 3, 30])))
        else:
            setattr(message, one.name, scalar(rnd, one))
    if message.DESCRIPTOR.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        _instant(rnd, message)
    return message


def _instant(rnd: random.Random, message: Any) -> None:
    """Mostly a time of our days; at the edges and beyond them now and then."""
    edges = [0, -1, 1, 253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801, 315_576_000_000]
    message.seconds = rnd.randint(-(10**9), 2 * 10**9) if rnd.random() < 0.9 else rnd.choice([*edges, -(2**63)])
    message.nanos = rnd.randint(0, 999_999_999) if rnd.random() < 0.9 else rnd.choice([-1, 10**9, -(10**9), 2**31 - 1])


def scalar(rnd: random.Random, one: FieldDescriptor) -> Any:
    kinds = FieldDescriptor
    if one.type == kinds.TYPE_STRING:
        return rnd.choice(["", "a", "é", "x" * rnd.choice([3, 127, 128, 400]), "\U0001f3ae"])
    if one.type == kinds.TYPE_BYTES:
        return rnd.randbytes(rnd.choice([0, 1, 4, 200]))
    if one.cpp_type in (kinds.CPPTYPE_DOUBLE, kinds.CPPTYPE_FLOAT):
        return rnd.choice([0.0, -0.0, 1.5, -3.0, 2.0**60, math.inf, math.nan])
    if one.type == kinds.TYPE_BOOL:
        return rnd.random() < 0.5
    if one.enum_type is not None:
        return rnd.choice([0, 1, 70_000, -3] + ([] if one.enum_type.is_closed else [9, -9]))
    wide = one.cpp_type in (kinds.CPPTYPE_INT64, kinds.CPPTYPE_UINT64)
    value = rnd.getrandbits(rnd.choice([1, 3, 7, 8, 14, 15, 28, 31] + ([33, 56, 62, 63] if wide else [])))
    signed = one.cpp_type in (kinds.CPPTYPE_INT32, kinds.CPPTYPE_INT64)
    return -value if signed and rnd.random() < 0.4 else value


def wire(rnd: random.Random, numbers: list[int]) -> bytes:
    """Hand-made records, right or wrong."""
    out = b""
    for _ in range(rnd.randint(1, 4)):
        number, kind = rnd.choice([*numbers, 1, 6_001, 2**29 - 1]), rnd.choice([0, 1, 2, 2, 2, 3, 5, 6])
        out += varint(number << 3 | kind)
        if kind == 0:
            out += rnd.choice([b"\1", b"\0", b"\x80\0", varint(2**64 - 1), varint(2**31), b"\xff" * 10])
        elif kind == 2:
            inner = rnd.choice([b"", b"\x08\1", b"\x0a\1a\x12\0", rnd.randbytes(rnd.randint(0, 9)), wire(rnd, numbers)])
            out += varint(len(inner) + rnd.choice([0, 0, 0, 0, 1])) + inner
        elif kind == 3:
            out += rnd.choice([b"", b"\x08\1"]) + varint(number << 3 | 4)
        else:
            out += rnd.randbytes({1: 8, 5: 4}.get(kind, 0))
    return out


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def damaged(rnd: random.Random, payload: bytes, other: bytes, numbers: list[int]) -> bytes:
    at = rnd.randint(0, len(payload))
    match rnd.randrange(8):
        case 0:
            return payload[:at]
        case 1:
            return payload + other
        case 2:
            return payload[:at] + rnd.randbytes(rnd.randint(1, 3)) + payload[at + rnd.randint(0, 2) :]
        case 3:
            return wire(rnd, numbers)
        case 4:
            return payload + wire(rnd, numbers)
        case 5:
            return wire(rnd, numbers) + payload
        case 6 if payload:
            at = rnd.randrange(len(payload))
            return payload[:at] + bytes([payload[at] ^ 1 << rnd.randrange(8)]) + payload[at + 1 :]
    return rnd.randbytes(rnd.randint(0, 20))


def framed(rnd: random.Random, schema_id: int, path: list[int], payload: bytes) -> bytes:
    steps = [len(path), *path]
    if rnd.random() < 0.05:
        steps = [rnd.choice([-1, 0, 1, 2, 33, 2**31]), *(rnd.choice([-1, 0, 1, 5, 2**31 - 1]) for _ in range(2))]
    written = b"".join(varint((s << 1 ^ s >> 63) & 2**64 - 1) for s in steps)
    if path == [0] and rnd.random() < 0.8:
        written = b"\0"
    record = struct.pack(">bI", 0, schema_id if rnd.random() < 0.97 else rnd.getrandbits(32)) + written + payload
    if rnd.random() < 0.03:
        return rnd.choice([record[: rnd.randint(0, 8)], b"\1" + record[1:], rnd.randbytes(rnd.randint(0, 12))])
    return record


# -- the judge ---------------------------------------------------------------------------------------------


class Refused(Exception):
    """The row must be set aside."""


class Unsure(Exception):
    """The official library does not show what it has read: nothing can be said."""


def header(record: bytes) -> tuple[int, str, bytes]:
    """Schema id, path, body. Raises Refused."""
    if len(record) < 6 or record[0] != 0:
        raise Refused
    schema_id = int.from_bytes(record[1:5], "big", signed=True)
    count, at = _signed_varint(record, 5)
    if schema_id < 0 or count < 0 or count > 32:
        raise Refused
    path = []
    for _ in range(count):
        step, at = _signed_varint(record, at)
        if not 0 <= step < 2**31:
            raise Refused
        path.append(step)
    return schema_id, ".".join(map(str, path or [0])), record[at:]


def _signed_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise Refused
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise Refused


def message_at(file: FileDescriptorProto, path: str) -> str | None:
    """Full name of the message at an index path, where map entries do not count."""
    messages, scope = list(file.message_type), file.package
    for step in map(int, path.split(".")):
        real = [message for message in messages if not message.options.map_entry]
        if step >= len(real):
            return None
        scope = f"{scope}.{real[step].name}" if scope else real[step].name
        messages = list(real[step].nested_type)
    return scope


def row(message: Any, path: tuple[str, ...], pool: DescriptorPool) -> dict[str, Any]:
    mismatch(message)
    if not message.DESCRIPTOR.fields:
        return {"_empty": True}
    return {one.name: column(message, one, path, pool) for one in message.DESCRIPTOR.fields}


def column(message: Any, one: FieldDescriptor, path: tuple[str, ...], pool: DescriptorPool) -> Any:
    value = getattr(message, one.name)
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        key, item = (one.message_type.fields_by_name[part] for part in ("key", "value"))
        return {single(key, k, path, pool): single(item, value[k], path, pool) for k in value}
    if one.is_repeated:
        return [single(one, item, path, pool) for item in value]
    if one.has_presence and not message.HasField(one.name):
        return value if one.has_default_value else None
    return single(one, value, path, pool)


def single(one: FieldDescriptor, value: Any, path: tuple[str, ...], pool: DescriptorPool) -> Any:
    if one.enum_type is not None:
        names = one.enum_type.values_by_number
        return names[value].name if value in names else str(value)
    if one.message_type is None:
        if one.type == FieldDescriptor.TYPE_STRING and isinstance(value, bytes):
            raise Refused  # proto2 does not check its strings
        return value
    name = one.message_type.full_name
    if name.startswith("google.protobuf."):
        return well_known(name, value, pool)
    if name in path:
        mismatch_below(value)
        return ("cut", value)
    return row(value, (*path, name), pool)


def well_known(name: str, value: Any, pool: DescriptorPool) -> Any:
    mismatch_below(value)
    match name.removeprefix("google.protobuf."):
        case "Timestamp":
            if not (-62_135_596_800 <= value.seconds <= 253_402_300_799 and 0 <= value.nanos < 10**9):
                raise Refused
            return (value.seconds * 10**9 + value.nanos) // 1000
        case "Duration":
            sign = value.seconds * value.nanos < 0
            if sign or not (abs(value.seconds) <= 315_576_000_000 and abs(value.nanos) < 10**9):
                raise Refused
            return (value.seconds * 10**9 + value.nanos) // 1000
        case "Any":
            return {"type_url": value.type_url, "value": value.value, "json": any_json(value, pool)}
        case "Struct" | "Value" | "ListValue":
            return ("json", plain_json(value))
    return value.value


def any_json(value: Any, pool: DescriptorPool) -> str | None:
    try:
        inner = GetMessageClass(pool.FindMessageTypeByName(value.type_url.rpartition("/")[2])).FromString(value.value)
        return json_format.MessageToJson(inner, indent=None, preserving_proto_field_name=True, descriptor_pool=pool)
    except Exception:
        return None


def plain_json(value: Any) -> Any:
    """By the accessors of the parsed message; json_format refuses numbers that are not finite."""
    match value.DESCRIPTOR.name:
        case "Struct":
            return {key: plain_json(item) for key, item in value.fields.items()}
        case "ListValue":
            return [plain_json(item) for item in value.values]
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return (
                number if math.isfinite(number) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")
            )
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return plain_json(value.struct_value)
        case "list_value":
            return plain_json(value.list_value)
    return None


def mismatch(message: Any) -> None:
    """Fields of the schema among those that the library did not know were written by another schema."""
    known = message.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
        one = known.get(unknown.field_number)
        if one is None:
            continue
        is_map = one.message_type is not None and one.message_type.GetOptions().map_entry
        raise Unsure if one.enum_type is not None or is_map else Refused


def mismatch_below(message: Any) -> None:
    mismatch(message)
    for one, value in message.ListFields():
        if one.message_type is None:
            continue
        if not one.message_type.GetOptions().map_entry:
            inner = list(value) if one.is_repeated else [value]
        elif one.message_type.fields_by_name["value"].message_type is not None:
            inner = list(value.values())
        else:
            inner = []
        for part in inner:
            mismatch_below(part)


def expected(descriptor: Descriptor, body: bytes, pool: DescriptorPool) -> dict[str, Any]:
    """The row. Raises Refused, Unsure."""
    try:
        message = GetMessageClass(descriptor).FromString(body)
    except DecodeError:
        raise Refused from None
    try:
        return row(message, (descriptor.full_name,), pool)
    except UnicodeDecodeError:  # a proto2 string that is a map's key
        raise Refused from None


def same(want: Any, got: Any) -> bool:
    if isinstance(want, tuple):
        kind, value = want
        if kind == "json":
            return isinstance(got, str) and same(value, json.loads(got))
        again = type(value)()
        return isinstance(got, bytes) and bool(again.MergeFromString(got) >= 0) and _bytes(again) == _bytes(value)
    if isinstance(want, dict):
        if isinstance(got, list):  # a map
            return len(got) == len(want) and all(k in want and same(want[k], v) for k, v in got)
        return isinstance(got, dict) and want.keys() == got.keys() and all(same(want[k], got[k]) for k in want)
    if isinstance(want, list):
        return isinstance(got, list) and len(want) == len(got) and all(map(same, want, got))
    if isinstance(want, float) and isinstance(got, int | float):
        return repr(want) == repr(float(got))
    return (type(want) is not bool and want == got) or want is got


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializePartialToString(deterministic=True))


# -- rounds ------------------------------------------------------------------------------------------------


def check(seed: str, counts: Counts) -> None:
    """One schema and its records. Raises Difference."""
    rnd = random.Random(seed)
    file, pool = random_file(rnd), DescriptorPool()
    files = FileDescriptorSet()
    for module in IMPORTS:
        module.CopyToProto(files.file.add())
    files.file.add().CopyFrom(file)
    for one in files.file:
        pool.Add(one)
    schema = ProtobufSchema(rnd.randint(1, 10**6), "fuzz.proto", files.SerializeToString())
    paths = [[n] for n in range(len(file.message_type))] + [[n, 0] for n in range(len(file.message_type))]
    there = [path for path in paths if message_at(file, ".".join(map(str, path)))]
    path = rnd.choice(there if rnd.random() < 0.97 else [*paths, [9]])
    name = message_at(file, ".".join(map(str, path))) or message_at(file, "0")
    descriptor = pool.FindMessageTypeByName(str(name))
    numbers = [one.number for one in descriptor.fields]
    good = [fill(rnd, GetMessageClass(descriptor)()).SerializePartialToString() for _ in range(ROWS // 4)]
    payloads = [rnd.choice(good) for _ in range(ROWS)]
    payloads = [damaged(rnd, p, rnd.choice(good), numbers) if rnd.random() < 0.5 else p for p in payloads]
    records = [framed(rnd, schema.id, path, payload) for payload in payloads]
    counts.schemas += 1
    counts.records += len(records)
    _compare(seed, records, schema, file, pool, counts)


def _compare(
    seed: str,
    records: list[bytes],
    schema: ProtobufSchema,
    file: FileDescriptorProto,
    pool: DescriptorPool,
    counts: Counts,
) -> None:
    frames = split_frames(pa.array(records, pa.binary()))
    bodies: dict[str, list[tuple[bytes, bytes]]] = {}
    for record, id, index, body, reason in zip(
        records,
        *(part.to_pylist() for part in (frames.schema_id, frames.index, frames.body, frames.reason)),
        strict=True,
    ):
        try:
            want = header(record)
        except Refused:
            if reason is None:
                raise Difference(f"{seed}: header of {record.hex()} is {id}, {index}") from None
            counts.reasons[reason] += 1
            continue
        if (id, index, body) != want:
            raise Difference(f"{seed}: header of {record.hex()} is {id}, {index}, {reason}, not {want[:2]}")
        if id == schema.id:
            bodies.setdefault(index, []).append((record, body))
    for index, found in sorted(bodies.items()):
        _compare_rows(seed, index, found, schema, file, pool, counts)


def _compare_rows(
    seed: str,
    index: str,
    records: list[tuple[bytes, bytes]],
    schema: ProtobufSchema,
    file: FileDescriptorProto,
    pool: DescriptorPool,
    counts: Counts,
) -> None:
    name = message_at(file, index)
    try:
        decoder = decoder_for.__wrapped__(schema, index)
    except BadIndex:
        if name is not None:
            raise Difference(f"{seed}: {index} is {name}, and not found") from None
        counts.reasons["BAD_INDEX"] += len(records)
        return
    except SchemaBroken:  # too many fields
        counts.reasons["BROKEN_SCHEMA"] += len(records)
        return
    if name != decoder.full_name:
        raise Difference(f"{seed}: {index} is {name}, not {decoder.full_name}")
    counts.decoders[decoder.engine] += len(records)
    descriptor = pool.FindMessageTypeByName(name)
    loose = _is_loose(descriptor, set())
    for (_, body), got in zip(records, _decoded(decoder, [body for _, body in records]), strict=True):
        try:
            want = expected(descriptor, body, pool)
        except Unsure:
            counts.unsure += 1
        except Refused:
            if isinstance(got, dict):
                raise Difference(f"{seed}: {name} {body.hex()} is {got}, and must be refused") from None
            counts.reasons[got] += 1
        else:
            if isinstance(got, str) and loose and got in ("SCHEMA_MISMATCH", "CORRUPT_PAYLOAD"):
                counts.unsure += 1
            elif not isinstance(got, dict) or not same(want, got):
                raise Difference(f"{seed}: {name} {body.hex()} is {got}, not {want}")
            else:
                counts.good += 1


def _is_loose(descriptor: Descriptor, seen: set[str]) -> bool:
    """Whether the library's own classes hide some faults: what a map's entry holds besides, strings of proto2."""
    seen.add(descriptor.full_name)
    for one in descriptor.fields:
        target = one.message_type
        if target is not None and (target.GetOptions().map_entry or target.full_name == "google.protobuf.Struct"):
            return True
        if target is not None and target.full_name not in seen and _is_loose(target, seen):
            return True
    return any(one.type == FieldDescriptor.TYPE_STRING for one in descriptor.fields) and _is_proto2(descriptor)


def _is_proto2(descriptor: Descriptor) -> bool:
    file = FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return file.syntax in ("", "proto2")


def _decoded(decoder: Any, bodies: list[bytes]) -> list[Any]:
    """For each body its row, or why there is none."""
    split = decoder.decode(pa.array(bodies, pa.binary()))
    out: list[Any] = [None] * len(bodies)
    rows = split.rows.to_struct_array()
    rows = rows.cast(_plain(rows.type)).to_pylist()
    positions = range(len(bodies)) if split.positions is None else split.positions.to_pylist()
    for at, found in [*zip(positions, rows, strict=True), *((r.position, str(r.reason)) for r in split.rejected)]:
        if out[at] is not None:
            raise Difference(f"row {at} comes twice")
        out[at] = found
    if None in out:
        raise Difference(f"row {out.index(None)} is lost")
    return out


def _plain(kind: pa.DataType) -> pa.DataType:
    """Times as numbers, for Python's calendar is short; decimals as they are."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _plain(one.type)) for one in kind])
    return kind


def rounds(seed: str, seconds: float, records: int) -> Iterator[str]:
    """Seeds of rounds until the time is up or there are enough records; 0 for no end of one of them."""
    began, at = time.monotonic(), 0
    while (not seconds or time.monotonic() - began < seconds) and (not records or at * ROWS < records):
        yield f"{seed}:{at}"
        at += 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=0, help="how many records; 0: until the time is up")
    parser.add_argument("--round", help="one round alone, by the seed that a difference names")


def main(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """What was done, for the JSON, and the exit code."""
    counts, differences = Counts(), []
    began = time.monotonic()
    seconds = arguments.seconds if arguments.seconds or arguments.records else 60.0
    seeds = [arguments.round] if arguments.round else rounds(str(arguments.seed), seconds, arguments.records)
    for seed in seeds:
        try:
            check(seed, counts)
        except Difference as difference:
            differences.append(str(difference)[:2_000])
    return {
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began, 1),
        "schemas": counts.schemas,
        "records": counts.records,
        "good": counts.good,
        "set_aside": dict(sorted(counts.reasons.items())),
        "nothing_to_compare": counts.unsure,
        "decoders": dict(counts.decoders),
        "differences": len(differences),
        "first_differences": differences[:10],
    }, int(bool(differences))
