"""What an update refreshes, and what it says of itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distributary.declarative.definitions import Defined
from distributary.declarative.known_routes import KnownRoutes
from distributary.declarative.update import Selection, Update, _blame, _check_names, _chosen, _to_refill
from distributary.engine.messages.opening import EnvelopeReader
from distributary.errors import BadInput
from distributary.tables.store import Store
from tests.declarative_at_rest import Rest

TABLES = {"bronze", "silver_a", "silver_b"}


@pytest.mark.parametrize(
    ("selection", "without", "full", "chosen"),
    [
        (Selection(), [], [], []),
        (Selection(), ["silver_a"], [], ["bronze", "silver_b"]),
        (Selection(), [], ["silver_a"], ["bronze", "silver_b"]),
        (Selection(refresh=("silver_a",)), [], [], ["silver_a"]),
        (Selection(refresh=("silver_a", "silver_b")), ["silver_a"], [], ["silver_b"]),
        (Selection(full_refresh=("silver_a",)), [], ["silver_a"], []),
        (Selection(full_refresh=("silver_a",), refresh=("bronze",)), [], ["silver_a"], ["bronze"]),
        (Selection(full_refresh_all=True), ["silver_a"], [], []),
    ],
)
def test_what_is_refreshed(selection: Selection, without: list[str], full: list[str], chosen: list[str]) -> None:
    assert _chosen(selection, TABLES, without, full) == chosen


def test_when_all_that_is_wanted_rests_nothing_runs_rather_than_everything() -> None:
    assert _chosen(Selection(refresh=("silver_a",)), TABLES, ["silver_a"], []) is None
    assert _chosen(Selection(), TABLES, TABLES, []) is None


def test_a_name_that_is_no_table_is_an_error_that_names_the_tables() -> None:
    _check_names(Selection(refresh=("bronze",), full_refresh=("silver_a",)), TABLES, {"unified_gold"})
    with pytest.raises(BadInput, match=r"no such table\. It has: bronze, silver_a, silver_b"):
        _check_names(Selection(refresh=("nosuch",)), TABLES, {})
    with pytest.raises(BadInput, match="it is a view"):
        _check_names(Selection(full_refresh=("unified_gold",)), TABLES, {"unified_gold"})


def test_a_table_that_was_dropped_is_filled_anew_and_a_dropped_bronze_stops_the_run(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    silver = [rest.datasets.silver(game) for game in rest.games.names]
    kinds = {"bronze": "bronze", **dict.fromkeys(silver, "silver"), "unified_gold": "unified gold"}
    defined = Defined(KnownRoutes(EnvelopeReader("protobuf", True, "r", "s", "p"), {}), kinds, {})
    rest.take(rest.send(1))

    def refilled(selection: Selection) -> set[str]:
        return _to_refill(selection, defined, rest.config, Store())

    assert refilled(Selection()) == set()
    shutil.rmtree(rest.datasets.uri(silver[0]))
    assert refilled(Selection()) == {silver[0]}
    assert refilled(Selection(full_refresh=(silver[1],))) == set(silver)
    assert refilled(Selection(full_refresh_all=True)) == set()
    shutil.rmtree(rest.bronze.uri)
    with pytest.raises(BadInput, match="--full-refresh bronze"):
        refilled(Selection())
    assert "bronze" in refilled(Selection(full_refresh=("bronze",)))


def test_a_run_that_fails_as_a_whole_is_blamed_on_the_table_that_spark_names() -> None:
    update = Update(error="[CANNOT_MERGE] table `spark_catalog`.`games`.`silver_a` cannot be altered")
    _blame(update, TABLES)
    assert update.failed == ["silver_a"]
    told = update.to_json()
    assert (told["ok"], list(told["failed"])) == (False, ["silver_a"])


def test_an_update_says_the_kind_and_the_rows_of_each_dataset() -> None:
    update = Update(states={"mine": "COMPLETED"}, rows={"mine": 3}, versions={"mine": 1}, completed=True)
    update.notes.append("look here")
    told = update.to_json()
    assert told["datasets"] == {"mine": {"kind": "own", "state": "COMPLETED", "rows": 3, "version": 1}}
    assert (told["ok"], told["problems"]) == (True, ["look here"])
