"""Random JSON Schemas and records, with what a row of each must say."""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = ("a", "b", "c d", "é", "A", "x/y", "~z", "")


class Records:
    """A random schema (`schema`); `one()` gives (bytes, the row's values)."""

    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.schema = {"$schema": "http://json-schema.org/draft-07/schema#", **self._object(0)}

    def one(self) -> tuple[bytes, dict[str, Any]]:
        rest: dict[str, str] = {}
        text, row = self._record(self.schema, "", rest)
        read = {place: json.loads(token) for place, token in rest.items()}
        return text.encode(), {**row, "_undeclared": read or None}

    # -- schemas -------------------------------------------------------------------------------------------

    def _object(self, depth: int) -> dict[str, Any]:
        names = [f"f{n}" for n in range(self.rnd.randrange(1, 5))] + self.rnd.sample(["c d", "é", "x/y"], 1)
        return {"type": "object", "properties": {name: self._type(depth + 1) for name in names}}

    def _type(self, depth: int) -> dict[str, Any]:
        kinds = ["integer", "number", "string", "boolean", "any", "mixed"]
        kinds += ["array", "object", "map"] if depth < 4 else []
        kind = self.rnd.choice(kinds)
        if kind == "object":
            return self._object(depth)
        if kind == "array":
            return {"type": "array", "items": self._type(depth + 1)}
        if kind == "map":
            return {"type": "object", "additionalProperties": self._type(depth + 1)}
        if kind == "any":
            return {}
        if kind == "mixed":
            return {"type": ["string", "integer", "null"]}
        return {"type": [kind, "null"] if self.rnd.random() < 0.5 else kind}

    # -- values: (text, what the column says) --------------------------------------------------------------------

    def _record(self, schema: dict[str, Any], place: str, rest: dict[str, str]) -> tuple[str, dict[str, Any]]:
        parts: list[tuple[str, str]] = []
        row: dict[str, Any] = {}
        for name, kind in schema["properties"].items():
            row[name] = None
            if self.rnd.random() < 0.1:
                continue
            text, row[name] = self._value(kind, f"{place}{_step(name)}/", rest)
            parts.append((name, text))
        for name in NAMES:
            if name not in schema["properties"] and self.rnd.random() < 0.03:
                text = self._any(2)
                parts.append((name, text))
                rest[place + _step(name)] = text
        self.rnd.shuffle(parts)
        return self._joined("{", [f"{self._text(name)}{self._gap()}:{self._gap()}{text}" for name, text in parts]), row

    def _value(self, schema: dict[str, Any], place: str, rest: dict[str, str]) -> tuple[str, Any]:
        kind = schema.get("type")
        if self.rnd.random() < 0.1:
            return "null", None
        if kind is None:
            text = self._any(0)
            return text, None if text == "null" else text
        if kind == ["string", "integer", "null"]:
            text = self._any(3)
            return text, None if text == "null" else text
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "array":
            found = [
                self._value(schema["items"], f"{place}{n}/", rest) for n in range(self.rnd.choice([0, 1, 1, 2, 5]))
            ]
            return self._joined("[", [text for text, _ in found]), [value for _, value in found]
        if kind == "object" and "properties" in schema:
            return self._record(schema, place, rest)
        if kind == "object":
            names = self.rnd.sample(NAMES, self.rnd.randrange(4))
            found = [self._value(schema["additionalProperties"], f"{place}{_step(name)}/", rest) for name in names]
            parts = [f"{self._text(name)}:{text}" for name, (text, _) in zip(names, found, strict=True)]
            return self._joined("{", parts), [(name, value) for name, (_, value) in zip(names, found, strict=True)]
        return self._scalar(kind)

    def _scalar(self, kind: str) -> tuple[str, Any]:
        if kind == "integer":
            value = self.rnd.choice([0, -1, 7, 2**31, 2**63 - 1, -(2**63), self.rnd.randrange(10**6)])
            text = self.rnd.choice([str(value)] * 4 + [f"{value}.0"] + ([f"{value}e0"] if abs(value) < 10**6 else []))
            return text, value
        if kind == "number":
            number = self.rnd.choice([0.0, 1.5, -2.5e-7, 1e22, 3.0, self.rnd.random(), 5e-324, 1.7976931348623157e308])
            return self.rnd.choice([repr(number), f"{number:.17g}", f"{number:.16e}"]), number
        if kind == "boolean":
            return self.rnd.choice([("true", True), ("false", False)])
        text = self.rnd.choice(["", "x", "é\n\t", 'say "hi"', "\\", "😀", "\0", "null", "5", "a" * 300])
        return self._text(text), text

    def _any(self, depth: int) -> str:
        found = [
            "null", "true", "0", "12345678901234567890123", "1.50", "1e400", '"x"', '"\\u00e9"', '""', "-0.0",
        ]  # fmt: skip
        if depth < 3 and self.rnd.random() < 0.3:
            inner = [self._any(depth + 1) for _ in range(self.rnd.randrange(3))]
            if self.rnd.random() < 0.5:
                return self._joined("[", inner)
            return self._joined("{", [f'"k{n}": {text}' for n, text in enumerate(inner)])
        return self.rnd.choice(found)

    # -- spelling ----------------------------------------------------------------------------------------------

    def _gap(self) -> str:
        return self.rnd.choice(["", "", "", " ", "\n", "\t", "\r\n "])

    def _text(self, value: str) -> str:
        return json.dumps(value, ensure_ascii=self.rnd.random() < 0.5)

    def _joined(self, opened: str, parts: list[str]) -> str:
        closed = {"{": "}", "[": "]"}[opened]
        return f"{opened}{self._gap()}" + f"{self._gap()},{self._gap()}".join(parts) + f"{self._gap()}{closed}"


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
