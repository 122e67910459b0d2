"""Every file is found once, wherever and whenever it appears, at a cost that files of before have no part in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.errors import SourceDown, SourceMissing
from distributary.sources.known_files import RECENT, FileRef, KnownFiles
from distributary.sources.listing import PAGE_FILES, Lister, Page, Reach, Round, is_data, place
from distributary.sources.listing_local import LocalTree
from distributary.sources.listing_objects import ObjectTree
from tests.services.stores import Bucket

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
TODAY = "orders/2026/11/28/11/50"
LONG_AGO = "orders/2026/01/02/03/04"


@dataclass
class Keys:
    """A tree in memory: path -> size. Counts pages, and can be away."""

    sizes: dict[str, int] = field(default_factory=dict)
    root: str = "mem://b"
    parallel: int = 1
    pages: int = 0
    away: bool = False
    page_files: int = PAGE_FILES

    def put(self, *paths: str, size: int = 1) -> None:
        self.sizes.update(dict.fromkeys(paths, size))

    def top(self) -> tuple[list[str], list[FileRef]]:
        self._ask()
        return sorted({p.split("/")[0] for p in self.sizes if "/" in p}), [
            self._ref(p) for p in self.sizes if "/" not in p
        ]

    def walk(self, folder: str, after: str) -> Iterator[Page]:
        below = sorted(p for p in self.sizes if p > after and (not folder or p.startswith(folder + "/")))
        for n in range(0, len(below), self.page_files):
            self._ask()
            page = below[n : n + self.page_files]
            yield Page([self._ref(p) for p in page if is_data(p.rsplit("/", 1)[-1], self.sizes[p])], page[-1])

    def _ask(self) -> None:
        self.pages += 1
        if self.away:
            raise SourceDown(source=self.root, detail="away")

    def _ref(self, path: str) -> FileRef:
        return FileRef(f"{self.root}/{path}", self.sizes[path], 0, path.rpartition("/")[0])


class Watcher:
    """A lister whose files are taken at once, and a clock that stands still."""

    def __init__(self, tree: Any, **settings: Any) -> None:
        self.tree = tree
        self.now = NOW.timestamp()
        self.known = KnownFiles()
        self.lister = Lister(tree, self.known, clock=lambda: self.now, **{"strays": True, **settings})
        self.last = Round()

    def look(self, full: bool = False) -> list[str]:
        """The new files, relative to the root."""
        self.last = self.lister.new_files(full)
        files = self.last.files
        self.known.add(files, [self.known.attempts(ref) + 1 for ref in files])
        return [ref.path[len(self.tree.root) + 1 :] for ref in files]


# -- what every tree does ----------------------------------------------------------------------------------


class Place(Protocol):
    """Where a test puts files, and the tree that must find them."""

    def put(self, key: str, body: bytes = b"x") -> None: ...

    def delete(self, key: str) -> None: ...

    def tree(self, path: str = "shop") -> Any: ...


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, body: bytes = b"x") -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if not key.endswith("/"):
            path.write_bytes(body)

    def delete(self, key: str) -> None:
        (self.root / key).unlink()

    def tree(self, path: str = "shop") -> LocalTree:
        return LocalTree(self.root / path)


class Objects:
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.put, self.delete = bucket.put, bucket.delete

    def tree(self, path: str = "shop") -> ObjectTree:
        return ObjectTree(f"{self.bucket.url}/{path}", self.bucket.options)


@pytest.fixture(
    params=[
        "local",
        pytest.param("google_storage", marks=pytest.mark.services),
        pytest.param("s3", marks=pytest.mark.services),
    ]
)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Folder(tmp_path)
    return Objects(request.getfixturevalue(request.param).bucket())


def test_every_tree_finds_new_tables_new_minutes_and_late_files(where: Place) -> None:
    where.put(f"shop/{TODAY}/a.avro")
    where.put(f"shop/{LONG_AGO}/b.avro")
    watcher = Watcher(where.tree())
    assert watcher.look() == [f"{LONG_AGO}/b.avro", f"{TODAY}/a.avro"]
    assert watcher.look() == []
    where.put("shop/orders/2026/11/28/11/51/c.avro")
    where.put(f"shop/{LONG_AGO}/late.avro")
    where.put("shop/users/2026/11/28/11/51/d.avro")
    found = [f"{LONG_AGO}/late.avro", "orders/2026/11/28/11/51/c.avro", "users/2026/11/28/11/51/d.avro"]
    assert watcher.look() == found
    assert watcher.look() == watcher.look(full=True) == []


def test_every_tree_leaves_out_what_is_no_data(where: Place) -> None:
    for name in ("a.schema", ".a.avro.crc", "_SUCCESS", "a.avro.tmp", "", "empty.avro"):
        where.put(f"shop/{TODAY}/{name}", b"" if name in ("", "empty.avro") else b"x")
    where.put("shop/.hidden/2026/11/28/11/50/a.avro")
    where.put(f"shop/{TODAY}/a.avro")
    watcher = Watcher(where.tree())
    assert watcher.look() == [f"{TODAY}/a.avro"]
    where.put(f"shop/{TODAY}/empty.avro", b"now it has an event")
    assert watcher.look() == [f"{TODAY}/empty.avro"]


def test_every_tree_takes_any_name_as_it_is(where: Place) -> None:
    """Case F4: apache/spark#41022, #29659: names that globs and URIs read as something else."""
    names = ["t able", "t[1]", "t{a}", "a:b", "per%20cent", "é", "a+b", "q?x=1&y=#z"]
    for name in names:
        where.put(f"shop/{name}/2026/11/28/11/50/{name}.avro")
    assert sorted(Watcher(where.tree()).look()) == sorted(f"{n}/2026/11/28/11/50/{n}.avro" for n in names)


