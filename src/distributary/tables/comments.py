"""Comments of columns: metadata of an Arrow field here, of a column in the table's schema (Delta protocol, "Schema
Serialization Format"). Delta, and so every engine, calls it `comment`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

COMMENT = b"comment"


def comment_of(field: pa.Field) -> dict[bytes, bytes] | None:
    """What a column keeps of the metadata of the field that it is made for."""
    return {COMMENT: field.metadata[COMMENT]} if field.metadata is not None and COMMENT in field.metadata else None


def commented(field: pa.Field, comments: Mapping[str, str], path: str = "") -> pa.Field:
    """A column with the comments that `comments` has of it and of the fields inside of its structs, by path."""
    path = f"{path}{field.name}"
    if not any(name == path or name.startswith(f"{path}.") for name in comments):
        return field
    if pa.types.is_struct(field.type):
        field = field.with_type(pa.struct([commented(inner, comments, f"{path}.") for inner in field.type]))
    if path not in comments:
        return field
    return field.with_metadata({**(field.metadata or {}), COMMENT: comments[path].encode()})


def commented_anew(field: pa.Field, before: pa.Field, comments: Mapping[str, str], path: str = "") -> pa.Field:
    """As `commented`, of a column that was there as `before`: only what is new inside of its structs."""
    path = f"{path}{field.name}"
    kind = field.type
    if kind == before.type or not pa.types.is_struct(kind) or not any(name.startswith(f"{path}.") for name in comments):
        return field
    old = {inner.name: inner for inner in before.type}
    return field.with_type(
        pa.struct(
            commented_anew(inner, old[inner.name], comments, f"{path}.")
            if inner.name in old
            else commented(inner, comments, f"{path}.")
            for inner in kind
        )
    )
