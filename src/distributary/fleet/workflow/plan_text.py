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


def plan_text(plan: WorkflowPlan, where: str, *, applied: bool) -> RenderableType:
    """What each cluster will carry, and what moves. `where`: where the routes were found."""
    routes = sum(len(c.routes) for c in plan.clusters)
    head = f"pipeline {shown(plan.pipeline)}: {_number(routes, 'route')} from {shown(where, 1000)} on "
    head += _number(len(plan.clusters), "cluster")
    if plan.unmeasured == routes:
        head += "; their load is not measured yet: all count alike"
    elif plan.unmeasured:
        head += f"; {plan.unmeasured} of them not measured yet, counted as average"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("cluster", "routes", "load", "rows/s", "new routes", "which"):
        table.add_column(name, justify="right" if name in ("routes", "load", "rows/s") else "left", overflow="fold")
    for one in plan.clusters:
        cells = (shown(one.name), str(len(one.routes)), f"{one.share:.0%}", f"{one.rows_per_sec:,.0f}")
        table.add_row(*cells, "yes" if one.takes_new_routes else "no", Text(_names(one.routes)))
    parts: list[RenderableType] = [Text(head), Text(""), table, Text(""), Text(_summary(plan))]
    parts += [Text(f"  {_move(move)}") for move in plan.moves[:_SHOWN_MOVES]]
    if len(plan.moves) > _SHOWN_MOVES:
        parts.append(Text(f"  and {len(plan.moves) - _SHOWN_MOVES} more (all of them: --json)"))
    if applied:
        parts.append(Text("handed over: the next start of the streams follows this plan"))
    return Group(*parts)


def _summary(plan: WorkflowPlan) -> str:
    said = [f"{_number(len(plan.moves), 'route')} to move", f"{len(plan.new)} to place for the first time"]
    if plan.gone:
        said.append(f"{len(plan.gone)} gone")
    return ", ".join(said)


def _number(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"


def _move(move: Move) -> str:
    return f"{shown(move.route)}: {shown(move.before)} -> {shown(move.after)}"


def _names(routes: Sequence[str]) -> str:
    more = f" and {len(routes) - _SHOWN_ROUTES} more" if len(routes) > _SHOWN_ROUTES else ""
    return ", ".join(map(shown, routes[:_SHOWN_ROUTES])) + more
