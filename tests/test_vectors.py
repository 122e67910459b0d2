"""Deletion vectors as the protocol has them: read by the libraries of others, and theirs read by us."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from distributary.tables.log_adds import logged_adds
from distributary.tables.roaring import decoded, encoded
from distributary.tables.store import Store
from distributary.tables.vectors import Vector, read_vector, write_vectors

numbers = st.sets(st.one_of(st.integers(0, 300), st.integers(0, 2**20), st.integers(0, 2**40)), max_size=300)


def rows(*numbers: int) -> np.ndarray:
    return np.array(sorted(numbers), np.uint64)


@given(numbers)
def test_what_is_encoded_is_decoded(found: set[int]) -> None:
    assert decoded(encoded(rows(*found))).tolist() == sorted(found)


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 65536, 200_000])
def test_containers_of_all_sizes_are_decoded(count: int) -> None:
    found = np.arange(count, dtype=np.uint64) * 3
    assert decoded(encoded(found)).tolist() == found.tolist()


def z85(body: bytes) -> str:
    """ZeroMQ's base 85 (rfc.zeromq.org/spec/32), written out."""
    signs = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = [int.from_bytes(body[n : n + 4], "big") for n in range(0, len(body), 4)]
    return "".join(signs[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def test_a_vector_in_the_log_itself_is_read() -> None:
    array = encoded(rows(3, 4, 7, 11, 18, 29))
    vector = Vector("i", z85(array + bytes(-len(array) % 4)), None, len(array), 6)
    assert read_vector("nowhere", Store(), vector).tolist() == [3, 4, 7, 11, 18, 29]


def test_a_file_is_named_as_in_the_protocols_own_example() -> None:
    """Delta protocol, "Deletion Vector Descriptor Schema": a folder `ab`, and a uuid in Z85."""
    vector = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    assert vector.path() == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_vectors_of_one_file_are_read_each_by_its_place(tmp_path: Path) -> None:
    wanted = [rows(1), rows(*range(0, 100_000, 2)), rows(0, 2**33)]
    vectors = write_vectors(str(tmp_path), Store(), wanted)
    assert len(list(tmp_path.iterdir())) == 1
    assert [read_vector(str(tmp_path), Store(), vector).tolist() for vector in vectors] == [w.tolist() for w in wanted]
    assert [vector.rows for vector in vectors] == [1, 50_000, 2]


@pytest.mark.parametrize("at", [1, 8, 30, -1])
def test_a_damaged_vector_is_refused(tmp_path: Path, at: int) -> None:
    (vector,) = write_vectors(str(tmp_path), Store(), [rows(5, 6, 2000)])
    (file,) = tmp_path.iterdir()
    body = bytearray(file.read_bytes())
    body[at] ^= 1
    file.write_bytes(body)
    with pytest.raises(OSError, match="cannot be read"):
        read_vector(str(tmp_path), Store(), vector)


def test_a_vector_whose_file_ends_early_is_refused(tmp_path: Path) -> None:
    (vector,) = write_vectors(str(tmp_path), Store(), [rows(5, 6, 2000)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(OSError, match="cannot be read"):
        read_vector(str(tmp_path), Store(), vector)


@pytest.mark.parametrize("body", [b"", b"\0" * 12, encoded(rows(1, 2))[:-1], encoded(rows(1, 2))[:20]])
def test_what_is_no_array_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(body)


# -- by others ---------------------------------------------------------------------------------------------

GONE = [0, 1, 2, 3, 700, 70_000, *range(100_000, 150_000), 199_999]


def with_vector(folder: Path, gone: list[int]) -> str:
    """A table of the rows 0 to 199,999, of which `gone` are deleted by a vector of ours."""
    uri = str(folder / "ours")
    write_deltalake(uri, pa.table({"id": pa.array(range(200_000), pa.int64())}))
    adds = logged_adds(uri, Store(), 0)
    assert adds is not None
    (add,) = adds.values()
    (vector,) = write_vectors(uri, Store(), [rows(*gone)])
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    actions = [
        {"commitInfo": {"operation": "DELETE", "operationParameters": {}}},
        {"protocol": {**protocol, "writerFeatures": ["deletionVectors"]}},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "dataChange": True, "deletionVector": vector.as_log()}},
    ]
    log = Path(uri) / "_delta_log" / f"{1:020d}.json"
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return uri


def test_delta_rs_reads_vectors_of_ours(tmp_path: Path) -> None:
    table = DeltaTable(with_vector(tmp_path, GONE))
    found = pa.table(QueryBuilder().register("t", table).execute("select id from t").read_all())
    assert sorted(found["id"].to_pylist()) == sorted(set(range(200_000)) - set(GONE))


@pytest.mark.spark
def test_spark_reads_vectors_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    uri = with_vector(tmp_path, GONE)
    left = spark.read.format("delta").load(uri).toArrow()
    assert sorted(left["id"].to_pylist()) == sorted(set(range(200_000)) - set(GONE))


@pytest.mark.spark
def test_vectors_of_spark_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """Runs, arrays and bitsets: Spark writes what is smallest."""
    uri = str(tmp_path / "theirs")
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    spark.sql(f"CREATE TABLE delta.`{uri}` (id BIGINT) USING delta {properties}")
    spark.range(0, 200_000, 1, 1).write.format("delta").mode("append").save(uri)
    where = "id BETWEEN 100000 AND 149999 OR id IN (0, 700) OR (id < 66000 AND id % 3 = 1)"
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE {where}")
    adds = logged_adds(uri, Store(), DeltaTable(uri).version())
    assert adds is not None
    (add,) = adds.values()
    found = read_vector(uri, Store(), Vector.of(add["deletionVector"])).tolist()
    gone = {0, 700, *range(100_000, 150_000), *range(1, 66_000, 3)}
    assert found == sorted(gone)
