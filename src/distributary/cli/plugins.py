"""Commands of other packages: an entry point in the group `distributary.commands` names a function that is called with
the typer app, and adds its own (PyPA, "Entry points specification")."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from distributary.cli.output import note

GROUP = "distributary.commands"


def plug_in(app: typer.Typer) -> None:
    """Add the commands of all packages that are installed; one that cannot be loaded is told of, and left out."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            point.load()(app)
        except Exception as error:
            note(f"the command {point.name} is missing: {point.value}: {type(error).__name__}: {error}")
