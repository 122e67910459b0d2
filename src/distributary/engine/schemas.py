"""Schema ids to descriptors on the driver: each distinct id once, found ones for good (case W8).

A producer can make up ids without end, and each is a request. So a batch asks for no more once the registry lacked
`registry.max_unknown_ids` of them, the lowest first (registries count up, a made-up id is most likely beyond what they
have), and where many ids of a batch were refused before, each rests before it is asked for again. A few are asked for
with every batch: then they come in with the first batch after their registration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from distributary.config import Pipeline, StateFolder
from distributary.config.debezium import decoded_format
from distributary.errors import Reason, SchemaBroken, SchemaNotFound
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import FORMATS, compile_payload
from distributary.schemas.registry import Registry, open_registry
from distributary.schemas.registry.absent import NoRegistry
from distributary.schemas.registry.compiler import Compiler, Limits
from distributary.state.journal import Refusals
from distributary.tables.store import local_path

LOOKUPS = 8
"""Requests to the registry at a time."""
FEW = 16
"""Refused ids of a batch that never rest, where there are no more of them."""
ASKED_AT_A_TIME = 64
"""Ids after which it is counted how many the registry did not have."""
RESTS_SEC = (0.0, 10.0, 20.0, 40.0, 60.0)
"""How long an id rests that was refused once, twice, ...: at first not at all, in the end a minute."""
RESTING = 100_000
"""So many refused ids are remembered."""

Refusal = tuple[Reason, str]


class Schemas:
    """Ids are immutable, so what was compiled once stays. What was refused is asked for again; many ids after a rest.

    `max_unknown`: of the ids that are asked for at a time (None: any number). `clock`: seconds. `plain`: of payloads
    that need no schema of the registry.
    """

    def __init__(
        self,
        registry: Registry,
        compiler: Compiler | None = None,
        max_unknown: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        plain: CompiledSchema | None = None,
    ) -> None:
        self.registry = registry
        self.compiler = compiler or Compiler()
        self._max_unknown = max_unknown
        self._compiled: dict[int, CompiledSchema] = {} if plain is None else {plain.id: plain}
        self._resting = _Resting(clock)

    def resolve(
        self, ids: Iterable[int], refused: Refusals | None = None, *, every: bool = False
    ) -> tuple[dict[int, CompiledSchema], Refusals]:
        """Descriptors by id, and for the others why their rows are kept aside.

        `refused`: ids that an earlier attempt at the same batch refused; they stay refused. `every`: however many
        the registry does not have, each id is asked for that does not rest.
        Raises RegistryDown, RegistryDenied: an outage is never a reason to keep rows aside.
        """
        ids_asked = set(ids)
        refusals = {k: v for k, v in (refused or {}).items() if k in ids_asked}
        missing = sorted(ids_asked - self._compiled.keys() - refusals.keys())
        resting = self._resting.among(missing)
        if len(resting) > FEW:
            refusals |= resting
        missing = [schema_id for schema_id in missing if schema_id not in refusals]
        if missing:
            refusals |= self._ask(missing, None if every else self._max_unknown)
        return {i: self._compiled[i] for i in ids_asked - refusals.keys()}, refusals

    def _ask(self, ids: Sequence[int], most: int | None) -> dict[int, Refusal]:
        """Ask for ids; those that cannot be had, and those that were not asked for any more after `most` of them."""
        refusals: dict[int, Refusal] = {}
        with ThreadPoolExecutor(LOOKUPS) as pool:
            for begin in range(0, len(ids), ASKED_AT_A_TIME):
                if most is not None and len(refusals) >= most:
                    why = f"not asked for: the registry lacks {len(refusals):,} other ids of this batch already"
                    over = Reason.TOO_MANY_SCHEMA_IDS, f"{why}; registry.max_unknown_ids allows {most:,}"
                    return refusals | dict.fromkeys(ids[begin:], over)
                some = ids[begin : begin + ASKED_AT_A_TIME]
                for schema_id, answer in zip(some, pool.map(self._look_up, some), strict=True):
                    if isinstance(answer, CompiledSchema):
                        self._compiled[schema_id] = answer
                        self._resting.wake(schema_id)
                    else:
                        refusals[schema_id] = answer
                        self._resting.rest(schema_id, answer)
        return refusals

    def _look_up(self, schema_id: int) -> CompiledSchema | Refusal:
        try:
            schema = self.registry.get(schema_id)
        except SchemaNotFound as e:
            return Reason.UNKNOWN_SCHEMA_ID, str(e)
        try:
            return compile_payload(schema, self.registry, self.compiler)
        except SchemaBroken as e:
            return Reason.BROKEN_SCHEMA, str(e)


class _Resting:
    """Ids that were refused, and until when they are not asked for again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ids: dict[int, tuple[int, float, Refusal]] = {}

    def among(self, ids: Iterable[int]) -> dict[int, Refusal]:
        """Those of `ids` that rest, and why they were refused."""
        now = self._clock()
        resting = ((schema_id, self._ids.get(schema_id)) for schema_id in ids)
        return {schema_id: refused[2] for schema_id, refused in resting if refused is not None and now < refused[1]}

    def rest(self, schema_id: int, why: Refusal) -> None:
        times = self._ids.pop(schema_id, (0, 0.0, why))[0]
        if len(self._ids) >= RESTING:
            del self._ids[next(iter(self._ids))]
        rest = RESTS_SEC[min(times, len(RESTS_SEC) - 1)]
        self._ids[schema_id] = (times + 1, self._clock() + rest, why)

    def wake(self, schema_id: int) -> None:
        self._ids.pop(schema_id, None)


def registry_of(config: Pipeline) -> Registry:
    """The pipeline's registry; a served one with a disk cache, below the state folder unless the file names another:
    one for all streams of the pipeline, for a cache may be shared by processes."""
    registry = config.registry
    if registry is None:  # by the config's own rule nothing is asked of it
        return NoRegistry()
    folder = _schema_cache(config)
    if registry.url is not None and folder is not None:
        registry = registry.model_copy(update={"cache": str(folder)})
    return open_registry(registry)


def schemas_of(config: Pipeline, keep: bool = True) -> Schemas:
    """The pipeline's schemas; what was compiled once is kept (`keep`) in the same folder as the registry's answers."""
    folder, registry = _schema_cache(config) if keep else None, config.registry
    limits = None if registry is None else Limits.of(registry)
    compiler = Compiler(limits, None if folder is None else folder / "compiled")
    plain = FORMATS[decoded_format(config)].without_schema(config.payload.columns)
    most = None if registry is None else registry.max_unknown_ids
    return Schemas(registry_of(config), compiler, most, plain=plain)


def _schema_cache(config: Pipeline) -> Path | None:
    if config.registry is not None and config.registry.cache is not None:
        return Path(config.registry.cache)
    return local_path(StateFolder(config.whole_state).schemas)
