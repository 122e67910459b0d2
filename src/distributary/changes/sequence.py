"""The place of a change event in its table's history, as one text: a greater text is the newer event.

A number is lower-case hex of fixed width, so its text order is the order of the events in every engine:

    generation 2 | epoch 4 | origin 1 | k1 16 | k2 16 | k3 16 | k4 16 | tie 37

- generation and epoch come from settings (`OrderSettings`), all else is a pure function of the event: replays, other
  batch cuts and other arrival orders give the same number. A merge evaluates the two anew on both sides (`standing`),
  so that they may be set later.
- origin: 1 for a backfilled row, more for a change read from the source's log. Any change of a key beats any
  backfilled row of it: what came after the read is in the log itself, what came before is in the row. A change's digit
  also names the layout of the rest: 4 MySQL, 5 PostgreSQL, 6 SQL Server, 2 the others.
- k1..k4: the position in the log, then the source time where it may still decide. Within one server's log the position
  is the order in which changes took place; a clock is not: it may be set back, and a binlog event has the time at which
  its statement began (DataflowTemplates#2867). A log that begins anew, as after a failover, cannot be told from the
  position: see `changes.anew`. PostgreSQL: LSN high, LSN low, commit time. SQL Server: the three parts of the LSN,
  commit time. Oracle: SCN, RS_ID, RS_ID's end and SSN, source time. MongoDB: seconds, increment. Others, and backfilled
  rows: source time. MySQL: file number, position, and the row's place within its binlog event (below).
- tie: read time, the row's counter in the uuid, whether it is an upsert, hash of the payload. MySQL has the first two
  in k3 and k4 and its source time here, where it never decides.

**The rows of one MySQL binlog event** share their position, and their source times say nothing (of a key that moves,
both halves carry times a second apart). What is certain of them is the order in which they stand in the event, which is
the order in which they were read. All rows of one reading share the read time and the beginning of the uuid, and the
end of the uuid counts them. So k3 is the read time and k4 the reading, the counter, whether it is an upsert: a key that
is left and then taken (`UPDATE t SET id = id + 1`) lives, and one that is taken and then left (a row that moves there
and back) does not. "The upsert is the newer one" decides only where all these are alike, as in files without uuids of
this form. An event that is read again, with another uuid, is read later, so that the last reading decides as a whole.
Limits: a reading that breaks off inside a binlog event decides until that has been read to its end. Of two readings in
one millisecond, or where a counter begins again, nobody knows the first; the same one is the later everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digit_rows import fixed, hex_digits, texts_of, uuid_parts
from distributary.changes.digits import FIRST_LAYOUT, LAYOUTS, METADATA, PREFIX, WIDTH, ZERO, Bytes, in_todays_layout

REPAIR_MARGIN_MS = int(timedelta(hours=1).total_seconds() * 1000)
"""Changes of so long before a repairing backfill count as its generation: they may still be missing in its rows."""

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.bytes_]
Meta: TypeAlias = Any
"""A pa.RecordBatch or pa.Table."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """What the events of a table cannot tell about their order. Times in ms since 1970, source time.

    `epochs`: (from, n) pairs; from that time on the source's log positions start anew, as after a failover (n grows
    with the time). `repair_backfills`: starts of backfills that mend a gap in the log; they beat older changes. `kind`:
    of the source, by which numbers of the first layout are read; "" leaves them as they are. `metadata`: the column
    of what is known of each event. `margin_ms`: how much
    later a change may be than one that stands behind it in the log, before that has begun anew (`changes.anew`).
    True where there are epochs or repairing backfills.
    """

    epochs: tuple[tuple[int, int], ...] = ()
    repair_backfills: tuple[int, ...] = ()
    kind: str = ""
    margin_ms: int = 7_200_000
    metadata: str = METADATA

    def __bool__(self) -> bool:
        return bool(self.epochs or self.repair_backfills)

    def prefix(self, source_timestamp: Longs, is_backfill: Bools) -> Bytes:
        """The first `PREFIX` digits of each event's number."""
        rows = len(source_timestamp)
        if not self:
            return np.full((rows, PREFIX), ZERO, np.uint8)
        starts = np.sort(np.array(self.repair_backfills, np.int64))
        of_row = np.searchsorted(starts, source_timestamp, side="right")
        of_change = np.searchsorted(starts - REPAIR_MARGIN_MS, source_timestamp, side="right")
        generation = np.where(is_backfill, of_row, of_change)
        epochs = sorted(self.epochs)
        since = np.array([start for start, _ in epochs], np.int64)
        names = np.array([0, *(n for _, n in epochs)], np.int64)
        epoch = names[np.searchsorted(since, source_timestamp, side="right")]
        return np.hstack([hex_digits(generation, 2), hex_digits(epoch, 4)])