@pytest.mark.parametrize("path", ["shop", "shop/"])
def test_a_prefix_means_its_folder_only_with_or_without_a_slash(where: Place, path: str) -> None:
    for folder in ("shop", "shop2"):
        where.put(f"{folder}/orders/2026/11/28/11/50/a.avro")
    assert Watcher(where.tree(path)).look() == ["orders/2026/11/28/11/50/a.avro"]


def test_other_trees_work_too(where: Place) -> None:
    """Files at the root, straight in an object's folder, deeper than one folder, and the root as the one object."""
    keys = ["a.avro", "flat/b.avro", "deep/er/2026/11/28/11/50/c.avro", "2026/11/28/11/50/d.avro"]
    for key in keys:
        where.put(f"shop/{key}")
    watcher = Watcher(where.tree())
    assert sorted(watcher.look()) == sorted(keys)
    more = [f"{key}.2.avro" for key in keys]
    for key in more:
        where.put(f"shop/{key}")
    assert sorted(watcher.look()) == sorted(more)


STRAYS = [
    *("README", "list.csv", "notes.json", "flat/b.avro", "latest/a.avro", "orders/2026/11/28/11/b.avro"),
    *(f"{TODAY}/list.csv", f"{TODAY}/a.avro.sha256", f"{TODAY}/more/a.avro", "orders/2026/13/28/11/50/a.avro"),
    *(f"_tmp/{TODAY}/a.avro", f"orders/_old/{TODAY}/a.avro"),
]


