"""A table by its name, opened by Spark: to be asked as a `Snapshot` is, though only its catalog can tell its log.

delta-rs opens no table with commits of a catalog, and a path to its files is not given to everybody. So what a table
says (columns, properties, commits) is asked of Spark in SQL, and its rows come as Arrow. A task has no Spark: the
driver tells it what it needs to know (`told`), with the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.errors.border import TableFault
from distributary.names import literal, quoted, quoted_parts
from distributary.tables.by_name import dotted, is_table, sql_name
from distributary.tables.snapshot import APP_KEY, BATCH_KEY, ROWS_KEY, Owner, Snapshot, arrow_of
from distributary.tables.spark_engine import append_to, asking
from distributary.tables.store import Store

READ_ROWS = 1 << 18
RECENT = 20
"""Commits that are asked for as a table is opened: a stream's own newest one is among them as a rule."""
_ONE = "rows"
"""In place of the names of files, which are the catalog's own business."""


def session() -> SparkSession:
    """The Spark that is there. Raises TableFault."""
    if SparkContext._active_spark_context is None:
        raise TableFault("a table by its name is read by Spark, and there is no session here")
    return SparkSession.builder.getOrCreate()


def tables_in(folder: str) -> list[str]:
    """What `tables.files.names_in` is for a schema: names of its tables, sorted. Of a table, that it is there.

    Raises TableFault.
    """
    spark = session()
    with asking():
        if is_table(folder):
            return [_ONE] if spark.catalog.tableExists(sql_name(folder)) else []
        schema = quoted_parts(dotted(folder))
        if "/" in folder.split("://", 1)[1] or not spark.catalog.databaseExists(schema):
            return []
        rows = spark.sql(f"SHOW TABLES IN {schema}").collect()
    return sorted(str(row["tableName"]) for row in rows if not row["isTemporary"])


def drop(uri: str) -> None:
    """Raises TableFault."""
    with asking():
        session().sql(f"DROP TABLE IF EXISTS {sql_name(uri)}")


@dataclass(frozen=True)
class NamedFacts:
    """What a table says of itself at a version. `newest`: stream -> its newest batch, of the recent commits."""

    version: int
    id: str
    schema: str
    properties: Mapping[str, str]
    partitioned_by: tuple[str, ...]
    description: str | None
    protocol: tuple[int, int]
    features: frozenset[str]
    newest: Mapping[str, int]


def told(store: Store, uris: Sequence[str]) -> Store:
    """The store, for tasks that are to open these tables by what is known of them now."""
    return replace(store, named={uri: _told(uri, store) for uri in uris})


def _told(uri: str, store: Store) -> NamedFacts | str | None:
    """None: there is no such table; a text: why it cannot be opened."""
    try:
        table = open_named(uri, store)
    except TableFault as e:
        return str(e)
    return None if table is None else table.facts


def open_named(uri: str, store: Store, version: int | None = None) -> NamedSnapshot | None:
    """None where there is no such table. Raises TableFault."""
    if SparkContext._active_spark_context is None and uri in store.named:
        facts = store.named[uri]
        if isinstance(facts, str):
            raise TableFault(facts)
        return None if facts is None else NamedSnapshot(uri, store, facts, ())
    spark = session()
    if not is_table(uri):
        return None
    with asking():
        if not spark.catalog.tableExists(sql_name(uri)):
            return None
        detail = spark.sql(f"DESCRIBE DETAIL {sql_name(uri)}").collect()[0].asDict()
        commits = _commits(spark, uri, RECENT)
        newest = int(commits[0]["version"]) if commits else 0
        schema = _schema_of(_frame(spark, uri, version))
    facts = NamedFacts(
        newest,
        str(detail["id"]),
        schema,
        dict(detail["properties"] or {}),
        tuple(detail["partitionColumns"] or ()),
        detail["description"],
        (int(detail["minReaderVersion"]), int(detail["minWriterVersion"])),
        frozenset(detail.get("tableFeatures") or ()),
        _newest(commits),
    )
    table = NamedSnapshot(uri, store, facts, tuple(commits))
    return table if version is None or version == newest else table.at(version)


def _commits(spark: SparkSession, uri: str, limit: int | None) -> list[dict[str, Any]]:
    """The newest `limit` commits (None: all that the log still has), newest first."""
    text = f"DESCRIBE HISTORY {sql_name(uri)}" + ("" if limit is None else f" LIMIT {limit}")
    return [_commit(row.asDict()) for row in spark.sql(text).collect()]


def _frame(spark: SparkSession, uri: str, version: int | None) -> DataFrame:
    if version is None:
        return spark.table(sql_name(uri))
    return spark.read.option("versionAsOf", version).table(sql_name(uri))


def _schema_of(frame: DataFrame) -> str:
    """In Delta's words, without the names that mapped columns have in files, which are nobody's business here."""
    words = json.loads(
        frame.schema.json(),
        object_hook=lambda about: {k: v for k, v in about.items() if not k.startswith("delta.columnMapping.")},
    )
    return json.dumps(words)


