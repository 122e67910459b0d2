"""Merges on read: rows are marked as deleted in vectors, and the table is what copy on write would have made of it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from distributary.audit.judge.changes import verify_changes
from distributary.changes.reduce import reduce_rows
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain, purge
from distributary.tables import merge, merge_on_read, vectors
from distributary.tables.checkpoints import CHECKPOINT_COMMITS
from distributary.tables.commits import commit_text, put_commit
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict
from distributary.tables.log_adds import logged_adds
from distributary.tables.merge import Merged, MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_on_read import wide_stats
from distributary.tables.merge_rows import MergeRules
from distributary.tables.purge import purge_vectors
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.vacuum import vacuum, vacuum_vectors
from tests.change_histories import delivered
from tests.events import Event, deleted, table_of
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless
from tests.test_merge_properties import histories

COLUMNS = {"id": pa.int64(), "value": pa.string()}
OWNER = Owner("p", "t", ("id",))
ORDERS = mysql_table()


@pytest.fixture(autouse=True)
def txns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are marked however small."""
    monkeypatch.setattr(merge_on_read, "TINY_BYTES", 0)


class Lake:
    """One merged table."""

    def __init__(self, uri: Path, *, on_read: bool = True) -> None:
        self.uri = str(uri)
        self.rules = MergeRules(on_read=on_read)
        self.columns: dict[str, pa.DataType] = COLUMNS
        self.batch = 0

    def merge(self, *events: Event, kind: str = "mysql") -> Merged:
        merged = self.tried(*events, kind=kind)
        assert merged.why_spark is None
        return merged

    def tried(self, *events: Event, kind: str = "mysql") -> Merged:
        self.batch += 1
        reduced = reduce_rows(table_of(list(events), self.columns, kind), ["id"], self.rules.order)
        target = MergeTarget(Table(self.uri, Store(), OWNER), self.opened(), Policy(can_widen=False))
        return merge_rows(target, reduced, ["id"], self.rules, Txn("s", self.batch))

    def opened(self) -> Snapshot | None:
        return Snapshot.open(self.uri, Store())

    def snapshot(self) -> Snapshot:
        return Snapshot(self.uri, Store())

    def rows(self) -> list[dict[str, Any]]:
        """Whole rows, as delta-rs reads them."""
        found = QueryBuilder().register("t", DeltaTable(self.uri)).execute("select * from t order by id")
        return list(pa.table(found.read_all()).to_pylist())

    def values(self) -> dict[int, str]:
        rows = self.rows()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["value"] for row in rows if not row["_deleted"]}

    def adds(self) -> list[dict[str, Any]]:
        found = logged_adds(self.uri, Store(), self.snapshot().version)
        assert found is not None
        return [dict(add) for add in found.values()]

    def marked(self) -> list[int]:
        """Deleted rows, of each file that has some."""
        return sorted(add["deletionVector"]["cardinality"] for add in self.adds() if "deletionVector" in add)

    def files(self, pattern: str) -> set[str]:
        return {path.name for path in Path(self.uri).glob(pattern)}

    def commit(self) -> list[dict[str, Any]]:
        """The actions of the newest commit."""
        path = Path(self.uri) / "_delta_log" / f"{self.snapshot().version:020d}.json"
        return [json.loads(line) for line in path.read_text().splitlines()]


def inserts(ids: Iterator[int] | range, at: int = 0, value: str = "a") -> list[Event]:
    return [Event({"id": n, "value": value}, at + n + 1, "INSERT") for n in ids]


def update(id: int, value: str, at: int) -> Event:
    return Event({"id": id, "value": value}, at)


