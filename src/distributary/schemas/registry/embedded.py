"""A registry in a folder, for demos, tests and small set-ups: it behaves as Confluent's and needs no server.

    registry.json              the next id, the global compatibility level
    schemas/<id>.json          text and references of an id, never changed
    links/<id>.json            which subjects use the id, which schemas refer to it (hints: checked when read)
    fingerprints/<sha256>.json the id of a text with its kind and references
    subjects/<subject>.json    the versions of a subject and its level: written last, a version exists from then on

Writers hold `flock` on the file `lock`; readers need no lock, since files are replaced whole. A writer that is
killed half-way leaves at most an id that no subject uses. The folder must be on a local file system or one whose
`flock` works between all its users.

Protobuf, Avro and JSON schemas must compile. Which changes a level allows is looked at for protobuf only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from distributary.errors import (
    RegistryDown,
    SchemaBroken,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
)
from distributary.schemas.formats import compile_payload
from distributary.schemas.registry import GLOBAL, Reference, Schema, SchemaVersion, check_level
from distributary.schemas.registry.compatibility import problems
from distributary.schemas.registry.compile import compile_text
from distributary.schemas.registry.compiler import Compiler
from distributary.schemas.registry.jsonfile import read_json, schema_from_json, schema_to_json, write_json

__all__ = ["DEFAULT_LEVEL", "EmbeddedRegistry"]

#: As Confluent's: https://docs.confluent.io/platform/current/schema-registry/fundamentals/schema-evolution.html
DEFAULT_LEVEL = "BACKWARD"


@dataclass
class _Version:
    version: int
    id: int
    deleted: bool = False


@dataclass
class _Subject:
    name: str
    level: str | None = None
    versions: list[_Version] = field(default_factory=list)

    def live(self) -> list[_Version]:
        return [v for v in self.versions if not v.deleted]


class EmbeddedRegistry:
    """A `Registry` in the folder `path`, safe for several processes. The first write creates the folder.

    To read an id or a version where there is no registry at all is `RegistryDown`, not `SchemaNotFound`: a mistyped
    path must not turn good rows into rows of an unknown schema.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    # -- reading -------------------------------------------------------------------------------------------

    def get(self, schema_id: int) -> Schema:
        with self._faults():
            self._must_exist()
            stored = read_json(self._path / "schemas" / f"{schema_id}.json")
            if stored is None:
                raise SchemaNotFound(registry=self.name, what=f"id {schema_id}")
            return schema_from_json(stored)

    def version(self, subject: str, version: int) -> SchemaVersion:
        with self._faults():
            self._must_exist()
            matching = [v for v in self._subject(subject).versions if v.version == version]
            if not matching:
                raise SchemaNotFound(registry=self.name, what=f"{subject} version {version}")
        return SchemaVersion(subject, version, self.get(matching[0].id))

    def latest(self, subject: str) -> SchemaVersion:
        return self.version(subject, self.versions(subject)[-1])

    def versions(self, subject: str) -> list[int]:
        with self._faults():
            numbers = [v.version for v in self._subject(subject).live()]
        if not numbers:
            raise SchemaNotFound(registry=self.name, what=subject)
        return numbers

    def subjects(self) -> list[str]:
        with self._faults():
            stored = (read_json(path) for path in (self._path / "subjects").glob("*.json"))
            return sorted(s.name for s in (_subject_from_json(value) for value in stored if value) if s.live())

    # -- writing -------------------------------------------------------------------------------------------

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        refs = tuple(references)
        with self._locked():
            record = self._subject(subject)
            known_id = self._id_of(kind, text, refs)
            for v in record.live():
                if v.id == known_id:
                    return SchemaVersion(subject, v.version, self.get(v.id))
            if kind == "PROTOBUF":
                self._check_compatible(record, self._compile(subject, text, refs))
            else:
                self._check_other(record, Schema(0, kind, text, refs))
            schema_id = known_id if known_id is not None else self._new_id(kind, text, refs)
            number = 1 + max((v.version for v in record.versions), default=0)
            self._link(schema_id, "used_by", subject, number)
            for ref in refs:
                self._link(self.version(ref.subject, ref.version).schema.id, "referenced_by", subject, number)
            record.versions.append(_Version(number, schema_id))
            self._save(record)
            return SchemaVersion(subject, number, self.get(schema_id))

    def set_compatibility(self, subject: str, level: str) -> None:
        check_level(self.name, level)
        with self._locked():
            if subject == GLOBAL:
                write_json(self._path / "registry.json", self._settings() | {"level": level})
            else:
                record = self._subject(subject)
                record.level = level
                self._save(record)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        with self._locked():
            record = self._subject(subject)
            doomed = record.versions if permanent else record.live()
            if not doomed:
                raise SchemaNotFound(registry=self.name, what=subject)
            self._check_unused(record)
            record.level = None  # as Confluent's: the level goes with the subject, also softly
            if not permanent:
                for v in doomed:
                    v.deleted = True
                self._save(record)
                return
            self._subject_file(subject).unlink(missing_ok=True)
            for schema_id in {v.id for v in doomed}:
                self._drop_if_unused(schema_id)

    # -- rules ---------------------------------------------------------------------------------------------

    def _compile(self, subject: str, text: str, references: Sequence[Reference]) -> bytes:
        place = f"{subject} (new version)"
        imports: dict[str, str] = {}
        for ref in references:
            referred = self._referred(place, ref)
            self._collect(referred, imports)
            imports[ref.name] = referred.text
        try:
            return compile_text(text, imports, strict=True).descriptor_set
        except SchemaBroken as exc:
            raise SchemaBroken(what=place, detail=exc.parameters["detail"]) from exc

    def _referred(self, place: str, ref: Reference) -> Schema:
        """Raises SchemaBroken: there is no such schema."""
        try:
            if self._is_deleted(ref):
                raise SchemaNotFound(registry=self.name, what=f"{ref.subject} version {ref.version}")
            return self.version(ref.subject, ref.version).schema
        except SchemaNotFound as exc:
            raise SchemaBroken(what=place, detail=f"reference {ref.name!r}: {exc}") from exc

    def _check_other(self, record: _Subject, schema: Schema) -> None:
        """An Avro or JSON schema must be one, with all that it refers to, and a subject keeps its kind. Whether older
        records can be read by it is not looked at: nothing here does that."""
        place = f"{record.name} (new version)"
        for ref in schema.references:
            self._referred(place, ref)
        try:
            compile_payload(schema, self, Compiler())
        except SchemaBroken as exc:
            raise SchemaBroken(what=place, detail=exc.parameters["detail"]) from exc
        self._check_kind(record, schema.kind)

    def _check_kind(self, record: _Subject, kind: str) -> None:
        level = record.level or str(self._settings()["level"])
        for v in record.live()[-1:] if level != "NONE" else []:
            if (old := self.get(v.id).kind) != kind:
                raise SchemaIncompatible(
                    subject=record.name, level=level, version=v.version, detail=f"it is of kind {old}"
                )

    def _collect(self, schema: Schema, imports: dict[str, str]) -> None:
        """Add the texts that `schema` refers to, by import path; soft-deleted ones too."""
        for ref in schema.references:
            if ref.name not in imports:
                referred = self.version(ref.subject, ref.version).schema
                imports[ref.name] = referred.text
                self._collect(referred, imports)

    def _check_compatible(self, record: _Subject, compiled: bytes) -> None:
        self._check_kind(record, "PROTOBUF")
        level = record.level or str(self._settings()["level"])
        live = record.live()
        against = live if level.endswith("_TRANSITIVE") else live[-1:]
        for v in reversed(against if level != "NONE" else []):
            old = self.get(v.id)
            if old.kind != "PROTOBUF":
                continue
            imports: dict[str, str] = {}
            self._collect(old, imports)
            faults = problems(compiled, compile_text(old.text, imports).descriptor_set, level)
            if faults:
                raise SchemaIncompatible(subject=record.name, level=level, version=v.version, detail="; ".join(faults))

    def _check_unused(self, record: _Subject) -> None:
        """Confluent's rule (error 42206): no version that is not deleted may refer to what is deleted."""
        mine = {v.version for v in record.versions}
        for v in record.versions:
            for subject, number in self._links(v.id)["referenced_by"]:
                if subject == record.name or not self._is_live(subject, number):
                    continue
                for ref in self.version(subject, number).schema.references:
                    if ref.subject == record.name and ref.version in mine:
                        raise SchemaInUse(
                            registry=self.name,
                            what=f"{record.name} version {ref.version}",
                            detail=f"{subject} version {number} refers to it",
                        )

    def _is_live(self, subject: str, number: int) -> bool:
        return any(v.version == number for v in self._subject(subject).live())

    def _is_deleted(self, ref: Reference) -> bool:
        return any(v.version == ref.version and v.deleted for v in self._subject(ref.subject).versions)

    # -- files ---------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        stored = read_json(self._path / "registry.json")
        return stored if stored is not None else {"next_id": 1, "level": DEFAULT_LEVEL}

    def _id_of(self, kind: str, text: str, references: tuple[Reference, ...]) -> int | None:
        stored = read_json(self._fingerprint_file(kind, text, references))
        return int(stored["id"]) if stored is not None else None

    def _new_id(self, kind: str, text: str, references: tuple[Reference, ...]) -> int:
        settings = self._settings()
        schema_id = int(settings["next_id"])
        # The counter first: a writer that is killed after it wastes an id, and never gives one out twice.
        write_json(self._path / "registry.json", settings | {"next_id": schema_id + 1})
        schema = Schema(schema_id, kind, text, references)
        write_json(self._path / "schemas" / f"{schema_id}.json", schema_to_json(schema))
        write_json(self._fingerprint_file(kind, text, references), {"id": schema_id})
        return schema_id

    def _drop_if_unused(self, schema_id: int) -> None:
        for subject, number in self._links(schema_id)["used_by"]:
            if any(v.version == number and v.id == schema_id for v in self._subject(subject).versions):
                return
        schema = self.get(schema_id)
        # The fingerprint first: without it the text gets a new id, never one whose file is gone.
        self._fingerprint_file(schema.kind, schema.text, schema.references).unlink(missing_ok=True)
        (self._path / "schemas" / f"{schema_id}.json").unlink(missing_ok=True)
        self._links_file(schema_id).unlink(missing_ok=True)

    def _subject(self, name: str) -> _Subject:
        stored = read_json(self._subject_file(name))
        return _subject_from_json(stored) if stored is not None else _Subject(name)

    def _save(self, record: _Subject) -> None:
        versions = [{"version": v.version, "id": v.id, "deleted": v.deleted} for v in record.versions]
        value = {"subject": record.name, "level": record.level, "versions": versions}
        write_json(self._subject_file(record.name), value)

    def _links(self, schema_id: int) -> dict[str, list[list[Any]]]:
        return read_json(self._links_file(schema_id)) or {"used_by": [], "referenced_by": []}

    def _link(self, schema_id: int, kind: str, subject: str, number: int) -> None:
        links = self._links(schema_id)
        if [subject, number] not in links[kind]:
            links[kind].append([subject, number])
            write_json(self._links_file(schema_id), links)

    def _subject_file(self, subject: str) -> Path:
        # Readable at the front, one to one at the end: two subjects may differ in case only, or be long.
        digest = hashlib.sha256(subject.encode()).hexdigest()[:16]
        return self._path / "subjects" / f"{quote(subject, safe='')[:80]}.{digest}.json"

    def _links_file(self, schema_id: int) -> Path:
        return self._path / "links" / f"{schema_id}.json"

    def _fingerprint_file(self, kind: str, text: str, references: tuple[Reference, ...]) -> Path:
        other = [kind] if kind != "PROTOBUF" else []  # folders of old know that kind only
        content = json.dumps([text, [[ref.name, ref.subject, ref.version] for ref in references], *other])
        return self._path / "fingerprints" / f"{hashlib.sha256(content.encode()).hexdigest()}.json"

    def _must_exist(self) -> None:
        if not (self._path / "registry.json").exists():
            raise RegistryDown(
                registry=self.name,
                attempts=1,
                detail="the folder holds no registry yet; check registry.path, or register a schema first",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._faults():
            self._path.mkdir(parents=True, exist_ok=True)
            with (self._path / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a killed process
                if not (self._path / "registry.json").exists():
                    write_json(self._path / "registry.json", self._settings())
                yield

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """A folder that cannot be read or written, or holds a damaged file, is an outage: no fact about data."""
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise RegistryDown(registry=self.name, attempts=1, detail=f"{type(exc).__name__}: {exc}") from exc


def _subject_from_json(value: dict[str, Any]) -> _Subject:
    versions = [_Version(int(v["version"]), int(v["id"]), bool(v["deleted"])) for v in value["versions"]]
    return _Subject(str(value["subject"]), value["level"], versions)
