"""The fast way to many good records: serialise a few events per game, then give each copy its own instant.

A timestamp's seconds are a varint of five bytes at a place known per event, so a copy differs from its model in
those bytes alone and (game, event_timestamp) still names one record. Measured on one core: over a million a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from distributary_simulate.games.events import FIVE_BYTE_SEC, START_SEC, second_of
from distributary_simulate.games.records import COLUMNS_SCHEMA, VALUE_SCHEMA, Record

Ints = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_ROWS: Final = 100_000
#: At most this many distinct models per game and version, and one for every `COPIES` records of a small game.
MODELS: Final = 256
COPIES: Final = 16


@dataclass(frozen=True)
class Series:
    """Rows of one game and version: `rows` copies, round robin, of the models, from position `start` on."""

    models: Sequence[Record]
    rows: int
    start: int = 0


def models_for(rows: int) -> int:
    """How many distinct records to serialise for this many rows."""
    return max(1, min(MODELS, rows // COPIES))


def blocks(
    series: Sequence[Series], *, seed: int, columns: bool = False, block_rows: int = BLOCK_ROWS
) -> Iterator[pa.RecordBatch]:
    """All rows, in blocks of about `block_rows`. Each block holds its share of every series, shuffled by `seed`."""
    table = _Models(series, columns=columns)
    total = sum(game_series.rows for game_series in series)
    count = max(1, -(-total // block_rows))
    for block in range(count):
        models, seconds = [], []
        for first, game_series in zip(table.first, series, strict=True):
            share = np.arange(
                game_series.rows * block // count, game_series.rows * (block + 1) // count, dtype=np.int64
            )
            models.append(first + share % len(game_series.models))
            seconds.append(second_of(game_series.models[0].version, game_series.start) + share)
        order = np.random.default_rng([seed, block]).permutation(sum(map(len, models)))
        yield table.batch(np.concatenate(models)[order], np.concatenate(seconds)[order])


class _Models:
    """The models of all series in one list, and what Arrow needs to repeat them."""

    def __init__(self, series: Sequence[Series], *, columns: bool) -> None:
        self.first = np.cumsum([0, *(len(game_series.models) for game_series in series[:-1])])
        self.columns = columns
        records = [record for game_series in series for record in game_series.models]
        self.bytes = [_bytes_of(record, columns=columns) for record in records]
        self.length = np.array([len(record_bytes) for record_bytes in self.bytes], dtype=np.int64)
        self.patch = np.array([_seconds_at(b, r) for b, r in zip(self.bytes, records, strict=True)], dtype=np.int64)
        self.micros = np.array([record.timestamp_us % 1_000_000 for record in records], dtype=np.int64)
        if columns:
            self.game = pa.array([record.envelope.game_name for record in records], pa.string())
            self.schema_id = pa.array([record.envelope.schema_id for record in records], pa.int32())
        else:
            self.key = pa.array([record.key for record in records], pa.binary())

    def batch(self, models: Ints, seconds: Ints) -> pa.RecordBatch:
        payloads = self._copies(models, seconds)
        if self.columns:
            return pa.record_batch(
                [self.game.take(pa.array(models)), self.schema_id.take(pa.array(models)), payloads],
                schema=COLUMNS_SCHEMA,
            )
        instants = pa.array(seconds * 1_000_000 + self.micros[models]).cast(VALUE_SCHEMA.field("timestamp").type)
        return pa.record_batch([payloads, self.key.take(pa.array(models)), instants], schema=VALUE_SCHEMA)

    def _copies(self, models: Ints, seconds: Ints) -> pa.BinaryArray:
        if len(seconds) and not (int(seconds.min()) in FIVE_BYTE_SEC and int(seconds.max()) in FIVE_BYTE_SEC):
            raise ValueError("too many rows: the instants leave the range of a five-byte varint")
        ends = np.cumsum(self.length[models])
        if len(ends) and ends[-1] > 2**31 - 1:
            raise ValueError(f"a block of {ends[-1]} bytes is over Arrow's limit of 2 GiB; use smaller blocks")
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        data = np.frombuffer(bytearray(b"".join(map(self.bytes.__getitem__, models.tolist()))), dtype=np.uint8)
        places = offsets[:-1] + self.patch[models]
        for byte in range(5):
            data[places + byte] = (seconds >> (7 * byte) & 0x7F) | (0x80 if byte < 4 else 0)
        return pa.Array.from_buffers(pa.binary(), len(models), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _bytes_of(record: Record, *, columns: bool) -> bytes:
    record_bytes = record.envelope.payload if columns else record.value
    assert record_bytes is not None and record.fault is None, "models are good records"
    return record_bytes


def _seconds_at(record_bytes: bytes, record: Record) -> int:
    """Where the five bytes of the seconds stand: behind their tag, as field 1 of the timestamp."""
    second = record.timestamp_us // 1_000_000
    varint = bytes([*(second >> (7 * byte) & 0x7F | 0x80 for byte in range(4)), second >> 28])
    # The first hit is the right one: only names precede it, and its third byte on is not valid in UTF-8 text.
    return record_bytes.index(b"\x08" + varint) + 1


assert START_SEC in FIVE_BYTE_SEC
