"""Keys of the jobs on Databricks that `distributary workflow databricks` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator, model_validator

from distributary.config.base import Model, fault
from distributary.config.quantities import Duration, Option, Text

if TYPE_CHECKING:
    from distributary.config.pipeline import Pipeline

_SECRET = re.compile(r"[\w.@-]{1,128}/[\w.@-]{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


def no_place_for_tables(place: str) -> str | None:
    """Why Delta tables that tasks write cannot lie at `place` on Databricks, with what to do; None where they can."""
    path = place.removeprefix("dbfs:").removeprefix("file:")
    if not path.startswith("/"):
        return None
    if path.startswith("/Volumes/"):
        why = "a volume is no place for tables: its mount has no hard links, by which a commit is made once"
    elif place.startswith("dbfs:") or path.startswith("/dbfs/"):
        why = "DBFS is no place for tables: its mount has no hard links, by which a commit is made once"
    else:
        why = "this is a folder of one machine, which goes with its cluster"
    return f"{why}; give the address of an external location, s3://, abfss:// or gs://"


def not_on_databricks(config: Pipeline) -> Iterator[tuple[str, str]]:
    """Keys whose places cannot hold what tasks write on Databricks, and why. Where those of a declarative pipeline
    lie is for Unity Catalog to decide."""
    if not config.is_declarative:
        places = {"tables.root": config.tables.root, "state": config.state, "bronze.path": config.bronze.path}
        for key, place in places.items():
            if place is not None and (why := no_place_for_tables(place)) is not None:
                yield key, why


class Overrides(Model):
    """Settings as the Jobs API has them, over those that are written otherwise; `null` takes one away."""

    job: dict[str, Any] = Field(default={}, description="Of the job: `{timeout_seconds: 7200}`.")
    cluster: dict[str, Any] = Field(
        default={},
        description="Of each cluster: `{aws_attributes: {availability: SPOT_WITH_FALLBACK}, driver_node_type_id: "
        "m5d.2xlarge, autoscale: {min_workers: 1, max_workers: 4}, init_scripts: [...]}`.",
    )
    tasks: dict[str, dict[str, Any]] = Field(
        default={},
        description="Of tasks, by their key, `*` and `?` as in file names; later ones go before earlier ones: "
        '`{"*": {timeout_seconds: 3600}, bronze: {max_retries: 3}}`.',
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        ours = [("job", self.job, _OUR_JOB), ("cluster", self.cluster, _OUR_CLUSTER)]
        ours += [(f"tasks.{key}", task, _OUR_TASK) for key, task in self.tasks.items()]
        for place, settings, reserved in ours:
            for key in settings:
                if key in reserved:
                    raise fault(f"{place}.{key}", f"not allowed here: {reserved[key]}")
        return self


_OURS = "the pipeline says it"
_OUR_JOB = dict.fromkeys(("name", "tasks", "job_clusters", "max_concurrent_runs"), _OURS) | {
    "tags": "give databricks.tags"
}
_OUR_CLUSTER = {"custom_tags": "give databricks.tags", "num_workers": "give databricks.workers"}
_OUR_TASK = dict.fromkeys(("task_key", "python_wheel_task", "pipeline_task", "job_cluster_key", "libraries"), _OURS)


class Databricks(Model):
    spark_version: Text = Field(default="17.3.x-scala2.13", description="The runtime of the job clusters.")
    node_type: Text | None = Field(default=None, description="Machine type of the job clusters. Either this or pool.")
    pool: Text | None = Field(default=None, description="Id of the instance pool that the machines come from.")
    policy: Text | None = Field(default=None, description="Id of the cluster policy; it may give the machine type too.")
    workers: int = Field(default=0, ge=0, description="Workers of each job cluster; 0: one machine does all.")
    schedule: Text | None = Field(
        default=None,
        description="Quartz cron: at these times each stream takes what is there, then ends (AvailableNow). Without it "
        "the streams run on.",
    )
    timezone: Text = Field(default="UTC", description="Time zone of schedule.")
    continuous: bool = Field(
        default=False,
        description="Streams that run on are started and restarted by the platform, which allows neither retries nor "
        "dependencies of our own. Without it, `--run` starts them. Not for `layout: declarative`.",
    )
    retries: int = Field(default=10, ge=0, description="Restarts of a task that failed.")
    retry_after: Duration = Field(default=30.0, description="The time between them.")
    email: list[Text] = Field(default=[], description="Addresses that are told of failures and of a growing backlog.")
    webhooks: list[Text] = Field(default=[], description="Ids of notification destinations that are told too.")
    max_backlog: Duration | None = Field(default=600.0, description="A longer delay of the streams is told.")
    max_backlog_rows: int | None = Field(default=None, ge=1, description="More rows waiting at the source are told.")
    secrets: dict[str, Text] = Field(
        default={},
        description="Environment variable to `scope/key`: secrets for `${env:NAME}` in this file. "
        "`${databricks:scope/key}` needs no entry.",
    )
    spark_conf: dict[str, Option] = Field(default={}, repr=False, description="Spark settings of the job clusters.")
    tags: dict[str, Option] = Field(default={}, description="Tags of the jobs and their machines.")
    overrides: Overrides = Field(default=Overrides(), description="Settings of your own, of jobs, clusters and tasks.")

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, cron: str | None) -> str | None:
        if cron is not None and len(cron.split()) not in (6, 7):
            raise ValueError("allowed: Quartz cron, which begins with seconds, as in '0 0/15 * * * ?'")
        return cron

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, str]) -> dict[str, str]:
        for name, place in secrets.items():
            if not _VARIABLE.fullmatch(name) or not _SECRET.fullmatch(place):
                raise ValueError("allowed: NAME: scope/key, the name of a variable and the place of a secret")
        return secrets

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.node_type is not None and self.pool is not None:
            raise fault("pool", "a pool has its own machine type: give node_type or pool, not both")
        if self.schedule is not None and self.continuous:
            raise fault("continuous", "streams run on, or end and start by schedule: give schedule or continuous")
        return self
