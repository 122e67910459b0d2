"""A Delta table as a source (`sources.port`): envelopes as one binary `value`, or as columns of their own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from distributary.config import DeltaSource, Envelope, Pipeline, StateFolder
from distributary.errors import BadInput, SourceDown, SourceMissing, SourceReplaced
from distributary.names import quoted_parts
from distributary.sources.data_files import BatchFiles
from distributary.sources.delta import (
    FIRST_MS,
    LAST_MS,
    NO_NAME,
    NO_TABLE_THERE,
    ORIGIN_COLUMNS,
    delta_stream,
    lacks,
    needed_columns,
)
from distributary.sources.delta_batch import batch_files, store_of_source
from distributary.sources.port import ORIGIN, AnswerCache, Position, Sight, Source, SourceLag
from distributary.sources.unread import Unknown, unread
from distributary.tables.faults import reading
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, catalog_of
from distributary.tables.table import Table
from distributary.tables.unity import CatalogDown, UnityCatalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("distributary")
Needed = Mapping[str, tuple[str, str]]


class DeltaRows(Source):
    def __init__(self, config: Pipeline) -> None:
        super().__init__(config)
        assert isinstance(config.source, DeltaSource)
        self.given = config.source
        self._path = ""
        self._written: str | None = None
        unity = config.tables.unity
        three_parts = self.given.table is not None and self.given.table.count(".") == 2
        self._catalog = catalog_of(unity) if unity is not None and unity.names and three_parts else None
        """What says where the table is, in place of a Spark that does not know the catalog."""

    @property
    def keys(self) -> DeltaSource:
        """The source with the table's path; without one where only the catalog knows it, and no run has asked it.

        Raises SourceDown, SourceMissing where the catalog is asked by its REST API.
        """
        if self.given.table is None:
            return self.given
        if self._catalog is not None:
            self._path = self._path or registered_at(self._catalog, self.given.table)
            return self.given.model_copy(update={"path": self._path, "table": None})
        if not self._path:
            body = self.store.get(self.config.state_root, StateFolder.source.name)
            kept_place = {} if body is None else json.loads(body)
            self._path = kept_place.get("path", "") if kept_place.get("table") == self.given.table else ""
        return self.given.model_copy(update={"path": self._path})

    @property
    def name(self) -> str:
        return f"Delta {self.given.table or self.given.path}"

    def look(self) -> list[Sight]:
        store = store_of_source(self.keys, self.config.tables)
        if store is None:
            return [Sight(f"{self.name}: only Spark has what opens its store; a run will see")]
        return [seen_table(self.keys.path, store, NO_TABLE_THERE)]

    def stream(self, spark: SparkSession, *, all_shares: bool = False) -> DataFrame:
        share, optional = None if all_shares else self.config.share, self.config.optional_columns
        source_keys = self.given if self._catalog is None else self.keys
        rows = delta_stream(spark, source_keys, self.config.envelope, share, optional)
        if source_keys.table is not None:
            self._path = location(spark, source_keys.table)
        return rows

    def files(self, spark: SparkSession, query: StreamingQuery, batch: int) -> BatchFiles | None:
        store = store_of_source(self.keys, self.config.tables)
        if store is None or self.config.share is not None:
            return None
        optional = self.config.optional_columns
        return batch_files(spark, query, batch, self.keys, self.config.envelope, store, optional)

    def decided(self, position: Callable[[], Position | None]) -> None:
        """Write down where the table is: others ask without Spark."""
        if self.given.table is None or self._path in ("", self._written):
            return
        body = json.dumps({"table": self.given.table, "path": self._path}).encode()
        try:
            self.store.put_whole(self.config.state_root, StateFolder.source.name, body)
            self._written = self._path
        except OSError as e:
            log.warning("where %s is could not be written down: %s", self.given.table, e)

    def lag(self, read: Position | None, answers: AnswerCache, last_file_batch: Callable[[], int]) -> SourceLag:
        if not self.keys.path:
            return SourceLag(note=f"where {self.given.table} is, the catalog alone knows: no batch has been read yet")
        return table_lag(self.keys, self.store, read, answers)

    def ids(self) -> TableId | None:
        store = store_of_source(self.keys, self.config.tables)
        return None if store is None else TableId(self.keys.path, store)

    def newest(self, count: int) -> pa.Table:
        if not self.keys.path:
            raise BadInput(detail=f"the records of {self.name} are known to Spark alone before a run: give source.path")
        store = store_of_source(self.keys, self.config.tables) or self.store
        envelope, optional = self.config.envelope, self.config.optional_columns
        return newest_of_table(self.keys, envelope, needed_columns(self.keys, envelope), store, count, optional)


def registered_at(catalog: UnityCatalog, table: str) -> str:
    """Where Unity Catalog has a Delta table, as Spark spells the address. Raises SourceDown, SourceMissing."""
    try:
        about = catalog.call("GET", f"/tables/{quote(table)}", table, absent=True)
    except CatalogDown as e:
        raise SourceDown(source=table, detail=str(e)) from e
    if about is None or about.get("data_source_format") != "DELTA" or not about.get("storage_location"):
        raise SourceMissing(source=table, what=NO_NAME)
    path = str(about["storage_location"]).rstrip("/")
    if path.startswith("file:"):
        return unquote(path.removeprefix("file://").removeprefix("file:"))
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path


def location(spark: SparkSession, table: str) -> str:
    """Where the catalog has a Delta table; empty where it does not say. Raises SourceMissing: it is none of Delta's."""
    from pyspark.errors import AnalysisException

    try:
        detail = spark.sql(f"DESCRIBE DETAIL {quoted_parts(table)}").select("format", "location").first()
    except AnalysisException as e:
        raise SourceMissing(source=table, what=NO_NAME) from e
    if detail is None or detail["format"] != "delta":
        raise SourceMissing(source=table, what=NO_NAME)
    path = str(detail["location"] or "")
    return unquote(path.removeprefix("file://").removeprefix("file:")) if path.startswith("file:") else path


