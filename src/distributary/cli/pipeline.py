"""`pipeline`: a declarative pipeline's project, and its updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributary.cli.options import GROUP, File, Json
from distributary.cli.output import note, say, say_json
from distributary.cli.signals import Stopper
from distributary.errors import BadInput, Exit
from distributary.kinds import kind_of
from distributary.kinds.declarative import Declarative

if TYPE_CHECKING:
    from distributary.config import Pipeline

pipeline = typer.Typer(**GROUP, help="Run it as a Spark Declarative Pipeline.\n\nFor layout: declarative.")

Every = Annotated[
    str | None,
    typer.Option(
        "--every", metavar="TIME", help="An update so often, as 30s; without it trigger.every.", show_default=False
    ),
]
Refresh = Annotated[
    list[str] | None, typer.Option("--refresh", metavar="T", help="Only these datasets.", show_default=False)
]
FullRefresh = Annotated[
    list[str] | None,
    typer.Option("--full-refresh", metavar="T", help="Empty these and fill them anew.", show_default=False),
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", metavar="SC", help="Use this Spark Connect server, sc://host:port.", show_default=False),
]


@pipeline.command("init")
def init(
    file: File,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or an empty folder.", show_default=False)],
    database: Annotated[bool, typer.Option(help="Make the database too, which starts Spark.")] = True,
) -> None:
    """Write a project that `spark-pipelines` and Lakeflow run.

    A spec, definitions of a few lines, Spark's settings, a copy of the pipeline file and of the files that
    declarative.libraries names. Paths in the pipeline file must be absolute. Spark is started for a moment, to make the
    database, which the stock command expects to be there.
    """
    config = declarative(file)
    from distributary.declarative.project import write_project

    for path in write_project(file, config, out):
        say(f"wrote {path}")
    if database:
        from distributary.declarative.update import make_database

        say(f"made database {make_database(config)}")
    say(f"run it: distributary pipeline run {file}, or as {out / 'README.md'} says")


@pipeline.command("run")
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, then end.")] = False,
    every: Every = None,
    refresh: Refresh = None,
    full_refresh: FullRefresh = None,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Empty all datasets and fill them anew.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Define and check all datasets; write nothing.")] = False,
    remote: Remote = None,
    as_json: Json = False,
) -> Exit:
    """Run a declarative pipeline, update after update.

    One Spark server stays warm. Each update finds new routes and schema versions by itself. A dataset that fails rests
    and is tried again, the others go on. Ctrl-C or SIGTERM ends it once the update is done; a second Ctrl-C ends it at
    once, and the next run goes on from there.

    Exit code 1 when a dataset failed or an update did not complete; 130 after Ctrl-C; SIGTERM is a normal end. With
    --json: a line per event ("kind": "event"), per update with rows per dataset ("update"), and for the run ("run").
    """
    config = declarative(file)
    from distributary.declarative.runner import Options, Runner
    from distributary.declarative.update import Selection

    selection = Selection(_names(refresh), _names(full_refresh), full_refresh_all, dry_run)
    if full_refresh_all and (refresh or full_refresh):
        raise BadInput(detail="--full-refresh-all does not go with --refresh or --full-refresh")
    ends = config.trigger.ends(once or dry_run)
    pace = _pace(config, every)
    stopper = Stopper(config.trigger.stop_within)
    if not as_json:
        note(f"pipeline {config.pipeline}: starting Spark")
    # Only once Spark is there: until then a signal just ends the process, and Spark's start takes Ctrl-C for itself.
    runner = Runner(
        config,
        file.resolve().parent,
        Options(ends, pace, selection, remote),
        teller(as_json),
        started=lambda: stopper.attach(runner),
    )
    report = runner.go()
    return stopper.exit_code(Exit.OK if report.ok else Exit.ATTENTION)


def declarative(file: Path) -> Pipeline:
    """The pipeline of a file whose layout is declarative. Raises BadInput for another layout."""
    from distributary.config import load

    config = load(file)
    if not isinstance(kind_of(config, file), Declarative):
        raise BadInput(detail=f"{file}: layout is {config.layout}; `pipeline` needs layout: declarative")
    if config.tables.managed:
        detail = (
            "tables.managed: its tables are Unity Catalog's, which Lakeflow makes: distributary workflow databricks"
        )
        raise BadInput(detail=f"{file}: {detail} {file}")
    return config


def teller(as_json: bool) -> Callable[[Mapping[str, Any]], None]:
    """Says what a runner tells."""
    from distributary.declarative.lines import line

    def tell(message: Mapping[str, Any]) -> None:
        if as_json:
            say_json(message)
        elif (text := line(message)) is not None:
            say(text)

    return tell


def _pace(config: Pipeline, every: str | None) -> float:
    """Seconds from the begin of one update to that of the next. Raises BadInput."""
    from distributary.config.quantities import seconds

    if every is None:
        return 0.0 if config.trigger.mode == "continuous" else config.trigger.every
    try:
        return seconds(every)
    except ValueError as e:
        raise BadInput(detail=f"--every {every!r}: {e}") from None


def _names(options: list[str] | None) -> tuple[str, ...]:
    return tuple(name.strip() for text in options or () for name in text.split(",") if name.strip())
