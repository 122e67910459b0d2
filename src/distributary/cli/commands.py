"""The verbs. Names, flags and JSON keys are fixed: scripts depend on them.

Nothing heavy is imported up here: `check` and `--help` answer without Spark, Arrow or Delta.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from distributary import __version__
from distributary.cli.options import GROUP, File, Json, Yes, not_yet
from distributary.cli.output import console, note, say, say_batch, say_json, say_run, show
from distributary.cli.output import watch as show_again
from distributary.cli.signals import Stopper
from distributary.cli.simulate import simulate
from distributary.errors import BadInput, Exit, NotYet

if TYPE_CHECKING:
    from distributary.config import Pipeline

app = typer.Typer(name="distributary", add_completion=False, pretty_exceptions_enable=False, **GROUP)


def _version(asked: bool) -> None:
    if asked:
        say(f"distributary {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="DISTRIBUTARY_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """One stream of messages in, one Delta table per route out, exactly once, on Apache Spark.

    Exit codes: 0 fine; 1 done, but something needs attention (a parked table, rows lost, a limit that stopped the run);
    2 bad input; 3 the environment (Java, broker, registry, store); 130 interrupted.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("distributary").setLevel(logging.DEBUG if debug else logging.INFO)
    # An error in a batch comes to us as it is; py4j logs its traceback on the way.
    logging.getLogger("py4j").setLevel(logging.WARNING if debug else logging.CRITICAL)


# -- pipeline files ----------------------------------------------------------------------------------------


@app.command()
def check(file: File) -> None:
    """Check a pipeline file; start nothing.

    Every fault is one line: file, key, line number, what is allowed. Takes no Spark and no network.
    """
    config = load_file(file)
    say(f"{file} is valid: pipeline {config.pipeline}, source {config.source.type}, tables below {config.tables.root}")


@app.command()
def plan(file: File, as_json: Json = False) -> None:
    """Say what a run would do now; write nothing.

    For what is waiting in the source: tables and rows, new tables, new columns, type changes, the engine, and what
    would be quarantined and why. All of it is read and decoded, so it takes about as long as a run does.
    """
    config = load_file(file)
    from distributary.plan import plan as plan_run
    from distributary.render import plan_text

    found = plan_run(config)
    say_json(found.to_json()) if as_json else show(plan_text(found))


@app.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, then end.")] = False,
    as_json: Json = False,
) -> Exit:
    """Run a pipeline.

    It goes on until it is stopped or, with --once, until it has taken all that is there. Ctrl-C or SIGTERM ends it
    once the batch being written is done; a second Ctrl-C ends it at once, and the next run finishes that batch.

    Exit code 1 when tables are parked or a quarantine limit stopped it; 130 after Ctrl-C; SIGTERM is a normal end.
    With --json: a line per batch ("kind": "batch"), then one for the run ("kind": "run").
    """
    config = load_file(file)
    from distributary.pipeline import build
    from distributary.pipeline import run as run_pipeline
    from distributary.progress import batch_line, header, summary

    if not as_json:
        say(header(build(config), once or config.trigger.mode == "once"))
    stopper = Stopper()
    show = say_batch if as_json else (lambda report: say(batch_line(report)))
    report = run_pipeline(config, once=once, progress=show, handle=stopper.attach)
    say_run(report) if as_json else say(summary(report, str(file)))
    return stopper.exit_code(Exit.ATTENTION if report.parked else Exit.OK)


@app.command()
def status(
    file: File,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every 2 seconds, until Ctrl-C.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT", help="Write it as one HTML page.", show_default=False)
    ] = None,
) -> None:
    """Show each table: rows, lag, bad rows, state.

    Works beside a run, and without Spark.
    """
    if (as_json, watch, html is not None).count(True) > 1:
        raise BadInput(detail="--json, --watch and --html exclude each other; give one of them")
    config = load_file(file)
    from distributary import status as states

    if as_json:
        say_json(states.status(config).to_json())
    elif html is not None:
        html.write_text(states.html(states.status(config)), encoding="utf-8")
        say(f"wrote {html}")
    elif watch:
        show_again(lambda: states.render(states.status(config)))
    else:
        show(states.render(states.status(config)))


@app.command()
def verify(file: File, as_json: Json = False) -> Exit:
    """Recount the tables against the ledger.

    Reads the data files of every table and of the quarantine. Exit code 0 only if nothing is lost or doubled.
    """
    config = load_file(file)
    from distributary.render import verification_text
    from distributary.verify import verify as recount

    found = recount(config)
    say_json(found.to_json()) if as_json else show(verification_text(found))
    return found.exit_code


