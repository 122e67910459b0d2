"""What a merge decides, row by row: pure functions of the events and of what the table holds of their keys.

A merged table has the payload's columns, the struct `datastream_metadata` (of messages `_change`) of the event that
made the row, and `_deleted`, `_deleted_at`: a deleted row stays as a tombstone, since an older event of its key may
still come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes import anew
from distributary.changes.digits import metadata_in
from distributary.changes.handed_on import HandedOn
from distributary.changes.key_text import in_type
from distributary.changes.keys import KeyIndex
from distributary.changes.reduce import MissingColumns, Places, Ranked, has_row_ids
from distributary.changes.sequence import Bools, Numbers, OrderSettings
from distributary.changes.unfilled import FIELDS, Unfilled, lacking, may_say
from distributary.tables.comments import COMMENT

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
    metadata = _flat(rows.column(name))
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
        metadata = _flat(rows.column(self.metadata))
        self.oracle = has_row_ids(metadata)
        self._ranked = Ranked.of(metadata, rules.order, oracle=self.oracle).settled(rules.settled or ())
        self._metadata = metadata
        self._since = self._ranked.numbers if since is None else since
        self.deletes = _bools(pc.struct_field(metadata, "is_deleted"))
        self.matched = np.zeros(rows.num_rows, bool)
        self.beaten = np.zeros(rows.num_rows, bool)
        self._unfilled = np.zeros(rows.num_rows, bool)

    def needs(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table that `meet` asks for: the keys, and what decides of the metadata."""
        paths = [tuple(path.split(".")) for path in Ranked.needs(self.rules.order, oracle=self.oracle)]
        metadata = schema.field(self.metadata)
        paths += [(name,) for name in FIELDS if self.rules.has_unchanged]
        metadata_field = metadata.with_type(_picked(metadata.type, paths))
        return pa.schema([*(schema.field(key) for key in self.keys), metadata_field])

    def meet(self, file_rows: pa.Table) -> tuple[Places, Places, Bools]:
        """(rows of `file_rows` whose key has an event, that event's row, whether the event holds over the row).

        Raises BegunAnew where the two cannot be of one log, HandedOn where more events of a key must be known.
        """
        event_of = self.index.find(file_rows)
        places = np.flatnonzero(event_of >= 0)
        mine = self._row_of[event_of[places]]
        theirs = _flat(file_rows.column(self.metadata)).take(pa.array(places))
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
        return places, mine, wins

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
            backfill = _bools(pc.struct_field(self._metadata, "is_backfill"))
            # A delete changes nothing either way: the row is not there, and its tombstone would be purged.
            old = ~self.matched & ~backfill & (time < self.rules.purged_until)
            late_rows, new = old & ~self.deletes, new & ~old
        takes = self.matched & ~self.beaten
        return MergeVerdict(new, takes & ~hard, takes & hard, late_rows, self.deletes)


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


def completed(
    incoming: Incoming, places: Places, old: pa.Table, olds: Places, unchanged: Mapping[str, pa.Array]
) -> pa.Table:
    """The new versions of rows (`places`: their events), with the values that stay as the table has them.

    `old`: rows of the table that are replaced; `olds`: the event of each.
    """
    rows = incoming.rows.take(pa.array(places))
    kept_columns = _kept_columns(incoming, rows, places, unchanged)
    if not kept_columns or not old.num_rows:
        return rows
    # Of two old rows of one key the last counts; both go.
    row_of = np.full(incoming.rows.num_rows, -1, np.int64)
    row_of[olds] = np.arange(len(olds))
    old_of = row_of[places]
    living = _bools(pc.invert(pc.fill_null(_flat(old.column(DELETED)), False)))
    for column, (mask, from_dead) in kept_columns.items():
        use = mask & (old_of >= 0)
        if not from_dead:
            use &= living[old_of]
        new = _flat(rows.column(column))
        both = pa.concat_arrays([new, _flat(old.column(column))])
        picked = np.where(use, len(new) + old_of, np.arange(len(new)))
        number = rows.column_names.index(column)
        rows = rows.set_column(number, rows.schema.field(number), both.take(pa.array(picked)))
    return rows


def _kept_columns(
    incoming: Incoming, rows: pa.Table, places: Places, unchanged: Mapping[str, pa.Array]
) -> dict[str, tuple[Bools, bool]]:
    """Column -> (rows whose value stays, also that of a tombstone)."""
    kept_columns = {
        column: (_bools(mask)[places], False) for column, mask in unchanged.items() if column in rows.column_names
    }
    are_deleted = incoming.deletes[places]
    if incoming.rules.keep_deleted_values and are_deleted.any():
        for column in rows.column_names:
            if column not in (*incoming.keys, incoming.metadata, DELETED, DELETED_AT):
                kept_columns[column] = (are_deleted & _bools(pc.is_null(_flat(rows.column(column)))), True)
    return {column: (mask, dead) for column, (mask, dead) in kept_columns.items() if mask.any()}


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
    return _flat(column).take(pa.array(places, mask=~_bools(keep)))


def _bools(column: pa.Array) -> Bools:
    return np.asarray(pc.fill_null(_flat(column), False).to_numpy(zero_copy_only=False), bool)


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
