"""From a batch's events to one per key: the newest in true order, whatever order they came in.

Which of two events of a key holds is one rule, used here and by both merge engines against the table's row: the greater
change_sequence_number. One exception, in Oracle, which checks keys at the end of a statement: with 1 -> 2 and 2 -> 3 in
one statement, the row that takes key 2 may be logged before the one that leaves it. So an UPDATE-DELETE loses, whatever
its number, to an UPDATE-INSERT of its own transaction that concerns another row (row_id); to nothing else: only an
update leaves and takes keys in one statement, so an insert that stands before it, and comes again, is older. Debezium
says in a header only, which is not always read, that a delete and an insert are an update of the key: so of its events
any DELETE gives way to any INSERT of that kind (two rows have one key within a statement only). The events
are gone through in their order, so all those of a transaction must be at hand where rows of it hand a key on: events
that are reduced a part at a time keep them (`partly`), and a merge asks for them (`changes.handed_on`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes import anew
from distributary.changes.digits import METADATA as METADATA
from distributary.changes.digits import NUMBER as NUMBER
from distributary.changes.digits import UNCHANGED, metadata_in, unchanged_columns
from distributary.changes.keys import KeyIndex
from distributary.changes.model import DEBEZIUM
from distributary.changes.sequence import Bools, Numbers, OrderSettings, standing

KEY_LEFT = "UPDATE-DELETE"
KEY_TAKEN = "UPDATE-INSERT"

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranked:
    """What decides between events of one key. The others are there only where Oracle's exception may apply."""

    numbers: Numbers
    leaves: Bools | None = None
    takes: Bools | None = None
    transactions: pa.Array | None = None
    rows: pa.Array | None = None

    @classmethod
    def of(cls, metadata: pa.Array, settings: OrderSettings, *, oracle: bool) -> Ranked:
        """`metadata`: structs of `METADATA_TYPE`, or those of their fields that `needs` names."""
        time = _field(metadata, "source_timestamp") if settings else None
        backfill = _field(metadata, "is_backfill") if settings else None
        numbers = standing(_field(metadata, NUMBER), time, backfill, settings)
        if not oracle:
            return cls(numbers)
        source = _field(metadata, "source")
        leaves, takes = (_is_of(metadata, *types) for types in ((KEY_LEFT, "DELETE"), (KEY_TAKEN, "INSERT")))
        return cls(numbers, leaves, takes, _field(source, "tx_id"), _field(source, "row_id"))

    @staticmethod
    def needs(settings: OrderSettings, *, oracle: bool) -> list[str]:
        """Paths within the metadata struct that `of` reads."""
        paths = [NUMBER]
        if settings:
            paths += ["source_timestamp", "is_backfill"]
        if oracle:
            paths += ["change_type", "read_method", "source.tx_id", "source.row_id"]
        return paths

    def take(self, places: Places) -> Ranked:
        if self.leaves is None or self.takes is None or self.transactions is None or self.rows is None:
            return Ranked(self.numbers[places])
        indices = pa.array(places)
        flags = self.leaves[places], self.takes[places]
        return Ranked(self.numbers[places], *flags, self.transactions.take(indices), self.rows.take(indices))

    def holds_over(self, other: Ranked) -> Bools:
        """Where an event of these replaces the one of `other` in the same place: never where they are the same."""
        newer = self.numbers > other.numbers
        if self.leaves is None or other.leaves is None:
            return np.asarray(newer)
        weak = self.left_for(other)
        strong = other.left_for(self)
        return np.asarray((newer & ~weak) | strong)

    def left_for(self, other: Ranked) -> Bools:
        """Oracle's exception: where these left a key that another row took in the same statement."""
        assert self.leaves is not None and other.takes is not None
        return np.asarray(self.leaves & other.takes & self._shares_transaction(other))

    def _shares_transaction(self, other: Ranked) -> Bools:
        """Where the two are of one transaction, but of different rows."""
        same = pc.fill_null(pc.equal(self.transactions, other.transactions), False)
        another = pc.fill_null(pc.not_equal(self.rows, other.rows), False)
        return np.asarray(pc.and_(same, another).to_numpy(zero_copy_only=False), bool)

    def settled(self, transactions: Collection[str]) -> Ranked:
        """With all events of these transactions weighed: whoever leaves a key in the end gives way to none of them."""
        if self.leaves is None or not transactions:
            return self
        return replace(self, leaves=self.leaves & ~self._is_in(transactions))

    def handed_on(self, other: Ranked, settled: Collection[str]) -> set[str]:
        """Transactions, but those of `settled`, in which another row than the other's left or took its key."""
        if self.leaves is None or self.takes is None or other.leaves is None or other.takes is None:
            return set()
        moves = self.leaves | self.takes | other.leaves | other.takes
        handing_on = moves & self._shares_transaction(other) & ~self._is_in(settled)
        assert self.transactions is not None
        return set(self.transactions.filter(pa.array(handing_on)).to_pylist()) if handing_on.any() else set()

    def _is_in(self, transactions: Collection[str]) -> Bools:
        assert self.transactions is not None
        named = pc.is_in(self.transactions, value_set=pa.array(sorted(transactions), self.transactions.type))
        return np.asarray(named.to_numpy(zero_copy_only=False), bool)


