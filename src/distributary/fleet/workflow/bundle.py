"""A division -> a Databricks Asset Bundle: databricks.yml, the job, and what the job needs. Pure but for reading files.

    databricks.yml              the bundle and its targets
    resources/<job>.job.yml     the job: a task for hop 1, one per share, job clusters, retries, notices, health rules
    src/<pipeline file>         as it is: references to secrets stay references
    src/plan.json               which share takes which routes
    src/requirements.txt        what the wheel needs besides the runtime's own Spark and Arrow
    dist/*.whl                  the product itself

Forms follow the Jobs API 2.2 and the bundle configuration reference (docs.databricks.com/dev-tools/bundles/reference).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import requires, version
from typing import Any

import yaml

from distributary.config import Pipeline
from distributary.fleet.workflow.overriding import over_cluster, over_job
from distributary.fleet.workflow.placement import WorkflowPlan
from distributary.names import counted, table_name
from distributary.shares import Cluster, Division

PACKAGE = "distributary"
ENTRY_POINT = "distributary-job"
TAG = "distributary"
"""The tag by which a job, a pipeline or a cluster says which pipeline's it is."""
FILES = "${workspace.file_path}/src"
HOP_1 = ("--hop", "1")
HOP_2 = ("--hop", "2")

PROVIDED = ("pyspark", "delta-spark", "pyarrow", "pandas", "numpy")
"""The runtime has these in versions that fit each other; another pyspark on its path breaks it."""

_MAX_KEY_CHARS = 100


@dataclass(frozen=True)
class ShareTask:
    """A task that runs one share: the name of its cluster in the division, and the job cluster it runs on."""

    name: str
    job_cluster: str


@dataclass(frozen=True)
class Spread:
    """What the tasks of a job run: a division, and where each part of it runs. `division` None: one task takes all."""

    division: Division | None
    units: tuple[ShareTask, ...]

    @classmethod
    def whole(cls) -> Spread:
        """One task for a pipeline that is one stream."""
        return cls(None, (ShareTask("stream", "stream"),))

    @classmethod
    def per_cluster(cls, division: Division) -> Spread:
        """A task, and a job cluster, per cluster."""
        return cls(division, tuple(ShareTask(c.name, c.name) for c in division.clusters))

    @classmethod
    def per_route(cls, plan: WorkflowPlan) -> Spread:
        """A task per route on the job cluster that the plan says, and one for routes that come later."""
        units = [ShareTask(_route_key(route), c.name) for c in plan.clusters for route in c.routes]
        per_route = [Cluster(_route_key(route), (route,)) for c in plan.clusters for route in c.routes]
        lightest = min(plan.clusters, key=lambda c: (not c.takes_new_routes, c.weight, c.name))
        rest = ShareTask("new-routes", lightest.name)
        return cls(Division((*per_route, Cluster(rest.name)), (rest.name,)), (*units, rest))


def _route_key(route: str) -> str:
    """A task's key: readable, and no two routes have the same one."""
    name = table_name(route)
    if len(name) <= _MAX_KEY_CHARS - 2:
        return f"r-{name}"
    return f"r-{name[: _MAX_KEY_CHARS - 11]}-{zlib.crc32(name.encode()):08x}"


@dataclass(frozen=True)
class Bundle:
    """The files of a bundle by their path in it; the wheel is added as bytes."""

    name: str
    job: Mapping[str, Any] = field(repr=False)
    texts: Mapping[str, str] = field(repr=False)


def title(config: Pipeline) -> str:
    """The name of what a pipeline has in a workspace: its job, its Lakeflow pipeline."""
    return f"distributary {config.pipeline}"


def tags(config: Pipeline) -> dict[str, str]:
    """Those of the pipeline file, and `TAG`."""
    return {**config.databricks.tags, TAG: config.pipeline}


def bundle_name(config: Pipeline) -> tuple[str, str]:
    """A bundle's name, and the key of its resources: `${resources.jobs.<key>.id}`."""
    name = f"distributary-{config.pipeline}"
    return name, name.replace("-", "_")


