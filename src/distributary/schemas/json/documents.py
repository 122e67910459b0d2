"""Texts of JSON Schemas that refer to each other: where a `$ref` leads.

Sources: json-schema.org, drafts 4 to 2020-12 (`id` or `$id`, `$anchor`, JSON pointers); docs.confluent.io, "Schema
references": the name of a reference is what `$ref` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

__all__ = ["Documents"]

_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose keys are names, not keywords."""
_DATA: Final = frozenset({"enum", "const", "default", "examples", "example"})
_OLD: Final = ("draft-03", "draft-04")
_REFERENCE_ALONE: Final = (*_OLD, "draft-05", "draft-06", "draft-07")
"""Drafts in which nothing beside a `$ref` counts."""
DEEPEST: Final = 200


class Documents:
    """`texts`: each with its name, the schema itself last, under the empty name. Raises ValueError: one is no JSON."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._by_uri: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}
        self._drafts: dict[str, str] = {}
        for name, text in texts.items():
            self.root = json.loads(text)
            self._by_uri[name] = self.root
            self._index(self.root, name, _draft(self.root), 0)

    def ref(self, schema: Mapping[str, Any]) -> Any:
        """What the `$ref` of a schema leads to. Raises ValueError: to nothing."""
        ref = schema.get("$ref", schema.get("$dynamicRef", schema.get("$recursiveRef")))
        if not isinstance(ref, str):
            raise ValueError("a $ref is no text")
        uri, fragment = urldefrag(urljoin(self._base(schema), ref))
        target = self._by_uri.get(uri, self._by_uri.get(urldefrag(ref).url))
        if target is None:
            raise ValueError(f"its $ref {ref!r} leads to no schema")
        if not fragment:
            return target
        if not fragment.startswith("/"):
            target = self._anchors.get((self._base(target, uri), fragment))
        else:
            target = _at(target, fragment)
        if target is None:
            raise ValueError(f"its $ref {ref!r} leads to nothing")
        return target

    def is_ref_alone(self, schema: Mapping[str, Any]) -> bool:
        """Does nothing beside its `$ref` count? Without `$schema` a registry takes draft 7."""
        draft = self._drafts.get(self._base(schema), "")
        return not draft or any(word in draft for word in _REFERENCE_ALONE)

    def _base(self, schema: Any, default: str = "") -> str:
        return self._bases.get(id(schema), default)

    def _index(self, schema: Any, base: str, draft: str, depth: int) -> None:
        """Note the base of each part, and the parts that have a name of their own."""
        if depth > DEEPEST:
            raise ValueError(f"its text is nested more than {DEEPEST} deep")
        if isinstance(schema, list):
            for item in schema:
                self._index(item, base, draft, depth + 1)
        if not isinstance(schema, dict):
            return
        draft = _draft(schema) or draft
        own_id = schema.get("id" if any(word in draft for word in _OLD) else "$id")
        if isinstance(own_id, str):
            uri, fragment = urldefrag(urljoin(base, own_id))
            if fragment:
                self._anchors[base, fragment] = schema
            elif uri:
                base = uri
                self._by_uri[base] = schema
        self._bases[id(schema)] = base
        self._drafts.setdefault(base, draft)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                self._anchors[base, anchor] = schema
        for child in _parts(schema):
            self._index(child, base, draft, depth + 1)


def _draft(schema: Any) -> str:
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    return draft if isinstance(draft, str) else ""


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for keyword, value in schema.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            yield from value.values()
        elif keyword not in _DATA and isinstance(value, dict | list):
            yield value


def _at(document: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to; None where to nothing."""
    for step in pointer.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document
