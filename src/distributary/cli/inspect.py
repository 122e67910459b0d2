"""`inspect`: some records of the source, taken apart."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import say_json, show


def inspect(
    file: File,
    records: Annotated[int, typer.Option("--records", min=1, max=1000, help="How many, the newest.")] = 5,
    as_json: Json = False,
) -> None:
    """Show some records of the source taken apart.

    Of each of the newest records: where it is, the registry's header, the schema and message that wrote it, its fields,
    and what the pipeline file makes of it: the route, or why it would be set aside. Where the file fits none of them,
    lines that would. Writes nothing, starts no Spark.
    """
    from distributary.config import load

    config = load(file)
    from distributary.audit.inspection import inspect as take_apart
    from distributary.cli.render import inspection_text

    inspection = take_apart(config, records)
    say_json(inspection.to_json()) if as_json else show(inspection_text(inspection))
