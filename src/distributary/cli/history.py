"""`history`: what a route was, batch by batch."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import say_json, show


def history(
    file: File,
    route: Annotated[str, typer.Option("--route", help="The route.")],
    batches: Annotated[int, typer.Option("--batches", min=0, help="How many of the newest batches are listed.")] = 10,
    as_json: Json = False,
) -> None:
    """Show what became of one route: schemas, columns, batches.

    Which writer schema came first in which batch and at which offset, which batch made the table, added a column or
    widened a type, what was refused or failed, and the newest batches. Out of the ledger, the table's log and its rows;
    takes no Spark, and works beside a run.
    """
    from distributary.audit.history import history as told
    from distributary.cli.render_history import history_text
    from distributary.config import load

    told_history = told(load(file), route)
    say_json(told_history.to_json()) if as_json else show(history_text(told_history, batches))
