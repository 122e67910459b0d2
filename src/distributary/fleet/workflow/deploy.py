"""What a deployment needs, from files on this machine: the pipeline file, a plan, the wheel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distributary.config import Pipeline
from distributary.config.text_files import read_text
from distributary.errors import BadInput
from distributary.fleet.workflow.bundle import Spread, bundle
from distributary.fleet.workflow.placement import WorkflowPlan
from distributary.fleet.workflow.wheel import without_requirements
from distributary.shares import Division, read_plan


@dataclass(frozen=True)
class Prepared:
    """Everything of a deployment in memory."""

    config: Pipeline
    file_name: str
    file_text: str
    spread: Spread
    wheel_name: str
    wheel: bytes


def prepare(
    config: Pipeline,
    file: Path,
    plan: WorkflowPlan | Division | None,
    plan_file: Path | None,
    *,
    per_route: bool,
    wheel: Path | None,
) -> Prepared:
    """Read and check all that is needed. `plan` (or a division), or a `plan_file` made before; neither for a pipeline
    that is one stream. Raises BadInput, ShareInvalid."""
    if plan_file is not None and per_route:
        raise BadInput(detail="--per-route makes its own plan: leave out --plan-file")
    wheel_file = find_wheel(wheel)
    if config.source.reads_files:
        spread = Spread.whole()
    elif isinstance(plan, Division):
        spread = Spread.per_cluster(plan)
    elif plan is not None:
        spread = Spread.per_route(plan) if per_route else Spread.per_cluster(plan.division)
    elif plan_file is not None:
        spread = Spread.per_cluster(read_plan(read_text(plan_file), origin=str(plan_file)))
    else:
        raise BadInput(detail="a plan is needed: give --clusters N, --streams-per-cluster K or --plan-file PLAN")
    text = file.read_text(encoding="utf-8")
    return Prepared(config, file.name, text, spread, wheel_file.name, without_requirements(wheel_file))


def write(prepared: Prepared, out: Path) -> None:
    """Write the bundle; files of an earlier one are replaced. Raises OSError."""
    rendered = bundle(prepared.config, prepared.file_name, prepared.file_text, prepared.spread, prepared.wheel_name)
    for path, text in rendered.texts.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
    (out / "dist").mkdir(exist_ok=True)
    (out / "dist" / prepared.wheel_name).write_bytes(prepared.wheel)


def find_wheel(named: Path | None) -> Path:
    """The wheel that was named, else the newest in `dist/`. Raises BadInput: there is none."""
    if named is not None:
        return named
    wheels = sorted(Path("dist").glob("distributary-*.whl"))
    if not wheels:
        raise BadInput(detail="the wheel is needed: python -m pip wheel --no-deps -w dist . and give it with --wheel")
    return wheels[-1]
