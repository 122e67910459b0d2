"""What a run is about to do, and the sum of what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.sources.registered import origin_of
from distributary.tables.store import join


@dataclass(frozen=True)
class PipelinePlan:
    """What a pipeline file stands for, before anything is started."""

    pipeline: str
    source: str
    tables: str
    state: str
    checkpoint: str
    trigger: str


def build(config: Pipeline) -> PipelinePlan:
    """Describe the pipeline; touches nothing."""
    tables = config.tables.name
    if config.holds_changes or config.envelope.is_debezium:
        named = (config.tables.log, config.tables.merged, config.tables.history)
        tables = " and ".join(pattern for pattern in named if pattern is not None)
    trigger = f"every {config.trigger.every:g} s" if config.trigger.mode == "every" else config.trigger.mode
    tables = join(config.tables.root, tables)
    if config.bronze_table is not None:
        tables = f"{tables}, by way of {config.bronze_table}"
    return PipelinePlan(
        pipeline=config.pipeline,
        source=origin_of(config).name,
        tables=config.shared_table or tables,
        state=config.state_root,
        checkpoint=config.checkpoint_path,
        trigger=trigger,
    )


@dataclass(frozen=True)
class RunReport:
    """The sum of a run's batches. `parked`: tables that need attention when the run ended. `already`: batches that an
    earlier run had written and not told of; they are not in the sums. `reasons`: of the quarantined rows. `waiting`:
    reason -> rows that are in the quarantine now, those of earlier runs too, and come in by a replay only.
    `tables`: routes whose table got rows."""

    pipeline: str
    batches: int
    rows_in: int
    rows_written: int
    rows_quarantined: int
    tombstones: int
    parked: tuple[str, ...]
    already: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    excluded: int = 0
    tables: tuple[str, ...] = ()


def added(total: RunReport, batch: BatchReport) -> RunReport:
    """The sum with one more batch."""
    if batch.already:
        return replace(total, already=total.already + 1)
    return replace(
        total,
        batches=total.batches + 1,
        rows_in=total.rows_in + batch.rows_in,
        rows_written=total.rows_written + batch.rows_written,
        rows_quarantined=total.rows_quarantined + batch.rows_quarantined,
        tombstones=total.tombstones + batch.tombstones,
        excluded=total.excluded + batch.excluded,
        reasons=dict(Counter(total.reasons) + Counter(batch.reasons)),
        tables=tuple(sorted({*total.tables, *batch.written})),
    )
