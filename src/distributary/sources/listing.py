"""Finding a source's files: `[root]/[object]/yyyy/mm/dd/hh/mm/[file]`. What else lies below the root is told of.

A folder's minute is the time at the *source* (Datastream, "Cloud Storage destination"): a file that is written now can
belong to a folder of days ago, so "only newer folders" would lose it. And listing everything, every time, costs more
with each file. So a round looks at

- the newest hour of every object's folders, and objects that had no file before: nearly all files appear there;
- folders outside of it where a file appeared lately (a backfill writes to its start's folder for hours);
- the next pages of the last three days, and of everything: two walks that never end.

The walks are bounded per round, so a round costs the same however many files there are, and every file is found within
(pages of the whole source + object folders) / `Reach.pages` rounds. `full` looks at everything at once. The exception
are files straight at the root, which no such source has: they are listed each time, all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

from distributary.sources.known_files import FileRef, KnownFiles

PAGE_FILES = 1000
"""The most files in a page; what object stores give in one answer."""

_TIME = re.compile(r"(?:(?P<table>.*?)/)??(?P<time>\d{4}/\d\d(?:/\d\d(?:/\d\d(?:/\d\d)?)?)?)(?:/|$)")
_YEAR = re.compile(r"\d{4}")
_FIRST = datetime.min.replace(tzinfo=UTC)
_UNFINISHED = (".schema", ".tmp", ".part", ".filepart", ".inprogress", "._COPYING_", "~")
_MINUTE = re.compile(r"(?:.*/)?(\d{4}/\d\d/\d\d/\d\d/\d\d)")
_ENDING = re.compile(r".+\.(avro|jsonl?|parquet)(\.gz)?", re.IGNORECASE)
MOST_STRAYS = 10_000
"""Stray files that are remembered, so that each is told of once."""


@dataclass(frozen=True)
class Page:
    """Part of a walk. `upto`: everything up to this path, relative to the root, has been listed. `faults`: what could
    not be, and why."""

    files: Sequence[FileRef]
    upto: str
    faults: Sequence[tuple[str, str]] = ()


class FolderTree(Protocol):
    """A source's folders. Paths that are given are relative to `root` and have no slash at the end; "" is the root.

    Files that are no data (`is_data`) are left out. Every call raises SourceDown when the store is away.
    """

    root: str
    parallel: int
    """Walks that may go on at the same time."""

    def top(self) -> tuple[list[str], list[FileRef]]:
        """The folders straight below the root, and the files there. Raises SourceMissing."""
        ...

    def walk(self, folder: str, after: str) -> Iterator[Page]:
        """The files below `folder` whose path is greater than `after`, ascending. None where there is no folder."""
        ...


def is_data(name: str, size: int) -> bool:
    """Whether a file is one to read, by its name and size in bytes.

    Not: schema files, hidden and unfinished ones, folder placeholders and other empty files, which hold no event; one
    that grows is found then.
    """
    return size > 0 and not name.startswith((".", "_")) and not name.endswith(_UNFINISHED)


def is_stray(ref: FileRef, root: str) -> bool:
    """Whether a file is none of Datastream's: those lie straight in the folder of a minute, have an ending of ours, and
    are not below a folder such as `_tmp`, where uploads wait for their rename."""
    minute = _MINUTE.fullmatch(f"{root}/{ref.folder}".rstrip("/"))
    try:
        dated = minute is not None and bool(_parsed(minute[1]))
    except ValueError:
        dated = False
    apart = any(name.startswith(("_", ".")) for name in ref.folder.split("/"))
    return not dated or apart or _ENDING.fullmatch(ref.path.rpartition("/")[2]) is None


def is_hidden(folder: str) -> bool:
    """Whether a folder (its last name) is no place for data: hidden, or what Spark and Delta put beside theirs."""
    return folder.startswith(".") or folder in ("_temporary", "_spark_metadata", "_delta_log")


@lru_cache(maxsize=1 << 14)
def place(folder: str) -> tuple[str, str]:
    """(object folder, `yyyy/mm/dd/hh/mm` as far as it goes) of a relative folder; ("", "") for one without a time."""
    match = _TIME.match(folder)
    try:
        if match and _parsed(match["time"]):
            return match["table"] or "", match["time"]
    except ValueError:
        pass
    return "", ""


@dataclass(frozen=True)
class Reach:
    """How far a round looks. `pages`: of each walk."""

    hot: timedelta = timedelta(hours=1)
    late: timedelta = timedelta(days=3)
    """How late files can come by Datastream's own word (data-integrations/datastream-delta-plugins)."""
    warm: timedelta = timedelta(minutes=10)
    warm_folders: int = 50
    pages: int = 10