def _commit(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the table's history as delta-rs has it: what the commit says of itself stands at its first level."""
    try:
        about = json.loads(row.get("userMetadata") or "{}")
    except ValueError:
        about = {}
    rows = (row.get("operationMetrics") or {}).get("numOutputRows")
    ours = {**about, ROWS_KEY: rows} if APP_KEY in about and rows is not None else about
    return {**row, "timestamp": int(row["timestamp"].timestamp() * 1000), **ours}


def _newest(commits: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for commit in commits:
        if APP_KEY in commit:
            app, batch = str(commit[APP_KEY]), int(commit[BATCH_KEY])
            newest[app] = max(batch, newest.get(app, -1))
    return newest


class NamedSnapshot(Snapshot):
    """`recent`: its newest commits, newest first; none of a task's. Its changes are Spark's (`spark_engine`,
    `spark_merge`, `spark_upkeep`)."""

    def __init__(self, uri: str, store: Store, facts: NamedFacts, recent: Sequence[Mapping[str, Any]]) -> None:
        self.uri, self.store, self.facts = uri, store, facts
        self._recent = recent
        self._is_newest = True

    def at(self, version: int) -> NamedSnapshot:
        commits = [commit for commit in self._all_commits if int(commit["version"]) <= version]
        with asking():
            schema = _schema_of(_frame(session(), self.uri, version))
        facts = replace(self.facts, version=version, schema=schema, newest=_newest(commits))
        table = NamedSnapshot(self.uri, self.store, facts, commits)
        table._is_newest, table._all_commits = False, commits
        return table

    @cached_property
    def _all_commits(self) -> list[dict[str, Any]]:
        if len(self._recent) < RECENT:
            return [dict(commit) for commit in self._recent]
        with asking():
            return _commits(session(), self.uri, None)

    @property
    def by_query(self) -> NamedSnapshot:
        return self

    def refresh(self) -> None:
        table = open_named(self.uri, self.store)
        if table is None:
            raise TableFault("it is not there any more")
        self.__dict__ = table.__dict__

    # -- what it says --------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.facts.version

    @property
    def id(self) -> str:
        return self.facts.id

    @cached_property
    def schema(self) -> pa.Schema:
        return arrow_of(self.facts.schema)

    @property
    def schema_json(self) -> str:
        return self.facts.schema

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.facts.properties)

    @property
    def partitioned_by(self) -> list[str]:
        return list(self.facts.partitioned_by)

    @property
    def owner(self) -> Owner | None:
        return Owner.read(self.facts.properties, self.facts.description)

    @property
    def protocol_versions(self) -> tuple[int, int]:
        return self.facts.protocol

    @property
    def reader_features(self) -> set[str]:
        """Spark leaves out what is deleted, whatever the files hold."""
        return set(self.facts.features) - {"deletionVectors"}

    @property
    def writer_features(self) -> set[str]:
        return set(self.facts.features)

    def newest(self, app: str) -> int:
        if app in self.facts.newest:
            return self.facts.newest[app]
        return _newest(self._all_commits).get(app, -1)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        commits = self._recent if limit is not None and limit <= len(self._recent) else self._all_commits
        return [dict(commit) for commit in commits[:limit]]

    # -- its rows ------------------------------------------------------------------------------------------

    @cached_property
    def frame(self) -> DataFrame:
        return _frame(session(), self.uri, None if self._is_newest else self.version)

    def adds(self, flatten: bool = True) -> pa.Table:
        """One line for all rows: which files there are is for the catalog to know."""
        return pa.table({"path": [_ONE], "size_bytes": [0], "modification_time": [0]})

    def addresses(self) -> list[str]:
        with asking():
            return list(self.frame.inputFiles())

    def rows(self) -> int:
        """Raises TableFault."""
        with asking():
            return int(self.frame.count())

    def pieces(self, columns: Mapping[str, Sequence[str]]) -> Iterator[pa.Table]:
        """Columns by their places, named so; null where the table lacks one. Raises TableFault."""
        present = {name: path for name, path in columns.items() if self._has(path)}
        if not present:
            yield pa.table({name: pa.nulls(self.rows()) for name in columns})
            return
        chosen = [F.col(".".join(map(quoted, path))).alias(str(n)) for n, path in enumerate(present.values())]
        with asking():
            answer = self.frame.select(*chosen).toArrow()
        numbers = {name: answer.column(n) for n, name in enumerate(present)}
        table = pa.table({name: numbers.get(name, pa.nulls(answer.num_rows)) for name in columns})
        yield from (table.slice(begin, READ_ROWS) for begin in range(0, max(1, table.num_rows), READ_ROWS))

    def _has(self, path: Sequence[str]) -> bool:
        fields: Any = self.schema
        for name in path:
            index = -1 if fields is None else fields.get_field_index(name)
            if index < 0:
                return False
            kind = fields.field(index).type
            fields = kind if pa.types.is_struct(kind) else None
        return True

    def query(self, sql: str) -> pa.Table:
        with asking():
            own = session().newSession()
            _frame(own, self.uri, None if self._is_newest else self.version).createOrReplaceTempView("t")
            return own.sql(sql).toArrow()

    def dataset(self) -> ds.Dataset:
        """All rows, in memory."""
        with asking():
            return ds.dataset(self.frame.toArrow())

    # -- changes -------------------------------------------------------------------------------------------

    def append_rows(self, rows: pa.Table, about: Mapping[str, str]) -> None:
        with asking():
            frame = session().createDataFrame(rows, self.frame.schema)
            append_to(frame.write.option("userMetadata", json.dumps(dict(about))), self.uri)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        with asking():
            session().sql(f"ALTER TABLE {sql_name(self.uri)} SET TBLPROPERTIES ({pairs})")

    @property
    def delta(self) -> NoReturn:  # type: ignore[override]
        """What delta-rs would do to the table. Raises TableFault."""
        raise TableFault("a table by its name is changed by Spark only")
