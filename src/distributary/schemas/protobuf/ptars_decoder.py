"""Payloads to Arrow with ptars (Rust): fast, and believed only where `weight` proves that nothing was overlooked.

What ptars 0.0.25 does with bytes it should refuse or read differently, found by experiment:

| payload                                        | ptars                      | here                              |
|------------------------------------------------|----------------------------|-----------------------------------|
| one corrupt payload in a list                  | ValueError for the list    | found by upb, chunk by chunk      |
| a length of nearly 2**64                       | panics (a BaseException)   | caught, as above                  |
| 100,000 nested unknown groups                  | overflows the stack (dies) | long payloads are parsed by upb   |
|                                                |                            | first, which stops at 100 levels  |
| known field, other wire type                   | skipped in silence         | longer than its values: suspect   |
| two members of a oneof, a map key twice        | both kept                  | suspect                           |
| a second wrapper or Timestamp, to be merged    | replaces the first         | does not occur: plain messages    |
| tags and lengths of up to 10 bytes             | accepted (upb: 5 bytes)    | longer than its values: suspect   |
| field number 536870911 in the schema           | allocates 8 GB             | not used for such schemas         |
| a group in the schema                          | null                       | not used for such schemas         |

A suspect row is not wrong: it is read again by the official library, which decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from ptars import PtarsConfig
from ptars._lib import ProtoRegistry

from distributary.schemas.protobuf.buffers import numbers, valid, without_nulls
from distributary.schemas.protobuf.columns import EMPTY, Field, MessageFields
from distributary.schemas.protobuf.official_decoder import Doubtful, OfficialDecoder
from distributary.schemas.protobuf.weight import HIDES, NO_PROOF, weigh
from distributary.schemas.protobuf.wire import ROOT, without_opaque

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LONG_BYTES: Final = 2_048
"""Payloads above this length are parsed by upb first: only they can nest groups deep enough to end the process
(80 bytes of stack a level, measured; threads may have as little as 256 kB)."""
CHUNK_ROWS: Final = 4_096
"""A list with a corrupt row is read again in chunks; the rows of a chunk that fails are checked one by one (1 us)."""
MAX_LEVELS: Final = 90
"""The official library takes 100 messages inside each other; a part of a row that is near it is left to the whole."""
_DOUBTFUL: Final = object()
_CONFIG: Final = PtarsConfig(list_value_name="element", enum_repr="int32")


@lru_cache(maxsize=512)
def _handler(file: bytes) -> Any:
    """A handler takes 50 kB and 0.05 ms to build, so that only those in use are kept."""
    return ProtoRegistry([file]).create_for_message(ROOT, _CONFIG)


def _or_none(call: Callable[[Any], Any], argument: Any) -> Any:
    """What ptars returns, or None where it refuses or panics; its panics are no `Exception`s."""
    try:
        return call(argument)
    except ValueError:
        return None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


class PtarsDecoder:
    """Decodes the rows that it can vouch for."""

    def __init__(self, message: MessageFields, official: Callable[[], OfficialDecoder]) -> None:
        """`official` gives the decoder of all else, which most schemas never need."""
        self._file = without_opaque(message).SerializeToString()
        self._message, self._official = message, official
        self._type = message.type

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, Ints]:
        """The rows that are proven right, as structs, and their positions. All others need the official library."""
        positions = np.arange(len(payloads))
        long_rows = np.asarray(pc.binary_length(payloads)) > LONG_BYTES
        if long_rows.any():
            positions = np.flatnonzero(~long_rows | self._parse(payloads, long_rows))
            payloads = payloads.take(pa.array(positions))
        raw = self._read(payloads)
        if raw is None:
            raw, read_positions = self._read_around(payloads)
            positions, payloads = positions[read_positions], payloads.take(pa.array(read_positions))
        opaque = _Opaque(self._official, self._message)
        sure = self._proven(raw, payloads, opaque)
        if not sure.all():
            raw, positions = raw.filter(pa.array(sure)), positions[sure]
        return _Columns(opaque).struct(self._message, self._type, raw), positions

    def _read_around(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, Ints]:
        """Rows that ptars reads and their positions, where it does not read all of them at once."""
        structs, read_positions, again = (
            [self._read(payloads[:0])],
            [np.zeros(0, np.int64)],
            np.zeros(len(payloads), bool),
        )
        for start in range(0, len(payloads), CHUNK_ROWS):
            window = slice(start, min(start + CHUNK_ROWS, len(payloads)))
            raw = self._read(payloads[window])
            if raw is None:
                again[window] = True
            else:
                structs.append(raw)
                read_positions.append(np.arange(window.start, window.stop))
        fine = np.flatnonzero(self._parse(payloads, again))
        raw = self._read(payloads.take(pa.array(fine)))
        if raw is not None:
            structs.append(raw)
            read_positions.append(fine)
        rows = np.concatenate(read_positions)
        order = np.argsort(rows)
        return pa.concat_arrays(structs).take(pa.array(order)), rows[order]

    def _parse(self, payloads: pa.BinaryArray, chosen_rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the chosen rows the official library accepts."""
        accepted = chosen_rows.copy()
        chosen = payloads.filter(pa.array(chosen_rows)).to_pylist()
        accepted[chosen_rows] = np.fromiter(map(self._official().parses, chosen), bool, len(chosen))
        return accepted

    def _read(self, payloads: pa.BinaryArray) -> pa.StructArray | None:
        """All rows as ptars reads them, or None if it fails on one of them."""
        batch = _or_none(_handler(self._file).array_to_record_batch, payloads)
        return None if batch is None else batch.to_struct_array()

    def _proven(self, raw: pa.StructArray, payloads: pa.BinaryArray, opaque: _Opaque) -> NDArray[np.bool_]:
        weight = weigh(self._message, _children(self._message, raw), len(raw), opaque.refused)
        same: NDArray[np.bool_] = weight.size == np.asarray(pc.binary_length(payloads))
        if isinstance(weight.slack, int) and not weight.slack:
            return same
        sure = same & (weight.slack < HIDES)
        # Equal bytes prove what equal length cannot.
        doubtful = np.flatnonzero(same & (weight.slack >= HIDES) & (weight.slack < NO_PROOF))
        if len(doubtful):
            rows = pa.array(doubtful)
            batch = pa.RecordBatch.from_struct_array(raw.take(rows))
            written = _or_none(_handler(self._file).record_batch_to_array, batch)
            sure[doubtful] = False if written is None else np.asarray(pc.equal(written, payloads.take(rows)))
        return sure


