"""Does a history table say from when to when each version of a row held?

The events of the log are sorted key by key and gone through from the newest to the oldest: each holds until the next
one, which no earlier one outlives. A column of which an event does not speak has the value of the one before it. What
comes out is held against the table's rows. That the log has the events of
the source is judged elsewhere.

Memory: one key at a time; rows lie on the local disk (`sqlite3`).
"""

from __future__ import annotations

import json
import pickle
import sqlite3
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from distributary.audit.judge.change_events import HOUR_MS, are_halves
from distributary.audit.judge.likeness import bases
from distributary.audit.judge.merged import alike, key_of
from distributary.audit.judge.plain_values import nothing
from distributary.audit.judge.table_rows import rows_of
from distributary.audit.verify import TableCheck, Verification
from distributary.config import Pipeline
from distributary.engine.changes.table_settings import Named, history_of, named_of, source_of
from distributary.errors.border import contained
from distributary.names import shown
from distributary.scratch import Scratch
from distributary.state.divisions import current_parts
from distributary.state.ledger import Entry, Ledger, is_batch, read_entries, totals
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

OWN = ("valid_from", "valid_to", "is_current", "_deleted", "_until")
ABOUT = ("datastream_metadata", "_change")
SILENT = "!"
"""In a schema key, before the columns of which an event does not speak."""


class LoggedEvent(NamedTuple):
    """An event. `time`: ms; `values`: a number for each column with a value, that cells of the same value share, None
    where nobody can tell which it speaks of; `silent`: columns of which it does not speak."""

    place: tuple[Any, ...]
    time: int | None
    deleted: bool
    values: Mapping[str, int] | None
    silent: frozenset[str] = frozenset()
    change: str = ""
    transaction: str | None = None
    row: str | None = None
    method: str = ""

    def repeats(self, other: LoggedEvent) -> bool:
        """Is it the other one, read once more?"""
        same_row = self.row == other.row is not None and self.transaction == other.transaction is not None
        return same_row and self.change == other.change

    def gives_way(self, other: LoggedEvent) -> bool:
        """Has it left a key that another row took?"""
        two_rows = self.row is not None and other.row is not None and self.row != other.row
        one_transaction = self.transaction == other.transaction is not None
        return two_rows and one_transaction and are_halves(other.change, self.change, self.method)


class Version(NamedTuple):
    """From when to when (ms; None: not known, or for ever), and what."""

    begin: int | None
    end: int | None
    current: bool
    values: Mapping[str, int] | None


def versions(events: Iterable[LoggedEvent]) -> list[Version]:
    """What the events of one key, in any order, were from when to when."""
    spans: list[Version] = []
    ordered = _filled(_in_order({event.place: event for event in events}.values()))
    begin: int | None = None
    for number, event in enumerate(reversed(ordered)):
        end, times = begin, [time for time in (event.time, begin) if time is not None]
        begin = min(times, default=None)
        newest = number == 0
        if not event.deleted and (newest or begin != end):
            spans.append(Version(begin, None if newest else end, newest, event.values))
    return spans[::-1]


def _filled(ordered: Sequence[LoggedEvent]) -> list[LoggedEvent]:
    """The events, each with the values that its row had then."""
    row: Mapping[str, int] = {}
    filled_events = []
    for event in ordered:
        if event.values is not None:
            earlier = {name: value for name, value in row.items() if name in event.silent}
            event = event._replace(values=earlier | {n: v for n, v in event.values.items() if n not in event.silent})
        row = {} if event.deleted else event.values or {}
        filled_events.append(event)
    return filled_events


def _in_order(events: Iterable[LoggedEvent]) -> list[LoggedEvent]:
    """Oracle checks keys at the end of a statement: a row that leaves a key stands before another that took it in the
    same statement, and so next to it in the log, where both may stand several times."""
    runs: list[list[LoggedEvent]] = []
    for event in sorted(events, key=lambda event: event.place):
        if runs and event.repeats(runs[-1][0]):
            runs[-1].append(event)
        else:
            runs.append([event])
    number = 1
    while number < len(runs):
        took, left = runs[number - 1 : number + 1]
        if left[0].gives_way(took[0]):
            runs[number - 1 : number + 1] = left, took
            number += 1
        number += 1
    return [event for run in runs for event in run]


