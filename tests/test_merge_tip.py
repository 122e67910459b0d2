"""Merges into a table that nobody opens: only where the log ends with the stream's own commit."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.changes.reduce import Reduced, reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.engine.changes import merging
from distributary.engine.changes.file_intake import FileIntake
from distributary.engine.changes.keyed_table import Into
from distributary.engine.outcomes import Merge
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain
from distributary.tables import checkpoints
from distributary.tables import table as tables
from distributary.tables.evolve import Policy
from distributary.tables.merge import Merged, MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import MergeRules
from distributary.tables.merge_tip import TIP_FILES, MergeTip
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from tests.events import Event, table_of
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

OWNER = Owner("shop", "shop.orders", ("id",))
RULES = MergeRules()
COLUMNS = {"id": pa.int64(), "value": pa.string()}


class Table:
    """A merged table and what its stream knows of it."""

    def __init__(self, uri: Path) -> None:
        self.uri = str(uri)
        self.batch = 0

    def target(self, before: Snapshot | None = None) -> MergeTarget:
        return MergeTarget(tables.Table(self.uri, Store(), OWNER), before, Policy(can_widen=False))

    def opened(self, *ids: int, value: str = "a") -> Merged:
        self.batch += 1
        target = self.target(Snapshot.open(self.uri, Store()))
        return merge_rows(target, events(*ids, value=value, at=self.batch), ["id"], RULES, Txn("s", self.batch))

    def on_tip(self, tip: MergeTip | None, *ids: int, value: str = "b", rules: MergeRules = RULES) -> Merged | None:
        assert tip is not None
        self.batch += 1
        reduced = events(*ids, value=value, at=self.batch)
        return merge_on_tip(self.target(), tip, reduced, ["id"], rules, Txn("s", self.batch))

    def rows(self) -> dict[int, str]:
        found = DeltaTable(self.uri).to_pyarrow_table(columns=["id", "value"])
        return dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))

    def version(self) -> int:
        return int(DeltaTable(self.uri).version())


def events(*ids: int, value: str, at: int) -> Reduced:
    rows = [Event({"id": id, "value": value}, at * 1000 + id) for id in ids]
    return reduce_rows(table_of(rows, COLUMNS), ["id"], OrderSettings())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of the rows 1 to 3, once merged into."""
    found = Table(tmp_path / "t")
    found.opened(1, 2, 3)
    return found


@pytest.fixture
def tip(table: Table) -> MergeTip:
    tip = table.opened(1).tip
    assert tip is not None
    return tip


def test_merges_go_on_without_an_opened_table_and_are_ordinary_commits_to_every_reader(
    table: Table, tip: MergeTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "checkpoint_due", lambda uri, version: version == 4)
    for number in range(2, 6):
        merged = table.on_tip(tip, number, value=f"round {number}")
        assert merged is not None and merged.tip is not None
        assert merged.version == merged.tip.version == table.version() == number
        tip = merged.tip
    assert table.rows() == {1: "a", 2: "round 2", 3: "round 3", 4: "round 4", 5: "round 5"}
    assert Snapshot(table.uri, Store()).newest("s") == table.batch
    assert (Path(table.uri) / "_delta_log" / "00000000000000000004.checkpoint.parquet").exists()
    assert {file.path for file in tip.files} == set(pathed(DeltaTable(table.uri)))


def pathed(table: DeltaTable) -> list[str]:
    return [uri.rsplit("/", 1)[-1] for uri in table.file_uris()]


def appended(table: Table) -> None:
    table.opened(9)


def deleted(table: Table) -> None:
    DeltaTable(table.uri).delete("id = 3")


def compacted(table: Table) -> None:
    table.opened(1)
    DeltaTable(table.uri).optimize.compact()


def purged(table: Table) -> None:
    DeltaTable(table.uri).alter.set_table_properties({merging.HORIZON: "5"}, raise_if_not_exists=False)


def made_anew(table: Table) -> None:
    """As long a history as before, with the same batches."""
    shutil.rmtree(table.uri)
    table.batch = 0
    table.opened(1, 2, 3)
    table.opened(1)


@pytest.mark.parametrize("between", [appended, deleted, compacted, purged, made_anew])
def test_where_anything_came_in_between_the_table_must_be_opened(
    table: Table, tip: MergeTip, between: Callable[[Table], None]
) -> None:
    between(table)
    rows, version = table.rows(), table.version()
    assert table.on_tip(tip, 1, 5) is None
    assert (table.rows(), table.version()) == (rows, version)
    table.opened(1, 5, value="c")
    assert table.rows() == {**rows, 1: "c", 5: "c"}


def test_a_table_that_was_removed_must_be_made_anew_by_who_opens_it(table: Table, tip: MergeTip) -> None:
    shutil.rmtree(table.uri)
    assert table.on_tip(tip, 1) is None
    assert not Path(table.uri).exists()


