"""Lines that a run prints."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from distributary.engine.batch import BatchReport
from distributary.running.progress import RunTotals, batch_line, header, live_view, names, summary
from distributary.running.report import PipelinePlan, RunReport
from distributary.state.ledger import Entry, totals
from distributary.state.refused import refused_routes

REPORT = BatchReport(
    stream="s", batch=3, rows_in=1200, rows_written=1190, rows_quarantined=10, tombstones=0, tables=12, created=(),
    evolved=(), parked=(), recovered=(), seconds={"total": 1.24},
)  # fmt: skip


def test_a_quiet_batch_is_a_short_line() -> None:
    quiet = replace(REPORT, rows_quarantined=0, rows_written=1200)
    assert batch_line(quiet) == "batch 3: 1,200 rows in 1.2 s, 1,200 written to 12 tables"


def test_a_batch_says_what_is_new_and_what_is_wrong() -> None:
    line = batch_line(replace(REPORT, created=("b", "a"), evolved=("c",), parked=("d",), tombstones=2, tables=1))
    assert line == (
        "batch 3: 1,200 rows in 1.2 s, 1,190 written to 1 table; new tables: a, b; new columns in: c; PARKED: d; "
        "quarantined: 10; tombstones: 2"
    )


def test_many_names_are_cut() -> None:
    assert names([f"g{n}" for n in range(6)]) == "g0, g1, g2 and 3 more"


def test_a_run_with_quarantined_rows_and_parked_tables_says_what_to_do() -> None:
    reasons = {"BAD_MAGIC": 7, "NO_ROUTE": 3}
    report = RunReport("games", 2, 100, 90, 10, 1, ("a",), reasons=reasons, waiting={"BAD_MAGIC": 9})
    text = summary(report, "p.yaml")
    assert "2 batches: 100 rows in, 90 written, 10 quarantined (BAD_MAGIC 7, NO_ROUTE 3), 1 tombstone\n" in text
    assert "in the quarantine: 9 rows (BAD_MAGIC 9)" in text
    assert "distributary quarantine p.yaml" in text
    assert "distributary replay p.yaml" in text
    assert "parked: a." in text


def test_a_run_without_a_batch_says_that_nothing_is_new() -> None:
    assert summary(RunReport("games", 0, 0, 0, 0, 0, ()), "p.yaml") == "nothing new in the source"


def test_a_batch_that_an_earlier_run_finished_is_told_and_not_counted_again() -> None:
    line = batch_line(replace(REPORT, already=True))
    assert line.startswith("batch 3: 1,200 rows which an earlier run finished, 1,190 written to 12 tables")
    assert "not in these sums: 1 batch that an earlier run had finished" in summary(
        RunReport("games", 0, 0, 0, 0, 0, (), 1), "p.yaml"
    )


def test_the_header_says_where_from_and_where_to() -> None:
    plan = PipelinePlan("games", "Kafka localhost:9092", "/lake/{route}", "/lake/_state", "/c", "every 10 s")
    assert "Kafka localhost:9092" in header(plan, once=False)
    assert "every 10 s" in header(plan, once=False)
    assert "every 10 s" not in header(plan, once=True)
    assert "(new: this run reads the source from its start)" in header(plan, once=True, is_first=True)
    assert "(new" not in header(plan, once=True)


def test_the_live_view_has_a_line_per_table() -> None:
    entry = Entry(
        "s", 3, "a_game", state="parked", rows_in=5, rows_written=4, rows_quarantined=1, schema_ids={1: 2, 2: 2}
    )
    console = Console(width=100, record=True)
    console.print(live_view(REPORT, RunTotals({"a_game": entry}, {"a_game": 7}, [1.0, 0.5])))
    text = console.export_text()
    assert [*text.splitlines()[1].split()] == ["a_game", "4", "7", "2", "1", "parked"]
    assert "seconds per batch: 1.0 0.5" in text


def test_the_live_view_says_refused_where_status_does() -> None:
    before = Entry("s", 0, "a", rows_in=100, rows_written=100, state="written")
    bad = Entry("s", 1, "a", rows_in=5, rows_quarantined=5, reasons={"CORRUPT_PAYLOAD": 5}, state="empty")
    idle = Entry("s", 2, "a", state="empty")
    well = Entry("s", 1, "b", rows_in=5, rows_written=4, rows_quarantined=1, reasons={"CORRUPT_PAYLOAD": 1})
    entries = [before, bad, well, idle]
    tally = RunTotals(totals(entries), refused=refused_routes(entries))
    console = Console(width=100, record=True)
    console.print(live_view(REPORT, tally))
    lines = {line.split()[0]: line.split()[-1] for line in console.export_text().splitlines()[1:3]}
    assert lines == {"a": "refused", "b": "ok"}
