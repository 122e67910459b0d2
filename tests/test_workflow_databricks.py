"""The jobs on Databricks: a bundle that the SDK's own types take whole, and calls against a stand-in of the API."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.sdk import WorkspaceClient
from databricks.sdk.service.jobs import JobSettings

from distributary.cli import job as job_entry
from distributary.cli.entry import execute
from distributary.config import Pipeline, load
from distributary.errors import BadInput, ConfigError, Exit, WorkspaceFailed
from distributary.fleet.workflow.bundle import PROVIDED, Spread, bundle, requirements
from distributary.fleet.workflow.databricks import Workspace, connect
from distributary.fleet.workflow.placement import RouteLoad, make_plan
from distributary.fleet.workflow.wheel import without_requirements
from distributary.shares import Division, read_plan
from distributary.state.divisions import claim
from distributary.tables.store import Store
from tests.workspace import WHEEL, Api, small_wheel

NODE = {"node_type": "m5d.xlarge"}
FOLDER = "/Workspace/Users/eve@x.org/distributary/games"


def config(**databricks: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "pipeline": "games",
            "source": {"type": "delta", "path": "/Volumes/main/bronze/events"},
            "registry": {"url": "https://registry.example.org"},
            "tables": {"root": "s3://lake/silver"},
            "databricks": {**NODE, **databricks},
        }
    )


def two_hop(**databricks: Any) -> Pipeline:
    return config(**databricks).model_copy(update={"layout": "two_hop"})


def job(made: Pipeline, spread: Spread | None = None) -> dict[str, Any]:
    """The job as YAML gives it back, which the SDK's type must take without losing or changing a key."""
    found = bundle(made, "games.yaml", "pipeline: games\n", spread or Spread.per_cluster(Division.even(2)), WHEEL)
    jobs = yaml.safe_load(found.texts["resources/distributary-games.job.yml"])["resources"]["jobs"]
    settings: dict[str, Any] = jobs["distributary_games"]
    assert settings == found.job
    assert JobSettings.from_dict(settings).as_dict() == settings
    return settings


def tasks(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["task_key"]: task for task in settings["tasks"]}


def after(task: dict[str, Any]) -> list[str]:
    return [d["task_key"] for d in task.get("depends_on", [])]


# -- the bundle ----------------------------------------------------------------------------------------------


def test_each_share_is_a_task_on_a_cluster_of_its_own_with_retries() -> None:
    settings = job(config())
    assert settings["max_concurrent_runs"] == 1
    assert [c["job_cluster_key"] for c in settings["job_clusters"]] == ["1-of-2", "2-of-2"]
    for name, task in tasks(settings).items():
        assert task["job_cluster_key"] == name
        assert (task["max_retries"], task["min_retry_interval_millis"]) == (10, 30_000)
        parameters = task["python_wheel_task"]["parameters"]
        assert parameters[:2] == ["run", "${workspace.file_path}/src/games.yaml"]
        assert parameters[2:] == ["--plan-file", "${workspace.file_path}/src/plan.json", "--cluster", name]
        assert task["libraries"] == [{"requirements": "../src/requirements.txt"}, {"whl": f"../dist/{WHEEL}"}]


def test_by_schedule_each_stream_takes_what_is_there_after_hop_1_did() -> None:
    settings = job(two_hop(schedule="0 0/15 * * * ?", timezone="Europe/Berlin"))
    assert settings["schedule"]["quartz_cron_expression"] == "0 0/15 * * * ?"
    found = tasks(settings)
    assert list(found) == ["bronze", "1-of-2", "2-of-2"]
    assert after(found["bronze"]) == [] and after(found["1-of-2"]) == after(found["2-of-2"]) == ["bronze"]
    assert all("--once" in task["python_wheel_task"]["parameters"] for task in found.values())


def test_streams_that_run_on_start_once_there_is_a_bronze_table() -> None:
    found = tasks(job(two_hop()))
    assert after(found["bronze-on"]) == after(found["1-of-2"]) == ["bronze"]
    assert "--once" in found["bronze"]["python_wheel_task"]["parameters"]
    assert "--once" not in found["bronze-on"]["python_wheel_task"]["parameters"]


