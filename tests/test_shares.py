"""Shares: each route, and each record without one, belongs to exactly one share, in Python and in Spark alike."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from distributary.config import Pipeline
from distributary.engine.messages.demux import demux
from distributary.engine.messages.opening import EnvelopeReader
from distributary.errors import ShareInvalid
from distributary.shares import Cluster, Division, Share, parse_share, read_plan

ROUTES = st.one_of(st.none(), st.text(max_size=12))
NASTY = [
    None,
    "",
    "a",
    "Ann",
    "a'b",
    "a\\b",
    "a\\'b",
    "`x`",
    "é",
    "e\u0301",
    "\U0001f984",
    " ",
    "a\nb",
    "%",
    "0",
    "null",
]
PLANNED = Division((Cluster("c1", ("a'b", "a\\b")), Cluster("c2", ("é", "\U0001f984")), Cluster("c3")), ("c1", "c3"))


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    if draw(st.booleans()):
        return Division.even(draw(st.integers(1, 9)))
    names = [f"c{n}" for n in range(draw(st.integers(1, 5)))]
    routes = draw(st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=12))
    places = [draw(st.sampled_from(names)) for _ in routes]
    clusters = [Cluster(n, tuple(r for r, at in zip(routes, places, strict=True) if at == n)) for n in names]
    return Division(tuple(clusters), tuple(sorted(draw(st.sets(st.sampled_from(names), min_size=1)))))


@given(divisions(), st.lists(ROUTES, max_size=8))
def test_every_route_belongs_to_exactly_one_share(division: Division, more: list[str | None]) -> None:
    placed = {route: cluster.name for cluster in division.clusters for route in cluster.routes}
    for route in [*more, *placed]:
        owners = [share.name for share in division.shares() if share.owns(route)]
        assert len(owners) == 1
        assert owners[0] == placed.get(route or "", owners[0])


@given(divisions())
def test_a_division_comes_back_from_its_json(division: Division) -> None:
    again = Division.from_json(division.to_json())
    assert again == division and again.shares() == division.shares()


def test_routes_that_are_not_placed_go_only_to_the_open_clusters() -> None:
    owners = {PLANNED.shares()[0].owner(f"new game {n}") for n in range(200)}
    assert owners == {0, 2}


def test_a_hash_share_takes_about_its_part() -> None:
    counts = Counter(parse_share("1/4").owner(f"game_{n}") for n in range(4000))
    assert sorted(counts) == [0, 1, 2, 3] and min(counts.values()) > 850


def test_what_names_no_route_belongs_to_the_first_share() -> None:
    assert [s.owns(None) and s.owns("") for s in PLANNED.shares()] == [True, False, False]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3", "1/3/5", ""])
def test_a_share_that_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(ShareInvalid):
        parse_share(text)


@pytest.mark.parametrize(
    "plan",
    [
        "{",
        "[]",
        '{"clusters": [], "open": []}',
        '{"clusters": [{"name": "c1", "routes": "abc"}], "open": ["c1"]}',
        '{"clusters": [{"name": "c1", "routes": ["a"]}, {"name": "c2", "routes": ["a"]}], "open": ["c1"]}',
        '{"clusters": [{"name": "c1", "routes": []}, {"name": "c1", "routes": []}], "open": ["c1"]}',
        '{"clusters": [{"name": "../c1", "routes": []}], "open": ["../c1"]}',
        '{"clusters": [{"name": "c1", "routes": []}], "open": []}',
        '{"clusters": [{"name": "c1", "routes": []}], "open": ["c2"]}',
    ],
)
def test_a_plan_that_would_lose_or_double_a_route_is_refused(plan: str) -> None:
    with pytest.raises(ShareInvalid):
        read_plan(plan, origin="plan.json")


def test_a_share_has_a_state_and_a_checkpoint_of_its_own() -> None:
    keys: dict[str, Any] = {
        "source": {"type": "delta", "path": "/s"},
        "registry": {"path": "/r"},
        "tables": {"root": "/t"},
    }
    for checkpoint in (None, "/elsewhere/"):
        whole = Pipeline.model_validate({"pipeline": "games", "checkpoint": checkpoint, **keys})
        parts = [whole.for_share(share) for share in [*Division.even(3).shares(), *PLANNED.shares(2)]]
        places = [(p.state_root, p.checkpoint_path) for p in [whole, *parts]]
        assert len({s for s, _ in places}) == len({c for _, c in places}) == 7
        assert {p.whole_state for p in parts} == {whole.state_root}, "one schema cache"
        assert whole.share is None and parts[0].share == parse_share("1/3")
        assert all(p.state_root.startswith("/t/_distributary/games/shares/") for p in parts)


# -- the demultiplexer ---------------------------------------------------------------------------------------

COLUMNS = EnvelopeReader(format="columns", framed=False, route="r", schema_id="i", payload="p")


def cut(share: Share | None) -> Counter[tuple[str, str | None]]:
    """Records by (kind, route) of a source that has one good, one bad and one empty payload per route."""
    rows = [(r, p) for r in NASTY for p in (b"\x00\x00\x00\x00\x05\x00x", b"\x07", None)]
    batch = pa.record_batch(
        [[r for r, _ in rows], pa.array([5] * len(rows), pa.int32()), pa.array([p for _, p in rows], pa.binary())],
        names=["r", "i", "p"],
    )
    found: Counter[tuple[str, str | None]] = Counter()
    for chunk in demux([batch], replace(COLUMNS, share=pickle.loads(pickle.dumps(share))), task=0):
        for row in chunk.to_pylist():
            found[row["kind"], row["route"]] += row["rows"]
    return found


@pytest.mark.parametrize("division", [Division.even(1), Division.even(3), PLANNED], ids=["one", "even", "planned"])
def test_the_shares_of_a_batch_add_up_to_the_batch(division: Division) -> None:
    parts = [cut(share) for share in division.shares()]
    assert sum(parts, Counter()) == cut(None)
    for share, part in zip(division.shares(), parts, strict=True):
        assert all(share.owns(route) for _, route in part)


@pytest.mark.spark
def test_spark_divides_routes_as_python_does(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(r,) for r in NASTY], "r string")
    for share in [*Division.even(3).shares(), *PLANNED.shares()]:
        found = [row.r for row in frame.where(share.condition("`r`")).collect()]
        assert found == [r for r in NASTY if share.owns(r)], share


@pytest.mark.spark
def test_delta_reads_only_the_partitions_of_the_share(spark: SparkSession, lake: Any) -> None:
    from deltalake import write_deltalake

    from distributary.config import DeltaSource, Envelope
    from distributary.sources.delta import delta_stream

    names = [f"game_{n}" for n in range(12)]
    table = pa.table({"r": names, "i": pa.array([1] * 12, pa.int32()), "p": [b"x"] * 12})
    write_deltalake(str(lake / "bronze"), table, partition_by=["r"])
    share = parse_share("2/3")
    envelope = Envelope.model_validate({"format": "columns", "route": "r", "schema_id": "i", "payload": "p"})
    rows = delta_stream(spark, DeltaSource(type="delta", path=str(lake / "bronze")), envelope, share)
    query = rows.writeStream.format("memory").queryName("mine").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(r.r for r in spark.table("mine").collect()) == sorted(r for r in names if share.owns(r))
    # All tests of a process share the session, and another looks at all of its views.
    assert spark.catalog.dropTempView("mine")
    plan = spark.read.format("delta").load(str(lake / "bronze")).where(share.condition("try_cast(`r` AS string)"))
    assert sorted(f.rsplit("=", 1)[1].split("/")[0] for f in plan.inputFiles()) == sorted(
        r for r in names if share.owns(r)
    )