def bundle(config: Pipeline, file_name: str, file_text: str, spread: Spread, wheel: str) -> Bundle:
    """The bundle of a pipeline. `wheel`: the file name of the wheel in `dist/`."""
    name, key = bundle_name(config)
    job = job_settings(config, spread, f"{FILES}/{file_name}", f"{FILES}/plan.json", libraries(wheel))
    texts = {
        "databricks.yml": as_yaml(root(name)),
        f"resources/{name}.job.yml": as_yaml({"resources": {"jobs": {key: job}}}),
        f"src/{file_name}": file_text,
        "src/requirements.txt": "\n".join(requirements()) + "\n",
    }
    if spread.division is not None:
        texts["src/plan.json"] = json.dumps(spread.division.to_json(), indent=1, ensure_ascii=False) + "\n"
    return Bundle(name, job, texts)


def libraries(wheel: str, files: str = "../src", dist: str = "../dist") -> list[dict[str, str]]:
    """What a task installs. By default local paths, seen from `resources/`: deploying a bundle uploads what they
    name."""
    return [{"requirements": f"{files}/requirements.txt"}, {"whl": f"{dist}/{wheel}"}]


def requirements() -> list[str]:
    """What the product needs and the runtime does not have, in the versions that are installed here."""
    plain = [line for line in requires(PACKAGE) or () if ";" not in line]
    needed = [(line, _project(line)) for line in plain if _project(line) not in PROVIDED]
    return [f"{line[: len(name)]}{_extras(line[len(name) :])}=={version(name)}" for line, name in needed]


def _extras(rest: str) -> str:
    return rest[: rest.index("]") + 1] if rest.startswith("[") else ""


def _project(requirement: str) -> str:
    for index, character in enumerate(requirement):
        if not (character.isalnum() or character in "-_."):
            return requirement[:index].lower()
    return requirement.lower()


# -- the job -------------------------------------------------------------------------------------------------


