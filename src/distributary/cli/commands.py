"""The verbs. Names, flags and JSON keys are fixed: scripts depend on them.

Nothing heavy is imported up here: `check` and `--help` answer without Spark, Arrow or Delta.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from distributary.cli.doctor import doctor
from distributary.cli.grants import grants
from distributary.cli.history import history
from distributary.cli.init import init
from distributary.cli.inspect import inspect
from distributary.cli.lean import be_lean
from distributary.cli.log_format import LogFormat, OwnLogFormat, set_up
from distributary.cli.options import GROUP, File, Force, Json, Yes
from distributary.cli.output import note, note_places, say, say_json, show
from distributary.cli.output import watch as show_again
from distributary.cli.pipeline import pipeline
from distributary.cli.plugins import plug_in
from distributary.cli.quarantine import quarantine
from distributary.cli.running import go
from distributary.cli.serve import serve, write_page
from distributary.cli.slips import slips
from distributary.cli.spread import (
    ClusterOption,
    Conf,
    HopOption,
    PlanFile,
    ShareOption,
    Supervised,
    first_hop,
    hops_of,
    spread,
)
from distributary.cli.upkeep import maintain, reconcile, resync, views
from distributary.cli.workflow import workflow
from distributary.errors import BadInput, ConfigError, Exit, Reason, SqlInvalid
from distributary.kinds import HandedToStream, kind_of
from distributary.log_context import of_process
from distributary.version import __version__

if TYPE_CHECKING:
    from distributary.config import Pipeline

app = typer.Typer(name="distributary", pretty_exceptions_enable=False, **GROUP)


def _version(show_version: bool) -> None:
    if show_version:
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
    log_format: LogFormat = None,
) -> None:
    """One stream of messages in, one Delta table per route out, exactly once, on Apache Spark.

    Exit codes: 0 fine; 1 done, but something needs attention (a parked table, rows lost, a limit that stopped the run);
    2 bad input; 3 the environment (Java, broker, registry, store); 130 interrupted.
    """
    set_up(log_format or "plain")
    logging.getLogger("distributary").setLevel(logging.DEBUG if debug else logging.INFO)
    # An error in a batch comes to us as it is; py4j logs its traceback on the way.
    logging.getLogger("py4j").setLevel(logging.WARNING if debug else logging.CRITICAL)


# -- pipeline files ----------------------------------------------------------------------------------------


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The pipeline file (YAML).", show_default=False)
    ] = None,
    from_env: Annotated[
        bool,
        typer.Option(
            "--from-env", help="Print a pipeline file made from the environment variables of the Scala connector."
        ),
    ] = False,
    without_secrets: Annotated[
        bool, typer.Option("--without-secrets", help="Leave references such as ${env:NAME} unread, as in CI.")
    ] = False,
) -> None:
    """Check a pipeline file; start nothing.

    Every fault is one line: file, key, line number, what is allowed. Takes no Spark and no network. The files of
    declarative.libraries and registry.texts are linted too.
    """
    if from_env == (file is not None):
        raise BadInput(detail="check: give a pipeline file, or --from-env")
    if file is None:
        from distributary.config.environment import environment
        from distributary.config.migrating import from_environment

        say(from_environment(environment()).text().rstrip())
        return
    config = load_file(file, secrets=not without_secrets)
    if any(config.tables.row_settings_of(route)[:2] != ([], None) for route in ("", *config.tables.routes)):
        from distributary.config.loading import line_of
        from distributary.schemas.row_sql import check_sql

        try:
            check_sql(config.tables)
        except SqlInvalid as e:
            key, sql, detail = (e.parameters[name] for name in ("key", "sql", "detail"))
            detail = f"{sql!r} cannot be evaluated: {detail}{line_of(file, key)}"
            raise ConfigError(file=str(file), key=key, detail=detail) from e
    if config.registry is not None and config.registry.texts:
        from distributary.schemas.registry.by_hand import check_texts

        check_texts(config.registry)
    kind_of(config, file).check()
    if "databricks" in config.model_fields_set:
        note_places(config, file)
    for slip in slips(config):
        note(f"{file}: {slip}")
    say(f"{file} is valid: pipeline {config.pipeline}, source {config.source.type}, tables below {config.tables.root}")


@app.command()
def schema() -> None:
    """Print the JSON schema of pipeline files.

    For editors, which then check a file while it is typed: `distributary schema > pipeline.schema.json`.
    """
    import json

    from distributary.config.json_schema import pipeline_schema

    say(json.dumps(pipeline_schema(), indent=2, ensure_ascii=False))


@app.command()
def plan(
    file: File,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="What this schema would change (.proto, .avsc, .json).", show_default=False
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="NAME", help="Or the newest one of this subject.", show_default=False),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option("--message", metavar="NAME", help="Which message of it, else the first.", show_default=False),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option("--route", help="Which tables, whatever they hold; may be repeated.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> Exit:
    """Say what a run would do now; write nothing.

    For what is waiting in the source: tables and rows, new tables, new columns, type changes, the engine, and what
    would be quarantined and why. All of it is read and decoded, so it takes about as long as a run does.

    With --schema or --subject: what a schema would change in the tables that hold rows of its message, by the run's own
    rules and without looking at a record, as a check for the producers' own CI. Exit code 1 where values would be
    quarantined, 2 where the schema does not compile.
    """
    config = load_file(file)
    if schema is not None or subject is not None:
        from distributary.audit.foresight import foresee
        from distributary.cli.render_history import foresight_text

        foresight = foresee(config, file=schema, subject=subject, message=message, routes=route or ())
        say_json(foresight.to_json()) if as_json else show(foresight_text(foresight))
        return foresight.exit_code
    if message is not None or route:
        raise BadInput(detail="plan: --message and --route go with --schema or --subject")
    planned = kind_of(config, file).plan()
    from distributary.cli.render import plan_text

    say_json(planned.to_json()) if as_json else show(plan_text(planned))
    return Exit.OK


@app.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, then end.")] = False,
    share: ShareOption = None,
    plan_file: PlanFile = None,
    cluster: ClusterOption = None,
    hop: HopOption = None,
    conf: Conf = None,
    force: Force = False,
    supervised: Supervised = False,
    log_format: OwnLogFormat = None,
    as_json: Json = False,
) -> Exit:
    """Run a pipeline.

    It goes on until it is stopped or, with --once, until it has taken all that is there. Ctrl-C or SIGTERM ends it
    once the batch being written is done; a second one, or trigger.stop_within, ends it at once, and the next run
    finishes that batch.

    A pipeline's first batch of which no record can be read as the file says is taken for a mistake in the file: the
    run ends with exit code 2 and says what the records look like. Later such records are quarantined.

    With `metrics` in the file its figures are served to Prometheus or pushed by OTLP, see docs/monitoring.md.

    Exit code 1 when tables are parked or a quarantine limit stopped it; 130 after Ctrl-C, or where a batch was left
    unfinished; SIGTERM is a normal end.
    With --json: a line per batch ("kind": "batch"), then one for the run ("kind": "run"). A batch that an earlier run
    had finished, and had no time to tell of, says so ("already"); it is not in the run's sums.
    """
    if log_format is not None:
        set_up(log_format)
    config = load_file(file)
    kind_of(config, file).check_runs_here()
    config = first_hop(config, conf) if hop == 1 else spread(config, share, plan_file, cluster, conf)
    return go(config, file, hops=hops_of(config, hop), once=once, force=force, supervised=supervised, as_json=as_json)


@app.command()
def status(
    file: File,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every 2 seconds, until Ctrl-C.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="OUT", help="Write `serve`'s page as one file.", show_default=False),
    ] = None,
) -> Exit:
    """Show each table: rows, lag, bad rows, state.

    `age`: since rows were written last; `event lag`: how old the newest record is by the source's own time. Works
    beside a run, and without Spark. The worst tables stand first. Exit code 1 when a table is parked, a stream has
    fallen, or more than half of the rows of a table's or the pipeline's last batch were quarantined (without --watch
    and --html); the first line says the same in words.
    """
    if (as_json, watch, html is not None).count(True) > 1:
        raise BadInput(detail="--json, --watch and --html exclude each other; give one of them")
    be_lean()
    kind = kind_of(load_file(file), file)
    if html is not None:
        write_page(file, html)
        return Exit.OK
    from distributary.audit import status as states

    if watch:
        show_again(lambda: states.watched(kind.status(), str(file)))
        return Exit.OK
    state = kind.status()
    say_json(state.to_json()) if as_json else show(states.render(state, str(file)))
    return state.exit_code


@app.command()
def verify(
    file: File,
    deep: Annotated[bool, typer.Option(help="Of messages, compare every row with its record, not a sample.")] = False,
    as_json: Json = False,
) -> Exit:
    """Recount the tables against the ledger.

    Reads the data files of every table and of the quarantine. Exit code 0 only if nothing is lost or doubled. Of change
    files, reads all files again by code of its own, and judges every event of the logs and every row of merged
    tables. Of messages, decodes a sample of each route and schema id anew, by the official library, and compares every
    value with its row.
    """
    kind = kind_of(load_file(file), file)
    if not kind.reads_foreign_files:
        be_lean()
    verification = kind.verify(deep=deep)
    from distributary.cli.render import verification_text

    say_json(verification.to_json()) if as_json else show(verification_text(verification))
    return verification.exit_code


@app.command()
def replay(
    file: File,
    route: Annotated[str | None, typer.Option(help="Only rows of this route.", show_default=False)] = None,
    reason: Annotated[
        Reason | None,
        typer.Option(
            metavar="REASON",
            help="Only rows quarantined for this reason. Messages of KILLED_READER: only if it is given.",
        ),
    ] = None,
    as_json: Json = False,
) -> Exit:
    """Bring quarantined rows into their tables.

    Exactly once, and only rows whose cause is fixed. Exit code 1 when rows stay in the quarantine. Of change files, the
    files are read again at the source: by the run that goes on, or here where there is none.
    """
    report = kind_of(load_file(file), file).replay(route, None if reason is None else {reason})
    if isinstance(report, HandedToStream):
        note(f"{report.rows} rows: the run that goes on takes their files now")
        return Exit.OK
    from distributary.cli.render import replay_text

    say_json(vars(report)) if as_json else show(replay_text(report))
    return Exit.ATTENTION if report.left or report.failed or report.unsure else Exit.OK


@app.command()
def clean(
    file: File,
    hop: Annotated[
        Literal["2"] | None,
        typer.Option("--hop", help="Layout two_hop: leave bronze and hop 1; hop 2 begins anew.", show_default=False),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove what a pipeline made.

    Tables, views, ledger, quarantine and checkpoints go together, those of all shares too, and nothing else: a table
    goes only if it says itself, and its log shows, that this pipeline made it. Says what it would remove and what
    stays, and why; with --yes it does it. One that was interrupted is done again; until then no run starts.
    """
    config = load_file(file)
    from distributary.cli.render import clean_text
    from distributary.repair.clean import apply, forget_names
    from distributary.repair.clean import clean as plan_cleaning

    cleaning = plan_cleaning(config, hop_2=hop is not None)
    if yes:
        cleaning = apply(forget_names(cleaning))
    say_json({"done": yes, **cleaning.to_json()}) if as_json else show(clean_text(cleaning, is_removed=yes))


def load_file(file: Path, *, secrets: bool = True) -> Pipeline:
    from distributary.config import load

    config = load(file, secrets=secrets)
    of_process(pipeline=config.pipeline)
    return config


# -- verbs of other modules -----------------------------------------------------------------------------------------

app.command("doctor")(doctor)
app.command("history")(history)
app.command("init")(init)
app.command("inspect")(inspect)
app.command("quarantine")(quarantine)
app.command("serve")(serve)
app.command("grants")(grants)
app.command("maintain")(maintain)
app.command("resync")(resync)
app.command("reconcile")(reconcile)
app.command("views")(views)
app.add_typer(workflow, name="workflow")
app.add_typer(pipeline, name="pipeline")
plug_in(app)
