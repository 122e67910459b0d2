"""A batch is attempted until every table of it is either written or parked. Each attempt finds what is done already.

What turns out only when tasks have done their part ends an attempt with `Again`: the next one knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, TypeVar

import pyarrow as pa

from distributary.engine.decisions import Decision, TaskSpec
from distributary.engine.workers import told_death, told_fault
from distributary.tables.faults import CommitConflict
from distributary.tables.outage import own_fault
from distributary.tables.spark_engine import SPARK_ERRORS, spark_ended
from distributary.tables.table import COMMIT_ATTEMPTS

AnyOrders = TypeVar("AnyOrders", bound=TaskSpec)
Done = TypeVar("Done")


class Again(Exception):
    """The attempt cannot end well; another one can: without the tables of `faults` (route -> why), and with `columns`
    for the routes whose tasks did not agree on them."""

    def __init__(self, faults: Mapping[str, str], columns: Mapping[str, pa.Schema] | None = None) -> None:
        super().__init__(", ".join(sorted({*faults, *(columns or {})})))
        self.faults = faults
        self.columns = columns or {}

    def decisions(self, spec: TaskSpec) -> dict[str, Decision]:
        """What the next attempt is to do otherwise than these `spec` said."""
        others = {r: replace(spec.decision(r), schema=schema) for r, schema in self.columns.items()}
        parked = {r: replace(spec.decision(r), append="parked", why=why) for r, why in self.faults.items()}
        return {**others, **parked}


class RouteFault(Again):
    """One table cannot be written; the batch goes on without it."""

    def __init__(self, route: str, why: str) -> None:
        super().__init__({route: why})
        self.route = route
        self.why = why


def end_attempt(error: BaseException, route: str, table: str) -> NoReturn:
    """Raises what ends the attempt for an error of one route's table: RouteFault; StoreDown where it is the store's;
    the error as it is where Spark is gone; what ended a worker of Spark's job, and is no table's."""
    if isinstance(error, Exception) and spark_ended(error):
        raise error
    if isinstance(cause := error.__cause__, SPARK_ERRORS):
        if (fault := told_fault(str(cause))) is not None:
            raise fault from error
        if told_death(str(cause)):
            raise cause  # `attempted` asks of which records
    raise RouteFault(route, own_fault(error, table)) from error


def attempted(
    spec: AnyOrders,
    attempt: Callable[[AnyOrders], Done],
    killed: Callable[[AnyOrders, Exception], Mapping[str, str]],
) -> Done:
    """What `attempt` returns in the end. `killed`: after a job has failed, all that is known to end its reader
    (`killers_after`); raises the error otherwise.

    Raises Outage, CommitConflict (other writers were first each time).
    """
    conflicts = 0
    while True:
        try:
            return attempt(spec)
        except Again as again:
            spec = spec.deciding(again.decisions(spec))
        except CommitConflict:
            conflicts += 1
            if conflicts >= COMMIT_ATTEMPTS:
                raise
        except SPARK_ERRORS as e:
            spec = replace(spec, killed=killed(spec, e))
        spec = spec.anew()


def killers_after(
    error: Exception, killers_before: Mapping[str, str], search: Callable[[], Mapping[str, str]]
) -> dict[str, str]:
    """What ends its reader, with what a `search` after `error` finds. Raises `error` where that is nothing new, or no
    worker has died."""
    if spark_ended(error) or not told_death(str(error)):
        raise error
    new_killers = search()
    if not new_killers.keys() - killers_before.keys():
        raise error
    return {**killers_before, **new_killers}
