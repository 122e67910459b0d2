"""A table whose files are written anew with wider columns: every row once, whoever else writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.schema import Field, PrimitiveType

from distributary.tables import merge_files, rewrite
from distributary.tables.commits import put_commit, read_commit
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.rewrite import rewrite_wider
from distributary.tables.snapshot import Owner, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip, append_on_tip

STORE = Store()
OWNER = Owner("games", "ann_game")
INT, LONG = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64())])
BIG = 2**40


def opened(folder: Path) -> Snapshot:
    table = Table(str(folder), STORE).open()
    assert table is not None
    return table


def file_of(folder: Path, *rows: dict[str, Any], schema: pa.Schema = INT) -> DataFile:
    return write_data_file(str(folder), pa.Table.from_pylist(list(rows), schema=schema), STORE)


def take(
    folder: Path, batch: int, *rows: dict[str, Any], schema: pa.Schema = INT, table: Snapshot | None = None
) -> None:
    """Append rows under the transaction of `batch`. `table`: as opened before."""
    table = table or Table(str(folder), STORE).open()
    evolution = evolve(columns_of(table), [schema], Policy())
    file = file_of(folder, *rows, schema=evolution.schema)
    Table(str(folder), STORE, OWNER).commit(table, evolution, [file], Txn("s", batch))


def values(folder: Path, column: str = "a") -> list[Any]:
    return sorted(opened(folder).delta.to_pyarrow_table()[column].to_pylist(), key=lambda v: (v is None, v))


def meanwhile(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], Any]) -> list[int]:
    """Others commit just before our first puts, one each; returns the versions that we tried."""
    waiting, tried = list(others), list[int]()

    def late(uri: str, store: Store, version: int, text: bytes) -> bool:
        tried.append(version)
        if waiting:
            waiting.pop(0)()
        return put_commit(uri, store, version, text)

    monkeypatch.setattr(rewrite, "put_commit", late)
    return tried


def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each file that is written anew from now on."""
    found = list[int]()

    def noted(uri: str, rows: pa.Table, store: Store) -> DataFile:
        found.append(rows.num_rows)
        return write_data_file(uri, rows, store)

    monkeypatch.setattr(merge_files, "write_data_file", noted)
    return found


def paths(folder: Path) -> set[str]:
    return set(pa.table(opened(folder).delta.get_add_actions()).column("path").to_pylist())


# -- one commit --------------------------------------------------------------------------------------------

SCORES = [1, -7, None, 2**31 - 1]
DECIMALS = [Decimal("1.25"), None, Decimal("-99999999.99")]


@pytest.mark.parametrize(
    ("old", "new", "rows", "expected"),
    [
        (pa.int8(), pa.int16(), [1, None], [1, None]),
        (pa.int32(), pa.int64(), SCORES, SCORES),
        (pa.int32(), pa.float64(), SCORES, SCORES),
        (pa.float32(), pa.float64(), [0.5, None, float("inf")], [0.5, None, float("inf")]),
        (pa.int32(), pa.decimal128(10, 0), SCORES, SCORES),
        (pa.int64(), pa.decimal128(38, 0), [2**63 - 1, None], [Decimal(2**63 - 1), None]),
        (pa.int64(), pa.decimal128(22, 2), [2**63 - 1, None], [Decimal(2**63 - 1), None]),
        (pa.decimal128(10, 2), pa.decimal128(14, 4), DECIMALS, DECIMALS),
        (pa.int64(), pa.string(), [2**63 - 1, -1, None], [str(2**63 - 1), "-1", None]),
        (pa.decimal128(38, 0), pa.string(), [Decimal(10) ** 37, None], [str(10**37), None]),
    ],
    ids=str,
)
def test_each_value_is_the_same_in_the_wider_type(
    tmp_path: Path, old: pa.DataType, new: pa.DataType, rows: list[Any], expected: list[Any]
) -> None:
    struct = [pa.field("x", old), pa.field("y", pa.string())]

    def columns(kind: pa.DataType) -> pa.Schema:
        s = pa.struct([struct[0].with_type(kind), struct[1]])
        nested = [("s", s), ("l", pa.list_(kind)), ("m", pa.map_(pa.string(), s))]
        return pa.schema([("a", kind), *nested, ("n", pa.int64())])

    def row(value: Any, number: int) -> dict[str, Any]:
        s = {"x": value, "y": "y"}
        return {"a": value, "s": s, "l": [value, None], "m": [("k", s)], "n": number}

    take(tmp_path, 0, *(row(value, n) for n, value in enumerate(rows)), schema=columns(old))
    take(tmp_path, 1, {"n": len(rows)}, schema=columns(old))
    rewrite_wider(str(tmp_path), columns(old), columns(new), STORE)

    assert opened(tmp_path).schema == columns(new)
    found = sorted(opened(tmp_path).delta.to_pyarrow_table().to_pylist(), key=lambda r: r["n"])
    assert found[:-1] == [row(value, n) for n, value in enumerate(expected)]
    assert found[-1] == {"a": None, "s": None, "l": None, "m": None, "n": len(rows)}


