"""The ledger: what each batch did to each table, one Delta table per pipeline.

A row per (batch, route), and one with no route for the batch itself. A batch's rows are one commit under the batch's
transaction, and that commit is the batch's decision: before it nothing is in the quarantine, after it the batch is
never done again. Rows only ever add up, so two processes (a run, a replay) can write it side by side. Which entry is
the newest is decided by the ledger's own versions, never by a clock: clocks are set back.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.backoff import Backoff
from distributary.config import StateFolder
from distributary.config.addresses import absolute
from distributary.errors.border import in_words
from distributary.redaction import redacted
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict, reading
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table

log = logging.getLogger("distributary")

_TIME = pa.timestamp("us", tz="UTC")

LEDGER_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("batch", pa.int64()),
        ("finished_at", _TIME),
        ("route", pa.string()),
        ("table", pa.string()),
        ("engine", pa.string()),
        ("state", pa.string()),
        ("rows_in", pa.int64()),
        ("rows_written", pa.int64()),
        ("rows_quarantined", pa.int64()),
        ("tombstones", pa.int64()),
        ("schema_ids", pa.map_(pa.int32(), pa.int64())),
        ("reasons", pa.map_(pa.string(), pa.int64())),
        ("decoders", pa.map_(pa.int32(), pa.string())),
        ("newest", _TIME),
        ("created", pa.bool_()),
        ("evolved", pa.bool_()),
        ("error", pa.string()),
        ("failures", pa.int32()),
        ("retry_at", _TIME),
        ("batches", pa.int64()),
        ("details", pa.string()),
        ("merged", pa.string()),
        ("merge_state", pa.string()),
        ("upserts", pa.int64()),
        ("deletes", pa.int64()),
        ("stale", pa.int64()),
        ("about", pa.string()),
        ("warnings", pa.map_(pa.string(), pa.int64())),
        ("widened", pa.map_(pa.string(), pa.string())),
        ("sequence", pa.int64()),
        ("excluded", pa.int64()),
        ("bytes_written", pa.int64()),
    ]
)

_REPLAY = "replay-"
RESYNC = "resync-"
"""Begins the stream ids of rebuilds of merged tables."""
MERGE = "merge"  # stream id of merges between batches
EMPTIED = "empty-"
"""Begins the transactions that empty tables which are filled anew."""
LOSS = "loss"  # of notes on data that was lost at the source
KEPT_ROWS = 20_000
"""Rows that stay as they are; older ones are added up into one row per route when as many again have come, or"""
UPKEEP_BATCHES = 200
"""after so many batches: each is a file, and a reader reads them all."""
FILES_KEPT_HOURS = 1
"""What a fold has replaced, and commits before a checkpoint, stay for readers that are at it."""
PROPERTIES = {"delta.logRetentionDuration": f"interval {FILES_KEPT_HOURS} hour"}
"""Of the ledger's table. Delta's own default is 30 days, a file a batch."""
SHORTEST_REST_SEC = 0.001
"""So long it rests at least: nothing doubled stays nothing, and a retry gives change files to the stream once more, so
that a stream without rests would make itself one batch after the other."""
LONGEST_REST_SEC = 3600.0
"""So long a parked table rests at most before it is tried again."""


@dataclass(frozen=True)
class Entry:
    """One row: what one batch did to one table (`route` None: the batch itself). Times in microseconds since 1970.

    `state`: written, replayed, empty, parked, or ok for the batch itself. `rows_in` = `rows_written` +
    `rows_quarantined`; a replay of quarantined rows has `rows_in` 0 and moves rows from one to the other.

    Of change files, `table` is the log table. `merged`: the merged table; `merge_state`: merged, waiting, parked,
    append_only (no keys) or off. `upserts`, `deletes`: keys written to it; `stale`: events older than what it has.
    `about`: source table and key columns, as JSON. `warnings`: rows written that break an expectation, by its name.
    `widened`: columns that got a wider type: `score` -> `int -> bigint`. `sequence`: greater for who saw the other's
    entries when it was decided; 0 where an earlier version wrote it. `excluded`: of the batch itself, records of routes
    that the pipeline file leaves out; they are in no other count. `bytes_written`: of the files that were added to
    `table`, where the tasks wrote them and they are its alone.
    """

    stream: str
    batch: int
    route: str | None
    table: str | None = None
    engine: str = "task"
    state: str = "ok"
    rows_in: int = 0
    rows_written: int = 0
    rows_quarantined: int = 0
    tombstones: int = 0
    schema_ids: Mapping[int, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    decoders: Mapping[int, str] = field(default_factory=dict)
    newest: int | None = None
    created: bool = False
    evolved: bool = False
    error: str | None = None
    failures: int = 0
    retry_at: int | None = None
    batches: int = 1
    details: str | None = None
    finished_at: int = 0
    merged: str | None = None
    merge_state: str | None = None
    upserts: int = 0
    deletes: int = 0
    stale: int = 0
    about: str | None = None
    warnings: Mapping[str, int] = field(default_factory=dict)
    widened: Mapping[str, str] = field(default_factory=dict)
    sequence: int = field(default=0, compare=False)
    excluded: int = 0
    bytes_written: int = 0


_ROWS = ("rows_in", "rows_written", "rows_quarantined", "tombstones", "excluded")
_SUMS = (*_ROWS, "bytes_written", "batches", "upserts", "deletes", "stale")
_MAPS = ("schema_ids", "reasons", "decoders", "warnings", "widened")


def add(before: Entry | None, entry: Entry) -> Entry:
    """`entry` with the counts of `before` added: the newest state, all the rows."""
    if before is None:
        return entry
    # `update`, not `+`: a replay takes away, and what comes to nothing or less is to be seen.
    ids, reasons, warnings = Counter(before.schema_ids), Counter(before.reasons), Counter(before.warnings)
    ids.update(entry.schema_ids)
    reasons.update(entry.reasons)
    warnings.update(entry.warnings)
    return replace(
        entry,
        **{name: getattr(before, name) + getattr(entry, name) for name in _SUMS},
        schema_ids=dict(ids),
        reasons=dict(reasons),
        warnings=dict(warnings),
        decoders={**before.decoders, **entry.decoders},
        widened={**before.widened, **entry.widened},
        table=entry.table or before.table,
        merged=entry.merged or before.merged,
        merge_state=entry.merge_state or before.merge_state,
        about=entry.about or before.about,
        newest=max((n for n in (before.newest, entry.newest) if n is not None), default=None),
        created=before.created or entry.created,
    )


def read_entries(state_root: str, store: Store) -> list[Entry]:
    """All entries of a ledger, oldest first; old ones may have been added up. Raises TableFault, OSError."""
    table = Table(StateFolder(state_root).ledger, store).open()
    return [] if table is None else _entries(table)


def _entries(table: Snapshot) -> list[Entry]:
    return sorted((_entry(row) for row in _rows(table.dataset().to_table())), key=_order)


def _order(entry: Entry) -> tuple[int, int, int]:
    """Oldest first. A stream's batches come one after the other, and so do their sequences; what has the same one is
    one commit, or two that did not know of each other. Only entries of earlier versions are ordered by time."""
    return entry.sequence, 0 if entry.sequence else entry.finished_at, entry.batch


def _entry(row: Mapping[str, Any]) -> Entry:
    # Earlier versions wrote a relative tables.root as it was given.
    places = {name: absolute(row[name]) for name in ("table", "merged") if row.get(name)}
    return Entry(**{**row, **places})


def totals(entries: Iterable[Entry]) -> dict[str | None, Entry]:
    """All rows of each route added up, with the state of its newest entry."""
    totals_of: dict[str | None, Entry] = {}
    for entry in entries:
        totals_of[entry.route] = add(totals_of.get(entry.route), entry)
    return totals_of


class Ledger:
    """The ledger of one pipeline. Keeps in memory each route's newest entry and each stream's newest batch."""

    def __init__(self, state_root: str, pipeline: str, store: Store, entries: Sequence[Entry] | None = None) -> None:
        """`entries`: what `read_entries` has found. Raises StoreUnreadable."""
        self.state_root = state_root
        self.uri = StateFolder(state_root).ledger
        self.table = Table(self.uri, store, Owner(pipeline, ""), PROPERTIES)
        self.pipeline = pipeline
        self.store = store
        self.newest: dict[str | None, Entry] = {}
        self.own: dict[str, Entry] = {}
        self.finished: dict[str, int] = {}
        self.watcher: Callable[[Sequence[Entry]], None] = lambda _: None
        """Told of what was recorded, once it is. What it raises is a warning."""
        entries = self._found() if entries is None else entries
        self._rows = len(entries)
        for entry in entries:
            self._remember(entry)

    def _found(self) -> list[Entry]:
        with reading(self.uri):
            return self.entries()

    def _remember(self, entry: Entry) -> None:
        before = self.newest.get(entry.route)
        if before is not None and entry.merge_state is None and (before.merged or before.merge_state or before.about):
            # What is not said of a merge stays as it was.
            merge = {name: getattr(entry, name) or getattr(before, name) for name in ("merged", "merge_state", "about")}
            entry = replace(entry, **merge)
        self.newest[entry.route] = entry
        if entry.route is None:
            if entry.batch >= self.finished.get(entry.stream, -1):
                self.own[entry.stream] = entry
            self.finished[entry.stream] = max(entry.batch, self.finished.get(entry.stream, -1))

    def entries(self) -> list[Entry]:
        """All entries, as `read_entries`. Raises TableFault, OSError."""
        return read_entries(self.state_root, self.store)

    @property
    def stream(self) -> str | None:
        """The streaming query whose batches have come here; None before the first is finished."""
        batch_of = {stream: batch for stream, batch in self.finished.items() if is_batch(stream)}
        return max(batch_of, key=lambda s: batch_of[s], default=None)

    def is_finished(self, stream: str, batch: int) -> bool:
        return batch <= self.finished.get(stream, -1)

    def resting(self, now: float) -> dict[str, str]:
        """Routes whose tables are parked and not tried yet again at `now` (seconds since 1970), and why."""
        return {
            e.route: e.error or "parked"
            for e in self.newest.values()
            if e.route is not None and e.state == "parked" and is_resting(e.retry_at, now)
        }

    def record(self, stream: str, batch: int, entries: Sequence[Entry], details: Mapping[str, Any]) -> None:
        """Finish a batch: one commit under the batch's transaction; nothing happens when it is finished already.

        The batch's own entry (route None) is among `entries` and gets `details`, any JSON value.
        Raises OSError or TableFault when the state folder cannot be written.
        """
        now = int(time.time() * 1e6)
        text = redacted(json.dumps(details))
        finished = [
            replace(
                e,
                finished_at=now,
                details=text if e.route is None else None,
                error=None if e.error is None else redacted(e.error),  # a task that wrote it knows no secrets
            )
            for e in entries
        ]

        def numbered(before: Snapshot | None) -> list[DataFile]:
            sequence = 1 if before is None else before.version + 2
            return [self.table.write(_table(finished, sequence))]

        policy = Policy(type_change="new_column")  # a run and a replay may get in each other's way
        if (appended := self.table.append(LEDGER_SCHEMA, numbered, Txn(stream, batch), policy)) is None:
            return
        for entry in finished:
            self._remember(entry)
        self._rows += len(finished)
        self._tell(finished)
        count = batch or appended.version  # each write of Spark's sink is batch 0 of a stream of its own
        if (count and not count % UPKEEP_BATCHES) or self._rows > 2 * (KEPT_ROWS + len(self.newest)):
            self.compact()

    def _tell(self, finished: Sequence[Entry]) -> None:
        """The batch is decided, whatever becomes of those who watch."""
        try:
            self.watcher(finished)
        except Exception as e:
            log.warning("the batch is in the ledger, but its figures are not shown: %s", in_words(e))

    def note_loss(self, lost: Sequence[str]) -> None:
        """Keep for good that rows were lost at the source with the user's consent (`on_data_loss: continue`)."""
        number = 1 + self.finished.get(LOSS, -1)
        self.record(
            LOSS, number, [Entry(LOSS, number, None, state="loss", error="; ".join(lost))], {"lost": list(lost)}
        )

    def details(self, stream: str, batch: int) -> dict[str, Any]:
        """What `record` was given as details of the newest batch; empty when it was another batch."""
        own_entry = self.own.get(stream)
        return {} if own_entry is None or own_entry.batch != batch else dict(json.loads(own_entry.details or "{}"))

    def compact(self) -> None:
        """Rewrite the ledger as one file, with old entries added up per route. Another fold's commit wins.

        Read and replaced from one handle: what others append meanwhile is neither in what is read nor in what goes.
        """
        table = Snapshot.open(self.uri, self.store)
        if table is None:
            return
        entries = _entries(table)
        # Replays and losses are few, and each is found again by its own stream.
        few = [e for e in entries if not is_batch(e.stream) and e.stream != MERGE]
        batches = [e for e in entries if is_batch(e.stream) or e.stream == MERGE]
        many = max(0, len(batches) - KEPT_ROWS)
        old, recent = batches[:many], batches[many:]
        folded = sorted([*few, *totals(old).values(), *recent], key=_order)
        try:
            table.overwrite(_table(folded))
        except CommitConflict:
            return
        self._rows = len(folded)
        self._tidy()

    def _tidy(self) -> None:
        """Remove files that a fold has replaced. A ledger that an earlier version began gets its properties here."""
        table = Snapshot.open(self.uri, self.store)
        if table is None:
            return
        if not PROPERTIES.items() <= table.properties.items():
            # Another writer's commit may be first: at the next fold, then.
            with suppress(CommitConflict):
                table.set_properties(PROPERTIES)
        table.vacuum(FILES_KEPT_HOURS)


