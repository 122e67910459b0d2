"""What an update refreshes, and what it says of itself."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from distributary.declarative.definitions import Defined
from distributary.declarative.event_log import read_event
from distributary.declarative.known_routes import KnownRoutes
from distributary.declarative.polling import MILLIS, POLLING, poll_often, seconds_for
from distributary.declarative.update import Selection, Update, _blame, _check_names, _chosen, _to_refill
from distributary.engine.messages.opening import EnvelopeReader
from distributary.errors import BadInput
from distributary.tables.store import Store
from tests.declarative_at_rest import Rest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def heard(*sentences: str) -> Update:
    update = Update()
    for sentence in sentences:
        update.hear(read_event(sentence, datetime(2026, 1, 1)))
    return update


@pytest.mark.parametrize("late", [(), ("Flow cat.db.silver has COMPLETED.",)])
def test_a_flow_whose_end_is_told_late_or_never_has_completed_where_the_run_has(late: tuple[str, ...]) -> None:
    update = heard("Flow cat.db.silver is STARTING.", "Flow cat.db.silver is RUNNING.", "Run is COMPLETED.", *late)
    assert update.completed
    assert update.states == {"silver": "COMPLETED"}


def test_a_flow_that_has_failed_stays_failed_whenever_it_is_said_to_have_completed() -> None:
    failed, completed = "Flow 'cat.db.silver' has FAILED more than 0 times.", "Flow cat.db.silver has COMPLETED."
    for order in ((completed, failed), (failed, completed)):
        update = heard("Flow cat.db.silver is RUNNING.", *order, "Run is FAILED since flow 'cat.db.silver' has failed.")
        assert (update.failed, update.completed) == (["silver"], False)
        assert update.reasons["silver"] == failed


def test_a_flow_that_failed_and_was_tried_again_has_completed() -> None:
    again = ("Flow cat.db.silver is STARTING.", "Flow cat.db.silver is RUNNING.", "Flow cat.db.silver has COMPLETED.")
    assert heard(*again[:2], "Flow 'cat.db.silver' has FAILED.", *again).states == {"silver": "COMPLETED"}


def test_a_run_that_failed_leaves_flows_under_way_as_they_were_told() -> None:
    assert heard("Flow cat.db.a is RUNNING.", "Run is FAILED since flow 'cat.db.b' has failed.").states == {
        "a": "RUNNING"
    }


@pytest.mark.parametrize(
    ("version", "conf", "set_to"),
    [
        ("4.2.0", {}, {POLLING: str(seconds_for(MILLIS))}),
        ("4.2.0", {POLLING: "2"}, {}),
        ("4.2.1", {}, {}),
        ("4.3.0", {}, {}),
    ],
)
def test_only_a_spark_whose_code_was_looked_at_is_told_to_poll_often(
    tmp_path: Path, version: str, conf: dict[str, str], set_to: dict[str, str]
) -> None:
    settings: dict[str, str] = {}
    session = SimpleNamespace(version=version, conf=SimpleNamespace(set=settings.__setitem__))
    poll_often(cast("SparkSession", session), Rest(tmp_path, spark={"conf": conf}).config)
    assert settings == set_to


def test_seconds_become_a_tenth_of_one_where_spark_counts_milliseconds_in_64_bits() -> None:
    assert seconds_for(MILLIS) * 1000 % 2**64 == MILLIS
    assert 0 < seconds_for(MILLIS) < 2**63


def test_an_update_says_the_kind_and_the_rows_of_each_dataset() -> None:
    update = Update(states={"mine": "COMPLETED"}, rows={"mine": 3}, versions={"mine": 1}, completed=True)
    update.notes.append("look here")
    told = update.to_json()
    assert told["datasets"] == {"mine": {"kind": "own", "state": "COMPLETED", "rows": 3, "version": 1}}
    assert (told["ok"], told["problems"]) == (True, ["look here"])
