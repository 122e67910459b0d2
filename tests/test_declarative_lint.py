"""The lint of a user's definitions: what it refuses, at which line, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.declarative.libraries import Library
from distributary.declarative.lint import EAGER, check_libraries, lint
from distributary.errors import LintFailed

HEAD = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


"""


def rules(folder: Path, body: str, suffix: str = ".py") -> list[tuple[int, str]]:
    """(line of the body, rule)."""
    file = folder / f"own{suffix}"
    head = HEAD if suffix == ".py" else ""
    file.write_text(head + body)
    return [(f.line - head.count("\n"), f.rule) for f in lint(file)]


@pytest.mark.parametrize("method", sorted(EAGER))
def test_each_operation_that_loses_the_order_of_datasets_is_refused_on_a_table_of_the_pipeline(
    tmp_path: Path, method: str
) -> None:
    body = f"""\
@dp.materialized_view
def totals():
    return (
        spark.read.table("silver_a_events")
        .where("x > 1")
        .{method}("x")
    )
"""
    assert rules(tmp_path, body) == [(6, "EAGER_OPERATION")]


def test_an_operation_on_a_name_that_holds_a_table_is_found(tmp_path: Path) -> None:
    body = 'def f():\n    rows = spark.read.table("a")\n    more = rows.select("x")\n    return more.drop("x")\n'
    assert rules(tmp_path, body) == [(4, "EAGER_OPERATION")]


def test_a_hook_whose_parameter_is_a_dataframe_is_read_too(tmp_path: Path) -> None:
    assert rules(tmp_path, "def f(rows: DataFrame):\n    return rows.drop('x')\n") == [(2, "EAGER_OPERATION")]


def test_a_function_of_the_pipeline_file_is_given_a_dataframe_whatever_it_says(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def loud(rows):\n    return rows.drop('x')\n\ndef other(names):\n    return names.drop('x')\n")
    assert [f.line for f in lint(file, ("loud",))] == [2]
    file.write_text("def loud(rows):\n    return rows.select(*rows.columns)\n")
    assert [(f.line, f.rule) for f in lint(file, ("loud",))] == [(2, "RUNS_A_QUERY")]


def test_na_is_found_under_every_name(tmp_path: Path) -> None:
    body = "def f(rows: DataFrame):\n    a = rows.na.fill(0)\n    b = rows.na.drop()\n    return rows.fillna(0)\n"
    assert rules(tmp_path, body) == [(n, "EAGER_OPERATION") for n in (2, 3, 4)]


@pytest.mark.parametrize(
    ("kind", "read", "found"),
    [
        ("table", "read", [(3, "QUERY_TYPE")]),
        ("table", "readStream", []),
        ("materialized_view", "readStream", [(3, "QUERY_TYPE")]),
        ("materialized_view", "read", []),
        ("temporary_view", "readStream", []),
    ],
)
def test_a_batch_in_a_table_and_a_stream_in_a_view_are_refused(
    tmp_path: Path, kind: str, read: str, found: list[tuple[int, str]]
) -> None:
    body = f'@dp.{kind}(name="a")\ndef a():\n    return spark.{read}.table("b").select("x")\n'
    assert rules(tmp_path, body) == found


def test_a_stream_that_is_joined_with_a_table_is_a_stream(tmp_path: Path) -> None:
    body = '@dp.table\ndef a():\n    return spark.readStream.table("b").join(spark.read.table("c"), "x")\n'
    assert rules(tmp_path, body) == []


def test_counting_rows_is_a_query_and_counting_a_group_is_not(tmp_path: Path) -> None:
    body = """\
@dp.materialized_view
def a():
    rows = spark.read.table("b")
    return rows.groupBy("x").count().limit(rows.count())
"""
    assert rules(tmp_path, body) == [(4, "RUNS_A_QUERY")]


def test_methods_of_other_objects_with_the_same_names_pass(tmp_path: Path) -> None:
    body = 'name = "a-b".replace("-", "_")\npath = settings.to("x")\nnames.drop(1)\nfirst = items.first()\n'
    assert rules(tmp_path, body) == []


def test_operations_that_keep_the_order_pass(tmp_path: Path) -> None:
    body = """\
@dp.table
def mine():
    rows = spark.readStream.table("bronze").where("route = 'a'").select("*", F.lit(1).alias("one"))
    return rows.selectExpr("one").toDF("two").unionByName(spark.readStream.table("b")).limit(3)

@dp.materialized_view
def counts():
    return spark.read.table("silver_a_events").groupBy("user_name").count().sort("user_name")
"""
    assert rules(tmp_path, body) == []


def test_a_line_whose_author_knows_better_passes(tmp_path: Path) -> None:
    body = 'rows = spark.read.load("/outside").withColumn("x", F.lit(1))  # distributary: allow\n'
    assert rules(tmp_path, body) == []


def test_asking_the_server_inside_a_query_function_is_refused_and_outside_it_is_not(tmp_path: Path) -> None:
    body = """\
names = spark.read.load("/outside").select("x").collect()

@dp.table()
def mine():
    return spark.readStream.table("bronze").select(spark.read.table("b").columns)
"""
    assert rules(tmp_path, body) == [(5, "RUNS_A_QUERY")]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('@dp.table(format="delta")\ndef f(): ...\n', [(1, "FORMAT_DELTA")]),
        ('@dp.table(format="parquet")\ndef f(): ...\n', []),
        ('dp.create_streaming_table("a", cluster_by=["x"])\n', [(1, "CLUSTER_BY")]),
        ('dp.create_auto_cdc_flow(target="a")\n', [(1, "AUTO_CDC")]),
        ('@dp.expect_or_drop("a", "b")\ndef f(): ...\n', [(1, "EXPECT")]),
        ('spark.conf.set("a", "b")\n', [(1, "SESSION_MUTATION")]),
        ('spark.udf.register("a", f)\n', [(1, "SESSION_MUTATION")]),
        ('spark.read.table("a").createOrReplaceTempView("b")\n', [(1, "SESSION_MUTATION")]),
        ("def f(:\n", [(1, "SYNTAX")]),
    ],
)
def test_other_traps_are_refused(tmp_path: Path, body: str, found: list[tuple[int, str]]) -> None:
    assert rules(tmp_path, body) == found


def test_sql_files_are_read_too(tmp_path: Path) -> None:
    body = """\
-- USING DELTA in a comment, and 'CLUSTER BY (' in a text, are nothing
CREATE MATERIALIZED VIEW a AS SELECT 'CLUSTER BY (x)' AS y;
CREATE STREAMING TABLE b
USING delta AS SELECT * FROM STREAM bronze;
SET spark.x = 1;
CREATE STREAMING TABLE c (CONSTRAINT ok EXPECT (x > 1)) AS SELECT 1;
"""
    assert rules(tmp_path, body, ".sql") == [(4, "FORMAT_DELTA"), (5, "SESSION_MUTATION"), (6, "EXPECT")]


def test_a_finding_names_file_line_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text('rows = spark.read.table("a").withColumn("x", 1)\n')
    with pytest.raises(LintFailed) as caught:
        check_libraries([Library(file, tmp_path)])
    (finding,) = caught.value.parameters["findings"]
    assert (finding["file"], finding["line"], finding["rule"]) == (str(file), 1, "EAGER_OPERATION")
    assert ".select('*'," in str(caught.value)
