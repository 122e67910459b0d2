"""One JSON record by itself: cut into its tokens, and what is said of one that is bad or has more than is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from distributary.names import shown
from distributary.schemas.json.nodes import VALUE, Array, Field, Node, Record, Scalar, Tree
from distributary.schemas.json.values import values

DEEPEST: Final = 64
"""Objects and lists inside each other in a record."""
BOM: Final = b"\xef\xbb\xbf"
NULL: Final = msgspec.Raw(b"null")
SHOWN: Final = 60

Object = dict[str, msgspec.Raw]
_OBJECT: Final[msgspec.json.Decoder[Object]] = msgspec.json.Decoder(Object)
PERHAPS: Final[msgspec.json.Decoder[Object | None]] = msgspec.json.Decoder(Object | None)
LIST: Final[msgspec.json.Decoder[list[msgspec.Raw] | None]] = msgspec.json.Decoder(list[msgspec.Raw] | None)
_ANY: Final[msgspec.json.Decoder[msgspec.Raw]] = msgspec.json.Decoder(msgspec.Raw)
_STEP: Final = np.zeros(256, np.int64)
_STEP[[*b"{["]], _STEP[[*b"}]"]] = 1, -1
_NO_BRACKET: Final = bytes(code for code in range(256) if code not in b'{}[]"')
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def cut_object(body: bytes, is_whole: bool) -> Object:
    """A record cut into its fields. Raises `UNREADABLE`."""
    if body[:1] == BOM[:1]:
        body = body.removeprefix(BOM)
    return {VALUE: _ANY.decode(body)} if is_whole else _OBJECT.decode(body)


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def depth_of(body: bytes) -> int:
    """How deep brackets are nested, those in texts left out."""
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    codes = np.frombuffer(body.translate(None, _NO_BRACKET), np.uint8)
    is_inside = np.cumsum(codes == 0x22) & 1 > 0
    return int(np.cumsum(np.where(is_inside, 0, _STEP[codes])).max(initial=0))


def words(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return f"it is no JSON object: {error}"


def why(tree: Tree, body: bytes) -> str:
    if not is_text(body):
        return "it is not UTF-8"
    if depth_of(body) > DEEPEST:
        return f"it is nested more than {DEEPEST} levels deep"
    for pointer, raw, node in _misfits(tree.record, cut_object(body, tree.is_whole), ""):
        value_text = shown(bytes(raw).decode())
        value_text = value_text if len(value_text) <= SHOWN else f"{value_text[:SHOWN]}..."
        return f"{'' if tree.is_whole and pointer == '/value' else pointer + ': '}{value_text} is no {_kind(node)}"
    return "a value does not fit its type"


def _kind(node: Node) -> str:
    if isinstance(node, Scalar):
        if node.kind == "double":
            return "number that a double holds"
        return f"decimal({node.precision},{node.scale})" if node.kind == "decimal" else node.kind
    return "list" if isinstance(node, Array) else "object"


def _misfits(record: Record, value: Object, prefix: str) -> Iterator[tuple[str, msgspec.Raw, Node]]:
    """(JSON pointer, token, what should be there) of all values that do not fit."""
    for field in record.fields:
        if takes(field, raw := value.get(field.name, NULL)):
            yield from _misfits_of(field.node, raw, f"{prefix}/{step(field.name)}")


def takes(field: Field, raw: msgspec.Raw) -> bool:
    """Is a token of a field's kind?"""
    return field.only is None or (field.only == "object" and bytes(raw)[:1] == b"{")


def _misfits_of(node: Node, raw: msgspec.Raw, pointer: str) -> Iterator[tuple[str, msgspec.Raw, Node]]:
    if isinstance(node, Scalar):
        if values(node, [raw])[1] is not None:
            yield pointer, raw, node
        return
    try:
        inner: Any = (LIST if isinstance(node, Array) else PERHAPS).decode(raw)
    except UNREADABLE:
        yield pointer, raw, node
        return
    if isinstance(node, Record):
        yield from _misfits(node, inner or {}, pointer)
    elif isinstance(node, Array):
        for number, item in enumerate(inner or ()):
            yield from _misfits_of(node.items, item, f"{pointer}/{number}")
    else:
        for name, item in (inner or {}).items():
            yield from _misfits_of(node.values, item, f"{pointer}/{step(name)}")


Finder = Callable[[msgspec.Raw], bool]


def finder(node: Node) -> Finder | None:
    """What says whether there is anything in a good value that is not declared; None where there never is."""
    if isinstance(node, Array):
        inside = finder(node.items)
        return None if inside is None else lambda raw: any(map(inside, LIST.decode(raw) or ()))
    if not isinstance(node, Record):
        return None
    names = frozenset(field.name for field in node.fields)
    nested = [(field.name, find) for field in node.fields if (find := finder(field.node)) is not None]

    def find_in(raw: msgspec.Raw) -> bool:
        value = PERHAPS.decode(raw)
        if not value:
            return False
        return not names.issuperset(value) or any(name in value and find(value[name]) for name, find in nested)

    return find_in


def _strangers(record: Record, value: Object, prefix: str) -> Iterator[tuple[str, msgspec.Raw]]:
    """(place, token) of all fields of a good record that are not declared."""
    fields: dict[str, list[Field]] = {}
    for field in record.fields:
        fields.setdefault(field.name, []).append(field)
    for name, raw in value.items():
        place = prefix + step(name)
        if name not in fields:
            yield place, raw
        for field in fields.get(name, ()):
            if takes(field, raw):
                yield from strangers_of(field.node, raw, place)


def strangers_of(node: Node, raw: msgspec.Raw, place: str) -> Iterator[tuple[str, msgspec.Raw]]:
    if isinstance(node, Scalar):
        return
    inner: Any = (LIST if isinstance(node, Array) else PERHAPS).decode(raw)
    if isinstance(node, Record):
        yield from _strangers(node, inner or {}, f"{place}/")
    elif isinstance(node, Array):
        for number, item in enumerate(inner or ()):
            yield from strangers_of(node.items, item, f"{place}/{number}")
    else:
        for name, item in (inner or {}).items():
            yield from strangers_of(node.values, item, f"{place}/{step(name)}")


@lru_cache(maxsize=4_096)
def step(name: str) -> str:
    """A name in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
