"""Options of `run` that say which share of the routes it takes, and on which Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributary.errors import BadInput

if TYPE_CHECKING:
    from distributary.config import Pipeline
    from distributary.shares import Division

ShareOption = Annotated[
    str | None,
    typer.Option("--share", metavar="I/N", help="Take share I of N of the routes, by hash.", show_default=False),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan-file", metavar="PLAN", help="A plan of `workflow plan`; needs --cluster.", show_default=False),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="The cluster of the plan to be.", show_default=False)
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting, over the file's.", show_default=False),
]


Supervised = Annotated[
    bool, typer.Option("--supervised", help="A supervisor sends the notices of this run.", hidden=True)
]
HopOption = Annotated[
    int | None,
    typer.Option(
        "--hop",
        min=1,
        max=2,
        help="Layout two_hop: run this hop only. A share runs hop 2, unless told otherwise.",
        show_default=False,
    ),
]


def hops_of(config: Pipeline, hop: int | None) -> tuple[int, ...]:
    """Which hops this process runs. Raises BadInput for a pipeline of one hop."""
    if hop is not None and config.bronze_table is None:
        raise BadInput(detail=f"--hop {hop}: layout {config.layout} has one hop; only two_hop has two")
    if hop is not None:
        return (hop,)
    # The source is read once, by hop 1; each share reads bronze.
    return (2,) if config.share is not None else (1, 2)


def first_hop(config: Pipeline, conf: Sequence[str] | None) -> Pipeline:
    """The pipeline for a process that runs hop 1 only. Raises BadInput."""
    return with_conf(config, settings(conf))


def spread(
    config: Pipeline, share: str | None, plan_file: Path | None, cluster: str | None, conf: Sequence[str] | None
) -> Pipeline:
    """The pipeline as this process is to run it. Raises ShareInvalid, ShareConflict, BadInput."""
    from distributary.state.divisions import claim
    from distributary.tables.store import Store

    with_settings = with_conf(config, settings(conf))
    share_taken = taken_share(share, plan_file, cluster)
    generation = claim(config, None if share_taken is None else share_taken[0], Store.of(config.tables))
    return (
        with_settings
        if share_taken is None
        else with_settings.for_share(share_taken[0].share(share_taken[1], generation))
    )


def taken_share(share: str | None, plan_file: Path | None, cluster: str | None) -> tuple[Division, str] | None:
    """The division and the cluster in it that the options name; None for all routes. Raises ShareInvalid, BadInput."""
    from distributary.shares import Division, parse_share

    if (plan_file is None) != (cluster is None) or (share is not None and plan_file is not None):
        raise BadInput(detail="give --share I/N, or --plan-file PLAN with --cluster NAME, or none of them")
    if plan_file is not None and cluster is not None:
        return division_in(plan_file), cluster
    if share is None:
        return None
    parsed = parse_share(share)
    return Division.even(parsed.count), parsed.name


def division_in(plan_file: Path) -> Division:
    """The division in a plan file. Raises ShareInvalid, BadInput."""
    from distributary.config.text_files import read_text
    from distributary.shares import read_plan

    try:
        text = read_text(plan_file)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise BadInput(detail=f"--plan-file {plan_file} cannot be read: {why}") from e
    return read_plan(text, origin=str(plan_file))


def settings(conf: Sequence[str] | None) -> dict[str, str]:
    """Spark settings from KEY=VALUE. Raises BadInput."""
    pairs = [text.partition("=") for text in conf or ()]
    if wrong := [key for key, equals, _ in pairs if not key or not equals]:
        raise BadInput(detail=f"--conf {wrong[0]}: allowed: KEY=VALUE, as spark.cores.max=4")
    return {key: value for key, _, value in pairs}


def with_conf(config: Pipeline, conf: Mapping[str, str]) -> Pipeline:
    """The pipeline with these Spark settings over its own; `spark.master` replaces the file's master."""
    if not conf:
        return config
    master = conf.get("spark.master", config.spark.master)
    rest = {key: value for key, value in conf.items() if key != "spark.master"}
    spark = config.spark.model_copy(update={"master": master, "conf": {**config.spark.conf, **rest}})
    return config.model_copy(update={"spark": spark})
