"""Commits to real Delta tables: each batch once, whatever races, whatever fails half-way."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, QueryBuilder, Schema, Transaction, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.config import Tables
from distributary.errors.border import TableFault
from distributary.tables.datafile import write_data_file
from distributary.tables.engines import spark_needed, why_spark
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.outage import is_store_fault
from distributary.tables.snapshot import Owner, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import COMMIT_ATTEMPTS, Table, retried

STORE = Store()
OWNER = Owner("games", "ann_game")
INT = pa.schema([("a", pa.int32())])
FRESH = object()


def opened(folder: Path) -> Snapshot:
    table = Table(str(folder), STORE).open()
    assert table is not None
    return table


def take(
    folder: Path,
    txn: Txn,
    *rows: dict[str, Any],
    schema: pa.Schema = INT,
    seen: Any = FRESH,
    properties: dict[str, str] | None = None,
) -> None:
    """One attempt at a batch, as a task makes it. `seen`: the table as this attempt has opened it."""
    table = Table(str(folder), STORE).open() if seen is FRESH else seen
    evolution = evolve(columns_of(table), [schema], Policy())
    body = pa.Table.from_pylist(list(rows or [{"a": txn.version}]), schema=evolution.schema)
    files = [write_data_file(str(folder), body, STORE)]
    Table(str(folder), STORE, OWNER, properties or {}).commit(table, evolution, files, txn)


def until_done(folder: Path, txn: Txn, *rows: dict[str, Any], schema: pa.Schema = INT) -> str:
    """As a caller does it: look for the mark, try, and begin anew on a conflict."""
    for _ in range(30):
        table = Table(str(folder), STORE).open()
        if table is not None and table.has(txn):
            return "replayed"
        try:
            take(folder, txn, *rows, schema=schema, seen=table)
            return "written"
        except CommitConflict:
            continue
    raise AssertionError("no end of conflicts")


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Runs all at the same time; an exception is a result."""
    barrier = Barrier(len(work))

    def run(one: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return one()
        except (CommitConflict, OSError) as e:
            return e

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


def values(folder: Path, column: str = "a") -> list[Any]:
    """By the engine, for pyarrow does not read tables with deletion vectors."""
    found = QueryBuilder().register("t", opened(folder).delta).execute(f'SELECT "{column}" AS found FROM t')
    return sorted(pa.table(found)["found"].to_pylist(), key=repr)


# -- one commit --------------------------------------------------------------------------------------------


def test_the_first_commit_creates_the_table_with_its_rows(tmp_path: Path) -> None:
    take(tmp_path / "t", Txn("s", 0), {"a": 1}, {"a": 2})
    table = opened(tmp_path / "t")
    assert table.version == 0
    assert values(tmp_path / "t") == [1, 2]
    assert table.newest("s") == 0
    assert table.rows_of(Txn("s", 0)) == 2
    assert table.owner == OWNER


def test_there_is_no_table_before_the_first_commit(tmp_path: Path) -> None:
    assert Table(str(tmp_path / "none"), STORE).open() is None
    write_data_file(str(tmp_path / "orphan"), pa.table({"a": [1]}), STORE)
    assert Table(str(tmp_path / "orphan"), STORE).open() is None


@pytest.mark.parametrize("log", ["garbage", '{"commitInfo":{}}'])
def test_a_table_that_cannot_be_read_is_an_error_not_a_new_table(tmp_path: Path, log: str) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text(log)
    with pytest.raises(OSError):
        Table(str(tmp_path), STORE).open()


def test_a_commit_of_several_files_is_one_version(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    table = opened(tmp_path)
    files = [write_data_file(str(tmp_path), pa.table({"a": pa.array([n], pa.int32())}), STORE) for n in (7, 8, 9)]
    Table(str(tmp_path), STORE, OWNER).commit(table, evolve(INT, [INT], Policy()), files, Txn("s", 1))
    assert opened(tmp_path).version == 1
    assert values(tmp_path) == [0, 7, 8, 9]
    assert opened(tmp_path).rows_of(Txn("s", 1)) == 3


def test_properties_are_set_at_creation(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0), properties={"delta.appendOnly": "true"})
    assert opened(tmp_path).delta.metadata().configuration == {
        "delta.appendOnly": "true",
        **OWNER.properties(),
    }


def test_a_type_that_delta_does_not_have_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Float16"):
        take(tmp_path, Txn("s", 0), {"h": None}, schema=pa.schema([("h", pa.float16())]))


@pytest.mark.parametrize("name", ["a b", "a.b", "Attr_227e-6a", "order", "1inch", "é", "x" * 300])
def test_any_column_name_can_be_written_and_added_to(tmp_path: Path, name: str) -> None:
    """Case D1."""
    take(tmp_path, Txn("s", 0), {name: 1}, schema=pa.schema([(name, pa.int32())]))
    take(tmp_path, Txn("s", 1), {name: 2, "z": 3}, schema=pa.schema([(name, pa.int32()), ("z", pa.int32())]))
    assert values(tmp_path, name) == [1, 2]


# -- evolution ---------------------------------------------------------------------------------------------


def test_nested_columns_grow_in_the_table(tmp_path: Path) -> None:
    """Case E7: new fields in struct, list<struct> and map<string,struct>; old rows read null."""
    old = pa.struct([("x", pa.int32())])
    new = pa.struct([("n", pa.string()), ("x", pa.int32())])

    def columns(kind: pa.DataType) -> pa.Schema:
        return pa.schema([("s", kind), ("l", pa.list_(kind)), ("m", pa.map_(pa.string(), kind))])

    before, after = {"x": 1}, {"n": "v", "x": 2}
    take(tmp_path, Txn("s", 0), {"s": before, "l": [before], "m": [("k", before)]}, schema=columns(old))
    take(tmp_path, Txn("s", 1), {"s": after, "l": [after], "m": [("k", after)]}, schema=columns(new))
    grown, now = {"x": 1, "n": None}, {"x": 2, "n": "v"}
    rows = opened(tmp_path).delta.to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: row["s"]["x"]) == [
        {"s": grown, "l": [grown], "m": [("k", grown)]},
        {"s": now, "l": [now], "m": [("k", now)]},
    ]