def _is_of(metadata: pa.Array, moved: str, alone: str) -> Bools:
    """Which events are of the type that says that a key was moved, or perhaps are, for Debezium did not say so."""
    change = _field(metadata, "change_type")
    perhaps = pc.and_(pc.equal(change, alone), pc.starts_with(_field(metadata, "read_method"), DEBEZIUM))
    named = pc.or_kleene(pc.equal(change, moved), perhaps)
    return np.asarray(pc.fill_null(named, False).to_numpy(zero_copy_only=False), bool)


@dataclass(frozen=True, slots=True)
class Reduced:
    """One row per key. `unchanged`: column -> True where the row does not say what its value is, and neither does an
    older event of the batch: the table's living row keeps its own."""

    rows: pa.Table
    unchanged: Mapping[str, pa.Array] = field(default_factory=dict)
    since: Numbers | None = None
    """The number of the oldest event that each row has a value of, where that is not its own; None: of no row."""


@dataclass(frozen=True, slots=True)
class MissingColumns:
    """Columns that an event may not speak of.

    `toast`: null in an update means "unchanged" (PostgreSQL does not log an unchanged TOAST value). `absent`: schema
    key -> columns of the table that events of this schema lack, where those are to keep their values. Besides these,
    a schema key may say itself of which columns its events do not speak (`layout.UNCHANGED`).
    """

    toast: tuple[str, ...] = ()
    absent: Mapping[str, Collection[str]] = field(default_factory=dict)

    def unchanged(self, rows: pa.Table) -> dict[str, Bools]:
        """Column -> the rows that do not speak of it. An insert or a delete is complete as it is."""
        metadata = _flat(rows.column(metadata_in(rows.column_names)))
        schemas = _field(metadata, "schema_key")
        absent = {**self.absent, **_marked(schemas)}
        if not self.toast and not any(absent.values()):
            return {}
        kind = pc.fill_null(_field(metadata, "change_type"), "")
        logged = pc.invert(pc.fill_null(_field(metadata, "is_backfill"), False))
        complete = pc.or_(pc.and_(pc.equal(kind, "INSERT"), logged), _deleted(metadata))
        partial = np.asarray(pc.invert(complete).to_numpy(zero_copy_only=False), bool)
        masks: dict[str, Bools] = {}
        for column in self.toast:
            if column in rows.column_names:
                null = pc.is_null(_flat(rows.column(column))).to_numpy(zero_copy_only=False)
                change = logged.to_numpy(zero_copy_only=False)
                masks[column] = np.asarray(partial & null & change)
        for key, columns in absent.items():
            of_schema = pc.fill_null(pc.equal(schemas, key), False).to_numpy(zero_copy_only=False)
            for column in columns:
                if column in rows.column_names:
                    masks[column] = masks.get(column, np.zeros(rows.num_rows, bool)) | (partial & of_schema)
        return {column: rows_ for column, rows_ in masks.items() if rows_.any()}


def _marked(schemas: pa.Array) -> dict[str, list[str]]:
    """Schema keys that name columns -> these."""
    keys = pc.unique(schemas).to_pylist()  # they are few
    return {key: unchanged_columns(key) for key in keys if key is not None and UNCHANGED in key}


