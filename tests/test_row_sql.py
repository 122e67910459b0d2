"""Expectations and select lists over decoded rows."""

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from distributary.config import Tables
from distributary.errors import SqlInvalid
from distributary.schemas.row_sql import RowSql, Rule, check_sql

ROWS = pa.RecordBatch.from_pydict(
    {
        "name": ["a", "", None],
        "score": pa.array([1, -2, None], pa.int32()),
        "place": [{"zone": "x"}, {"zone": "y"}, None],
    }
)


def tables(**keys: Any) -> Tables:
    return Tables.model_validate({"root": "/t", **keys})


def test_a_row_breaks_an_expectation_only_where_it_is_false() -> None:
    sql = RowSql(
        (
            Rule("named", "name <> ''", "drop"),
            Rule("positive", "score >= 0"),
            Rule("zoned", "place['zone'] = 'x'", "fail"),
        )
    )
    found = sql.apply(ROWS)
    assert dict(found.dropped) == {1: "named"}
    assert dict(found.warned) == {1: ("positive",)}
    assert dict(found.failures) == {"zoned": 1}
    assert found.warnings == Counter(), "a row that is dropped is not written, so it is no warning"
    assert found.rows.equals(ROWS)


def test_a_field_that_a_schema_version_lacks_is_null() -> None:
    sql = RowSql((Rule("new", "later > 5", "drop"),), ("*", "later * 2 AS twice"))
    found = sql.apply(ROWS)
    assert not found.dropped
    assert found.rows.schema.names == ROWS.schema.names
    more = ROWS.append_column("later", pa.array([4, 6, None], pa.int64()))
    found = sql.apply(more)
    assert dict(found.dropped) == {0: "new"}
    assert found.rows.column("twice").to_pylist() == [8, 12, None]


def test_selected_columns_have_the_types_that_tables_have() -> None:
    sql = RowSql(select=("* EXCEPT (place)", "upper(name) AS loud", "place['zone'] AS zone", "length(name) AS size"))
    found = sql.apply(ROWS).rows
    assert found.schema == sql.columns(ROWS.schema)
    assert found.to_pylist()[0] == {"name": "a", "score": 1, "loud": "A", "zone": "x", "size": 1}
    assert [f.type for f in found.schema] == [pa.string(), pa.int32(), pa.string(), pa.string(), pa.int32()]


def test_rows_stay_in_order_however_many_there_are() -> None:
    many = pa.RecordBatch.from_pydict({"n": pa.array(range(100_000), pa.int64())})
    found = RowSql((Rule("even", "n % 2 = 0", "drop"),), ("n + 1 AS m",)).apply(many)
    assert found.rows.column("m").to_pylist() == list(range(1, 100_001))
    assert list(found.dropped) == list(range(1, 100_000, 2))


def test_no_rows_are_no_trouble() -> None:
    sql = RowSql((Rule("a", "score > 0", "drop"),), ("score + 1 AS more",))
    found = sql.apply(ROWS.slice(0, 0))
    assert found.rows.num_rows == 0
    assert found.rows.schema == sql.columns(ROWS.schema)


@pytest.mark.parametrize("that", ["score >>", "nosuchfunction(score) > 1", "score > 1; DROP TABLE rows", ""])
def test_sql_that_no_schema_makes_right_is_refused_before_a_run(that: str) -> None:
    if not that:
        return
    given = tables(expectations=[{"name": "a", "that": that}])
    with pytest.raises(SqlInvalid) as caught:
        check_sql(given)
    assert caught.value.parameters["key"] == "tables.expectations[0].that"


def test_a_column_that_comes_twice_is_refused() -> None:
    with pytest.raises(SqlInvalid):
        RowSql(select=("*", "upper(name) AS NAME")).columns(ROWS.schema)


def test_a_select_item_may_not_write_or_read_anything_else() -> None:
    with pytest.raises(SqlInvalid):
        check_sql(tables(select=["1; COPY (SELECT 1) TO '/tmp/x'"]))


def test_a_routes_own_expectations_take_the_place_of_the_common_ones() -> None:
    given = tables(
        expectations=[{"name": "a", "that": "x > 1"}], select=["*"],
        routes={"mine": {"expectations": []}, "other": {"select": ["x"]}},
    )  # fmt: skip
    assert RowSql.of(given, "any") == RowSql((Rule("a", "x > 1"),), ("*",))
    assert RowSql.of(given, "mine") == RowSql((), ("*",))
    assert RowSql.of(given, "other") == RowSql((Rule("a", "x > 1"),), ("x",))
    assert pickle.loads(pickle.dumps(RowSql.of(given, "any"))) == RowSql.of(given, "any")


def test_good_sql_passes_the_check() -> None:
    check_sql(tables(expectations=[{"name": "a", "that": "a IN ('x') AND b IS NOT NULL"}], select=["*", "c + 1 AS d"]))


def test_tables_prepared_side_by_side_read_their_own_rows_and_fields() -> None:
    """Engine `spark` prepares several tables in one process. CI saw a table parked with "table rows already exists"."""

    def of_one_table(number: int) -> None:
        for n in range(20):
            column = f"score{number}_{n}"
            rows = pa.RecordBatch.from_pydict({column: pa.array([number, -1], pa.int32())})
            sql = RowSql((Rule("positive", f"{column} >= 0", "drop"),), (f"{column} * 2 AS twice",))
            found = sql.apply(rows)
            assert dict(found.dropped) == {1: "positive"}
            assert found.rows.column("twice").to_pylist() == [number * 2, -2]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(of_one_table, range(8)))