def seen_table(path: str, store: Store, missing: str) -> Sight:
    """Raises SourceDown, SourceMissing with `missing`."""
    try:
        table = Table(path, store).open()
    except OSError as e:
        raise SourceDown(source=path, detail=str(e)) from e
    if table is None:
        raise SourceMissing(source=path, what=missing)
    return Sight(f"Delta table {path}, version {table.version}")


@dataclass(frozen=True)
class TableId:
    """The id of the table at `path`: Spark's offsets say which one the stream has begun with."""

    path: str
    store: Store
    agreed: bool = False
    in_positions: bool = True

    def now(self) -> dict[str, str]:
        """Empty where there is no table. Raises SourceDown."""
        try:
            table = Table(self.path, self.store).open()
        except OSError as e:
            raise SourceDown(source=self.path, detail=str(e)) from e
        return {} if table is None else {self.path: table.id}

    def begun(self, position: Position) -> dict[str, str]:
        began = position.get("reservoirId")
        return {} if began is None else {self.path: began}

    def refuse(self, seen: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
        for path, began in seen.items():
            if now.get(path) != began:
                raise SourceReplaced(source=path, began=began, now=now.get(path) or "there is no table")
        return []


def table_lag(source: DeltaSource, store: Store, read: Position | None, answers: AnswerCache) -> SourceLag:
    """The rows after `read` in the table's log."""

    def rows() -> int:
        table = answers.once(f"table {source.path}", lambda: Snapshot(source.path, store))
        return unread(source, table, read, store)

    try:
        # Shares are often at one and the same place.
        return SourceLag(answers.once(f"unread {source.path} {json.dumps(read, sort_keys=True)}", rows))
    except Unknown as e:
        return SourceLag(note=str(e))


def newest_of_table(
    source: DeltaSource,
    envelope: Envelope,
    needed: Needed,
    store: Store,
    count: int,
    optional: frozenset[str] = frozenset(),
) -> pa.Table:
    """The newest rows as the stream has them. `needed`: as `needed_columns`; `optional`: as in `delta_stream`.

    Raises SourceMissing, StoreUnreadable.
    """
    with reading(source.path):
        table = Table(source.path, store).open()
        if table is None:
            raise SourceMissing(source=source.path, what=NO_TABLE_THERE)
        files = TableFiles(table)
        if missing := [name for name in needed if not files.has(name) and name not in optional]:
            raise SourceMissing(source=source.path, what=lacks(missing[0], source, envelope, files.columns))
        origin = [name for name in ORIGIN_COLUMNS if files.has(name) and name not in needed]
        rows = _last(files, [*needed, *origin], count)
    columns = {alias: rows.column(name) for name, (alias, _) in needed.items()}
    columns_found = {name: _said(name, rows.column(name)) for name in origin} | columns
    blank = {f.name: pa.nulls(rows.num_rows, f.type) for f in ORIGIN}
    return pa.table({**blank, **columns_found})


def _said(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that says where a row came from, as `delta_stream` has it."""
    if name != "timestamp" or not pa.types.is_integer(column.type):
        return column
    millis = column.cast(pa.int64())
    is_time = pc.and_(pc.greater_equal(millis, FIRST_MS), pc.less_equal(millis, LAST_MS))
    times = pc.if_else(is_time, millis, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _last(files: TableFiles, names: Sequence[str], count: int) -> pa.Table:
    """The last rows of the newest file that has any."""
    for name in files.newest_first:
        rows = pa.concat_tables([piece.slice(max(0, piece.num_rows - count)) for piece in files.read(name, names)])
        if rows.num_rows:
            return rows.slice(max(0, rows.num_rows - count))
    return pa.table({name: pa.array([], pa.binary()) for name in names})