def test_only_files_at_places_of_datastream_are_taken_and_each_stray_is_told_of_once(where: Place) -> None:
    """An upload is staged and then moved; people put lists and copies beside the data."""
    own = [f"{TODAY}/a.avro", "deep/er/2026/11/28/11/50/c.jsonl.gz", "2026/11/28/11/50/d.JSON", f"{TODAY}/p.parquet"]
    for key in (*own, *STRAYS, f"{TODAY}/upload.avro.filepart", f"orders/.staging/{TODAY}/a.avro"):
        where.put(f"shop/{key}")
    watcher = Watcher(where.tree(), strays=False)
    assert sorted(watcher.look()) == sorted(own)
    root = watcher.tree.root
    assert watcher.last.strays == sorted(f"{root}/{key}" for key in STRAYS)
    where.put(f"shop/_tmp/{LONG_AGO}/x.avro")
    where.put(f"shop/{LONG_AGO}/x.avro")
    where.delete(f"shop/_tmp/{LONG_AGO}/x.avro")
    assert watcher.look(full=True) == [f"{LONG_AGO}/x.avro"]
    assert watcher.look() == watcher.last.strays == []


def test_a_folder_of_strays_alone_is_not_listed_whole_in_every_round() -> None:
    tree = Keys(page_files=10)
    tree.put(*(f"latest/{number}.avro" for number in range(1_000)))
    watcher = Watcher(tree, strays=False)
    assert not watcher.look() and len(watcher.last.strays) == 1_000
    assert not watcher.look() and watcher.last.pages < 30


def test_a_source_that_is_one_minutes_folder_has_its_files_at_the_root(tmp_path: Path) -> None:
    folder = tmp_path / TODAY
    folder.mkdir(parents=True)
    (folder / "a.avro").write_bytes(b"x")
    (folder / "README").write_bytes(b"x")
    watcher = Watcher(LocalTree(folder), strays=False)
    assert watcher.look() == ["a.avro"] and watcher.last.strays == [f"{folder}/README"]


def test_a_file_that_vanishes_is_no_fault(where: Place) -> None:
    where.put(f"shop/{TODAY}/a.avro")
    watcher = Watcher(where.tree())
    assert watcher.look() == [f"{TODAY}/a.avro"]
    where.delete(f"shop/{TODAY}/a.avro")
    where.put(f"shop/{TODAY}/b.avro")
    assert watcher.look() == [f"{TODAY}/b.avro"]


def test_a_file_that_was_rewritten_is_found_again(where: Place) -> None:
    """Case F3: an upload that went on under the same name."""
    where.put(f"shop/{LONG_AGO}/a.avro", b"half")
    watcher = Watcher(where.tree())
    assert watcher.look() == [f"{LONG_AGO}/a.avro"]
    where.put(f"shop/{LONG_AGO}/a.avro", b"half and whole")
    assert watcher.look() == [f"{LONG_AGO}/a.avro"]
    assert watcher.known.attempts(watcher.last.files[0]) == 2
    assert watcher.look() == []


@pytest.mark.services
@pytest.mark.parametrize("store", ["google_storage", "s3"])
def test_an_object_that_was_written_again_as_it_was_is_the_same_file(
    store: str, request: pytest.FixtureRequest
) -> None:
    """Datastream's file names are idempotent: it may write a file twice."""
    where = Objects(request.getfixturevalue(store).bucket())
    where.put(f"shop/{TODAY}/a.avro", b"same")
    watcher = Watcher(where.tree())
    assert len(watcher.look()) == 1
    ref = watcher.last.files[0]
    assert watcher.known.unseen([FileRef(ref.path, ref.size, ref.mtime_ms + 5000, ref.folder, ref.etag)]) == []
    where.put(f"shop/{TODAY}/a.avro", b"same")
    assert watcher.look() == []


@pytest.mark.services
@pytest.mark.parametrize("store", ["google_storage", "s3"])
def test_a_key_without_a_meaning_costs_its_own_folder_only(store: str, request: pytest.FixtureRequest) -> None:
    where = Objects(request.getfixturevalue(store).bucket())
    for key in (f"shop/{TODAY}/a.avro", "shop/orders/bad//b.avro", "shop/orders/z.avro", "shop/users/c.avro"):
        where.put(key)
    watcher = Watcher(where.tree())
    assert sorted(watcher.look()) == [f"{TODAY}/a.avro", "orders/z.avro", "users/c.avro"]
    assert {folder for folder, _ in watcher.last.faults} == {"orders/bad"}
    where.put(f"shop/{TODAY}/d.avro")
    assert watcher.look() == [f"{TODAY}/d.avro"]


