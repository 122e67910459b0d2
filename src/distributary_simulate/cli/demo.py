"""`distributary demo`: the main jobs end to end on this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from distributary.cli.options import Json
from distributary.cli.output import console, note, say, say_batch, say_json, say_run, show
from distributary.cli.signals import Stopper
from distributary.errors import BadInput, Exit

if TYPE_CHECKING:
    from distributary_simulate.demo.changes import ChangesResult
    from distributary_simulate.demo.debezium import DebeziumResult
    from distributary_simulate.demo.games import Folder


def demo(
    scenario: Annotated[
        Literal["games", "cdc", "debezium", "declarative"], typer.Argument(help="games, cdc, debezium or declarative.")
    ] = "games",
    layout: Annotated[
        Literal["fanout", "two_hop", "wide"], typer.Option(help="Of demo games. See docs/layouts.md.")
    ] = "fanout",
    form: Annotated[
        Literal["protobuf", "avro", "json"],
        typer.Option("--format", help="What the payloads of demo games are. See docs/payloads.md."),
    ] = "protobuf",
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where everything goes; an earlier demo there is replaced.")
    ] = Path("demo"),
    as_json: Json = False,
) -> Exit:
    """Show the main job end to end on this machine.

    No server, about a minute, all files in one folder. 12 games, 3 schema versions that arrive while the stream runs,
    a game that appears half-way, bad records. `cdc`: change files of three databases to log and merged tables, compared
    with the source value by value. `debezium`: the same from Debezium's messages. `declarative`: bronze, silver and
    gold as a declarative pipeline. With --json the last object is that of verify.
    """
    if scenario != "games" and layout != "fanout":
        raise BadInput(detail=f"demo {scenario} --layout {layout}: --layout is allowed with demo games only")
    if scenario != "games" and form != "protobuf":
        raise BadInput(detail=f"demo {scenario} --format {form}: --format is allowed with demo games only")
    if scenario == "cdc":
        return _changes(folder, as_json)
    if scenario == "debezium":
        return _debezium(folder, as_json)
    if scenario == "declarative":
        return _declarative(folder, as_json)
    from distributary_simulate.demo.games import Folder

    return _games(Folder(folder.resolve(), layout, form), as_json, str(folder / "pipeline.yaml"))


def _games(folder: Folder, as_json: bool, file: str) -> Exit:
    from distributary.running.progress import LineDisplay, LiveDisplay
    from distributary_simulate.cli.render import demo_text
    from distributary_simulate.demo.games import play

    stopper, screen = Stopper(), console()
    if as_json:
        result = play(folder, LineDisplay(note, say_batch), stopper.attach)
        say_run(result.report)
        say_json({"kind": "demo", "seconds": round(result.seconds, 1), **result.comparison.to_json()})
        say_json(result.verification.to_json())
    else:
        display = LiveDisplay(screen) if screen.is_terminal else LineDisplay(say)
        result = play(folder, display, stopper.attach)
        screen.print(demo_text(result, file))
    return Exit.OK if result.ok else Exit.ATTENTION


def _changes(folder: Path, as_json: bool) -> Exit:
    from distributary_simulate.demo.changes import ChangesFolder, play_changes

    return _of_changes(partial(play_changes, ChangesFolder(folder.resolve())), folder, as_json)


def _debezium(folder: Path, as_json: bool) -> Exit:
    from distributary_simulate.demo.debezium import DebeziumFolder, play_debezium

    return _of_changes(partial(play_debezium, DebeziumFolder(folder.resolve())), folder, as_json)


def _of_changes(play: Callable[..., ChangesResult | DebeziumResult], folder: Path, as_json: bool) -> Exit:
    from distributary.running.progress import LineDisplay
    from distributary_simulate.cli.render import changes_text

    stopper = Stopper()
    if as_json:
        result = play(LineDisplay(note, say_batch), stopper.attach)
        say_run(result.report)
        say_json({"kind": "demo", "seconds": round(result.seconds, 1), **result.to_json()})
        say_json(result.verification.to_json())
    else:
        result = play(LineDisplay(say), stopper.attach)
        console().print(changes_text(result, str(folder / "pipeline.yaml")))
    return Exit.OK if result.ok else Exit.ATTENTION


def _declarative(folder: Path, as_json: bool) -> Exit:
    from distributary.cli.pipeline import teller
    from distributary.cli.render import verification_text
    from distributary.declarative.lines import demo_lines
    from distributary_simulate.demo.declarative import DeclarativeFolder, play

    stopper = Stopper()
    result = play(DeclarativeFolder(folder.resolve()), teller(as_json), note if as_json else say, stopper.attach)
    if as_json:
        say_json(result.to_json())
        say_json(result.verification.to_json())
    else:
        say(demo_lines(result.columns, result.gold, result.rows_sent, result.rows_found, result.differences))
        show(verification_text(result.verification))
        say(f"done in {result.seconds:.0f} s; the pipeline file: {folder / 'pipeline.yaml'}")
    return Exit.OK if result.ok else Exit.ATTENTION
