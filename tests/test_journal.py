"""What decides a batch is written down before the batch writes anything, and holds for every later attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distributary.engine.batch import BatchWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.errors import Reason
from distributary.schemas.protobuf.framing import frame
from distributary.state.journal import KEPT, Journal
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.scenarios import Scenario, dying, message

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), Store())
    refused = {7: (Reason.UNKNOWN_SCHEMA_ID, "no schema 7"), 8: (Reason.BROKEN_SCHEMA, "é: broken")}
    journal.write_refused("s", 3, refused)
    assert journal.refused("s", 3) == refused


def test_a_batch_that_was_never_attempted_has_no_plan(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), Store())
    journal.write_refused("s", 3, {})
    assert journal.refused("s", 3) == {}
    assert journal.refused("s", 4) is None
    assert journal.refused("other", 3) is None


def test_only_the_newest_plans_are_kept(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), Store())
    for batch in range(KEPT + 5):
        journal.write_refused("s", batch, {})
    assert journal.refused("s", 4) is None
    assert journal.refused("s", 5) == {}


def test_of_what_files_hold_the_last_batch_alone_is_kept(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), Store())
    journal.write_routes("s", 3, {"a.avro": ("shop.orders", "shop.users"), "b.avro": ()})
    assert journal.routes("s", 3) == {"a.avro": ("shop.orders", "shop.users"), "b.avro": ()}
    journal.write_routes("s", 4, {"c.avro": ("shop.orders",)})
    assert (journal.routes("s", 3), journal.routes("other", 4)) == (None, None)
    assert journal.refused("s", 4) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "plans").write_text("in the way")
    with pytest.raises(OSError):
        Journal(str(tmp_path), Store()).write_refused("s", 0, {})


# -- attempts at one batch, with a registry that learns in between ------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("target", "step"),
    [(Fanout, "spec"), (Ledger, "record"), (BatchWriter, "_complete")],
    ids=["before any table", "before the ledger", "after the ledger"],
)
def test_an_id_refused_in_the_first_attempt_stays_refused_in_the_next(lake: Path, target: Any, step: str) -> None:
    """The table has taken the batch without these rows, so a second attempt that called them good would lose them."""
    scenario = Scenario(lake)
    known = scenario.schema("a-value", EVENT)
    unknown = scenario.envelope_id + 1
    body = message(EVENT, "event", user="x")
    scenario.send(scenario.event("a", known, body), scenario.event("a", unknown, body))
    scenario.send(scenario.event("b", unknown, body))
    with dying(target, step):
        scenario.run()
    other = 'syntax = "proto3"; message event { string user = 1; int32 late = 2; }'
    assert scenario.schema("late-value", other) == unknown
    report = scenario.run()
    decided = target is BatchWriter
    assert (report.batches, report.already) == ((0, 1) if decided else (1, 0))
    [told] = scenario.batches
    assert (told.already, told.rows_in, told.rows_written, told.rows_quarantined) == (decided, 3, 1, 2)
    assert told.created == ("a",)
    assert scenario.reasons() == {"UNKNOWN_SCHEMA_ID": 2}
    scenario.check()
    assert scenario.replay().rows == {"a": 1, "b": 1}
    assert scenario.values("a", "user") == ["x", "x"]
    scenario.check()


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_envelope_id_refused_in_the_first_attempt_stays_refused(lake: Path) -> None:
    scenario = Scenario(lake)
    known = scenario.schema("a-value", EVENT)
    late_id = scenario.envelope_id + 1
    value = scenario.event("a", known, message(EVENT, "event", user="x"))
    scenario.send(value, frame(late_id, value[6:]))
    with dying(Ledger, "record"):
        scenario.run()
    assert scenario.schema("other-value", WRAPPER_TEXT + "// another text, another id\n") == late_id
    scenario.run()
    assert [(r["level"], r["reason"]) for r in scenario.quarantined()] == [("envelope", "UNKNOWN_SCHEMA_ID")]
    scenario.check()
    assert scenario.replay().rows == {"a": 1}
    scenario.check()
