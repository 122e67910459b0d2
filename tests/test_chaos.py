"""A few of the kills of `make chaos`; and that its judge, which shares nothing with the product, sees what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import changes, tables
from tests.chaos.__main__ import run
from tests.chaos.messages import Producer
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.wire import varint
from tests.extent import either

KILLS = either(1, 6)
Rows = list[dict[str, Any]]


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["two_hop", "wide"])
def test_killed_at_random_moments_the_tables_are_the_truth(lake: Path, name: str) -> None:
    """Of the other kinds there are tests of their own (`test_crash`, `test_cdc_kill`, `test_declarative_process`)."""
    scenario = SCENARIOS[name](lake / name, random.Random(11))
    found = run(scenario, scenario.dice, KILLS)
    assert (found["differences"], found["kills"]) == ([], KILLS)


def _lost(rows: Rows) -> None:
    rows.pop()


def _doubled(rows: Rows) -> None:
    rows.append(dict(rows[0]))


def _nulled(rows: Rows) -> None:
    rows[0]["player"] = None


def _foreign(rows: Rows) -> None:
    rows[0]["number"] = 1_000_000


def _narrow(rows: Rows) -> None:
    for row in rows:
        del row["score"]


@pytest.mark.parametrize("fault", [_lost, _doubled, _nulled, _foreign, _narrow])
def test_the_judge_of_messages_sees_a_fault_and_nothing_where_there_is_none(fault: Callable[[Rows], None]) -> None:
    producer = Producer(random.Random(5), lambda subject, text: 1)
    list(producer.records(300, 1.0))
    truth = producer.truth
    found = {g: [{**dict.fromkeys(truth.columns(g)), **row} for row in rows] for g, rows in truth.rows.items()}
    assert tables.differences(truth, found.__getitem__, range(truth.bad)) == []
    assert tables.differences(truth, found.__getitem__, range(truth.bad - 1)) != []
    fault(found["ash"])
    assert len(tables.differences(truth, found.__getitem__, range(truth.bad))) in (1, 2)


def _history(folder: Path) -> tuple[changes.Databases, dict[str, Rows], dict[str, Rows]]:
    """With the tables as they should be."""
    folder.mkdir()
    databases = changes.Databases(random.Random(5), folder)
    databases.go_on(300)
    databases.finish()
    merged = {t.name: [{**row, "_deleted": False} for row in t.rows.values()] for t in databases.tables}
    logs = {t.name: [{"_origin": {"file": "f", "row": n}} for n in range(t.events)] for t in databases.tables}
    return databases, merged, logs


def _stale(merged: dict[str, Rows], logs: dict[str, Rows]) -> None:
    merged["orders"][0]["amount"] = "another"


def _collapsed(merged: dict[str, Rows], logs: dict[str, Rows]) -> None:
    merged["orders"][0]["id"] = None


def _resurrected(merged: dict[str, Rows], logs: dict[str, Rows]) -> None:
    merged["items"].append({**merged["items"][0], "id": 4_000})


def _deleted(merged: dict[str, Rows], logs: dict[str, Rows]) -> None:
    merged["accounts"][0]["_deleted"] = True


def _logged_twice(merged: dict[str, Rows], logs: dict[str, Rows]) -> None:
    logs["items"].append(logs["items"][0])


@pytest.mark.parametrize("fault", [_stale, _collapsed, _resurrected, _deleted, _logged_twice])
def test_the_judge_of_changes_sees_a_fault_and_nothing_where_there_is_none(
    tmp_path: Path, fault: Callable[[dict[str, Rows], dict[str, Rows]], None]
) -> None:
    databases, merged, logs = _history(tmp_path / "files")
    assert changes.differences(databases, merged, logs) == []
    fault(merged, logs)
    assert len(changes.differences(databases, merged, logs)) == 1


def test_a_varint_has_the_bytes_of_the_protobuf_documentation() -> None:
    assert (varint(150), varint(-1)) == (b"\x96\x01", b"\xff" * 9 + b"\x01")