def test_the_wider_columns_and_a_batch_s_rows_are_one_commit(tmp_path: Path) -> None:
    take(tmp_path, 0, {"a": 1}, {"a": 2})
    take(tmp_path, 1, {"a": 3})
    file = file_of(tmp_path, {"a": BIG}, schema=LONG)
    assert rewrite_wider(str(tmp_path), INT, LONG, STORE, txn=Txn("s", 2), added=[file]) == 2
    assert opened(tmp_path).version == 2
    assert values(tmp_path) == [1, 2, 3, BIG]
    assert opened(tmp_path).rows_of(Txn("s", 2)) == 1
    assert opened(tmp_path).delta.transaction_version("s") == 2
    with pytest.raises(CommitConflict):
        rewrite_wider(str(tmp_path), LONG, LONG, STORE, txn=Txn("s", 2), added=[file])
    assert values(tmp_path) == [1, 2, 3, BIG]


def test_only_a_batch_s_own_rows_are_new_to_a_reader_of_changes(tmp_path: Path) -> None:
    take(tmp_path, 0, {"a": 1})
    rewrite_wider(str(tmp_path), INT, LONG, STORE, txn=Txn("s", 1), added=[file_of(tmp_path, {"a": 2}, schema=LONG)])
    text = read_commit(str(tmp_path), STORE, 1) or b""
    assert text.count(b'"dataChange": true') == 1
    assert text.count(b'"dataChange": false') == 2


def test_a_table_keeps_what_was_said_of_it_and_its_columns(tmp_path: Path) -> None:
    said = {"comment": "points"}
    columns = Schema(
        [Field("a", PrimitiveType("integer"), metadata=said), Field("b", PrimitiveType("string"), nullable=False)]
    )
    table = DeltaTable.create(
        str(tmp_path), columns, name="t", description="d", configuration={"delta.appendOnly": "true"}
    )
    before = opened(tmp_path).schema
    write_deltalake(str(tmp_path), pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}), mode="append")
    after = before.set(0, before.field(0).with_type(pa.int64()))
    rewrite_wider(str(tmp_path), before, after, STORE)
    now = opened(tmp_path)
    assert (now.delta.metadata().id, now.delta.metadata().name, now.delta.metadata().description) == (
        table.metadata().id,
        "t",
        "d",
    )
    assert now.delta.metadata().configuration == {"delta.appendOnly": "true"}
    assert now.delta.schema().fields[0] == Field("a", PrimitiveType("long"), metadata=said)
    assert now.delta.schema().fields[1] == columns.fields[1]
    assert values(tmp_path) == [1]


