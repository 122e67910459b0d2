"""What a round of the lister costs as the source grows: 10,000 files known, 100,000, 1,000,000."""

from __future__ import annotations

import bisect
import gc
import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bench.result import Case, Result
from bench.workload import Place, WrongRows, say
from distributary.sources.file_ledger import FileLedger
from distributary.sources.known_files import FileRef, KnownFiles
from distributary.sources.listing import PAGE_FILES, Lister
from distributary.sources.listing_local import LocalTree
from distributary.sources.listing_objects import ObjectTree
from distributary.tables.store import Store

if TYPE_CHECKING:
    from obstore import ObjectMeta

NOTE = (
    "CPU milliseconds of one round with so many files known, median of 40 rounds, the sizes in turns; every fourth has "
    "a new file in each of the 2 tables (in place of its oldest, so that all sizes list equally full pages). The tree "
    "is in memory, in pages of 1,000 as an object store's, and its own time is taken off; `pages`: requests that a "
    "round costs there. Goal: at most 20 % more than with 10,000 files. `ledger`: seconds to enter all files in "
    "file batches of 1,000, and to read them at the start of a run. `local`: real folders on this machine, "
    "one for each minute."
)
ROOT = "gs://bench/shop"
ROUNDS = 40
TABLES = 2
"""So few that 10,000 files fill the pages of both walks: the figures then differ by what is known only."""
GROWTH = 1.2
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


class Stored(ObjectTree):
    """The tree of an object store whose answers come out of a sorted list. `ms`: what it took to make them."""

    parallel = 1

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(ROOT, {"allow_http": "true", "google_skip_signature": "true"})
        self.keys = sorted(f"shop/{key}" for key in keys)
        self.pages = 0
        self.ms = 0.0

    def put(self, key: str) -> None:
        """A new file; its table's oldest one goes, so that the pages stay full and a round lists the same number."""
        table = key.split("/", 1)[0]
        del self.keys[bisect.bisect_left(self.keys, f"shop/{table}/")]
        bisect.insort(self.keys, f"shop/{key}")

    def top(self) -> tuple[list[str], list[FileRef]]:
        self.pages += 1
        return [f"table_{n:02d}" for n in range(TABLES)], []

    def _list(self, prefix: str, after: str | None) -> Iterator[Sequence[ObjectMeta]]:
        at = bisect.bisect_right(self.keys, max(after or "", f"{prefix}/"))
        end = bisect.bisect_left(self.keys, f"{prefix}0")
        while at < end:
            begun = time.process_time()
            page = [_meta(key) for key in self.keys[at : min(at + PAGE_FILES, end)]]
            self.pages += 1
            self.ms += 1000 * (time.process_time() - begun)
            yield page
            at += PAGE_FILES


def _meta(key: str) -> ObjectMeta:
    # A text of its own, as an answer's is: not one that lies somewhere in a list of a million.
    return {"path": key[:1] + key[1:], "size": 1, "last_modified": NOW, "e_tag": "a" * 32, "version": None}


def _ref(key: str) -> FileRef:
    return FileRef(f"{ROOT}/{key}", 1, 1, key.rpartition("/")[0], "a" * 32)


def names(count: int) -> list[str]:
    """Files of the tables, one a minute in each, backwards from now."""
    minutes = (f"{NOW - timedelta(minutes=n):%Y/%m/%d/%H/%M}" for n in itertools.count(1))
    made = (f"table_{n:02d}/{minute}/{minute[-2:]}_cdc_1_6_0.avro" for minute in minutes for n in range(TABLES))
    return list(itertools.islice(made, count))


class Side:
    """One size: its tree, what is known of it, and what each round took, in CPU milliseconds and pages."""

    def __init__(self, name: str, tree: Stored | LocalTree, known: KnownFiles, put: Callable[[str], None]) -> None:
        self.name = name
        self.known = known
        self.spent: list[float] = []
        self.pages: list[int] = []
        self.details: dict[str, Any] = {}
        self._tree = tree
        self._put = put
        self._lister = Lister(tree, known, clock=NOW.timestamp)
        self._lister.seed(f"table_{n:02d}/{NOW - timedelta(minutes=1):%Y/%m/%d/%H/%M}" for n in range(TABLES))

    def round(self, number: int) -> None:
        new = 0 if number % 4 else TABLES
        for table in range(new):
            self._put(f"table_{table:02d}/{NOW:%Y/%m/%d/%H/%M}/new{number:02d}.avro")
        begun, before = time.process_time(), getattr(self._tree, "ms", 0.0)
        found = self._lister.new_files()
        own = getattr(self._tree, "ms", 0.0) - before
        self.spent.append(1000 * (time.process_time() - begun) - own)
        self.pages.append(found.pages)
        if len(found.files) != new:
            raise WrongRows(f"{self.name}: round {number} found {len(found.files)} files, not {new}")
        self.known.add(found.files, [1] * new)

    def case(self) -> Case:
        say(f"{self.name}: {statistics.median(self.spent):.1f} ms a round, {statistics.median(self.pages):.0f} pages")
        details = {"pages": int(statistics.median(self.pages)), "slowest ms": max(self.spent), **self.details}
        return Case(self.name, "ms", statistics.median(self.spent), details=details)


def run(place: Place) -> Result:
    counts = place.size((10_000, 100_000, 1_000_000), (1_000, 3_000))
    cases = _in_turns([_stored(count) for count in counts])
    local = _in_turns([_local(count, place) for count in place.size((10_000, 40_000), (1_000, 2_000))])
    cases = [replace(c, details={**c.details, "ledger": _ledger(n, place)}) for c, n in zip(cases, counts, strict=True)]
    limited = [
        replace(case, goal=first.ours * GROWTH, goal_of="ours")
        for first, *others in (cases, local)
        for case in reversed(others)
    ]
    return Result("listing_growth", NOTE, (*limited, cases[0], local[0]))


def _in_turns(sides: Sequence[Side]) -> list[Case]:
    # A collection would go over the trees in memory, which a store keeps elsewhere.
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS):
        for side in sides:
            side.round(number)
    gc.unfreeze()
    return [side.case() for side in sides]


def _stored(count: int) -> Side:
    tree, known = Stored(names(count)), KnownFiles()
    known.load((_ref(key.removeprefix("shop/")), 1) for key in tree.keys)
    side = Side(f"{count:,} files known", tree, known, tree.put)
    side.details = {"known_mib": known.nbytes / 2**20}
    return side


def _ledger(count: int, place: Place) -> dict[str, float]:
    refs = [_ref(key) for key in names(count)]
    state = place.root / "state"
    begun = time.perf_counter()
    FileLedger(str(state), "bench", Store()).add(refs, PAGE_FILES, 1 << 60)
    written = time.perf_counter()
    known = FileLedger(str(state), "bench", Store()).known_files
    read = time.perf_counter()
    if len(known) != len(refs) or known.unseen(refs):
        raise WrongRows(f"the ledger has {len(known)} of {len(refs)} files")
    shutil.rmtree(state)
    return {"enter_sec": written - begun, "open_sec": read - written}


def _local(count: int, place: Place) -> Side:
    root = place.root / f"shop{count}"

    def put(key: str) -> None:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"x")

    for key in names(count):
        put(key)
    known = KnownFiles()
    found = Lister(LocalTree(root), known, clock=NOW.timestamp).new_files(full=True).files
    known.load((ref, 1) for ref in found)
    return Side(f"local, {count:,} files known", LocalTree(root), known, put)
