"""What events make of the versions in a history table, row by row: pure functions of both.

A history table has the key columns, the columns of its own (`OWN`), the payload's, and the metadata of the event that
began the version. A delete is a row too, which holds for no time: an older event of its key may still come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digits import PREFIX, WIDTH, metadata_in
from distributary.changes.keys import KeyIndex
from distributary.changes.reduce import Places, Ranked, has_row_ids
from distributary.changes.sequence import Bools, Longs, Numbers, OrderSettings
from distributary.changes.spans import NEVER, Spans, in_true_order, spans
from distributary.changes.unfilled import Unfilled, lacking
from distributary.names import beside_ours
from distributary.tables.datafile import LONGEST_TEXT
from distributary.tables.merge_files import LiveFile
from distributary.tables.merge_rows import DELETED

VALID_FROM, VALID_TO, IS_CURRENT, UNTIL = "valid_from", "valid_to", "is_current", "_until"
TIME = pa.timestamp("us", tz="UTC")
OWN = pa.schema(
    [(VALID_FROM, TIME), (VALID_TO, TIME), (IS_CURRENT, pa.bool_()), (DELETED, pa.bool_()), (UNTIL, pa.string())]
)
"""The columns of a history table besides those of the events. They stand behind the keys: only the first columns of a
file have bounds. A column of the source with one of these names is `<name>__field` (`own_names`)."""
OPEN = "~"
"""`_until` of a version that no event has ended; greater than any place."""


def as_columns(log: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The columns of a history table of events with the columns `log`."""
    return as_history(log.empty_table(), keys).schema


def own_names(columns: Sequence[str]) -> dict[str, str]:
    """What columns of events are called in a history table."""
    return dict(zip(columns, beside_ours(columns, OWN.names), strict=True))


