"""The recount of a declarative pipeline: source against bronze, bronze against silver."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.declarative import silver_values
from distributary.declarative.silver_values import judge_silver
from distributary.declarative.verify import verify
from distributary.errors import StoreUnreadable
from distributary.running.maintain import maintain
from distributary.state.ledger import totals
from tests.declarative_at_rest import PLAN, Rest


def test_a_pipeline_that_has_never_run_has_lost_nothing(tmp_path: Path) -> None:
    found = verify(Rest(tmp_path).config)
    assert (found.ok, found.rows_in, found.tables) == (True, 0, ())


@pytest.mark.parametrize("what", ["lost", "doubled", "behind", "bronze", "twice"])
def test_rows_that_are_lost_doubled_or_late_are_found(tmp_path: Path, what: str) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    right = verify(rest.config)
    assert right.ok and len(right.notes) == 1  # gold is not looked at, and it says so
    uri = rest.silver_uri(rest.games.names[0])
    rows = DeltaTable(uri).to_pyarrow_table()
    if what == "lost":
        write_deltalake(uri, rows.slice(1), mode="overwrite")
    elif what == "doubled":
        write_deltalake(uri, rows.slice(0, 1), mode="append")
    elif what == "behind":
        rest.read(rest.datasets.silver(rest.games.names[0]), 0)
        write_deltalake(uri, rows.slice(0, 0), mode="overwrite")
    elif what == "bronze":
        rest.send(2, start=PLAN.records)
        rest.read(rest.datasets.bronze, DeltaTable(str(tmp_path / "source")).version() + 1)
    else:
        rest.read(rest.datasets.bronze, 0)
    found = verify(rest.config)
    assert not found.ok
    counted = (found.rows_lost, found.rows_duplicated, sum(t.rows_pending for t in found.tables))
    sent = PLAN.games * PLAN.records
    expected = {
        "lost": (1, 0, 0), "doubled": (0, 1, 0), "behind": (0, 0, rows.num_rows), "bronze": (sent, 0, 0),
        "twice": (0, sent, 0),
    }  # fmt: skip
    assert counted == expected[what]


@pytest.mark.parametrize("deep", [True, False])
def test_values_of_silver_are_compared_with_the_records_of_bronze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    monkeypatch.setattr(silver_values, "HELD", 7)
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    rest.take(rest.send(2))
    right = judge_silver(rest.config, verify(rest.config), deep=deep)
    assert (right.ok, right.problems, len(right.notes)) == (True, (), 1)
    compared = [t.rows_written if deep else 2 * silver_values.SAMPLE for t in right.tables]
    assert [t.rows_compared for t in right.tables] == compared
    uri = rest.silver_uri(rest.games.names[0])
    rows = DeltaTable(uri).to_pyarrow_table()
    name = next(f.name for f in rows.schema if pa.types.is_string(f.type))
    spoilt = rows.set_column(rows.column_names.index(name), name, [["x"] * rows.num_rows])
    write_deltalake(uri, spoilt, mode="overwrite")
    counted = verify(rest.config)
    assert counted.ok
    found = judge_silver(rest.config, counted, deep=deep)
    assert [bool(t.problems) for t in found.tables] == [t.table == uri for t in found.tables]


def test_rows_under_another_schema_id_are_found_although_the_number_is_right(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    rest.take(rest.send(2))
    uri = rest.silver_uri(rest.games.names[0])
    rows = DeltaTable(uri).to_pyarrow_table().sort_by("event_timestamp")
    # the last row in place of the first
    write_deltalake(uri, rows.slice(1), mode="overwrite")
    write_deltalake(uri, rows.slice(rows.num_rows - 1), mode="append")
    found = verify(rest.config)
    assert (found.rows_lost, found.rows_duplicated) == (1, 1)


def test_a_silver_table_that_cannot_be_read_counts_as_lost_and_bronze_is_an_error(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    game = rest.games.names[0]
    good = verify(rest.config).tables[0].rows_written
    Path(rest.silver_uri(game), "_delta_log", f"{0:020}.json").write_text("{broken")
    found = verify(rest.config)
    assert (found.ok, found.rows_lost) == (False, good)
    Path(rest.bronze.uri, "_delta_log", f"{0:020}.json").write_text("{broken")
    with pytest.raises(StoreUnreadable):
        verify(rest.config)


def test_upkeep_changes_no_count(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    rest.take(rest.send(2))
    before, sums = verify(rest.config), totals(rest.books().ledger.entries())
    done = list(maintain(rest.config))
    assert {one.skipped for one in done} == {None}
    assert sorted(one.table for one in done) == sorted(map(rest.silver_uri, rest.games.names))
    assert verify(rest.config) == before
    after = totals(rest.books().ledger.entries())
    assert {r: (e.rows_in, e.rows_written) for r, e in after.items()} == {
        r: (e.rows_in, e.rows_written) for r, e in sums.items()
    }
