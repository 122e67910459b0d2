"""`verify` of tables with keys: it passes what is right, and finds each kind of fault, by code of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge import upserts
from distributary.audit.judge.opened_records import Record
from distributary.audit.judge.raw_records import Place, PlacedRecord
from distributary.audit.quarantined import quarantined_rows
from distributary.audit.verify import Verification, verify
from distributary.cli.render import verification_text
from tests.sparkless_messages import Players

TEXTS = {
    1: 'syntax = "proto3"; message player { string id = 1; int32 level = 2; int64 at = 3; }',
    2: 'syntax = "proto3"; message player { string id = 1; int64 level = 2; int64 at = 3; string clan = 4; }',
}


class Topic:
    """The records of a topic, as a broker would have them. `gone`: offsets below are not there any more."""

    def __init__(self, players: Players, gone: int = 0) -> None:
        self._sent = [one for one in players.sent if one["offset"] >= gone]

    def every(self, ends: Mapping[tuple[str, int], int]) -> Iterator[PlacedRecord]:
        for one in self._sent:
            if one["offset"] < ends.get((one["topic"], one["partition"]), 0):
                at = Place(one["topic"], one["partition"], one["offset"])
                yield PlacedRecord(at, _record(one), one["value"] is None, int(one["timestamp"].timestamp() * 1e6))

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        wanted = set(places)
        found = {Place(one["topic"], one["partition"], one["offset"]): _record(one) for one in self._sent}
        return {place: record for place, record in found.items() if place in wanted}

    def close(self) -> None: ...


def _record(one: Mapping[str, Any]) -> Record:
    return Record(one["value"] or b"", topic=one["topic"], key=one["key"])


def verified(players: Players, monkeypatch: pytest.MonkeyPatch, gone: int = 0) -> Verification:
    monkeypatch.setattr(upserts, "KafkaRecords", lambda _: Topic(players, gone))
    config = players.config
    return upserts.judge_upserts(config, verify(config), quarantined_rows(config), deep=True)


@pytest.fixture
def players(lake: Path) -> Players:
    """Four living rows and a deleted one, one message set aside, one that was older than its row."""
    players = Players(lake, TEXTS, source={"key": "id"}, tables={"log": "{route}_log"})
    one = players.record
    writer = players.writer()
    players.take(0, [one("a", level=1), one("b", level=2), one("c", schema_id=99, level=3), one("a", level=4)], writer)
    players.take(1, [one("c", 2, level=5, clan="red"), one("d", level=6), one("e", level=7), one("b", None)], writer)
    return players


def test_a_right_table_is_verified(players: Players, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verified(players, monkeypatch)
    assert (found.ok, found.problems, found.notes) == (True, (), ())
    assert (found.rows_in, found.rows_written, found.rows_quarantined, found.tables[0].rows_compared) == (8, 7, 1, 4)


def test_values_are_said_to_be_of_the_rows_that_live_not_of_all_messages(
    players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verified(players, monkeypatch)
    assert found.tables[0].rows_living == 4
    assert "values compared: 4 of 4 rows" in str(verification_text(found))


def _changed(players: Players, **values: Any) -> None:
    DeltaTable(players.table).update(predicate="id = 'd'", new_values=values)


def _twice(players: Players) -> None:
    write_deltalake(players.table, DeltaTable(players.table).to_pyarrow_table().slice(0, 1), mode="append")


def _older(players: Players) -> None:
    table = DeltaTable(players.table).to_pyarrow_table()
    rows = table.to_pylist()
    for row in rows:
        if row["id"] == "a":
            row["level"] = 1
            row["_change"]["offset"] = 0
    write_deltalake(players.table, pa.Table.from_pylist(rows, table.schema), mode="overwrite")


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda p: DeltaTable(p.table).delete("id = 'd'"), "1 keys have no row in the table"),
        (lambda p: _changed(p, level=9), "1 rows have another level than their record"),
        (lambda p: _changed(p, _deleted=True), "1 rows are deleted, or are not, unlike their newest record says"),
        (lambda p: _changed(p, id="'x'"), "1 rows have a key that no record has"),
        (_twice, "1 rows have a key that is there already"),
        (_older, "1 rows are not of the newest record of their key"),
        (lambda p: DeltaTable(f"{p.table}_log").delete("level = 7"), "1 rows are missing from the table"),
    ],
    ids=["a row is gone", "a value", "a deleted row", "a key", "a row twice", "an older record", "the log"],
)
def test_each_fault_is_found(players: Players, harm: Any, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harm(players)
    found = verified(players, monkeypatch)
    assert not found.ok
    assert any(problem in text for text in found.problems), found.problems


def test_records_that_are_gone_at_the_source_are_no_fault(players: Players, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verified(players, monkeypatch, gone=4)
    assert (found.ok, found.problems) == (True, ())
    assert "1 rows are of records" in found.notes[0]


def test_the_order_of_a_column_is_judged_too(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    players = Players(lake, TEXTS, tables={"newest_by": "at"})
    one = players.record
    players.take(
        0, [one("a", level=1, at=9), one("a", level=2, at=-3), one("b", level=3, at=1), one("b", level=4, at=1)]
    )
    assert verified(players, monkeypatch).ok
    _older(players)
    DeltaTable(players.table).update(predicate="id = 'a'", updates={"level": "2"})
    assert not verified(players, monkeypatch).ok
