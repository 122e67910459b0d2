"""The port of payload formats: what every format gives, and what decoding gives back.

A format is one module that has the functions of `PayloadFormat`; `schemas.formats` lists them. What must hold of each
stands in `tests/decoder_contract.py`, which every format runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from distributary.errors import Reason

if TYPE_CHECKING:
    from distributary.schemas.protobuf.framing import Frames
    from distributary.schemas.registry import Registry, Schema
    from distributary.schemas.registry.compiler import Compiler

__all__ = ["BadIndex", "CompiledSchema", "Decoder", "PayloadFormat", "Rejected", "Split", "distinct_names"]


class BadIndex(ValueError):
    """A message index path that leads to no message of the schema; its rows are `Reason.BAD_INDEX`."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """What the driver makes of one schema id, so that tasks need no registry. Hashes, pickles, ships to Spark tasks."""

    format: ClassVar[str]
    """The name in `schemas.formats.FORMATS`."""
    id: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that could not be decoded: its position in the input, why, and the library's words."""

    position: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Split:
    """The result of decoding: every input row is either in `rows` or in `rejected`."""

    rows: pa.RecordBatch
    """Good rows, in input order; the schema is the decoder's `columns`."""
    positions: pa.Int64Array | None
    """Input positions of the good rows, ascending; None means all of them."""
    rejected: list[Rejected]
    """Bad rows, by ascending position."""
    warnings: Mapping[str, int] = field(default_factory=dict)
    """In words what good rows lack (an extension, which has no column; a time out of range), and how many."""


class Decoder(Protocol):
    """Decodes the payloads of one writer schema. Lives in one process: it need not pickle."""

    @property
    def full_name(self) -> str:
        """Of the message or record, for people."""
        ...

    @property
    def columns(self) -> pa.Schema:
        """Arrow schema of the decoded rows."""
        ...

    @property
    def engine(self) -> str:
        """Which library reads most rows, as the ledger says it."""
        ...

    def decode(self, payloads: pa.BinaryArray) -> Split:
        """Decode payloads without their header; there are no nulls. Raises nothing on account of a payload."""
        ...


class PayloadFormat(Protocol):
    """One format; a module is one, with these as its functions."""

    KIND: str | None
    """The registry's word for schemas of this format (`schemaType`); None where no registry has any."""

    def compile_payload(self, schema: Schema, registry: Registry, compiler: Compiler) -> CompiledSchema:
        """Compile a registered schema with all its references.

        Raises:
            SchemaBroken: it does not compile, or takes more than `compiler.limits`.
            RegistryDown, RegistryDenied: from the registry, unchanged.
        """
        ...

    def without_schema(self, columns: Mapping[str, str]) -> CompiledSchema | None:
        """The schema (id 0) of payloads that need none; None where each needs its writer's. `columns`: those that the
        pipeline file gives them, path -> type."""
        ...

    def split_frames(self, values: Any, *, legacy_varints: bool = False) -> Frames:
        """Split payloads (binary; null is a tombstone) into header and body."""
        ...

    def frame_all(self, schema_id: int, index: str, bodies: pa.Array) -> pa.Array:
        """Put the header back in front of each of the bodies."""
        ...

    def decoder_for(
        self,
        schema: Any,
        message: str = "0",
        *,
        raw_nested_indexes: bool = False,
        null_out_of_range: bool = False,
    ) -> Decoder:
        """The decoder of a schema that this format has compiled, from this process's cache.

        Args:
            message: a message index path as text ("0", "0.1") or a full name, where a schema has several messages.
            raw_nested_indexes: of protobuf; see there.
            null_out_of_range: a time that no reader can hold is null. Off: its row is rejected.

        Raises:
            BadIndex: there is no such message.
            SchemaBroken: the schema cannot be the columns of a table.
        """
        ...


def distinct_names(numbered: Iterable[tuple[int, str]]) -> list[str]:
    """Names of columns, no two of which differ in case only: a later one ends in its number."""
    columns: list[str] = []
    folded_names: set[str] = set()
    for number, name in numbered:
        while name.lower() in folded_names:
            name = f"{name}__{number}"
        folded_names.add(name.lower())
        columns.append(name)
    return columns
