"""Does a table's row say what its JSON record says, where the pipeline file alone names the columns?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from distributary.audit.judge.json import ObjectSaid, read_as

_PLAIN: Final = {"string": "string", "bigint": "integer"}


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(0, [0], the payload): there is no header."""
    return 0, [0], value


def reader(schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], ObjectSaid]:
    """What reads records. `schema.columns`: (path, type) of each column. Raises ValueError."""
    return read_as(
        "record", {path: _PLAIN[kind] for path, kind in schema.columns if "." not in path and kind in _PLAIN}
    )
