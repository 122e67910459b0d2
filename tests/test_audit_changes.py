"""`verify` of change files finds what is wrong: each kind of fault, planted in tables from outside, in each setting."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge.changes import verify_changes
from distributary.changes.model import METADATA
from distributary_simulate.changes.unified import DOUBLE, INTEGER, STRING, TIMESTAMP, decimal
from tests.shop import change, mysql_table
from tests.sparkless import Sparkless

COLUMNS = {"id": INTEGER, "status": STRING, "note": STRING, "amount": decimal(12, 2), "at": TIMESTAMP, "score": DOUBLE}
ORDERS = mysql_table("orders", COLUMNS)
USERS = mysql_table("users", {"id": INTEGER, "name": STRING})
Rows = list[dict[str, Any]]


def order(id: int, status: str, n: int = 0) -> dict[str, Any]:
    """A row of ORDERS: every column has a value, and no two the same."""
    amount, micros = Decimal(f"{id}.5{n}"), 1_767_261_600_000_000 + id * 60_000_000 + n
    return {"id": id, "status": status, "note": f"note {id} {n}", "amount": amount, "at": micros, "score": id / 4 + n}


def build(root: Path, **keys: Any) -> Sparkless:
    """Key 1: changed; 2: deleted; 3: deleted and new; 4 and 5: as they came; 6: moved to 7; one broken file."""
    shop = Sparkless(root, **keys)
    shop.send(
        *(change(ORDERS, "INSERT", order(n, "new"), 100 + n, sec=n) for n in range(1, 7)),
        *(change(USERS, "INSERT", {"id": n, "name": f"user {n}"}, 200 + n) for n in range(1, 4)),
    )
    shop.run()
    shop.send(
        change(ORDERS, "UPDATE-INSERT", order(1, "paid", 1), 300, sec=100),
        change(ORDERS, "DELETE", order(2, "new"), 310, sec=100),
        change(ORDERS, "DELETE", order(3, "new"), 320, sec=100),
        change(ORDERS, "INSERT", order(3, "again", 2), 330, sec=101),
        change(ORDERS, "UPDATE-DELETE", order(6, "new"), 340, sec=102),
        change(ORDERS, "UPDATE-INSERT", order(7, "new", 3), 340, sec=102),
        change(ORDERS, "INSERT", {**order(8, "new", 1), "note": None}, 350, sec=103),
        format="parquet",
    )
    shop.garbage()
    shop.run()
    return shop


SETTINGS: dict[str, dict[str, Any]] = {
    "log and files": {},
    "without a log": {"tables": {"log": None}},
    "without the files": {},
}


@dataclass
class Lake:
    """A pipeline whose tables each test may spoil."""

    shop: Sparkless
    spare: Path

    def uri(self, name: str) -> str:
        return str(self.shop.root / "lake" / name)

    def rewrite(self, name: str, change: Callable[[Rows], Rows]) -> None:
        """What somebody else's job might do to a table."""
        table = DeltaTable(self.uri(name))
        rows = table.to_pyarrow_table()
        write_deltalake(table, pa.Table.from_pylist(change(rows.to_pylist()), rows.schema), mode="overwrite")

    def append(self, name: str, rows: Rows) -> None:
        table = DeltaTable(self.uri(name))
        write_deltalake(table, pa.Table.from_pylist(rows, table.to_pyarrow_table().schema), mode="append")

    def rows(self, name: str) -> Rows:
        rows: Rows = DeltaTable(self.uri(name)).to_pyarrow_table().to_pylist()
        return rows

    def row(self, name: str, key: int, **wanted: Any) -> dict[str, Any]:
        return next(r for r in self.rows(name) if r["id"] == key and wanted.items() <= r.items())

    def mend(self) -> None:
        shutil.rmtree(self.shop.root / "lake")
        shutil.copytree(self.spare, self.shop.root / "lake")


@pytest.fixture(scope="module", params=SETTINGS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    root = tmp_path_factory.mktemp("audit")
    shop = build(root, **SETTINGS[request.param])
    if request.param == "without the files":
        shutil.rmtree(shop.files)
    shutil.copytree(root / "lake", root / "spare")
    return Lake(shop, root / "spare")


@pytest.fixture
def lake(built: Lake) -> Iterator[Lake]:
    yield built
    built.mend()


MERGED, LOG, OTHER, OTHER_LOG = "shop_orders", "shop_orders_log", "shop_users", "shop_users_log"
Change = Callable[[dict[str, Any]], dict[str, Any]]
Fault = Callable[[Lake], None]


def put(name: str, key: int, **values: Any) -> Fault:
    """Other values in the rows of one key."""
    return changed(name, key, lambda row: {**row, **values})


def changed(name: str, key: int, change: Change) -> Fault:
    return lambda lake: lake.rewrite(name, lambda rows: [change(r) if r["id"] == key else r for r in rows])


def dropped(name: str, key: int) -> Fault:
    return lambda lake: lake.rewrite(name, lambda rows: [r for r in rows if r["id"] != key])


def first_version(lake: Lake, key: int) -> dict[str, Any]:
    """The row of a key as its first event made it."""
    first: Rows = DeltaTable(lake.uri(MERGED), version=0).to_pyarrow_table().to_pylist()
    return next(r for r in first if r["id"] == key)


def stale(key: int, *, metadata: bool) -> Fault:
    """`metadata`: what it says of itself is stale too."""

    def plant(lake: Lake) -> None:
        old = first_version(lake, key)
        changed(MERGED, key, lambda row: {**old, **({} if metadata else {METADATA: row[METADATA]})})(lake)

    return plant


def lost_file(name: str) -> Fault:
    def plant(lake: Lake) -> None:
        (Path(lake.uri(name)) / DeltaTable(lake.uri(name)).file_uris()[0]).unlink()

    return plant


def swapped(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "status": row["note"], "note": row["status"]}


def users_row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "note": None, "amount": None, "at": None, "score": None, "status": "user 3"}