def test_files_without_the_column_stay(tmp_path: Path) -> None:
    take(tmp_path, 0, {"b": "x"}, schema=pa.schema([("b", pa.string())]))
    old = paths(tmp_path)
    take(tmp_path, 1, {"a": 1}, schema=INT)
    before = opened(tmp_path).schema
    rewrite_wider(str(tmp_path), before, before.set(1, pa.field("a", pa.int64())), STORE)
    assert old < paths(tmp_path)
    assert values(tmp_path) == [1, None]


def test_files_of_a_partition_stay_in_it_and_other_partitions_are_not_read(tmp_path: Path) -> None:
    rows = pa.table({"k": ["a", "a", "b/ü"], "v": pa.array([1, 2, 3], pa.int32())})
    write_deltalake(str(tmp_path), rows, partition_by=["k"])
    write_deltalake(str(tmp_path), rows, mode="append")
    before = opened(tmp_path).schema
    after = before.set(1, before.field(1).with_type(pa.int64()))
    rewrite_wider(str(tmp_path), before, after, STORE)
    found = opened(tmp_path)
    assert sorted((r["k"], r["v"]) for r in found.delta.to_pyarrow_table().to_pylist()) == sorted(
        zip(["a", "a", "b/ü"] * 2, [1, 2, 3] * 2, strict=True)
    )
    assert len(found.delta.file_uris()) == 2

    kept = paths(tmp_path)
    wider = after.set(1, after.field(1).with_type(pa.decimal128(20, 0)))
    rewrite_wider(str(tmp_path), after, wider, STORE, within=lambda partition: partition["k"] == "none")
    assert paths(tmp_path) == kept


def test_a_file_of_many_rows_is_read_and_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path, 0, *({"a": n} for n in range(5000)))
    monkeypatch.setattr(merge_files, "READ_ROWS", 700)
    monkeypatch.setattr(merge_files, "FILE_BYTES", 8000)
    monkeypatch.setattr(rewrite, "SMALL_BYTES", 0)
    largest = written(monkeypatch)
    rewrite_wider(str(tmp_path), INT, LONG, STORE)
    assert values(tmp_path) == list(range(5000))
    assert len(paths(tmp_path)) == len(largest) >= 4
    assert max(largest) < 2000


def test_a_value_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    take(tmp_path, 0, {"a": BIG}, schema=LONG)
    with pytest.raises(pa.ArrowInvalid):
        rewrite_wider(str(tmp_path), LONG, INT, STORE)
    assert values(tmp_path) == [BIG]


def test_a_table_that_has_got_other_columns_is_not_touched(tmp_path: Path) -> None:
    take(tmp_path, 0, {"a": 1})
    with pytest.raises(CommitConflict):
        rewrite_wider(str(tmp_path), LONG, pa.schema([("a", pa.string())]), STORE)
    with pytest.raises(CommitConflict):
        rewrite_wider(str(tmp_path / "none"), INT, LONG, STORE)
    assert opened(tmp_path).version == 0


# -- others meanwhile --------------------------------------------------------------------------------------


def test_rows_that_are_appended_meanwhile_are_written_anew_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path, 0, {"a": 1})
    wrote = written(monkeypatch)
    tried = meanwhile(monkeypatch, *(lambda n=n: take(tmp_path, n, {"a": n}) for n in (2, 3)))
    rewrite_wider(str(tmp_path), INT, LONG, STORE)
    assert tried == [1, 2, 3]
    # Each round writes only what is new to it.
    assert wrote == [1, 1, 1]
    assert values(tmp_path) == [1, 2, 3]


def test_a_compaction_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(3):
        take(tmp_path, batch, {"a": batch})
    tried = meanwhile(monkeypatch, lambda: opened(tmp_path).delta.optimize.compact())
    rewrite_wider(str(tmp_path), INT, LONG, STORE)
    assert tried == [3, 4]
    assert values(tmp_path) == [0, 1, 2]


