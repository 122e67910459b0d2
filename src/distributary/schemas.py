"""Schema ids to descriptors on the driver: each distinct id once, found ones for good (case W8)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from distributary.config import Pipeline
from distributary.errors import Reason, SchemaBroken, SchemaNotFound
from distributary.registry import Registry, open_registry
from distributary.registry.compile import CompiledSchema, compile_schema
from distributary.registry.compiler import Compiler, Limits
from distributary.state.journal import Refusals
from distributary.tables.store import local_path

LOOKUPS = 8
"""Requests to the registry at a time."""


class Schemas:
    """Ids are immutable, so what was compiled once stays. What was refused is asked for again at the next batch."""

    def __init__(self, registry: Registry, compiler: Compiler | None = None) -> None:
        self.registry = registry
        self.compiler = compiler or Compiler()
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
            return compile_schema(schema, self.registry, self.compiler)
        except SchemaBroken as e:
            return Reason.BROKEN_SCHEMA, str(e)


def registry_of(config: Pipeline) -> Registry:
    """The pipeline's registry; a served one with a disk cache, below the state folder unless the file names another:
    one for all streams of the pipeline, for a cache may be shared by processes."""
    registry = config.registry
    assert registry is not None  # the config's own rule
    folder = _schema_cache(config)
    if registry.url is not None and folder is not None:
        registry = registry.model_copy(update={"cache": str(folder)})
    return open_registry(registry)


def schemas_of(config: Pipeline, keep: bool = True) -> Schemas:
    """The pipeline's schemas; what was compiled once is kept (`keep`) in the same folder as the registry's answers."""
    assert config.registry is not None  # the config's own rule
    folder = _schema_cache(config) if keep else None
    compiler = Compiler(Limits.of(config.registry), None if folder is None else folder / "compiled")
    return Schemas(registry_of(config), compiler)


def _schema_cache(config: Pipeline) -> Path | None:
    if config.registry is not None and config.registry.cache is not None:
        return Path(config.registry.cache)
    state = local_path(config.whole_state)
    return None if state is None else state / "schemas"
