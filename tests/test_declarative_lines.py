"""What a runner tells, as lines for people."""

from __future__ import annotations

from typing import Any

from distributary.declarative.lines import demo_lines, line

KINDS = {"bronze": "bronze", "silver_a": "silver", "silver_b": "silver", "mine": "own"}


def update(rows: dict[str, int], **more: Any) -> dict[str, Any]:
    given = {"failed": {}, "error": None, "problems": [], "set_aside": 0, **more}
    datasets = {name: {"rows": count} for name, count in rows.items()}
    return {"kind": "update", "update": 3, "seconds": 1.25, "datasets": datasets, **given}


def run(**more: Any) -> dict[str, Any]:
    return {
        "kind": "run", "updates": 1, "rows": {}, "kinds": KINDS, "set_aside": 0, "ok": True, "failed": {},
        "error": None, **more,
    }  # fmt: skip


def test_an_update_says_which_tables_got_rows_and_what_was_set_aside() -> None:
    assert line(update({"bronze": 1200, "silver_a": 0, "silver_b": 7})) == "update 3: 1.2 s; bronze 1,200, silver_b 7"
    assert line(update({"bronze": 3}, set_aside=2)) == "update 3: 1.2 s; bronze 3; 2 set aside"
    assert line(update({"bronze": 0})) == "update 3: 1.2 s; no new rows"
    assert line(update({}, set_aside=-5)) == "update 3: 1.2 s; no new rows", "rows that came back"


def test_of_a_failed_flow_the_cause_is_said_and_not_that_spark_gives_it_up() -> None:
    why = (
        "Flow 'c.d.t' has FAILED more than 0 times and will not be restarted.\nError: [STREAM_FAILED] Query [id = 8]\n"
        "=== Streaming Query ===\nIdentifier: c.d.t\nCurrent State: ACTIVE\n\n[USER_RAISED_EXCEPTION] 'x' is not true!"
    )
    assert (line(update({}, failed={"t": why})) or "").splitlines()[1] == (
        "  failed: t: [USER_RAISED_EXCEPTION] 'x' is not true!"
    )


def test_an_update_says_what_failed_in_one_line_each() -> None:
    text = line(update({}, failed={"silver_a": "no room\nat java"}, error="all of it", problems=["b: no gold"]))
    assert text is not None
    assert text.splitlines()[1:] == ["  failed: silver_a: no room", "  note: b: no gold"]
    assert (line(update({}, error="all of it\nmore")) or "").splitlines()[1:] == ["  failed: all of it"]


def test_a_run_tells_records_from_rows() -> None:
    rows = {"bronze": 1200, "silver_a": 600, "silver_b": 590, "mine": 5}
    told = "1 update: 1,200 records into bronze, 1,190 rows into 2 silver tables, 5 rows into 1 own table, 10 set aside"
    assert line(run(rows=rows, set_aside=10)) == told
    assert line(run(updates=2)) == "2 updates: no new records"
    assert line(run(ok=False, failed={"silver_a": "x"})) == "1 update: no new records; not well: silver_a"
    assert line(run(ok=False, error="gone")) == "1 update: no new records; not well: gone"


def test_replays_and_errors_have_lines_and_single_events_have_none() -> None:
    assert line({"kind": "replay", "rows": {"b": 2, "a": 1}}) == "3 rows whose schema was not known come back: a, b"
    assert line({"kind": "error", "text": "x"}) == "error: x"
    assert line({"kind": "event", "text": "Flow a is QUEUED."}) is None
    assert line({}) is None


def test_gold_is_shown_as_a_table() -> None:
    text = demo_lines(("game", "events"), [("a", 1200), ("long_name", 3)], 1203, 1203, ["a difference"])
    assert text.splitlines()[2:5] == ["game       events", "a          1,200", "long_name  3"]
    assert "1,203 of 1,203" in text
    assert text.endswith("a difference")