def test_a_continuous_job_has_no_retries_and_no_dependencies_because_the_platform_refuses_them() -> None:
    settings = job(two_hop(continuous=True))
    assert settings["continuous"] == {"pause_status": "UNPAUSED", "task_retry_mode": "ON_FAILURE"}
    assert not any({"depends_on", "max_retries"} & task.keys() for task in settings["tasks"])


def test_one_task_per_route_shares_the_clusters_of_the_plan() -> None:
    routes = ["ann_game", "Bob's Game", "x" * 250, "x" * 249 + "y", "huge"]
    plan = make_plan("games", [RouteLoad(r, 100.0 if r == "huge" else 1.0) for r in routes], clusters=2)
    settings = job(config(), Spread.per_route(plan))
    found = tasks(settings)
    assert len(found) == 6 and len(settings["job_clusters"]) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,100}", key) for key in found)
    alone = [k for k, t in found.items() if t["job_cluster_key"] == found["r-huge"]["job_cluster_key"]]
    assert alone == ["r-huge"]


def test_every_route_of_a_plan_per_route_is_in_exactly_one_share() -> None:
    routes = [f"game_{n}" for n in range(20)]
    plan = make_plan("games", [RouteLoad(r) for r in routes], routes_per_cluster=6)
    division = Spread.per_route(plan).division
    assert division is not None
    for route in [*routes, "a new one", None]:
        assert sum(share.owns(route) for share in division.shares()) == 1


def test_one_machine_or_workers_a_pool_and_a_policy() -> None:
    alone = job(config())["job_clusters"][0]["new_cluster"]
    assert alone["num_workers"] == 0 and alone["spark_conf"]["spark.master"] == "local[*, 4]"
    many = job(config(node_type=None, pool="pool-1", policy="P1", workers=3))["job_clusters"][0]["new_cluster"]
    assert (many["instance_pool_id"], many["policy_id"], many["num_workers"]) == ("pool-1", "P1", 3)
    assert "spark_conf" not in many and "node_type_id" not in many


def test_settings_of_one_s_own_go_over_those_of_jobs_clusters_and_tasks() -> None:
    over = {
        "job": {"timeout_seconds": 7200, "health": None, "queue": {"enabled": True}},
        "cluster": {
            "aws_attributes": {"availability": "SPOT_WITH_FALLBACK"},
            "autoscale": {"min_workers": 1, "max_workers": 4},
            "driver_node_type_id": "m5d.2xlarge",
            "init_scripts": [{"workspace": {"destination": "/Shared/init.sh"}}],
            "spark_env_vars": {"LOGLEVEL": "debug"},
        },
        "tasks": {"*": {"timeout_seconds": 3600, "max_retries": 2}, "bronze": {"max_retries": 9}},
    }
    settings = job(two_hop(schedule="0 0 * * * ?", secrets={"PASSWORD": "prod/kafka"}, overrides=over))
    assert (settings["timeout_seconds"], settings["queue"], "health" in settings) == (7200, {"enabled": True}, False)
    for one in settings["job_clusters"]:
        cluster = one["new_cluster"]
        assert cluster["autoscale"] == {"min_workers": 1, "max_workers": 4} and "num_workers" not in cluster
        assert "spark_conf" not in cluster and cluster["custom_tags"] == {"distributary": "games"}
        assert cluster["spark_env_vars"] == {"PASSWORD": "{{secrets/prod/kafka}}", "LOGLEVEL": "debug"}
        assert (cluster["node_type_id"], cluster["driver_node_type_id"]) == ("m5d.xlarge", "m5d.2xlarge")
    assert {key: (task["max_retries"], task["timeout_seconds"]) for key, task in tasks(settings).items()} == {
        "bronze": (9, 3600),
        "1-of-2": (2, 3600),
        "2-of-2": (2, 3600),
    }


def test_a_cluster_of_which_autoscale_is_taken_away_keeps_its_number_of_workers() -> None:
    assert job(config(overrides={"cluster": {"autoscale": None}})) == job(config())


