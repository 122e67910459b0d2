"""Which dataset reads which as a stream."""

from __future__ import annotations

import pytest
from pyspark.sql.connect.proto import Relation

from distributary.declarative.edges import made_in_sql, streams_in, views_in_sql, with_readers


def read(name: str, *, stream: bool) -> Relation:
    relation = Relation()
    relation.read.named_table.unparsed_identifier = name
    relation.read.is_streaming = stream
    return relation


def test_streams_are_found_wherever_they_are_in_a_plan() -> None:
    plan = Relation()
    plan.project.input.join.left.CopyFrom(read("c.d.a", stream=True))
    plan.project.input.join.right.set_op.left_input.CopyFrom(read("`b`", stream=True))
    plan.project.input.join.right.set_op.right_input.CopyFrom(read("static", stream=False))
    assert streams_in(plan) == {"a", "b"}
    assert streams_in(read("a", stream=True)) == {"a"}


def test_a_stream_from_outside_has_no_name() -> None:
    plan = Relation()
    plan.read.data_source.format = "delta"
    plan.read.is_streaming = True
    assert streams_in(plan) == set()


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("CREATE STREAMING TABLE a AS SELECT * FROM STREAM b", {"a": {"b"}}),
        ("create or refresh streaming table if not exists `a` as select * from stream(c.d.`b`)", {"a": {"b"}}),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1;\nCREATE VIEW v AS SELECT 2;", {"m": set(), "v": set()}),
        ("CREATE STREAMING TABLE a;CREATE FLOW f AS INSERT INTO a BY NAME SELECT * FROM STREAM b", {"a": {"b"}}),
        ("-- CREATE STREAMING TABLE a AS SELECT * FROM STREAM b\nSELECT 1", {}),
    ],
)
def test_sql_says_what_it_makes_and_reads(sql: str, made: dict[str, set[str]]) -> None:
    assert made_in_sql(sql) == made


def test_views_in_sql_are_no_tables() -> None:
    sql = "CREATE VIEW a AS SELECT 1; CREATE TEMPORARY VIEW b AS SELECT 1; CREATE MATERIALIZED VIEW c AS SELECT 1;"
    assert views_in_sql(sql) == {"a", "b"}


def test_readers_of_readers_come_along_and_circles_end() -> None:
    reads = {"silver": {"bronze"}, "own": {"silver", "other"}, "far": {"own"}, "else": {"x"}, "bronze": {"far"}}
    assert with_readers(["bronze"], reads) == ["bronze", "silver", "own", "far"]
    assert with_readers(["own"], {"far": {"own"}}) == ["own", "far"]
    assert with_readers([], reads) == []