@pytest.mark.services
@pytest.mark.parametrize("store", ["google_storage", "s3"])
def test_a_listing_goes_over_many_pages(store: str, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue(store).bucket()
    for n in range(PAGE_FILES + 5):
        bucket.put(f"shop/{TODAY}/{n:04d}.avro")
    watcher = Watcher(ObjectTree(f"{bucket.url}/shop", bucket.options))
    assert len(watcher.look()) == PAGE_FILES + 5
    assert watcher.look() == []


def test_a_store_that_is_away_is_an_outage() -> None:
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    tree = ObjectTree("s3a://bucket/shop", {**options, "aws_allow_http": "true", "aws_s3_allow_unsafe_rename": "true"})
    with pytest.raises(SourceDown) as caught:
        Watcher(tree).look()
    assert caught.value.retryable


# -- folders on this machine -------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_said_and_an_empty_one_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(SourceMissing):
        Watcher(LocalTree(tmp_path / "shop")).look()
    (tmp_path / "shop" / "orders").mkdir(parents=True)
    watcher = Watcher(LocalTree(tmp_path / "shop"))
    assert watcher.look() == []
    Folder(tmp_path).put(f"shop/{TODAY}/a.avro")
    assert watcher.look() == [f"{TODAY}/a.avro"]


def test_a_name_that_is_no_text_and_a_link_to_a_folder_are_said_and_left_out(tmp_path: Path) -> None:
    where = Folder(tmp_path)
    where.put(f"shop/{TODAY}/a.avro")
    (Path(os.fsdecode(os.fsencode(tmp_path / f"shop/{TODAY}") + b"/\xff.avro"))).write_bytes(b"x")
    (tmp_path / "shop/orders/again").symlink_to(tmp_path / "shop", target_is_directory=True)
    watcher = Watcher(where.tree())
    assert watcher.look() == [f"{TODAY}/a.avro"]
    assert {path for path, _ in watcher.last.faults} == {TODAY, "orders/again"}


def test_a_folder_of_folders_without_files_is_walked_in_pages(tmp_path: Path) -> None:
    for n in range(2500):
        (tmp_path / "orders" / f"{n:04d}").mkdir(parents=True)
    (tmp_path / "orders" / "2499" / "a.avro").write_bytes(b"x")
    tree = LocalTree(tmp_path)
    pages = list(tree.walk("orders", ""))
    assert [len(page.files) for page in pages] == [0, 0, 1]
    assert [len(page.files) for page in tree.walk("orders", pages[0].upto)] == [0, 1]


@given(st.sets(st.lists(st.sampled_from(["a", "a.b", "b", "a-", "é", "2026"]), min_size=1, max_size=3).map("/".join)))
@settings(max_examples=30)
def test_a_local_walk_has_the_order_of_an_object_store(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str]
) -> None:
    root = tmp_path_factory.mktemp("order")
    names = sorted(f"{path}/f" for path in paths)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    tree = LocalTree(root)

    def listed(after: str) -> list[str]:
        return [f.path[len(str(root)) + 1 :] for page in tree.walk("", after) for f in page.files]

    assert listed("") == names
    for after in [*names, "a", "a/", "b/x"]:
        assert listed(after) == [name for name in names if name > after]


# -- where a round looks -----------------------------------------------------------------------------------


def history(days: int, per_day: int = 24, table: str = "orders") -> list[str]:
    """Files of the days before now, the newest in the hour before."""
    at = (NOW - timedelta(minutes=10, hours=24 * n / per_day) for n in range(days * per_day))
    return [f"{table}/{when:%Y/%m/%d/%H/%M}/f{n}.avro" for n, when in enumerate(at)]


