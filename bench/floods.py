"""What it costs to bound what a producer can make up: routes, columns and schema ids without end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, Workload, WrongRows, say
from distributary.engine.messages.admission import refused_routes
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.schemas import Schemas
from distributary.errors import Reason
from distributary.tables.evolve import Policy, evolve
from distributary.tables.store import Store

T = TypeVar("T")

NOTE = (
    "Seconds of CPU time in which the driver decides about a batch of made-up names. Ours: with the bound, which is "
    "the default. Other: without one (of ids each is asked for, from a registry in a folder of this machine)."
)


def run(place: Place) -> Result:
    many = place.size(100_000, 500)
    work = Workload(place.root, 1)
    return Result("floods", NOTE, (_routes(work, many), _ids(work, many), _columns(place.size(100_000, 50_000))))


def _routes(work: Workload, many: int) -> Case:
    config = work.config("ours", work.delta_source())
    orders = MessageSpec(
        pipeline=config.pipeline,
        stream="bench",
        batch=0,
        tables=config.tables,
        store=Store(),
        quarantine="",
        payload_framed=True,
        raw_nested_indexes=False,
    )
    rows = {f"made up {number}": 1 for number in range(many)}
    seconds, refused = _cpu(lambda: refused_routes(rows, set(), orders))
    if len(refused) != max(0, many - orders.tables.max_new_tables):
        raise WrongRows(f"{len(refused)} routes were refused")
    say(f"{many} routes: {seconds:.2f} s")
    return Case(f"{many:,} new routes", "s", seconds)


def _ids(work: Workload, many: int) -> Case:
    work.compiled(work.names[0])  # there is a registry, with something in it
    ids = range(10**6, 10**6 + many)
    bounded, refused = _cpu(lambda: Schemas(work.registry, max_unknown=100).resolve(ids)[1])
    unbounded, asked = _cpu(lambda: Schemas(work.registry).resolve(ids)[1])
    if len(refused) != many or {reason for reason, _ in asked.values()} != {Reason.UNKNOWN_SCHEMA_ID}:
        raise WrongRows("an id that nobody has was found")
    say(f"{many} ids: {bounded:.2f} s with the bound, {unbounded:.2f} s without")
    return Case(f"{many:,} unknown schema ids", "s", bounded, unbounded)


def _columns(many: int) -> Case:
    before = pa.schema([(f"c{number}", pa.int64()) for number in range(20_000)])
    after = pa.schema([*before, *((f"d{number}", pa.int64()) for number in range(many - 20_000))])
    bounded, grown = _cpu(lambda: evolve(before, [after], Policy(max_columns=20_000)))
    unbounded, all_of_it = _cpu(lambda: evolve(before, [after], Policy()))
    if len(grown.schema) != 20_000 or len(all_of_it.schema) != many:
        raise WrongRows(f"{len(grown.schema)} and {len(all_of_it.schema)} columns")
    say(f"{many} columns: {bounded:.2f} s with the bound, {unbounded:.2f} s without")
    return Case(f"{many:,} columns for a table of 20,000", "s", bounded, unbounded)


def _cpu(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found
