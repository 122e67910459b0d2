"""Removes what a pipeline made and nothing else: its tables, views, checkpoints and state, together.

A name is never enough. A table goes only if it says itself that this pipeline made it for this route, and its log holds
no batch of a stream that this pipeline does not know; it is asked again right before it goes. Tables go first and the
ledger last, so an interrupted clean-up can be repeated; until it is, no run begins (`state.cleaning`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from distributary.config import Pipeline
from distributary.errors import BadInput
from distributary.repair.clean.clean_plan import RemainingPath, RemovalTarget, planned
from distributary.repair.clean.inventory import CleaningBooks
from distributary.repair.clean.proof import why_keep
from distributary.repair.clean.removal import remove
from distributary.running.bronze.bronze_table import HOP_1
from distributary.running.catalog import CatalogEntry, drop_names, entering, leave_names
from distributary.running.stream import session_of
from distributary.state.cleaning import begin
from distributary.state.divisions import parts
from distributary.state.lock import only_run
from distributary.tables.store import Store, local_path

__all__ = ["CatalogEntry", "CleanPlan", "RemainingPath", "RemovalTarget", "apply", "clean", "forget_names"]

_LOCKS = ("run", "replay", "supervisor")


@dataclass(frozen=True)
class CleanPlan:
    """What would be removed, in this order, and what stays. `catalog`: names to drop, which takes Spark. `hop_2`: only
    what hop 2 made."""

    pipeline: str
    remove: tuple[RemovalTarget, ...]
    kept: tuple[RemainingPath, ...]
    catalog: tuple[CatalogEntry, ...]
    config: Pipeline = field(repr=False, compare=False)
    hop_2: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "remove": [asdict(target) for target in self.remove],
            "kept": [asdict(path) for path in self.kept],
            "catalog": [asdict(entry) for entry in self.catalog],
        }


def clean(config: Pipeline, *, hop_2: bool = False) -> CleanPlan:
    """Say what would be removed; touches nothing. `hop_2`: of two hops, leave bronze and hop 1 as they are, so that
    hop 2 begins anew from bronze. Raises AlreadyRunning, StoreUnreadable, BadInput."""
    if config.is_declarative and config.tables.managed:
        detail = "its tables are Lakeflow's: delete the pipeline there, which takes them along, and then the folder"
        raise BadInput(detail=f"pipeline {config.pipeline}: {detail} {config.state_root}")
    with _at_rest(config, hop_2, make=False):
        books = CleaningBooks(config)
        if hop_2 and books.config.bronze_table is None:
            raise BadInput(detail=f"clean --hop 2: layout {books.config.layout} has one hop; only two_hop has two")
        plan = planned(books, hop_2)
    return CleanPlan(config.pipeline, tuple(plan.remove), tuple(plan.kept), tuple(plan.catalog), config, hop_2)


def forget_names(plan: CleanPlan) -> CleanPlan:
    """Take the plan's names out of the catalog, views first; starts Spark where there are any. A name that stands for
    something else stays. Raises JavaMissing, EnvironmentFault."""
    if not plan.catalog:
        return plan
    if (catalog := entering(plan.config.tables)) is not None:
        dropped, others = leave_names(catalog, plan.catalog)
    else:
        dropped, others = drop_names(session_of(plan.config), plan.catalog)
    stays = (*plan.kept, *(RemainingPath(entry.name, reason) for entry, reason in others))
    return replace(plan, catalog=tuple(dropped), kept=stays)


def apply(plan: CleanPlan) -> CleanPlan:
    """Remove it. Returns what was removed and what stayed: a table that is not ours any more stays too.

    Raises AlreadyRunning, StoreUnreadable, OSError (something could not be deleted; repeat it).
    """
    with _at_rest(plan.config, plan.hop_2, make=bool(plan.remove)):
        books = CleaningBooks(plan.config)
        removed: list[RemovalTarget] = []
        stays = list(plan.kept)
        if any(t.kind == "table" for t in plan.remove) and books.has_state:
            tables = {**books.intent.tables, **{t.path: t.route for t in plan.remove if t.kind == "table"}}
            begin(books.config, tables, books.streams, books.store)
        for target in plan.remove:
            reason = why_keep(books, target.path, target.route) if target.kind == "table" else None
            if reason:
                stays.append(RemainingPath(target.path, reason))
                continue
            remove(target, books.config, books.store)
            removed.append(target)
    return replace(plan, remove=tuple(removed), kept=tuple(stays))


@contextmanager
def _at_rest(config: Pipeline, hop_2: bool, *, make: bool) -> Iterator[None]:
    """Neither a run nor a replay is on while this lasts. `make`: make lock files too, not only ask those there are."""
    with ExitStack() as locks:
        for stream in parts(config, Store.of(config.tables)):
            folder = local_path(stream.state_root)
            for name in (*_LOCKS, *(() if hop_2 else (HOP_1,))):
                if folder is not None and ((folder / f"{name}.lock").exists() or (make and folder.is_dir())):
                    locks.enter_context(only_run(stream.state_root, stream.pipeline, name))
        yield