def test_a_log_that_was_checkpointed_and_cleaned_up_behind_the_commit_goes_on(table: Table, tip: MergeTip) -> None:
    DeltaTable(table.uri).create_checkpoint()
    log = Path(table.uri) / "_delta_log"
    (log / f"{0:020d}.json").unlink()
    merged = table.on_tip(tip, 3)
    assert merged is not None
    assert table.rows() == {1: "a", 2: "a", 3: "b"}
    DeltaTable(table.uri).create_checkpoint()
    (log / f"{2:020d}.json").unlink()
    assert table.on_tip(merged.tip, 3) is None


def test_a_second_attempt_with_the_tip_of_the_first_finds_its_commit_behind_it(table: Table, tip: MergeTip) -> None:
    assert table.on_tip(tip, 2) is not None
    table.batch -= 1
    assert table.on_tip(tip, 2) is None
    assert Snapshot(table.uri, Store()).newest("s") == table.batch


def test_of_two_attempts_at_the_same_time_one_wins(
    table: Table, tip: MergeTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    leads = MergeTip.leads

    def both(self: MergeTip, uri: str, store: Store) -> bool:
        found = leads(self, uri, store)
        barrier.wait(60)
        return found

    monkeypatch.setattr(MergeTip, "leads", both)
    reduced, done = events(2, value="b", at=9), list[Merged | None]()

    def attempt() -> None:
        done.append(merge_on_tip(table.target(), tip, reduced, ["id"], RULES, Txn("s", 9)))

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one is not None for one in done) == 1
    assert (table.rows(), table.version()) == ({1: "a", 2: "b", 3: "a"}, 2)


def test_new_columns_other_keys_and_another_horizon_are_left_to_who_opens_the_table(
    table: Table, tip: MergeTip
) -> None:
    rows = table_of([Event({"id": 1, "value": "b", "more": "c"}, 9000)], {**COLUMNS, "more": COLUMNS["value"]})
    assert merge_on_tip(table.target(), tip, Reduced(rows), ["id"], RULES, Txn("s", 9)) is None
    assert merge_on_tip(table.target(), tip, events(1, value="b", at=9), ["value"], RULES, Txn("s", 9)) is None
    assert table.on_tip(tip, 1, rules=replace(RULES, purged_until=5)) is None
    assert table.version() == 1


def test_of_a_table_of_many_files_nothing_is_kept_in_mind(
    table: Table, tip: MergeTip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.tables.merge.SMALL_FILES", 100)
    assert len(tip.files) == 1
    for number in range(TIP_FILES - 1):
        merged = table.on_tip(tip, 100 + number)
        assert merged is not None and merged.tip is not None
        tip = merged.tip
    merged = table.on_tip(tip, 99)
    assert merged is not None and merged.tip is None
    assert len(pathed(DeltaTable(table.uri))) == TIP_FILES + 1


# -- in a pipeline -------------------------------------------------------------------------------------------

ORDERS = mysql_table()
BATCHES = 7
IDS = range(1, 5)
DAY = 86_400


def nothing(shop: Sparkless) -> None:
    pass


def rebuilt(shop: Sparkless) -> None:
    rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))


def tidied(shop: Sparkless) -> None:
    assert any(done.purged for done in maintain(shop.config))


def changed(shop: Sparkless) -> None:
    """By somebody else: a row goes that the next batch brings back."""
    DeltaTable(str(shop.root / "lake" / "shop_orders")).delete("id = 4")


@pytest.mark.parametrize(("between", "opened"), [(nothing, 2), (rebuilt, 3), (tidied, 3), (changed, 3)])
def test_a_stream_opens_a_merged_table_only_after_its_creation_and_after_others(
    lake: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Sparkless], None], opened: int
) -> None:
    shop = Sparkless(lake, source={"max_files_per_batch": 1}, tables={"tombstone_retention": "3 days"})
    shop.send(change(ORDERS, "DELETE", order(9, "gone"), 50), format="jsonl")
    for day in range(9, 8 + BATCHES):
        rows = [change(ORDERS, "UPDATE-INSERT", order(n, f"day {day}"), day * 100 + n, sec=day * DAY) for n in IDS]
        shop.send(*rows, format="jsonl")
    opens: list[str] = []
    after, really = FileIntake.between_batches, merging._opened

    def counted(into: Into, *args: Any) -> Merge:
        opens.append(into.route)
        return really(into, *args)

    monkeypatch.setattr(merging, "_opened", counted)

    def meanwhile(intake: FileIntake) -> None:
        after(intake)
        if len(shop.batches) == 4:
            between(shop)

    monkeypatch.setattr(FileIntake, "between_batches", meanwhile)
    shop.run()
    assert (len(shop.batches), len(opens)) == (BATCHES, opened)
    assert shop.living("shop_orders") == [(id, f"day {7 + BATCHES}") for id in IDS]
    shop.check()
