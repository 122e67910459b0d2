"""`doctor`: what a pipeline needs, tried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from distributary.cli.options import File, Json
from distributary.cli.output import say_json, show
from distributary.errors import Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from distributary.audit.doctor import Diagnosis

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor(
    file: File,
    within: Annotated[float, typer.Option("--within", min=1, metavar="SECONDS", help="How long all may take.")] = 30.0,
    as_json: Json = False,
) -> Exit:
    """Try out what a pipeline needs outside of itself.

    Before it runs, or when it fails: Java, Spark's jars, the source (reach, credentials, topic or table), the registry
    (reach, credentials, subject), the store (an object is written once, refused the second time, listed, removed),
    state, permissions, disk and clocks. Each line is ok, warning or fault, with what to do. All are tried at once, and
    one that fails or hangs hides no other. Starts no Spark, and leaves nothing behind. Exit code 3 where there is a
    fault.
    """
    from distributary.audit.doctor import diagnose
    from distributary.config import load

    found = diagnose(load(file), within)
    say_json(found.to_json()) if as_json else show(diagnosis_text(found))
    return found.exit_code


def diagnosis_text(found: Diagnosis) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from distributary.names import shown

    grid = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        grid.add_column(overflow="fold")
    for one in found.findings:
        lines = [shown(line, 1000) for line in one.detail.splitlines()]
        if one.remedy is not None:
            lines.append(f"What to do: {one.remedy}")
        grid.add_row(Text(one.level, style=_STYLES[one.level]), Text(one.check), Text("\n".join(lines)))
    return grid
