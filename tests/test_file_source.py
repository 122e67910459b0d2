"""From folders to batches: a file discovery fills the file ledger, and Spark's stream over it has a file batch a
batch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distributary.errors import Outage, SourceDown, SourceMissing
from distributary.sources import file_ledger
from distributary.sources.discovery import FileDiscovery, open_tree
from distributary.sources.file_ledger import FileLedger, read_version, tidy, waiting
from distributary.sources.known_files import FileRef
from distributary.sources.listing import Round
from distributary.sources.listing_local import LocalTree
from distributary.sources.listing_objects import ObjectTree
from distributary.state.checkpoint import read_offsets
from distributary.tables.store import Store
from tests.services import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = Store()


class Shop:
    """A source's folder with its file ledger."""

    def __init__(self, root: Path) -> None:
        self.root = root / "shop"
        self.root.mkdir()
        self.state = str(root / "state")
        self.rounds: list[Round] = []

    def put(self, *numbers: int) -> None:
        for n in numbers:
            path = self.root / f"orders/2026/01/01/00/{n:02d}/f.avro"
            path.parent.mkdir(parents=True)
            path.write_bytes(b"0123456789")

    def discovery(self) -> FileDiscovery:
        ledger = FileLedger(self.state, "shop", STORE)
        ledger.create()
        return FileDiscovery(open_tree(str(self.root), {}), ledger, 2, 1000, report=self.rounds.append)

    def waiting(self) -> int:
        return waiting(self.state, STORE, -1).files


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


# -- file discovery ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"), [("/a/b/", LocalTree), ("file:///a/b", LocalTree), ("s3a://b/c/", ObjectTree)]
)
def test_a_path_says_where_its_files_are(path: str, kind: type) -> None:
    tree = open_tree(path, {"aws_region": "us-east-1"})
    assert isinstance(tree, kind)
    assert tree.root in ("/a/b", "s3://b/c")


def test_a_look_enters_what_it_finds(shop: Shop) -> None:
    discovery = shop.discovery()
    shop.put(1, 2, 3)
    assert len(discovery.look(full=True).files) == 3
    assert len(discovery.look().files) == 0
    shop.put(4)
    assert len(discovery.look().files) == 1
    assert shop.waiting() == 4
    assert [len(found.files) for found in shop.rounds] == [3, 0, 1]


def test_a_discovery_that_is_started_anew_takes_only_what_came_since(shop: Shop) -> None:
    shop.put(1, 2, 3)
    shop.discovery().look()
    shop.put(0, 4)
    assert sorted(ref.folder[-2:] for ref in shop.discovery().look().files) == ["00", "04"]
    assert shop.waiting() == 5


def test_a_stream_that_falls_back_gets_fuller_file_batches(shop: Shop) -> None:
    discovery = shop.discovery()
    discovery.ledger.add([FileRef("/0", 1, 1), FileRef("/1", 1, 1)], 1, 1000)
    discovery.reached(0)
    shop.put(1)
    discovery.look()
    assert discovery.ledger.newest_file_batch == 1
    shop.put(2, 3)
    discovery.look()
    assert (discovery.ledger.newest_file_batch, shop.waiting()) == (2, 4)
    discovery.reached(2)
    discovery.look()
    assert (discovery.ledger.newest_file_batch, shop.waiting()) == (3, 5)


def test_a_discovery_looks_again_and_again_in_a_thread_of_its_own(shop: Shop) -> None:
    discovery = shop.discovery()
    discovery.start(0.01, failed=_unexpected)
    for n in range(3):
        shop.put(n)
        wait_until(lambda n=n: shop.waiting() == n + 1, 20, "the file")  # type: ignore[misc]
    discovery.stop()
    shop.put(3)
    rounds = len(shop.rounds)
    assert not any(t.name == "file discovery" for t in threading.enumerate())
    assert (len(shop.rounds), shop.waiting()) == (rounds, 3)


def test_an_outage_is_told_and_passes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = shop.discovery()
    shop.put(1)
    with monkeypatch.context() as patch:
        patch.setattr(discovery.lister.tree, "top", _raising(SourceDown(source="shop", detail="away")))
        discovery.start(0.01, failed=_unexpected)
        wait_until(lambda: isinstance(discovery.outage, Outage), 20, "the outage")
    wait_until(lambda: shop.waiting() == 1, 20, "the file")
    wait_until(lambda: discovery.outage is None, 20, "the end of the outage")
    discovery.stop()