def test_what_evolve_says_of_a_table_is_what_the_table_becomes(tmp_path: Path) -> None:
    """Else each batch would add its columns again."""
    wide = pa.schema(
        [
            ("A", pa.int32()),
            ("ntz", pa.timestamp("us")),
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.decimal128(20, 0)),
            ("l", pa.list_(pa.map_(pa.string(), pa.list_(pa.struct([("y", pa.date32())]))))),
        ]
    )
    take(tmp_path, Txn("s", 0))
    evolution = evolve(opened(tmp_path).schema, [wide], Policy())
    take(tmp_path, Txn("s", 1), {"a": 1}, schema=wide)
    assert opened(tmp_path).schema == evolution.schema
    assert not evolve(opened(tmp_path).schema, [wide, INT], Policy()).changed


def test_adding_a_column_that_is_there_does_nothing(tmp_path: Path) -> None:
    """A crash between the new columns and the rows (case E2): the attempt after it finds the columns there."""
    take(tmp_path, Txn("s", 0))
    wide = pa.schema([("a", pa.int32()), ("b", pa.string())])
    evolution = evolve(INT, [wide], Policy())
    opened(tmp_path).delta.alter.add_columns([Schema.from_arrow(wide).fields[1]])
    files = [write_data_file(str(tmp_path), pa.Table.from_pylist([{"a": 1}], schema=wide), STORE)]
    Table(str(tmp_path), STORE, OWNER).commit(opened(tmp_path), evolution, files, Txn("s", 1))
    assert opened(tmp_path).schema == wide
    assert values(tmp_path) == [0, 1]


# -- exactly once ------------------------------------------------------------------------------------------


def test_a_replay_finds_its_mark(tmp_path: Path) -> None:
    assert [until_done(tmp_path, Txn("s", batch)) for batch in (0, 1, 1, 0, 2)] == [
        "written",
        "written",
        "replayed",
        "replayed",
        "written",
    ]
    assert values(tmp_path) == [0, 1, 2]


def test_streams_do_not_know_each_other_s_marks(tmp_path: Path) -> None:
    """Case S1: a new checkpoint is a new stream, whose batch 0 is not the old one's."""
    assert until_done(tmp_path, Txn("old", 0)) == "written"
    assert until_done(tmp_path, Txn("new", 0)) == "written"
    assert opened(tmp_path).newest("other") == -1


