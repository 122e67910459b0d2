"""Records whose places are known to columns, all at once: the walk of change files (`avro.cursors`), with the
types that those do not have. It gives a verdict for each record, so one that is damaged never costs its neighbours.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distributary.avro.cursors import MOST_STEPS, Walker
from distributary.avro.schema import Again, Array, Field, Map, Node, Record, Scalar, Union
from distributary.avro.walk_columns import Column, Lists, Longs, Mask, Numbers, Struct, Unfit
from distributary.schemas.avro.columns import entry_of, stored_type

__all__ = ["PayloadWalker", "Unfit", "can_walk"]


def can_walk(node: Node) -> bool:
    """Whether records of this schema can be walked side by side: those that hold themselves cannot."""
    if isinstance(node, Record):
        return all(can_walk(field.node) for field in node.fields)
    if isinstance(node, Union):
        return all(map(can_walk, node.branches))
    if isinstance(node, Array):
        return can_walk(node.items)
    if isinstance(node, Map):
        return can_walk(node.values)
    return not isinstance(node, Again)


class PayloadWalker(Walker):
    """`data` has at least 16 readable bytes behind the last record."""

    def records(self, schema: Record, begins: Longs, ends: Longs) -> tuple[Column, Longs, Mask]:
        """The records that lie there as stored, where the walk over each ends, and which can't be right.

        Raises Unfit: one of them has what this walk can't give, a text that is not UTF-8 or a very long list.
        """
        self._bad = np.zeros(len(begins), bool)
        self._steps, self._ends = MOST_STEPS, ends
        columns, found = self._node(schema, begins, None)
        return columns, found, self._bad

    def _node(self, node: Node, at: Longs, present: Mask | None) -> tuple[Column, Longs]:
        self._steps -= 1
        if self._steps < 0:
            raise Unfit
        if isinstance(node, Record):
            if not node.fields:
                return Numbers(pa.bool_(), np.ones(len(at), np.int8), present), at
            return self._record(node, at, present)
        if isinstance(node, Union):
            return self._union(node, at, present)
        if isinstance(node, Array):
            return self._items(node.items, at, present)
        if isinstance(node, Map):
            return self._items(entry_of(node), at, present)
        if isinstance(node, Scalar):
            return self._scalar(node, at, present)
        raise Unfit

    def _items(self, item: Node, at: Longs, present: Mask | None) -> tuple[Column, Longs]:
        column, at = self._array(item, at, present, None)
        assert isinstance(column, Lists)
        column.type = pa.list_(stored_type(item))
        return column, at

    def _plausible(self, counts: Longs, at: Longs) -> Longs:
        """A damaged record must not have all others walk as many items as it says: each takes a byte of its own."""
        self._bad |= counts > self._ends - at
        return np.where(self._bad, 0, counts)

    def _union(self, node: Union, at: Longs, present: Mask | None) -> tuple[Column, Longs]:
        if sum(isinstance(branch, Record) and not branch.name for branch in node.branches) < 2:
            return super()._union(node, at, present)
        chosen, at = self._long(at, present)
        self._flag((chosen < 0) | (chosen >= len(node.branches)), present)
        columns: list[Column] = []
        fields: list[Field] = []
        there: Mask | None = present
        for number, branch in enumerate(node.branches):
            here: Mask = chosen == number
            here = here if present is None else here & present
            if not isinstance(branch, Record):
                there = ~here if there is None else there & ~here
                continue
            column, at = self._node(branch.fields[0].node, at, here)
            columns.append(column)
            fields.append(branch.fields[0])
        return Struct(tuple(fields), columns, there, len(at)), at
