"""`workflow`: share the routes among Spark applications, and run these here or on Databricks."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distributary.cli.options import GROUP, File, Json
from distributary.cli.output import note, note_places, say, say_json, show
from distributary.cli.spread import Conf, division_in, settings
from distributary.cli.stream_lines import showing
from distributary.errors import BadInput, Exit
from distributary.kinds import PipelineKind, kind_of
from distributary.kinds.declarative import Declarative
from distributary.tables.faults import reading

if TYPE_CHECKING:
    from distributary.config import Pipeline
    from distributary.fleet.workflow.databricks import Started, Workspace
    from distributary.fleet.workflow.deploy import Prepared
    from distributary.fleet.workflow.placement import WorkflowPlan
    from distributary.shares import Division
    from distributary.supervisor.supervise import Supervisor

workflow = typer.Typer(**GROUP, help="Share the routes among Spark applications.")

Clusters = Annotated[int | None, typer.Option("--clusters", metavar="N", help="So many clusters.", show_default=False)]
PerCluster = Annotated[
    int | None,
    typer.Option(
        "--streams-per-cluster", metavar="K", help="As many clusters as it takes for K routes each.", show_default=False
    ),
]
RoutesFrom = Annotated[
    Literal["auto", "ledger", "bronze", "registry"],
    typer.Option("--routes-from", help="Where the routes are looked up. auto: ledger and bronze, else the registry."),
]
RoutesFile = Annotated[
    Path | None,
    typer.Option("--routes", metavar="LIST", help="The routes: a file with one a line.", show_default=False),
]
PlanOption = Annotated[
    Path | None, typer.Option("--plan-file", metavar="PLAN", help="A plan made before.", show_default=False)
]

Processes = Annotated[
    int | None,
    typer.Option(
        "--clusters",
        metavar="N",
        help="So many processes; without it as many as last time, at first 2.",
        show_default=False,
    ),
]
Via = Annotated[
    str | None,
    typer.Option(
        "--via",
        metavar="MASTER",
        help="Run the tasks on a Spark standalone cluster: spark://host:port.",
        show_default=False,
    ),
]
Cores = Annotated[
    int | None, typer.Option("--cores-per-cluster", metavar="C", min=1, help="Cores of each.", show_default=False)
]
Wheel = Annotated[
    Path | None, typer.Option("--wheel", help="The product's wheel (pip wheel --no-deps .).", show_default=False)
]
Profile = Annotated[str | None, typer.Option("--profile", help="Profile of ~/.databrickscfg.", show_default=False)]


@workflow.command("plan")
def plan(
    file: File,
    clusters: Clusters = None,
    per_cluster: PerCluster = None,
    routes_from: RoutesFrom = "auto",
    routes: RoutesFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PLAN", help="Write the plan to this file.", show_default=False)
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Hand the routes over to the new clusters. All streams must be stopped.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Share out the routes by measured load.

    Says what each cluster will carry, and which routes change their cluster. Big routes get a cluster of their own,
    small ones are put together, and as few move as it takes. Routes that appear later go by hash to the clusters with
    room, without a new plan.
    """
    config = load(file)
    from distributary.fleet.workflow.handover import hand_over
    from distributary.fleet.workflow.plan_text import plan_text

    is_one_stream(kind_of(config, file), True)
    new_plan, origin = make(config, clusters, per_cluster, routes_from, routes, followed(config))
    if out is not None:
        import json

        out.write_text(json.dumps(new_plan.to_json(), indent=1, ensure_ascii=False), encoding="utf-8")
    if apply:
        hand_over(config, new_plan.division, note)
    say_json({"applied": apply, **new_plan.to_json()}) if as_json else show(plan_text(new_plan, origin, applied=apply))