def test_a_mark_that_is_in_the_table_is_refused_without_the_caller_s_check(tmp_path: Path) -> None:
    for batch in (0, 5):
        take(tmp_path, Txn("s", batch))
    for batch in (5, 3):
        with pytest.raises(CommitConflict):
            take(tmp_path, Txn("s", batch))
    assert values(tmp_path) == [0, 5]


def test_a_late_twin_of_a_task_conflicts(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    twin = opened(tmp_path)
    take(tmp_path, Txn("s", 1))
    take(tmp_path, Txn("s", 2))
    with pytest.raises(CommitConflict):
        take(tmp_path, Txn("s", 1), seen=twin)
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("attempt", range(3))
def test_of_racing_writers_of_one_mark_one_wins(tmp_path: Path, attempt: int) -> None:
    take(tmp_path, Txn("s", 0))
    tables = [opened(tmp_path) for _ in range(4)]
    found = at_once(*(lambda t=t: take(tmp_path, Txn("s", 1), seen=t) for t in tables))
    assert sorted(map(repr, map(type, found))) == sorted(map(repr, [type(None), *[CommitConflict] * 3]))
    assert values(tmp_path) == [0, 1]


def test_racing_writers_of_other_marks_all_land(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0), {"a": 0})
    found = at_once(*(lambda n=n: take(tmp_path, Txn(f"s{n}", 1), {"a": n}) for n in range(1, 7)))
    assert found == [None] * 6
    assert values(tmp_path) == list(range(7))


def test_of_racing_creations_one_wins_and_the_others_append(tmp_path: Path) -> None:
    """Case S4."""
    found = at_once(*(lambda n=n: take(tmp_path / "t", Txn(f"s{n}", 0), {"a": n}, seen=None) for n in range(4)))
    assert [type(e) for e in found if e is not None] == [CommitConflict] * 3
    assert len(values(tmp_path / "t")) == 1
    for n in range(4):
        until_done(tmp_path / "t", Txn(f"s{n}", 0), {"a": n})
    assert values(tmp_path / "t") == [0, 1, 2, 3]


def test_racing_evolutions_end_with_all_columns_and_rows(tmp_path: Path) -> None:
    """Case S4: two jobs add a column in the same second."""
    take(tmp_path, Txn("s", 0), {"a": 0})

    def evolve_and_write(n: int) -> str:
        schema = pa.schema([("a", pa.int32()), (f"c{n}", pa.int32())])
        return until_done(tmp_path, Txn(f"s{n}", 0), {"a": n, f"c{n}": n}, schema=schema)

    assert at_once(*(lambda n=n: evolve_and_write(n) for n in range(1, 6))) == ["written"] * 5
    assert sorted(opened(tmp_path).schema.names) == ["a", "c1", "c2", "c3", "c4", "c5"]
    rows = {row["a"]: row for row in opened(tmp_path).delta.to_pyarrow_table().to_pylist()}
    assert all(rows[n][f"c{n}"] == n for n in range(1, 6))
    assert len(rows) == 6


