"""An object is written only if nobody has: the commit of merged tables, on folders and on object stores."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.repair.clean.clean_plan import is_one_of
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict
from distributary.tables.merge import Merged, MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import MergeRules
from distributary.tables.merge_tip import MergeTip
from distributary.tables.put_once import cannot_put_once, put_once, read
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.events import Event, deleted, table_of
from tests.object_stores import STORES, bucket_of

COLUMNS = {"id": pa.int64(), "value": pa.string()}


@pytest.fixture(params=["local", *(pytest.param(name, marks=pytest.mark.services) for name in STORES)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Store]:
    if request.param == "local":
        return str(tmp_path / "t"), Store()
    bucket, server = bucket_of(request)
    return f"{bucket.url}/lake/t", Store(dict(server.options))


def test_the_second_writer_of_an_object_is_told_so(place: tuple[str, Store]) -> None:
    uri, store = place
    assert put_once(uri, store, "_delta_log", "0.json", b"first")
    assert not put_once(uri, store, "_delta_log", "0.json", b"second")
    assert store.get(f"{uri}/_delta_log", "0.json") == read(uri, store, "_delta_log", "0.json") == b"first"
    assert read(uri, store, "_delta_log", "1.json") is None


def test_of_many_writers_at_once_one_wins(place: tuple[str, Store]) -> None:
    uri, store = place
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: won.append(put_once(uri, store, "log", "1.json", b"%d" % n)))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


def test_a_merge_replaces_files_and_loses_to_a_commit_in_between(place: tuple[str, Store]) -> None:
    uri, store = place

    def merge(batch: int, *events: Event, table: Snapshot | None = None, tip: MergeTip | None = None) -> Merged | None:
        reduced = reduce_rows(table_of(events, COLUMNS), ["id"], OrderSettings())
        target = MergeTarget(Table(uri, store, Owner("shop", "orders", ("id",))), table, Policy(can_widen=False))
        if tip is not None:
            return merge_on_tip(target, tip, reduced, ["id"], MergeRules(), Txn("s", batch))
        merged = merge_rows(target, reduced, ["id"], MergeRules(), Txn("s", batch))
        assert merged.why_spark is None
        return merged

    def row(key: int, value: str) -> dict[str, object]:
        return {"id": key, "value": value}

    merge(0, Event(row(1, "a"), 1), Event(row(2, "b"), 2), table=None)
    opened = Table(uri, store).open()
    merge(1, Event(row(1, "aa"), 3), deleted(row(2, "b"), 4), table=opened)
    with pytest.raises(CommitConflict):
        merge(2, Event(row(3, "lost"), 5), table=opened)
    merged = merge(2, Event(row(3, "c"), 5), table=Table(uri, store).open())
    assert merged is not None and merged.tip is not None
    assert merge(3, Event(row(3, "cc"), 6), tip=merged.tip) is not None
    assert merge(4, Event(row(3, "lost"), 7), tip=merged.tip) is None
    table = Table(uri, store).open()
    assert table is not None
    assert len(table.addresses()) == 2
    rows = table.dataset().to_table(columns=["id", "value", "_deleted"]).sort_by("id").to_pylist()
    assert [tuple(r.values()) for r in rows] == [(1, "aa", False), (2, None, True), (3, "cc", False)]


def test_a_store_without_conditional_puts_is_left_to_spark() -> None:
    assert cannot_put_once("/lake/t", Store()) is None
    assert cannot_put_once("s3a://bucket/t", Store()) is None
    assert "hdfs" in str(cannot_put_once("hdfs://nn/lake/t", Store()))
    locked = Store({"AWS_S3_LOCKING_PROVIDER": "dynamodb"})
    assert cannot_put_once("s3://bucket/t", locked) == "a locking provider for S3"
    assert "unsafe_rename" in str(cannot_put_once("s3://bucket/t", Store({"AWS_S3_ALLOW_UNSAFE_RENAME": "True"})))
    assert "conditional_put" in str(cannot_put_once("s3://bucket/t", Store({"conditional_put": "disabled"})))
    assert cannot_put_once("s3://bucket/t", Store({"aws_s3_allow_unsafe_rename": "false"})) is None


def test_writers_of_one_file_that_is_replaced_leave_a_whole_one_each_time(tmp_path: Path) -> None:
    """Two streams of a pipeline begin at once, and each says the state's format."""
    failures: list[BaseException] = []

    def write(body: bytes) -> None:
        try:
            for _ in range(200):
                Store().put_whole(str(tmp_path), "format.json", body)
                assert len(set(Store().get(str(tmp_path), "format.json") or b"")) == 1
        except BaseException as e:
            failures.append(e)

    writers = [threading.Thread(target=write, args=(letter * 50_000,)) for letter in (b"a", b"b", b"c")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert [path.name for path in tmp_path.iterdir()] == ["format.json"]


def test_what_a_killed_writer_left_goes_with_the_file_that_it_was_to_be() -> None:
    half = f".format.json.{'0' * 32}.tmp"
    assert is_one_of(half, {"format.json"}) and is_one_of(".format.json.tmp", {"format.json"})
    assert not is_one_of(half, {"topics.json"})