@workflow.command("local")
def local(
    file: File,
    clusters: Processes = None,
    plan_file: PlanOption = None,
    via: Via = None,
    cores: Cores = None,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, then end.")] = False,
    logs: Annotated[
        Path | None, typer.Option("--logs", metavar="DIR", help="Where each process's log goes.", show_default=False)
    ] = None,
    conf: Conf = None,
    as_json: Json = False,
) -> Exit:
    """Run the shares on this machine, and keep them running.

    Each cluster is a process with a log of its own. One that fails is started again after a rest that grows; after ten
    failures in a row, or an error that a restart does not fix, it is parked, and the others go on. Ctrl-C or SIGTERM
    ends all of them once their batches are done. Exit code 1 when a stream is parked or tables are.
    """  # fmt: skip
    config = load(file)
    from distributary.fleet.workflow.local import LocalRun, supervise

    is_whole = is_one_stream(kind_of(config, file), (clusters or 1) > 1 or plan_file is not None)
    division = None if is_whole else chosen(config, clusters, plan_file)
    folder = logs or Path("logs") / config.pipeline
    run = LocalRun(file, config, division, folder, once, via, cores, settings(conf))
    if not as_json:
        say(run.about())
    received: list[int] = []
    with showing(as_json) as shown:

        def handle(supervisor: Supervisor) -> None:
            shown.attach(supervisor)
            listen(supervisor, received)

        code = supervise(run, changed=shown.changed, batch=shown.batch, handle=handle)
    shown.ended(str(file))
    return Exit.INTERRUPTED if signal.SIGINT in received else code


@workflow.command("databricks")
def databricks(
    file: File,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the bundle goes.")] = Path("bundle"),
    wheel: Wheel = None,
    clusters: Clusters = None,
    per_cluster: PerCluster = None,
    per_route: Annotated[bool, typer.Option("--per-route", help="A task per route, spread over the clusters.")] = False,
    routes_from: RoutesFrom = "auto",
    routes: RoutesFile = None,
    plan_file: PlanOption = None,
    create: Annotated[bool, typer.Option("--create", help="Create or update the job in the workspace.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Start the job.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Run what failed in the last run again.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what --create has made; tables stay.")] = False,
    profile: Profile = None,
) -> None:
    """Write the jobs for Databricks as an Asset Bundle.

    With --create, --run and --repair it also makes the job, starts it, or runs anew what failed; with --delete it takes
    away what --create has made, and writes nothing.

    The bundle holds everything that a deployment takes: deploy it with `databricks bundle deploy`, or let --create do
    it through the Jobs API. Secrets stay references. Settings are in the section `databricks` of the pipeline file.
    Without --clusters or --streams-per-cluster it is as the pipeline is divided now, at first one cluster. A
    declarative pipeline becomes a Lakeflow pipeline, and a job of which each run is an update.
    """
    config = load(file, secrets=False, declarative=True)
    from distributary.fleet.workflow.databricks import Workspace, connect
    from distributary.fleet.workflow.deploy import prepare

    if (repair or delete) and create + run + repair + delete > 1:
        why = "repeats the last run as it is" if repair else "takes away what was made"
        raise BadInput(detail=f"--{'repair' if repair else 'delete'} {why}: give it alone")
    is_written = create or not (run or repair or delete)
    if is_written:
        config.check_portable(str(file))
        note_places(config, file)
    workspace = Workspace(connect(profile), config, note) if create or run or repair or delete else None
    target = workspace if create and workspace is not None else out
    kind = kind_of(config, file) if is_written else None
    is_whole = kind and is_one_stream(kind, (clusters or 1) > 1 or per_cluster or per_route or plan_file)
    if isinstance(kind, Declarative):
        deploy_declarative(config, file, wheel, target)
    elif kind is not None:
        now = followed(config)
        division: WorkflowPlan | Division | None = None
        if plan_file is None and not is_whole:
            division = now if not (clusters or per_cluster or per_route) else None
            count = clusters or (None if per_cluster else 1)
            division = division or make(config, count, per_cluster, routes_from, routes, now)[0]
        deploy(prepare(config, file, division, plan_file, per_route=per_route, wheel=wheel), file, target, now)
    if workspace is not None and delete:
        workspace.delete()
    elif workspace is not None and (run or repair):
        say_started(workspace.repair() if repair else workspace.run())


@workflow.command("restart")
def restart(
    file: File, stream: Annotated[str, typer.Argument(metavar="STREAM", help="Its name, as status shows it.")]
) -> None:
    """Ask the supervisor to start a stream now, also a parked one."""
    config = load(file)
    from distributary.state.streams import read_streams, request_restart
    from distributary.tables.store import Store

    store = Store.of(config.tables)
    names = [record.name for record in read_streams(config.state_root, store)]
    if stream not in names:
        raise BadInput(detail=f"there is no stream {stream!r}; there are: {', '.join(names) or 'none'}")
    request_restart(config.state_root, stream, store)
    say(f"asked for; see: distributary status {file}")