def test_an_append_to_a_table_that_has_grown_meanwhile_conflicts(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    seen = opened(tmp_path)
    take(tmp_path, Txn("other", 0), {"b": 1}, schema=pa.schema([("b", pa.int32())]))
    with pytest.raises(CommitConflict):
        take(tmp_path, Txn("s", 1), seen=seen)
    assert until_done(tmp_path, Txn("s", 1)) == "written"


def test_a_table_dropped_meanwhile_does_not_swallow_the_rows(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    seen = opened(tmp_path)
    for file in (tmp_path / "_delta_log").iterdir():
        file.unlink()
    (tmp_path / "_delta_log").rmdir()
    with pytest.raises((CommitConflict, OSError)):
        take(tmp_path, Txn("s", 1), seen=seen)


# -- marks over time ---------------------------------------------------------------------------------------


def test_the_mark_survives_checkpoint_and_log_cleanup(tmp_path: Path) -> None:
    properties = {"delta.checkpointInterval": "3", "delta.logRetentionDuration": "interval 0 seconds"}
    for batch in range(8):
        take(tmp_path, Txn("s", batch), properties=properties)
        take(tmp_path, Txn("other", batch))
    table = opened(tmp_path)
    table.delta.create_checkpoint()
    old = 0
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        os.utime(commit, (old, old))
    table.delta.cleanup_metadata()
    assert len(list((tmp_path / "_delta_log").glob("*.json"))) < 5
    again = opened(tmp_path)
    assert (again.newest("s"), again.newest("other")) == (7, 7)
    assert until_done(tmp_path, Txn("s", 7)) == "replayed"
    assert len(values(tmp_path)) == 16


def test_the_rows_of_a_commit_are_known_only_for_the_newest_batch(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0), {"a": 1}, {"a": 2})
    take(tmp_path, Txn("other", 9), {"a": 1})
    table = opened(tmp_path)
    assert table.rows_of(Txn("s", 0)) == 2
    assert table.rows_of(Txn("s", 1)) is None
    take(tmp_path, Txn("s", 1), *[{"a": n} for n in range(5)])
    assert opened(tmp_path).rows_of(Txn("s", 0)) is None
    assert opened(tmp_path).rows_of(Txn("s", 1)) == 5


def test_a_commit_of_another_engine_has_no_row_count(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    properties = CommitProperties(app_transactions=[Transaction("s", 1)])
    write_deltalake(tmp_path, pa.table({"a": pa.array([1], pa.int32())}), mode="append", commit_properties=properties)
    assert opened(tmp_path).newest("s") == 1
    assert opened(tmp_path).rows_of(Txn("s", 1)) is None


# -- half-way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", ["_last_checkpoint", f"{1:020}.checkpoint.parquet"])
def test_a_checkpoint_that_fails_does_not_make_a_written_batch_fail(tmp_path: Path, blocked: str) -> None:
    """delta-rs raises after the commit is in: taken for a failure, the rows would be kept aside and written twice."""
    take(tmp_path, Txn("s", 0), properties={"delta.checkpointInterval": "2"})
    (tmp_path / "_delta_log" / blocked / "in the way").mkdir(parents=True)
    for batch in (1, 2, 3):
        take(tmp_path, Txn("s", batch))
    assert values(tmp_path) == [0, 1, 2, 3]


def test_new_columns_that_landed_before_an_error_are_a_conflict(tmp_path: Path) -> None:
    """The caller begins anew, and then finds the columns there."""
    take(tmp_path, Txn("s", 0), properties={"delta.checkpointInterval": "2"})
    (tmp_path / "_delta_log" / f"{1:020}.checkpoint.parquet" / "in the way").mkdir(parents=True)
    wide = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    assert until_done(tmp_path, Txn("s", 1), {"a": 1, "b": 2}, schema=wide) == "written"
    assert values(tmp_path, "b") == [2, None]


def test_an_error_that_left_nothing_is_raised(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    seen = opened(tmp_path)
    log = tmp_path / "_delta_log"
    log.rename(tmp_path / "moved")
    log.write_text("")
    with pytest.raises(OSError):
        take(tmp_path, Txn("s", 1), seen=seen)
    log.unlink()
    (tmp_path / "moved").rename(log)
    assert values(tmp_path) == [0]


# -- owner -------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_an_owner_s_properties_are_read_back(pipeline: str, route: str) -> None:
    owner = Owner(pipeline, route)
    assert Owner.read(owner.properties(), "a description") == owner


def test_a_table_s_description_belongs_to_people(tmp_path: Path) -> None:
    """COMMENT ON TABLE once made `verify` say that the table's rows are lost."""
    take(tmp_path, Txn("s", 0), {"a": 1})
    table = opened(tmp_path)
    assert table.delta.metadata().description is None
    table.delta.alter.set_table_description("What players did")
    take(tmp_path, Txn("s", 1), {"a": 2})
    assert opened(tmp_path).owner == OWNER
    assert opened(tmp_path).delta.metadata().description == "What players did"


def test_the_owner_that_version_0_1_0_wrote_into_the_description_is_read(tmp_path: Path) -> None:
    about = '{"distributary": {"pipeline": "games", "route": "ann_game", "keys": ["id"]}}'
    write_deltalake(tmp_path, pa.table({"a": [1]}), description=about)
    assert opened(tmp_path).owner == OWNER
    assert opened(tmp_path).owner.keys == ("id",)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "route", ["O'Brien", 'say "hi"', "new york", "é\U0001f600", "a\\b\n", "'; DROP TABLE x; --", "r" * 300]
)
def test_an_owner_survives_the_table(tmp_path: Path, route: str) -> None:
    """Case D2: whoever opens the table can compare the raw route."""
    owner = Owner("p", route)
    files = [write_data_file(str(tmp_path), pa.table({"a": pa.array([1], pa.int32())}), STORE)]
    Table(str(tmp_path), STORE, owner).commit(None, evolve(None, [INT], Policy()), files, Txn("s", 0))
    take(tmp_path, Txn("s", 1), {"b": 1}, schema=pa.schema([("b", pa.int32())]))
    opened(tmp_path).delta.create_checkpoint()
    assert opened(tmp_path).owner == owner


@pytest.mark.parametrize(
    "text", [None, "my table", "[]", "{}", '{"distributary": 1}', '{"distributary": {"route": "r"}}']
)
def test_a_table_of_somebody_else_has_no_owner(tmp_path: Path, text: str | None) -> None:
    write_deltalake(tmp_path / "described", pa.table({"a": [1]}), description=text)
    write_deltalake(tmp_path / "property", pa.table({"a": [1]}))
    Snapshot(str(tmp_path / "property"), STORE).set_properties({"distributary.owner": text or ""})
    assert opened(tmp_path / "described").owner is None
    assert opened(tmp_path / "property").owner is None


# -- which engine ------------------------------------------------------------------------------------------


def by_hand(folder: Path, protocol: dict[str, Any], configuration: dict[str, str], field: dict[str, Any]) -> Snapshot:
    """A table without rows, as another writer would leave it."""
    column = {"name": "a", "type": "integer", "nullable": True, "metadata": {}, **field}
    about = {
        "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [column]}),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 0,
    }
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n" + json.dumps({"metaData": about}))
    return opened(folder)


def features(*names: str, reader: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": list(reader), "writerFeatures": list(names)}


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.enableChangeDataFeed": "true"},
        {"delta.enableDeletionVectors": "true"},
        {"delta.appendOnly": "true"},
        {"delta.checkpointInterval": "5", "delta.logRetentionDuration": "interval 1 day"},
    ],
    ids=str,
)
def test_a_task_appends_to_tables_it_can_create(tmp_path: Path, properties: dict[str, str]) -> None:
    for batch in range(3):
        take(tmp_path, Txn("s", batch), properties=properties)
    assert spark_needed(opened(tmp_path)) is None
    assert values(tmp_path) == [0, 1, 2]


def test_a_task_appends_to_a_table_with_deleted_rows(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0), {"a": 0}, {"a": 1}, properties={"delta.enableDeletionVectors": "true"})
    opened(tmp_path).delete("a = 0")
    assert spark_needed(opened(tmp_path)) is None
    take(tmp_path, Txn("s", 1), {"a": 2})
    assert values(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("protocol", "configuration", "field", "word"),
    [
        (features("typeWidening", reader=("typeWidening",)), {"delta.enableTypeWidening": "true"}, {}, "typeWidening"),
        (features("rowTracking", "domainMetadata"), {"delta.enableRowTracking": "true"}, {}, "rowTracking"),
        (features("inCommitTimestamp"), {}, {}, "inCommitTimestamp"),
        (features("clustering", "domainMetadata"), {}, {}, "clustering"),
        (features("checkConstraints"), {"delta.constraints.c": "a > 0"}, {}, "checkConstraints"),
        (
            {"minReaderVersion": 2, "minWriterVersion": 5},
            {"delta.columnMapping.mode": "name"},
            {"metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}},
            "column mapping",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 4},
            {},
            {"metadata": {"delta.generationExpression": "1 + 1"}},
            "generated",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 2},
            {},
            {"metadata": {"delta.invariants": '{"expression": {"expression": "a > 0"}}'}},
            "constraints",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 6},
            {},
            {"type": "long", "metadata": {"delta.identity.start": 1, "delta.identity.step": 1}},
            "identity",
        ),
        (
            features("variantType", reader=("variantType",)),
            {},
            {"type": "variant"},
            "variantType",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_that_a_task_must_not_write_says_why(
    tmp_path: Path, protocol: dict[str, Any], configuration: dict[str, str], field: dict[str, Any], word: str
) -> None:
    why = spark_needed(by_hand(tmp_path, protocol, configuration, field))
    assert why is not None
    assert word in why


def test_a_partitioned_table_is_not_for_tasks(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1], "day": ["x"]}), partition_by=["day"])
    assert spark_needed(opened(tmp_path)) == "a partitioned table"


