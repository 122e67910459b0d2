"""Texts of schema ids by hand (`registry.texts`): a file of this machine counts in place of the registry's text.

An id names one text for good, so a schema that does not compile, or names the wrong types, could never be mended: all
of its rows would stay in the quarantine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from distributary.errors import ConfigError, SchemaBroken
from distributary.schemas.formats import compile_payload
from distributary.schemas.registry import Reference, Registry, Schema, SchemaVersion, open_registry
from distributary.schemas.registry.compiler import Compiler, Limits

if TYPE_CHECKING:
    from distributary.config import RegistryConfig

__all__ = ["TextsByHand", "check_texts"]

_IMPORT: Final = re.compile(r"""^\s*import\s+(?:public\s+|weak\s+|option\s+)?["']([^"'\n]+)["']\s*;""", re.MULTILINE)
_KINDS: Final = {".avsc": "AVRO", ".json": "JSON"}
_SUBJECT: Final = "file:"
"""What begins the subject of a reference to a file."""


class TextsByHand:
    """A `Registry` in front of another one, which is never asked about the ids that have a file.

    Imports of a file are files below its folder; those that are not there may be built in, or play no part.
    """

    def __init__(self, registry: Registry, files: Mapping[int, str]) -> None:
        """Reads the files. Raises ConfigError where one can't be read."""
        self._registry = registry
        self._schemas = {id: _schema(id, Path(file), Path(file).parent) for id, file in files.items()}

    @property
    def name(self) -> str:
        return self._registry.name

    def get(self, schema_id: int) -> Schema:
        return self._schemas.get(schema_id) or self._registry.get(schema_id)

    def version(self, subject: str, version: int) -> SchemaVersion:
        if subject.startswith(_SUBJECT):
            folder, _, name = subject.removeprefix(_SUBJECT).partition("\0")
            return SchemaVersion(subject, version, _schema(0, Path(folder) / name, Path(folder)))
        return self._by_hand(self._registry.version(subject, version))

    def latest(self, subject: str) -> SchemaVersion:
        return self._by_hand(self._registry.latest(subject))

    def _by_hand(self, registered: SchemaVersion) -> SchemaVersion:
        return SchemaVersion(
            registered.subject, registered.version, self._schemas.get(registered.schema.id, registered.schema)
        )

    def versions(self, subject: str) -> list[int]:
        return self._registry.versions(subject)

    def subjects(self) -> list[str]:
        return self._registry.subjects()

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        return self._registry.register(subject, text, references, kind=kind)

    def set_compatibility(self, subject: str, level: str) -> None:
        self._registry.set_compatibility(subject, level)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        self._registry.delete_subject(subject, permanent=permanent)


def check_texts(config: RegistryConfig) -> None:
    """Compile the texts that a pipeline file names. Raises ConfigError with the first that does not compile."""
    registry = open_registry(config)  # asked about ids that have a file, and about nothing else
    for id, file in sorted(config.texts.items()):
        try:
            compile_payload(registry.get(id), registry, Compiler(Limits.of(config)))
        except SchemaBroken as error:
            raise ConfigError(file=file, key=f"registry.texts.{id}", detail=error.parameters["detail"]) from error


def _schema(id: int, file: Path, folder: Path) -> Schema:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(file=str(file), key=f"registry.texts.{id}", detail=str(error)) from error
    if file.suffix in _KINDS:
        return Schema(id, _KINDS[file.suffix], text)
    names = [name for name in _IMPORT.findall(text) if _is_there(folder, name)]
    return Schema(id, "PROTOBUF", text, tuple(Reference(name, f"{_SUBJECT}{folder}\0{name}", 1) for name in names))


def _is_there(folder: Path, name: str) -> bool:
    return ".." not in PurePosixPath(name).parts and (folder / name).is_file()
