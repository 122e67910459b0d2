"""The model of docs/scale.md: its arithmetic, by numbers worked out by hand."""

from __future__ import annotations

import json

import pytest
from bench.scale import (
    FILE_BYTES,
    LOADS,
    PAGE,
    RESULTS,
    Checkpoint,
    Constants,
    Load,
    Run,
    fitted,
    needs,
    page,
    stored,
)

SIZES = {"row_bytes": 75.0, "ledger_bytes": 30.0, "commit_bytes": 700.0, "driver_bytes": 2.0**15, "worker_bytes": 0.0}
KNOWN = Constants(batch=0.5, table=0.003, row=1e-6, alone_batch=0.1, alone_table=0.0004, **SIZES)


def run_of(tables: int, rows: int, cores: int = 2) -> Run:
    return Run(tables, rows, KNOWN.cpu(tables, rows), KNOWN.wall(tables, rows, cores))


def test_a_batch_costs_what_its_tables_and_its_rows_cost() -> None:
    assert KNOWN.cpu(1_000, 100_000) == pytest.approx(0.5 + 3.0 + 0.1)
    assert KNOWN.alone(1_000) == pytest.approx(0.1 + 0.4)
    assert KNOWN.wall(1_000, 100_000, 2) == pytest.approx(0.5 + (3.6 - 0.5) / 2)


def test_more_cores_do_not_shorten_what_one_does_alone() -> None:
    assert KNOWN.wall(1_000, 100_000, 10_000) == pytest.approx(0.5, abs=0.01)


def test_the_constants_come_back_out_of_runs_that_were_made_of_them() -> None:
    found = fitted(run_of(100, 100_000), run_of(1_000, 100_000), run_of(10, 1_000_000), **SIZES)
    for name in ("batch", "table", "row", "alone_batch", "alone_table"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name)), name


@pytest.mark.parametrize("many", [run_of(100, 100_000), run_of(1_000, 200_000)])
def test_runs_that_cannot_be_told_apart_are_refused(many: Run) -> None:
    with pytest.raises(ValueError, match="other tables"):
        fitted(run_of(100, 100_000), many, run_of(10, 1_000_000), **SIZES)


def test_a_day_of_a_load_is_counted() -> None:
    found = needs(Load("", 1_000, 1e5, 10), KNOWN)
    assert found.commits_per_sec == 100
    assert found.files_per_day == 8_640_000
    assert found.ledger_bytes_per_day == pytest.approx(1_001 * 8_640 * 30)
    assert found.log_bytes_per_day == pytest.approx(8_640_000 * 700)
    assert found.data_bytes_per_day == pytest.approx(1e5 * 86_400 * 75)
    assert found.driver_bytes == pytest.approx(1_000 * 2**15)


def test_one_application_is_enough_while_its_driver_has_time() -> None:
    found = needs(Load("", 1_000, 1e5, 10), KNOWN)
    assert found.applications == 1
    # 0.5 + 3 + 1 s of CPU, 0.5 of it alone; 4 s are left in 7: one core is enough
    assert found.cpu_per_batch_sec == pytest.approx(4.5)
    assert found.alone_sec == pytest.approx(0.5)
    assert found.cores == 1


def test_a_driver_that_has_no_time_left_shares_its_tables_with_others() -> None:
    found = needs(Load("", 100_000, 1e6, 60), KNOWN)
    # 40 s alone for all tables; each may do 0.5 * 0.7 * 60 - 0.1 = 20.9 s
    assert found.applications == 2
    assert found.alone_sec == pytest.approx(0.1 + 20)
    # of each: 0.5 + 150 + 30 s of CPU, 20.1 of it alone, 21.9 s left for the other 160.4
    assert found.cores == 2 * 8


def test_a_batch_that_never_fits_its_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="less often"):
        needs(Load("", 1, 1, 0.2), KNOWN)


def test_a_checkpoint_of_more_files_is_on_the_line_through_the_measured_ones() -> None:
    few, many = Checkpoint(1_000, 0.01, 100_000), Checkpoint(10_000, 0.1, 1_000_000)
    found = stored(20_000.0 * FILE_BYTES, 2, KNOWN, few, many)
    assert found.files_per_table == 10_000
    assert found.rows == pytest.approx(20_000 * FILE_BYTES / 75)
    assert found.checkpoint_sec == pytest.approx(0.1)
    assert found.checkpoint_bytes == pytest.approx(1_000_000)
    assert stored(40_000.0 * FILE_BYTES, 2, KNOWN, few, many).checkpoint_sec == pytest.approx(0.2)


def test_the_page_shows_what_was_kept_of_the_measurements() -> None:
    text = PAGE.read_text()
    assert page(text, json.loads(RESULTS.read_text())) == text
    for load in LOADS:
        assert load.name in text
