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
    """Check what a pipeline needs: Java, broker, store.

    Before it runs, or when it fails: Java, Spark's jars, the source (reach, credentials, topic or table), the registry
    (reach, credentials, subject), the store (an object is written once, refused the second time, listed, removed),
    state, permissions, disk and clocks. Each line is ok, warning or fault, with what to do. All are tried at once, and
    one that fails or hangs hides no other. Starts no Spark, and leaves nothing behind. Exit code 3 where there is a
    fault.
    """
    from distributary.audit.doctor import diagnose
    from distributary.config import load

    diagnosis = diagnose(load(file), within)
    say_json(diagnosis.to_json()) if as_json else show(diagnosis_text(diagnosis))
    return diagnosis.exit_code


def diagnosis_text(diagnosis: Diagnosis) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from distributary.names import shown

    grid = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        grid.add_column(overflow="fold")
    for finding in diagnosis.findings:
        lines = [shown(line, 1000) for line in finding.detail.splitlines()]
        if finding.remedy is not None:
            lines.append(f"What to do: {finding.remedy}")
        grid.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.check), Text("\n".join(lines)))
    return grid
