"""`distributary demo cdc`: the end of it, as text or JSON."""

from __future__ import annotations

from pathlib import Path

from distributary.cli.output import console, note, say, say_batch, say_json, say_run
from distributary.cli.signals import Stopper
from distributary.errors import Exit


def play_changes(folder: Path, as_json: bool) -> Exit:
    """Play the demo of change files in `folder`."""
    from distributary.cli.render import changes_text
    from distributary.running.progress import LineDisplay
    from distributary_simulate.demo.changes import ChangesFolder
    from distributary_simulate.demo.changes import play_changes as play

    stopper, place = Stopper(), ChangesFolder(folder.resolve())
    if as_json:
        result = play(place, LineDisplay(note, say_batch), stopper.attach)
        say_run(result.report)
        say_json({"kind": "demo", "seconds": round(result.seconds, 1), **result.to_json()})
        say_json(result.verification.to_json())
    else:
        result = play(place, LineDisplay(say), stopper.attach)
        console().print(changes_text(result, str(folder / "pipeline.yaml")))
    return Exit.OK if result.ok else Exit.ATTENTION
