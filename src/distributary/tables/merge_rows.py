"""What a merge decides, row by row: pure functions of the events and of what the table holds of their keys.

A merged table has the payload's columns, the struct `datastream_metadata` (of messages `_change`) of the event that
made the row, and `_deleted`, `_deleted_at`: a deleted row stays as a tombstone, since an older event of its key may
still come. Where tombstones lie in a table beside (`tables.tombstones`), what is known of a key is the newer of its row
and its tombstone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes import anew
from distributary.changes.digits import FIRST_LAYOUT, MOVED, PREFIX, WIDTH, metadata_in
from distributary.changes.handed_on import HandedOn
from distributary.changes.key_text import in_type
from distributary.changes.keys import KeyIndex
from distributary.changes.reduce import MissingColumns, Places, Ranked, has_row_ids
from distributary.changes.sequence import Bools, Numbers, OrderSettings
from distributary.changes.unfilled import FIELDS, Unfilled, lacking, may_say
from distributary.tables.comments import COMMENT
from distributary.tables.merge_bounds import EventBounds

DELETED = "_deleted"
DELETED_AT = "_deleted_at"
DELETED_AT_TYPE = pa.timestamp("us", tz="UTC")
_ADVICE = b"True: a deleted row, kept for a while. Read the table WHERE NOT _deleted."
DELETED_FIELD = pa.field(DELETED, pa.bool_(), metadata={COMMENT: _ADVICE})
"""Its comment is all that tells of tombstones where somebody opens the table by its path."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """How a table takes events.

    `deletes`: `soft` keeps a tombstone; with `hard` the row goes, and a late older event brings it back.
    `keep_deleted_values`: a tombstone keeps the row's values; else only its key stays.
    `dropped_columns`: what an update does to a column that its event lacks: `null`, or `keep` the old value.
    `toast_columns`: null in an update means that the value is as it was (PostgreSQL, unchanged TOAST values).
    `purged_until`: source time in ms; tombstones older than that have been purged, so a change older than that of a key
    that the table does not have cannot be judged.
    `settled`: transactions of Oracle of which the batch has all events of its keys; a key that rows of another one
    hand on ends the merge (`changes.handed_on`). None: it is decided by what is at hand.
    `has_unchanged`: an event's schema key may name columns of which it does not speak (`layout.with_unchanged`).
    `filled`: the events are completed by all that the log has of their keys; without it, a late event that may say what
    its row lacks ends the merge (`changes.unfilled`).
    `on_read`: rows that go are marked in deletion vectors (`tables.merge_on_read`), where that writes less.
    `beside`: a table that is made anew has its tombstones beside it (`tables.tombstones`); one that is there says so
    itself.
    `small_files`: so many of them become one where rows come in; None: `merge.SMALL_FILES`.
    `task_rows`: rows of the files that may hold the events' keys, up to which a task merges; None: `merge.TASK_ROWS`.
    """

    deletes: Literal["soft", "hard"] = "soft"
    keep_deleted_values: bool = False
    dropped_columns: Literal["null", "keep"] = "null"
    toast_columns: tuple[str, ...] = ()
    purged_until: int | None = None
    settled: frozenset[str] | None = None
    task_rows: int | None = None
    has_unchanged: bool = False
    filled: bool = False
    on_read: bool = False
    beside: bool = False
    small_files: int | None = None
    order: OrderSettings = field(default=OrderSettings())

    @property
    def is_partial(self) -> bool:
        """May the newest event of a key leave something to an older one?"""
        return bool(self.toast_columns) or self.dropped_columns == "keep" or self.has_unchanged

    def gaps(self, absent: Mapping[str, Collection[str]]) -> MissingColumns:
        """For `reduce_rows`. `absent`: schema key -> the table's columns that events of this schema lack."""
        return MissingColumns(self.toast_columns, absent if self.dropped_columns == "keep" else {})


def as_merged(rows: pa.Table, keys: Sequence[str], rules: MergeRules) -> pa.Table:
    """Events as rows of a merged table: with `_deleted` and `_deleted_at` (the delete's source time).

    Unless the rules keep them, the values of a deleted row are nulled, so that all orders of arrival give one table.
    """
    name = metadata_in(rows.column_names)
    metadata = flat(rows.column(name))
    deleted = pc.fill_null(pc.struct_field(metadata, "is_deleted"), False)
    if not rules.keep_deleted_values and pc.any(deleted).as_py():
        for number, column in enumerate(rows.column_names):
            if column not in keys and column != name:
                kind = rows.schema.field(number)
                values = _where(pc.invert(deleted), rows.column(number))
                rows = rows.set_column(number, kind, values)
    moment = pc.cast(pc.struct_field(metadata, "source_timestamp"), pa.timestamp("ms", tz="UTC")).cast(DELETED_AT_TYPE)
    rows = rows.append_column(DELETED_FIELD, deleted)
    return rows.append_column(pa.field(DELETED_AT, DELETED_AT_TYPE), pc.if_else(deleted, moment, None))