def as_history(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Events with the columns of a history table, those of its own without values. A delete has its key only."""
    metadata = metadata_in(rows.column_names)
    is_delete = pc.fill_null(pc.struct_field(rows.column(metadata).combine_chunks(), "is_deleted"), False)
    living = np.asarray(pc.invert(is_delete).to_numpy(zero_copy_only=False), bool)
    every = np.arange(rows.num_rows)
    named = own_names(rows.column_names)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {named[key]: rows.column(key) for key in keys}
    columns |= {field.name: pa.nulls(rows.num_rows, field.type) for field in OWN} | {DELETED: is_delete}
    for name in rows.column_names:
        column = rows.column(name)
        if name not in keys and name != metadata and not living.all():
            column = column.combine_chunks().take(pa.array(every, mask=~living))
        columns[named[name]] = column
    return pa.table(columns)


@dataclass(frozen=True)
class Met:
    """Versions of the table that may change: in which file and where in it, of which key and event, what is known of
    their time, and whether their event may have said only a part (`silent`)."""

    file: Places
    row: Places
    codes: Places
    ranked: list[Ranked]
    times: Longs
    deleted: Bools
    begin: Longs
    end: Longs
    silent: Bools
    until: pa.Array

    @classmethod
    def none(cls, incoming: IncomingVersions) -> Met:
        no, nothing = np.zeros(0, np.int64), np.zeros(0, bool)
        return cls(no, no, no, [], no, nothing, no, no, nothing, pa.array([], pa.string()))

    @classmethod
    def joined(cls, met_of_files: Sequence[Met], incoming: IncomingVersions) -> Met:
        not_empty = [met for met in met_of_files if len(met.codes)]
        if not not_empty:
            return cls.none(incoming)
        names = ("file", "row", "codes", "times", "deleted", "begin", "end", "silent")
        arrays = [np.concatenate([getattr(met, name) for met in not_empty]) for name in names]
        file, row, codes, times, deleted, begin, end, silent = arrays
        until = pa.concat_arrays([met.until for met in not_empty])
        ranked = [ranked_rows for met in not_empty for ranked_rows in met.ranked]
        return cls(file, row, codes, ranked, times, deleted, begin, end, silent, until)


class IncomingVersions:
    """A batch's events, as they meet the versions of the table."""

    def __init__(
        self,
        rows: pa.Table,
        keys: tuple[str, ...],
        order: OrderSettings,
        unchanged: Mapping[str, pa.Array],
        *,
        filled: bool = False,
        partial: bool = False,
    ) -> None:
        """`filled`, `partial`: as `history_table.merge_history` has them."""
        self.rows, self.keys, self.order, self.unchanged = rows, keys, order, unchanged
        self.filled, self.partial = filled, partial
        self.index = KeyIndex(rows, keys)
        self.metadata = metadata_in(rows.column_names)
        metadata = rows.column(self.metadata).combine_chunks()
        self.oracle = has_row_ids(metadata)
        self.ranked = Ranked.of(metadata, order, oracle=self.oracle)
        self.times = _micros(metadata)
        self.deleted = _bools(rows.column(DELETED))
        self.places = _heads(self.ranked.numbers, order)
        count = len(self.index)
        self._first = np.full(count, OPEN.encode(), self.places.dtype)
        ordered = np.lexsort([self.places, self.index.codes])[::-1]
        # Of each key the one that is written last: its first in order.
        self._first[self.index.codes[ordered]] = self.places[ordered]
        self._earliest = np.full(count, NEVER)
        np.minimum.at(self._earliest, self.index.codes, self.times)
        self._oldest = min(self._first.tolist(), default=OPEN.encode()), int(self._earliest.min(initial=NEVER))

    @property
    def whole(self) -> bool:
        """May an event change the order of all versions of its key?"""
        return bool(self.order) or self.oracle

    def needs(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table that `meet` asks for."""
        names = [*self.keys, *OWN.names, self.metadata]
        return pa.schema([schema.field(name) for name in dict.fromkeys(names)])

    def touches(self, file: LiveFile, last_end: int | None) -> bool:
        """May a version in the file change? `last_end`: the greatest `valid_to` in it, None where that is not known."""
        bound = file.bounds[-1]
        if self.whole or bound is None or last_end is None:
            return True
        place, time = self._oldest
        return str(bound[1]).encode() >= place or last_end > time

    def meet(self, number: int, file_rows: pa.Table) -> Met:
        """Those of the rows of file `number` that an event may change."""
        codes = self.index.find(file_rows)
        until = file_rows.column(UNTIL).combine_chunks()
        begin, end = (_longs(file_rows.column(name)) for name in (VALID_FROM, VALID_TO))
        mine = codes >= 0
        if not self.whole and mine.any():
            ends = np.array(until.fill_null(OPEN).to_numpy(zero_copy_only=False), np.bytes_)
            of_key = np.where(mine, codes, 0)
            mine &= (ends >= self._first[of_key]) | (end > self._earliest[of_key])
        places = np.flatnonzero(mine)
        metadata = file_rows.column(self.metadata).combine_chunks().take(pa.array(places))
        ranked = Ranked.of(metadata, self.order, oracle=self.oracle)
        is_deleted = _bools(file_rows.column(DELETED))[places]
        file = np.full(len(places), number)
        return Met(
            file,
            places,
            codes[places],
            [ranked],
            _micros(metadata),
            is_deleted,
            begin[places],
            end[places],
            ~is_deleted if self.partial else lacking(metadata),
            until.take(pa.array(places)),
        )

    def with_versions(self, met: Met) -> Versions:
        """What becomes of the versions that were met, and of the events. Raises Unfilled where events came late: which
        value a version has, all events of its key tell."""
        codes = np.concatenate([met.codes, self.index.codes])
        ranked = _together([*met.ranked, self.ranked])
        times, deleted = np.concatenate([met.times, self.times]), np.concatenate([met.deleted, self.deleted])
        key_spans = spans(codes, in_true_order(codes, ranked), times, deleted)
        if not self.filled:
            self._check_filled(met, key_spans, codes)
        silent = self._still_silent(codes, ranked.numbers, len(met.codes))
        return Versions(self, met, key_spans, codes[key_spans.order], _heads(ranked.numbers, self.order), silent)

    def _check_filled(self, met: Met, key_spans: Spans, codes: Places) -> None:
        """An event that came before a version may say what that one does not. The value of a silent one there may be
        that of an event without a version, which would hold for no time."""
        olds, order = len(met.codes), key_spans.order
        is_new, of_key = order >= olds, codes[order]
        first_new, last_old = np.full(len(self.index), len(order)), np.full(len(self.index), -1)
        np.minimum.at(first_new, of_key[is_new], np.flatnonzero(is_new))
        np.maximum.at(last_old, of_key[~is_new], np.flatnonzero(~is_new))
        silent = np.concatenate([met.silent, self._silent()])[order]
        places = np.arange(len(order))
        unsure = silent & np.where(is_new, places < last_old[of_key], places > first_new[of_key])
        if unsure.any():
            # What comes with all events of some keys fills every version anew whose event has come again.
            repeated = self.index.codes[self._silent() & np.isin(self.index.codes, met.codes)]
            unsure_rows = np.isin(self.index.codes, np.union1d(of_key[unsure], repeated))
            raise Unfilled(self.rows.select(self.keys).filter(pa.array(unsure_rows)))

    def _silent(self) -> Bools:
        """The events that do not speak of a column."""
        masks = [np.zeros(self.rows.num_rows, bool), *map(_bools, self.unchanged.values())]
        return np.asarray(np.logical_or.reduce(masks), bool)

    def _still_silent(self, codes: Places, numbers: Numbers, olds: int) -> Mapping[str, Bools]:
        """Column -> the versions that were met whose event has come again, and does not speak of it."""
        if not self.filled:
            return {}
        events = list(zip(codes.tolist(), numbers.tolist(), strict=True))
        masks = {}
        for column, mask in self.unchanged.items():
            silent = {event for event, is_silent in zip(events[olds:], _bools(mask).tolist(), strict=True) if is_silent}
            masks[column] = np.array([event in silent for event in events[:olds]], bool)
        return masks


@dataclass(frozen=True)
class Versions:
    """`spans` of the versions that were met and the events behind them, and what of it is new. `codes`: of their keys,
    `heads`: the beginnings of the places of all rows. `still_silent`: versions that were met and are to be filled anew,
    by column."""

    incoming: IncomingVersions
    met: Met
    spans: Spans
    codes: Places
    heads: Numbers
    still_silent: Mapping[str, Bools] = field(default_factory=dict)

    def until(self) -> pa.Array:
        """Of each row in the order of the spans."""
        ended = self.spans.next_ >= 0
        heads = pa.array(self.heads.astype(str)[np.where(ended, self.spans.next_, 0)], pa.string())
        return pc.if_else(pa.array(ended), heads, pa.scalar(OPEN))

    def changed(self) -> Places:
        """The versions of the table that are to be written anew, or go; numbers of rows that were met."""
        order, met = self.spans.order, self.met
        olds = len(met.codes)
        same = np.zeros(olds, bool)
        mine = np.flatnonzero((order < olds) & self.spans.held)
        met_rows = order[mine]
        until = _bools(pc.equal(self.until().take(pa.array(mine)), met.until.take(pa.array(met_rows))))
        same[met_rows] = (
            (self.spans.begin[mine] == met.begin[met_rows]) & (self.spans.end[mine] == met.end[met_rows]) & until
        )
        same[[row for sources in self._sources().values() for row in sources[sources < olds].tolist()]] = False
        for silent in self.still_silent.values():
            same &= ~silent
        return np.flatnonzero(~same)

    def is_new(self) -> bool:
        return bool(len(self.changed())) or bool((self.spans.order[self.spans.held] >= len(self.met.codes)).any())

    def _sources(self) -> dict[str, Places]:
        """Column of which some events do not speak -> by row in order, the row whose value it has."""
        rows_of, order, olds = {}, self.spans.order, len(self.met.codes)
        first = np.r_[True, self.codes[1:] != self.codes[:-1]] if len(order) else np.zeros(0, bool)
        for column, mask in self.incoming.unchanged.items():
            met_silent = self.still_silent.get(column, np.zeros(olds, bool))
            silent = np.concatenate([met_silent, _bools(mask)])[order]
            if silent.any():
                last_said = np.maximum.accumulate(np.where(~silent | first, np.arange(len(order)), 0))
                rows_of[column] = np.where(silent, order[last_said], np.iinfo(np.int64).max)
        return rows_of

    def written(self, taken_out: tuple[Places, pa.Table] | None) -> pa.Table:
        """The versions to write, whole. `taken_out`: numbers of rows that were met and are to be written anew, and
        they."""
        numbers, old = taken_out or (np.zeros(0, np.int64), self.incoming.rows.slice(0, 0))
        olds = len(self.met.codes)
        row_of = np.full(olds + self.incoming.rows.num_rows, -1, np.int64)
        row_of[numbers] = np.arange(len(numbers))
        row_of[olds:] = len(numbers) + np.arange(self.incoming.rows.num_rows)
        both = pa.concat_tables([old, self.incoming.rows]).combine_chunks()
        mine = np.flatnonzero(self.spans.held & (row_of[self.spans.order] >= 0))
        rows = both.take(pa.array(row_of[self.spans.order[mine]]))
        for column, sources in self._sources().items():
            silent = sources[mine] < len(row_of)
            picked = row_of[np.where(silent, sources[mine], self.spans.order[mine])]
            index = rows.schema.get_field_index(column)
            rows = rows.set_column(index, rows.schema.field(index), both.column(column).take(pa.array(picked)))
        return self._timed(rows, mine).sort_by([(key, "ascending") for key in self.incoming.keys])

    def _timed(self, rows: pa.Table, mine: Places) -> pa.Table:
        begin, end = self.spans.begin[mine], self.spans.end[mine]
        current = (self.spans.next_[mine] < 0) & ~_bools(rows.column(DELETED))
        values = {
            VALID_FROM: pa.array(begin, mask=begin == NEVER).cast(TIME),
            VALID_TO: pa.array(end, mask=end == NEVER).cast(TIME),
            IS_CURRENT: pa.array(current),
            UNTIL: self.until().take(pa.array(mine)),
        }
        for name, column in values.items():
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(index), column)
        return rows


def _heads(numbers: Numbers, order: OrderSettings) -> Numbers:
    """The beginnings of places, as `_until` has them: as much as a bound of a file can hold, without what settings
    decide."""
    begin = PREFIX if order else 0
    width = WIDTH - PREFIX + begin
    digits = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), width)
    return np.ascontiguousarray(digits[:, begin : begin + LONGEST_TEXT]).reshape(-1).view(f"S{LONGEST_TEXT}")


def _together(all_ranked: Sequence[Ranked]) -> Ranked:
    numbers = np.concatenate([ranked.numbers for ranked in all_ranked])
    leaves = [ranked.leaves for ranked in all_ranked if ranked.leaves is not None]
    takes = [ranked.takes for ranked in all_ranked if ranked.takes is not None]
    transactions = [ranked.transactions for ranked in all_ranked if ranked.transactions is not None]
    rows = [ranked.rows for ranked in all_ranked if ranked.rows is not None]
    if not leaves:
        return Ranked(numbers)
    of_row = pa.concat_arrays(transactions), pa.concat_arrays(rows)
    return Ranked(numbers, np.concatenate(leaves), np.concatenate(takes), *of_row)


def _micros(metadata: pa.Array) -> Longs:
    """Source times; `NEVER` where there is none."""
    time = pc.struct_field(metadata, "source_timestamp")
    millis = np.asarray(pc.fill_null(time, 0).to_numpy(zero_copy_only=False)).astype(np.int64)
    return np.where(_bools(pc.is_valid(time)), millis * 1000, NEVER)


def _longs(column: pa.ChunkedArray) -> Longs:
    """Times in microseconds; `NEVER` for null."""
    values = column.combine_chunks().cast(TIME).cast(pa.int64())
    return np.asarray(pc.fill_null(values, NEVER).to_numpy(zero_copy_only=False))


def _bools(column: pa.ChunkedArray | pa.Array) -> Bools:
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(pc.fill_null(flat, False).to_numpy(zero_copy_only=False), bool)
