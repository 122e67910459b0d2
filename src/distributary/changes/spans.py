"""From when to when each version of a row held: the events of each key in order, each until the next one.

A version holds from its event's source time up to that of the next event of its key, which is not before the next one's
own end: where a clock went back between two events, the earlier one holds no longer than the later one allows. So at
any moment one version of a key holds, or none. A delete holds for no time: it ends the version before it.

A version that would hold for no time since another one begins with it (two changes within a millisecond, an event that
was sent again, a backfilled row that shows an older change) is left out. It would be so whatever comes later: more
events only make the versions before them shorter. So the versions do not depend on the order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.reduce import Places, Ranked
from distributary.changes.sequence import Bools, Longs, Numbers

NEVER = np.iinfo(np.int64).max
"""In place of a time that is not known, or an end that has not come."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The versions. `order`: the distinct events by key and place, as numbers of rows; the rest is in that order.

    `held`: is it a version, or was it left out; `begin`, `end`: microseconds, or `NEVER`; `next_`: the row whose event
    ended it, -1 where none has.
    """

    order: Places
    held: Bools
    begin: Longs
    end: Longs
    next_: Places


def spans(codes: Places, numbers: Numbers, times: Longs, deleted: Bools) -> Spans:
    """Of rows that are events: their keys' codes, places, source times in microseconds (or `NEVER`), and whether each
    is a delete. Of two rows of one event the first counts."""
    order = np.lexsort([numbers, codes])
    of_key, placed = codes[order], numbers[order]
    again = np.zeros(len(order), bool)
    again[1:] = (of_key[1:] == of_key[:-1]) & (placed[1:] == placed[:-1])
    order = order[~again]
    of_key = codes[order]
    begin = _least_from_here(times[order], of_key)
    follows = np.zeros(len(order), bool)
    follows[:-1] = of_key[1:] == of_key[:-1]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = ~(follows[:-1] & (begin[1:] == begin[:-1]))
    end, next_ = np.full(len(order), NEVER), np.full(len(order), -1, np.int64)
    places = np.flatnonzero(is_last)
    before = places[:-1][of_key[places[1:]] == of_key[places[:-1]]]
    after = places[1:][of_key[places[1:]] == of_key[places[:-1]]]
    end[before], next_[before] = begin[after], order[after]
    is_deleted = deleted[order]
    end[is_deleted] = begin[is_deleted]
    return Spans(order, is_last, begin, end, next_)


def _least_from_here(values: Longs, of_key: Places) -> Longs:
    """The least of each value and those behind it of the same key."""
    least, step = values.copy(), 1
    while step < len(least):
        same = of_key[step:] == of_key[:-step]
        if not same.any():
            break
        least[:-step] = np.where(same, np.minimum(least[:-step], least[step:]), least[:-step])
        step *= 2
    return least


def in_true_order(codes: Places, ranked: Ranked) -> Numbers:
    """Numbers that compare as the events of a key do: of Oracle, an event that left a key in the statement in which
    another row took it stands before that one (`changes.reduce`). In the log the two are neighbours among the events of
    their key, each perhaps several times: in any other statement the row would have left the key before."""
    numbers = ranked.numbers
    if ranked.leaves is None or ranked.takes is None or not (ranked.leaves.any() and ranked.takes.any()):
        return numbers
    order = np.lexsort([numbers, codes])
    of_key, leaves, takes = codes[order], ranked.leaves[order], ranked.takes[order]
    rows, transactions = _coded(ranked.rows)[order], _coded(ranked.transactions)[order]
    has_names = (rows >= 0) & (transactions >= 0)
    follows = np.r_[
        False, (of_key[1:] == of_key[:-1]) & (transactions[1:] == transactions[:-1]) & has_names[1:] & has_names[:-1]
    ]
    same = np.r_[False, (rows[1:] == rows[:-1]) & (leaves[1:] == leaves[:-1]) & (takes[1:] == takes[:-1])]
    begins = np.flatnonzero(~(follows & same))
    before, left = begins[:-1], begins[1:]
    left_for = follows[left] & leaves[left] & takes[before] & (rows[left] != rows[before])
    places = np.array([number + b"1" for number in numbers.tolist()])
    ends = np.r_[begins[1:], len(order)]
    for number in np.flatnonzero(left_for).tolist():
        places[order[left[number] : ends[number + 1]]] = numbers[order[before[number]]] + b"0"
    return places


def _coded(names: pa.Array | None) -> Longs:
    """A number for each name, -1 for none."""
    assert names is not None
    return np.asarray(pc.fill_null(names.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False), np.int64)