def say_started(started: Started) -> None:
    say(f"run {started.run_id} of job {started.job_id}: {started.url}")


# -- what they have in common --------------------------------------------------------------------------------


def load(file: Path, *, secrets: bool = True, declarative: bool = False) -> Pipeline:
    """The pipeline of a file. Raises BadInput for a declarative one, unless `declarative`."""
    from distributary.config import load as load_config

    config = load_config(file, secrets=secrets)
    if not declarative:
        kind_of(config, file).check_runs_here()
    return config


def deploy(prepared: Prepared, file: Path, target: Workspace | Path, now: Division | None) -> None:
    """Create the job in a workspace, or write its bundle into a folder. `now`: the division that the streams follow."""
    from distributary.fleet.workflow.deploy import write

    if isinstance(target, Path):
        write(prepared, target)
        say(f"wrote the bundle to {target}: {len(prepared.spread.units)} shares; {_deploy_it(target)}")
    else:
        target.create(prepared.file_name, prepared.file_text, prepared.spread, prepared.wheel_name, prepared.wheel)
    if now is not None and prepared.spread.division != now:
        note(
            "its streams follow another division now, and its tasks would refuse to run. Stop the streams, then: "
            f"distributary workflow plan {file} --clusters N --out plan.json --apply, and this command with "
            "--plan-file plan.json"
        )


def deploy_declarative(config: Pipeline, file: Path, wheel: Path | None, target: Workspace | Path) -> None:
    """Create the Lakeflow pipeline and its job in a workspace, or write their bundle into a folder."""
    from distributary.fleet.workflow.pipeline_bundle import pipeline_bundle

    bundle = pipeline_bundle(config, file, wheel)
    if isinstance(target, Path):
        bundle.write(target)
        say(f"wrote the bundle to {target}: a pipeline into {bundle.place} and its job; {_deploy_it(target)}")
    else:
        bundle.install(target)


def _deploy_it(folder: Path) -> str:
    return f"cd {folder} && databricks bundle deploy"


def make(
    config: Pipeline,
    clusters: int | None,
    per_cluster: int | None,
    routes_from: Literal["auto", "ledger", "bronze", "registry"],
    routes: Path | None,
    before: Division | None,
) -> tuple[WorkflowPlan, str]:
    """A plan for the routes that are found, and where they were found. `before`: the division that holds now."""
    from distributary.fleet.workflow.placement import make_plan
    from distributary.fleet.workflow.route_loads import discover

    discovered = discover(config, routes_from, routes)
    plan = make_plan(
        config.pipeline,
        discovered.loads,
        clusters=clusters,
        routes_per_cluster=per_cluster,
        before=before,
    )
    return plan, discovered.where


def chosen(config: Pipeline, clusters: int | None, plan_file: Path | None) -> Division:
    """The division to run: of the plan file, else the one that the pipeline follows, else by hash (over two clusters
    unless told otherwise).

    Raises ShareConflict where the pipeline follows one of another number of clusters.
    """
    from distributary.shares import Division

    if plan_file is not None:
        return division_in(plan_file)
    now = followed(config)
    if now is not None and clusters in (None, len(now.clusters)):
        return now
    return Division.even(clusters or 2)


def followed(config: Pipeline) -> Division | None:
    """The division that the pipeline's streams follow now. Raises StoreUnreadable."""
    from distributary.state.divisions import current
    from distributary.tables.store import Store

    with reading(config.state_root):
        followed_now = current(config, Store.of(config.tables))
    return None if followed_now is None else followed_now.division


def is_one_stream(kind: PipelineKind, asked_to_spread: object) -> bool:
    """Is it a pipeline whose routes cannot be shared out? Raises BadInput where that was asked for."""
    if kind.one_stream is not None and asked_to_spread:
        raise BadInput(detail=kind.one_stream)
    return kind.one_stream is not None


def listen(supervisor: Supervisor, received: list[int]) -> None:
    """Ctrl-C and SIGTERM stop the supervisor; a second one stops it at once."""

    def on_signal(number: int, _frame: Any) -> None:
        received.append(number)
        supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