def job_settings(
    config: Pipeline, spread: Spread, file: str, plan_file: str, libraries: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Settings of the job, as the Jobs API takes them. `file`, `plan_file`: where the tasks find them."""
    clusters = list(dict.fromkeys(unit.job_cluster for unit in spread.units))
    two_hop = config.bronze_table is not None
    extent = f"{counted(len(spread.units), 'share')} on {counted(len(clusters), 'cluster')}"
    job: dict[str, Any] = {
        "name": title(config),
        "description": f"Pipeline {config.pipeline}: {extent}",
        "max_concurrent_runs": 1,
        "tags": tags(config),
        "job_clusters": [
            {"job_cluster_key": name, "new_cluster": machine(config)}
            for name in (["bronze"] if two_hop else []) + clusters
        ],
        "tasks": _tasks(config, spread, file, plan_file, libraries),
        **notifications(config, ["on_failure"] + (["on_streaming_backlog_exceeded"] if _rules(config) else [])),
        **_health(config),
        **trigger(config),
    }
    return over_job(config, job)


def _tasks(
    config: Pipeline, spread: Spread, file: str, plan_file: str, libraries: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    keys = config.databricks
    once = ["--once"] if keys.schedule is not None else []

    def task(key: str, cluster: str, arguments: Sequence[str], after: Sequence[str]) -> dict[str, Any]:
        wheel = {"package_name": PACKAGE, "entry_point": ENTRY_POINT, "parameters": ["run", file, *arguments]}
        settings: dict[str, Any] = {"task_key": key, "job_cluster_key": cluster, "python_wheel_task": wheel}
        settings["libraries"] = [dict(library) for library in libraries]
        if keys.continuous:
            return settings  # the platform restarts it, and takes neither retries nor dependencies
        if after:
            settings["depends_on"] = [{"task_key": name} for name in after]
        return settings | retries(config)

    tasks, first = [], []
    if config.bronze_table is not None:
        if not keys.continuous:
            # Makes the bronze table, so that no share starts before there is one.
            tasks.append(task("bronze", "bronze", [*HOP_1, "--once"], []))
            first = ["bronze"]
        if keys.schedule is None:
            tasks.append(task("bronze-on", "bronze", HOP_1, first))
    hop = HOP_2 if config.bronze_table is not None else ()
    for unit in spread.units:
        share = () if spread.division is None else ("--plan-file", plan_file, "--cluster", unit.name)
        arguments = [*hop, *share, *once]
        tasks.append(task(unit.name, unit.job_cluster, arguments, first))
    return tasks


def retries(config: Pipeline) -> dict[str, Any]:
    """How often a task that failed is tried again."""
    keys = config.databricks
    return {
        "max_retries": keys.retries,
        "retry_on_timeout": True,
        "min_retry_interval_millis": int(keys.retry_after * 1000),
    }


def machine(config: Pipeline) -> dict[str, Any]:
    """The cluster that a task runs on."""
    keys = config.databricks
    cluster: dict[str, Any] = {"spark_version": keys.spark_version, "num_workers": keys.workers}
    placement = {"node_type_id": keys.node_type, "instance_pool_id": keys.pool, "policy_id": keys.policy}
    cluster |= {key: value for key, value in placement.items() if value is not None}
    conf, custom_tags = dict(keys.spark_conf), tags(config)
    if keys.workers == 0:
        conf = {"spark.databricks.cluster.profile": "singleNode", "spark.master": "local[*, 4]", **conf}
        custom_tags["ResourceClass"] = "SingleNode"
    if keys.policy is not None:
        cluster["apply_policy_default_values"] = True
    if conf:
        cluster["spark_conf"] = conf
    if keys.secrets:
        cluster["spark_env_vars"] = {n: "{{secrets/" + place + "}}" for n, place in keys.secrets.items()}
    return over_cluster(config, {**cluster, "custom_tags": custom_tags, "data_security_mode": "SINGLE_USER"})


def notifications(config: Pipeline, events: Sequence[str]) -> dict[str, Any]:
    """Who is told of a job's events."""
    keys = config.databricks
    settings: dict[str, Any] = {}
    if keys.email:
        settings["email_notifications"] = {event: list(keys.email) for event in events}
    if keys.webhooks:
        settings["webhook_notifications"] = {event: [{"id": i} for i in keys.webhooks] for event in events}
    return settings


def _health(config: Pipeline) -> dict[str, Any]:
    rules = _rules(config)
    return {"health": {"rules": rules}} if rules else {}


def _rules(config: Pipeline) -> list[dict[str, Any]]:
    keys = config.databricks
    limits = {"STREAMING_BACKLOG_SECONDS": keys.max_backlog, "STREAMING_BACKLOG_RECORDS": keys.max_backlog_rows}
    return [{"metric": metric, "op": "GREATER_THAN", "value": int(limit)} for metric, limit in limits.items() if limit]


def trigger(config: Pipeline) -> dict[str, Any]:
    """What starts a job by itself; nothing where nothing does."""
    keys = config.databricks
    if keys.continuous:
        return {"continuous": {"pause_status": "UNPAUSED", "task_retry_mode": "ON_FAILURE"}}
    if keys.schedule is None:
        return {}
    schedule = {"quartz_cron_expression": keys.schedule, "timezone_id": keys.timezone, "pause_status": "UNPAUSED"}
    return {"schedule": schedule}


def root(name: str) -> dict[str, Any]:
    """databricks.yml."""
    return {
        "bundle": {"name": name},
        "include": ["resources/*.yml"],
        "targets": {
            "dev": {"mode": "development", "default": True},
            "prod": {"mode": "production", "workspace": {"root_path": f"/Workspace/Shared/.bundle/{name}"}},
        },
    }


def as_yaml(value: Any) -> str:
    """A file of a bundle."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return "# Written by `distributary workflow databricks`; write it again rather than edit it.\n" + text
