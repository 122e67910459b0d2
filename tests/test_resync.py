"""One table rebuilt from bronze: exactly once, whatever the streams and a crash do meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.audit.verify import verify
from distributary.engine.replay import Replay
from distributary.errors import BadInput
from distributary.fleet.workflow.handover import hand_over
from distributary.repair.resync_bronze import rebuild
from distributary.running import hops
from distributary.running.stream import session_of
from distributary.shares import Division
from distributary.tables.faults import CommitConflict
from distributary.tables.table import Table
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.layouts import FANOUT, SHARES, TWO_HOP, Laid, LayoutCase
from tests.scenarios import dying, message

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
LATE = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; string late = 3; }'


class Kept(Laid):
    """Rows of two routes, of which some are of a schema that the registry does not know yet, and some are corrupt."""

    def __init__(self, root: Path, layout: LayoutCase = TWO_HOP, **keys: Any) -> None:
        super().__init__(root, layout, **keys)
        self.known = self.schema("a-value", EVENT)
        self.late = self.envelope_id + 1

    def put(self, *routes: str) -> None:
        self.send(
            *(self.event(r, self.known, message(EVENT, "event", user=r, score=n)) for r in routes for n in (1, 2)),
            *(self.event(r, self.late, message(LATE, "event", user=r, score=3, late="x")) for r in routes),
            *(self.event(r, self.known, b"\xff") for r in routes),
            b"not an envelope",
            None,
        )

    def learn(self) -> None:
        assert self.schema("late-value", LATE) == self.late

    def lose_rows(self, name: str) -> None:
        """Somebody deletes a data file of the table."""
        Path(self.table(name).file_uris()[0]).unlink()
        assert not verify(self.config).ok

    def check_all(self, batches: int) -> None:
        self.check(tombstones=batches)
        assert verify(self.config).ok, verify(self.config).problems


@pytest.mark.parametrize("layout", [TWO_HOP, SHARES], ids=lambda layout: layout.name)
def test_a_damaged_table_is_rebuilt_while_all_streams_run_on(lake: Path, layout: LayoutCase) -> None:
    kept = Kept(lake, layout, trigger={"every": 0.1})
    kept.put("a", "b")
    with kept.going() as going:
        going.wait_sent()
        kept.put("a", "b")
        going.wait_sent()
        kept.lose_rows("a")
        others = kept.table("b").version()
        kept.learn()
        kept.put("b")
        found = rebuild(kept.config, "a")
        assert (found.rows, found.quarantined, found.returned, found.newly_bad) == (6, 2, 2, 0)
        kept.put("a", "b")
        going.wait_sent()
    assert others <= kept.table("b").version() <= others + 4  # its own appends, and no more
    assert sorted(kept.values("a", "score")) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    kept.check_all(batches=4)
    assert kept.replay().rows.get("a") is None
    kept.check_all(batches=4)


def test_rows_that_do_not_fit_any_more_go_into_the_quarantine_with_their_bytes(lake: Path) -> None:
    kept = Kept(lake)
    kept.put("a", "b")
    kept.run()
    tables = {"expectations": [{"name": "high", "that": "score >= 2", "otherwise": "drop"}]}
    kept.configure(**TWO_HOP.keys, tables=tables)
    found = rebuild(kept.config, "a")
    assert (found.rows, found.quarantined, found.returned, found.newly_bad) == (1, 3, 0, 1)
    assert kept.values("a", "score") == [2]
    assert kept.reasons()["EXPECTATION_FAILED"] == 1
    kept.check_all(batches=1)
    kept.configure(**TWO_HOP.keys)
    assert rebuild(kept.config, "a").returned == 1
    assert kept.values("a", "score") == [1, 2]
    kept.check_all(batches=1)
    kept.put("a")
    kept.run()
    kept.check_all(batches=2)


def test_a_table_that_is_gone_comes_back_whole(lake: Path) -> None:
    kept = Kept(lake)
    kept.put("a", "b")
    kept.run()
    shutil.rmtree(kept.path("a"))
    kept.learn()
    found = rebuild(kept.config, "a")
    assert (found.rows, found.returned) == (3, 1)
    kept.check_all(batches=1)


def test_after_a_hand_over_a_table_has_the_rows_of_both_streams(lake: Path) -> None:
    kept = Kept(lake)
    kept.put("a", "b")
    kept.run()
    hand_over(kept.config, Division.even(2))
    kept.learn()
    assert rebuild(kept.config, "a").rows == 3, "the new stream has done nothing yet"
    kept.check_all(batches=1)
    kept.layout = SHARES
    kept.put("a", "b")
    kept.run()
    kept.lose_rows("a")
    assert rebuild(kept.config, "a").rows == 6
    kept.check_all(batches=2)


def test_rows_of_bronze_before_the_first_run_of_hop_2_stay_out(lake: Path) -> None:
    kept = Kept(lake)
    for _ in range(3):
        kept.put("a")
        hops.run(kept.config, hops=(1,), once=True)
    begin = {"bronze": {"starting_version": DeltaTable(kept.config.bronze_path).version()}}
    kept.configure(**TWO_HOP.keys, **begin)
    kept.run()
    kept.put("a")
    kept.run()
    kept.configure(**TWO_HOP.keys)
    with pytest.raises(BadInput, match=r"8 rows of it that hop 2 has never taken.*starting_version"):
        rebuild(kept.config, "a")
    kept.configure(**TWO_HOP.keys, bronze={"starting_timestamp": "2026-01-31 12:00:00"})
    with pytest.raises(BadInput, match="give the version of that time"):
        rebuild(kept.config, "a")
    kept.configure(**TWO_HOP.keys, **begin)
    found = rebuild(kept.config, "a")
    assert (found.rows, found.quarantined, found.returned, found.newly_bad) == (4, 4, 0, 0)
    assert kept.values("a", "score") == [1, 2, 1, 2]


def test_a_table_that_spark_writes_is_rebuilt_too(lake: Path) -> None:
    kept = Kept(lake, tables={"engine": "spark"})
    kept.put("a")
    kept.run()
    kept.lose_rows("a")
    kept.learn()
    assert (rebuild(kept.config, "a").rows, kept.values("a", "score")) == (3, [1, 2, 3])
    kept.put("a")
    kept.run()
    kept.check_all(batches=2)


def test_a_table_with_a_feature_that_only_spark_knows_is_made_anew(lake: Path) -> None:
    policy = {"evolution": {"type_change": "type_widening"}, "properties": {"delta.enableDeletionVectors": "true"}}
    kept = Kept(lake, tables=policy)
    kept.put("a", "b")
    kept.run()
    kept.learn()
    wide = kept.schema("a-value", EVENT.replace("int32", "int64"))
    kept.send(kept.event("a", wide, message(EVENT, "event", user="a", score=7)))
    kept.run()
    session_of(kept.config).sql(f"DELETE FROM delta.`{kept.path('b')}` WHERE score = 1")
    with pytest.raises(BadInput, match=r"only Spark may write .*typeWidening.* delete the table's folder"):
        rebuild(kept.config, "a")
    with pytest.raises(BadInput, match="deletion vectors; take them out by Spark first: REORG TABLE"):
        rebuild(kept.config, "b")
    shutil.rmtree(kept.path("a"))
    assert rebuild(kept.config, "a").rows == 4
    assert kept.columns("a")["score"] == "int64"
    session_of(kept.config).sql(f"REORG TABLE delta.`{kept.path('b')}` APPLY (PURGE)")
    assert rebuild(kept.config, "b").rows == 3
    kept.put("a", "b")
    kept.run()
    kept.check_all(batches=2)


@pytest.mark.parametrize(
    ("target", "step", "after"),
    [
        (Replay, "claim", True),
        (Table, "replace_files", False),
        (Table, "replace_files", True),
        (Replay, "settle", True),
    ],
    ids=["after the claim", "before the commit", "after the commit", "after the ledger has the rows that came back"],
)
def test_a_rebuild_that_dies_is_finished_by_the_next(lake: Path, target: Any, step: str, after: bool) -> None:
    kept = Kept(lake)
    kept.put("a")
    kept.run()
    kept.learn()
    with dying(target, step, after=after):
        rebuild(kept.config, "a")
    # A replay comes first, as a run would try it: it must not bring what the rebuild has brought.
    kept.replay()
    kept.check(tombstones=1)
    found = rebuild(kept.config, "a")
    assert (found.rows, found.quarantined, found.newly_bad) == (3, 1, 0)
    kept.check_all(batches=1)
    assert kept.values("a", "score") == [1, 2, 3]


def test_a_table_that_was_compacted_meanwhile_is_rebuilt_once_more(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(lake)
    kept.put("a")
    kept.run()
    kept.learn()
    whole, tried = Table.replace_files, []

    def late(*args: Any) -> None:
        tried.append(args)
        if len(tried) == 1:
            raise CommitConflict("a file is not in it any more")
        whole(*args)

    monkeypatch.setattr(Table, "replace_files", late)
    assert rebuild(kept.config, "a").rows == 3
    assert len(tried) == 2
    kept.check_all(batches=1)


def test_a_row_that_a_replay_brought_from_an_unreadable_envelope_stays_in_the_table(lake: Path) -> None:
    """Bronze has it without a route."""
    kept = Kept(lake)
    kept.put("a")
    own = kept.event("a", kept.known, message(EVENT, "event", user="a", score=9))
    kept.learn()
    kept.send(b"\x00" + (kept.late + 1).to_bytes(4, "big") + own[5:])  # an envelope schema that nobody knows yet
    kept.run()
    kept.schema("envelope-again-value", f"{WRAPPER_TEXT}message other {{ string a = 1; }}")
    assert kept.replay().rows == {"a": 1}
    assert rebuild(kept.config, "a").rows == 4
    assert kept.values("a", "score") == [1, 2, 3, 9]
    kept.check_all(batches=1)


def test_what_cannot_be_rebuilt_says_why_and_stays(lake: Path) -> None:
    kept = Kept(lake)
    kept.put("a")
    with pytest.raises(BadInput, match="no rows of route 'a'"):
        rebuild(kept.config, "a")
    kept.run()
    with pytest.raises(BadInput, match="no rows of route 'nobody'"):
        rebuild(kept.config, "nobody")
    kept.configure(**FANOUT.keys)
    with pytest.raises(BadInput, match="keeps no bronze table"):
        rebuild(kept.config, "a")
    kept.configure(**TWO_HOP.keys)
    kept.check_all(batches=1)
