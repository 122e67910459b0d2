"""What the data files themselves hold: a table's rows by writer schema and offset, the quarantine's rows by state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import Reason
from distributary.errors.border import contained
from distributary.state.ledger import Entry, is_batch, quarantine_files, replay_stream
from distributary.tables.files import TableFiles, read_file
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store

PASS_ROWS = 4_000_000
"""Rows whose offsets are compared at a time; a larger table is read in several passes, each over a share of offsets."""

_OFFSET_BLOCK = 1 << 16
_KEY = ["_origin.topic", "_origin.partition", "_origin.offset", "_origin.timestamp"]
_BATCH, _SCHEMA_ID = "_origin.batch", "_origin.schema_id"


@dataclass
class Count:
    """Rows of one table. `rows`: ours; of these `repeated` are there again under the same origin, and `plain` are in
    files without the `_origin` column. `foreign`: of other writers. `pending`: of a batch that is not finished."""

    rows: int = 0
    repeated: int = 0
    plain: int = 0
    foreign: int = 0
    pending: int = 0
    by_schema: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def count_rows(newest: TableFiles, settled: TableFiles | None, *, plain_is_ours: bool, by_offset: bool) -> Count:
    """Count `settled` (the table without what is not finished: `newest` itself where all is; None: nothing is).
    `by_offset` finds repeated rows.

    A Kafka record is known by topic, partition, offset and timestamp: a topic that was made anew counts from 0 again.
    Raises TableFault, OSError; a single file that cannot be read is a problem of the count, and its rows are not in it.
    """
    count = Count()
    if settled is not newest:
        count.pending = newest.beyond(settled)
    if settled is None:
        return count
    sizes = _sizes(settled, count)
    if not settled.has(_BATCH):
        total = sum(sizes.values())
        count.rows = count.plain = total
        return count
    _count_origins(settled, sizes, count, plain_is_ours)
    if by_offset:
        passes = 1 + sum(sizes.values()) // PASS_ROWS
        count.repeated = sum(_repeated(settled, sizes, n, passes) for n in range(passes))
    return count


def _sizes(files: TableFiles, count: Count) -> dict[str, int]:
    """Rows of each file that can be read."""
    sizes: dict[str, int] = {}
    for name in files.names:
        try:
            sizes[name] = files.rows(name)
        except FileNotFoundError:
            count.problems.append(f"data file {name} is not there")
        except BaseException as e:
            count.problems.append(f"data file {name} cannot be read: {contained(e)}")
    return sizes


def _count_origins(files: TableFiles, sizes: Mapping[str, int], count: Count, plain_is_ours: bool) -> None:
    for name in sizes:
        for piece in files.read(name, [_BATCH, _SCHEMA_ID]):
            rows = piece.num_rows
            batch = piece.column(_BATCH)
            if pa.types.is_null(batch.type):
                count.plain += rows if plain_is_ours else 0
                count.foreign += 0 if plain_is_ours else rows
                continue
            ours = piece.filter(pc.is_valid(batch))
            count.rows += ours.num_rows
            count.foreign += rows - ours.num_rows
            for id_count in pc.value_counts(ours.column(_SCHEMA_ID).combine_chunks()).to_pylist():
                count.by_schema[id_count["values"]] += id_count["counts"]
    count.rows += count.plain


def _repeated(files: TableFiles, sizes: Mapping[str, int], number: int, passes: int) -> int:
    """Rows beyond the first with the same origin, among the offsets of pass `number`."""
    pieces: list[pa.Table] = []
    for name in sizes:
        for piece in files.read(name, [*_KEY, _BATCH]):
            offset = piece.column("_origin.offset")
            if pa.types.is_null(offset.type):
                continue
            of_pass = pc.and_(pc.is_valid(piece.column(_BATCH)), pc.is_valid(offset))
            if passes > 1:
                block = pc.divide(offset, _OFFSET_BLOCK)
                share = pc.subtract(block, pc.multiply(pc.divide(block, passes), passes))
                of_pass = pc.and_(of_pass, pc.equal(share, number))
            pieces.append(piece.select(_KEY).filter(of_pass))
    if not pieces:
        return 0
    keys = pa.concat_tables(pieces, promote_options="permissive")
    return int(keys.num_rows - keys.group_by(_KEY).aggregate([]).num_rows)


# -- the quarantine ----------------------------------------------------------------------------------------


@dataclass
class QuarantineCount:
    """The quarantine: `rows` still kept aside by route, rows by `states`, and open rows of a table that failed:
    `parked` by (route, stream, batch)."""

    rows: Counter[str | None] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    parked: Counter[tuple[str | None, str, int]] = field(default_factory=Counter)
    reasons: Counter[tuple[str | None, str]] = field(default_factory=Counter)

    def add(self, other: QuarantineCount) -> None:
        """Add the counts of another quarantine of the same pipeline."""
        self.rows.update(other.rows)
        self.states.update(other.states)
        self.parked.update(other.parked)
        self.reasons.update(other.reasons)


_KEPT_COLUMNS = ["route", "state", "reason", "stream", "batch", "replay"]


def count_quarantine(
    table: Snapshot | None,
    uri: str,
    store: Store,
    entries: Sequence[Entry],
    is_finished: Callable[[str, int], bool],
) -> QuarantineCount:
    """Count the quarantine's rows, with those that a finished batch has decided on but not yet brought in. `table`: the
    quarantine, opened after `entries` were read.

    Raises TableFault, OSError.
    """
    count = QuarantineCount()
    for piece in _kept_pieces(uri, store, table, entries, _KEPT_COLUMNS):
        groups = piece.group_by(_KEPT_COLUMNS).aggregate([([], "count_all")]).to_pylist()
        for group in groups:
            _keep(count, group["count_all"], is_finished, *(group[name] for name in _KEPT_COLUMNS))
    return count


def _keep(
    count: QuarantineCount,
    rows: int,
    is_finished: Callable[[str, int], bool],
    route: str | None,
    state: str,
    reason: str,
    stream: str,
    batch: int,
    replay: int | None,
) -> None:
    if not is_finished(stream, batch):
        return
    state = _state(is_finished, state, replay)
    count.states[state] += rows
    if state == "replayed":
        return
    count.rows[route] += rows
    count.reasons[route, reason] += rows
    if reason == Reason.TABLE_PARKED and state == "open":
        count.parked[route, stream, batch] += rows


def _state(is_finished: Callable[[str, int], bool], state: str, replay: int | None) -> str:
    """A replay that is in the ledger is done; only its last step, letting the rows go, may be missing."""
    is_replayed = state == "claimed" and replay is not None and is_finished(replay_stream(replay), replay)
    return "replayed" if is_replayed else state


_STATE_COLUMNS = ["state", "stream", "batch", "replay"]


def open_rows_of(
    table: Snapshot | None,
    uri: str,
    store: Store,
    entries: Sequence[Entry],
    is_finished: Callable[[str, int], bool],
    schema: pa.Schema,
) -> Iterator[pa.Table]:
    """Those rows that `count_quarantine` counts as still set aside, with the columns of `schema`, piece by
    piece.

    Raises TableFault, OSError.
    """
    for piece in _kept_pieces(uri, store, table, entries, list(dict.fromkeys([*_STATE_COLUMNS, *schema.names]))):
        # A join does not find null.
        replay = pc.fill_null(piece.column("replay").cast(pa.int64()), -1)
        states = piece.select(_STATE_COLUMNS[:3]).append_column("replay", replay)
        still_open = [
            group
            for group in states.group_by(_STATE_COLUMNS).aggregate([]).to_pylist()
            if is_finished(group["stream"], group["batch"])
            and _state(is_finished, group["state"], None if group["replay"] < 0 else group["replay"]) != "replayed"
        ]
        if still_open:
            numbered = states.append_column("n", pa.array(range(piece.num_rows), pa.int64()))
            open_states = pa.Table.from_pylist(still_open, schema=states.schema)
            numbers = numbered.join(open_states, _STATE_COLUMNS, join_type="left semi").column("n")
            # Files of other writers hold views of texts, which cannot be filtered.
            rows = piece.select(schema.names).cast(schema)
            yield rows.filter(pc.is_in(numbered.column("n"), value_set=numbers.combine_chunks()))


def _kept_pieces(
    uri: str, store: Store, table: Snapshot | None, entries: Sequence[Entry], columns: list[str]
) -> Iterator[pa.Table]:
    if table is not None:
        files = TableFiles(table)
        for name in files.names:
            yield from _readable(files.read(name, columns))
    newest = {e.stream: e for e in entries if e.route is None and e.details and is_batch(e.stream)}
    for entry in newest.values():
        if table is None or table.newest(entry.stream) < entry.batch:
            for file in quarantine_files(json.loads(entry.details or "{}")):
                yield from _readable(read_file(uri, file.path, columns, store))


def _readable(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """A file that is gone or broken has no rows: they count as lost. Raises OSError where the store is away."""
    try:
        yield from pieces
    except FileNotFoundError:
        return
    except OSError:
        raise
    except BaseException as e:
        contained(e)
