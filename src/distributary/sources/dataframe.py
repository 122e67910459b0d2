"""Rows of a DataFrame, which a query of the user's own gives to Spark's sink: a source that nobody here can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from distributary.errors import BadInput
from distributary.sources.port import AnswerCache, Position, Sight, Source, SourceLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOBODY = 'its rows come from a query of your own, by format("distributary") (docs/sink.md)'


class DataFrameRows(Source):
    """A DataFrame (`sources.port`)."""

    @property
    def name(self) -> str:
        return "a DataFrame"

    def look(self) -> list[Sight]:
        return [Sight(NOBODY)]

    def stream(self, spark: SparkSession, *, all_shares: bool = False) -> DataFrame:
        refuse(self.config.pipeline)

    def lag(self, read: Position | None, answers: AnswerCache, last_file_batch: Callable[[], int]) -> SourceLag:
        return SourceLag(note=f"{NOBODY}: what waits for it, its own progress says")

    def newest(self, count: int) -> pa.Table:
        refuse(self.config.pipeline)


def refuse(pipeline: str) -> NoReturn:
    """Raises BadInput: there is nothing to read."""
    raise BadInput(detail=f"pipeline {pipeline} has no source that could be read: {NOBODY}")
