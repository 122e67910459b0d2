"""Which routes a file holds, before it is read: known from files of the same folder and schema, else from its first
event. A guess decides only which task reads a file; what a task does with an event, the event itself decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from distributary.changes.any_files import first_table
from distributary.changes.contents import PARQUET
from distributary.changes.model import Reading, SourceTable
from distributary.engine.apart import Apart, WorkResult
from distributary.engine.changes.task_spec import FileReport, WorkFile
from distributary.errors import Outage
from distributary.errors.border import contained
from distributary.sources.bodies import open_body, open_head
from distributary.sources.listing import place

PEEKS_AT_A_TIME = 16
HEAD_BYTES = 256 << 10
"""What is fetched of a file to find its first event. A longer event, and Parquet, whose columns lie anywhere, take the
whole file."""

_SCHEMA_KEY = re.compile(r"^([0-9a-f]{40})_")


class FileRoutes:
    """What is known of folders and schemas. One batch at a time."""

    def __init__(self, reading: Reading, source_options: Mapping[str, str], read_sec: float = 300) -> None:
        self._peek = _Peek(reading, source_options)
        # A file may end the process that looks at it. What it does to the task that reads all of it is found there.
        self._apart = Apart(read_sec, PEEKS_AT_A_TIME)
        self.sources: dict[str, SourceTable] = {}
        """Route -> the table of the source, of all that were found in a file's first event."""
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    def routes(self, files: Sequence[WorkFile]) -> dict[str, tuple[str, ...]]:
        """File -> routes that it is likely to hold; () where nothing of it can be read. Raises SourceDown."""
        routes_of: dict[str, tuple[str, ...]] = {}
        unknown: dict[tuple[str, str], list[WorkFile]] = {}
        for file in files:
            key = _key(file)
            if key in self._known:
                routes_of[file.path] = self._known[key]
            else:
                # A name without a schema says nothing about its neighbours.
                unknown.setdefault(key if key[1] else ("", file.path), []).append(file)
        answers = self._apart.each(self._peek, list(unknown.values()))
        for (key, alike), answer in zip(unknown.items(), answers, strict=True):
            if isinstance(answer, WorkResult) and answer.error is not None:
                raise answer.error
            source = answer.result if isinstance(answer, WorkResult) else None
            routes = () if source is None else (source.route,)
            self.sources |= {} if source is None else {source.route: source}
            routes_of |= dict.fromkeys((file.path for file in alike), routes)
            if source is not None and key[0]:
                self._known[key] = routes
        return routes_of

    def learn(self, files: Iterable[WorkFile], seen: Mapping[str, FileReport]) -> None:
        """What the batch's files did hold: a file of several tables is read by one task from then on."""
        for file in files:
            file_seen = seen.get(file.path)
            if file_seen is not None and file_seen.routes and (key := _key(file))[1]:
                routes_before = self._known.get(key, ())
                self._known[key] = tuple(dict.fromkeys([*routes_before, *file_seen.routes]))


@dataclass(frozen=True)
class _Peek:
    reading: Reading
    options: Mapping[str, str]

    def __call__(self, files: Sequence[WorkFile]) -> SourceTable | None:
        """The table of the first file that says one."""
        return next((source for source in map(self._table, files) if source is not None), None)

    def _table(self, file: WorkFile) -> SourceTable | None:
        """None for a file that cannot be read: the task that tries says what is wrong with it. Raises SourceDown."""
        try:
            if file.size > HEAD_BYTES:
                head = open_head(file.path, self.options, HEAD_BYTES)
                source = None if head.slice(0, len(PARQUET)).to_pybytes() == PARQUET else self._peek(head, file.path)
                if source is not None:
                    return source
            return self._peek(open_body(file.path, self.options), file.path)
        except Outage:
            raise
        except BaseException as e:
            contained(e)
            return None

    def _peek(self, body: pa.Buffer, path: str) -> SourceTable | None:
        """None where that is too little of the file, or too much for its reader."""
        try:
            return first_table(body, path, self.reading)
        except BaseException as e:
            contained(e)
            return None


def _key(file: WorkFile) -> tuple[str, str]:
    """(object folder, schema key); the second is "" where the name has none."""
    match = _SCHEMA_KEY.match(file.path.rsplit("/", 1)[-1])
    return place(file.folder)[0] or file.folder, match[1] if match else ""


def groups(routes: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Route -> the routes that one task must own together, because they share files."""
    leader: dict[str, str] = {}

    def root(route: str) -> str:
        while leader.setdefault(route, route) != route:
            route = leader[route]
        return route

    for of_file in set(routes.values()):
        for route in of_file[1:]:
            leader[root(route)] = root(of_file[0])
        for route in of_file[:1]:
            root(route)
    members: dict[str, set[str]] = {}
    for route in leader:
        members.setdefault(root(route), set()).add(route)
    return {route: frozenset(members[root(route)]) for route in leader}
