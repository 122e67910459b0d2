"""`grants`: show or apply who may read which table."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import note, say, say_json


def grants(
    file: File,
    apply: Annotated[bool, typer.Option("--apply", help="Run the statements. Without it, only print them.")] = False,
    as_json: Json = False,
) -> None:
    """Show or apply who may read which table.

    From the section `grants`: the exact REVOKE and GRANT statements of Unity Catalog for this pipeline's tables, first
    what is taken away. What the section does not ask for is revoked from the principals that it names.
    """
    from distributary.config import load
    from distributary.fleet.grants import grant_plan

    config = load(file)
    plan = grant_plan(config)
    if apply:
        from distributary.running.stream import session_of

        spark = session_of(config)
        for statement in plan.statements:
            spark.sql(statement.sql)
    if as_json:
        say_json({"applied": apply, **plan.to_json()})
        return
    for statement in plan.statements:
        say(f"{statement.sql};")
    for pattern in plan.unmatched:
        note(f"no table matches {pattern!r} yet; run grants again when there is one")
    note(f"{len(plan.statements)} statements{' were run' if apply else '; --apply runs them'}")