def test_what_is_no_outage_ends_the_discovery_and_is_heard(shop: Shop) -> None:
    discovery = shop.discovery()
    shop.root.rmdir()
    heard: list[BaseException] = []
    discovery.start(0.01, failed=heard.append)
    wait_until(lambda: bool(heard), 20, "the failure")
    assert isinstance(heard[0], SourceMissing)
    discovery.stop()


def _unexpected(error: BaseException) -> None:
    raise error


def _raising(error: Exception) -> Callable[[], Any]:
    def call() -> None:
        raise error

    return call


# -- the stream --------------------------------------------------------------------------------------------


class Stream:
    """Runs a ledger's stream to its end; `batches`: batch id -> the numbers of its files, as they were given."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.state = str(root)
        self.checkpoint = str(root / "checkpoint")
        self.ledger = FileLedger(self.state, "shop", STORE)
        self.ledger.create()
        self.batches: list[tuple[int, list[int]]] = []
        self.dies_in: int | None = None

    def add(self, *numbers: int) -> None:
        self.ledger.add([FileRef(f"/shop/{n}", n, n, "orders") for n in numbers], 2, 1000)

    def run(self, **trigger: Any) -> list[tuple[int, list[int]]]:
        """The batches with files."""
        from pyspark.errors import StreamingQueryException

        from distributary.sources.change_files import file_stream

        self.batches = []
        writer = file_stream(self.spark, self.state).writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", self.checkpoint).trigger(**trigger or {"availableNow": True})
        query = writer.start()
        try:
            if trigger:
                wait_until(lambda: len(self.batches) >= 2, 60, "batches")
                query.stop()
            else:
                query.awaitTermination()
        except StreamingQueryException:
            assert self.dies_in is not None
            self.dies_in = None
        return [(batch, files) for batch, files in self.batches if files]

    def version(self) -> int:
        offsets = [int(p.name) for p in Path(self.checkpoint, "offsets").iterdir() if p.name.isdigit()]
        found = read_offsets(self.checkpoint, STORE, max(offsets))
        assert found is not None
        return read_version(found[0])

    def _take(self, rows: DataFrame, batch: int) -> None:
        found = rows.collect()
        assert len({row.parcel for row in found}) <= 1
        self.batches.append((batch, sorted(row.size for row in found)))
        if batch == self.dies_in:
            raise RuntimeError("dies")


@pytest.mark.spark
def test_a_file_batch_is_a_batch_also_when_it_is_done_again(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    assert stream.run() == []
    stream.add(1, 2, 3, 4, 5)
    first = stream.run()
    assert [files for _, files in first] == [[1, 2], [3, 4], [5]]
    assert waiting(stream.state, STORE, stream.version()).files == 0
    stream.add(6, 7, 8)
    stream.dies_in = first[-1][0] + 1
    died = stream.run()
    assert [files for _, files in died] == [[6, 7]]
    stream.add(9)
    again = stream.run()
    assert again[0] == died[0]
    assert [files for _, files in again] == [[6, 7], [8], [9]]


@pytest.mark.spark
def test_upkeep_is_no_batch_and_breaks_no_stream(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_ledger, "MANY_FILES", 3)
    monkeypatch.setattr(file_ledger, "KEPT_HOURS", 0)
    monkeypatch.setattr(file_ledger, "KEPT_VERSIONS", 4)
    stream = Stream(spark, tmp_path)
    stream.add(*range(1, 60))
    assert len(stream.run()) == 30
    stream.add(60)
    tidy(stream.state, STORE, stream.version())
    assert [files for _, files in stream.run()] == [[60]]
    tidy(stream.state, STORE, stream.version())
    assert stream.run() == []
    stream.add(61, 62)
    assert [files for _, files in stream.run()] == [[61, 62]]
    log = {p.name for p in (tmp_path / "files" / "_delta_log").glob("*.json")}
    assert f"{0:020d}.json" not in log


@pytest.mark.spark
def test_a_running_stream_takes_file_batches_as_they_come(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(1, 2, 3)
    found = stream.run(processingTime="0 seconds")
    assert [files for _, files in found] == [[1, 2], [3]]
    assert json.loads(Path(stream.checkpoint, "metadata").read_text())["id"]
