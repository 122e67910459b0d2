"""Files in deploy/ say what the product does: their pipeline is valid, their command and their probes exist."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from distributary.cli import app
from distributary.config import Pipeline, load_document
from distributary.errors import Exit
from distributary.metrics.endpoint import answers
from distributary.metrics.meter import Meter

DEPLOY = Path(__file__).parent.parent / "deploy"
KUBERNETES = "1.37"
"""Whose schemas the manifests are held against; the package brings them along."""


def program(name: str, package: str) -> str:
    """Where it is. Without it the test is skipped, or fails where REQUIRE_SERVICES=1."""
    path = shutil.which(name)
    if path is None and os.environ.get("REQUIRE_SERVICES"):
        pytest.fail(f"no {name}; install it: apt-get install {package}")
    if path is None:
        pytest.skip(f"{name} is not installed ({package})")
    return path


def printed_by(*command: str, given: str = "") -> str:
    """All that a program prints; fails where it does not end well."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@cache
def command_line() -> Any:
    return get_command(app)


def accepted(arguments: list[str]) -> str:
    """The command that `arguments` (after `distributary`) are for; fails where an option or command is not there."""
    group: Any = command_line()
    context = group.make_context("distributary", list(arguments), resilient_parsing=True)
    name, command, rest = group.resolve_command(context, context._protected_args + context.args)
    command.make_context(name, rest, parent=context).close()
    return str(name)


@pytest.fixture
def kubernetes() -> tuple[Pipeline, dict[str, Any]]:
    """The pipeline, and the pod."""
    config, deployment = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    document = yaml.safe_load(config["data"]["games.yaml"])
    return load_document(document), deployment["spec"]


def test_the_pod_runs_its_pipeline_and_its_probes_ask_what_is_served(
    kubernetes: tuple[Pipeline, dict[str, Any]],
) -> None:
    config, spec = kubernetes
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1 and spec["strategy"]["type"] == "Recreate", "one stream, one process"
    assert container["ports"] == [{"name": "metrics", "containerPort": config.metrics.port}]
    assert config.metrics.address == "0.0.0.0", "the probes come from outside of the pod"
    served = answers(Meter(config)).keys()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in served and container[probe]["httpGet"]["port"] == "metrics"
    about = spec["template"]["metadata"]["annotations"]
    assert about["prometheus.io/path"] in served and about["prometheus.io/port"] == str(config.metrics.port)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "spark-on-kubernetes.yaml", "spark-driver-pod.yaml"])
def test_kubernetes_own_schemas_know_every_field_of_the_manifests(name: str) -> None:
    for manifest in yaml.safe_load_all((DEPLOY / name).read_text()):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_a_misspelt_field_of_a_manifest_would_be_found() -> None:
    for wrong in ({"repliques": 1}, {"replicas": "one"}):
        _, manifest = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
        manifest["spec"] |= wrong
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_pipeline_of_the_driver_on_kubernetes_is_where_its_pod_has_it() -> None:
    account, role, binding, config = yaml.safe_load_all((DEPLOY / "spark-on-kubernetes.yaml").read_text())
    assert load_document(yaml.safe_load(config["data"]["games.yaml"])).pipeline == "games"
    pod = yaml.safe_load((DEPLOY / "spark-driver-pod.yaml").read_text())["spec"]
    assert pod["volumes"] == [{"name": "config", "configMap": {"name": config["metadata"]["name"]}}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]


def test_the_pod_has_longer_to_end_than_its_batch_may_take(kubernetes: tuple[Pipeline, dict[str, Any]]) -> None:
    config, spec = kubernetes
    assert config.trigger.stop_within is not None
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > config.trigger.stop_within


def test_the_commands_of_pod_and_service_exist(kubernetes: tuple[Pipeline, dict[str, Any]]) -> None:
    _, spec = kubernetes
    program, *arguments = spec["template"]["spec"]["containers"][0]["args"]
    assert (program, accepted(arguments)) == ("distributary", "run")
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "distributary.service").read_text())
    service = unit["Service"]
    assert accepted(service["ExecStart"].split()[1:]) == "run"
    assert accepted(service["ExecStartPre"].split()[1:]) == "check"
    assert int(service["RestartPreventExitStatus"]) == Exit.BAD_INPUT


def test_the_dags_commands_and_exit_codes_are_those_of_the_command_line() -> None:
    """Airflow itself loads it, and tries its tasks, by `make airflow`."""
    tree = ast.parse((DEPLOY / "airflow" / "distributary_games.py").read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "call"]
    given = [[getattr(one, "value", "games.yaml") for one in call.args] for call in calls]
    assert sorted(accepted(arguments) for arguments in given) == ["run", "status"]
    (codes,) = (n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Tuple))
    assert ast.literal_eval(codes.value) == (Exit.ATTENTION, Exit.BAD_INPUT)


def test_prometheus_itself_reads_the_alert_rules() -> None:
    promtool = program("promtool", "prometheus")
    assert "SUCCESS" in printed_by(promtool, "check", "rules", str(DEPLOY / "prometheus-alerts.yaml"))


def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    unit = tmp_path / "distributary@.service"
    # Where the service is to be installed is another machine's business.
    unit.write_text(re.sub(r"(?m)^(Exec\w+=)\S+", r"\1/bin/true", (DEPLOY / "distributary.service").read_text()))
    assert printed_by(analyze, "verify", str(unit)) == ""


def test_the_workflow_of_github_runs_every_verb_of_the_gate() -> None:
    root = DEPLOY.parent
    gate = re.findall(r"^step (.+?)(?: #.*)?$", (root / ".ci" / "run").read_text(), re.MULTILINE)
    jobs = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    runs = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert {f"make {verb}" for verb in gate} | {"make test ALL=1"} == runs
