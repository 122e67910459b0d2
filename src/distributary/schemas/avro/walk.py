"""Records whose places are known to columns, all at once: the walk of change files (`avro.cursors`), with the
types that those do not have. It gives a verdict for each record, so one that is damaged never costs its neighbours.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from distributary.avro.cursors import MOST_STEPS, Walker
from distributary.avro.schema import Array, Field, Map, Node, Record, Recursion, Scalar, Union
from distributary.avro.walk_columns import AnyColumn, Lists, Longs, Mask, Numbers, Struct, Unfit
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
    return not isinstance(node, Recursion)


class PayloadWalker(Walker):
    """`data` has at least 16 readable bytes behind the last record."""

    def records(self, schema: Record, begins: Longs, ends: Longs) -> tuple[AnyColumn, Longs, Mask]:
        """The records that lie there as stored, where the walk over each ends, and which can't be right.

        Raises Unfit: one of them has what this walk can't give, a text that is not UTF-8 or a very long list.
        """
        self._bad = np.zeros(len(begins), bool)
        self._steps, self._ends = MOST_STEPS, ends
        columns, walked_to = self._node(schema, begins, None)
        return columns, walked_to, self._bad

    def _node(self, node: Node, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        self._steps -= 1
        if self._steps < 0:
            raise Unfit
        if isinstance(node, Record):
            if not node.fields:
                return Numbers(pa.bool_(), np.ones(len(places), np.int8), present), places
            return self._record(node, places, present)
        if isinstance(node, Union):
            return self._union(node, places, present)
        if isinstance(node, Array):
            return self._items(node.items, places, present)
        if isinstance(node, Map):
            return self._items(entry_of(node), places, present)
        if isinstance(node, Scalar):
            return self._scalar(node, places, present)
        raise Unfit

    def _items(self, item: Node, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        column, places = self._array(item, places, present, None)
        assert isinstance(column, Lists)
        column.type = pa.list_(stored_type(item))
        return column, places

    def _plausible(self, counts: Longs, places: Longs) -> Longs:
        """A damaged record must not have all others walk as many items as it says: each takes a byte of its own."""
        self._bad |= counts > self._ends - places
        return np.where(self._bad, 0, counts)

    def _union(self, node: Union, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        if sum(isinstance(branch, Record) and not branch.name for branch in node.branches) < 2:
            return super()._union(node, places, present)
        chosen, places = self._long(places, present)
        self._flag((chosen < 0) | (chosen >= len(node.branches)), present)
        columns: list[AnyColumn] = []
        fields: list[Field] = []
        untaken: Mask | None = present
        for number, branch in enumerate(node.branches):
            takes: Mask = chosen == number
            takes = takes if present is None else takes & present
            if not isinstance(branch, Record):
                untaken = ~takes if untaken is None else untaken & ~takes
                continue
            column, places = self._node(branch.fields[0].node, places, takes)
            columns.append(column)
            fields.append(branch.fields[0])
        return Struct(tuple(fields), columns, untaken, len(places)), places
