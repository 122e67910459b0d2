"""Which Spark is taken, and which jars go with it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, LongType, StructField, StructType, TimestampType

from distributary.cli.entry import _unexpected
from distributary.engine.messages.chunks import CHUNK_DDL, CHUNK_SCHEMA
from distributary.engine.messages.tasks import RESULT_DDL
from distributary.errors import EnvironmentFault, Exit
from distributary.spark.versions import KNOWN, check_since, check_spark, packages_of
from distributary.tables import spark_types


@pytest.mark.parametrize(
    ("spark", "delta", "artifact"),
    [
        ("4.0.1", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.0.5", "4.4.1", "io.delta:delta-spark_4.0_2.13:4.4.1"),
        ("4.1.4", "4.4.1", "io.delta:delta-spark_4.1_2.13:4.4.1"),
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_a_spark_starts_with_the_delta_that_is_built_for_it(spark: str, delta: str, artifact: str) -> None:
    assert packages_of(spark, delta) == (artifact, f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}")


def test_known_sparks_are_taken_with_any_patch() -> None:
    for spark in KNOWN:
        check_spark(f"{spark}.9")


@pytest.mark.parametrize(
    ("spark", "why"), [("3.5.9", "it lacks what the streams"), ("4.9.0", "there was no Delta Lake for it")]
)
def test_an_unknown_spark_is_refused_with_what_to_install(spark: str, why: str) -> None:
    with pytest.raises(EnvironmentFault, match=rf"pyspark {spark} is installed: {why}.*pip install 'pyspark~="):
        check_spark(spark)


def test_what_an_older_spark_lacks_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    check_since("4.0", "decode")
    with pytest.raises(EnvironmentFault, match=r"decode needs Spark 4\.1; pyspark 4\.0\.1 is installed: pip install"):
        check_since("4.1", "decode")


def test_a_module_that_this_spark_does_not_have_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModuleNotFoundError("No module named 'pyspark.pipelines'", name="pyspark.pipelines")
    assert _unexpected(error) == Exit.ENVIRONMENT
    assert "has not all that this needs (No module named 'pyspark.pipelines')" in capsys.readouterr().err


def test_the_columns_of_a_batchs_jobs_are_known_without_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DataType, "fromDDL")  # it asks the JVM, or fails where there is none
    assert spark_types.arrow_schema(spark_types.struct_of(CHUNK_DDL)) == CHUNK_SCHEMA
    assert spark_types.arrow_schema(spark_types.struct_of(RESULT_DDL)) == pa.schema({"body": pa.binary()})


def test_times_are_in_utc_also_by_a_spark_that_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = StructType([StructField("at", TimestampType()), StructField("n", LongType())])
    expected = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    assert spark_types.arrow_schema(columns) == expected

    def of_spark_4_1(schema: StructType) -> pa.Schema:
        return to_arrow_schema(schema, timezone="UTC")

    monkeypatch.setattr(spark_types, "to_arrow_schema", of_spark_4_1)
    assert spark_types.arrow_schema(columns) == expected
