"""Schema registries: where the writer schema of an id is kept.

`Registry` is the port. Its adapters are `confluent` (the Confluent REST API) and `embedded` (a folder), both with
the same behaviour, held by one contract suite; `cache` keeps known ids on disk so that they survive an outage.

Rules of the port, after Confluent Schema Registry's API reference
(https://docs.confluent.io/platform/current/schema-registry/develop/api.html):

- An id names one text with its references for good; the same text and references under two subjects have one id.
- A soft delete hides a version from `versions`, `latest` and `subjects`; `get` and `version` still find it,
  since old records keep their ids.
- `SchemaNotFound` is a fact about data. Anything that may pass (`RegistryDown`) is never reported as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from distributary.errors import RegistryRefused

if TYPE_CHECKING:
    from distributary.config import RegistryConfig

__all__ = [
    "GLOBAL",
    "LEVELS",
    "Level",
    "Reference",
    "Registry",
    "Schema",
    "SchemaVersion",
    "check_level",
    "open_registry",
]

Level = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]

LEVELS: tuple[Level, ...] = get_args(Level)

#: The "subject" whose compatibility level holds for every subject without its own.
GLOBAL = ""


def check_level(registry: str, level: str) -> None:
    """Raises RegistryRefused, as a registry would answer, when there is no such compatibility level."""
    if level not in LEVELS:
        raise RegistryRefused(
            registry=registry,
            what=f"the compatibility level {level!r}",
            status=422,
            code=42203,
            detail="no such level",
            remedy=f"Allowed: {', '.join(LEVELS)}.",
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """An import of a schema: `name` is the path in the import statement, which may differ from `subject`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """One immutable schema. `kind` is "PROTOBUF", "AVRO" or "JSON"; `text` is as it was registered."""

    id: int
    kind: str
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema as version `version` (from 1) of `subject`."""

    subject: str
    version: int
    schema: Schema


class Registry(Protocol):
    """A schema registry. Every call may raise `RegistryDown`, `RegistryDenied` or `RegistryRefused`."""

    @property
    def name(self) -> str:
        """The registry in messages: its address without any secret."""
        ...

    def get(self, schema_id: int) -> Schema:
        """The schema of an id, also when it was soft-deleted. Raises `SchemaNotFound`."""
        ...

    def version(self, subject: str, version: int) -> SchemaVersion:
        """One version of a subject, also when it was soft-deleted. Raises `SchemaNotFound`."""
        ...

    def latest(self, subject: str) -> SchemaVersion:
        """The highest version that is not deleted. Raises `SchemaNotFound`."""
        ...

    def versions(self, subject: str) -> list[int]:
        """The versions that are not deleted, ascending, never empty. Raises `SchemaNotFound`."""
        ...

    def subjects(self) -> list[str]:
        """The subjects that have a version that is not deleted, sorted."""
        ...

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        """Register a schema text of a `kind` (see `Schema`); the version it already has, if it is registered.

        Raises `SchemaIncompatible` (with the subject's level) and `SchemaBroken` (it does not compile, or a
        reference does not exist).
        """
        ...

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set the level (one of `LEVELS`) of a subject, which need not exist yet, or of all others: `GLOBAL`."""
        ...

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        """Delete all versions: softly, or for good (whether or not they were soft-deleted before).

        Raises `SchemaNotFound` (also for a second soft delete) and `SchemaInUse` (a version that is not deleted
        refers to one of them).
        """
        ...


def open_registry(config: RegistryConfig) -> Registry:
    """The registry that a pipeline file names, behind the disk cache where `config.cache` is set.

    Nothing is asked of the registry yet. Raises `RegistryTlsFailed` for certificate files that cannot be read,
    `ConfigError` for a file of `config.texts`.
    """
    # Imported here: the adapters import this module for its types.
    from distributary.schemas.registry.by_hand import TextsByHand
    from distributary.schemas.registry.cache import CachedRegistry

    registry: Registry
    if config.path is not None:
        from distributary.schemas.registry.embedded import EmbeddedRegistry

        registry = EmbeddedRegistry(Path(config.path))
    else:
        # Its client brings an HTTP stack, which takes a tenth of a second.
        from distributary.schemas.registry.confluent import ConfluentRegistry

        registry = ConfluentRegistry(config)
    registry = registry if config.cache is None else CachedRegistry(registry, Path(config.cache))
    return TextsByHand(registry, config.texts) if config.texts else registry
