"""Deletes that name a row by its ROWID only, and the small parts of a batch's planning."""

from __future__ import annotations

import pyarrow as pa

from distributary.changes.digits import WIDTH
from distributary.changes.model import METADATA, METADATA_TYPE
from distributary.engine.changes.orphans import resolve, split
from distributary.engine.changes.routing import groups


def events(rows: list[tuple[int | None, int, str, str | None, str | None]]) -> pa.Table:
    """(key, place, change type, row id, transaction) each."""
    metadata = [
        {
            "change_sequence_number": f"{place:0{WIDTH}x}",
            "change_type": kind,
            "is_deleted": kind in ("DELETE", "UPDATE-DELETE"),
            "is_backfill": False,
            "source_timestamp": place,
            "source": {"row_id": row, "tx_id": tx},
        }
        for _, place, kind, row, tx in rows
    ]
    return pa.table({"id": pa.array([r[0] for r in rows], pa.int64()), METADATA: pa.array(metadata, METADATA_TYPE)})


def test_a_delete_by_row_id_takes_the_key_of_its_own_transaction() -> None:
    rows = events([(1, 1, "INSERT", "AA", "t1"), (2, 2, "INSERT", "AA", "t2"), (None, 3, "DELETE", "AA", "t2")])
    whole, orphans = split(rows, ["id"])
    assert (whole.num_rows, orphans.num_rows) == (2, 1)
    found, left = resolve(orphans, whole, ["id"], [])
    assert found.column("id").to_pylist() == [2]
    assert left.num_rows == 0


def test_a_delete_of_an_unknown_row_is_left() -> None:
    rows = events([(1, 1, "INSERT", "AA", "t1"), (None, 3, "DELETE", "BB", "t1")])
    whole, orphans = split(rows, ["id"])
    assert resolve(orphans, whole, ["id"], [])[1].num_rows == 1


def test_routes_that_share_files_are_owned_together() -> None:
    found = groups({"f1": ("a", "b"), "f2": ("b", "c"), "f3": ("d",), "f4": ()})
    assert found["a"] == found["c"] == frozenset("abc")
    assert found["d"] == frozenset("d")