def test_failures_and_a_growing_backlog_are_told() -> None:
    settings = job(config(email=["team@x.org"], webhooks=["id-1"], max_backlog="5 minutes", max_backlog_rows=10**6))
    assert settings["email_notifications"] == {
        "on_failure": ["team@x.org"],
        "on_streaming_backlog_exceeded": ["team@x.org"],
    }
    assert settings["webhook_notifications"]["on_failure"] == [{"id": "id-1"}]
    rules = {rule["metric"]: rule["value"] for rule in settings["health"]["rules"]}
    assert rules == {"STREAMING_BACKLOG_SECONDS": 300, "STREAMING_BACKLOG_RECORDS": 1_000_000}


def test_secrets_are_named_and_never_written(tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        "pipeline: games\nsource: {type: kafka, bootstrap_servers: b:9092, topic: t}\n"
        'registry: {url: "${env:REGISTRY}", username: u, password: "${databricks:prod/registry}"}\n'
        "tables: {root: /t}\ndatabricks: {node_type: m, secrets: {REGISTRY: prod/registry_url}}\n"
    )
    made = load(file, secrets=False)
    found = bundle(made, file.name, file.read_text(), Spread.per_cluster(Division.even(1)), WHEEL)
    cluster = found.job["job_clusters"][0]["new_cluster"]
    assert cluster["spark_env_vars"] == {"REGISTRY": "{{secrets/prod/registry_url}}"}
    assert "${databricks:prod/registry}" in found.texts["src/games.yaml"]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("{node_type: m, pool: p}", "databricks.pool"),
        ('{schedule: "0 0 * * * ?", continuous: true}', "databricks.continuous"),
        ("{secrets: {A: no-slash}}", "databricks.secrets"),
        ('{secrets: {"A B": s/k}}', "databricks.secrets"),
        ("{overrides: {job: {max_concurrent_runs: 2}}}", "databricks.overrides.job.max_concurrent_runs"),
        ("{overrides: {cluster: {custom_tags: {a: b}}}}", "databricks.overrides.cluster.custom_tags"),
        ("{overrides: {cluster: {num_workers: 4}}}", "databricks.overrides.cluster.num_workers"),
        ("{overrides: {tasks: {bronze: {libraries: []}}}}", "databricks.overrides.tasks.bronze.libraries"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        "pipeline: g\nsource: {type: delta, path: /s}\nregistry: {path: /r}\ntables: {root: /t}\n"
        f"databricks: {keys}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.parameters["key"] == key


def test_an_override_of_a_task_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(BadInput, match=r"overrides\.tasks\.bronez: .* 1-of-2, 2-of-2, bronze$"):
        job(two_hop(schedule="0 0 * * * ?", overrides={"tasks": {"bronez": {"max_retries": 9}}}))
    job(two_hop(schedule="0 0 * * * ?", overrides={"tasks": {"*-of-?": {"max_retries": 9}}}))


# -- the wheel -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_wheel(tmp_path_factory.mktemp("dist"))


def test_the_wheel_of_a_bundle_requires_nothing_and_its_record_is_right(wheel: Path) -> None:
    with zipfile.ZipFile(BytesIO(without_requirements(wheel))) as archive:
        head, _, text = archive.read("distributary-0.1.0.dist-info/METADATA").partition(b"\n\n")
        assert b"Requires-Dist" not in head and b"Provides-Extra" not in head and b"in the text" in text
        record = archive.read("distributary-0.1.0.dist-info/RECORD").decode().split()
        assert len(record) == len(archive.namelist()) == 4
        for line in record[:-1]:
            name, digest, size = line.split(",")
            body = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(body))


