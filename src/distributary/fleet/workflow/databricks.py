"""The edge to a Databricks workspace: create, update or delete a pipeline's job, start it, repair its last run.

The only module that uses databricks-sdk, and it only sends what `bundle` and `pipeline_bundle` have made. For teams
that deploy bundles with their own tools none of this is needed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distributary.config import Pipeline
from distributary.errors import BadInput, WorkspaceFailed
from distributary.fleet.workflow.bundle import TAG, Spread, bundle, job_settings, libraries, title

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.jobs import BaseRun

_INSTALL = "Install it: pip install 'distributary[databricks]'"
_CONFIGURE = "Set DATABRICKS_HOST and DATABRICKS_TOKEN, or name a profile of ~/.databrickscfg with --profile"


Id = TypeVar("Id", int, str)


@dataclass(frozen=True)
class Started:
    """A run of a job, and where to look at it."""

    job_id: int
    run_id: int
    url: str


def connect(profile: str | None = None) -> WorkspaceClient:
    """A client with the credentials of the environment or of a profile. Raises WorkspaceFailed."""
    try:
        from databricks.sdk import WorkspaceClient
    except ImportError as e:
        raise WorkspaceFailed(what="loading databricks-sdk", detail=str(e), remedy=_INSTALL) from e
    try:
        return WorkspaceClient(profile=profile)
    except ValueError as e:  # how the SDK says that it found no credentials
        raise WorkspaceFailed(what="connecting", detail=str(e).splitlines()[0], remedy=_CONFIGURE) from e


class Workspace:
    """One pipeline's job in a workspace, and its Lakeflow pipeline where it has one.

    Every method raises WorkspaceFailed when the workspace refuses.
    """

    def __init__(self, client: WorkspaceClient, config: Pipeline, say: Callable[[str], None] = lambda _: None) -> None:
        self._client = client
        self._config = config
        self._say = say
        self.name = title(config)

    def create(self, file_name: str, file_text: str, spread: Spread, wheel_name: str, wheel: bytes) -> int:
        """Upload what the job needs and create it, or bring the one that there is up to date; its id.

        Raises BadInput when a job of this name is not ours.
        """
        files = bundle(self._config, file_name, file_text, spread, wheel_name)
        sources = {p.removeprefix("src/"): t.encode() for p, t in files.texts.items() if p.startswith("src/")}
        root = self.upload({**sources, wheel_name: wheel})
        needed = libraries(wheel_name, files=root, dist=root)
        return self.put_job(job_settings(self._config, spread, f"{root}/{file_name}", f"{root}/plan.json", needed))

    def check_names(self) -> None:
        """Raises BadInput when a job or a pipeline of our name is not ours."""
        with _translated("looking at what is there"):
            self._find()
            self._find_pipeline()

    def upload(self, files: Mapping[str, bytes]) -> str:
        """Put files into this pipeline's folder in the workspace; the folder."""
        with _translated("uploading the files"):
            root = self._folder()
            for path, body in files.items():
                self._upload(f"{root}/{path}", body)
            return root

    def _folder(self) -> str:
        return f"/Workspace/Users/{self._client.current_user.me().user_name}/distributary/{self._config.pipeline}"

    def put_job(self, settings: Mapping[str, Any]) -> int:
        """Create the job, or bring the one that there is up to date; its id. Raises BadInput: it is not ours."""
        from databricks.sdk.service.jobs import JobSettings

        api, job_settings = self._client.jobs, JobSettings.from_dict(dict(settings))
        with _translated("creating the job"):
            return self._put(
                "job",
                self._find(),
                lambda job: api.reset(job, job_settings),
                lambda: api.create(**job_settings.as_shallow_dict()).job_id,
            )

    def put_pipeline(self, settings: Mapping[str, Any]) -> str:
        """Create the Lakeflow pipeline, or bring the one that there is up to date; its id.

        Raises BadInput when one of this name is not ours.
        """
        from databricks.sdk.service.pipelines import PipelineSpec

        api, spec = self._client.pipelines, PipelineSpec.from_dict(dict(settings)).as_shallow_dict()
        with _translated("creating the pipeline"):
            return self._put(
                "pipeline",
                self._find_pipeline(),
                lambda pipeline: api.update(pipeline, **spec),
                lambda: api.create(**spec).pipeline_id,
            )

    def _put(self, kind: str, existing: Id | None, update: Callable[[Id], None], create: Callable[[], Id | None]) -> Id:
        if existing is not None:
            update(existing)
            self._say(f"{kind} {existing} is up to date")
            return existing
        created = create()
        assert created is not None  # the API always gives one
        self._say(f"{kind} {created} is created")
        return created

    def delete(self) -> None:
        """Take away what `create` has made here: the job, the Lakeflow pipeline without its tables, the files. Says
        each, or that nothing is there. Raises BadInput: a job or a pipeline of our name is not ours, or a bundle
        has deployed it."""
        from databricks.sdk.errors import NotFound

        with _translated("deleting what was deployed"):
            job, pipeline = self._find(), self._find_pipeline()
            settings = [
                None if job is None else self._client.jobs.get(job).settings,
                None if pipeline is None else self._client.pipelines.get(pipeline).spec,
            ]
            _check_not_of_bundle("job", job, settings[0])
            _check_not_of_bundle("pipeline", pipeline, settings[1])
            folders = self._folders(settings)
            if job is not None:
                self._client.jobs.delete(job)
                self._say(f"job {job} is deleted")
            if pipeline is not None:
                self._client.pipelines.delete(pipeline, cascade=False)
                self._say(f"pipeline {pipeline} is deleted; its tables stay")
            for folder in folders:
                try:
                    self._client.workspace.delete(folder, recursive=True)
                    self._say(f"{folder} is deleted")
                except NotFound:
                    if job is None and pipeline is None:
                        self._say(f"nothing is there: no job or pipeline {self.name!r}, and no {folder}")

    def _folders(self, settings: Sequence[Any]) -> list[str]:
        """The folders with the files of a job and a pipeline, as their settings name them: another user's, where that
        one has created them. Our own too."""
        texts = json.dumps([about.as_dict() for about in settings if about is not None])
        named = re.findall(rf"/Workspace/Users/[^/\"]+/distributary/{re.escape(self._config.pipeline)}(?=[/\"])", texts)
        return sorted({*named, self._folder()})

    def run(self) -> Started:
        """Start the job now. Raises BadInput when there is none."""
        with _translated("starting the job"):
            job = self._ours()
            run_id = int(self._client.jobs.run_now(job).run_id)
            return Started(job, run_id, self._client.jobs.get_run(run_id).run_page_url or "")

    def repair(self) -> Started:
        """Run the failed tasks of the last run again, and those that wait for them. Raises BadInput: nothing failed."""
        with _translated("repairing the last run"):
            job = self._ours()
            newest: BaseRun | None = next(iter(self._client.jobs.list_runs(job_id=job, limit=1)), None)
            if newest is None or newest.run_id is None:
                raise BadInput(detail=f"the job {self.name!r} has not run yet; start it with --run")
            run = self._client.jobs.get_run(newest.run_id, include_history=True)
            result = run.state.result_state if run.state else None
            if result is None or result.value not in ("FAILED", "TIMEDOUT", "CANCELED", "UPSTREAM_FAILED"):
                state = result.value if result else "still running"
                raise BadInput(detail=f"the last run of {self.name!r} ({newest.run_id}) needs no repair: it is {state}")
            repairs = [item.id for item in run.repair_history or () if item.id is not None and item.id != newest.run_id]
            self._client.jobs.repair_run(
                newest.run_id,
                rerun_all_failed_tasks=True,
                rerun_dependent_tasks=True,
                latest_repair_id=repairs[-1] if repairs else None,
            )
            return Started(job, newest.run_id, run.run_page_url or "")

    def _upload(self, path: str, body: bytes) -> None:
        from databricks.sdk.service.workspace import ImportFormat

        self._client.workspace.mkdirs(path.rsplit("/", 1)[0])
        self._client.workspace.upload(path, io.BytesIO(body), format=ImportFormat.RAW, overwrite=True)

    def _find(self) -> int | None:
        """The id of our job. Raises BadInput when one of this name is another's, or there are several."""
        namesakes = [
            job for job in self._client.jobs.list(name=self.name) if job.settings and job.settings.name == self.name
        ]
        ours = [job for job in namesakes if _tags(job.settings).get(TAG) == self._config.pipeline]
        self._check_ours("job", [job.job_id for job in namesakes], [job.job_id for job in ours])
        return ours[0].job_id if ours else None

    def _find_pipeline(self) -> str | None:
        """The id of our pipeline. Raises BadInput when one of this name is another's, or there are several."""
        api = self._client.pipelines
        named = [p for p in api.list_pipelines(filter=f"name LIKE '{self.name}'") if p.name == self.name]
        namesakes = [p.pipeline_id for p in named if p.pipeline_id is not None]
        ours = [i for i in namesakes if _tags(api.get(i).spec).get(TAG) == self._config.pipeline]
        self._check_ours("pipeline", namesakes, ours)
        return ours[0] if ours else None

    def _check_ours(self, kind: str, namesakes: Sequence[object], ours: Sequence[object]) -> None:
        if len(namesakes) > len(ours) or len(ours) > 1:
            ids = ", ".join(map(str, namesakes))
            raise BadInput(
                detail=f"{kind} {self.name!r} ({ids}) is there already and not this pipeline's alone. Rename or "
                "delete it"
            )

    def _ours(self) -> int:
        job = self._find()
        if job is None:
            raise BadInput(detail=f"there is no job {self.name!r}; make it with --create")
        return job


def _check_not_of_bundle(kind: str, its_id: object, settings: Any) -> None:
    """Raises BadInput. A bundle's own state would go on naming what is gone."""
    if settings and settings.deployment:
        detail = f"{kind} {its_id} was deployed by an Asset Bundle: take it away by databricks bundle destroy"
        raise BadInput(detail=detail)


def _tags(settings: Any) -> Mapping[str, str]:
    return (settings and settings.tags) or {}


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """The SDK's errors in our words, which never hold a request's headers."""
    from databricks.sdk.errors.base import DatabricksError

    try:
        yield
    except DatabricksError as e:
        code = f" ({e.error_code})" if e.error_code else ""
        remedy = "Check the rights of this user, and the ids in the section databricks."
        message = str(e).splitlines()[0].split(" Config: ")[0]
        raise WorkspaceFailed(what=action, detail=f"{message[:500]}{code}", remedy=remedy) from e
    except (TimeoutError, OSError) as e:
        raise WorkspaceFailed(what=action, detail=f"{type(e).__name__}: {e}", remedy=_CONFIGURE) from e
