"""Names from outside, in all that a person reads: whoever writes a record chooses its route."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group, RenderableType

from distributary.audit.page import Facts, document
from distributary.audit.plan import PlanReport, TablePlan
from distributary.audit.status import Status, TableStatus
from distributary.audit.status import render as render_status
from distributary.audit.verify import TableCheck, Verification
from distributary.cli import output, render
from distributary.cli.commands import app
from distributary.cli.terminal import PlainConsole
from distributary.engine.batch import BatchReport
from distributary.engine.replay import ReplayReport
from distributary.errors import BadInput, ConfigError, TableCollision
from distributary.fleet.notices import _names
from distributary.fleet.workflow import plan_text as workflow_views
from distributary.fleet.workflow.placement import ClusterPlan, Move, WorkflowPlan
from distributary.names import shown
from distributary.repair.clean import CleanPlan
from distributary.repair.clean.clean_plan import RemainingPath, RemovalTarget
from distributary.running import progress
from distributary.running.catalog import CatalogEntry
from distributary.running.progress import RunTotals
from distributary.running.report import RunReport
from distributary.state.ledger import Entry
from distributary.state.streams import StreamRecord, StreamState
from distributary.supervisor.stream_table import change_line, ending_text, streams_table
from distributary_simulate.cli import render as simulate_render
from distributary_simulate.demo.answers import Comparison, Query
from distributary_simulate.demo.changes import ChangesResult, TableProof
from distributary_simulate.demo.games import Folder
from distributary_simulate.games.clean import Step

TRICKS = [
    "[/red]", "[bold]x[/]", "[link=http://x]", ":smile:", "\x1b[2J\x1b]0;title\x07", "a\nbatch 7: 9 rows in 0.1 s",
    "a\r\nerror: all is lost", "\u2028\x85\x0b", "\x9b31m", "\u202egpj.exe", "\udc80", "{route}", "%s%n", "a" * 5000,
    "\x00", "<script>alert(1)</script>", "'; --", "`", "\t", "",
]  # fmt: skip
names = st.sampled_from(TRICKS) | st.text(max_size=40) | st.text(alphabet="[]/:ab\n\r\x1b\x9b\u202e\udc80", max_size=20)


def plan(name: str) -> RenderableType:
    table = TablePlan(name, name, True, "spark", name, 1, 1, 1, {1: 1}, {name: 1}, {name: name}, {name: [name, name]})
    parked = TablePlan(name, name, False, new_columns={name: name}, parked=name)
    found = PlanReport(name, name, None, 1, 1, 1, 1, 0, [table, parked], {1: 1}, {name: 1})
    return render.plan_text(found)


def status(name: str) -> Status:
    table = TableStatus(
        name, name, "task", "parked", 1, 1, "then", 2.0, 2.0, 1, 1, 1, "later", name, name, "append_only"
    )
    streams = (StreamRecord(name, StreamState.PARKED, error=name, parked_tables=(name,)),)
    return Status(name, "now", True, 1, "then", 1, 1, 1, (table,), (name,), (name,), streams)


def verification(name: str) -> Verification:
    return Verification(name, False, 1, 1, 1, 1, 1, 1, (TableCheck(name, name, "task"),), {name: 1}, (name,), (name,))


RUN = RunReport("games", 1, 1, 1, 1, 0, ())


def batch(name: str) -> BatchReport:
    return BatchReport("s", 1, 1, 1, 1, 0, 1, (name,), (name,), (name,), (name,), {"total": 1.0})


def proof(name: str) -> RenderableType:
    proofs = (TableProof(name, "mysql", 1, 1, 1, 1, 1, 1, 1, (name,)),)
    return simulate_render.changes_text(
        ChangesResult(Folder(Path("d")), RUN, RunTotals(), proofs, verification(name), 1, 1, 1), "f"
    )


def records(name: str) -> list[StreamRecord]:
    return [StreamRecord(name, StreamState.RESTING, error=name, next_try=1.0, parked_tables=(name,), failures=1)]


def workflow(name: str) -> RenderableType:
    cluster = ClusterPlan(name, (name, name), 1.0, 1.0, 1.0, True)
    moves = (Move(name, name, name),)
    found = WorkflowPlan(name, (cluster,), moves, moves, (name,), 0)
    return workflow_views.plan_text(found, name, applied=True)


def clean(name: str) -> RenderableType:
    targets = (RemovalTarget("table", name, name, (name,)),)
    entries = (CatalogEntry(name, name),)
    config: Any = None
    return render.clean_text(CleanPlan(name, targets, (RemainingPath(name, name),), entries, config), is_removed=False)


def answers(name: str) -> RenderableType:
    comparison = simulate_render._comparison(Comparison(1, 1, 1, 1, 1, 1, 1, (name,)))
    return Group(comparison, simulate_render._answer(Query("SELECT", ("game",), ((name,),))))


ENTRY = Entry("s", 1, "r", table="t", state="parked", error="e")
RENDERERS: dict[str, Callable[[str], RenderableType]] = {
    "plan": plan,
    "status": lambda name: render_status(status(name)),
    "verify": lambda name: render.verification_text(verification(name)),
    "replay": lambda name: render.replay_text(ReplayReport({name: 1}, {name: 1}, {name: name})),
    "simulate clean": lambda name: simulate_render.steps_text(
        [Step("topic", name, name, "delete", name)], is_deleted=False
    ),
    "clean": clean,
    "demo cdc": proof,
    "demo games": answers,
    "workflow plan": workflow,
    "streams": lambda name: streams_table(records(name), 1.0),
    "routes": lambda name: progress.routes_table([(name, ENTRY)], {name: 3}, title=None),
}
LINES: dict[str, Callable[[str], str]] = {
    "batch": lambda name: progress.batch_line(batch(name)),
    "run": lambda name: progress.summary(RunReport("games", 1, 1, 1, 1, 0, (name,)), "f.yaml"),
    "stream": lambda name: change_line(records("x")[0], records(name)[0]),
    "streams' end": lambda name: ending_text(records(name), "f.yaml"),
    "notice": lambda name: _names([name]),
}


def printed(what: RenderableType) -> str:
    """As a terminal of this width would get it, without our own colours."""
    console = PlainConsole(width=20_000)
    console.file = io.StringIO()
    console.print(what)
    return str(console.file.getvalue())


@pytest.mark.parametrize("command", RENDERERS)
@given(name=names)
def test_no_name_reaches_the_terminal_as_more_than_text_of_one_line(command: str, name: str) -> None:
    text, plain = printed(RENDERERS[command](name)), printed(RENDERERS[command]("a" if name else ""))
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == plain.count("\n")


@pytest.mark.parametrize("what", LINES)
@given(name=names)
def test_no_name_begins_a_line_of_a_report(what: str, name: str) -> None:
    text = LINES[what](name)
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == LINES[what]("a").count("\n")


@pytest.mark.parametrize("command", RENDERERS)
def test_what_looks_like_markup_is_shown_as_it_is(command: str) -> None:
    assert "[/red] :smile:" in printed(RENDERERS[command]("[/red] :smile:"))


@given(name=names)
def test_a_page_of_a_status_has_no_markup_of_a_name_and_no_control_character(name: str) -> None:
    page = document(Facts(status(name), (), (), None))
    assert page.replace("\n", "").isprintable()
    assert page.count("<script") == 3, "its own"
    page.encode()


@given(name=names)
def test_an_error_and_a_log_line_are_one_line_whatever_the_names_in_them(name: str) -> None:
    for error in (TableCollision(route=name, table=name, owner=name), ConfigError(file=name, key=name, detail="d")):
        assert str(error).isprintable()
        assert name in error.parameters.values()
    assert str(BadInput(detail=f"one\n{name}")).replace("\n", "").isprintable()
    record = logging.LogRecord("distributary", logging.INFO, "f", 1, "upkeep of %s", (name,), None)
    assert output.LogLines().format(record).isprintable()


@given(name=names)
def test_json_for_scripts_holds_the_name_itself_and_prints(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        patch.setattr(sys, "stdout", out)
        output.say_json({"route": name})
        output.say(name)
        out.flush()
        first, _, rest = out.buffer.getvalue().decode().partition("\n")
    assert json.loads(first) == {"route": name}
    assert first.isprintable() and rest.replace("\n", "").isprintable()


@given(name=names)
def test_a_shown_name_is_short_and_a_plain_one_is_itself(name: str) -> None:
    assert shown(name).isprintable()
    if name.isprintable() and len(name) <= 200:
        assert shown(name) == name
    assert len(shown("ä" * 100_000)) < 300


def test_the_log_of_the_command_line_is_of_such_lines(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        app(["check", "/there/is/none"], standalone_mode=False)
    except BadInput:
        logging.getLogger("distributary").warning("a\nb")
    finally:
        root.handlers = before
    assert capfd.readouterr().err == "a\\nb\n"
