"""No registry: for pipelines whose payloads and envelopes need no schema."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.errors import SchemaNotFound
from distributary.schemas.registry import Reference, Schema, SchemaVersion


class NoRegistry:
    """A `Registry` that has nothing, and takes nothing in."""

    name = "none (the pipeline file names no registry)"

    def get(self, schema_id: int) -> Schema:
        raise self._lacks(f"id {schema_id}")

    def version(self, subject: str, version: int) -> SchemaVersion:
        raise self._lacks(f"{subject} version {version}")

    def latest(self, subject: str) -> SchemaVersion:
        raise self._lacks(subject)

    def versions(self, subject: str) -> list[int]:
        raise self._lacks(subject)

    def subjects(self) -> list[str]:
        return []

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        raise self._lacks(subject)

    def set_compatibility(self, subject: str, level: str) -> None:
        raise self._lacks(subject)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        raise self._lacks(subject)

    def _lacks(self, asked_for: str) -> SchemaNotFound:
        return SchemaNotFound(registry=self.name, what=asked_for)