@dataclass(frozen=True)
class HistoryRules:
    """`keys`: the key columns. `epochs`, `repairs`: times in ms, sorted. `silent`: any event may say only a part, and
    none says which."""

    keys: Sequence[str]
    epochs: Sequence[int] = ()
    repairs: Sequence[int] = ()
    silent: bool = False

    def said(self, row: Mapping[str, Any]) -> LoggedEvent:
        """A row of the log, or the event of a row of the history."""
        about = next(row[name] for name in ABOUT if row.get(name) is not None)
        time, number, source = about["source_timestamp"], about["change_sequence_number"], about.get("source") or {}
        time_us = time or 0
        generation = bisect_right(self.repairs, time_us if about["is_backfill"] else time_us + HOUR_MS)
        return LoggedEvent(
            (generation, bisect_right(self.epochs, time_us), number[6:]),
            time,
            bool(about["is_deleted"]),
            None if self.silent else self._values(row),
            _silent_columns(about["schema_key"] or ""),
            about.get("change_type") or "",
            source.get("tx_id"),
            source.get("row_id"),
            about.get("read_method") or "",
        )

    def _values(self, row: Mapping[str, Any]) -> dict[str, int]:
        """What is no key: the history has the whole key in its column, also where the log has it in one beside."""
        of_log = "_origin" in row
        ours = (*ABOUT, "_origin") if of_log else (*ABOUT, *OWN)
        keys = {bases(key.lower())[-1] for key in self.keys}
        columns: dict[str, dict[str, Any]] = {}
        for name, value in row.items():
            base = bases(name.lower())[-1]
            if name not in ours and base not in keys and not nothing(value):
                columns.setdefault(base, {})[name] = value
        return {base: alike(cells) for base, cells in columns.items()}

    def key(self, row: Mapping[str, Any]) -> str:
        """An older log has keys in its columns only."""
        origin = row.get("_origin") or {}
        names = json.loads(origin.get("key_columns") or "[]")
        if origin.get("key") and [n.lower() for n in names] == [n.lower() for n in self.keys]:
            return json.dumps(json.loads(origin["key"]))
        return json.dumps(key_of(row, self.keys))


def _silent_columns(schema_key: str) -> frozenset[str]:
    names = unquote(schema_key.partition(SILENT)[2].replace(",", "\n")).split("\n")
    return frozenset(bases(name.lower())[-1] for name in names if name)


