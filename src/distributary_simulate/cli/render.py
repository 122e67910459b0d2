"""What producers did and how a demo ended, as text for people. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distributary.cli.render import ERROR_CHARS, grid_of, number_of, verification_text
from distributary.names import shown

if TYPE_CHECKING:
    from distributary_simulate.demo.answers import Comparison, Query
    from distributary_simulate.demo.changes import ChangesResult
    from distributary_simulate.demo.debezium import DebeziumResult
    from distributary_simulate.demo.games import Result
    from distributary_simulate.games.clean import Step


def steps_text(steps: Iterable[Step], *, is_deleted: bool) -> RenderableType:
    words = {"delete": "deleted" if is_deleted else "would delete", "keep": "kept", "gone": "already gone"}
    lines = [
        f"{words[s.action]}: {s.what} {shown(s.name)} ({shown(s.where, ERROR_CHARS)})"
        + (f": {shown(s.why)}" if s.why else "")
        for s in steps
    ] or ["nothing was made by this list"]
    if not is_deleted and any(s.action == "delete" for s in steps):
        lines.append("to delete them: the same command with --yes")
    return Text("\n".join(lines))


def demo_text(result: Result, file: str) -> RenderableType:
    """The end of a demo; `file`: its pipeline file as the user would type it."""
    from distributary.running.progress import routes_table

    total = result.report
    folder = result.folder
    fresh = {result.newcomer}
    tried = {
        "status": "what each table holds, its lag, what is quarantined",
        "verify": "recount every table against the ledger",
        "quarantine": "what is quarantined, why, and what to do about it",
        "replay": "send the quarantined rows through again",
        "run": "go on with the stream (Ctrl-C ends it)",
    }
    files = Table(box=None, show_header=False, pad_edge=False)
    for name, path in (
        ("tables", folder.lake),
        ("ledger, quarantine", folder.lake / "_distributary" / total.pipeline),
        ("source, registry", f"{folder.source}, {folder.registry}"),
        ("what was sent", folder.truth),
    ):
        files.add_row(name, str(path))
    return Group(
        Text(f"\n{total.rows_in:,} rows in {number_of(total.batches, 'batch', 'batches')}, one stream, no restart\n"),
        routes_table(result.tally.routes(), result.tally.columns, fresh=fresh, refused=result.tally.refused),
        Text(f"\n{result.newcomer} is the game that began half-way. Columns do not count _origin.\n", style="dim"),
        _comparison(result.comparison),
        verification_text(result.verification),
        Text(f"\n{result.query.sql}\n", style="dim"),
        _answer(result.query),
        Text("\nfiles"),
        Padding(files, (0, 0, 0, 2), expand=False),
        Text("\nnext"),
        _commands(tried, file),
        Text(f"\ndone in {result.seconds:.0f} s"),
    )


def changes_text(result: ChangesResult | DebeziumResult, file: str) -> RenderableType:
    """The end of a demo of changes; `file`: its pipeline file as the user would type it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("source table", "database"):
        table.add_column(name)
    for name in ("events", "rows at the source", "in the merged table", "values compared", "older events"):
        table.add_column(name, justify="right")
    table.add_column("")
    for proof in result.proofs:
        differences = Text("; ".join(map(shown, proof.differences)), style="red")
        verdict = differences if proof.differences else Text("equal", style="green")
        counts = (proof.events, proof.rows, proof.found, proof.values, proof.stale)
        table.add_row(shown(proof.route), proof.kind, *(f"{n:,}" for n in counts), verdict)
    tried = {
        "status": "per table: events, how fresh it is, what waits",
        "verify": result.verified_by,
        "run": "go on with the stream (Ctrl-C ends it)",
    }
    return Group(
        Text(f"\n{result.sent}, {number_of(result.report.batches, 'batch', 'batches')}, one stream\n"),
        table,
        Text(""),
        verification_text(result.verification),
        Text(f"\nlog and merged tables: {result.folder.lake}\n\nnext"),
        _commands(tried, file),
        Text(f"\ndone in {result.seconds:.0f} s"),
    )


def _commands(tried: Mapping[str, str], file: str) -> RenderableType:
    """What to try next with a pipeline file: commands, and why each."""
    grid = Table(box=None, show_header=False, pad_edge=False)
    for command, why in tried.items():
        grid.add_row(Text(f"distributary {command} {file}", style="bold"), Text(f"# {why}", style="dim"))
    return Padding(grid, (0, 0, 0, 2), expand=False)


def _comparison(proof: Comparison) -> Text:
    if proof.ok:
        return Text(
            f"as the producer sent it: {proof.rows_found:,} of {proof.rows_sent:,} good rows in the tables, each once; "
            f"{proof.quarantined_found} of {proof.quarantined_sent} bad records quarantined",
            style="green",
        )
    return Text("\n".join(["DIFFERENT from what the producer sent:", *map(shown, proof.differences)]), style="bold red")


def _answer(query: Query) -> Table:
    grid = grid_of(*query.columns, right=query.columns)
    for row in query.rows:
        grid.add_row(*(f"{value:,}" if isinstance(value, int) else shown(value) for value in row))
    return grid