def test_pip_takes_the_wheel(wheel: Path, tmp_path: Path) -> None:
    slim = tmp_path / WHEEL
    slim.write_bytes(without_requirements(wheel))
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--target", str(tmp_path / "site"), str(slim)]
    done = subprocess.run([*command, "--disable-pip-version-check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "distributary").is_dir()


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("no")
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as archive:
        archive.writestr("x", "")
    for name in ("a.whl", "b.whl", "none.whl"):
        with pytest.raises(BadInput):
            without_requirements(tmp_path / name)


def test_the_requirements_leave_out_what_the_runtime_has() -> None:
    names = {re.split(r"[^\w.-]", line)[0].lower() for line in requirements()}
    assert {"deltalake", "ptars", "confluent-kafka", "pydantic"} <= names
    assert not names & set(PROVIDED) and "pytest" not in names
    assert all(re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", line) for line in requirements())
    assert f"deltalake=={version('deltalake')}" in requirements(), "what is installed here was tested here"


# -- the Jobs API --------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as made:
        yield made


def workspace(api: Api, made: Pipeline | None = None) -> Workspace:
    return Workspace(WorkspaceClient(host=api.url, token="t"), made or config())


def create(found: Workspace) -> int:
    return found.create("games.yaml", "pipeline: games\n", Spread.per_cluster(Division.even(2)), WHEEL, b"wheel")


def test_create_uploads_what_the_tasks_name_and_creates_the_job(api: Api) -> None:
    job_id = create(workspace(api))
    root = "/Workspace/Users/eve@x.org/distributary/games"
    names = ("games.yaml", "plan.json", "requirements.txt", WHEEL)
    assert sorted(api.files) == sorted(f"{root}/{name}" for name in names)
    created = api.jobs[job_id]
    assert created["name"] == "distributary games" and created["tags"] == {"distributary": "games"}
    for task in created["tasks"]:
        assert task["python_wheel_task"]["parameters"][1] == f"{root}/games.yaml"
        assert task["libraries"] == [{"requirements": f"{root}/requirements.txt"}, {"whl": f"{root}/{WHEEL}"}]
    assert JobSettings.from_dict(created).as_dict() == created


def test_create_again_brings_the_same_job_up_to_date(api: Api) -> None:
    first = create(workspace(api))
    assert create(workspace(api, config(email=["a@x.org"]))) == first
    assert len(api.jobs) == 1 and api.jobs[first]["email_notifications"]["on_failure"] == ["a@x.org"]


def test_a_job_of_this_name_that_is_not_ours_stays_as_it_is(api: Api) -> None:
    theirs = {"name": "distributary games", "tags": {"distributary": "other"}}
    api.jobs[7] = theirs
    with pytest.raises(BadInput, match="not this pipeline's"):
        create(workspace(api))
    assert api.jobs == {7: theirs}


def test_run_starts_the_job_and_says_where_to_look(api: Api) -> None:
    job_id = create(workspace(api))
    started = workspace(api).run()
    assert (started.job_id, started.run_id, started.url) == (job_id, 501, f"{api.url}/#run/501")


def test_run_without_a_job_says_what_to_do(api: Api) -> None:
    with pytest.raises(BadInput, match="--create"):
        workspace(api).run()


def test_repair_runs_what_failed_and_what_waits_for_it(api: Api) -> None:
    create(workspace(api))
    workspace(api).run()
    api.runs[0] |= {"state": {"result_state": "FAILED"}, "repair_history": [{"id": 501}, {"id": 8}]}
    workspace(api).repair()
    (body,) = api.bodies("/runs/repair")
    assert body["rerun_all_failed_tasks"] and body["rerun_dependent_tasks"]
    assert (body["run_id"], body["latest_repair_id"]) == (501, 8)


@pytest.mark.parametrize("state", [None, {"life_cycle_state": "RUNNING"}, {"result_state": "SUCCESS"}])
def test_a_run_that_did_not_fail_is_not_repaired(api: Api, state: dict[str, str] | None) -> None:
    create(workspace(api))
    if state is not None:
        workspace(api).run()
        api.runs[0]["state"] = state
    with pytest.raises(BadInput):
        workspace(api).repair()
    assert api.bodies("/runs/repair") == []


def test_delete_takes_away_what_create_has_made_and_nothing_of_others(api: Api) -> None:
    said: list[str] = []
    found = Workspace(WorkspaceClient(host=api.url, token="t"), config(), said.append)
    job_id = create(found)
    api.jobs[7] = {"name": "distributary chess", "tags": {"distributary": "chess"}}
    api.files.append("/Workspace/Users/eve@x.org/distributary/games-2/games.yaml")
    found.delete()
    assert [*api.jobs] == [7] and api.files == ["/Workspace/Users/eve@x.org/distributary/games-2/games.yaml"]
    folder = "/Workspace/Users/eve@x.org/distributary/games"
    assert said[-2:] == [f"job {job_id} is deleted", f"{folder} is deleted"]
    found.delete()
    nothing = f"nothing is there: no job or pipeline 'distributary games', and no {folder}"
    assert said[3:] == [nothing]
    api.jobs[8] = {"name": "distributary games"}
    with pytest.raises(BadInput, match="not this pipeline's"):
        found.delete()
    assert [*api.jobs] == [7, 8]


def test_delete_takes_the_files_also_where_another_user_has_created_the_job(api: Api) -> None:
    job_id = create(workspace(api))
    api.user = "ada@x.org"
    said: list[str] = []
    Workspace(WorkspaceClient(host=api.url, token="t"), config(), said.append).delete()
    assert api.files == [] and said == [f"job {job_id} is deleted", f"{FOLDER} is deleted"]


def test_delete_takes_the_files_that_only_the_pipeline_names(api: Api) -> None:
    files = f"{FOLDER}/definitions.py"
    api.pipelines["p-1"] = {
        "name": "distributary games", "tags": {"distributary": "games"}, "root_path": FOLDER,
        "libraries": [{"glob": {"include": files}}], "catalog": "main",
    }  # fmt: skip
    api.files, api.user = [files], "ada@x.org"
    workspace(api).delete()
    assert api.files == [] and not api.pipelines


def test_delete_asks_nothing_of_the_pipeline_but_its_name(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake may be gone, and a pipeline's kind and division with it."""
    create(workspace(api))
    file = tmp_path / "games.yaml"
    file.write_text("pipeline: games\nsource: {type: delta, path: /s}\nregistry: {path: /r}\ntables: {root: /t}\n")
    monkeypatch.setenv("DATABRICKS_HOST", api.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", "t")
    monkeypatch.setattr("distributary.cli.workflow.kind_of", refuse)
    assert execute(["workflow", "databricks", str(file), "--delete"]) == 0
    assert not api.jobs and not api.files


def refuse(*_: Any) -> Any:
    raise AssertionError("nothing needs it")


@pytest.mark.parametrize("kind", ["job", "pipeline"])
def test_delete_leaves_what_a_bundle_has_deployed_to_the_bundle(api: Api, kind: str) -> None:
    job_id = create(workspace(api))
    ours = {"name": "distributary games", "tags": {"distributary": "games"}}
    api.pipelines["p-1"] = ours | {"catalog": "main"}
    deployed: dict[str, Any] = api.jobs[job_id] if kind == "job" else api.pipelines["p-1"]
    deployed["deployment"] = {"kind": "BUNDLE", "metadata_file_path": "/Workspace/bundle/state/metadata.json"}
    with pytest.raises(BadInput, match=f"{kind} .* bundle destroy"):
        workspace(api).delete()
    assert [*api.jobs] == [job_id] and [*api.pipelines] == ["p-1"] and api.files


def test_a_refusal_is_said_in_one_line(api: Api) -> None:
    api.fault = (403, "PERMISSION_DENIED")
    with pytest.raises(WorkspaceFailed) as caught:
        workspace(api).run()
    assert "no, you may not. (PERMISSION_DENIED)" in str(caught.value)
    assert "token" not in str(caught.value)


def test_without_credentials_it_says_how_to_give_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DATABRICKS_HOST", raising=False)
    with pytest.raises(WorkspaceFailed, match="DATABRICKS_HOST"):
        connect()


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_a_bundle_without_any_secret_at_hand(wheel: Path, tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        f"pipeline: games\nsource: {{type: delta, path: {tmp_path}/none}}\n"
        f'registry: {{url: "${{env:NOBODY_HAS_THIS}}"}}\ntables: {{root: {tmp_path}/t}}\ndatabricks: {{node_type: m}}\n'
    )
    routes = tmp_path / "routes.txt"
    routes.write_text("ann_game\nbob_game\n")
    out = tmp_path / "bundle"
    arguments = ["workflow", "databricks", str(file), "--out", str(out), "--wheel", str(wheel), "--routes", str(routes)]
    assert execute([*arguments, "--clusters", "2"]) == 0
    written = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    assert written == sorted(
        ["databricks.yml", f"dist/{WHEEL}", "resources/distributary-games.job.yml"]
        + [f"src/{name}" for name in ("games.yaml", "plan.json", "requirements.txt")]
    )
    assert (out / "src" / "games.yaml").read_text() == file.read_text()
    read_plan((out / "src" / "plan.json").read_text(), origin="plan")
    root = yaml.safe_load((out / "databricks.yml").read_text())
    assert root["bundle"] == {"name": "distributary-games"} and set(root["targets"]) == {"dev", "prod"}


WRITTEN = "canary-5d1"


@pytest.mark.parametrize("layout", ["fanout", "declarative"])
@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"registry": {"url": "http://r", "token": WRITTEN}}, "registry.token"),
        ({"notices": {"webhooks": [f"https://hooks/{WRITTEN}"]}}, "notices.webhooks[0]"),
        ({"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": WRITTEN}}}, "spark.conf.spark.hadoop.fs.s3a.secret.key"),
        ({"databricks": {"spark_conf": {"x.password": WRITTEN}}}, "databricks.spark_conf.x.password"),
        ({"tables": {"root": "/t", "storage_options": {"aws_secret_access_key": WRITTEN}}}, "aws_secret_access_key"),
    ],
)
def test_no_bundle_and_no_project_is_made_of_a_file_that_holds_a_secret_itself(
    layout: str, more: dict[str, Any], key: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "games.yaml"
    keys = {"pipeline": "games", "layout": layout, "source": {"type": "delta", "path": "/source"}}
    file.write_text(yaml.safe_dump({**keys, "registry": {"path": "/registry"}, "tables": {"root": "/t"}, **more}))
    command = ["pipeline", "init"] if layout == "declarative" else ["workflow", "databricks"]
    assert execute(["--debug", *command, str(file), "--out", str(tmp_path / "out")]) == Exit.BAD_INPUT
    said = capfd.readouterr()
    assert f"{key}: the file goes along" in said.err
    assert WRITTEN not in said.out + said.err
    assert not (tmp_path / "out").exists()


def test_references_and_settings_that_only_sound_secret_may_be_in_a_bundle(tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        "pipeline: games\nsource: {type: delta, path: /source}\nregistry: {path: /registry}\n"
        'tables: {root: /t, storage_options: {AWS_REGION: here, token: "${env:T}", GOOGLE_SERVICE_ACCOUNT_PATH: /g}}\n'
        "spark: {conf: {spark.hadoop.fs.s3a.aws.credentials.provider: org.example.Provider}}\n"
        "databricks: {spark_conf: {a.password: '{{secrets/a/b}}'}, secrets: {TOKEN: scope/key}}\n"
    )
    load(file, secrets=False).check_portable(str(file))


def test_a_bundle_follows_the_division_that_the_pipeline_has_or_says_that_it_does_not(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task of another division would refuse to run (SHARE_CONFLICT)."""
    file, out = tmp_path / "games.yaml", tmp_path / "bundle"
    file.write_text(
        f"pipeline: games\nsource: {{type: delta, path: {tmp_path}/none}}\nregistry: {{path: {tmp_path}/r}}\n"
        f"tables: {{root: {tmp_path}/t}}\ndatabricks: {{node_type: m}}\n"
    )
    made = load(file)
    claim(made, Division.even(3), Store.of(made.tables))
    command = ["workflow", "databricks", str(file), "--out", str(out), "--wheel", str(wheel)]
    assert execute(command) == 0
    assert read_plan((out / "src" / "plan.json").read_text(), origin="plan") == Division.even(3)
    assert "refuse" not in capsys.readouterr().err
    assert execute([*command, "--clusters", "2"]) == 0
    assert "would refuse to run" in capsys.readouterr().err


def test_a_job_returns_when_all_is_well_and_raises_when_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["job", "--version"])
    job_entry.main()
    monkeypatch.setattr(sys, "argv", ["job", "check", "none.yaml"])
    with pytest.raises(job_entry.JobFailed, match="exit code 2"):
        job_entry.main()
    assert "none.yaml" in capsys.readouterr().err