def newest(rows: pa.Table, keys: Sequence[str], settings: OrderSettings | None = None) -> pa.Table:
    """One row per key, the newest; in the order in which the winners stood.

    Args:
        rows: events of one source table with a column `datastream_metadata`, in any order, duplicates included.
        keys: the key's columns, at least one, of any flat types; null is a value like others.

    Raises ValueError for no keys or a key of a nested type, BegunAnew where two events of a key cannot be of one log.
    """
    return reduce_rows(rows, keys, OrderSettings() if settings is None else settings).rows


def reduce_rows(
    rows: pa.Table, keys: Sequence[str], settings: OrderSettings, gaps: MissingColumns | None = None
) -> Reduced:
    """As `newest`; columns that the newest event of a key does not speak of come from the events before it.

    Raises as `newest`.
    """
    index = KeyIndex(rows, keys)
    unchanged = (gaps or MissingColumns()).unchanged(rows)
    if len(index) == rows.num_rows:
        return Reduced(rows, {column: pa.array(mask) for column, mask in unchanged.items()})
    metadata = _flat(rows.column(metadata_in(rows.column_names)))
    ranked = Ranked.of(metadata, settings, oracle=has_row_ids(metadata))
    places = _winners(index.codes, len(index), ranked)
    _check_log(index.codes, places, ranked, settings)
    reduced = Reduced(rows.take(pa.array(places)), {c: pa.array(mask[places]) for c, mask in unchanged.items()})
    return _filled(reduced, rows, places, index.codes, ranked, unchanged) if unchanged else reduced


def partly(rows: pa.Table, keys: Sequence[str], settings: OrderSettings) -> pa.Table:
    """What of these events still counts when others of their keys come: the newest of each key, and, of Oracle, all
    those of a transaction in which several rows had the key.

    Args and raises as `newest`.
    """
    index = KeyIndex(rows, keys)
    if len(index) == rows.num_rows:
        return rows
    metadata = _flat(rows.column(metadata_in(rows.column_names)))
    ranked = Ranked.of(metadata, settings, oracle=has_row_ids(metadata))
    places = _winners(index.codes, len(index), ranked)
    _check_log(index.codes, places, ranked, settings)
    if ranked.leaves is None:
        return rows.take(pa.array(places))
    still_counts = _shared(index.codes, ranked)
    still_counts[places] = True
    return rows.filter(pa.array(still_counts))


def _shared(codes: Places, ranked: Ranked) -> Bools:
    """The events of a key and a transaction that concern more than one row."""
    events = pa.table({"key": codes, "transaction": ranked.transactions, "row": ranked.rows})
    with_transaction = events.filter(pc.is_valid(events.column("transaction")))
    rows = with_transaction.group_by(["key", "transaction"]).aggregate([("row", "count_distinct")])
    several = rows.filter(pc.greater(rows.column("row_count_distinct"), 1)).select(["key", "transaction"])
    if not several.num_rows:
        return np.zeros(len(codes), bool)
    return np.asarray(KeyIndex(several, ["key", "transaction"]).find(events) >= 0)


def has_row_ids(metadata: pa.Array) -> bool:
    """Do these events name rows beside their keys (Oracle)?"""
    source = metadata.type.get_field_index("source")
    if source < 0 or metadata.type.field(source).type.get_field_index("row_id") < 0:
        return False
    rows = _field(_field(metadata, "source"), "row_id")
    return bool(len(rows) > rows.null_count)


def _winners(codes: Places, keys: int, ranked: Ranked) -> Places:
    """The row that holds for each key, ascending."""
    alone = np.bincount(codes, minlength=keys)[codes] == 1
    several = ~alone
    winners = [np.flatnonzero(alone)]
    if ranked.leaves is not None:
        # Oracle's exception does not chain, so the order of comparisons counts.
        in_order = np.zeros(keys, bool)
        in_order[codes[ranked.leaves]] = True
        stepped = several & in_order[codes]
        winners.append(_stepwise(codes, np.flatnonzero(stepped), ranked))
        several &= ~stepped
    winners.append(_by_rounds(codes, np.flatnonzero(several), ranked))
    return np.sort(np.concatenate(winners))


