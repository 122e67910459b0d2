"""One query; its foreachBatch finds the kinds in the batch and appends to a table of each, in a pool of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.peers.jobs.spark_job import options, records, row, session
from bench.spark_jobs import THREADS, append


def main() -> None:
    given = options()

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.select(row()).select("row.*").persist()
        kinds = [found[0] for found in rows.select("kind").distinct().collect() if found[0] is not None]

        def one(kind: str) -> None:
            append(rows.where(F.col("kind") == kind), f"{given.lake}/{kind}", number)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, kinds))
        rows.unpersist()

    stream = records(session(), given).writeStream.foreachBatch(write)
    stream.option("checkpointLocation", f"{given.checkpoints}/all").start().awaitTermination()


if __name__ == "__main__":
    main()
