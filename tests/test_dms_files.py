"""Files of AWS DMS, CSV or Parquet, become a log, a merged table and a history per source table."""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributary.audit.judge.changes import verify_changes
from distributary.audit.judge.histories import judge_histories
from distributary.audit.plan import plan_changes
from distributary.changes.dms_files import read_dms
from distributary.changes.model import METADATA, Reading
from distributary.errors import FileBroken
from tests.sparkless import Sparkless

START = datetime(2026, 1, 31, 10, 11, 12, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2))])
Rows = Sequence[Mapping[str, Any]]


def shop_of(root: Path, source: Mapping[str, Any] | None = None, **tables: Any) -> Sparkless:
    given = {"type": "dms_files", "path": str(root / "files"), **(source or {})}
    routes = {"sales.orders": {"keys": ["id"]}}
    return Sparkless(root, source=given, tables={"history": "{schema}_{table}_history", "routes": routes, **tables})


def name_at(number: int) -> str:
    """Of a file of changes that was begun `number` seconds after the start."""
    return (START + timedelta(seconds=number)).strftime("%Y%m%d-%H%M%S") + "120"


def row(op: str | None, key: int, name: str | None) -> dict[str, Any]:
    values = {"id": key, "name": name, "price": None if name is None else Decimal(f"{key}.50")}
    return values if op is None else {"Op": op, **values}


def csv_body(rows: Rows) -> bytes:
    lines = [",".join(rows[0])]
    for one in rows:
        quoted = (value if name == "Op" else _in_csv(value) for name, value in one.items())
        lines.append(",".join(quoted))
    return "\n".join(lines).encode() + b"\n"


def _in_csv(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return "NULL" if value is None else str(value)


def parquet_body(rows: Rows) -> bytes:
    schema = SCHEMA if "Op" not in rows[0] else pa.schema([("Op", pa.string()), *SCHEMA])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(one) for one in rows], schema=schema), sink, row_group_size=3)
    return sink.getvalue()


def write(shop: Sparkless, name: str, rows: Rows, format: str, table: str = "sales/orders") -> None:
    body = parquet_body(rows) if format == "parquet" else csv_body(rows)
    path = shop.files / table / f"{name}.{format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(body) if format.endswith(".gz") else body)


def living(shop: Sparkless) -> dict[int, str]:
    rows = shop.merged("sales_orders").to_pylist()
    return {int(one["id"]): one["name"] for one in rows if not one["_deleted"]}


def problems(shop: Sparkless) -> list[str]:
    found = judge_histories(shop.config, verify_changes(shop.config))
    assert found.notes == ()
    return list(found.problems)


@pytest.mark.parametrize(("seed", "format"), [(1, "csv"), (2, "csv.gz"), (2, "parquet")])
def test_after_any_files_in_any_order_the_merged_table_is_that_of_the_source(
    seed: int, format: str, tmp_path: Path
) -> None:
    random, held, files = Random(seed), dict[int, str](), dict[str, list[dict[str, Any]]]()
    held |= {key: f"loaded {key}" for key in range(4)}
    files["LOAD00000001"] = [row(None, key, name) for key, name in held.items()]
    for number in range(8):
        rows = []
        for step in range(random.randrange(1, 6)):
            key = random.randrange(6)
            if random.random() < 0.3:
                rows.append(row("D", key, held.pop(key, None)))
            else:
                rows.append(row("U" if key in held else "I", key, f'{number}, "{step}"'))
                held[key] = f'{number}, "{step}"'
        files[name_at(number)] = rows
    shop, names = shop_of(tmp_path), list(files)
    random.shuffle(names)
    for half in (names[::2], names[1::2]):
        for name in half:
            folder = "sales/orders" if name.startswith("LOAD") or seed == 1 else "sales/orders/2026/01/31/10"
            write(shop, name, files[name], format, folder)
        shop.run()
    assert (living(shop), shop.reasons()) == (held, {})
    assert problems(shop) == []


