"""Events of a route into its history table, before they are merged.

The history has a batch first, so it holds all that the merged table does. Where it cannot be written, the merge waits
with it; where the merge cannot be done, the history meets the same events again, which changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from distributary.engine.changes.key_columns import whole
from distributary.engine.changes.keyed_table import Into, absent, check_keys, with_wider_keys
from distributary.engine.changes.task_spec import ORIGIN, ChangeSpec
from distributary.tables.engines import for_rewrites
from distributary.tables.history_table import merge_history
from distributary.tables.merge import Target
from distributary.tables.snapshot import Txn


def record(into: Into, events: pa.Table, spec: ChangeSpec, txn: Txn) -> None:
    """Take events, which all have a key, into the history beside the merged table `into`, where there is one.

    Raises KeysChanged, TableCollision, CommitConflict, TableFault, OSError.
    """
    uri = spec.named.history(into.source)
    if uri is None or not events.num_rows:
        return
    own = replace(into, uri=uri)
    table = own.table(spec).open()
    check_keys(own, table)
    table, types = with_wider_keys(own, table, events.schema, spec, {})
    events = whole(events, types)
    rules = spec.named.rules(own.source, None)
    gaps = rules.gaps(absent(events, own.brought))
    made_with = for_rewrites(spec.named.tables.properties)
    target = Target(replace(own.table(spec), properties=made_with), table, spec.named.policy(own.route))
    merge_history(target, events.drop_columns([ORIGIN]), own.keys, rules.order, gaps, txn)
