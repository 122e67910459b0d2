"""The events of some transactions out of a log, for keys that rows of them hand on (`changes.handed_on`), and those of
some keys, of which a value was not logged (`changes.unfilled`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.handed_on import of_keys
from distributary.changes.keys import KeyIndex
from distributary.changes.model import METADATA, SourceTable
from distributary.engine.changes.key_columns import KeyTypes, paths_of, whole
from distributary.engine.changes.log_rows import plain
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.tables.column_names import second_columns
from distributary.tables.files import TableFiles
from distributary.tables.merge_files import live_files, may_hold
from distributary.tables.merge_rows import MergeRules
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import Table

_TX_ID = f"{METADATA}.source.tx_id"


@dataclass(frozen=True)
class Asked:
    """What the log is asked for beside a batch's events: those of `transactions` (`changes.handed_on`), all those of
    `keys` (`changes.unfilled`)."""

    transactions: frozenset[str] = frozenset()
    keys: pa.Table | None = None

    def __bool__(self) -> bool:
        return bool(self.transactions) or self.keys is not None

    def answered(
        self,
        source: SourceTable,
        keys: Sequence[str],
        spec: ChangeSpec,
        events: pa.Table,
        types: KeyTypes,
        rules: MergeRules,
    ) -> tuple[pa.Table, MergeRules]:
        """The events with those of the log, and the rules that hold then. Raises TableFault, OSError, ArrowInvalid."""
        if self.transactions:
            events = of_keys(events, others_of(source, spec, self.transactions, events, types), keys)
            rules = replace(rules, settled=self.transactions)
        if self.keys is not None:
            more = all_of(source, spec, self.keys, events, types)
            events = pa.concat_tables([events, more], promote_options="permissive")
            rules = replace(rules, filled=True)
        return events, rules


def log_of(source: SourceTable, spec: ChangeSpec) -> Snapshot | None:
    """The log table of a source's table, as it is now; None where there is none."""
    uri = spec.named.log(source)
    return None if uri is None else Table(uri, spec.store).open()


def others_of(
    source: SourceTable, spec: ChangeSpec, transactions: Collection[str], like: pa.Table, types: KeyTypes
) -> pa.Table:
    """The events of these transactions that the log has; no row, with the columns of `like`, where it has none.

    Raises TableFault, OSError, ArrowInvalid.
    """
    log = log_of(source, spec)
    events = None if log is None else _events(log, transactions, types)
    return like.schema.empty_table() if events is None else events


def _events(log: Snapshot, transactions: Collection[str], types: KeyTypes) -> pa.Table | None:
    """All columns, with the keys in these types. Of each file the transactions are read first, and whole rows only
    where it has one."""
    files = TableFiles(log)
    masks = (
        (name, [_are_in(piece.column(_TX_ID), transactions) for piece in files.read(name, [_TX_ID])])
        for name in files.names
    )
    tables = [whole(plain(rows), types) for rows in _rows(files, masks)]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def all_of(source: SourceTable, spec: ChangeSpec, keys: pa.Table, like: pa.Table, types: KeyTypes) -> pa.Table:
    """The events of these keys that the log has; no row, with the columns of `like`, where it has none.

    Raises TableFault, OSError, ArrowInvalid.
    """
    log = log_of(source, spec)
    tables = [] if log is None else list(_of_keys(log, keys, types))
    return pa.concat_tables(tables, promote_options="permissive") if tables else like.schema.empty_table()


def _of_keys(log: Snapshot, keys: pa.Table, types: KeyTypes) -> Iterator[pa.Table]:
    files, names = TableFiles(log), keys.column_names
    index, paths = KeyIndex(keys, names), paths_of(list(files.columns), names)
    masks = (
        (name, [index.find(whole(plain(piece), types)) >= 0 for piece in files.read(name, paths)])
        for name in _with_keys(log, keys, types)
    )
    yield from (whole(plain(rows), types) for rows in _rows(files, masks))


def _with_keys(log: Snapshot, keys: pa.Table, types: KeyTypes) -> list[str]:
    """The files that may hold a key by their bounds; all, where a key may lie in a second column."""
    schema, names = log.schema, keys.column_names
    live = live_files(log, names)
    plain_keys = all(
        key in schema.names and schema.field(key).type == types[key] and not second_columns(schema.names, key)
        for key in names
    )
    places = may_hold(live, keys, names) if plain_keys else range(len(live))
    return [unquote(live[n].path) for n in places]


def _rows(files: TableFiles, masks: Iterable[tuple[str, Sequence[np.ndarray]]]) -> Iterator[pa.Table]:
    for name, row_masks in masks:
        mask = np.concatenate(row_masks) if row_masks else np.zeros(0, bool)
        if not mask.any():
            continue
        begin = 0
        for piece in files.read_whole(name):
            piece_mask = mask[begin : begin + piece.num_rows]
            begin += piece.num_rows
            if piece_mask.any():
                yield piece.filter(pa.array(piece_mask))


def _are_in(column: pa.ChunkedArray, transactions: Collection[str]) -> np.ndarray:
    named = pc.is_in(column.cast(pa.string()), value_set=pa.array(sorted(transactions), pa.string()))
    return np.asarray(named.to_numpy(), bool)