def depth(message: MessageFields) -> int:
    """Levels of messages inside each other, with map entries, above the deepest opaque column."""
    inner = [
        (member is not field) + (depth(member.message) if member.message is not None else 0)
        for field in message.fields
        for member in field.entry or (field,)
    ]
    return 1 + max(inner, default=0)


def _children(message: MessageFields, struct: Any) -> list[Any]:
    return [struct.field(f"f{field.number}") for field in message.fields]


class _Opaque:
    """The values of opaque columns of one batch: each distinct one is read once, by the official library."""

    def __init__(self, official: Callable[[], OfficialDecoder], message: MessageFields) -> None:
        self._official, self._message = official, message
        self._values: dict[str, dict[bytes, Any]] = {}

    def refused(self, field: Field, values: Any) -> NDArray[np.bool_]:
        """Which values (binary) the library does not vouch for."""
        parsed = self._values.setdefault(field.full_name, {})
        if values.null_count == len(values):
            return np.zeros(len(values), bool)
        read = self._official().opaque(field, MAX_LEVELS - depth(self._message))
        bodies = values.to_pylist()
        for value in bodies:
            if value is not None and value not in parsed:
                try:
                    parsed[value] = read(value)
                except (DecodeError, Doubtful, RecursionError):
                    parsed[value] = _DOUBTFUL
        bad = (value is not None and parsed[value] is _DOUBTFUL for value in bodies)
        return np.fromiter(bad, bool, len(bodies))

    def column(self, field: Field, type_: Any, values: Any) -> Any:
        """The column of values of which none is refused; what stands under a null may be."""
        parsed, bodies = self._values.setdefault(field.full_name, {}), values.to_pylist()
        if any(value is not None and value not in parsed for value in bodies):
            self.refused(field, values)  # a map's value that is absent is only now there, as an empty message
        return pa.array([None if value is None else parsed[value] for value in bodies], type_)


class _Columns:
    """Raw columns as the column rules want them."""

    def __init__(self, opaque: _Opaque) -> None:
        self._opaque = opaque

    def struct(self, message: MessageFields, type_: Any, raw: Any) -> Any:
        mask = raw.is_null() if raw.null_count else None
        children = zip(message.fields, _children(message, raw), strict=True)
        columns = [self._column(field, child) for field, child in children]
        return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)

    def _column(self, field: Field, raw: Any) -> Any:
        if field.entry is not None:
            keys, values = (self._column(member, raw.values.field(f"f{member.number}")) for member in field.entry)
            return pa.MapArray.from_arrays(raw.offsets, keys, values, type=field.type)
        if field.repeated:
            values = self._value(field, field.type.value_type, raw.values)
            return pa.ListArray.from_arrays(raw.offsets, values, type=field.type)
        values = self._value(field, field.type, raw if field.presence else without_nulls(raw))
        return values if field.default is None else pc.fill_null(values, pa.scalar(field.default, field.type))

    def _value(self, field: Field, type_: Any, raw: Any) -> Any:
        match field.form:
            case "scalar":
                return raw if raw.type == type_ else raw.cast(type_)
            case "enum":
                return _names(field, raw)
            case "wrapper":
                value = without_nulls(raw.field("f1"))
                value = pc.if_else(raw.is_valid(), value, None) if raw.null_count else value
                return value if value.type == type_ else value.cast(type_)
            case "timestamp" | "duration":
                return _instants(raw, type_)
            case "json" | "any" | "cut":
                return self._opaque.column(field, type_, raw)
            case "empty":
                mask = raw.is_null() if raw.null_count else None
                return pa.StructArray.from_arrays([pa.repeat(True, len(raw))], fields=list(EMPTY), mask=mask)
            case "struct":
                assert field.message is not None
                return self.struct(field.message, type_, raw)


def _names(field: Field, numbers: Any) -> Any:
    assert field.names is not None
    declared = pa.array(list(field.names), pa.int32())
    names = pa.array(list(field.names.values()), pa.string())
    names_of_values = names.take(pc.index_in(numbers, value_set=declared))
    return (
        names_of_values
        if names_of_values.null_count == numbers.null_count
        else pc.coalesce(names_of_values, numbers.cast(pa.string()))
    )


def _instants(raw: Any, type_: Any) -> Any:
    """Microseconds, rounded down; the range has been checked before."""
    seconds, nanos = numbers(raw.field("f1")), numbers(raw.field("f2"))
    present = valid(raw)
    mask = None if present is None else ~present
    return pa.array(seconds * 1_000_000 + nanos // 1_000, pa.int64(), mask=mask).cast(type_)
