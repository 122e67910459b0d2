"""The rows of one route, read from bronze once more and decoded into data files that no commit names yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from distributary.engine.attempts import RouteFault
from distributary.engine.decisions import Decision
from distributary.engine.messages.attempt import Attempt
from distributary.engine.messages.decode import fit
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.outcomes import Delivered
from distributary.engine.packing import Packing
from distributary.engine.replay import Replay
from distributary.errors import BadInput
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Evolution
from distributary.tables.snapshot import Snapshot
from distributary.tables.spark_engine import SPARK_ERRORS


@dataclass
class RebuiltRows:
    """Rows of one route, outside of any table. `files`: of its table, of `rows` rows; `bad`: of the quarantine, of
    `kept` rows. `evolution`: what the table's columns become."""

    rows_in: int = 0
    rows: int = 0
    kept: int = 0
    tombstones: int = 0
    schema_ids: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    decoders: Mapping[int, str] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    bad: list[DataFile] = field(default_factory=list)
    evolution: Evolution | None = None


class _Rebuilding(Attempt):
    """An Attempt of which every route's files are left to its caller."""

    table: Snapshot | None = None
    evolution: Evolution | None = None

    def _of_the_driver(self, packing: Packing) -> Set[str]:
        return self.writers.keys()

    def _columns(self, route: str) -> pa.Schema | None:
        return self.spec.columns(route, self.table)

    def _prepare_shared(self, routes: Collection[str]) -> set[str]:
        for route in routes:
            try:
                self.evolution = self.spec.evolve(route, None, self._columns(route), self._incoming(route))
            except BaseException as e:
                self._end(e, route)
            self._decide(route, Decision("files", schema=self.evolution.schema))
        return set()

    def _commit_shared(self, delivered: Delivered) -> None:
        for outcome in delivered.outcomes.values():
            self._none_failed(outcome)


def build(fanout: Fanout, rows: DataFrame | None, route: str, table: Snapshot | None, spec: MessageSpec) -> RebuiltRows:
    """Decode `rows` (as hop 2 reads them) by Spark's tasks. Raises BadInput (rows that break an expectation of the
    strict kind), Outage."""
    if rows is None:
        return RebuiltRows()
    try:
        with fanout.cut(rows, {}) as chunks:
            writers = chunks.writers()
            compiled, refused = fanout.schemas.resolve(chunks.schema_ids())
            spec = replace(spec, refused={**spec.refused, **refused})
            while True:
                spec = replace(spec, killed=dict(fanout.killed))
                shared_arguments = (fanout.spark, fanout.store, fanout.by_spark, set[str](), fanout.merging)
                attempt = _Rebuilding(*shared_arguments, chunks, writers, spec, compiled)
                attempt.table = table
                try:
                    delivered = attempt.run()
                    break
                except SPARK_ERRORS as e:  # nothing is committed yet
                    fanout.find_killers(chunks, spec, compiled, e)
    except RouteFault as e:
        raise BadInput(detail=f"{route} cannot be rebuilt: {e.why}") from e
    return _built(route, delivered, attempt.evolution)


def _built(route: str, delivered: Delivered, evolution: Evolution | None) -> RebuiltRows:
    early = Counter(delivered.bad.get(route, {}))
    built = RebuiltRows(tombstones=delivered.tombstones.get(route, 0), bad=delivered.quarantine, evolution=evolution)
    built.reasons = early
    if (outcome := delivered.outcomes.get(route)) is not None:
        built.reasons = early + Counter(outcome.reasons)
        built.rows, built.files, built.decoders = outcome.rows_written, [*outcome.append.files], outcome.decoders
        built.schema_ids = Counter(outcome.schema_ids)
    built.kept = built.reasons.total()
    built.rows_in = built.rows + built.kept
    return built


def add_returned(built: RebuiltRows, replay: Replay, route: str, table: Snapshot | None, spec: MessageSpec) -> None:
    """Add to `built` the rows that had no route when they came, so that bronze does not have them under this one: a
    replay has brought them into the route's table.

    Raises BadInput when one of them does not decode any more, TableFault, OSError.
    """
    rows = replay.from_envelopes(route)
    if rows is None:
        return
    decoded, _ = replay.decode(route, rows)
    before = built.evolution.schema if built.evolution is not None else spec.columns(route, table)
    fitted = fit(route, decoded, before, spec)
    if fitted.rows != rows.num_rows:
        lost = rows.num_rows - fitted.rows
        raise BadInput(detail=f"{route}: {lost} rows that a replay had brought into its table do not decode any more")
    widened = built.evolution.widened if built.evolution is not None else ()
    changed = fitted.evolution.changed or (built.evolution is not None and built.evolution.changed)
    built.evolution = Evolution(fitted.evolution.schema, changed, (*widened, *fitted.evolution.widened), ())
    built.files.append(spec.write(route, fitted.table))
    built.rows_in += fitted.rows
    built.rows += fitted.rows
    built.schema_ids.update(fitted.schema_ids)
