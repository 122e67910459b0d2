"""What commands have in common: arguments, settings of groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# Help as plain text: the same on a terminal, in a log and in docs/cli.md.
GROUP: dict[str, Any] = {"no_args_is_help": True, "context_settings": _SETTINGS, "rich_markup_mode": None}

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file (YAML).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line; messages go to stderr.")]
Force = Annotated[
    bool, typer.Option("--force", help="Quarantine a first batch of which no record can be read, and go on.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without it, only say what would be done.")]
