"""Invented histories: their changes, folded in their order, give the tables that they say they give."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.model import Kind
from distributary_simulate.change_files.stream import with_stale_schemas
from distributary_simulate.changes.history import START_MS, History, HistoryPlan
from distributary_simulate.changes.history_tables import TABLES, tables_of, value
from distributary_simulate.changes.model import Change, Column, Table
from distributary_simulate.changes.truth import TableTruth, load_truth, save_truth
from distributary_simulate.changes.unified import (
    DATETIME,
    GEOMETRY,
    INTEGER,
    INTERVAL,
    LONG,
    NUMBER,
    TIME_TZ,
    UNSUPPORTED,
    array,
    decimal,
)
from distributary_simulate.errors import SimulationInvalid
from tests.change_order import assert_equal, fold


def all_changes(plan: HistoryPlan, count: int = 3_000) -> tuple[list[Change], History]:
    history = History(plan)
    return [*history.changes(count), *history.finish()], history


@given(seed=st.integers(0, 2**32), rows=st.integers(0, 30), per_kind=st.integers(1, 4))
def test_the_changes_in_true_order_give_the_truth(seed: int, rows: int, per_kind: int) -> None:
    plan = HistoryPlan(tables_of(per_kind=per_kind), seed, initial_rows=rows, schema_changes=10)
    changes, history = all_changes(plan, 300)
    assert_equal(fold(changes), history.truth())


def test_the_same_plan_gives_the_same_changes() -> None:
    plan = HistoryPlan(seed=7)
    assert all_changes(plan)[0] == all_changes(plan)[0]
    assert all_changes(plan)[0] != all_changes(replace(plan, seed=8))[0]


def test_changes_asked_for_in_parts_are_the_same_changes() -> None:
    whole, parts = History(HistoryPlan(seed=1)), History(HistoryPlan(seed=1))
    wanted = list(whole.changes(500))
    assert [*parts.changes(1), *parts.changes(1), *parts.changes(500)][: len(wanted)] == wanted


def test_every_kind_of_change_of_every_source_occurs() -> None:
    changes, _ = all_changes(HistoryPlan(seed=3), 8_000)
    types = defaultdict(set)
    for change in changes:
        types[change.table.kind].add(change.change_type)
    keyed = {"INSERT", "UPDATE", "UPDATE-INSERT", "UPDATE-DELETE", "DELETE"}
    assert types == {
        Kind.MYSQL: keyed - {"UPDATE"},
        Kind.POSTGRESQL: keyed,
        Kind.ORACLE: keyed,
        Kind.SQLSERVER: keyed,
        Kind.MONGODB: {"READ", "INSERT", "UPDATE", "DELETE"},
    }


def of(kind: Kind, seed: int = 5, count: int = 4_000) -> list[Change]:
    return all_changes(HistoryPlan(tables_of([kind]), seed), count)[0]


def test_a_statement_of_mysql_leaves_a_key_before_it_is_taken_again_at_one_position() -> None:
    at = defaultdict(list)
    for change in of(Kind.MYSQL):
        if not change.is_backfill:
            key = change.table.key_of(change.row)
            at[(change.table.route, *change.position.sort_keys, key)].append(change.change_type)
    ties = [types for types in at.values() if len(types) > 1]
    assert ["UPDATE-DELETE", "UPDATE-INSERT"] in ties
    assert all(types == ["UPDATE-DELETE", "UPDATE-INSERT"] for types in ties)


def test_mysql_positions_rise_over_files_whose_names_do_not_and_times_do_not() -> None:
    cdc = [change for change in of(Kind.MYSQL) if not change.is_backfill]
    names = [str(change.position.metadata["log_file"]) for change in cdc]
    places = [
        (int(name[10:]), change.position.metadata["log_position"]) for name, change in zip(names, cdc, strict=True)
    ]
    assert places == sorted(places)
    assert {"mysql-bin.999999", "mysql-bin.1000000"} <= set(names)
    assert any(later.position.source_ms < sooner.position.source_ms for sooner, later in pairwise(cdc))
    assert all(change.position.source_ms % 1000 == 0 for change in cdc)


def test_a_swap_of_oracle_takes_a_key_before_the_other_row_has_left_it() -> None:
    taken: dict[tuple[object, ...], Change] = {}
    crossed = 0
    for change in of(Kind.ORACLE):
        place = (change.table.route, change.table.key_of(change.row), change.position.metadata["tx_id"])
        if change.change_type == "UPDATE-INSERT":
            taken[place] = change
        elif change.change_type == "UPDATE-DELETE" and place in taken:
            other = change.position.metadata["row_id"] != taken[place].position.metadata["row_id"]
            crossed += other
    assert crossed > 0


def test_a_rollback_of_oracle_deletes_by_row_id_alone() -> None:
    changes = of(Kind.ORACLE)
    undone = [change for change in changes if change.change_type == "DELETE" and set(change.row.values()) == {None}]
    assert undone
    inserted = {change.position.metadata["row_id"] for change in changes if change.change_type == "INSERT"}
    assert all(change.is_deleted and change.position.metadata["row_id"] in inserted for change in undone)


def test_an_oracle_key_update_does_not_say_that_its_old_row_is_deleted() -> None:
    left = [change for change in of(Kind.ORACLE) if change.change_type == "UPDATE-DELETE"]
    assert left and not any(change.is_deleted for change in left)


def test_changes_of_one_oracle_scn_differ_by_record_and_number() -> None:
    cdc = [change.position for change in of(Kind.ORACLE) if not change.is_backfill]
    per_scn = Counter(position.metadata["scn"] for position in cdc)
    assert max(per_scn.values()) > 2
    assert all(str(position.metadata["rs_id"]).startswith(" 0x") for position in cdc)


def test_changes_of_one_postgresql_transaction_share_its_time_and_rise_in_lsn() -> None:
    cdc = [change for change in of(Kind.POSTGRESQL) if not change.is_backfill]
    lsns = [
        int(part[0], 16) << 32 | int(part[1], 16) for c in cdc for part in [str(c.position.metadata["lsn"]).split("/")]
    ]
    assert lsns == sorted(lsns)
    assert any(str(change.position.metadata["lsn"]).startswith("F/") for change in cdc)
    assert any(str(change.position.metadata["lsn"]).startswith("10/") for change in cdc)
    times = defaultdict(set)
    for change in cdc:
        times[change.position.metadata["tx_id"]].add(change.position.source_ms)
    assert all(len(found) == 1 for found in times.values())


def test_a_postgresql_delete_shows_the_key_only() -> None:
    deletes = [change for change in of(Kind.POSTGRESQL) if change.change_type == "DELETE"]
    for change in deletes:
        assert {name for name, found in change.row.items() if found is not None} == set(change.table.keys)


def test_postgresql_can_write_a_key_update_as_one_update() -> None:
    plan = HistoryPlan(tables_of([Kind.POSTGRESQL]), single_key_updates=True)
    assert {change.change_type for change in all_changes(plan)[0]} == {"INSERT", "UPDATE", "DELETE"}


def test_an_update_shows_no_large_value_that_it_left_alone() -> None:
    table = replace(tables_of([Kind.POSTGRESQL])[0], toast=("settings",))
    changes, history = all_changes(HistoryPlan((table,), schema_changes=0), 500)
    updates = [change for change in changes if change.change_type == "UPDATE"]
    assert updates and all(change.row["settings"] is None for change in updates)
    assert any(row["settings"] for row in history.truth()["public.accounts"].rows)


def test_all_rows_of_a_sqlserver_transaction_share_one_lsn() -> None:
    per_lsn = Counter(change.position.metadata["lsn"] for change in of(Kind.SQLSERVER) if not change.is_backfill)
    assert max(per_lsn.values()) > 2


def test_a_document_that_is_gone_is_updated_without_data() -> None:
    changes = of(Kind.MONGODB)
    gone = [i for i, change in enumerate(changes) if change.change_type == "UPDATE" and change.row["data"] is None]
    assert gone
    for place in gone:
        assert changes[place + 1].change_type == "DELETE"
        assert changes[place + 1].row["_id"] == changes[place].row["_id"]


def test_backfills_read_while_rows_change_and_show_rows_that_the_log_does_not() -> None:
    changes, history = all_changes(HistoryPlan(tables_of([Kind.MYSQL], 1), seed=2, initial_rows=60), 600)
    kinds = "".join("b" if change.is_backfill else "c" for change in changes)
    assert "bcb" in "".join(letter for letter, after in pairwise(kinds + " ") if letter != after)
    seen = {change.table.key_of(change.row) for change in changes if not change.is_backfill}
    assert history.truth()["shop.users"].by_key().keys() - seen


def test_without_backfills_the_log_shows_every_row() -> None:
    changes, history = all_changes(HistoryPlan(backfill=False))
    assert not any(change.is_backfill for change in changes)
    assert_equal(fold(changes), history.truth())


def test_schemas_grow_shrink_and_widen_while_rows_change() -> None:
    changes, history = all_changes(HistoryPlan(tables_of([Kind.MYSQL], 1), schema_changes=5))
    schemas = list(dict.fromkeys(change.table for change in changes))
    names = [{column.name for column in table.columns} for table in schemas]
    assert any(later > sooner for sooner, later in pairwise(names))
    assert any(sooner - later for sooner, later in pairwise(names))
    assert {table.column("age").type for table in schemas} == {INTEGER, LONG}
    assert history.truth()["shop.users"].table == schemas[-1] or len(schemas) > 3


def test_a_table_without_a_key_is_only_added_to() -> None:
    changes, history = all_changes(HistoryPlan(tables_of([Kind.MYSQL], 4), schema_changes=0), 400)
    own = [change for change in changes if change.table.route == "shop.visits"]
    assert {change.change_type for change in own} == {"INSERT"}
    assert [change.row for change in own] == list(history.truth()["shop.visits"].rows)


def test_a_stale_schema_lasts_for_so_many_events() -> None:
    changes, _ = all_changes(HistoryPlan(tables_of([Kind.SQLSERVER], 1), schema_changes=40), 400)
    fresh = [change.table for change in changes]
    stale = list(with_stale_schemas(changes, 5))
    first = next(place for place, table in enumerate(fresh) if table != fresh[0])
    assert [change.table for change in stale[first : first + 6]] == [fresh[0]] * 5 + [fresh[first + 5]]
    assert set(stale[first].row) == {column.name for column in fresh[0].columns}
    assert list(with_stale_schemas(changes, 0)) == changes


def test_whole_transactions_end_with_their_last_change() -> None:
    cdc = [change for change in of(Kind.POSTGRESQL) if not change.is_backfill]
    ends = {change.position.metadata["tx_id"]: change for change in cdc}
    assert [change for change in cdc if change.last] == list(ends.values())


def test_times_begin_where_the_plan_says_and_never_fall() -> None:
    changes, _ = all_changes(HistoryPlan(changes_per_sec=100))
    seen = [change.seen_ms for change in changes]
    assert seen == sorted(seen) and seen[0] == START_MS
    assert 20_000 < seen[-1] - seen[0] < 45_000  # 3,000 changes at 100 a second


@pytest.mark.parametrize(
    "plan", [{"tables": ()}, {"tables": TABLES[:1] * 2}, {"changes_per_sec": 0}, {"initial_rows": -1}]
)
def test_a_plan_that_cannot_be_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises(SimulationInvalid):
        HistoryPlan(**plan)  # type: ignore[arg-type]


def test_a_truth_comes_back_from_its_file(tmp_path: Path) -> None:
    _, history = all_changes(HistoryPlan(seed=4))
    save_truth(history.truth(), tmp_path / "truth.json")
    assert load_truth(tmp_path / "truth.json") == history.truth()


def test_a_truth_with_every_type_comes_back_and_is_an_arrow_table(tmp_path: Path) -> None:
    kinds = {column.type for table in TABLES for column in table.columns}
    others = {DATETIME: (1, 2), GEOMETRY: (b"\x01", 4326, "POINT"), INTERVAL: (1, 2, 3), TIME_TZ: (5, -3_600_000)}
    more = {UNSUPPORTED: None, array(decimal(5, 2)): [None, [None]], NUMBER: "1e5", array(INTEGER): [[1], [2, None]]}
    row = {str(kind): value(kind, random.Random(1), nulls=0.0) for kind in kinds} | {
        str(kind): found for kind, found in (others | more).items()
    }
    columns = tuple(Column(str(kind), kind) for kind in dict.fromkeys([*kinds, *others, *more]))
    table = Table(Kind.POSTGRESQL, "", "public", "t", columns, ())
    truth = {"public.t": TableTruth(table, (row,))}
    save_truth(truth, tmp_path / "truth.json")
    assert load_truth(tmp_path / "truth.json") == truth


def test_a_truth_as_arrow_has_a_column_per_column() -> None:
    _, history = all_changes(HistoryPlan())
    for truth in history.truth().values():
        assert truth.arrow().column_names == [column.name for column in truth.table.columns]
        assert truth.arrow().num_rows == len(truth.rows)
