"""A declarative pipeline on Databricks: a bundle that the SDK's own types take whole, and what is sent to create it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.sdk import WorkspaceClient
from databricks.sdk.service.jobs import JobSettings
from databricks.sdk.service.pipelines import PipelineSpec

from distributary.cli.entry import execute
from distributary.config import load
from distributary.errors import BadInput, LintFailed
from distributary.fleet.workflow.bundle import PROVIDED
from distributary.fleet.workflow.databricks import Workspace
from distributary.fleet.workflow.pipeline_bundle import PipelineBundle, pipeline_bundle
from tests.workspace import WHEEL, Api, small_wheel

ROOT = "/Workspace/Users/eve@x.org/distributary/games"
PLACES: dict[str, Any] = {"root": "/Volumes/main/games/lake", "database": "main.games"}


def write(folder: Path, **keys: Any) -> Path:
    """A pipeline file."""
    file = folder / "games.yaml"
    whole = {
        "pipeline": "games",
        "layout": "declarative",
        "source": {"type": "delta", "path": "/Volumes/main/games/events"},
        "registry": {"url": "https://registry.example.org"},
        "tables": PLACES,
        **keys,
    }
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return file


def made(folder: Path, keys: dict[str, Any] | None = None, **others: Any) -> PipelineBundle:
    """The bundle of a pipeline file with this section `databricks`."""
    file = write(folder, databricks=keys or {}, **others)
    return pipeline_bundle(load(file, secrets=False), file, small_wheel(folder))


def resources(found: PipelineBundle, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pipeline and job as the written files give them back: the SDK's types take both without losing a key."""
    found.write(folder)
    parts: dict[str, Any] = {}
    for path in (folder / "resources").iterdir():
        parts |= yaml.safe_load(path.read_text())["resources"]
    (pipeline,), (job,) = parts["pipelines"].values(), parts["jobs"].values()
    assert PipelineSpec.from_dict(pipeline).as_dict() == pipeline
    assert JobSettings.from_dict(job).as_dict() == job
    return pipeline, job


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as found:
        yield found


def workspace(api: Api, found: PipelineBundle) -> Workspace:
    return Workspace(WorkspaceClient(host=api.url, token="t"), found.config)


# -- the bundle ----------------------------------------------------------------------------------------------


