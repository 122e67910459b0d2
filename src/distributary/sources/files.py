"""A source's files as a stream of references: Spark's Delta source over the file ledger, a parcel a batch.

The rows are references (`file_ledger.FILES_SCHEMA`), never the files' content: tasks read that themselves. Spark's
checkpoint counts versions of the ledger, so a batch that is done again has the same files. Ledger and checkpoint belong
together: with the checkpoint lost, the stream would begin at the first parcel and take every file twice, and with the
ledger lost, the checkpoint points at versions that are not there. The first is refused before a run starts
(`state.checkpoint`), the second by Delta; either is repaired by restoring it, or by beginning anew without both.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from distributary.config import StateFolder
from distributary.sources.file_ledger import FILES_SCHEMA


def file_stream(spark: SparkSession, state_root: str) -> DataFrame:
    """The streaming DataFrame of file references. Build it anew for every start, as `delta_stream`.

    The ledger must be there (`FileLedger.create`).
    """
    # From the first commit on, not from a snapshot: there a batch would be any of its files.
    options = {"startingVersion": "0", "maxFilesPerTrigger": "1"}
    rows = spark.readStream.format("delta").options(**options).load(StateFolder(state_root).files)
    return rows.select(*FILES_SCHEMA.names)