def test_parquet_has_the_types_of_its_columns_and_csv_has_texts_where_no_setting_says_more(tmp_path: Path) -> None:
    shop = shop_of(tmp_path, {"columns": {"sales.prices.price": "decimal(10,2)"}})
    write(shop, name_at(1), [row("I", 1, "")], "parquet")
    write(shop, name_at(1), [row("I", 1, ""), row("I", 2, None)], "csv", "sales/prices")
    shop.run()
    orders, prices = shop.log("sales_orders_log"), shop.log("sales_prices_log")
    assert [(one["id"], one["name"], one["price"]) for one in orders] == [(1, "", Decimal("1.50"))]
    assert [(one["id"], one["name"], one["price"]) for one in prices] == [("1", "", Decimal("1.50")), ("2", None, None)]


def test_a_file_says_what_is_wrong_with_it_and_the_others_are_read(tmp_path: Path) -> None:
    shop = shop_of(tmp_path)
    write(shop, name_at(0), [row("I", 1, "a")], "csv")
    for name, body in {
        "20260131-101113120.csv": b"I,2,b,1.50\n",
        "20260131-101114120.csv": b"Op,id,name,price\nI,2,b\n",
        "20260131-101115120.parquet": b"PAR1garbage",
        "20269931-101115120.csv": b"Op,id\n",
        "other.csv": b"Op,id\n",
    }.items():
        (shop.files / "sales/orders" / name).write_bytes(body)
    assert plan_changes(shop.config).reasons.keys() == {"FILE_BROKEN"}
    shop.run()
    assert (living(shop), shop.reasons()) == ({1: "a"}, {"FILE_BROKEN": 5})
    assert any("AddColumnName" in one["detail"] for one in shop.quarantined())


@pytest.mark.parametrize("first", ["I,2,b", "1,foo,NULL", "a,foo,foo", "a,,b", "a,NULL,b", "2026-01-31 10:11:12,a,b"])
def test_a_first_row_is_not_taken_for_names(first: str) -> None:
    with pytest.raises(FileBroken, match="AddColumnName"):
        read_dms(pa.py_buffer(f"{first}\n2,bar,x\n".encode()), "a/b/LOAD00000001.csv", Reading())


def test_an_operation_that_is_none_is_set_aside_alone() -> None:
    found = read_dms(pa.py_buffer(csv_body([row("I", 1, "a"), row("X", 2, "b")])), f"a/b/{name_at(0)}.csv", Reading())
    assert [(bad.row, bad.reason.value) for bad in found.bad] == [(1, "UNKNOWN_CHANGE_TYPE")]
    assert [one["id"] for events in found.events for one in events.rows.to_pylist()] == ["1"]


def test_an_operation_may_be_bytes_in_parquet(tmp_path: Path) -> None:
    shop = shop_of(tmp_path)
    rows = pa.table({"Op": pa.array([b"I", b"U"]), "id": [1, 1], "name": ["a", "b"]})
    (shop.files / "sales/orders").mkdir(parents=True)
    pq.write_table(rows, shop.files / f"sales/orders/{name_at(0)}.parquet")
    shop.run()
    assert living(shop) == {1: "b"}
    assert problems(shop) == []


def test_changes_without_an_operation_are_inserts_and_rows_of_a_load_are_older_than_all_changes() -> None:
    rows = [{"id": 1, "name": "a", "price": None}]
    read = [
        read_dms(pa.py_buffer(parquet_body(rows)), f"s3://bucket/x/a/b/{name}.parquet", Reading()).events[0]
        for name in ("LOAD0000000A", name_at(0), f"{name_at(0)}7", name_at(1))
    ]
    about = [events.rows.column(METADATA)[0].as_py() for events in read]
    assert [one["change_type"] for one in about] == ["READ", "INSERT", "INSERT", "INSERT"]
    numbers = [one["change_sequence_number"] for one in about]
    assert numbers == sorted(numbers) and len(set(numbers)) == 4
    assert {events.table.route for events in read} == {"a.b"}


@pytest.mark.parametrize("path", ["orders/LOAD00000001.csv", "a/b/LOAD0001.json", "a/b/20260131.csv"])
def test_a_place_that_is_none_of_dms_is_told(path: str) -> None:
    with pytest.raises(FileBroken, match="LOAD00000001"):
        read_dms(pa.py_buffer(b"x"), path, Reading())
