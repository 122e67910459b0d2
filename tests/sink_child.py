"""A driver that streams into Spark's sink and may be ended inside a batch: `python -m tests.sink_child FOLDER`.

It says `ready` once Spark is up and waits for a mode: `before` and `between` end the JVM by SIGKILL, before the second
batch has committed anything or after its first table; `last` goes to the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from distributary.engine.appending import commit_files
from distributary.sink import committing
from distributary.sink.data_source import DistributarySource, StreamWriter
from tests.processes import SMALL_SPARK


def end_the_driver() -> None:
    """Of a Python process that a JVM has started, at whatever remove."""
    for parent in psutil.Process().parents():
        if parent.name() == "java":
            parent.kill()
            os.kill(os.getpid(), signal.SIGKILL)


class Deadly(StreamWriter):
    """`mode`: when it ends the driver."""

    mode = ""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if batchId == 1 and self.mode == "before":
            end_the_driver()
        if batchId == 1 and self.mode == "between":
            committing.AT_A_TIME = 1
            vars(committing)["commit_files"] = _commit_one_and_end
        super().commit(messages, batchId)


def _commit_one_and_end(*given: Any) -> None:
    commit_files(*given)
    end_the_driver()


def stream(folder: Path, mode: str, spark: Any) -> None:
    class Source(DistributarySource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
            plain = super().streamWriter(schema, overwrite)
            made = Deadly(plain.intake)  # type: ignore[attr-defined]
            made.mode = mode
            return made

    spark.dataSource.register(Source)
    rows = spark.readStream.schema("game string, n bigint").option("maxFilesPerTrigger", 1).parquet(f"{folder}/source")
    writer = rows.repartition("game").writeStream.format("distributary").option("route", "game")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start(f"{folder}/lake").awaitTermination()


def main(folder: str) -> None:
    from distributary.spark.session import build_session

    spark = build_session("sink", master="local[2]", conf=SMALL_SPARK["conf"])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    stream(Path(folder), sys.stdin.readline().strip(), spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