@app.command()
def replay(
    file: File,
    route: Annotated[str | None, typer.Option(help="Only rows of this route.", show_default=False)] = None,
    as_json: Json = False,
) -> Exit:
    """Bring quarantined rows into their tables.

    Exactly once, and only rows whose cause is fixed. Exit code 1 when rows stay in the quarantine.
    """
    config = load_file(file)
    from distributary.pipeline import Run, session_of
    from distributary.render import replay_text
    from distributary.state.lock import only_run

    with only_run(config.state_root, config.pipeline, "replay"):
        report = Run(config, session_of(config), lambda _: None).replay.run(route)
    say_json(vars(report)) if as_json else show(replay_text(report))
    return Exit.ATTENTION if report.left or report.failed else Exit.OK


@app.command()
def clean(file: File, yes: Yes = False, as_json: Json = False) -> None:
    """Remove what a pipeline made.

    Tables, ledger, quarantine and checkpoint go together, and nothing else. Says what it would remove; with --yes it
    does it.
    """
    config = load_file(file)
    from distributary.clean import apply
    from distributary.clean import clean as plan_cleaning
    from distributary.render import clean_text

    found = plan_cleaning(config)
    if yes:
        if found.catalog:
            from distributary.catalog import drop_names
            from distributary.pipeline import session_of

            drop_names(session_of(config), {entry.name: entry.path for entry in found.catalog})
        found = apply(found)
    say_json({"done": yes, **found.to_json()}) if as_json else show(clean_text(found, done=yes))


# -- demo and simulation -----------------------------------------------------------------------------------


@app.command()
def demo(
    scenario: Annotated[
        Literal["games", "cdc", "declarative"], typer.Argument(help="Only games is there yet.")
    ] = "games",
    layout: Annotated[Literal["fanout", "two_hop", "wide"], typer.Option(help="Only fanout is there yet.")] = "fanout",
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where everything goes; an earlier demo there is replaced.")
    ] = Path("demo"),
    as_json: Json = False,
) -> Exit:
    """Show the main job end to end on this machine.

    No server, about a minute, all files in one folder. 12 games, 3 schema versions that arrive while the stream runs,
    a game that appears half-way, bad records. With --json the last object is that of verify.
    """
    if scenario != "games" or layout != "fanout":
        raise NotYet(what=f"demo {scenario} --layout {layout}", available="demo games --layout fanout")
    from distributary.demo import Folder, play
    from distributary.progress import LineDisplay, LiveDisplay
    from distributary.render import demo_text

    stopper, screen = Stopper(), console()
    if as_json:
        result = play(Folder(folder.resolve()), LineDisplay(note, say_batch), stopper.attach)
        say_run(result.report)
        say_json({"kind": "demo", "seconds": round(result.seconds, 1), **result.comparison.to_json()})
        say_json(result.verification.to_json())
    else:
        display = LiveDisplay(screen) if screen.is_terminal else LineDisplay(say)
        result = play(Folder(folder.resolve()), display, stopper.attach)
        screen.print(demo_text(result, str(folder / "pipeline.yaml")))
    return Exit.OK if result.ok else Exit.ATTENTION


def load_file(file: Path) -> Pipeline:
    from distributary.config import load

    return load(file)


# -- verbs to come -----------------------------------------------------------------------------------------

app.add_typer(simulate, name="simulate")
for _verb, _help in (
    ("resync", "Rebuild one table from its kept rows."),
    ("maintain", "Compact and vacuum tables, purge tombstones."),
    ("grants", "Show or apply who may read which table."),
    ("views", "Make the views of a wide table."),
):
    not_yet(app, _verb, _help)
workflow = typer.Typer(**GROUP, help="Share the routes among Spark applications. Not available yet.")
pipeline = typer.Typer(**GROUP, help="The same parts as declarative pipelines. Not available yet.")
app.add_typer(workflow, name="workflow")
app.add_typer(pipeline, name="pipeline")
for _verb, _help in (
    ("plan", "Share out the routes by measured load."),
    ("databricks", "Make the jobs on Databricks."),
    ("local", "Run the shares on this machine."),
):
    not_yet(workflow, _verb, _help)
for _verb, _help in (("init", "Write a runnable project."), ("run", "Run the definitions.")):
    not_yet(pipeline, _verb, _help)
