"""A declarative pipeline -> a Databricks Asset Bundle: the Lakeflow pipeline, and the job that updates it.

    databricks.yml                    the bundle and its targets
    resources/<name>.pipeline.yml     the pipeline: where it publishes, its sources, what they need, its machines
    resources/<name>.job.yml          the job: one task, an update per run; schedule, retries, notices
    src/                              pipeline.yaml as it is, the definitions, the user's own files
    dist/*.whl                        the product itself

Forms follow the Pipelines API 2.0, the Jobs API 2.2 and the bundle configuration reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.config import Pipeline
from distributary.declarative.datasets import CATALOG, Datasets
from distributary.declarative.lakeflow import QUARANTINE, quarantine_view
from distributary.declarative.project import CODE, includes, sources
from distributary.errors import BadInput
from distributary.fleet.workflow.bundle import (
    as_yaml,
    bundle_name,
    machine,
    notifications,
    requirements,
    retries,
    root,
    tags,
    title,
    trigger,
)
from distributary.fleet.workflow.databricks import Workspace
from distributary.fleet.workflow.deploy import find_wheel
from distributary.fleet.workflow.overriding import over_job
from distributary.fleet.workflow.wheel import without_requirements

ALERTS = ("on-update-fatal-failure", "on-flow-failure")
"""What the pipeline tells by itself; that a run of the job failed, the job tells."""

_SET_BY_PLATFORM = ("spark_version", "data_security_mode")
"""Attributes of a cluster that a pipeline may not set ("Configure classic compute for pipelines")."""

_ENDLESS = (
    "databricks.continuous: a continuous job runs one update without end, and what an update defines is fixed when it "
    "begins: new routes and schema versions would never come in. Give databricks.schedule, for each minute "
    '"0 * * * * ?" (a run that is due while one is at work is left out)'
)

_NO_PLACE = (
    "declarative.silver_as: sink writes silver tables below tables.root, and in Lakeflow it is Unity Catalog that says "
    "where tables lie: use silver_as: table there"
)


@dataclass(frozen=True)
class PipelineBundle:
    """Everything of a deployment in memory. `sources`: files by their path below `src/`; `includes`: globs of those
    that define datasets."""

    config: Pipeline
    sources: Mapping[str, bytes]
    includes: Sequence[str]
    wheel_name: str
    wheel: bytes

    @property
    def place(self) -> str:
        """Where it publishes: catalog and schema."""
        datasets = Datasets.of(self.config)
        return f"{datasets.catalog}.{datasets.database}"

    def pipeline(self, src: str = "../src", dist: str = "../dist") -> dict[str, Any]:
        """Settings of the pipeline, as the Pipelines API takes them. By default local paths, seen from `resources/`:
        deploying a bundle uploads what they name."""
        keys = self.config.databricks
        datasets = Datasets.of(self.config)
        settings: dict[str, Any] = {
            "name": title(self.config),
            "catalog": datasets.catalog,
            "schema": datasets.database,
            "continuous": False,
            "root_path": src,
            "libraries": [{"glob": {"include": f"{src}/{name}"}} for name in self.includes],
            "environment": {"dependencies": [*requirements(), f"{dist}/{self.wheel_name}"]},
            "tags": tags(self.config),
            **_machines(self.config),
        }
        if keys.email:
            settings["notifications"] = [{"email_recipients": list(keys.email), "alerts": list(ALERTS)}]
        return settings

    def job(self, pipeline_id: str) -> dict[str, Any]:
        """Settings of the job, as the Jobs API takes them. No health rules: a pipeline task has no measure of its
        backlog ("Pipeline task for jobs")."""
        settings = {
            "name": title(self.config),
            "description": f"Pipeline {self.config.pipeline}: each run is one update of {self.place}",
            "max_concurrent_runs": 1,
            "tags": tags(self.config),
            "tasks": [
                {"task_key": "update", "pipeline_task": {"pipeline_id": pipeline_id}, **retries(self.config)},
            ],
            **notifications(self.config, ["on_failure"]),
            **trigger(self.config),
        }
        return over_job(self.config, settings)

    def files(self) -> dict[str, bytes]:
        """The files of the bundle by their path in it."""
        name, key = bundle_name(self.config)
        resources = {
            "pipeline": {"pipelines": {key: self.pipeline()}},
            "job": {"jobs": {key: self.job("${resources.pipelines." + key + ".id}")}},
        }
        return {
            "databricks.yml": as_yaml(root(name)).encode(),
            **{f"resources/{name}.{of}.yml": as_yaml({"resources": r}).encode() for of, r in resources.items()},
            **{f"src/{path}": body for path, body in self.sources.items()},
            f"dist/{self.wheel_name}": self.wheel,
        }

    def write(self, out: Path) -> None:
        """Write the bundle; files of an earlier one are replaced. Raises OSError."""
        for path, body in self.files().items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(body)

    def install(self, workspace: Workspace) -> None:
        """Upload the files, and create the pipeline and its job, or bring those that there are up to date.

        Raises BadInput (a pipeline or job of this name is not ours), WorkspaceFailed.
        """
        workspace.check_names()
        place = workspace.upload({**self.sources, self.wheel_name: self.wheel})
        workspace.put_job(self.job(workspace.put_pipeline(self.pipeline(place, place))))


def pipeline_bundle(config: Pipeline, file: Path, wheel: Path | None) -> PipelineBundle:
    """Read and check all that is needed. Raises BadInput, ConfigError, LintFailed."""
    if Datasets.of(config).catalog == CATALOG:
        raise BadInput(
            detail=f"{file}: tables.database: name a catalog and a schema, as main.games: Lakeflow publishes into "
            "Unity Catalog"
        )
    if config.databricks.continuous:
        raise BadInput(detail=f"{file}: {_ENDLESS}")
    if config.declarative.silver_as == "sink":
        raise BadInput(detail=f"{file}: {_NO_PLACE}")
    wheel_file = find_wheel(wheel)
    return PipelineBundle(
        config,
        {**sources(file, config), f"{CODE}/{QUARANTINE}": quarantine_view(config).encode()},
        includes(file, config),
        wheel_file.name,
        without_requirements(wheel_file),
    )


def _machines(config: Pipeline) -> dict[str, Any]:
    """Classic machines where the section names any, or something that only they have; else serverless."""
    keys = config.databricks
    if not (
        keys.node_type
        or keys.pool
        or keys.policy
        or keys.workers
        or keys.spark_conf
        or keys.secrets
        or keys.overrides.cluster
    ):
        return {"serverless": True}
    settable = {key: value for key, value in machine(config).items() if key not in _SET_BY_PLATFORM}
    return {"serverless": False, "clusters": [{"label": "default", **settable}]}
