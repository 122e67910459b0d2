"""A workflow plan as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.fleet.workflow.placement import Move, WorkflowPlan
from distributary.names import shown

_SHOWN_ROUTES = 4
_SHOWN_MOVES = 20


def plan_text(plan: WorkflowPlan, origin: str, *, applied: bool) -> RenderableType:
    """What each cluster will carry, and what moves. `origin`: where the routes were found."""
    routes = sum(len(c.routes) for c in plan.clusters)
    head = f"pipeline {shown(plan.pipeline)}: {_number(routes, 'route')} from {shown(origin, 1000)} on "
    head += _number(len(plan.clusters), "cluster")
    if plan.unmeasured == routes:
        head += "; their load is not measured yet: all count alike"
    elif plan.unmeasured:
        head += f"; {plan.unmeasured} of them not measured yet, counted as average"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("cluster", "routes", "load", "rows/s", "new routes", "which"):
        table.add_column(name, justify="right" if name in ("routes", "load", "rows/s") else "left", overflow="fold")
    for cluster in plan.clusters:
        cells = (shown(cluster.name), str(len(cluster.routes)), f"{cluster.share:.0%}", f"{cluster.rows_per_sec:,.0f}")
        table.add_row(*cells, "yes" if cluster.takes_new_routes else "no", Text(_names(cluster.routes)))
    blocks: list[RenderableType] = [Text(head), Text(""), table, Text(""), Text(_summary(plan))]
    blocks += [Text(f"  {_move(move)}") for move in plan.moves[:_SHOWN_MOVES]]
    if len(plan.moves) > _SHOWN_MOVES:
        blocks.append(Text(f"  and {len(plan.moves) - _SHOWN_MOVES} more (all of them: --json)"))
    if applied:
        blocks.append(Text("handed over: the next start of the streams follows this plan"))
    return Group(*blocks)


def _summary(plan: WorkflowPlan) -> str:
    phrases = [f"{_number(len(plan.moves), 'route')} to move", f"{len(plan.new)} to place for the first time"]
    if plan.gone:
        phrases.append(f"{len(plan.gone)} gone")
    return ", ".join(phrases)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _move(move: Move) -> str:
    return f"{shown(move.route)}: {shown(move.before)} -> {shown(move.after)}"


def _names(routes: Sequence[str]) -> str:
    others = f" and {len(routes) - _SHOWN_ROUTES} more" if len(routes) > _SHOWN_ROUTES else ""
    return ", ".join(map(shown, routes[:_SHOWN_ROUTES])) + others