def rests_until(failures: int, first_sec: float, now: float) -> int:
    """Until when (microseconds since 1970) a table rests that has failed so often, the last time at `now` (seconds):
    `first_sec` at first, twice as long after each failure."""
    rests = Backoff(max(first_sec, SHORTEST_REST_SEC), LONGEST_REST_SEC)
    return int((now + rests.rest_sec(failures)) * 1e6)


def is_resting(retry_at: int | None, now: float) -> bool:
    """Is a rest up to `retry_at` (microseconds since 1970) on at `now` (seconds)? None is longer than the longest: a
    time further away was written by a clock that has been set back since."""
    return 0 < (retry_at or 0) / 1e6 - now <= LONGEST_REST_SEC


def replay_stream(number: int) -> str:
    """The stream id under which replay `number` enters the ledger; its batch is the number too."""
    return f"{_REPLAY}{number}"


def is_batch(stream: str) -> bool:
    """Is this the id of a streaming query, rather than of a replay or a note?"""
    return stream not in (LOSS, MERGE) and not stream.startswith((_REPLAY, RESYNC))


def quarantine_files(details: Mapping[str, Any]) -> list[DataFile]:
    """The quarantine's data files that a batch's decision names."""
    return [DataFile(**f) for f in details.get("quarantine", ())]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    for index, name in enumerate(table.column_names):
        if pa.types.is_timestamp(table.schema.field(name).type):
            table = table.set_column(index, name, pc.cast(table.column(name), pa.int64()))
    names = [f.name for f in fields(Entry)]
    rows: list[dict[str, Any]] = table.select([n for n in table.column_names if n in names]).to_pylist()
    for row in rows:
        # A ledger that an earlier version began has no such columns in its old files.
        row.update({name: dict(row.get(name) or ()) for name in _MAPS})
        row.update({name: row.get(name) or 0 for name in (*_SUMS, "sequence")})
    return rows


def _table(entries: Sequence[Entry], sequence: int | None = None) -> pa.Table:
    """`sequence`: of all of them, in place of their own."""
    columns = {f.name: [getattr(entry, f.name) for entry in entries] for f in LEDGER_SCHEMA}
    columns |= {name: [list(counts.items()) for counts in columns[name]] for name in _MAPS}
    columns |= {} if sequence is None else {"sequence": [sequence] * len(entries)}
    return pa.table(columns, schema=LEDGER_SCHEMA)