@pytest.fixture
def lake_root(tmp_path: Path) -> Path:
    return tmp_path / "pipeline"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of a hundred rows."""
    made = Lake(tmp_path / "t")
    made.merge(*inserts(range(100)))
    return made


# -- what the table holds ----------------------------------------------------------------------------------


@settings(max_examples=settings().max_examples // 5)
@given(histories, st.integers(0, 2**32))
def test_both_ways_of_merging_leave_the_rows_of_the_source(lived: Any, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        read, write = Lake(Path(folder) / "read"), Lake(Path(folder) / "write", on_read=False)
        for batch in delivered(lived.events, Random(seed)):
            for side in (read, write) if batch else ():
                side.merge(*batch, kind=lived.kind)
        if lived.events:
            assert read.values() == lived.rows
            assert read.rows() == write.rows()


@settings(max_examples=settings().max_examples // 5)
@given(st.lists(st.lists(st.tuples(st.integers(0, 130), st.booleans()), min_size=1, max_size=12), max_size=30))
def test_many_small_batches_leave_the_newest_value_of_each_key(batches: list[list[tuple[int, bool]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "t")
        lake.merge(*inserts(range(100)))
        wanted, at = dict.fromkeys(range(100), "a"), 1000
        for number, batch in enumerate(batches):
            events = []
            for id, goes in dict(batch).items():
                at += 1
                events.append(deleted({"id": id, "value": None}, at) if goes else update(id, f"{number}", at))
                wanted.pop(id, None) if goes else wanted.update({id: f"{number}"})
            lake.merge(*events)
        assert lake.values() == wanted


def test_a_few_changes_leave_the_file_and_mark_its_rows(lake: Lake) -> None:
    before = lake.files("*.parquet")
    lake.merge(update(3, "b", 1000), deleted({"id": 5, "value": None}, 1001))
    assert lake.marked() == [2]
    assert before < lake.files("*.parquet")
    values = lake.values()
    assert (values[3], 5 in values, len(values)) == ("b", False, 99)


def test_marks_come_on_top_of_each_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_on_read, "ALIKE", 100)
    for number in range(10):
        lake.merge(update(number, "b", 1000 + number))
    assert max(lake.marked()) == 10
    assert lake.values() == {**dict.fromkeys(range(100), "a"), **dict.fromkeys(range(10), "b")}


def test_a_file_with_many_deleted_rows_is_written_anew_without_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_on_read, "ALIKE", 100)
    (before,) = lake.files("*.parquet")
    for number in range(30):
        lake.merge(update(number, "b", 1000 + number))
    assert before not in {add["path"] for add in lake.adds()}
    assert lake.values() == {**dict.fromkeys(range(100), "a"), **dict.fromkeys(range(30), "b")}


def test_a_tiny_file_is_written_anew(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_on_read, "TINY_BYTES", 64 << 10)
    lake.merge(update(3, "b", 1000))
    assert lake.marked() == []
    assert lake.snapshot().reader_features == set(), "no reader needs to know of vectors"


def test_files_stay_few(lake: Lake) -> None:
    for number in range(60):
        lake.merge(update(number % 7, f"{number}", 1000 + number))
    assert len(lake.adds()) <= 1 + merge_on_read.ALIKE
    assert lake.values()[59 % 7] == "59"


def test_vectors_of_earlier_batches_are_found_behind_a_checkpoint(lake: Lake) -> None:
    for number in range(2 * CHECKPOINT_COMMITS):
        lake.merge(update(number % 15, f"{number}", 1000 + number))
    assert lake.files("_delta_log/*.checkpoint.parquet")
    kept = logged_adds(lake.uri, Store(), lake.snapshot().version)
    assert kept is not None and set(kept) == set(lake.snapshot().sizes())
    assert lake.values()[14] == f"{CHECKPOINT_COMMITS * 2 - 1 - (CHECKPOINT_COMMITS * 2 - 1 - 14) % 15}"


# -- the commit --------------------------------------------------------------------------------------------


def test_the_first_vector_brings_the_feature_in_its_own_commit(lake: Lake) -> None:
    assert lake.snapshot().protocol_versions == (1, 2)
    before = lake.snapshot()
    lake.merge(update(3, "b", 1000))
    after = lake.snapshot()
    assert after.version == before.version + 1
    assert after.protocol_versions == (3, 7)
    assert after.reader_features == {"deletionVectors"}
    assert after.writer_features == {"appendOnly", "deletionVectors", "invariants"}
    assert after.properties == {**before.properties, "delta.enableDeletionVectors": "true"}
    assert (after.id, after.schema_json) == (before.id, before.schema_json)
    lake.merge(update(4, "b", 1001))
    assert not any("protocol" in action or "metaData" in action for action in lake.commit())


def test_a_file_is_removed_with_the_vector_that_it_had(lake: Lake) -> None:
    lake.merge(update(3, "b", 1000))
    (first,) = (a["add"]["deletionVector"] for a in lake.commit() if "deletionVector" in a.get("add", {}))
    lake.merge(update(4, "b", 1001))
    removed = [a["remove"].get("deletionVector") for a in lake.commit() if "remove" in a]
    assert first in removed


def test_the_mark_of_the_batch_is_in_the_same_commit(lake: Lake) -> None:
    lake.merge(update(3, "b", 1000))
    assert lake.snapshot().has(Txn("s", lake.batch))
    assert any(action.get("txn", {}).get("version") == lake.batch for action in lake.commit())


def test_statistics_of_a_marked_file_say_that_bounds_are_wide(lake: Lake) -> None:
    lake.merge(update(99, "b", 1000))
    (add,) = (add for add in lake.adds() if "deletionVector" in add)
    said = json.loads(add["stats"])
    assert (said["tightBounds"], said["numRecords"], said["maxValues"]["id"]) == (False, 100, 99)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"numRecords":7,"minValues":{"d":1.10}}', '{"tightBounds": false, "numRecords":7,"minValues":{"d":1.10}}'),
        ('{"numRecords":7,"x":1.10,"tightBounds":true}', '{"numRecords":7,"x":1.10,"tightBounds":false}'),
        ('{"numRecords":7,"tightBounds":false}', '{"numRecords":7,"tightBounds":false}'),
        ('{"tightBounds":true,"numRecords":7}', '{"numRecords": 7, "tightBounds": false}'),
        ("{}", '{"numRecords": 7, "tightBounds": false}'),
        (None, '{"numRecords": 7, "tightBounds": false}'),
    ],
)
def test_statistics_keep_their_numbers_as_they_are_written(text: str | None, wanted: str) -> None:
    assert wide_stats(text, 7) == wanted


def test_a_table_whose_property_says_no_gets_no_vector(lake: Lake) -> None:
    lake.snapshot().set_properties({"delta.enableDeletionVectors": "false"})
    lake.merge(update(3, "b", 1000))
    assert lake.marked() == []
    assert lake.values()[3] == "b"


def test_who_switches_back_leaves_the_table_to_spark(lake: Lake) -> None:
    lake.merge(update(3, "b", 1000))
    lake.rules = MergeRules()
    assert lake.tried(update(4, "b", 1001)).why_spark == "deletion vectors"


# -- crashes and others ------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.parametrize("where", ["write_vectors", "put_commit"])
@pytest.mark.parametrize("after", [False, True])
def test_a_batch_that_died_is_merged_once(lake: Lake, monkeypatch: pytest.MonkeyPatch, where: str, after: bool) -> None:
    module = merge_on_read if where == "write_vectors" else merge
    own = getattr(module, where)

    def dies(*given: Any) -> Any:
        if after:
            own(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, where, dies)
        with pytest.raises(Killed):
            lake.merge(update(3, "b", 1000), update(200, "new", 1001))
    landed = where == "put_commit" and after
    assert lake.snapshot().has(Txn("s", lake.batch)) is landed
    if not landed:
        assert lake.values() == dict.fromkeys(range(100), "a")
        lake.batch -= 1
        lake.merge(update(3, "b", 1000), update(200, "new", 1001))
    assert lake.values() == {**dict.fromkeys(range(100), "a"), 3: "b", 200: "new"}


def test_a_vector_is_never_put_over_another_writers_commit(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Lake(Path(lake.uri))
    other.batch = 100
    own = vectors.write_vectors

    def late(*given: Any) -> Any:
        monkeypatch.setattr(merge_on_read, "write_vectors", own)
        other.merge(update(4, "theirs", 1001))
        return own(*given)

    monkeypatch.setattr(merge_on_read, "write_vectors", late)
    with pytest.raises(CommitConflict):
        lake.merge(update(3, "b", 1000))
    lake.merge(update(3, "b", 1000))
    assert (lake.values()[3], lake.values()[4]) == ("b", "theirs")


def test_columns_and_properties_that_delta_rs_sets_leave_the_vectors(lake: Lake) -> None:
    lake.merge(update(3, "b", 1000))
    lake.snapshot().set_properties({"owner": "somebody"})
    lake.columns = {**COLUMNS, "more": pa.int64()}
    lake.merge(Event({"id": 4, "value": "c", "more": 7}, 1001))
    assert lake.marked()
    assert (lake.values()[3], lake.values()[4], len(lake.values())) == ("b", "c", 100)
    assert [row["more"] for row in lake.rows() if row["more"] is not None] == [7]


def test_tombstones_are_purged_from_a_table_with_vectors(lake: Lake) -> None:
    lake.merge(deleted({"id": 5, "value": None}, 1000), update(3, "b", 1001))
    assert purge([lake.snapshot()], 2**42) == 1
    lake.merge(update(6, "c", 1002))
    wanted = {**dict.fromkeys(range(100), "a"), 3: "b", 6: "c"}
    del wanted[5]
    assert {row["id"]: row["value"] for row in lake.rows()} == wanted


def test_rows_that_delta_rs_deletes_or_compacts_beside_stay_so(lake: Lake) -> None:
    lake.merge(update(3, "b", 1000))
    lake.snapshot().delete("id = 7")
    lake.merge(update(8, "c", 1001))
    lake.snapshot().compact()
    lake.merge(update(9, "d", 1002))
    wanted = {**dict.fromkeys(range(100), "a"), 3: "b", 8: "c", 9: "d"}
    del wanted[7]
    assert lake.values() == wanted


def test_rows_that_another_writer_marks_in_a_tiny_file_stay_deleted_and_none_doubles(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (merge_on_read, merge):
        monkeypatch.setattr(module, "TINY_BYTES", 64 << 10)
    _mark(lake, 7)
    tip = lake.merge(update(200, "new", 1000)).tip
    lake.batch += 1
    reduced = reduce_rows(table_of([update(3, "b", 1001)], COLUMNS, "mysql"), ["id"], lake.rules.order)
    target = MergeTarget(Table(lake.uri, Store(), OWNER), None, Policy(can_widen=False))
    if tip is None or merge_on_tip(target, tip, reduced, ["id"], lake.rules, Txn("s", lake.batch)) is None:
        lake.merge(update(3, "b", 1001))
    wanted = {**dict.fromkeys(range(100), "a"), 3: "b", 200: "new"}
    del wanted[7]
    assert lake.values() == wanted


def _mark(lake: Lake, row: int) -> None:
    """As Spark's DELETE of one row of the table's only file, however small that is."""
    (add,) = lake.adds()
    (vector,) = vectors.write_vectors(lake.uri, Store(), [np.array([row], np.uint64)])
    table = lake.snapshot()
    metadata, protocol = merge_on_read.OnRead(table).upgrade()
    rows = json.loads(add["stats"])["numRecords"]
    marked = merge_on_read.Marked(add, vector, rows)
    removed = [(add["path"], add["size"])]
    about = {"operation": "DELETE"}
    text = commit_text(table.version, None, [marked], removed, about=about, metadata=metadata, protocol=protocol)
    put_commit(lake.uri, Store(), table.version + 1, text)


@pytest.mark.spark
def test_spark_and_we_merge_into_one_table_in_turns(spark: SparkSession, lake: Lake) -> None:
    wanted = dict.fromkeys(range(100), "a")
    for number in range(3):
        lake.merge(update(number, "ours", 1000 + number))
        lake.snapshot().checkpoint()
        spark.sql(f"UPDATE delta.`{lake.uri}` SET value = 'theirs' WHERE id = {50 + number}")
        spark.sql(f"DELETE FROM delta.`{lake.uri}` WHERE id = {90 + number}")
        wanted |= {number: "ours", 50 + number: "theirs"}
        del wanted[90 + number]
    lake.merge(update(51, "ours again", 2000))
    wanted[51] = "ours again"
    assert lake.values() == wanted
    found = spark.read.format("delta").load(lake.uri).where("NOT _deleted").select("id", "value").collect()
    assert {row["id"]: row["value"] for row in found} == wanted


# -- upkeep ------------------------------------------------------------------------------------------------


def test_a_purge_writes_files_with_deleted_rows_anew(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_on_read, "ALIKE", 100)
    for number in range(10):
        lake.merge(update(number, "b", 1000 + number))
    before = lake.rows()
    assert purge_vectors(lake.snapshot()) >= 1
    assert max(lake.marked(), default=0) < 5
    assert lake.rows() == before
    assert not any((action.get("add") or action.get("remove") or {}).get("dataChange") for action in lake.commit())
    assert purge_vectors(lake.snapshot()) == 0


def test_vacuum_removes_vectors_that_no_version_needs_and_no_other(lake: Lake) -> None:
    lake.merge(update(1, "b", 1000))
    lake.merge(update(2, "b", 1001))
    (stray,) = (vector.path() for vector in vectors.write_vectors(lake.uri, Store(), [np.array([1], np.uint64)]))
    assert len(lake.files("*.bin")) == 3
    assert vacuum_vectors(lake.snapshot(), 3600) == [], "they are young"
    _age(lake, "*.bin")
    assert vacuum_vectors(lake.snapshot(), 3600) == [], "an hour ago one was needed; a merge may commit the other one"
    _age(lake, "_delta_log/*.json")
    gone = vacuum_vectors(lake.snapshot(), 3600)
    assert len(gone) == 1 and stray not in gone
    for _ in range(12):
        _age(lake, "*.bin")
    assert vacuum_vectors(lake.snapshot(), 3600) == [stray], "nobody commits it any more"
    assert lake.values() == {**dict.fromkeys(range(100), "a"), 1: "b", 2: "b"}


def test_the_vacuum_of_delta_rs_leaves_vectors_and_marked_files(lake: Lake) -> None:
    for number in range(3):
        lake.merge(update(number, "b", 1000 + number))
    lake.snapshot().checkpoint()
    before = lake.rows()
    lake.snapshot().vacuum(0)
    assert lake.rows() == before


def test_a_vacuum_removes_files_of_a_merge_that_died_and_no_vector_that_is_in_use(lake: Lake) -> None:
    for number in range(3):
        lake.merge(update(number, "b", 1000 + number))
    before = lake.rows()
    orphan = Path(lake.uri) / "part-of-a-merge-that-died.zstd.parquet"
    orphan.write_bytes(b"PAR1")
    for _ in range(5 * 12):
        _age(lake, "*.*")
    gone = vacuum(lake.snapshot(), 3 * 86400)
    assert orphan.name in gone
    assert not orphan.exists()
    assert lake.rows() == before


def _age(lake: Lake, pattern: str) -> None:
    """As if they were two hours old."""
    for path in Path(lake.uri).glob(pattern):
        at = path.stat().st_mtime - 7200
        os.utime(path, (at, at))


def test_a_rebuild_removes_marked_files_with_their_vectors(lake: Lake) -> None:
    lake.merge(update(3, "b", 1000))
    before = lake.snapshot()
    fresh = Lake(Path(lake.uri).parent / "fresh")
    fresh.merge(*inserts(range(5), value="new"))
    rows = DeltaTable(fresh.uri).to_pyarrow_table()
    table = Table(lake.uri, Store(), OWNER)
    assert table.replace_all(before, rows.schema, [table.write(rows)], Txn("r", 1))
    assert lake.values() == dict.fromkeys(range(5), "new")


# -- a pipeline --------------------------------------------------------------------------------------------


class OnRead(Sparkless):
    """A pipeline that merges on read. pyarrow does not read its tables."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, tables={"merge": "merge_on_read"}, maintenance={"min_files": 2})
        for first in range(0, 100, 50):
            self.send(*(change(ORDERS, "INSERT", order(n, "new"), n + 1) for n in range(first, first + 50)))
            self.run()
        self.at = 1000

    def merged(self, name: str) -> pa.Table:
        table = Snapshot(str(self.root / "lake" / name), Store())
        return table.query("select * from t").cast(table.schema)

    def update(self, *ids: int) -> None:
        for id in ids:
            self.at += 1
            self.send(change(ORDERS, "UPDATE-INSERT", order(id, f"at {self.at}"), self.at, sec=self.at))
        self.run()

    @property
    def table(self) -> Lake:
        return Lake(self.root / "lake" / "shop_orders")