def test_a_constraint_is_not_for_tasks(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    opened(tmp_path).delta.alter.add_constraint({"positive": "a > 0"})
    assert spark_needed(opened(tmp_path)) is not None


def tables(**given: Any) -> Tables:
    return Tables.model_validate({"root": "lake", **given})


def test_the_pipeline_may_ask_for_spark(tmp_path: Path) -> None:
    take(tmp_path, Txn("s", 0))
    assert why_spark(opened(tmp_path), tables(engine="spark"), "r") == "tables.engine"
    assert why_spark(opened(tmp_path), tables(), "r") is None
    assert why_spark(None, tables(), "r") is None


def test_properties_that_delta_rs_does_not_know_need_spark_at_creation(tmp_path: Path) -> None:
    wanted = tables(properties={"delta.enableRowTracking": "true", "delta.appendOnly": "true"})
    assert why_spark(None, wanted, "r") == "table properties delta.enableRowTracking"
    take(tmp_path, Txn("s", 0))
    assert why_spark(opened(tmp_path), wanted, "r") is None


# -- whose fault -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError as e:
            assert e.errno == errno.ENOSPC


def fault(work: Callable[[], Any]) -> Exception:
    with pytest.raises(OSError) as caught:
        work()
    return caught.value


def test_a_full_disk_is_the_store_s_fault(small_disk: Path) -> None:
    """Both where we write the file and where delta-rs writes the commit; nothing is taken in then."""
    folder = small_disk / "t"
    take(folder, Txn("s", 0))
    files = [write_data_file(str(folder), pa.table({"a": pa.array([1], pa.int32())}), STORE)]
    evolution = evolve(INT, [INT], Policy())
    fill(small_disk)
    assert is_store_fault(fault(lambda: take(folder, Txn("s", 1))))

    def commit() -> None:
        Table(str(folder), STORE, OWNER).commit(opened(folder), evolution, files, Txn("s", 1))

    assert is_store_fault(fault(commit))
    (small_disk / "filler").unlink()
    assert opened(folder).newest("s") == 0
    commit()
    assert values(folder) == [0, 1]


def test_a_read_only_disk_is_the_store_s_fault(small_disk: Path) -> None:
    folder = small_disk / "t"
    take(folder, Txn("s", 0))
    files = [write_data_file(str(folder), pa.table({"a": pa.array([1], pa.int32())}), STORE)]
    evolution = evolve(INT, [INT], Policy())
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert is_store_fault(fault(lambda: take(folder, Txn("s", 1))))
    assert is_store_fault(fault(lambda: take(small_disk / "new", Txn("s", 1))))

    def commit(table: Snapshot | None, where: Path) -> None:
        Table(str(where), STORE, OWNER).commit(table, evolution, files, Txn("s", 1))

    assert is_store_fault(fault(partial(commit, opened(folder), folder)))
    assert is_store_fault(fault(partial(commit, None, small_disk / "new")))


def test_a_full_device_is_the_store_s_fault() -> None:
    with pytest.raises(OSError) as caught, open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")
    assert is_store_fault(caught.value)


def test_an_object_store_that_does_not_answer_is_the_store_s_fault() -> None:
    away = Store(
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "max_retries": "0",
        }
    )
    assert is_store_fault(fault(lambda: Table("s3://bucket/t", away).open()))
    assert is_store_fault(fault(lambda: away.put("s3://bucket/t", "part", b"x")))


def test_a_file_where_a_table_should_be_is_the_table_s_fault(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    assert not is_store_fault(fault(lambda: take(tmp_path / "t", Txn("s", 0))))


def test_a_name_that_sounds_like_a_fault_is_none(tmp_path: Path) -> None:
    (tmp_path / "quota_events").write_text("")
    assert not is_store_fault(fault(lambda: take(tmp_path / "quota_events", Txn("s", 0))))
    assert not is_store_fault(TableFault("schema mismatch in /lake/503/os error 281"))


def test_a_decision_that_lost_its_race_is_made_again_a_few_times() -> None:
    made: list[int] = []

    def decide(wins_at: int) -> int:
        made.append(len(made))
        if len(made) < wins_at:
            raise CommitConflict("somebody was first")
        return len(made)

    assert retried(lambda: decide(3)) == 3
    made.clear()
    with pytest.raises(CommitConflict):
        retried(lambda: decide(100))
    assert len(made) == COMMIT_ATTEMPTS
