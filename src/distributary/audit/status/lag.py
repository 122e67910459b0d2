"""How many rows of a pipeline wait, whatever number of streams it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from distributary.config import Pipeline
from distributary.running.bronze.bronze_table import first_hop
from distributary.running.source_lag import source_lag
from distributary.sources.port import AnswerCache, SourceLag
from distributary.state.divisions import current_parts
from distributary.tables.store import Store
from distributary.tables.table import Table


def pipeline_lag(config: Pipeline, store: Store) -> SourceLag:
    """Rows that are in no table yet: of two hops, those that wait for either. Raises OSError."""
    streams, answers = current_parts(config, store), AnswerCache()
    if config.bronze_table is None:
        return slowest(source_lag(stream, store, answers) for stream in streams)
    first = source_lag(first_hop(config), store, answers)
    if Table(config.bronze_table, store).open() is None:
        return first
    second = slowest(source_lag(stream, store, answers) for stream in streams)
    return _together([first, second], sum)


def slowest(lags: Iterable[SourceLag]) -> SourceLag:
    """The lag of several streams over one source: that of the one which is farthest behind."""
    return _together(list(lags), max)


def _together(lags: Sequence[SourceLag], of: Callable[[list[int]], int]) -> SourceLag:
    """The lag of several streams: the `sum`, where each reads rows of its own. Rows are known where each knows its."""
    rows = [lag.rows for lag in lags if lag.rows is not None]
    files = [lag.files for lag in lags if lag.files is not None]
    sizes = [lag.bytes for lag in lags if lag.bytes is not None]
    notes = list(dict.fromkeys(lag.note for lag in lags if lag.note))
    return SourceLag(
        of(rows) if rows and len(rows) == len(lags) else None,
        "; ".join(notes) or None,
        of(files) if files else None,
        of(sizes) if sizes else None,
    )
