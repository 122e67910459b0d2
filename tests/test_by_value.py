"""Rows that do not say which record they are of are found by their values, each record as often as it was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.judge import by_value
from distributary.audit.judge.opened_records import RecordOpener, Writer
from distributary.audit.judge.read_payload import Simple

WRITER = Writer(7, "0")
COMPARED: list[float] = []


@dataclass(frozen=True)
class Score:
    """A payload with a text, by which it is looked for, and a double, by which it is not."""

    user: str
    ratio: float

    def simple(self) -> Mapping[str, Simple]:
        return {"user": Simple(self.user, "", True)}

    def differs(self, row: Mapping[str, Any]) -> str | None:
        COMPARED.append(self.ratio)
        return None if (row["user"], row["ratio"]) == (self.user, self.ratio) else "ratio"

    def has(self, name: str) -> bool:
        return True


class Opener:
    def read(self, writer: Writer, body: bytes) -> Score:
        user, ratio = body.decode().split()
        return Score(user, float(ratio))


def missing(records: list[tuple[str, int]], pieces: list[list[tuple[str, int]]]) -> tuple[int, int]:
    origin, from_writer = pa.struct([("schema_id", pa.int32())]), {"schema_id": WRITER.schema_id}
    payloads = Counter((WRITER, f"{user} {ratio}".encode()) for user, ratio in records)
    tables = [
        pa.table(
            {
                "user": pa.array([row[0] for row in rows], pa.string()),
                "ratio": pa.array([float(row[1]) for row in rows], pa.float64()),
                "_origin": pa.array([from_writer] * len(rows), origin),
            }
        )
        for rows in pieces
    ]
    COMPARED.clear()
    return by_value.missing(cast(RecordOpener, Opener()), payloads, tables)


def test_rows_in_the_order_of_their_records_are_compared_once_each() -> None:
    """`verify --deep` of records that share a text once compared each row with each of them."""
    records = [("ann", n) for n in range(500)]
    assert missing(records, [records[:200], records[200:]]) == (500, 0)
    assert len(COMPARED) == 500


def test_files_in_another_order_than_their_records_cost_one_look_for_their_beginning() -> None:
    records = [("ann", n) for n in range(500)]
    assert missing(records, [records[300:], records[:300]]) == (500, 0)
    assert len(COMPARED) == 500 + 300


ROWS = st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(0, 3)), max_size=12)


@given(records=ROWS, pieces=st.lists(ROWS, max_size=3))
def test_records_are_missed_as_often_as_rows_lack_in_whatever_order_they_come(
    records: list[tuple[str, int]], pieces: list[list[tuple[str, int]]]
) -> None:
    wanted, there = Counter(records), Counter(row for rows in pieces for row in rows)
    compared = sum(count for row, count in there.items() if row in wanted)
    assert missing(records, pieces) == (compared, (wanted - there).total())
