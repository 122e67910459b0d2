"""`quarantine`: what was set aside, why, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import say, say_json, show
from distributary.errors import BadInput, Reason
from distributary.kinds import kind_of


def quarantine(
    file: File,
    route: Annotated[str | None, typer.Option(help="Only rows of this route.", show_default=False)] = None,
    reason: Annotated[
        list[Reason] | None,
        typer.Option(metavar="REASON", help="Only rows of this reason. May be given again.", show_default=False),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, max=1000, help="Rows to show of each route and reason.")] = 1,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="OUT",
            help="Write the rows, with their bytes, to a file: .parquet or .jsonl.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was set aside, and why.

    For each route and reason: how many rows, what was found, the newest row as a sample, and what to do about it.
    Rows that were replayed are not shown. Works beside a run, and without Spark.
    """
    from distributary.config import load

    config = load(file)
    from distributary.audit import quarantined

    if export is not None and as_json:
        raise BadInput(detail="quarantine: --export and --json exclude each other; give one of them")
    rejected = quarantined.chosen(
        kind_of(config, file).quarantined_rows(), route, [chosen_reason.value for chosen_reason in reason or ()]
    )
    if export is not None:
        rows = quarantined.export(rejected, export)
        say(f"wrote {rows:,} row{'' if rows == 1 else 's'} to {export}")
        return
    summary = quarantined.summarize(config.pipeline, rejected, samples)
    if as_json:
        say_json(summary.to_json())
        return
    from distributary.cli.render import quarantine_text

    show(quarantine_text(summary, str(file)))