def test_the_pipeline_publishes_into_a_catalog_and_every_file_that_it_names_is_there(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own.sql").write_text("CREATE VIEW mine AS SELECT 1 AS one")
    (tmp_path / "shape.py").write_text("def loud(rows):\n    return rows.select('*')\n")
    tables = {**PLACES, "function": "shape.py:loud"}
    out = tmp_path / "bundle"
    pipeline, _ = resources(made(tmp_path, declarative={"libraries": ["more/**"]}, tables=tables), out)
    assert (pipeline["name"], pipeline["catalog"], pipeline["schema"]) == ("distributary games", "main", "games")
    assert pipeline["continuous"] is False and pipeline["root_path"] == "../src"
    globs = [library["glob"]["include"] for library in pipeline["libraries"]]
    assert globs == ["../src/transformations/**", "../src/more/own.sql"]
    for path in [*globs, pipeline["root_path"]]:
        assert any((out / "resources" / path.removesuffix("/**")).parent.iterdir())
        assert (out / "resources" / path.removesuffix("/**")).exists()
    names = sorted(p.relative_to(out / "src").as_posix() for p in (out / "src").rglob("*") if p.is_file())
    assert names == [
        "more/own.sql",
        "pipeline.yaml",
        "shape.py",
        "transformations/definitions.py",
        "transformations/quarantine.sql",
    ]
    assert load(out / "src" / "pipeline.yaml") == load(tmp_path / "games.yaml")
    root = yaml.safe_load((out / "databricks.yml").read_text())
    assert root["bundle"] == {"name": "distributary-games"} and root["include"] == ["resources/*.yml"]


def test_it_installs_the_wheel_and_what_the_runtime_does_not_have(tmp_path: Path) -> None:
    pipeline, _ = resources(made(tmp_path), tmp_path / "bundle")
    *packages, wheel = pipeline["environment"]["dependencies"]
    assert (tmp_path / "bundle" / "resources" / wheel).is_file()
    # What the Databricks CLI takes for a package; anything else it looks for on the disk.
    package = r"[a-zA-Z0-9\-_]+\s?(\[.*\])?\s?(==\s?\d+(\.\d+){0,2})"
    assert packages and all(re.fullmatch(package, line) for line in packages)
    assert not {re.split(r"[^\w-]", line)[0].lower() for line in packages} & set(PROVIDED)


def test_each_run_of_the_job_is_one_update_with_retries_and_without_overlap(tmp_path: Path) -> None:
    found = made(tmp_path, {"schedule": "0 0/15 * * * ?", "timezone": "Europe/Berlin", "tags": {"team": "a"}})
    pipeline, job = resources(found, tmp_path / "bundle")
    (task,) = job["tasks"]
    assert task["pipeline_task"] == {"pipeline_id": "${resources.pipelines.distributary_games.id}"}
    assert (task["max_retries"], task["min_retry_interval_millis"]) == (10, 30_000)
    assert job["max_concurrent_runs"] == 1
    assert job["schedule"]["quartz_cron_expression"] == "0 0/15 * * * ?"
    assert job["tags"] == pipeline["tags"] == {"team": "a", "distributary": "games"}
    assert "health" not in job  # there is no measure of the backlog of a pipeline task


def test_the_job_s_reference_names_the_pipeline_of_the_bundle(tmp_path: Path) -> None:
    found = made(tmp_path, pipeline="many-games_2")
    text = {path: body.decode() for path, body in found.files().items() if path.startswith("resources/")}
    (key,) = yaml.safe_load(text["resources/distributary-many-games_2.pipeline.yml"])["resources"]["pipelines"]
    (reference,) = re.findall(r"\$\{.*?\}", text["resources/distributary-many-games_2.job.yml"])
    assert reference == f"${{resources.pipelines.{key}.id}}"


def test_without_machines_it_is_serverless(tmp_path: Path) -> None:
    pipeline, _ = resources(made(tmp_path), tmp_path / "bundle")
    assert pipeline["serverless"] is True and "clusters" not in pipeline


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"node_type": "m5d.xlarge"}, {"node_type_id": "m5d.xlarge", "num_workers": 0}),
        ({"pool": "p", "workers": 3}, {"instance_pool_id": "p", "num_workers": 3}),
        ({"policy": "P1", "workers": 1}, {"policy_id": "P1", "apply_policy_default_values": True}),
        ({"workers": 2, "spark_conf": {"spark.a": "b"}}, {"num_workers": 2, "spark_conf": {"spark.a": "b"}}),
    ],
)
def test_machines_are_those_of_the_jobs(keys: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    pipeline, _ = resources(made(tmp_path, keys), tmp_path / "bundle")
    (cluster,) = pipeline["clusters"]
    assert pipeline["serverless"] is False and cluster["label"] == "default"
    assert expected.items() <= cluster.items()
    # The platform sets these itself, and refuses them.
    assert not {"spark_version", "data_security_mode"} & cluster.keys()
    if not cluster["num_workers"]:
        assert cluster["spark_conf"]["spark.databricks.cluster.profile"] == "singleNode"


def test_failures_are_told(tmp_path: Path) -> None:
    pipeline, job = resources(made(tmp_path, {"email": ["t@x.org"], "webhooks": ["id-1"]}), tmp_path / "bundle")
    (told,) = pipeline["notifications"]
    assert told["email_recipients"] == ["t@x.org"] and "on-flow-failure" in told["alerts"]
    assert job["email_notifications"] == {"on_failure": ["t@x.org"]}
    assert job["webhook_notifications"] == {"on_failure": [{"id": "id-1"}]}


def test_secrets_are_named_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY", "https://hidden.example.org")
    registry = {"url": "${env:REGISTRY}", "username": "u", "password": "${databricks:prod/registry}"}
    found = made(tmp_path, {"secrets": {"REGISTRY": "prod/registry_url"}}, registry=registry)
    pipeline, _ = resources(found, tmp_path / "bundle")
    assert pipeline["clusters"][0]["spark_env_vars"] == {"REGISTRY": "{{secrets/prod/registry_url}}"}
    assert b"${databricks:prod/registry}" in found.sources["pipeline.yaml"]
    assert not any(b"hidden" in body for body in found.files().values())


# -- what is refused -----------------------------------------------------------------------------------------


def test_a_continuous_job_is_refused_because_it_would_never_find_a_new_game(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"databricks\.schedule"):
        made(tmp_path, {"continuous": True})


def test_one_flow_into_silver_is_refused_where_unity_catalog_says_where_tables_lie(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="silver_as: table"):
        made(tmp_path, declarative={"silver_as": "sink"})


def test_a_database_without_a_catalog_is_refused(tmp_path: Path) -> None:
    for tables in ({"root": "/lake"}, {"root": "/lake", "database": "games"}):
        with pytest.raises(BadInput, match=r"tables\.database"):
            made(tmp_path, tables=tables)


def test_a_path_that_means_another_place_on_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"source\.path"):
        made(tmp_path, source={"type": "delta", "path": "events"})


def test_faults_in_the_users_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "shape.py").write_text("def loud(rows):\n    return rows.withColumn('x', 1)\n")
    with pytest.raises(LintFailed):
        made(tmp_path, tables={**PLACES, "function": "shape.py:loud"})


