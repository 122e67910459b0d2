"""What a run would do with what is waiting now. Of messages, by dry runs of its streams; of change files, by reading
them (`engine.changes.planned`)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from distributary.audit.dry_run import DryRun
from distributary.audit.plan_report import Plan as Plan
from distributary.audit.plan_report import TablePlan as TablePlan
from distributary.audit.plan_report import add_counts
from distributary.config import Pipeline
from distributary.engine.changes.planned import plan_files
from distributary.errors import Reason
from distributary.names import shown
from distributary.running.bronze.bronze_table import check_hop_1, first_hop, open_bronze
from distributary.running.report import build
from distributary.running.stream import session_of
from distributary.sources.registered import origin_of
from distributary.sources.watch import strays_left
from distributary.state.checkpoint import check_checkpoint
from distributary.tables.store import Store


def plan(config: Pipeline) -> Plan:
    """Read and decode all messages that are waiting, and say what a run would do with them. Takes about as long as the
    run's own reading and decoding.

    Raises what a run would raise before its first batch: CheckpointLost, SourceDown, SourceMissing, JavaMissing.
    """
    origin_of(config).look()
    spark = session_of(config)
    found = Plan(config.pipeline, build(config).source)
    tables: dict[str, TablePlan] = {}
    columns: dict[str, pa.Schema | None] = {}
    for leg, bronze in _legs(config):
        dry = DryRun(leg, spark, found, tables, columns, bronze)
        if bronze is None:
            check_checkpoint(leg, dry.ledger)
        dry.go()
        if found.stops is not None:
            break
    _sum_up(found, tables)
    return found


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


def plan_changes(config: Pipeline) -> Plan:
    """The plan of a pipeline of change files. Raises SourceDown, SourceMissing, StoreUnreadable."""
    found = plan_files(config)
    made = Plan(
        config.pipeline, build(config).source, batches=found.batches, reasons=dict(found.reasons),
        files=found.files, files_again=found.again, stops=found.stops,
    )  # fmt: skip
    made.rows_quarantined = made.rows_in = sum(found.reasons.values())
    if found.strays:
        made.notes.append(strays_left(found.strays, config.change_files.path))
    made.notes += [
        f"{shown(path, 200)} ended the process that read it ({how}): a run sets it aside (KILLED_READER) and goes on"
        for path, how in found.killers.items()
    ]
    tables: dict[str, TablePlan] = {}
    for route, one in found.routes.items():
        reasons = {Reason.TABLE_PARKED.value: one.events} if one.parked is not None else dict(one.reasons)
        kept = sum(reasons.values())
        table = TablePlan(
            route, one.log or one.merged or "", one.before is None, "spark" if one.why_spark else "task", one.why_spark,
            one.events, one.events - kept, kept, reasons=reasons, parked=one.parked,
        )  # fmt: skip
        if one.parked is None:
            table.add_changes(one.before, one.after)
        tables[route] = table
    _sum_up(made, tables)
    return made


def _sum_up(plan: Plan, tables: Mapping[str, TablePlan]) -> None:
    plan.tables = [tables[route] for route in sorted(tables)]
    for table in plan.tables:
        plan.rows_in += table.rows_in
        plan.rows_written += table.rows_written
        plan.rows_quarantined += table.rows_quarantined
        add_counts(plan.reasons, table.reasons)
