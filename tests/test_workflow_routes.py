"""Which routes there are and what they cost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.config import RegistryConfig
from distributary.errors import BadInput, SourceMissing
from distributary.fleet.workflow.placement import ROUTE_ROWS
from distributary.fleet.workflow.route_loads import discover, measure
from distributary.schemas.registry import open_registry
from distributary.state.ledger import Entry
from distributary_simulate.games.schemas import WRAPPER_TEXT, event_text
from tests.lake import Lake

HOUR = 3_600_000_000
NOW = 1_800_000_000_000_000


def bronze(lake: Path, partition_by: list[str]) -> Lake:
    rows = pa.table({"game_name": ["ann_game", "Bob's", None], "schema_id": [1, 1, 1], "payload": [b"x"] * 3})
    write_deltalake(str(lake / "bronze"), rows, partition_by=partition_by)
    source = {"type": "delta", "path": str(lake / "bronze")}
    return Lake(lake, source=source, envelope={"format": "columns"})


def test_load_is_rows_an_hour_and_a_cost_per_batch() -> None:
    entries = [Entry("s", n, "a", rows_in=1000, finished_at=NOW + n * HOUR) for n in range(3)]
    entries.append(Entry("s", 2, "b", rows_in=0, finished_at=NOW + 2 * HOUR))
    a, b, c = measure(["a", "b", "c"], entries)
    assert (a.weight, b.weight, c.weight) == ((3000 + 3 * ROUTE_ROWS) / 2, ROUTE_ROWS / 2, None)
    assert a.rows_per_sec == pytest.approx(3000 / 7200)


def test_what_was_long_ago_does_not_count_and_replays_are_no_load() -> None:
    entries = [
        Entry("s", 0, "a", rows_in=10**9, finished_at=NOW - 48 * HOUR),
        Entry("s", 1, "b", rows_in=10, finished_at=NOW - HOUR),
        Entry("replay-1", 1, "b", rows_in=0, rows_written=10**9, finished_at=NOW),
        Entry("s", 2, "b", rows_in=10, finished_at=NOW),
    ]
    a, b = measure(["a", "b"], entries)
    assert a.weight == 0 and b.weight == 20 + 2 * ROUTE_ROWS


def test_routes_come_from_the_ledger_and_from_the_partitions_of_the_source(lake: Path) -> None:
    made = bronze(lake, ["game_name"])
    made.batch(0, {"ann_game": {1: 3}, "old_game": {1: 1}})
    found = discover(made.config)
    assert [load.route for load in found.loads] == ["Bob's", "ann_game", "old_game"]
    assert [load.weight is None for load in found.loads] == [True, False, False]
    assert [load.route for load in discover(made.config, "ledger").loads] == ["ann_game", "old_game"]
    assert [load.route for load in discover(made.config, "bronze").loads] == ["Bob's", "ann_game"]


def test_a_source_that_is_not_partitioned_by_route_says_what_else_there_is(lake: Path) -> None:
    with pytest.raises(BadInput, match="--routes-from registry"):
        discover(bronze(lake, []).config, "bronze")
    with pytest.raises(BadInput, match="source is kafka"):
        discover(Lake(lake, "other").config, "bronze")
    gone = Lake(lake, "third", source={"type": "delta", "path": str(lake / "none")}, envelope={"format": "columns"})
    with pytest.raises(SourceMissing):
        discover(gone.config, "bronze")


def test_before_the_first_run_the_registrys_subjects_are_the_routes(lake: Path) -> None:
    made = Lake(lake)
    registry = open_registry(RegistryConfig(path=str(lake / "r")))
    for subject in ("events-value", "ann_game-value", "bob_game-value", "ann_game-key"):
        registry.register(subject, event_text("ann_game", 1))
    found = discover(made.config)
    assert [load.route for load in found.loads] == ["ann_game", "bob_game"] and found.where == "the registry"


def test_an_envelope_s_subject_is_no_route_though_the_pipeline_does_not_name_it(lake: Path) -> None:
    made = Lake(lake, source={"type": "delta", "path": str(lake / "s")})
    registry = open_registry(RegistryConfig(path=str(lake / "r")))
    registry.register("events-value", WRAPPER_TEXT)
    registry.register("ann_game-value", event_text("ann_game", 1))
    assert [load.route for load in discover(made.config, "registry").loads] == ["ann_game"]


def test_a_list_of_routes_is_taken_as_it_is(lake: Path, tmp_path: Path) -> None:
    listed = tmp_path / "routes.txt"
    listed.write_text("Bob's\n\nann_game\n")
    assert [load.route for load in discover(Lake(lake).config, listed=listed).loads] == ["Bob's", "ann_game"]
    listed.write_text("a\na\n")
    with pytest.raises(BadInput, match="twice"):
        discover(Lake(lake).config, listed=listed)
    with pytest.raises(BadInput, match="cannot be read"):
        discover(Lake(lake).config, listed=tmp_path / "none")
