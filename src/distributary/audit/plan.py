"""What a run would do with what is waiting now. Of messages, by dry runs of its streams; of change files, by reading
them (`engine.changes.planned`)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from distributary.audit.dry_run import DryRun
from distributary.audit.plan_report import PlanReport as PlanReport
from distributary.audit.plan_report import TablePlan as TablePlan
from distributary.audit.plan_report import add_counts
from distributary.config import Pipeline
from distributary.engine.changes.planned import plan_files
from distributary.errors import Reason
from distributary.names import shown
from distributary.running.bronze.bronze_table import check_hop_1, first_hop, open_bronze
from distributary.running.report import build
from distributary.running.stream import session_of
from distributary.sources.discovery import strays_left
from distributary.sources.registered import origin_of
from distributary.state.checkpoint import check_checkpoint
from distributary.tables.store import Store


def plan(config: Pipeline) -> PlanReport:
    """Read and decode all messages that are waiting, and say what a run would do with them. Takes about as long as the
    run's own reading and decoding.

    Raises what a run would raise before its first batch: CheckpointLost, SourceDown, SourceMissing, JavaMissing.
    """
    origin_of(config).look()
    spark = session_of(config)
    planned = PlanReport(config.pipeline, build(config).source)
    tables: dict[str, TablePlan] = {}
    columns: dict[str, pa.Schema | None] = {}
    for leg, bronze in _legs(config):
        dry = DryRun(leg, spark, planned, tables, columns, bronze)
        if bronze is None:
            check_checkpoint(leg, dry.ledger)
        dry.go()
        if planned.stops is not None:
            break
    _sum_up(planned, tables)
    return planned


def _legs(config: Pipeline) -> list[tuple[Pipeline, str | None]]:
    """The streams whose batches a run would take. Of two hops: what waits in bronze, then what hop 1 would bring, with
    the path of the bronze table, which shows what it has brought."""
    if config.bronze_table is None:
        return [(config, None)]
    store = Store.of(config.tables)
    bronze = open_bronze(config, store)
    first = (first_hop(config), config.bronze_table)
    if bronze is None:
        return [first]
    check_hop_1(config, bronze, store)  # bronze itself has the books of hop 1
    return [(config, None), first]


def plan_changes(config: Pipeline) -> PlanReport:
    """The plan of a pipeline of change files. Raises SourceDown, SourceMissing, StoreUnreadable."""
    files_plan = plan_files(config)
    planned = PlanReport(
        config.pipeline, build(config).source, batches=files_plan.batches, reasons=dict(files_plan.reasons),
        files=files_plan.files, files_again=files_plan.again, stops=files_plan.stops,
    )  # fmt: skip
    planned.rows_quarantined = planned.rows_in = sum(files_plan.reasons.values())
    if files_plan.strays:
        planned.notes.append(strays_left(files_plan.strays, config.change_files.path))
    planned.notes += [
        f"{shown(path, 200)} ended the process that read it ({how}): a run sets it aside (KILLED_READER) and goes on"
        for path, how in files_plan.killers.items()
    ]
    tables: dict[str, TablePlan] = {}
    for route, route_plan in files_plan.routes.items():
        reasons = (
            {Reason.TABLE_PARKED.value: route_plan.events}
            if route_plan.parked is not None
            else dict(route_plan.reasons)
        )
        quarantined = sum(reasons.values())
        table = TablePlan(
            route,
            route_plan.log or route_plan.merged or "",
            route_plan.before is None,
            "spark" if route_plan.why_spark else "task",
            route_plan.why_spark,
            route_plan.events,
            route_plan.events - quarantined,
            quarantined,
            reasons=reasons,
            parked=route_plan.parked,
        )
        if route_plan.parked is None:
            table.add_changes(route_plan.before, route_plan.after)
        tables[route] = table
    _sum_up(planned, tables)
    return planned


def _sum_up(plan: PlanReport, tables: Mapping[str, TablePlan]) -> None:
    plan.tables = [tables[route] for route in sorted(tables)]
    for table in plan.tables:
        plan.rows_in += table.rows_in
        plan.rows_written += table.rows_written
        plan.rows_quarantined += table.rows_quarantined
        add_counts(plan.reasons, table.reasons)