class Incoming:
    """A batch's events, one per key, as they meet the rows of the table, a part at a time."""

    def __init__(self, rows: pa.Table, keys: Sequence[str], rules: MergeRules, since: Numbers | None = None) -> None:
        """`since`: as `Reduced.since`. Raises ValueError when two events have one key."""
        self.rows, self.keys, self.rules = rows, tuple(keys), rules
        self.index = KeyIndex(rows, keys)
        if len(self.index) != rows.num_rows:
            raise ValueError(f"{rows.num_rows} events of {len(self.index)} keys: reduce them to one per key first")
        self._row_of = np.empty(rows.num_rows, np.int64)
        self._row_of[self.index.codes] = np.arange(rows.num_rows)
        self.metadata = metadata_in(rows.column_names)
        metadata = flat(rows.column(self.metadata))
        self.oracle = has_row_ids(metadata)
        self._ranked = Ranked.of(metadata, rules.order, oracle=self.oracle).settled(rules.settled or ())
        self._metadata = metadata
        self._since = self._ranked.numbers if since is None else since
        self.deletes = bools(pc.struct_field(metadata, "is_deleted"))
        self.matched = np.zeros(rows.num_rows, bool)
        self.beaten = np.zeros(rows.num_rows, bool)
        self._unfilled = np.zeros(rows.num_rows, bool)
        self.has_row = np.zeros(rows.num_rows, bool)
        self.was_dead = np.zeros(rows.num_rows, bool)
        """Events of whose key a tombstone beside is newer than the table's row, if it has one."""
        self._tombstones: pa.Array | None = None
        self._tombstone_of = np.full(rows.num_rows, -1, np.int64)
        self._is_own = np.zeros(rows.num_rows, bool)

    def needs(self, schema: pa.Schema, bounds: EventBounds | None = None) -> pa.Schema:
        """The columns of a file that `meet` asks for: the keys, and what decides of the metadata, unless the `bounds`
        of its events have decided already."""
        if bounds is not None and self._all_newer(bounds):
            return pa.schema([schema.field(key) for key in self.keys])
        paths = [tuple(path.split(".")) for path in Ranked.needs(self.rules.order, oracle=self.oracle)]
        metadata = schema.field(self.metadata)
        paths += [(name,) for name in FIELDS if self.rules.has_unchanged]
        metadata_field = metadata.with_type(_picked(metadata.type, paths))
        return pa.schema([*(schema.field(key) for key in self.keys), metadata_field])

    def meet(self, file_rows: pa.Table) -> tuple[Places, Places, Bools]:
        """(rows of `file_rows` whose key has an event, that event's row, whether the event holds over the row).

        Raises BegunAnew where the two cannot be of one log, HandedOn where more events of a key must be known.
        """
        places, mine = self._places(file_rows)
        self.has_row[mine] = True
        if self.metadata not in file_rows.column_names:
            return places, mine, self._met_older(mine)
        return places, mine, self._met(mine, self._newer_of(mine, self._about(file_rows, places)))

    def remember(self, tombstones: pa.Table) -> None:
        """Before the table's rows are met: rows of the table beside, with the columns `needs`."""
        places, mine = self._places(tombstones)
        theirs = self._tombstones = self._about(tombstones, places)
        self._tombstone_of[mine] = np.arange(len(mine))
        numbers = Ranked.of(theirs, self.rules.order, oracle=self.oracle).numbers
        # Of a batch that ended between its two commits: the delete is beside already, and its row still here.
        self._is_own[mine] = self._ranked.numbers[mine] == numbers

    def of_keys(self, rows: pa.Table) -> pa.Table:
        """Those of `rows` whose key has an event."""
        return rows.take(pa.array(self._places(rows)[0]))

    def meet_tombstones(self) -> None:
        """Those of keys that the table has no row of, once all its parts have been met. Raises as `meet`."""
        mine = np.flatnonzero((self._tombstone_of >= 0) & ~self.has_row)
        if self._tombstones is not None and len(mine):
            self.was_dead[mine] = True
            self._met(mine, self._tombstones.take(pa.array(self._tombstone_of[mine])))

    def _places(self, rows: pa.Table) -> tuple[Places, Places]:
        """(those of `rows` whose key has an event, that event's row)."""
        event_of = self.index.find(rows)
        places = np.flatnonzero(event_of >= 0)
        return places, self._row_of[event_of[places]]

    def _about(self, rows: pa.Table, places: Places) -> pa.Array:
        return flat(rows.column(self.metadata)).take(pa.array(places))

    def _newer_of(self, mine: Places, theirs: pa.Array) -> pa.Array:
        """The metadata of what is known of each key: its row's, or that of a tombstone which holds over it."""
        both, dead = self._others(mine)
        if dead is None:
            return theirs
        rows = Ranked.of(theirs.take(pa.array(both)), self.rules.order, oracle=self.oracle)
        holds = Ranked.of(dead, self.rules.order, oracle=self.oracle).holds_over(rows)
        self.was_dead[mine[both[holds]]] = True
        picked = np.arange(len(theirs))
        picked[both[holds]] = len(theirs) + np.flatnonzero(holds)
        return pa.concat_arrays([theirs, dead]).take(pa.array(picked))

    def _others(self, mine: Places) -> tuple[Places, pa.Array | None]:
        """(places in `mine` of events with a tombstone beside that is not the event itself, those tombstones)."""
        both = np.flatnonzero((self._tombstone_of[mine] >= 0) & ~self._is_own[mine])
        if self._tombstones is None or not len(both):
            return both, None
        return both, self._tombstones.take(pa.array(self._tombstone_of[mine[both]]))

    def _met_older(self, mine: Places) -> Bools:
        """All events are newer than all rows, as `needs` has it; a tombstone may be newer still."""
        self.matched[mine] = True
        wins = np.ones(len(mine), bool)
        both, dead = self._others(mine)
        if dead is not None:
            wins[both] = self._met(mine[both], dead)
        return wins

    def _met(self, mine: Places, theirs: pa.Array) -> Bools:
        ours, others = self._ranked.take(mine), Ranked.of(theirs, self.rules.order, oracle=self.oracle)
        if self.rules.settled is not None and (handed_on := ours.handed_on(others, self.rules.settled)):
            raise HandedOn(handed_on)
        wins = ours.holds_over(others)
        newer = ours.numbers > others.numbers
        anew.check(
            np.where(newer, ours.numbers, others.numbers),
            np.where(newer, others.numbers, ours.numbers),
            self.rules.order,
        )
        if self.rules.has_unchanged:
            wins = self._fills(mine, theirs, wins, others.numbers)
        self.matched[mine] = True
        self.beaten[mine[~wins]] = True
        return wins

    @cached_property
    def _oldest(self) -> tuple[bytes, int]:
        """The least number of the events, as `standing` has it, and the earliest source time in ms."""
        times = pc.fill_null(pc.struct_field(self._metadata, "source_timestamp"), 0)
        numbers = self._ranked.numbers
        return bytes(numbers[np.argmin(numbers)]), int(pc.min(times).as_py())

    def _all_newer(self, bounds: EventBounds) -> bool:
        """Do the bounds prove that each event holds over every row, and that none of them is of another log?"""
        order, begin = self.rules.order, PREFIX + 1
        if order or self.oracle or self.rules.has_unchanged or not self.rows.num_rows:
            return False
        if self._tombstones is not None and self.rules.is_partial:
            return False  # whether the row or the tombstone is the newer one decides of its values
        # What stands between two texts begins as both do: so all numbers of the file are of one layout.
        if bounds.low[:begin] != bounds.high[:begin] or {len(bounds.low), len(bounds.high)} != {WIDTH}:
            return False
        layout = bounds.low[PREFIX:begin].decode(errors="replace")
        if layout == FIRST_LAYOUT and order.kind in MOVED:
            return False
        least, earliest = self._oldest
        if bounds.high[PREFIX:] >= least:
            return False
        is_backfilled = layout < FIRST_LAYOUT
        return is_backfilled or anew.cannot_be(bounds.latest_ms, earliest, order)

    def _fills(self, mine: Places, theirs: pa.Array, wins: Bools, numbers: Numbers) -> Bools:
        """Which events hold over their row, or are its own and complete it. `numbers`: of the rows."""
        open_, own = lacking(theirs), self._ranked.numbers[mine]
        if self.rules.filled:
            return np.asarray(wins | ((own == numbers) & open_))
        has_older = self._since[mine] < own
        # A value of an event that is older than the row's own is perhaps not the newest.
        self._unfilled[mine[wins & has_older & (self._since[mine] < numbers)]] = True
        late = np.flatnonzero(open_ & ~wins & ((own != numbers) | has_older))
        if len(late):
            completes = may_say(self._metadata.take(pa.array(mine[late])), theirs.take(pa.array(late)))
            self._unfilled[mine[late[np.array(completes, bool) | has_older[late]]]] = True
        return wins

    def verdict(self) -> MergeVerdict:
        """Once all parts that may hold one of the keys have been met. Raises Unfilled where the log is to be asked."""
        if self._unfilled.any():
            raise Unfilled(self.rows.select(self.keys).filter(pa.array(self._unfilled)))
        hard = self.deletes if self.rules.deletes == "hard" else np.zeros_like(self.deletes)
        new = ~self.matched & ~hard
        late_rows = np.zeros_like(new)
        if self.rules.purged_until is not None:
            time = pc.fill_null(pc.struct_field(self._metadata, "source_timestamp"), 0).to_numpy(zero_copy_only=False)
            backfill = bools(pc.struct_field(self._metadata, "is_backfill"))
            # A delete changes nothing either way: the row is not there, and its tombstone would be purged.
            old = ~self.matched & ~backfill & (time < self.rules.purged_until)
            late_rows, new = old & ~self.deletes, new & ~old
        takes = self.matched & ~self.beaten
        return MergeVerdict(new, takes & ~hard, takes & hard, late_rows, self.deletes)

    def apart(self, verdict: MergeVerdict) -> tuple[MergeVerdict, Bools]:
        """A verdict for a table whose tombstones lie beside: (what it does to the table, the events that are to be
        tombstones beside and are not yet)."""
        takes = verdict.new | verdict.replaces
        lives = takes & ~self.deletes
        of_table = MergeVerdict(
            lives & ~self.has_row,
            lives & self.has_row,
            takes & self.deletes & self.has_row,
            verdict.late_rows,
            self.deletes,
        )
        return of_table, takes & self.deletes & ~self._is_own


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the keys of a batch; together all but the unjudged ones.

    `deleted`: rows that became tombstones or went. A tombstone of a row never seen counts as inserted. `ignored`: the
    table had a newer event.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class MergeVerdict:
    """Per event: a new row; a new version of a row; removal of a row (hard deletes); not to be judged."""

    new: Bools
    replaces: Bools
    removes: Bools
    late_rows: Bools
    deletes: Bools

    def counts(self) -> Counts:
        deleted = (self.replaces & self.deletes) | self.removes
        inserted, updated = int(self.new.sum()), int((self.replaces & ~self.deletes).sum())
        newly_deleted = int(deleted.sum())
        ignored = len(self.new) - inserted - updated - newly_deleted - int(self.late_rows.sum())
        return Counts(inserted, updated, newly_deleted, ignored)


