"""The command line: `main` is the entry point, `app` its commands. Only this package prints."""

from distributary.cli.commands import app
from distributary.cli.entry import main

__all__ = ["app", "main"]
