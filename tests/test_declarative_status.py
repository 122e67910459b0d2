"""The status of a declarative pipeline."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from distributary.audit import quarantined
from distributary.audit.status import render
from distributary.declarative.status import quarantined_rows, status
from distributary.errors import Reason
from tests.declarative_at_rest import Rest
from tests.test_shown import printed


def test_rows_bad_rows_and_what_waits_are_counted_without_a_quarantine_table(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    before = status(rest.config)
    assert (before.rows, before.quarantined, before.lag_rows) == (0, 0, len(records))
    rest.take(records)
    rest.books()
    found = status(rest.config)
    good = [r for r in records if r.fault is None]
    assert found.rows == len(good)
    assert found.quarantined == len(records) - len(good) - sum(r.fault == "tombstones" for r in records)
    assert (found.lag_rows, found.parked) == (0, ())
    assert any(f"{found.quarantined} rows are in the quarantine" in text for text in found.attention)
    listed = quarantined.summarize("games", [quarantined_rows(rest.config)])
    assert (listed.rows, {g.reason for g in listed.groups}) == (found.quarantined, set(found.reasons))
    assert all(s.value is not None and s.quarantined_at for g in listed.groups for s in g.samples)
    more = rest.send(2)
    assert status(rest.config).lag_rows == len(more)


def test_updates_by_sparks_own_command_are_in_the_status_though_nobody_kept_the_ledger(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    rest.take(records)
    found = status(rest.config)
    good = sum(r.fault is None for r in records)
    assert (found.rows, found.last_batch, len(found.tables)) == (good, 0, len(rest.games.names))
    assert found.finished_at is not None and found.quarantined > 0
    assert "no batch yet" not in printed(render(found))
    assert not (Path(rest.config.state_root) / "ledger").exists(), "a status writes nothing"
    rest.books()
    settled = status(rest.config)
    assert (settled.rows, settled.quarantined) == (found.rows, found.quarantined)
    more = rest.send(2)
    rest.take(more)
    both = status(rest.config)
    assert (both.rows, both.last_batch) == (good + sum(r.fault is None for r in more), 1)
    assert [t.rows for t in both.tables] == [DeltaTable(t.table).count() for t in both.tables if t.table]


def test_rows_that_an_expectation_drops_are_in_the_status(tmp_path: Path) -> None:
    rule = {"name": "short", "that": "user_name < 'a'", "otherwise": "drop"}
    rest = Rest(tmp_path, tables={"expectations": [rule]})
    records = rest.send(1)
    rest.take(records)
    books = rest.books()
    dropped = sum(e.reasons.get(Reason.EXPECTATION_FAILED, 0) for e in books.ledger.entries())
    assert dropped == sum(r.fault is None for r in records)
    found = status(rest.config)
    assert (found.rows, found.quarantined) == (0, sum(r.fault not in (None, "tombstones") for r in records) + dropped)


def test_a_table_that_fails_is_parked_until_it_works(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    game = rest.games.names[0]
    name = rest.datasets.silver(game)
    rest.take(rest.send(1))
    rest.books({name: "FAILED"}, {name: "no room"})
    found = status(rest.config)
    assert found.parked == (game,)
    assert any("no room" in text for text in found.attention)
    rest.books({name: "COMPLETED"})
    assert status(rest.config).parked == ()
