"""A decoded row as the text of a JSON object, as `decoder` reads it again."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def object_text(row: Mapping[str, Any], kind: pa.StructType) -> bytes:
    """`row`: the values of a row whose columns are the fields of `kind`."""
    return msgspec.json.encode(_plain(row, kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of type `kind` as `payload.columns` reads it: decimals are numbers with all their digits, maps objects.

    JSON has no number for NaN and the infinities: as texts they set their record aside by the column's name.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return msgspec.Raw(format(value, "f").encode())
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
    if pa.types.is_struct(kind):
        return {f.name: _plain(value[f.name], f.type) for f in kind}
    if pa.types.is_map(kind):
        return {_name(name): _plain(item, kind.item_type) for name, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return str(value)


def _name(key: Any) -> str:
    """A map's key as protobuf writes it in JSON."""
    return str(key).lower() if isinstance(key, bool) else str(key)
