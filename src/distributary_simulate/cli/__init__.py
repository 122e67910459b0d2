"""The commands `simulate` and `demo`, plugged into the product's command line."""

import typer

from distributary_simulate.cli.demo import demo
from distributary_simulate.cli.simulate_debezium import simulate


def plug_in(app: typer.Typer) -> None:
    """Add both (the entry point; see `distributary.cli.plugins`)."""
    app.command("demo")(demo)
    app.add_typer(simulate, name="simulate")