@pytest.mark.parametrize("arguments", [["--clusters", "2"], ["--per-route"], ["--streams-per-cluster", "3"]])
def test_a_graph_is_not_shared_out(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["workflow", "databricks", str(write(tmp_path)), "--out", str(tmp_path / "bundle")]
    assert execute([*command, "--wheel", str(small_wheel(tmp_path)), *arguments]) == 2
    assert "one graph" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


# -- the Pipelines API ---------------------------------------------------------------------------------------


def test_create_uploads_the_files_and_creates_the_pipeline_and_its_job(tmp_path: Path, api: Api) -> None:
    found = made(tmp_path)
    found.install(workspace(api, found))
    names = ("pipeline.yaml", "transformations/definitions.py", "transformations/quarantine.sql", WHEEL)
    assert sorted(api.files) == sorted(f"{ROOT}/{name}" for name in names)
    ((pipeline_id, pipeline),) = api.pipelines.items()
    assert pipeline["root_path"] == ROOT and pipeline["tags"] == {"distributary": "games"}
    assert pipeline["libraries"] == [{"glob": {"include": f"{ROOT}/transformations/**"}}]
    assert pipeline["environment"]["dependencies"][-1] == f"{ROOT}/{WHEEL}"
    (job,) = api.jobs.values()
    assert job["tasks"][0]["pipeline_task"] == {"pipeline_id": pipeline_id}
    assert pipeline == found.pipeline(ROOT, ROOT) and job == found.job(pipeline_id)


def test_create_again_brings_the_same_pipeline_and_job_up_to_date(tmp_path: Path, api: Api) -> None:
    api.pipelines["like"] = {"name": "distributary-games"}  # LIKE would find names that differ in a `_`
    for keys in ({}, {"email": ["a@x.org"]}):
        found = made(tmp_path, keys)
        found.install(workspace(api, found))
    assert len(api.pipelines) == 2 and len(api.jobs) == 1
    assert api.pipelines["p-2"] == found.pipeline(ROOT, ROOT)
    assert api.jobs[11] == found.job("p-2")


def test_delete_takes_the_pipeline_and_its_job_and_leaves_its_tables(tmp_path: Path, api: Api) -> None:
    found = made(tmp_path)
    found.install(workspace(api, found))
    workspace(api, found).delete()
    assert not api.pipelines and not api.jobs and not api.files


@pytest.mark.parametrize("theirs", [{"tags": {"distributary": "other"}}, {}])
def test_a_pipeline_of_this_name_that_is_not_ours_stays_as_it_is(
    theirs: dict[str, Any], tmp_path: Path, api: Api
) -> None:
    theirs = {"name": "distributary games", **theirs}
    api.pipelines["p-9"] = theirs
    found = made(tmp_path)
    with pytest.raises(BadInput, match="not this pipeline's"):
        found.install(workspace(api, found))
    assert api.pipelines == {"p-9": theirs} and api.jobs == {}


def test_where_the_job_is_not_ours_no_pipeline_is_made_and_no_file_is_uploaded(tmp_path: Path, api: Api) -> None:
    api.jobs[5] = {"name": "distributary games"}
    found = made(tmp_path)
    with pytest.raises(BadInput, match="not this pipeline's"):
        found.install(workspace(api, found))
    assert not api.pipelines and not api.files


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_the_bundle_and_writes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write(tmp_path, registry={"url": "${env:NOBODY_HAS_THIS}"}), tmp_path / "bundle"
    command = ["workflow", "databricks", str(file), "--out", str(out), "--wheel", str(small_wheel(tmp_path))]
    assert execute(command) == execute(command) == 0
    assert f"a pipeline into main.games and its job; cd {out}" in capsys.readouterr().out
    written = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    names = [f"resources/distributary-games.{kind}.yml" for kind in ("job", "pipeline")]
    sources = ["src/pipeline.yaml", *(f"src/transformations/{name}" for name in ("definitions.py", "quarantine.sql"))]
    assert written == ["databricks.yml", f"dist/{WHEEL}", *names, *sources]


def test_the_command_creates_and_starts_it(
    tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", api.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "t")
    command = ["workflow", "databricks", str(write(tmp_path)), "--wheel", str(small_wheel(tmp_path))]
    assert execute([*command, "--create", "--run"]) == 0
    assert len(api.pipelines) == len(api.jobs) == 1
    said = capsys.readouterr()
    assert "pipeline p-1 is created" in said.err and "run 501 of job 11" in said.out
    api.runs[0]["state"] = {"result_state": "FAILED"}
    assert execute([*command, "--repair"]) == 0
    assert len(api.bodies("/runs/repair")) == 1
    assert execute([*command, "--delete", "--run"]) == 2 and len(api.jobs) == 1
    assert execute([*command, "--delete"]) == 0 and not api.pipelines and not api.jobs
