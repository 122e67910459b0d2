"""Values that Spark hands to its sink and Python or Delta have no word for: set aside, and the others enter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from distributary.config import Envelope
from distributary.errors import BadInput
from distributary.sink.committing import BatchEnding
from distributary.sink.data_source import DistributarySource
from distributary.sink.frame_writer import origin_columns
from distributary.sink.message_rows import MessageRows
from distributary.tables.snapshot import Txn
from tests.sparkless_messages import Players
from tests.test_sink import aside, batch, held

FAR = 10**18
"""Microseconds: a time beyond the year 9999."""


def text(*values: bytes) -> pa.StringArray:
    """As Spark's CAST(bytes AS STRING) hands it over: nothing asks whether it is UTF-8."""
    data = pa.array(list(values), pa.binary())
    return pa.StringArray.from_buffers(len(data), data.buffers()[1], data.buffers()[2], data.buffers()[0])


@pytest.mark.parametrize("where", ["value", "struct", "list", "map"])
def test_a_row_with_text_that_is_no_utf8_is_set_aside_alone(lake: Path, where: str) -> None:
    texts = text(b"ok", b"\xff\xfe", b"fine")
    column = {
        "value": texts,
        "struct": pa.StructArray.from_arrays([texts], ["v"]),
        "list": pa.ListArray.from_arrays([0, 1, 2, 3], texts),
        "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k", "k", "k"]), texts),
    }[where]
    batch(lake, pa.table({"game": ["go", "go", "go"], "n": [1, 2, 3], "v": column}))
    assert held(lake, "go", "n") == [1, 3]
    ((route, reason, row),) = aside(lake)
    assert (route, reason, row["n"], row["game"]) == (None, "VALUE_OUT_OF_RANGE", 2, "go")
    assert "fffe" in json.dumps(row)


def test_a_row_whose_route_is_no_utf8_is_set_aside_alone(lake: Path) -> None:
    batch(lake, pa.table({"game": text(b"go", b"\xff\xfe"), "n": [1, 2]}))
    assert held(lake, "go", "n") == [1]
    assert aside(lake) == [(None, "VALUE_OUT_OF_RANGE", {"game": "fffe", "n": 2})]


def test_rows_set_aside_may_have_times_beyond_the_year_9999(lake: Path) -> None:
    at = pa.array([FAR, 1, 5], pa.timestamp("us", "UTC"))
    day = pa.array([10**8, 1, 5], pa.date32())
    maps = pa.array([[("k", FAR)], [], []], pa.map_(pa.string(), pa.timestamp("us", "UTC")))
    lists = pa.array([[{"at": FAR}], [], []], pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])))
    route = pa.array([None, None, "go"], pa.string())
    names = ["äh", "b", "c"]
    batch(lake, pa.table({"game": route, "name": names, "at": at, "day": day, "maps": maps, "lists": lists}))
    assert held(lake, "go", "name") == ["c"]
    rows = {row["name"]: row for _, _, row in aside(lake)}
    assert (rows["äh"]["at"], rows["äh"]["day"], rows["äh"]["lists"]) == (FAR, 10**8, [{"at": FAR}])
    assert rows["b"]["at"].startswith("1970-01-01")


def test_the_route_is_no_column_of_bytes() -> None:
    schema = StructType([StructField("game", BinaryType()), StructField("n", LongType())])
    source = DistributarySource({"path": "/lake", "route": "game"})
    with pytest.raises(BadInput, match="the route 'game' is binary"):
        source.writer(schema, overwrite=False)
    as_text = StructType([StructField("game", StringType()), StructField("n", LongType())])
    source.writer(as_text, overwrite=False)


def test_a_message_whose_route_or_topic_is_no_utf8_stops_no_batch(tmp_path: Path) -> None:
    players = Players(tmp_path, {1: 'syntax = "proto3"; message player { int64 id = 1; }'}, tables={"keys": []})
    values = [players.record(n)["value"] for n in range(3)]
    config = players.config.model_copy(update={"envelope": Envelope(format="columns")})
    route, schema_id, payload = config.envelope.columns
    columns = {route: text(b"go", b"\xff\xfe", b"chess"), schema_id: pa.nulls(3, pa.int32()), payload: values}
    rows = MessageRows(config)
    taken = rows.take(pa.table({**columns, "topic": text(b"t", b"t", b"\xff")}).to_batches(), "query", 0, "0")
    BatchEnding(rows.options, Txn("query", 0)).commit([taken])
    lake = Path(config.tables.root)
    assert (held(lake, "go", "id"), held(lake, "chess", "id")) == ([0], [2])
    (bad,) = DeltaTable(f"{config.state_root}/quarantine").to_pyarrow_table().to_pylist()
    assert (bad["reason"], bad["value"]) == ("NO_ROUTE", values[1])


def test_no_file_of_a_table_has_text_that_others_cannot_read(lake: Path) -> None:
    batch(lake, pa.table({"game": ["go"] * 4, "v": text(b"\xff", b"a", b"\xc3\xa9", b"\xc3")}))
    assert sorted(DeltaTable(lake / "go").to_pyarrow_table().column("v").to_pylist()) == ["a", "é"]


def test_a_column_goes_along_as_a_records_only_where_it_has_the_type_of_a_record() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType(), False)])
    of_kafka = {
        "topic": StringType(), "partition": IntegerType(), "offset": LongType(), "timestamp": TimestampType(),
        "key": BinaryType(), "headers": ArrayType(header),
    }  # fmt: skip
    assert set(origin_columns(_frame(of_kafka))) == set(of_kafka)
    mine = {
        "topic": IntegerType(), "partition": StringType(), "offset": DoubleType(), "timestamp": StringType(),
        "key": StringType(), "headers": StringType(), "score": LongType(),
    }  # fmt: skip
    assert origin_columns(_frame(mine)) == []
    nearly = {"timestamp": TimestampNTZType(), "offset": IntegerType(), "topic": StringType()}
    assert origin_columns(_frame(nearly)) == ["topic"]


def _frame(types: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])
