"""Events of a route into its history table, before they are merged.

The history has a batch first, so it holds all that the merged table does. Where it cannot be written, the merge waits
with it; where the merge cannot be done, the history meets the same events again, which changes nothing.

Of a value that was not logged a version has that of the version before it. Where an event comes late, before such a
version, the log is asked for all events of the key (`changes.unfilled`), and its versions are filled anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from distributary.changes.sequence import OrderSettings
from distributary.changes.truncates import Truncates
from distributary.changes.unfilled import Unfilled
from distributary.engine.changes.emptying import all_truncates, older_rows, remember, remembering
from distributary.engine.changes.key_columns import KeyTypes, whole
from distributary.engine.changes.keyed_table import Into, absent, check_keys, with_wider_keys
from distributary.engine.changes.task_spec import ORIGIN, ChangeSpec
from distributary.engine.changes.transactions import all_of
from distributary.tables.engines import for_rewrites
from distributary.tables.history_table import merge_history
from distributary.tables.merge import MergeTarget
from distributary.tables.snapshot import Snapshot, Txn


def record(into: Into, events: pa.Table, spec: ChangeSpec, txn: Txn) -> None:
    """Take events, which all have a key, into the history beside the merged table `into`, where there is one.

    Raises KeysChanged, TableCollision, CommitConflict, TableFault, OSError.
    """
    uri = spec.named.history(into.source)
    if uri is None or not (events.num_rows or into.truncates):
        return
    own = replace(into, uri=uri)
    table = own.table(spec).open()
    check_keys(own, table)
    table, types = with_wider_keys(own, table, events.schema, spec, {})
    events = whole(events, types)
    order = spec.named.order(own.source)
    truncates = all_truncates(table, own.truncates, order)
    events = truncates.ended(events, own.keys)
    if table is not None and own.truncates and remember(table, truncates):
        table = own.table(spec).open()
    if table is not None and own.truncates:
        events = pa.concat_tables([events, *_ended(table, own, types, truncates, order, events.schema)])
    own_table = remembering(own.table(spec), truncates)
    own_table = replace(own_table, properties=for_rewrites(own_table.properties))
    target = MergeTarget(own_table, table, spec.named.policy(own.route))
    try:
        _take(own, target, events, spec, txn)
    except Unfilled as e:
        # Apart from what the merge asks for: a history may have begun later than the merged table.
        more = all_of(own.source, spec, e.keys, events, types)
        events = pa.concat_tables([events, more], promote_options="permissive")
        _take(own, target, truncates.ended(events, own.keys), spec, txn, filled=True)


def _ended(
    table: Snapshot, own: Into, types: KeyTypes, truncates: Truncates, order: OrderSettings, columns: pa.Schema
) -> Iterator[pa.Table]:
    """For each TRUNCATE that has come a delete of each key that has an older version: for others that was done."""
    for number in truncates.places_of(all_truncates(None, own.truncates, order)):
        for rows in older_rows(table, own.keys, types, truncates, order, number):
            yield truncates.deletes(rows, own.keys, columns, number)


def _take(
    own: Into, target: MergeTarget, events: pa.Table, spec: ChangeSpec, txn: Txn, *, filled: bool = False
) -> None:
    rules = spec.named.rules(own.source, None)
    gaps = rules.gaps(absent(events, own.brought))
    partial = bool(rules.toast_columns) or rules.dropped_columns == "keep"
    rows = events.drop_columns([ORIGIN])
    merge_history(target, rows, own.keys, rules.order, gaps, txn, filled=filled, partial=partial)
