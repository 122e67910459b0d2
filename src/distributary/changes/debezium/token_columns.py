"""A column of JSON tokens to what the one type mapping takes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa

from distributary.avro.schema import Node, Scalar
from distributary.avro.walk_columns import arrow_type
from distributary.changes.debezium.connect import BITS, DECIMAL, LOGICAL, NANO_TIME, SCALARS, Connect, loader, node_of
from distributary.changes.json_values import QUOTE, TEXT, EventTokens, JsonColumn, by_node, by_tokens
from distributary.changes.model import Reading

_LISTS: dict[str, msgspec.json.Decoder[Any]] = {
    "string": msgspec.json.Decoder(list[str | None]),
    "bytes": msgspec.json.Decoder(list[bytes | None]),
}
_PLAIN = frozenset(SCALARS) - {"bytes"}


def column(kind: Connect | None, tokens: EventTokens, reading: Reading, type_name: str | None = None) -> JsonColumn:
    """`kind`: the type that the message's schema gives; None without one: then as the values say, but for a whole
    number of which the settings say that it is a date."""
    if kind is None:
        days = type_name == "date" and tokens.first and tokens.first <= frozenset(b"-0123456789")
        if days:
            return _numbers(Scalar("int", "date"), tokens)
        texts = _at_once(Connect("string"), TEXT, tokens) if tokens.first == {QUOTE} else None
        return by_tokens(tokens, reading) if texts is None else texts
    node = node_of(kind)
    if not tokens.first:
        return JsonColumn(node, pa.nulls(len(tokens.texts), arrow_type(node)))
    if kind.name in LOGICAL and not kind.is_text and kind.name != NANO_TIME:
        return _numbers(node, tokens)
    if (converted := _at_once(kind, node, tokens)) is not None:
        return converted
    if kind.name == DECIMAL or (kind.kind in _PLAIN and kind.name in LOGICAL) or kind.kind not in _PLAIN:
        return _loaded(kind, node, tokens)
    return by_node(node, tokens, reading)


def _at_once(kind: Connect, node: Node, tokens: EventTokens) -> JsonColumn | None:
    """Texts and bytes, all values in one call of the parser; None where they are others, or one of them is none."""
    bits = kind.name == BITS
    if kind.name in LOGICAL or bits or kind.kind not in ("string", "bytes"):
        return None
    body = "[" + ",".join(tokens.texts.fill_null("null").to_pylist()) + "]"
    try:
        return JsonColumn(node, pa.array(_LISTS[kind.kind].decode(body), arrow_type(node)))
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None


def _numbers(node: Node, tokens: EventTokens) -> JsonColumn:
    try:
        return JsonColumn(node, tokens.unquoted().cast(arrow_type(node)))
    except pa.ArrowInvalid:
        logical = node.logical if isinstance(node, Scalar) else ""
        return _loaded(Connect("int64", logical), node, tokens)


def _loaded(kind: Connect, node: Node, tokens: EventTokens) -> JsonColumn:
    """Value by value; what is none of the type is null, and a fault."""
    stored, load = arrow_type(node), loader(kind)
    values, faults = [], []
    for place, token in enumerate(tokens.texts.to_pylist()):
        value = None
        try:
            value = None if token is None else load(json.loads(token))
            pa.scalar(value, stored)
        except Exception:  # whatever a value does to its conversion is that value's fault
            value = None
            faults.append((place, f"{token[:80]} is no {kind.name or kind.kind}"))
        values.append(value)
    return JsonColumn(node, pa.array(values, stored), faults)
