"""`run` in this process: shown, measured, and told to whoever wants notices."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributary.cli.log_format import RunOutput
from distributary.cli.signals import Stopper
from distributary.errors import Exit
from distributary.log_context import of_process

if TYPE_CHECKING:
    from distributary.config import Pipeline
    from distributary.engine.batch import BatchReport


def go(
    config: Pipeline, file: Path, *, hops: Collection[int], once: bool, force: bool, supervised: bool, as_json: bool
) -> Exit:
    """Run the pipeline of `file` to its end. `supervised`: somebody else sends its notices. Raises as a run does."""
    from distributary.config import Notices
    from distributary.fleet.notices import told
    from distributary.metrics.meter import measured
    from distributary.running.hops import run
    from distributary.running.progress import header
    from distributary.running.report import build
    from distributary.state.state_format import has_state

    of_process(stream=None if config.share is None else config.share.name)
    output = RunOutput(as_json)
    once_only = config.trigger.ends(once)
    output.say(header(build(config), once_only, is_first=not has_state(config)))
    stopper = Stopper(config.trigger.stop_within)
    with told(config.pipeline, Notices() if supervised else config.notices) as notifier, measured(config) as meter:

        def progress(report: BatchReport) -> None:
            meter.batch(report)
            output.batch(report)
            notifier.batch({"parked": report.parked, "recovered": report.recovered})

        def handle(running: Any) -> None:
            meter.attach(running)
            stopper.attach(running)

        report = run(config, hops=hops, once=once, progress=progress, handle=handle, force=force, alone=True)
    output.end(report, str(file))
    return stopper.exit_code(Exit.ATTENTION if report.parked else Exit.OK)
