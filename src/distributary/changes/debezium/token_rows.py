"""Rows of one table and one schema as tokens: kept as arrays while they are gathered, and their columns in the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from distributary.changes.debezium.connect import Connect, parse
from distributary.changes.debezium.heads import Form
from distributary.changes.debezium.token_columns import column
from distributary.changes.digits import with_unchanged
from distributary.changes.json_values import EventTokens, token_array
from distributary.changes.model import Kind, Reading, SourceTable
from distributary.errors import Reason

Fields = dict[str, msgspec.Raw]
TokenColumn = tuple[str, Any, pa.Array]
Fault = tuple[int, Reason, str]

AT_ONCE = 2_048
NULL = msgspec.Raw(b"null")


@dataclass
class TokenRows:
    """Rows of one table, one schema and one list of keys, in which the same columns were not logged. `numbers`: those
    of their messages."""

    table: SourceTable
    schema: bytes
    keys: tuple[str, ...]
    unchanged: tuple[str, ...]
    numbers: list[int] = field(default_factory=list)
    _values: list[Fields] = field(default_factory=list)
    _parts: list[dict[str, pa.Array]] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)

    def add(self, number: int, values: Fields) -> None:
        self.numbers.append(number)
        self._values.append(values)
        if len(self._values) == AT_ONCE:
            self._cut()

    def _cut(self) -> None:
        """The parser's small objects to arrays: a great many of them slow Python down."""
        first = self._values[0].keys()
        # Rows of one schema mostly have the same fields in the same order.
        alike = all(row.keys() == first for row in self._values)
        names = first if alike else dict.fromkeys(name for row in self._values for name in row)
        if alike:
            self._parts.append({name: token_array([row[name] for row in self._values]) for name in names})
        else:
            self._parts.append({name: token_array([row.get(name, NULL) for row in self._values]) for name in names})
        self._counts.append(len(self._values))
        self._values = []

    def columns(self, reading: Reading, form: Form) -> tuple[list[TokenColumn], list[Fault], frozenset[str]]:
        """Columns, values that are none of their type, and the columns whose type no schema says. Raises ValueError for
        a schema that is none."""
        if self._values:
            self._cut()
        kinds = self._kinds(form)
        columns: list[TokenColumn] = []
        faults: list[Fault] = []
        names = [*(name for name in kinds), *self._names(kinds)]
        for name in names:
            tokens = EventTokens(self._joined(name))
            converted = column(kinds.get(name), tokens, reading, reading.wanted(self.table.route, name))
            columns.append((name, converted.node, converted.array))
            faults += [(place, Reason.VALUE_OUT_OF_RANGE, f"column {name}: {why}") for place, why in converted.faults]
        return columns, faults, frozenset(names) - kinds.keys()

    def _names(self, other_names: Iterable[str]) -> list[str]:
        return [
            n for n in dict.fromkeys(n for tokens_of in self._parts for n in tokens_of) if n not in set(other_names)
        ]

    def _joined(self, name: str) -> pa.Array:
        return pa.concat_arrays([
            tokens_of[name] if name in tokens_of else pa.nulls(count, pa.string())
            for tokens_of, count in zip(self._parts, self._counts, strict=True)
        ])  # fmt: skip

    def _kinds(self, form: Form) -> dict[str, Connect]:
        """The type of each column, as the messages' schema says it; {} where there is none. Raises ValueError."""
        if self.table.kind is Kind.MONGODB and not form.flattened:
            return {"_id": Connect("string"), "data": Connect("string")}
        if not self.schema:
            return {}
        kind = parse(self.schema)
        if form.flattened:
            names = {n for tokens_of in self._parts for n in tokens_of}
            return {name: field_kind for name, field_kind in kind.fields if name in names}
        row = kind.field("after") or kind.field("before")
        return dict(row.fields) if row is not None else {}


def schema_key_of(columns: Sequence[TokenColumn], unchanged: Sequence[str], *, typed: bool) -> str:
    """What stands for the schema of rows, and the columns of which they do not speak."""
    schema_text = repr([(name, node) for name, node, _ in columns]) if typed else ""
    key = hashlib.sha1(schema_text.encode(), usedforsecurity=False).hexdigest() if schema_text else ""
    return with_unchanged(key, unchanged)
