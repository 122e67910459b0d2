"""A key that rows of one Oracle transaction hand on: whose events of it are in several batches.

Oracle checks keys at the end of a statement, so within a transaction the log may give a key to a row before another one
leaves it, and this more than once. Which row has it in the end is decided by all of the transaction's events of the key
(`changes.reduce`); the one event that a merged table keeps of them does not say what the others were. So where an event
meets one of its own transaction that concerns another row, the merge asks for the rest: the log has it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.keys import KeyIndex
from distributary.changes.model import METADATA


class HandedOn(Exception):
    """Rows of these transactions have handed a key on, and not all of their events are at hand."""

    def __init__(self, transactions: Collection[str]) -> None:
        self.transactions = frozenset(transactions)
        super().__init__(f"keys were handed on in {len(self.transactions)} transactions")


def in_transactions(rows: pa.Table, transactions: Collection[str]) -> pa.Table:
    """The events of these transactions."""
    named = pc.struct_field(rows.column(METADATA), ["source", "tx_id"])
    return rows.filter(pc.is_in(named, value_set=pa.array(sorted(transactions), named.type)))


def of_keys(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> pa.Table:
    """`rows`, and those of `others` that have one of their keys; with the columns of both."""
    same_keys = others.filter(pa.array(KeyIndex(rows, keys).find(others) >= 0))
    return pa.concat_tables([rows, same_keys], promote_options="permissive")
