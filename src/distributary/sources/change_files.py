"""A source's files as a stream of references: Spark's Delta source over the file ledger, a file batch a batch.

The rows are references (`file_ledger.FILES_SCHEMA`), never the files' content: tasks read that themselves. Spark's
checkpoint counts versions of the ledger, so a batch that is done again has the same files. Ledger and checkpoint belong
together: with the checkpoint lost, the stream would begin at the first file batch and take every file twice, and with
the ledger lost, the checkpoint points at versions that are not there. The first is refused before a run starts
(`state.checkpoint`), the second by Delta; either is repaired by restoring it, or by beginning anew without both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from distributary.config import StateFolder
from distributary.errors import BadInput, SourceDown, SourceMissing
from distributary.sources.discovery import look, strays_left
from distributary.sources.file_ledger import FILES_SCHEMA, FileLedger, read_version, waiting
from distributary.sources.port import AnswerCache, Position, Sight, Source, SourceLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ChangeFiles(Source):
    """Files of change events below a path (`sources.port`)."""

    @property
    def name(self) -> str:
        return f"change files below {self.config.change_files.path}"

    def look(self) -> list[Sight]:
        waiting = len(look(self.config, self._ledger(), full=False).files)
        path = self.config.change_files.path
        return [Sight(f"{path} can be listed; {waiting:,} new files where a run looks first")]

    def stream(self, spark: SparkSession, *, all_shares: bool = False) -> DataFrame:
        return file_stream(spark, self.config.state_root)

    def lag(self, read: Position | None, answers: AnswerCache, last_file_batch: Callable[[], int]) -> SourceLag:
        """Files that were found and wait, and those that lie where a run would look first."""
        # A batch is finished by the ledger's word, which comes before Spark's.
        taken_files = waiting(self.config.state_root, self.store, read_version(read), last_file_batch())
        try:
            listed = look(self.config, self._ledger(), full=False)
        except (SourceDown, SourceMissing) as e:
            return SourceLag(note=f"the source cannot be asked: {e}", files=taken_files.files, bytes=taken_files.bytes)
        return SourceLag(
            note=strays_left(listed.strays, self.config.change_files.path) if listed.strays else None,
            files=taken_files.files + len(listed.files),
            bytes=taken_files.bytes + sum(ref.size for ref in listed.files),
        )

    def newest(self, count: int) -> NoReturn:
        raise BadInput(detail="inspect shows messages; what change files hold, `distributary plan FILE` says")

    def _ledger(self) -> FileLedger:
        return FileLedger(self.config.state_root, self.config.pipeline, self.store)


def file_stream(spark: SparkSession, state_root: str) -> DataFrame:
    """The streaming DataFrame of file references. Build it anew for every start, as `delta_stream`.

    The ledger must be there (`FileLedger.create`).
    """
    # From the first commit on, not from a snapshot: there a batch would be any of its files.
    options = {"startingVersion": "0", "maxFilesPerTrigger": "1"}
    rows = spark.readStream.format("delta").options(**options).load(StateFolder(state_root).files)
    return rows.select(*FILES_SCHEMA.names)
