"""How data files are compressed.

Snappy, which costs least. Files of change events have a sequence number in each row, 110 digits of hex: Zstandard gives
a digit its four bits, which Snappy cannot, and what a number has in common with the one before it is left out
(DELTA_BYTE_ARRAY). Such files are half as large, for a tenth of a microsecond a row
(`make bench ONLY=merged_row_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from distributary.changes.digits import NUMBER

LEVEL = 1
DELTA = "DELTA_BYTE_ARRAY"
"""Parquet format, "Encodings"; read by Spark since 3.3, DuckDB, Polars, Arrow and arrow-rs."""


def sequence_columns(fields: Iterable[pa.Field]) -> list[str]:
    """Columns that hold sequence numbers of events, as Parquet names them."""
    structs = (field for field in fields if pa.types.is_struct(field.type))
    return [f"{field.name}.{NUMBER}" for field in structs if field.type.get_field_index(NUMBER) >= 0]


def codec_of(schema: pa.Schema) -> str:
    return "zstd" if sequence_columns(schema) else "snappy"


def packing(schema: pa.Schema, dictionary: bool | Sequence[str]) -> dict[str, Any]:
    """Settings of pyarrow's writer. `dictionary`: True for all columns, or those whose values repeat."""
    numbers = sequence_columns(schema)
    if not numbers:
        return {"compression": "snappy", "use_dictionary": dictionary}
    settings: dict[str, Any] = {"compression": "zstd", "compression_level": LEVEL, "use_dictionary": dictionary}
    if not isinstance(dictionary, bool):
        # Arrow takes an encoding only for a column without a dictionary.
        settings["use_dictionary"] = [name for name in dictionary if name not in numbers]
        settings["column_encoding"] = dict.fromkeys(numbers, DELTA)
    return settings