@dataclass(frozen=True, slots=True)
class Sequences:
    """`numbers`: a string per event, never null. `bad`: (row, what is wrong) of events whose place is not known;
    their numbers are those of a position 0."""

    numbers: pa.Array
    bad: list[tuple[int, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        """So that `numbers, bad = sequence_numbers(...)` reads well."""
        return iter((self.numbers, self.bad))


def sequence_numbers(kind: str, meta: Meta, payload_hash: pa.Array, settings: OrderSettings | None = None) -> Sequences:
    """Number the events of one source table.

    Args:
        kind: mysql, oracle, postgresql, sqlserver, mongodb or generic.
        meta: the fields of `METADATA_TYPE` as columns; absent ones count as null. `is_deleted` and `is_backfill` are
            the rules applied, `change_sequence_number` is not read.
        payload_hash: uint64 per event, the same for the same payload in every run.
        settings: the table's epochs and repairing backfills.

    Raises ValueError for an unknown kind.
    """
    if kind not in _POSITIONS:
        raise ValueError(f"no order for events of {kind!r}; known: {', '.join(_POSITIONS)}")
    events = _Events(meta)
    backfill = events.flags("is_backfill")
    bad: dict[int, str] = {}
    time, has_time = events.longs("source_timestamp")
    positions = _POSITIONS[kind](events, time, ~backfill, bad)
    # Oracle reads its backfill at an SCN, the others know of a backfilled row only when it was read.
    if kind != "oracle":
        positions = [
            _read_at(position_part, backfill, time if not number else None)
            for number, position_part in enumerate(positions)
        ]
    if kind not in ("mysql", "oracle"):
        _report(bad, ~has_time & ~backfill, "no source_timestamp, so its place in the order is unknown")
    out = np.empty((meta.num_rows, WIDTH), np.uint8)
    out[:, :PREFIX] = (settings or OrderSettings()).prefix(time, backfill)
    out[:, PREFIX] = np.where(backfill, ord("1"), ord(LAYOUTS.get(kind, FIRST_LAYOUT)))
    for number, position in enumerate(positions):
        begin = PREFIX + 1 + 16 * number
        out[:, begin : begin + 16] = position if position.ndim == 2 else hex_digits(position, 16)
    out[:, PREFIX + 65 :] = tie = _tie(events, payload_hash)
    if kind == "mysql":
        tie = tie[~backfill].copy()
        tie[:, :20] = np.hstack([hex_digits(time[~backfill], 12), np.full((len(tie), 8), ZERO, np.uint8)])
        out[~backfill, PREFIX + 65 :] = tie
    return Sequences(texts_of(out), sorted(bad.items()))


def standing(numbers: Any, source_timestamp: Any, is_backfill: Any, settings: OrderSettings) -> Numbers:
    """Numbers as values that compare as the events do under `settings`, whatever the settings and the layout were when
    each was made.

    A row whose number is null, or not one of ours (made by another tool), is older than any event. The two other
    columns may be None where `settings` are empty.
    """
    texts = _flat(numbers).cast(pa.string())
    rows = len(texts)
    if not rows:
        return np.zeros(0, f"S{WIDTH}")
    ours = pc.fill_null(pc.equal(pc.binary_length(texts), WIDTH), False)
    if not pc.all(ours).as_py():
        texts = pc.if_else(ours, texts, "0" * WIDTH)
    digits = in_todays_layout(fixed(texts, WIDTH), settings.kind)
    if not settings:
        return np.ndarray((rows,), f"S{WIDTH - PREFIX}", digits, PREFIX, (WIDTH,))
    prefix = settings.prefix(_longs(_flat(source_timestamp))[0], _flags(_flat(is_backfill)))
    is_ours = ours.to_numpy(zero_copy_only=False)[:, None]
    return (
        np.hstack([np.where(is_ours, prefix, ZERO), digits[:, PREFIX:]]).astype(np.uint8).reshape(-1).view(f"S{WIDTH}")
    )


# -- positions ---------------------------------------------------------------------------------------------

_Positions: TypeAlias = list[npt.NDArray[Any]]
"""k1..k4: each `Longs`, or `Bytes` where it is hex text already."""


class _Events:
    """Metadata columns by name, as numpy arrays."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self.rows = meta.num_rows

    def column(self, path: str) -> pa.Array:
        names = path.split(".")
        index = self._meta.schema.get_field_index(names[0])
        if index < 0:
            return pa.nulls(self.rows)
        column = _flat(self._meta.column(index))
        for name in names[1:]:
            if column.type.get_field_index(name) < 0:
                return pa.nulls(self.rows)
            column = pc.struct_field(column, name)
        return column

    def texts(self, path: str) -> pa.Array:
        return self.column(path).cast(pa.string())

    def longs(self, path: str) -> tuple[Longs, Bools]:
        """Values (0 where null or negative) and where there is one."""
        return _longs(self.column(path))

    def flags(self, path: str) -> Bools:
        return _flags(self.column(path))

    @cached_property
    def uuid(self) -> tuple[Bytes, Bytes]:
        return uuid_parts(self.texts("uuid"))

    def sort_key(self, index: int) -> pa.Array:
        """One item of each event's `sort_keys`; null where the list is shorter."""
        keys = self.column("sort_keys")
        if pa.types.is_null(keys.type):
            return pa.nulls(self.rows, pa.string())
        is_long_enough = pc.greater(pc.fill_null(pc.list_value_length(keys), 0), index)
        # `list_element` refuses a list that is too short.
        items = pc.list_element(keys.filter(is_long_enough), index).cast(pa.string())
        places = np.cumsum(is_long_enough.to_numpy(zero_copy_only=False)) - 1
        return items.take(pa.array(places, pa.int64(), mask=~is_long_enough.to_numpy(zero_copy_only=False)))


def _mysql(events: _Events, time: Longs, changes: Bools, bad: dict[int, str]) -> _Positions:
    file = _filled(events.texts("source.log_file"))
    position = events.column("source.log_position").cast(pa.int64())
    if file.null_count or position.null_count:
        file = pc.coalesce(file, _filled(events.sort_key(1)))
        position = pc.coalesce(position, _whole(events.sort_key(2)))
    number, named = _by_value(file, file_number)
    position_in_file, placed = _longs(position)
    _report(
        bad,
        changes & ~(named & placed),
        "a MySQL change needs log_file (ending in a number) and log_position, or binlog_file and binlog_position",
    )
    reading, counter = events.uuid
    upsert = np.where(events.flags("is_deleted"), ZERO, ord("1")).astype(np.uint8)[:, None]
    return [number, position_in_file, events.longs("read_timestamp")[0], np.hstack([reading, counter, upsert])]


def _oracle(events: _Events, time: Longs, changes: Bools, bad: dict[int, str]) -> _Positions:
    scn, has_scn = events.longs("source.scn")
    ssn, _ = events.longs("source.ssn")
    texts = _filled(events.texts("source.rs_id"))
    rs_id = _parts(texts, r"^\s*(?:0x)?(?P<a>[0-9a-fA-F]{1,8})\.(?P<b>[0-9a-fA-F]{1,8})\.(?P<c>[0-9a-fA-F]{1,4})\s*$")
    _report(bad, changes & ~has_scn, "an Oracle change needs an scn")
    broken = pc.and_(pc.is_valid(texts), pc.is_null(rs_id)).to_numpy(zero_copy_only=False)
    _report(bad, changes & broken, "rs_id is not three hex parts, as in 0x000004.00000705.0010")
    block = np.hstack([_padded(rs_id, "a", 8), _padded(rs_id, "b", 8)])
    rest = np.hstack([_padded(rs_id, "c", 4), hex_digits(ssn, 12)])
    return [scn, block, rest, time]


def _postgresql(events: _Events, time: Longs, changes: Bools, bad: dict[int, str]) -> _Positions:
    lsn = _parts(events.texts("source.lsn"), r"^\s*(?P<a>[0-9a-fA-F]{1,16})/(?P<b>[0-9a-fA-F]{1,16})\s*$")
    _report(bad, changes & _missing(lsn), "a PostgreSQL change needs an lsn of two hex parts, as in 16/CB002DB0")
    return [_padded(lsn, "a", 16), _padded(lsn, "b", 16), time.copy(), np.zeros_like(time)]


def _sqlserver(events: _Events, time: Longs, changes: Bools, bad: dict[int, str]) -> _Positions:
    hexes = r"[0-9a-fA-F]{1,16}"
    lsn = _parts(events.texts("source.lsn"), rf"^\s*(?P<a>{hexes}):(?P<b>{hexes}):(?P<c>{hexes})\s*$")
    _report(bad, changes & _missing(lsn), "a SQL Server change needs an lsn of three hex parts: 00000025:00000728:0003")
    return [*(_padded(lsn, name, 16) for name in "abc"), time.copy()]


def _mongodb(events: _Events, time: Longs, changes: Bools, bad: dict[int, str]) -> _Positions:
    seconds, has_seconds = _longs(_whole(events.sort_key(0)))
    nanos, _ = _longs(_whole(events.sort_key(1)))
    # Some events have the time in ms as their only sort key.
    plain = ~has_seconds | (seconds >= 10**11)
    zero = np.zeros_like(time)
    return [np.where(plain, time // 1000, seconds), np.where(plain, time % 1000 * 10**6, nanos), zero, zero.copy()]


def _generic(events: _Events, time: Longs, changes: Bools, bad: dict[int, str]) -> _Positions:
    return [time.copy(), *(np.zeros_like(time) for _ in range(3))]


_POSITIONS: dict[str, Callable[[_Events, Longs, Bools, dict[int, str]], _Positions]] = {
    "mysql": _mysql,
    "oracle": _oracle,
    "postgresql": _postgresql,
    "sqlserver": _sqlserver,
    "mongodb": _mongodb,
    "generic": _generic,
}


def file_number(name: str) -> int | None:
    """`mysql-bin.1000000` is newer than `mysql-bin.999999`: the number at the end counts, not the text."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits and len(digits) < 19 else None


def _tie(events: _Events, payload_hash: pa.Array) -> Bytes:
    upsert = np.where(events.flags("is_deleted"), ZERO, ord("1")).astype(np.uint8)[:, None]
    read_time = hex_digits(events.longs("read_timestamp")[0], 12)
    digest = hex_digits(_flat(payload_hash).cast(pa.uint64()).to_numpy(zero_copy_only=False), 16)
    return np.hstack([read_time, events.uuid[1], upsert, digest])


# -- columns and digits ------------------------------------------------------------------------------------


def _flat(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _longs(column: pa.Array) -> tuple[Longs, Bools]:
    values = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return np.maximum(values, 0), values >= 0


def _flags(column: pa.Array) -> Bools:
    return np.asarray(pc.fill_null(column.cast(pa.bool_()), False).to_numpy(zero_copy_only=False), bool)


def _filled(texts: pa.Array) -> pa.Array:
    """Null in place of an empty text: services have written "no position" in both ways."""
    return pc.if_else(pc.equal(pc.ascii_trim_whitespace(texts), ""), pa.scalar(None, pa.string()), texts)


def _whole(texts: pa.Array) -> pa.Array:
    """The integers that texts of at most 18 digits spell, else null."""
    return pc.if_else(pc.match_substring_regex(texts, "^[0-9]{1,18}$"), texts, None).cast(pa.int64())


def _by_value(texts: pa.Array, parse: Callable[[str], int | None]) -> tuple[Longs, Bools]:
    """`parse` for each distinct text, which are few."""
    coded = texts.dictionary_encode()
    parsed = pa.array([parse(text) for text in coded.dictionary.to_pylist()], pa.int64())
    return _longs(parsed.take(coded.indices))


def _parts(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.extract_regex(texts, pattern)


def _missing(fields: pa.Array) -> Bools:
    return np.asarray(pc.is_null(fields).to_numpy(zero_copy_only=False), bool)


def _padded(fields: pa.Array, name: str, digits: int) -> Bytes:
    texts = pc.if_else(pc.is_null(fields), pa.scalar(""), pc.struct_field(fields, name))
    return fixed(pc.ascii_lpad(pc.ascii_lower(texts), digits, "0"), digits)


def _read_at(position: npt.NDArray[Any], backfill: Bools, time: Longs | None) -> npt.NDArray[Any]:
    """A position whose backfilled rows have their time, or 0, in its place."""
    if not backfill.any():
        return position
    if position.ndim == 1:
        return np.asarray(np.where(backfill, 0 if time is None else time, position))
    digits = np.full_like(position, ZERO) if time is None else hex_digits(time, 16)
    return np.where(backfill[:, None], digits, position).astype(np.uint8)


def _report(bad: dict[int, str], rows: Bools, detail: str) -> None:
    for row in np.flatnonzero(rows).tolist():
        bad.setdefault(row, detail)
