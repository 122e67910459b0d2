"""Checkpoints of flows, and whether each fits its table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import write_deltalake

from distributary.declarative.datasets import storage
from distributary.declarative.flows import Flows, Place
from distributary.errors import StoreUnreadable
from distributary.tables.store import Store
from tests.declarative_at_rest import Rest


def folder(rest: Rest, name: str) -> Path:
    return Path(storage(rest.config), "_checkpoints", "spark_catalog", rest.datasets.database, name, name)


def test_a_flow_that_has_never_run_stands_at_the_beginning(tmp_path: Path) -> None:
    flows = Flows.of(Rest(tmp_path).config, Store())
    assert flows.checkpoint("bronze") is None
    assert flows.place("bronze") == Place(0)
    assert not flows.has_read("bronze")


def test_the_newest_run_of_a_flow_counts_and_of_it_what_was_committed(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    flows = Flows.of(rest.config, Store())
    rest.read("bronze", 7)
    assert flows.place("bronze") == Place(7)
    begun = folder(rest, "bronze") / "0" / "offsets" / "1"
    begun.write_text('v1\n{}\n{"reservoirVersion":9,"index":-1}')
    assert flows.place("bronze") == Place(7), "begun, not committed"
    (folder(rest, "bronze") / "0" / "commits" / "1").write_text("v1")
    assert flows.place("bronze") == Place(9)
    for n in (2, 10):
        (folder(rest, "bronze") / str(n)).mkdir()
    assert flows.place("bronze") == Place(0), "a full refresh has begun anew"


@pytest.mark.parametrize(("index", "inside"), [(-1, False), (-100, False), (0, True), (4, True)])
def test_a_place_may_be_inside_of_a_version(tmp_path: Path, index: int, inside: bool) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    rest.read("bronze", 3)
    (folder(rest, "bronze") / "0" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"reservoirVersion":3,"index":{index}}}')
    assert Flows.of(rest.config, Store()).place("bronze") == Place(3, inside)


def test_a_stream_that_is_still_in_what_was_there_when_it_began_has_read_nothing_for_certain() -> None:
    first = Place(5, inside=True, first=True)
    assert (first.certain, first.possible) == (0, 6)
    assert (Place(5, True).certain, Place(5, True).possible) == (5, 6)
    assert (Place(5).certain, Place(5).possible) == (5, 5)
    assert (Place(5, first=True).certain, Place(5, first=True).possible) == (0, 0)


def test_a_flow_over_kafka_has_no_place_in_a_table(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    rest.read("bronze", 3)
    (folder(rest, "bronze") / "0" / "offsets" / "0").write_text('v1\n{}\n{"events":{"0":5}}')
    assert Flows.of(rest.config, Store()).place("bronze") is None


def test_a_table_and_its_checkpoint_must_both_be_there(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    flows = Flows.of(rest.config, Store())
    first, second = (rest.datasets.silver(game) for game in rest.games.names)
    assert flows.torn([first]) == [], "neither is there yet"
    rest.take(rest.send(1))
    assert flows.torn(["bronze", first, second]) == []
    shutil.rmtree(rest.datasets.uri(first))
    assert flows.torn(["bronze", first, second]) == [first]
    shutil.rmtree(folder(rest, second))
    assert flows.torn([second]) == [second]
    table = rest.silver_uri(rest.games.names[1])
    rows = rest.bronze.open()
    assert rows is not None
    shutil.rmtree(table)
    write_deltalake(table, rows.delta.to_pyarrow_table().slice(0, 0))
    assert flows.torn([second]) == [], "made, but nothing was written yet"


def test_a_table_that_cannot_be_read_is_no_new_table(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    Path(rest.bronze.uri, "_delta_log", f"{0:020}.json").write_text("{broken")
    with pytest.raises(StoreUnreadable):
        Flows.of(rest.config, Store()).torn(["bronze"])


def test_one_flow_into_silver_stands_for_all_its_tables_and_a_begun_batch_may_be_in_some(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    flows = replace(Flows.of(rest.config, Store()), sink="silver")
    place = Path(storage(rest.config), "_checkpoints", "silver", "silver", "0")
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True)
    (place / "offsets" / "0").write_text('v1\n{}\n{"reservoirVersion":2,"index":-1}')
    (place / "commits" / "0").write_text("v1")
    silver = rest.datasets.silver(rest.games.names[0])
    assert flows.place(silver) == Place(2, begun=2)
    (place / "offsets" / "1").write_text('v1\n{}\n{"reservoirVersion":5,"index":-1}')
    place_now = flows.place(silver)
    assert place_now is not None and (place_now.certain, place_now.possible) == (2, 5)
    assert flows.place("bronze") == Place(0)
    flows.forget("silver")
    assert not flows.has_read(silver)
