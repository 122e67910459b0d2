"""One behaviour for all layouts: what goes in comes out, once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.verify import verify
from distributary.engine.batch import BatchWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.messages.wide_attempt import WideAttempt
from distributary.errors import LayoutChanged, Reason
from distributary.running.bronze.ingest import Ingest
from distributary.schemas.protobuf.framing import frame
from distributary.state.ledger import Ledger
from distributary_simulate.games.records import Faults, Plan
from tests.layouts import FANOUT, LAYOUTS, TWO_HOP, WIDE, Laid, LayoutCase
from tests.scenarios import dying, message

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
LATE = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; string late = 3; }'
PLAN = Plan(games=3, versions=3, records=40, seed=5, faults=Faults(corrupt=9, empty_name=3, tombstones=6))

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


@every_layout
def test_nothing_is_lost_while_versions_games_and_bad_rows_come(lake: Path, layout: LayoutCase) -> None:
    """Cases E1, E2, S11: one run, never started again, and then a replay."""
    laid = Laid(lake, layout, trigger={"every": 0.2})
    games = laid.games(PLAN)
    first, second, third = games.names
    late = laid.envelope_id + 1 + 3 + 2 + 1  # the id that the registry will give out next, after all games' versions
    laid.send_mixed(games, {1: [first, second]})
    with laid.going() as going:
        going.wait_sent()
        streams = {b.stream for b in laid.batches}
        # Two versions in one batch, a game that nobody has heard of, and ids that the registry does not know yet.
        unknown = [laid.event("late_game", late, message(LATE, "event", user=u, late="x")) for u in "ab"]
        laid.send_mixed(games, {2: [first, second], 1: [third]}, *unknown, b"not an envelope")
        going.wait_sent()
        laid.send_mixed(games, {3: [first]})
        going.wait_sent()
    started = {b.stream for b in laid.batches} - streams
    assert not started, "a new game and a new version need no restart"
    assert max(laid.registry.latest(s).schema.id for s in laid.registry.subjects()) == late - 1
    laid.check(tombstones=laid.truth.tombstones)
    kept_with_their_bytes(laid)
    assert laid.schema("late-value", LATE) == late
    found = laid.replay()
    assert (found.rows, found.failed) == ({"late_game": 2}, {})
    assert laid.replay().rows == {}
    laid.check(tombstones=laid.truth.tombstones)
    checked = verify(laid.config)
    assert checked.ok, checked.problems
    assert (checked.rows_in, checked.tombstones) == (len(laid.sent) - laid.truth.tombstones, laid.truth.tombstones)
    assert [r["late"] for r in laid.rows("late_game")] == ["x", "x"]
    values_are_compared(laid, layout)


def values_are_compared(laid: Laid, layout: LayoutCase) -> None:
    """Every row with its record, by the official library; and a value that is changed is found."""
    checked = verify(laid.config)
    found = judge_payloads(laid.config, checked, deep=True)
    assert (found.problems, found.notes) == ((), ())
    assert {t.route: t.rows_compared for t in found.tables} == {t.route: t.rows_written for t in checked.tables}
    assert judge_payloads(laid.config, checked, deep=False).problems == ()
    if layout is not WIDE:
        uri = next(str(t.table) for t in checked.tables if t.route == "late_game")
        rows = DeltaTable(uri).to_pyarrow_table()
        changed = [{**row, "late": "y"} for row in rows.to_pylist()]
        write_deltalake(uri, pa.Table.from_pylist(changed, rows.schema), mode="overwrite")
        found = judge_payloads(laid.config, checked, deep=False)
        assert {t.route for t in found.tables if t.problems} == {"late_game"}


def kept_with_their_bytes(laid: Laid) -> None:
    """Each row that was kept aside has the bytes that were sent."""
    kept = laid.quarantined()
    assert len(kept) == laid.truth.quarantined + 3
    for row in kept:
        sent = laid.sent[row["partition"], row["offset"]]
        assert sent is not None
        assert row["value"] == sent if row["level"] == "envelope" else row["value"] in sent
    reasons = {r["reason"] for r in kept}
    assert reasons >= {Reason.CORRUPT_PAYLOAD, Reason.UNKNOWN_SCHEMA_ID, Reason.NO_ROUTE, Reason.BAD_MAGIC}


# -- crashes -------------------------------------------------------------------------------------------------

STEPS: Sequence[tuple[Any, str]] = ((Fanout, "_deliver"), (Ledger, "record"), (BatchWriter, "take"))


@pytest.mark.parametrize("layout", [TWO_HOP, WIDE], ids=lambda layout: layout.name)
def test_a_run_that_dies_between_any_two_steps_is_finished_by_the_next(lake: Path, layout: LayoutCase) -> None:
    laid = Laid(lake, layout)
    known = laid.schema("a-value", EVENT)
    good = [laid.event(r, known, message(EVENT, "event", user="u", score=n)) for r in ("a", "b") for n in range(3)]
    steps = [*STEPS, *([(WideAttempt, "_commit_shared")] if layout is WIDE else [])]
    for step in steps:
        laid.send(*good, laid.event("a", known, b"\xff"), None)
        dies(laid, *step)
    laid.run()
    laid.check(tombstones=len(steps))
    assert verify(laid.config).ok


def dies(laid: Laid, target: Any, name: str) -> None:
    """A run that ends right after the first call of a step, as if its process had."""
    with dying(target, name, after=True):
        laid.run()


def test_a_batch_of_hop_1_that_spark_forgot_is_not_written_to_bronze_again(lake: Path) -> None:
    """Killed between bronze's commit and Spark's own note of it."""
    laid = Laid(lake, TWO_HOP)
    known = laid.schema("a-value", EVENT)
    laid.send(laid.event("a", known, message(EVENT, "event", user="1")), b"junk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ingest, "_watch", _forgetful(laid))
        laid.run()
    laid.send(laid.event("a", known, message(EVENT, "event", user="2")))
    laid.run()
    laid.check()
    assert laid.values("a", "user") == ["1", "2"]


def _forgetful(laid: Laid) -> Any:
    whole = Ingest._watch

    def watch(self: Ingest, query: Any) -> bool:
        ended = whole(self, query)
        commits = Path(laid.config.state_root, "hop1", "checkpoint", "commits")
        for note in commits.iterdir():
            note.unlink()
        return ended

    return watch


def test_a_schema_of_which_no_row_is_written_adds_no_columns_to_the_wide_table(lake: Path) -> None:
    laid = Laid(lake, WIDE)
    wider = EVENT.replace("}", "string late = 9; }")
    known, late = laid.schema("a-value", EVENT), laid.schema("a-value", wider)
    good = [laid.event(r, known, message(EVENT, "event", user="u")) for r in ("a", "b")]
    laid.send(*good, *[laid.event("a", late, b"\xff")] * 100)
    laid.run()
    assert "late" not in laid.rows("a")[0]
    laid.send(*good, *[laid.event("a", late, b"\xff")] * 100, laid.event("a", late, message(wider, "event", late="l")))
    laid.run()
    assert laid.values("a", "late") == [None, None, "l"]
    laid.check()


# -- one table that fails, and another layout ----------------------------------------------------------------


def test_a_table_that_is_in_the_way_stops_no_other(lake: Path) -> None:
    laid = Laid(lake, TWO_HOP)
    known = laid.schema("a-value", EVENT)
    obstacle = laid.path("b")
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.write_text("not a table")
    laid.send(*(laid.event(route, known, message(EVENT, "event", user="u")) for route in ("a", "b", "c")))
    assert laid.run().parked == ("b",)
    assert [len(laid.rows(name)) for name in ("a", "c")] == [1, 1]
    obstacle.unlink()
    assert laid.replay().rows == {"b": 1}
    laid.check()


def test_another_layout_of_a_pipeline_that_has_run_is_refused(lake: Path) -> None:
    laid = Laid(lake, FANOUT)
    laid.send(laid.event("a", laid.schema("a-value", EVENT), message(EVENT, "event", user="u")))
    laid.run()
    laid.configure(layout="wide")
    with pytest.raises(LayoutChanged):
        laid.run()
    laid.configure(layout="fanout")
    laid.check()


def test_a_payload_that_names_no_route_is_kept_whole_in_bronze(lake: Path) -> None:
    """Cases D3, W13: it gets no partition and no table of its own."""
    laid = Laid(lake, TWO_HOP)
    known = laid.schema("a-value", EVENT)
    value = laid.envelope("", frame(known, message(EVENT, "event", user="u")), wrapped_id=known)
    laid.send(value, laid.event("Ünï/x=y", known, message(EVENT, "event", user="v")))
    laid.run()
    laid.check()
    assert laid.reasons() == {"NO_ROUTE": 1}
