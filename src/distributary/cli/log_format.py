"""How log lines look: plain messages, or with time, level, pipeline, batch and route, as text or as JSON.

With either of the two a run is told by log lines on stderr alone; stdout is empty, or has the lines of --json.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distributary.cli.output import LogLines, as_json_text, say, say_batch, say_run
from distributary.log_context import log_fields
from distributary.names import printable

if TYPE_CHECKING:
    from distributary.engine.batch import BatchReport
    from distributary.running.report import RunReport

Format = Literal["plain", "text", "json"]
_HELP = (
    "Lines on stderr: `plain` messages; `text` with time, level, pipeline, batch and route; `json`, an object a line. "
    "With text and json a run is told on stderr as a whole."
)
LogFormat = Annotated[
    Format | None,
    typer.Option("--log-format", envvar="DISTRIBUTARY_LOG_FORMAT", help=_HELP, show_default=False),
]
OwnLogFormat = Annotated[
    Format | None,
    # Without the environment: what was said before the command is nearer.
    typer.Option("--log-format", help="As before the command.", show_default=False),
]
WORST_ROUTES = 5
"""Routes with rows set aside that get a line of their own for each batch."""
FIELDS = ("pipeline", "stream", "batch", "route")
_COUNTS = ("rows_in", "rows_written", "rows_quarantined", "tombstones", "excluded", "tables", "reasons", "seconds")

log = logging.getLogger("distributary")


def iso(seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """What the line is about: what its writer says over what is known where it was written."""
    own_fields = {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
    known_fields = {**log_fields(), **own_fields}
    return {name: known_fields[name] for name in FIELDS if name in known_fields}


class TextLines(LogLines):
    """`2026-11-29T19:40:01.123Z INFO games batch=3 route=chess: message`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = _about(record)
        pipeline = printable(str(about.pop("pipeline", "-")))
        fields = "".join(f" {name}={printable(str(value))}" for name, value in about.items())
        return f"{iso(record.created)} {record.levelname} {pipeline}{fields}: {super().formatMessage(record)}"


class JsonLines(logging.Formatter):
    """An object a line: time, level, what it is about, message, figures where there are some."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": iso(record.created), "level": record.levelname.lower(), **_about(record)}
        line["message"] = record.getMessage()
        line |= getattr(record, "figures", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return as_json_text(line)


_FORMATTERS: Mapping[Format, type[logging.Formatter]] = {"plain": LogLines, "text": TextLines, "json": JsonLines}
_chosen: Format = "plain"


def set_up(form: Format) -> None:
    """From now on log lines look so. A program around us that has handlers of its own keeps them."""
    global _chosen
    _chosen = form
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    root = logging.getLogger()
    ours = [
        our_handler for our_handler in root.handlers if isinstance(our_handler.formatter, tuple(_FORMATTERS.values()))
    ]
    for our_handler in ours:
        root.removeHandler(our_handler)
    if ours or not root.handlers or form != "plain":
        root.addHandler(handler)


def are_structured() -> bool:
    return _chosen != "plain"


class RunOutput:
    """A run as it is told: words or JSON on stdout, or log lines."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._parked: set[str] = set()

    def say(self, text: str) -> None:
        """Words, where they are asked for."""
        if are_structured():
            for line in text.splitlines():
                log.info("%s", line.strip())
        elif not self._as_json:
            say(text)

    def batch(self, report: BatchReport) -> None:
        from distributary.running.progress import batch_line

        if self._as_json:
            say_batch(report)
        if are_structured():
            self._log(report, batch_line(report))
        elif not self._as_json:
            say(batch_line(report))

    def end(self, report: RunReport, file: str) -> None:
        from distributary.running.progress import summary

        if self._as_json:
            say_run(report)
        self.say(summary(report, file))

    def _log(self, report: BatchReport, line: str) -> None:
        """A line for the batch, and one for each table that something happened to."""
        figures = {name: value for name, value in asdict(report).items() if name in _COUNTS}
        level = logging.WARNING if report.rows_quarantined else logging.INFO
        log.log(level, "%s", line, extra={"batch": report.batch, "figures": figures})
        parked = set(report.parked)
        for routes, level, text in (
            (report.created, logging.INFO, "new table"),
            (tuple(r for r in report.evolved if r not in report.created), logging.INFO, "new columns"),
            (report.widened, logging.INFO, "wider columns"),
            (tuple(sorted(parked - self._parked)), logging.WARNING, "the table cannot be written and is parked"),
            (report.recovered, logging.INFO, "the table works again"),
        ):
            for route in routes:
                log.log(level, text, extra={"batch": report.batch, "route": route})
        self._parked = parked
        worst = sorted(report.refused.items(), key=lambda item: (-item[1], item[0]))
        for route, rows in worst[:WORST_ROUTES]:
            text = f"{rows:,} rows were set aside, {report.written.get(route, 0):,} written"
            log.warning(
                "%s", text, extra={"batch": report.batch, "route": route, "figures": {"rows_quarantined": rows}}
            )