def test_a_pipeline_merges_on_read_and_verify_upkeep_and_resync_know_it(
    lake_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_on_read, "ALIKE", 100)
    shop = OnRead(lake_root)
    for number in range(4):
        shop.update(number, 70 + number, 80 + number)
    assert shop.table.marked()
    shop.check()
    before = shop.living("shop_orders")
    assert [done.skipped for done in maintain(shop.config) if done.skipped or done.busy] == []
    assert (shop.table.marked(), shop.living("shop_orders")) == ([], before)
    shop.update(5)
    assert shop.table.marked()
    before = shop.living("shop_orders")
    rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))
    assert shop.living("shop_orders") == before
    shop.update(6)
    shop.check()


def test_verify_finds_rows_that_a_lost_vector_brings_back(lake_root: Path) -> None:
    shop = OnRead(lake_root)
    shop.update(3)
    table = shop.table
    (add,) = (add for add in table.adds() if "deletionVector" in add)
    vector = add.pop("deletionVector")
    remove = {"path": add["path"], "deletionVector": vector, "deletionTimestamp": 1, "dataChange": True}
    actions = [{"remove": remove}, {"add": {**add, "dataChange": True}}]
    log = Path(table.uri) / "_delta_log" / f"{table.snapshot().version + 1:020d}.json"
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    found = verify_changes(shop.config)
    assert found.problems[0] == "shop.orders: 1 rows of the merged table have a key that is there already"