def test_the_files_of_a_backlog_come_oldest_folder_first_over_all_tables() -> None:
    tree = Keys()
    tree.put(*history(3), *history(3, table="a"), "b/x.avro")
    found = Watcher(tree).look()
    assert found[0] == "b/x.avro"
    times = [place(path.rpartition("/")[0])[1] for path in found]
    assert times == sorted(times)
    assert {path.split("/")[0] for path in found[1:3]} == {"a", "orders"}


def test_a_late_file_in_an_old_folder_is_found_within_the_stated_rounds() -> None:
    tree = Keys(page_files=10)
    tree.put(*history(100))
    reach = Reach(pages=4)
    watcher = Watcher(tree, reach=reach)
    watcher.look()
    pages = -(-len(tree.sizes) // tree.page_files)
    for n, folder in enumerate([LONG_AGO, "orders/2026/11/20/03/04", "orders/2026/08/01/00/00"]):
        tree.put(f"{folder}/late{n}.avro")
        rounds = 0
        while watcher.look() == []:
            rounds += 1
            assert rounds <= (pages + 1) / reach.pages + 1
        assert [ref.folder for ref in watcher.last.files] == [folder]


def test_a_file_of_the_last_three_days_is_found_sooner_than_one_of_long_ago() -> None:
    tree = Keys(page_files=10)
    tree.put(*history(1000))
    watcher = Watcher(tree, reach=Reach(pages=8))
    watcher.look()
    tree.put(f"orders/{NOW - timedelta(days=2):%Y/%m/%d/%H/%M}/late.avro")
    assert len(watcher.look()) == 1


def test_a_backfills_folder_stays_in_sight_once_files_come_there() -> None:
    """Its minute is the start of the backfill's task, for all the hours that it takes."""
    tree = Keys(page_files=10)
    tree.put(*history(400))
    watcher = Watcher(tree, reach=Reach(pages=2))
    watcher.look()
    tree.put(f"{LONG_AGO}/0.avro")
    while watcher.look() == []:
        pass
    for n in range(1, 5):
        watcher.now += 300
        tree.put(f"{LONG_AGO}/{n}.avro")
        assert watcher.look() == [f"{LONG_AGO}/{n}.avro"]
    watcher.now += 700
    tree.put(f"{LONG_AGO}/5.avro")
    assert watcher.look() == []


def test_a_folder_of_the_future_does_not_hide_the_present() -> None:
    tree = Keys(page_files=10)
    tree.put(*history(400), "orders/2099/01/01/00/00/wrong.avro")
    watcher = Watcher(tree, reach=Reach(pages=1))
    watcher.look()
    tree.put("orders/2026/11/28/11/59/a.avro")
    assert watcher.look() == ["orders/2026/11/28/11/59/a.avro"]


@pytest.mark.parametrize("odd", ["0001/01/01/00/00", "0001/01/03/00/00", "0999/12/31/23/59", "9999/12/31/23/59"])
def test_a_folder_of_any_year_is_listed_and_hides_no_other(odd: str) -> None:
    tree = Keys()
    tree.put(f"orders/{odd}/a.avro", f"{TODAY}/b.avro", f"people/{odd}/a.avro", "strange/0000/00/00/00/00/a.avro")
    watcher = Watcher(tree)
    assert len(watcher.look()) == 4
    tree.put(f"orders/{odd}/c.avro", f"{TODAY}/d.avro", f"people/{odd}/c.avro", f"people/{odd}/d.avro")
    found = [path for _ in range(4) for path in watcher.look()]
    assert len(found) == len(set(found)) == 4


def test_a_start_date_before_the_year_1000_leaves_no_file_alone() -> None:
    tree = Keys()
    tree.put(f"{TODAY}/a.avro", "orders/0500/01/01/00/00/a.avro", "orders/0900/01/01/00/00/a.avro")
    start = datetime(900, 1, 1, tzinfo=timezone(timedelta(hours=-1)))
    assert Watcher(tree, start=start).look() == [f"{TODAY}/a.avro"]
    assert len(Watcher(tree, start=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))).look()) == 3


