"""Schema ids to descriptors on the driver: each distinct id once, found ones for good (case W8)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from distributary.errors import Reason, SchemaBroken, SchemaNotFound
from distributary.registry import Registry
from distributary.registry.compile import CompiledSchema, compile_schema
from distributary.state.journal import Refusals

LOOKUPS = 8
"""Requests to the registry at a time."""


class Schemas:
    """Ids are immutable, so what was compiled once stays. What was refused is asked for again at the next batch."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._compiled: dict[int, CompiledSchema] = {}

    def resolve(
        self, ids: Iterable[int], refused: Refusals | None = None
    ) -> tuple[dict[int, CompiledSchema], Refusals]:
        """Descriptors by id, and for the others why their rows are kept aside.

        `refused`: ids that an earlier attempt at the same batch refused; they stay refused.
        Raises RegistryDown, RegistryDenied: an outage is never a reason to keep rows aside.
        """
        wanted = set(ids)
        refusals = {k: v for k, v in (refused or {}).items() if k in wanted}
        missing = sorted(wanted - self._compiled.keys() - refusals.keys())
        if missing:
            with ThreadPoolExecutor(LOOKUPS) as pool:
                for schema_id, found in zip(missing, pool.map(self._look_up, missing), strict=True):
                    if isinstance(found, CompiledSchema):
                        self._compiled[schema_id] = found
                    else:
                        refusals[schema_id] = found
        return {i: self._compiled[i] for i in wanted - refusals.keys()}, refusals

    def _look_up(self, schema_id: int) -> CompiledSchema | tuple[Reason, str]:
        try:
            schema = self.registry.get(schema_id)
        except SchemaNotFound as e:
            return Reason.UNKNOWN_SCHEMA_ID, str(e)
        if schema.kind != "PROTOBUF":
            return Reason.BROKEN_SCHEMA, f"schema {schema_id} is {schema.kind}, not PROTOBUF"
        try:
            return compile_schema(schema, self.registry)
        except SchemaBroken as e:
            return Reason.BROKEN_SCHEMA, str(e)