def _check_log(codes: Places, winners: Places, ranked: Ranked, settings: OrderSettings) -> None:
    """Raises BegunAnew where an event gives way to one that cannot be of the same log."""
    winner = np.empty(len(winners), np.int64)
    winner[codes[winners]] = winners
    lost = np.ones(len(codes), bool)
    lost[winners] = False
    losers = np.flatnonzero(lost)
    holders = winner[codes[losers]]
    later = ranked.numbers[holders] > ranked.numbers[losers]
    anew.check(ranked.numbers[holders[later]], ranked.numbers[losers[later]], settings)


def _by_rounds(codes: Places, contenders: Places, ranked: Ranked) -> Places:
    """Neighbours of one key meet until one of each is left."""
    contenders = contenders[np.argsort(codes[contenders], kind="stable")]
    while len(contenders):
        of_key = codes[contenders]
        first = np.flatnonzero(np.r_[True, of_key[1:] != of_key[:-1]])
        if len(first) == len(contenders):
            break
        place = np.arange(len(contenders)) - np.repeat(first, np.diff(np.r_[first, len(contenders)]))
        meets = np.flatnonzero((place[1:] % 2 == 1) & (of_key[1:] == of_key[:-1]))
        wins = ranked.take(contenders[meets + 1]).holds_over(ranked.take(contenders[meets]))
        contenders[meets] = np.where(wins, contenders[meets + 1], contenders[meets])
        contenders = np.delete(contenders, meets + 1)
    return contenders


def _stepwise(codes: Places, rows: Places, ranked: Ranked) -> Places:
    """Each key's events one after the other, from its oldest to its newest."""
    rows = rows[np.lexsort([ranked.numbers[rows], codes[rows]])]
    of_key = codes[rows]
    first = np.flatnonzero(np.r_[True, of_key[1:] != of_key[:-1]]) if len(rows) else np.zeros(0, np.int64)
    sizes = np.diff(np.r_[first, len(rows)])
    holds = rows[first]
    for step in range(1, int(sizes.max(initial=1))):
        open_keys = np.flatnonzero(sizes > step)
        next_ = rows[first[open_keys] + step]
        wins = ranked.take(next_).holds_over(ranked.take(holds[open_keys]))
        holds[open_keys] = np.where(wins, next_, holds[open_keys])
    return holds


def _filled(
    reduced: Reduced, rows: pa.Table, places: Places, codes: Places, ranked: Ranked, unchanged: Mapping[str, Bools]
) -> Reduced:
    """Look back through each key's older events for what its newest one does not say."""
    deleted = np.asarray(
        _deleted(_flat(rows.column(metadata_in(rows.column_names)))).to_numpy(zero_copy_only=False), bool
    )
    order = np.lexsort([ranked.numbers, codes])
    begins = np.searchsorted(codes[order], np.arange(int(codes.max()) + 2))
    table, still, since = reduced.rows, {}, ranked.numbers[places]
    for column, mask in unchanged.items():
        value_rows, open_ = places.copy(), mask[places]
        for number in np.flatnonzero(open_).tolist():
            code = codes[places[number]]
            of_key = order[begins[code] : begins[code + 1]]
            source_row = _said_before(int(places[number]), of_key, mask, deleted)
            if source_row is not None:
                value_rows[number], open_[number] = source_row[0], False
                since[number] = min(since[number], ranked.numbers[source_row[1]])
        values = _flat(rows.column(column)).take(pa.array(value_rows))
        table = table.set_column(table.column_names.index(column), table.schema.field(column), values)
        still[column] = pa.array(open_)
    still = {c: m for c, m in still.items() if pc.any(m).as_py()}
    return replace(reduced, rows=table, unchanged=still, since=since)


def _said_before(winner: int, of_key: Places, mask: Bools, deleted: Bools) -> tuple[int, int] | None:
    """(The row that has the value, the row that says so): the last one before the winner that does; after a delete the
    winner, with null."""
    last_row: tuple[int, int] | None = None
    for row in of_key.tolist():
        if row == winner:
            break
        if deleted[row]:
            last_row = winner, row
        elif not mask[row]:
            last_row = row, row
    return last_row


# -- columns -----------------------------------------------------------------------------------------------


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _field(struct: pa.Array, name: str) -> pa.Array:
    return pc.struct_field(struct, name)


def _deleted(metadata: pa.Array) -> pa.Array:
    return pc.fill_null(_field(metadata, "is_deleted"), False)