# -- columns -----------------------------------------------------------------------------------------------


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """A file's rows in the table's schema: files written before a column was added lack it, at any depth.

    Raises pa.ArrowInvalid for a file whose types the table's do not hold.
    """
    if rows.schema.equals(schema):
        return rows
    columns = []
    for target_field in schema:
        index = rows.schema.get_field_index(target_field.name)
        if index < 0:
            columns.append(pa.nulls(rows.num_rows, target_field.type))
        else:
            column = rows.column(index)
            columns.append(in_type(column, target_field.type))
    return pa.table(columns, schema=schema)


def _picked(kind: pa.DataType, paths: Iterable[tuple[str, ...]]) -> pa.DataType:
    """A struct type with only the fields on `paths`, those that it has."""
    inner: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        inner.setdefault(path[0], []).append(path[1:])
    fields = []
    for child in kind:
        if child.name in inner:
            deeper = [path for path in inner[child.name] if path]
            fields.append(child.with_type(_picked(child.type, deeper)) if deeper else child)
    return pa.struct(fields)


def _where(keep: pa.Array, column: pa.ChunkedArray) -> pa.Array:
    """The column with null where `keep` is False; for any type."""
    places = np.arange(len(column))
    return flat(column).take(pa.array(places, mask=~bools(keep)))


def bools(column: pa.Array) -> Bools:
    """False for null."""
    return np.asarray(pc.fill_null(flat(column), False).to_numpy(zero_copy_only=False), bool)


def flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """In one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
