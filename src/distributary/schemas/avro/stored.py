"""Avro records as they are stored: no logical type applied, for who knows other ones (Kafka Connect's)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.schemas.avro.columns import stored_type
from distributary.schemas.avro.decoder import AvroDecoder
from distributary.schemas.avro.payload import AvroSchema
from distributary.schemas.avro.tree import tree_of
from distributary.schemas.decoding import Rejected, Split

__all__ = ["StoredDecoder", "stored_decoder"]


class StoredDecoder(AvroDecoder):
    """Reads as `AvroDecoder` does; its columns have the types of `stored_type`."""

    def __init__(self, texts: tuple[str, ...], what: str) -> None:
        super().__init__(tree_of(texts, what))
        self.columns = pa.schema(list(stored_type(self._record)) if self._record.fields else [])

    def _split(self, count: int, decoded: Any, rejected: dict[int, Rejected]) -> Split:
        order = np.concatenate([np.zeros(0, np.int64), *decoded.at])
        if decoded.stored:
            records = pa.concat_arrays(decoded.stored) if len(decoded.stored) > 1 else decoded.stored[0]
            rows = pa.RecordBatch.from_arrays(records.flatten(), schema=self.columns)
        else:
            rows = pa.RecordBatch.from_pylist([], self.columns)
        if len(order) > 1 and (np.diff(order) < 0).any():
            ranks = np.argsort(order)
            rows, order = rows.take(pa.array(ranks)), order[ranks]
        positions = None if len(order) == count else pa.array(order, pa.int64())
        return Split(rows, positions, [rejected[place] for place in sorted(rejected)])


def stored_decoder(schema: AvroSchema) -> StoredDecoder:
    """The decoder of a schema, from this process's cache. Raises SchemaBroken."""
    return _decoder(schema.texts, f"id {schema.id}")


@lru_cache(maxsize=1_024)
def _decoder(texts: tuple[str, ...], what: str) -> StoredDecoder:
    return StoredDecoder(texts, what)