def test_after_a_stop_of_days_the_first_round_finds_all_that_came_since() -> None:
    tree = Keys(page_files=10)
    old, new = history(400)[100:], history(400)[:100]
    tree.put(*old)
    before = Watcher(tree)
    before.look()
    tree.put(*new)
    watcher = Watcher(tree, reach=Reach(pages=1))
    watcher.known.add(before.last.files, [1] * len(before.last.files))
    watcher.lister.seed([before.last.files[-1].folder])
    assert sorted(watcher.look()) == sorted(new)


def test_a_round_costs_the_same_however_many_files_are_known() -> None:
    def pages(days: int) -> tuple[int, int]:
        tree = Keys(page_files=10)
        tree.put(*history(days), *history(days, table="users"))
        watcher = Watcher(tree)
        watcher.look()
        watcher.look()
        before = tree.pages
        watcher.look()
        return tree.pages - before, watcher.last.pages

    assert pages(100) == pages(400)
    asked, counted = pages(100)
    assert asked <= counted <= 40


@pytest.mark.parametrize(
    "start",
    [
        datetime(2026, 6, 1),
        datetime(2026, 6, 1, tzinfo=UTC),
        datetime(2026, 6, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_start_date_compares_the_time_of_the_folder_not_of_the_file(start: datetime) -> None:
    tree = Keys()
    tree.put("orders/2026/05/31/23/59/a.avro", "orders/2026/06/01/00/00/b.avro", "orders/2026/06/c.avro", "flat/d.avro")
    watcher = Watcher(tree, start=start)
    assert sorted(watcher.look()) == ["flat/d.avro", "orders/2026/06/01/00/00/b.avro", "orders/2026/06/c.avro"]
    tree.put("orders/2026/05/01/00/00/e.avro", "orders/2026/07/01/00/00/f.avro")
    assert watcher.look() == ["orders/2026/07/01/00/00/f.avro"]
    assert watcher.look(full=True) == []


def test_what_was_found_comes_again_until_it_is_known() -> None:
    """A ledger that could not be written must not cost a lap of the walks."""
    tree = Keys(page_files=10)
    tree.put(*history(400))
    known = KnownFiles()
    lister = Lister(tree, known, reach=Reach(pages=2), clock=NOW.timestamp)
    first = lister.new_files().files
    assert len(lister.new_files().files) == len(first) == 9600
    known.add(first, [1] * len(first))
    tree.put(f"{LONG_AGO}/late.avro")
    while not (found := lister.new_files().files):
        pass
    assert lister.new_files().files == found


def test_what_was_found_before_an_outage_comes_with_the_next_round() -> None:
    tree = Keys(page_files=10)
    tree.put(*history(400))
    watcher = Watcher(tree, reach=Reach(pages=3))
    watcher.look()
    tree.put("orders/2025/10/28/12/00/late.avro")
    for _ in range(1000):
        walk, pages = tree.walk, tree.pages
        tree.walk = lambda f, a, walk=walk: _failing_after(walk(f, a), 2)  # type: ignore[method-assign, misc]
        with pytest.raises(SourceDown):
            watcher.look()
        tree.walk = walk  # type: ignore[method-assign]
        assert tree.pages > pages
        if found := watcher.look():
            break
    assert found == ["orders/2025/10/28/12/00/late.avro"]


def _failing_after(pages: Iterator[Page], count: int) -> Iterator[Page]:
    for n, page in enumerate(pages):
        if n == count:
            raise SourceDown(source="mem", detail="away")
        yield page


def test_a_new_table_whose_first_listing_failed_half_way_is_new_again() -> None:
    tree = Keys(page_files=10)
    watcher = Watcher(tree, reach=Reach(pages=1))
    watcher.look()
    tree.put(*history(400))
    walk = tree.walk
    tree.walk = lambda folder, after: _failing_after(walk(folder, after), 2)  # type: ignore[method-assign]
    with pytest.raises(SourceDown):
        watcher.look()
    tree.walk = walk  # type: ignore[method-assign]
    assert len(watcher.look()) == 9600


@given(st.data())
@settings(max_examples=60)
def test_no_file_is_missed_and_none_comes_twice(data: st.DataObject) -> None:
    folders = st.sampled_from(
        [TODAY, LONG_AGO, "orders/2026/11/28/11/59", "users/2026/11/25/11/00", "flat", "a/b/2026/01"]
    )
    tree = Keys(page_files=2, parallel=data.draw(st.sampled_from([1, 4])))
    watcher = Watcher(tree, reach=Reach(pages=data.draw(st.integers(1, 3)), warm_folders=2))
    taken: list[str] = []
    for n in range(data.draw(st.integers(1, 8))):
        for m, folder in enumerate(data.draw(st.lists(folders, max_size=4))):
            tree.put(f"{folder}/{n}-{m}.avro")
        watcher.now += 60
        taken += watcher.look(full=data.draw(st.booleans()) and n > 5)
    for _ in range(len(tree.sizes) + 10):
        taken += watcher.look()
    assert sorted(taken) == sorted(tree.sizes)


# -- parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("orders/2026/01/02/03/04", ("orders", "2026/01/02/03/04")),
        ("2026/01/02/03/04", ("", "2026/01/02/03/04")),
        ("a/b/2026/01", ("a/b", "2026/01")),
        ("orders/2026/01/02/03/04/more", ("orders", "2026/01/02/03/04")),
        ("orders/2026/13/02", ("", "")),
        ("orders/2026", ("", "")),
        ("orders", ("", "")),
        ("", ("", "")),
    ],
)
def test_a_folders_table_and_time(folder: str, found: tuple[str, str]) -> None:
    assert place(folder) == found


def refs(count: int, size: int = 1) -> list[FileRef]:
    return [FileRef(f"gs://b/orders/{n}", size, n) for n in range(count)]


@pytest.mark.parametrize("count", [10, RECENT - 1, RECENT, RECENT + 1, 3 * RECENT])
def test_known_files_are_told_from_new_and_changed_ones(count: int) -> None:
    known = KnownFiles()
    files = refs(count)
    for n in range(0, count, 1000):
        known.add(files[n : n + 1000], [1] * len(files[n : n + 1000]))
    assert known.unseen(files) == []
    assert known.unseen(refs(count + 2)[-3:]) == refs(count + 2)[-2:]
    changed = refs(count, size=2)
    assert known.unseen(changed) == changed
    assert {known.attempts(ref) for ref in (changed[0], changed[-1])} == {1}
    assert known.attempts(FileRef("gs://b/other", 1, 1)) == 0


def test_the_newest_attempt_of_a_path_counts_in_whatever_order_they_are_loaded() -> None:
    old, new = FileRef("a", 1, 1), FileRef("a", 2, 2)
    for order in ([(old, 1), (new, 2)], [(new, 2), (old, 1)]):
        known = KnownFiles()
        for ref, attempt in order:
            known.load([(ref, attempt)])
        assert known.unseen([new]) == []
        assert known.unseen([old]) == [old]
        assert known.attempts(old) == 2


def test_a_known_file_costs_16_bytes() -> None:
    known = KnownFiles()
    known.load((ref, 1) for ref in refs(10_000))
    assert known.nbytes == 160_000


def test_a_round_shows_what_it_did() -> None:
    tree = Keys()
    tree.put(f"{TODAY}/a.avro")
    watcher = Watcher(tree)
    watcher.look()
    assert (watcher.last.lap, watcher.last.faults) == (True, [])
    assert watcher.last.pages > 0
