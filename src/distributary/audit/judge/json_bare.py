"""Does a table's row say what its JSON record says, where the pipeline file alone names the columns?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from distributary.audit.judge.json import JsonPayload, read_as
from distributary.audit.judge.likeness import moment
from distributary.audit.judge.plain_values import Moment

_PLAIN: Final = {"string": "string", "bigint": "integer"}


@dataclass(frozen=True)
class BareJsonPayload(JsonPayload):
    """`times`: fields whose column is a time, however it is spelled in the record."""

    times: frozenset[str]

    def value_of(self, name: str) -> Any:
        value = super().value_of(name)
        micros = moment(value.upper()) if name in self.times and isinstance(value, str) else None
        return value if micros is None else Moment(micros)


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(0, [0], the payload): there is no header."""
    return 0, [0], value


def reader(schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], JsonPayload]:
    """What reads records. `schema.columns`: (path, type) of each column. Raises ValueError."""
    plain = {path: _PLAIN[kind] for path, kind in schema.columns if "." not in path and kind in _PLAIN}
    times = frozenset(path for path, kind in schema.columns if kind.startswith("timestamp"))
    read_record = read_as("record", plain)

    def read_bare(body: bytes) -> BareJsonPayload:
        record = read_record(body)
        return BareJsonPayload(record.name, record.value, record.plain, times)

    return read_bare
