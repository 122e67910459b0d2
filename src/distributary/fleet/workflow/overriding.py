"""Settings of a person's own over those that the bundles have (`databricks.overrides`)."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from distributary.config import Pipeline
from distributary.errors import BadInput

_SHOWN = 10
_SINGLE_NODE = ("spark.databricks.cluster.profile", "spark.master")


def merged(settings: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings go into each other; any other value takes the place of what was there, and null takes it away."""
    result = dict(settings)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def over_job(config: Pipeline, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A job with its tasks, as the Jobs API takes it. Raises BadInput: no task is called as a key of `tasks` says."""
    over = config.databricks.overrides
    result = merged(settings, over.job)
    keys = [task["task_key"] for task in result["tasks"]]
    for pattern, about in over.tasks.items():
        if not any(fnmatchcase(key, pattern) for key in keys):
            named = f"databricks.overrides.tasks.{pattern}: no task of the job is called so"
            more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
            raise BadInput(detail=f"{named}; there are {', '.join(sorted(keys)[:_SHOWN])}{more}")
        result["tasks"] = [
            merged(task, about) if fnmatchcase(task["task_key"], pattern) else task for task in result["tasks"]
        ]
    return result


def over_cluster(config: Pipeline, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A job's cluster. One that grows by itself has no number of workers, and is more than one machine."""
    over = config.databricks.overrides.cluster
    result = merged(settings, over)
    if over.get("autoscale") is not None:
        result.pop("num_workers", None)
        result["spark_conf"] = {k: v for k, v in result.get("spark_conf", {}).items() if k not in _SINGLE_NODE}
        result["custom_tags"] = {k: v for k, v in result["custom_tags"].items() if k != "ResourceClass"}
        if not result["spark_conf"]:
            del result["spark_conf"]
    return result
