"""The ledger of a declarative pipeline, counted in bronze."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.declarative.bronze_counts import ENVELOPE, RouteCount
from distributary.declarative.known_routes import KnownRoutes
from distributary.declarative.update_ledger import Books
from distributary.errors import QuarantineLimit
from distributary.state.ledger import totals
from tests.declarative_at_rest import Rest


def test_each_commit_of_bronze_is_counted_once_and_a_full_refresh_anew(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    first = rest.send(1)
    rest.take(first)
    rest.books()
    rest.books()
    rest.take(rest.send(2))
    rest.books()
    tombstones = sum(r.fault == "tombstones" for r in rest.sent)
    sums = totals(rest.books().ledger.entries())
    assert sum(e.rows_in for e in sums.values()) == len(rest.sent) - tombstones
    assert sum(e.tombstones for e in sums.values()) == tombstones
    whole = DeltaTable(rest.bronze.uri).to_pyarrow_table()
    write_deltalake(rest.bronze.uri, whole.slice(0, 0), mode="overwrite", partition_by=["route"])
    rest.take(first)
    sums = totals(rest.books().ledger.entries())
    good = Counter(r.game for r in first if r.fault is None)
    assert {r: e.rows_written for r, e in sums.items() if r} == dict(good)


def test_an_update_that_finds_nothing_leaves_no_entry(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    assert rest.books().ledger.entries() == []
    rest.take(rest.send(1))
    before = len(rest.books().ledger.entries())
    # Spark sets properties of every table in every update: a commit without a row.
    DeltaTable(rest.bronze.uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert len(rest.books().ledger.entries()) == before


def test_a_table_that_fails_or_works_again_is_noted_without_new_rows(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    game = rest.games.names[0]
    name = rest.datasets.silver(game)
    rest.take(rest.send(1))
    rows = rest.books().ledger.newest[game].rows_written
    assert rest.books().ledger.newest[game].state == "written"
    rest.books({name: "FAILED"}, {name: "no room"})
    newest = rest.books({name: "FAILED"}, {name: "no room"}).ledger.newest[game]
    assert (newest.state, newest.failures, newest.error, newest.rows_written) == ("parked", 2, "no room", 0)
    rest.take(rest.send(2))
    resting = rest.books({name: "EXCLUDED"}).ledger.newest[game]
    assert (resting.state, resting.error) == ("parked", "no room"), "new rows came for a table that rests"
    works = rest.books({name: "COMPLETED"}).ledger.newest[game]
    assert (works.state, works.failures, works.error) == ("written", 0, None)
    entries = len(Books(rest.config).ledger.entries())
    rest.books({name: "COMPLETED"})
    assert len(Books(rest.config).ledger.entries()) == entries
    assert totals(Books(rest.config).ledger.entries())[game].rows_written > rows


def test_unknown_schema_ids_are_remembered_until_their_rows_come_back(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    known = rest.known()
    hidden = KnownRoutes(known.reader.__class__(**{**vars(known.reader), "schemas": {}}), known.routes)
    rest.take(records, hidden)
    there = [r for r in records if r.value is not None]
    assert rest.books().unknown() == {"": {ENVELOPE: len(there)}}
    assert Books(rest.config).unknown() == {"": {ENVELOPE: len(there)}}


def test_too_many_bad_rows_are_an_error_only_from_a_number_on(tmp_path: Path) -> None:
    books = Books(Rest(tmp_path, quarantine={"max_ratio": 0.5, "min_rows": 10}).config)
    books.check_limits({})
    books.check_limits({"a": RouteCount(good=1, aside=8)})
    books.check_limits({"a": RouteCount(good=5, aside=5)})
    # A replay takes rows out: that is no bad row.
    books.check_limits({"a": RouteCount(good=5, aside=-8), "b": RouteCount(good=5, aside=5)})
    with pytest.raises(QuarantineLimit) as caught:
        broken = RouteCount(good=4, aside=6, reasons=Counter(BROKEN_SCHEMA=6))
        books.check_limits({"a": broken, None: RouteCount(aside=1)})
    assert caught.value.parameters["reason"] == "BROKEN_SCHEMA"
    assert (caught.value.parameters["bad"], caught.value.parameters["rows"]) == (7, 11)
