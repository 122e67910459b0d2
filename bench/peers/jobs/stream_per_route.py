"""A streaming query for each kind, all in one driver; each reads the topic and keeps the records of its kind."""

from __future__ import annotations

from pyspark.sql import functions as F

from bench.peers.jobs.spark_job import options, records, row, session


def main() -> None:
    given, spark = options(), session()
    for kind in given.kinds:
        own = records(spark, given).where(F.get_json_object("value", "$.kind") == kind)
        stream = own.select(row()).select("row.*").writeStream.format("delta").option("mergeSchema", "true")
        stream.option("checkpointLocation", f"{given.checkpoints}/{kind}").start(f"{given.lake}/{kind}")
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
