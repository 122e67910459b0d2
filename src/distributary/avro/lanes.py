"""Avro rows to Arrow columns, many rows at once.

An avro row has no fixed width, so a reader must walk it, and a walk in Python costs 15 microseconds a row. Here all
rows are walked side by side: one NumPy operation moves the cursor of every row over one field. That needs the rows'
first bytes, which avro does not store. They are guessed and then proved: each row begins with a text of one shape
(Datastream's uuid), so every place that looks like it is a candidate, and the guess holds if the walk from each
candidate ends exactly at the next one, the last at the end of the block, and their number is the block's. By induction
over a block the rows are then the ones a plain walk would find.

Where the proof fails, or a schema has what this walk can't do, the block or the file goes to fastavro; nothing is
decided by likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from distributary.avro.blocks import Block
from distributary.avro.cursors import Walker
from distributary.avro.schema import NULL, Array, Map, Node, Record, Recursion, Scalar, Union
from distributary.avro.walk_columns import Longs, Mask, Unfit, element_of, is_nested_list

ROWS_AT_ONCE = 10_000  # what is read of them then fits the processor's caches
TEXTLIKE = frozenset({"string", "int", "long"})


@dataclass(frozen=True, slots=True)
class Proved:
    """Events of the file from `row` on, as many as `columns` has; values as stored, no logical type applied."""

    row: int
    columns: pa.StructArray


def is_laned(schema: Record) -> bool:
    """Whether rows of this schema can be walked side by side."""
    first = schema.fields[0].node if schema.fields else NULL
    return isinstance(first, Scalar) and first.kind == "string" and _can_walk(schema)


def _can_walk(node: Node) -> bool:
    if isinstance(node, Union):
        rest = [branch for branch in node.branches if branch != NULL]
        if len(node.branches) > 60:
            return False
        if len(rest) < 2:
            return all(map(_can_walk, rest))
        return all(isinstance(branch, Scalar) and branch.kind in TEXTLIKE for branch in rest)
    if isinstance(node, Record):
        if is_nested_list(node):
            return element_of(node) is not None and _can_walk(element_of(node) or NULL)
        return all(_can_walk(field.node) for field in node.fields)
    if isinstance(node, Array):
        return _can_walk(node.items)
    return not isinstance(node, Recursion | Map)


def read_lanes(data: pa.Buffer, blocks: Sequence[Block], schema: Record) -> tuple[list[Proved], list[Block]]:
    """The rows of all blocks for which the proof holds, and the blocks for which it does not."""
    walker = Walker(data)
    starts = walker.candidates(blocks)
    proved: list[Proved] = []
    doubted: list[Block] = []
    if starts is None:
        return [], list(blocks)
    for run in _runs(blocks):
        try:
            ranges, unproved = _read_run(walker, run, starts, schema)
        except Unfit:
            ranges, unproved = [], run
        proved += ranges
        doubted += unproved
    return proved, doubted


def _read_run(walker: Walker, run: list[Block], starts: Longs, schema: Record) -> tuple[list[Proved], list[Block]]:
    begins, block_numbers = _inside(run, starts)
    if not len(begins):
        return [], run
    columns, ends, bad = walker.walk(schema, begins)
    if _proof(run, begins, ends, bad, block_numbers).all():
        return [Proved(run[0].row, columns.arrow())], []
    # look-alikes inside the rows (a column of uuids) are where no row ends; without them the proof is tried again
    firsts = np.fromiter((block.start for block in run), np.int64, len(run))
    linked = np.isin(begins, ends) | np.isin(begins, firsts)
    good = _proof(run, begins[linked], ends[linked], bad[linked], block_numbers[linked])
    ranges: list[Proved] = []
    for number, block in enumerate(run):
        if good[number]:
            columns, _, _ = walker.walk(schema, begins[linked & (block_numbers == number)])
            ranges.append(Proved(block.row, columns.arrow()))
    return ranges, [block for number, block in enumerate(run) if not good[number]]


def _runs(blocks: Sequence[Block]) -> list[list[Block]]:
    """Neighbouring blocks, together about ROWS_AT_ONCE rows."""
    runs: list[list[Block]] = []
    rows = ROWS_AT_ONCE
    for block in blocks:
        if rows + block.count > ROWS_AT_ONCE:
            runs.append([])
            rows = 0
        runs[-1].append(block)
        rows += block.count
    return runs


def _inside(run: Sequence[Block], starts: Longs) -> tuple[Longs, Longs]:
    """The candidates inside the run's blocks, and for each the number of its block."""
    low, high = np.searchsorted(starts, [run[0].start, run[-1].end])
    begins = starts[low:high]
    firsts = np.fromiter((block.start for block in run), np.int64, len(run))
    ends = np.fromiter((block.end for block in run), np.int64, len(run))
    block_numbers = np.searchsorted(ends, begins, side="right").astype(np.int64)
    inside = begins >= firsts[block_numbers] if len(begins) else np.zeros(0, bool)
    return begins[inside], block_numbers[inside]


def _proof(run: Sequence[Block], begins: Longs, ends: Longs, bad: Mask, block_numbers: Longs) -> Mask:
    """For each block whether the walk over its candidates is the only one: no fault, no gap, the right number."""
    linked = ~bad
    linked[:-1] &= (ends[:-1] == begins[1:]) | (block_numbers[:-1] != block_numbers[1:])
    broken = np.concatenate([[0], np.cumsum(~linked)])
    borders = np.searchsorted(block_numbers, np.arange(len(run) + 1))
    good = np.zeros(len(run), bool)
    for number, block in enumerate(run):
        first, last = int(borders[number]), int(borders[number + 1])
        good[number] = (
            last - first == block.count
            and broken[last] == broken[first]
            and begins[first] == block.start
            and ends[last - 1] == block.end
        )
    return good
