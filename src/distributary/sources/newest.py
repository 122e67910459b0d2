"""What a source's newest records say of where they come from."""

from __future__ import annotations

import pyarrow as pa

ORIGIN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
    ]
)
