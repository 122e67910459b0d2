"""Schemas as JSON files that are whole or absent, whoever reads and writes them at the same time."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from distributary.schemas.registry import Reference, Schema

__all__ = ["read_json", "schema_from_json", "schema_to_json", "write_json"]


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write to a temporary name, then rename: POSIX `rename` replaces atomically, so a reader sees old or new.

    Missing parent folders are made. Raises OSError. There is no fsync: this survives a killed process, not a
    power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name[:80]}.{os.getpid()}.{uuid.uuid4().hex}.tmp"
    try:
        # Not the tempfile module: its files are readable by their owner only, and others share the folder.
        temporary.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no such file. Raises OSError, or ValueError if it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except RecursionError as exc:
        raise ValueError(f"{path}: nested too deeply") from exc
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")
    return value


def schema_to_json(schema: Schema) -> dict[str, Any]:
    return {
        "id": schema.id,
        "kind": schema.kind,
        "text": schema.text,
        "references": [{"name": ref.name, "subject": ref.subject, "version": ref.version} for ref in schema.references],
    }


def schema_from_json(value: dict[str, Any]) -> Schema:
    """The reverse of `schema_to_json`. Raises ValueError if a key is missing or has another type."""
    try:
        schema = Schema(
            id=value["id"],
            kind=value["kind"],
            text=value["text"],
            references=tuple(
                Reference(name=ref["name"], subject=ref["subject"], version=ref["version"])
                for ref in value["references"]
            ),
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f"not a stored schema: {exc!r}") from exc
    if not (isinstance(schema.id, int) and isinstance(schema.kind, str) and isinstance(schema.text, str)):
        raise ValueError("not a stored schema: a key has the wrong type")
    return schema