@dataclass
class Round:
    """What a round found: `files`, oldest folder first. `pages`: listed. `faults`: what was left out, and why.
    `strays`: files of something else (`is_stray`), each told of once.

    `lap`: the walk over everything came to its end in this round.
    """

    files: list[FileRef] = field(default_factory=list)
    pages: int = 0
    lap: bool = False
    faults: list[tuple[str, str]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)


_Job = Callable[[Round], None]


@dataclass(frozen=True)
class _Range:
    """Paths below `folder` with `low` < path <= `high`."""

    folder: str
    low: str = ""
    high: str | None = None


@dataclass
class _Cursor:
    """Where a walk goes on in the next round."""

    folder: str = ""
    after: str = ""


class Lister:
    """Finds new files below a tree. One caller at a time. What it has found comes again until it is `known`.

    `start`: files in folders of an earlier time are left alone (UTC, where it has no zone of its own); files without a
    time in their path never are. `strays`: also read files that are none of Datastream's by their place.
    `clock`: seconds since 1970.
    """

    def __init__(
        self,
        tree: FolderTree,
        known_files: KnownFiles,
        *,
        start: datetime | None = None,
        strays: bool = False,
        reach: Reach | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tree = tree
        self.known_files = known_files
        self.reach = reach or Reach()
        self.start = "" if start is None else _text(_utc(start))
        self._clock = clock
        self._takes_strays = strays
        self._strays: set[str] = set()
        self._newest: dict[str, str] = {}
        self._tops: set[str] = set()
        self._filled: set[str] = set()
        self._warm: dict[str, float] = {}
        self._late, self._warming, self._all = _Cursor(), _Cursor(), _Cursor()
        self._waiting: list[FileRef] = []

    def seed(self, folders: Iterable[str]) -> None:
        """Folders, relative to the root, that files were taken from in earlier runs."""
        for folder in folders:
            self._learn(folder)
        self._tops |= self._filled

    def new_files(self, full: bool = False) -> Round:
        """One round. Raises SourceDown, SourceMissing."""
        names, loose = self.tree.top()
        tops = sorted({_top(name) for name in names})
        new = tops if full else [top for top in tops if top not in self._tops]
        jobs = [self._whole(_Range(top)) for top in new]
        if not full:
            jobs += self._partial(tops)
        rounds = [Round() for _ in jobs]
        try:
            self._run(jobs, rounds)
        finally:
            # The cursors have moved on: what was found before a fault must not wait for them to come round again.
            refs = [*self._waiting, *loose, *(f for job_round in rounds for f in job_round.files)]
            to_take, strays = self._apart(refs)
            self._waiting = self._fresh(to_take, new)
        # Only now: one whose first listing failed half-way is listed whole again.
        self._tops |= self._filled
        if full:
            self._all = _Cursor()
        return Round(
            files=list(self._waiting),
            pages=1 + sum(job_round.pages for job_round in rounds),
            lap=full or any(job_round.lap for job_round in rounds),
            faults=[fault for job_round in rounds for fault in job_round.faults],
            strays=strays,
        )

    def _partial(self, tops: Sequence[str]) -> list[_Job]:
        now = datetime.fromtimestamp(self._clock(), UTC)
        hot, late = [], []
        for table, newest in sorted(self._newest.items()):
            # A clock that is wrong at the source must not carry the window into the future.
            latest = min(_parsed(newest), now)
            low = _path(table, _before(latest, self.reach.hot))
            hot.append(_Range(table, low, _path(table, now + timedelta(days=1))))
            late.append(_Range(table, _path(table, _before(latest, self.reach.late)), low))
        return [
            *map(self._whole, hot),
            self._next(self._late, late),
            self._next(self._warming, self._warm_ranges()),
            self._next(self._all, [_Range(top) for top in tops], everything=True),
        ]

    def _run(self, jobs: Sequence[_Job], rounds: Sequence[Round]) -> None:
        if self.tree.parallel == 1:
            for job, job_round in zip(jobs, rounds, strict=True):
                job(job_round)
            return
        with ThreadPoolExecutor(self.tree.parallel) as pool:
            for future in [pool.submit(job, job_round) for job, job_round in zip(jobs, rounds, strict=True)]:
                future.result()

    def _whole(self, folder_range: _Range) -> _Job:
        """All pages of a range."""

        def listed(job_round: Round) -> None:
            for page in self._pages(folder_range, folder_range.low, job_round):
                job_round.files += self.known_files.unseen(page.files)

        return listed

    def _next(self, cursor: _Cursor, ranges: Sequence[_Range], everything: bool = False) -> _Job:
        """The next pages of a walk over `ranges`, which ascend, once round at the most."""

        def listed(job_round: Round) -> None:
            begun = replace(cursor)
            for again in (False, True):
                for folder_range in ranges:
                    if not again and folder_range.folder < begun.folder:
                        continue
                    if again and (folder_range.folder, "") >= (begun.folder, begun.after):
                        return
                    within = not again and folder_range.folder == begun.folder
                    self._go_on(
                        cursor,
                        folder_range,
                        max(folder_range.low, begun.after) if within else folder_range.low,
                        job_round,
                    )
                    if job_round.pages >= self.reach.pages:
                        return
                job_round.lap |= everything

        return listed

    def _go_on(self, cursor: _Cursor, folder_range: _Range, after: str, job_round: Round) -> None:
        """The pages of a range until it or the round's share is at its end."""
        for page in self._pages(folder_range, after, job_round):
            job_round.files += self.known_files.unseen(page.files)
            cursor.folder, cursor.after = folder_range.folder, page.upto
            if job_round.pages >= self.reach.pages:
                return
        cursor.folder, cursor.after = folder_range.folder + "\0", ""

    def _pages(self, folder_range: _Range, after: str, job_round: Round) -> Iterator[Page]:
        """The pages of a range after `after`. One at least is counted: an empty folder costs a request too."""
        before = job_round.pages
        for page in self.tree.walk(folder_range.folder, after):
            job_round.pages += 1
            job_round.faults += page.faults
            if folder_range.high is not None and page.upto > folder_range.high:
                begin = len(self.tree.root) + 1
                yield Page([f for f in page.files if f.path[begin:] <= folder_range.high], folder_range.high)
                return
            yield page
        job_round.pages = max(job_round.pages, before + 1)

    def _apart(self, files: Sequence[FileRef]) -> tuple[list[FileRef], list[str]]:
        """The files to take, and the paths of strays that were not told of yet."""
        to_take: list[FileRef] = []
        strays: list[str] = []
        for ref in files:
            if self._takes_strays or not is_stray(ref, self.tree.root):
                to_take.append(ref)
                continue
            # a folder that holds nothing else is no new table in each round
            self._filled.add(_top(ref.folder))
            if ref.path not in self._strays and len(self._strays) < MOST_STRAYS:
                self._strays.add(ref.path)
                strays.append(ref.path)
        return to_take, sorted(strays)

    def _fresh(self, files: Sequence[FileRef], new: Sequence[str]) -> list[FileRef]:
        """New files, each once (walks overlap), oldest folder first; and what they teach about where to look.

        `new`: object folders that were listed for the first time, so that nothing in them has come late.
        """
        fresh: dict[str, FileRef] = {}
        unseen = self.known_files.unseen(files)
        for ref in unseen:
            self._learn(ref.folder)
            when = place(ref.folder)[1]
            if not when or when >= self.start[: len(when)]:
                fresh[ref.path] = ref
        for folder in {ref.folder for ref in fresh.values()}:
            if _top(folder) not in new and self._is_cold(folder):
                self._warm[folder] = self._clock()
        return sorted(fresh.values(), key=lambda ref: (place(ref.folder)[1], ref.path))

    def _learn(self, folder: str) -> None:
        self._filled.add(_top(folder))
        table, when = place(folder)
        if when > self._newest.get(table, ""):
            self._newest[table] = when

    def _is_cold(self, folder: str) -> bool:
        table, when = place(folder)
        return not when or _parsed(when) < _before(_parsed(self._newest[table]), self.reach.hot)

    def _warm_ranges(self) -> list[_Range]:
        limit = self._clock() - self.reach.warm.total_seconds()
        newest = sorted(((seen_at, folder) for folder, seen_at in self._warm.items() if seen_at >= limit), reverse=True)
        self._warm = {folder: seen_at for seen_at, folder in newest[: self.reach.warm_folders]}
        return [_Range(folder) for folder in sorted(self._warm)]


def _top(folder: str) -> str:
    """The folder straight below the root; the root itself where years are straight below it."""
    name = folder.split("/", 1)[0]
    return "" if _YEAR.fullmatch(name) else name


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is not None:
        with suppress(OverflowError):  # at the ends of the calendar
            return moment.astimezone(UTC)
    return moment.replace(tzinfo=UTC)


def _before(moment: datetime, span: timedelta) -> datetime:
    """So much earlier, as far as the calendar goes: whoever makes a folder gives it any year."""
    return moment - span if moment - _FIRST > span else _FIRST


def _text(moment: datetime) -> str:
    return f"{moment.year:04}/{moment:%m/%d/%H/%M}"


def _path(table: str, moment: datetime) -> str:
    return f"{table}/{_text(moment)}".lstrip("/")


def _parsed(text: str) -> datetime:
    """Raises ValueError for what is no time."""
    year, month, *rest = map(int, text.split("/"))
    day, hour, minute = [*rest, *(1, 0, 0)[len(rest) :]]
    return datetime(year, month, day, hour, minute, tzinfo=UTC)
