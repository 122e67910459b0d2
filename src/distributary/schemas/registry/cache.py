"""What a registry has answered once and can never change, kept on disk.

An id names one text for good, and so does a version of a subject until it is deleted permanently: both survive an
outage of the registry and a restart of the pipeline. What may change (`latest`, `versions`, `subjects`) is always
asked. An answer "there is no such schema" is kept in memory for seconds only, so that a batch full of one unknown
id asks once, and a schema registered a moment later is found.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from distributary.errors import SchemaNotFound
from distributary.schemas.registry import Reference, Registry, Schema, SchemaVersion
from distributary.schemas.registry.jsonfile import read_json, schema_from_json, schema_to_json, write_json

__all__ = ["MISSING_TTL_SEC", "CachedRegistry"]

T = TypeVar("T")

log = logging.getLogger(__name__)

MISSING_TTL_SEC = 10.0


class CachedRegistry:
    """A `Registry` in front of another one. Safe for several threads and processes that share `directory`.

    Each registry has its own folder in `directory`, named after a digest of its `name`: ids of two registries mean
    different schemas. A file that cannot be read back whole (its checksum is stored with it) is a miss. A cache that
    cannot be written costs requests, never an error.

    An id that comes back with another text means that the registry was rebuilt from nothing: all of its cache is
    dropped. `missing_ttl_sec` is in seconds of `clock`.
    """

    def __init__(
        self,
        registry: Registry,
        directory: Path,
        *,
        missing_ttl_sec: float = MISSING_TTL_SEC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._folder = directory / _digest(registry.name)
        self._missing_ttl_sec = missing_ttl_sec
        self._clock = clock
        self._missing: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._registry.name

    def get(self, schema_id: int) -> Schema:
        stored = self._read(self._id_file(schema_id))
        if stored is not None and stored.id == schema_id:
            return stored
        question = f"id {schema_id}"
        schema = self._ask(question, lambda: self._registry.get(schema_id))
        self._write(self._id_file(schema_id), schema)
        return schema

    def version(self, subject: str, version: int) -> SchemaVersion:
        stored = self._read(self._version_file(subject, version))
        if stored is not None:
            return SchemaVersion(subject, version, stored)
        answer = self._ask(f"{subject} version {version}", lambda: self._registry.version(subject, version))
        return self._remember(answer)

    def latest(self, subject: str) -> SchemaVersion:
        return self._remember(self._registry.latest(subject))

    def versions(self, subject: str) -> list[int]:
        return self._registry.versions(subject)

    def subjects(self) -> list[str]:
        return self._registry.subjects()

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        registered = self._remember(self._registry.register(subject, text, references, kind=kind))
        with self._lock:
            self._missing.clear()
        return registered

    def set_compatibility(self, subject: str, level: str) -> None:
        self._registry.set_compatibility(subject, level)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        self._registry.delete_subject(subject, permanent=permanent)
        if permanent:  # version numbers start at 1 again; ids are never given out twice
            shutil.rmtree(self._version_file(subject, 1).parent, ignore_errors=True)

    # -- the three kinds of answers ------------------------------------------------------------------------

    def _ask(self, question: str, ask: Callable[[], T]) -> T:
        with self._lock:
            if self._clock() < self._missing.get(question, float("-inf")):
                raise SchemaNotFound(registry=self.name, what=question)
        try:
            return ask()
        except SchemaNotFound:
            with self._lock:
                self._note_missing(question)
            raise

    def _note_missing(self, question: str) -> None:
        """All rest equally long, so those that end first stand first."""
        now = self._clock()
        while self._missing and self._missing[first := next(iter(self._missing))] <= now:
            del self._missing[first]
        self._missing.pop(question, None)
        self._missing[question] = now + self._missing_ttl_sec

    def _remember(self, answer: SchemaVersion) -> SchemaVersion:
        cached = self._read(self._id_file(answer.schema.id))
        if cached is not None and cached != answer.schema:
            log.warning("%s: id %d has another text now; its cache is dropped", self.name, answer.schema.id)
            shutil.rmtree(self._folder, ignore_errors=True)
        if cached != answer.schema:
            self._write(self._id_file(answer.schema.id), answer.schema)
        self._write(self._version_file(answer.subject, answer.version), answer.schema)
        return answer

    # -- files ---------------------------------------------------------------------------------------------

    def _id_file(self, schema_id: int) -> Path:
        return self._folder / "ids" / f"{schema_id}.json"

    def _version_file(self, subject: str, version: int) -> Path:
        return self._folder / "subjects" / _digest(subject) / f"{version}.json"

    def _read(self, path: Path) -> Schema | None:
        try:
            stored = read_json(path)
            if stored is None:
                return None
            schema = schema_from_json(stored["schema"])
            return schema if stored["sha256"] == _checksum(schema) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, path: Path, schema: Schema) -> None:
        try:
            write_json(path, {"sha256": _checksum(schema), "schema": schema_to_json(schema)})
        except OSError as exc:
            log.warning("the schema cache cannot be written: %s", exc)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _checksum(schema: Schema) -> str:
    return hashlib.sha256(json.dumps(schema_to_json(schema)).encode()).hexdigest()