def moved_position(row: dict[str, Any]) -> dict[str, Any]:
    metadata = row[METADATA]
    return {**row, METADATA: {**metadata, "source": {**metadata["source"], "log_position": 9}}}


def other_origin(lake: Lake) -> None:
    origin = lake.rows(OTHER_LOG)[0]["_origin"]
    lake.rewrite(LOG, lambda rows: [{**rows[0], "_origin": origin}, *rows[1:]])


def exchanged_origins(lake: Lake) -> None:
    def change(rows: Rows) -> Rows:
        one, other = rows[:2]
        return [{**one, "_origin": other["_origin"]}, {**other, "_origin": one["_origin"]}, *rows[2:]]

    lake.rewrite(LOG, change)


IN_MERGED: dict[str, Fault] = {
    "a key that collapsed into another": dropped(MERGED, 4),
    "a key that became null": put(MERGED, 4, id=None),
    "a stale row": stale(1, metadata=True),
    "stale values under new metadata": stale(1, metadata=False),
    "a lost delete": stale(2, metadata=True),
    "a delete that says it is none": put(MERGED, 2, _deleted=False),
    "a row that came back beside its tombstone": lambda lake: lake.append(MERGED, [first_version(lake, 2)]),
    "a living row that is called deleted": put(MERGED, 4, _deleted=True),
    "a lost tombstone": dropped(MERGED, 2),
    "a doubled append": lambda lake: lake.append(MERGED, [lake.row(MERGED, 5)]),
    "a row of another route": lambda lake: lake.append(MERGED, [{**users_row(lake.row(MERGED, 5)), "id": 33}]),
    "a row of another route in the place of its own": changed(MERGED, 3, users_row),
    "a null in place of a value": put(MERGED, 5, amount=None),
    "a value in place of a null": put(MERGED, 8, note="made up"),
    "a changed text": put(MERGED, 1, status="Paid"),
    "a changed number": put(MERGED, 1, amount=Decimal("1.52")),
    "a changed time": changed(MERGED, 1, lambda row: {**row, "at": row["at"].replace(microsecond=7)}),
    "swapped columns": changed(MERGED, 4, swapped),
    "a lost data file": lost_file(MERGED),
    "no rows": lambda lake: lake.rewrite(MERGED, lambda rows: []),
    "no table": lambda lake: shutil.rmtree(lake.uri(MERGED)),
}
IN_LOG: dict[str, Fault] = {
    "a dropped row": lambda lake: lake.rewrite(LOG, lambda rows: rows[1:]),
    "a doubled append": lambda lake: lake.append(LOG, lake.rows(LOG)[:1]),
    "a dropped row and a doubled one": lambda lake: lake.rewrite(LOG, lambda rows: [*rows[1:], rows[1]]),
    "a row of another route": other_origin,
    "a null in place of a value": put(LOG, 4, score=None),
    "a changed value": put(LOG, 4, note="other"),
    "swapped columns": changed(LOG, 4, swapped),
    "another key": put(LOG, 4, id=44),
    "another spelling of the key": changed(LOG, 4, lambda row: {**row, "_origin": {**row["_origin"], "key": '["44"]'}}),
    "another place in the source's log": changed(LOG, 4, moved_position),
    "two rows under each other's number": exchanged_origins,
    "a lost data file": lost_file(LOG),
    "no table": lambda lake: shutil.rmtree(lake.uri(LOG)),
}
BY_FILES_ONLY = ("another key", "a row of another route", "two rows under each other's number")
"""Where the files are gone, a log that was changed with such care is all that is known."""


def test_tables_that_are_right_are_found_right(lake: Lake) -> None:
    found = verify_changes(lake.shop.config)
    assert found.problems == () and found.ok
    assert (found.rows_lost, found.rows_duplicated, found.rows_quarantined) == (0, 0, 1)
    # Files that are gone limit what could be judged; nobody has consented to a loss.
    assert (len(found.notes), found.source_losses) == (0 if lake.shop.files.exists() else 1, ())


@pytest.mark.parametrize("fault", IN_MERGED)
def test_a_fault_in_a_merged_table_is_found(lake: Lake, fault: str) -> None:
    IN_MERGED[fault](lake)
    found = verify_changes(lake.shop.config)
    assert not found.ok
    assert {t.route for t in found.tables if t.problems} == {"shop.orders"}


@pytest.mark.parametrize("fault", IN_LOG)
def test_a_fault_in_a_log_is_found(lake: Lake, fault: str) -> None:
    if not Path(lake.uri(LOG)).exists():
        return  # this pipeline writes none
    IN_LOG[fault](lake)
    found = verify_changes(lake.shop.config)
    if lake.shop.files.exists() or fault not in BY_FILES_ONLY:
        assert not found.ok
        assert {t.route for t in found.tables if t.problems} == {"shop.orders"}


def test_a_row_that_left_the_quarantine_is_found(lake: Lake) -> None:
    DeltaTable(f"{lake.shop.config.state_root}/quarantine").delete()
    found = verify_changes(lake.shop.config)
    assert (found.ok, found.rows_lost) == (False, 1)