class _Sorted:
    """Events and versions by key, on the local disk."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "history", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("CREATE TABLE found (key TEXT, is_event INTEGER, body BLOB)")
        self._db.execute("BEGIN")

    def add(self, entries: Iterable[tuple[str, LoggedEvent | Version]]) -> None:
        rows = ((key, isinstance(entry, LoggedEvent), pickle.dumps(entry)) for key, entry in entries)
        self._db.executemany("INSERT INTO found VALUES (?, ?, ?)", rows)

    def by_key(self) -> Iterator[tuple[list[LoggedEvent], list[Version]]]:
        every = self._db.execute("SELECT * FROM found ORDER BY key")
        for _, group in groupby(every, key=lambda row: row[0]):
            of_key = [(bool(is_event), pickle.loads(body)) for _, is_event, body in group]
            yield (
                [entry for is_event, entry in of_key if is_event],
                [entry for is_event, entry in of_key if not is_event],
            )

    def close(self) -> None:
        self._db.close()


def compare(
    log: Iterable[list[dict[str, Any]]], history: Iterable[list[dict[str, Any]]], rules: HistoryRules
) -> Counter[str]:
    """What is wrong with the rows `history` of a history, by those of its log: in words, and how often."""
    wrong: Counter[str] = Counter()
    with Scratch("history") as folder:
        sorted_rows = _Sorted(folder)
        orphans, emptied = [], []
        by_row: dict[tuple[Any, Any], str] = {}
        for rows in log:
            for row in rows:
                key, event = rules.key(row), rules.said(row)
                if event.change == "TRUNCATE":
                    emptied.append(event)
                    continue
                if event.deleted and event.row and all(key_value is None for key_value in json.loads(key)):
                    orphans.append(event)
                    continue
                if event.row:
                    by_row[event.row, event.transaction] = key
                sorted_rows.add([(key, event)])
        ids = ((by_row.get((event.row, event.transaction)), event) for event in orphans)
        sorted_rows.add((key, event) for key, event in ids if key is not None)
        for rows in history:
            sorted_rows.add((rules.key(row), _version(row, rules)) for row in rows if not row["_deleted"])
        for events, in_table in sorted_rows.by_key():
            # It ends what came before it.
            events += [end for end in emptied if any(event.place < end.place for event in events)]
            wrong.update(_differences(versions(events), sorted(in_table, key=_when)))
        sorted_rows.close()
    return wrong


def _version(row: Mapping[str, Any], rules: HistoryRules) -> Version:
    begin, end = (None if row[name] is None else int(row[name]) // 1000 for name in OWN[:2])
    return Version(begin, end, bool(row["is_current"]), rules.said(row).values)


def _when(version: Version) -> tuple[bool, int]:
    return version.begin is None, version.begin or 0


def _differences(expected: Sequence[Version], in_table: Sequence[Version]) -> Iterator[str]:
    if len(in_table) > len(expected):
        yield "keys have versions in the history that their events do not tell of"
    if len(in_table) < len(expected):
        yield "keys lack versions in the history that their events tell of"
    if len(in_table) != len(expected):
        return
    for left, right in zip(expected, in_table, strict=True):
        if left[:3] != right[:3]:
            yield "versions of the history did not hold from when to when it says"
        elif left.values is not None and right.values is not None and left.values != right.values:
            yield "versions of the history do not have the values of their event"


# -- a pipeline --------------------------------------------------------------------------------------------


@dataclass
class _Route:
    """A route with a history. `problem`: why it cannot be judged, which is wrong; `note`: which is not."""

    entry: Entry
    finished: Mapping[str, int]
    problems: list[str] = field(default_factory=list)
    note: str | None = None


def judge_histories(config: Pipeline, counted: Verification) -> Verification:
    """`counted` with what the logs tell of the histories beside them."""
    named, store = named_of(config), Store.of(config.tables)
    if config.tables.history is None or named is None:
        return counted
    routes: dict[str, _Route] = {}
    for stream in current_parts(config, store):
        entries = read_entries(stream.state_root, store)
        finished = Ledger(stream.state_root, stream.pipeline, store, entries).finished
        for route, entry in totals(entries).items():
            if route is not None and entry.merged is not None:
                routes[route] = _Route(entry, {s: n for s, n in finished.items() if is_batch(s)})
    tables, notes = [], list(counted.notes)
    for table in counted.tables:
        if (found_of := routes.get(table.route)) is not None:
            _judge(config, named, found_of, store)
            notes += [] if found_of.note is None else [f"{shown(table.route)}: {found_of.note}"]
        tables.append(table if found_of is None else _with(table, found_of.problems))
    problems = [f"{shown(t.route)}: {text}" for t in tables if t.route in routes for text in routes[t.route].problems]
    return replace(
        counted,
        ok=counted.ok and not problems,
        tables=tuple(tables),
        problems=(*counted.problems, *problems),
        notes=tuple(notes),
    )


def _with(table: TableCheck, problems: Sequence[str]) -> TableCheck:
    return replace(table, problems=(*table.problems, *problems))


def _judge(config: Pipeline, named: Named, route: _Route, store: Store) -> None:
    try:
        _look(config, named, route, store)
    except BaseException as e:
        route.problems.append(f"its history cannot be judged: {contained(e)}")


def _look(config: Pipeline, named: Named, route: _Route, store: Store) -> None:
    entry, name = route.entry, str(route.entry.route)
    if entry.table is None or entry.merge_state != "merged" or entry.about is None:
        route.note = "its history waits for the merge; it was not judged"
        return
    source = source_of(entry.about)
    address = history_of(config, entry.about, entry.table)
    history, log = (Table(uri, store).open() for uri in (str(address), entry.table))
    if history is None or log is None:
        route.problems.append("the history table is not there")
        return
    if any(_newest(table, s) > batch for table in (history, log) for s, batch in route.finished.items()):
        route.note = "a batch is being written; its history was not judged"
        return
    table_config, about = config.tables.routes.get(name), json.loads(entry.about)
    owner = history.owner
    silent = config.tables.dropped_columns == "keep" or bool(table_config and table_config.toast_columns)
    order = named.order(source)
    rules = HistoryRules(
        tuple(owner.keys if owner is not None and owner.keys else about["keys"]),
        sorted(epoch for epoch, _ in order.epochs),
        sorted(order.repair_backfills),
        silent,
    )
    route.problems += [f"{count} {text}" for text, count in compare(rows_of(log), rows_of(history), rules).items()]


def _newest(table: Snapshot, stream: str) -> int:
    return max(table.newest(f"{stream}{suffix}") for suffix in ("", "+2"))