def test_an_append_that_was_decided_upon_the_old_columns_does_not_land(tmp_path: Path) -> None:
    take(tmp_path, 0, {"a": 0})
    before, tip = opened(tmp_path), Tip.of(0, INT, Txn("s", 0))
    rewrite_wider(str(tmp_path), INT, LONG, STORE)
    with pytest.raises(CommitConflict):
        take(tmp_path, 1, {"a": 1}, table=before)
    assert not append_on_tip(str(tmp_path), tip, [file_of(tmp_path, {"a": 1})], Txn("s", 1), STORE)
    take(tmp_path, 1, {"a": 1})
    assert values(tmp_path) == [0, 1]


def test_rows_rebuilt_in_the_old_columns_do_not_take_the_place_of_those_in_the_wider_ones(tmp_path: Path) -> None:
    take(tmp_path, 0, {"b": "x"}, schema=pa.schema([("b", pa.string())]))
    opened(tmp_path).delta.alter.add_columns(Schema.from_arrow(INT).fields)
    before = opened(tmp_path).schema
    old, rebuilt = list(opened(tmp_path).sizes()), file_of(tmp_path, {"b": "x", "a": 1}, schema=before)
    rewrite_wider(str(tmp_path), before, before.set(1, LONG.field("a")), STORE)
    assert list(opened(tmp_path).sizes()) == old
    with pytest.raises(CommitConflict):
        Table(str(tmp_path), STORE).replace_files(old, [rebuilt], Txn("r", 0), 1, before)
    assert values(tmp_path) == [None]


def test_of_two_that_make_the_same_columns_wider_one_decides_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(tmp_path, 0, {"a": 0})
    file = file_of(tmp_path, {"a": BIG}, schema=LONG)
    meanwhile(monkeypatch, lambda: rewrite_wider(str(tmp_path), INT, LONG, STORE))
    with pytest.raises(CommitConflict):
        rewrite_wider(str(tmp_path), INT, LONG, STORE, txn=Txn("s", 1), added=[file])
    assert values(tmp_path) == [0]


def test_racing_writers_lose_no_row_while_a_column_gets_wider_and_wider(tmp_path: Path) -> None:
    take(tmp_path, 0, {"a": 0})

    def appends(writer: int) -> None:
        for batch in range(12):
            number = 1 + writer * 100 + batch
            for _ in range(100):
                table = opened(tmp_path)
                evolution = evolve(table.schema, [INT], Policy())
                file = file_of(tmp_path, {"a": number}, schema=evolution.schema)
                try:
                    txn = Txn(f"w{writer}", batch)
                    Table(str(tmp_path), STORE, OWNER).commit(table, evolution, [file], txn)
                    break
                except CommitConflict:
                    continue
            else:
                raise AssertionError("no end of conflicts")

    def grows() -> None:
        for kind in (pa.int64(), pa.decimal128(20, 0), pa.decimal128(38, 0)):
            rewrite_wider(str(tmp_path), opened(tmp_path).schema, pa.schema([("a", kind)]), STORE)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(appends, 0), pool.submit(appends, 1), pool.submit(grows)]:
            done.result()
    assert opened(tmp_path).schema.field("a").type == pa.decimal128(38, 0)
    assert [int(v) for v in values(tmp_path)] == sorted([0, *range(1, 13), *range(101, 113)])


# -- faults ------------------------------------------------------------------------------------------------


def test_who_dies_before_the_commit_has_changed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path, 0, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "put_commit", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            rewrite_wider(str(tmp_path), INT, LONG, STORE)
    assert (opened(tmp_path).version, values(tmp_path)) == (0, [1])
    rewrite_wider(str(tmp_path), INT, LONG, STORE)
    assert (opened(tmp_path).version, values(tmp_path)) == (1, [1])


def test_a_store_s_lost_answer_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path, 0, {"a": 1})

    def forgets(uri: str, store: Store, version: int, text: bytes) -> bool:
        put_commit(uri, store, version, text)
        raise OSError("no answer")

    monkeypatch.setattr(rewrite, "put_commit", forgets)
    assert rewrite_wider(str(tmp_path), INT, LONG, STORE) == 1
    assert values(tmp_path) == [1]
