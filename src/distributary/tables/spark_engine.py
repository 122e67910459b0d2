"""Engine `spark`: Spark's own Delta writer, for tables whose protocol delta-rs cannot write.

A Spark job per table and batch, so it is slower than engine `task` by the figures in docs/benchmarks.md; it is used
where it must be (type widening, row tracking, in-commit timestamps, column mapping, constraints); the ledger says so.
Idempotence is Delta's own: options txnAppId and txnVersion on the write (never the session conf, which other tables
share: delta-io/delta#3934).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from distributary.errors.border import TableFault
from distributary.names import literal, quoted
from distributary.tables.by_name import is_named, schema_name, sql_name
from distributary.tables.comments import comment_of
from distributary.tables.evolve import Evolution, Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import OWNER_KEY, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table, retried
from distributary.tables.widening import for_spark

T = TypeVar("T")

WIDENING = "delta.enableTypeWidening"
SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Of a job. One that is collected raises the second kind (pyspark 4.2.0)."""

NETWORK = re.compile(
    r"(?:java\.net\.(?:\w*Connect\w*|SocketException|SocketTimeout\w*|UnknownHost\w*|NoRouteToHost\w*)"
    r"|java\.net\.http\.Http\w*TimeoutException"
    r"|java\.io\.IOException: HTTP/1\.1 header parser received no bytes"
    r"|org\.apache\.http\.(?:NoHttpResponse|conn\.\w*Connect\w*)Exception"
    r"|org\.apache\.thrift\.transport\.TTransportException"
    r"|org\.apache\.hadoop\.net\.ConnectTimeoutException"
    r"|org\.apache\.hadoop\.fs\.s3a\.AWS(?:StatusNNNN|ServiceThrottled|ServiceIO|ClientIO|Status500|ApiCallTimeout)\w*"
    r"|org\.apache\.hadoop\.fs\.s3a\.HttpChannelEOFException"
    r"|software\.amazon\.awssdk\.core\.exception\.(?:SdkClient|ApiCall\w*Timeout)Exception"
    r"|(?:software\.amazon\.awssdk\.services|(?:com\.amazon\.ws\.emr\.hadoop\.fs\.shaded\.)?com\.amazonaws\.services)"
    r"\.s3\.model\.(?:Amazon)?S3Exception: [^(\n]*\(Service: (?:Amazon )?S3[,;] "
    r"Status Code: (?:401|408|429|500|502|503|504)"
    r"|(?:com\.amazon\.ws\.emr\.hadoop\.fs\.shaded\.)?com\.amazonaws\.SdkClientException"
    r"|org\.apache\.hadoop\.fs\.azurebfs\.contracts\.exceptions\.AbfsRestOperationException: "
    r"(?:Status code: |Operation failed: \"[^\"\n]*\", )(?:-1|401|408|429|500|502|503|504)"
    r"|org\.apache\.hadoop\.fs\.azurebfs\.oauth2\.AzureADAuthenticator\$\w+: HTTP Error (?:-1|401|408|429|5\d\d)"
    r"|com\.microsoft\.azure\.storage\.StorageException: The server is busy"
    r"|(?:com\.google\.cloud\.hadoop\.repackaged\.gcs\.)?com\.google\.api\.client\.(?:googleapis\.json\.|http\.|auth\.oauth2\.)"
    r"(?:GoogleJson|Http|Token)ResponseException: (?:401|408|429|500|502|503|504)"
    r"|(?:com\.google\.cloud\.hadoop\.repackaged\.gcs\.)?io\.grpc\.Status(?:Runtime)?Exception: "
    r"(?:UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|UNAUTHENTICATED)"
    r"|javax\.net\.ssl\.SSL\w*Exception"
    r"|io\.unitycatalog\.client\.ApiException: \w+ call failed with: (?:401|408|429|502|503|504))\b"
)
"""Beginnings of the JVM's errors of a network: a store or a catalog is away, busy, or does not know us (`tables.outage`
says so of the Rust libraries). Not a catalog's 500, which may be of one table."""
_DENIED = re.compile(
    r"(?:java\.nio\.file\.AccessDeniedException: s3a?://"
    r"|software\.amazon\.awssdk\.services\.s3\.model\.S3Exception: [^\n]*Status Code: 403\b)"
)
_DENIED_MEANS = (
    "The store refuses (403). S3 says so also of an object that is not there, to whoever may not list the bucket: "
    "allow s3:ListBucket on the bucket beside s3:GetObject, s3:PutObject and s3:DeleteObject on its objects, "
    "for Spark's own credentials too (spark.hadoop.fs.s3a.*; docs/stores.md)"
)
_NOT_US = re.compile(
    r"(?:org\.apache\.hadoop\.fs\.s3a\.AWSBadRequestException|java\.nio\.file\.AccessDeniedException"
    r"|(?:[\w.]+\.)?(?:Amazon)?S3Exception|org\.apache\.hadoop\.fs\.azurebfs\.[\w.]+): [^\n]*"
    r"(?:\((?:Service: (?:Amazon )?S3[,;] )?Status Code: 40[03]|\", 403, [A-Z]+, )[^\n]*"
    r"(?::|Error Code: |, )(?:InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|RequestTimeTooSkewed"
    r"|AuthenticationFailed|AuthorizationFailure|AccountIsDisabled)\b"
    r"|[\w.]*S3Exception: The provided token has expired\. \(Service: "
)
"""The same of a store that says by a 400 or 403 that it does not know us (`tables.outage` has the codes)."""
_FOREIGN_COMMIT = re.compile(
    r"(?:io\.delta\.exceptions|org\.apache\.spark\.sql\.delta)\.(?:\w+\.)*"
    r"(?:Concurrent\w+|MetadataChanged|ProtocolChanged|MetadataMismatch\w*)Exception\b"
    r"|[\w.$]+: \[DELTA_(?:CONCURRENT_\w+|METADATA_CHANGED|PROTOCOL_CHANGED|MAX_COMMIT_RETRIES_EXCEEDED)\b"
)
_LOST_TASK = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\)(?: \([^()\n]*\))?: ([^\n]+)")
"""Of a job that failed: what its task had met."""
_DEPTH = 20
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\S.*)")
"""What a Python worker raised, without the name of its module, behind each of its tracebacks."""


class SparkEngineError(Exception):
    """Spark refused the write; the text is its first line."""


class SparkConflict(SparkEngineError, CommitConflict):
    """Another writer's commit came first; what was begun can be done once more."""


@contextmanager
def asking(fault: type[Exception] = TableFault) -> Iterator[None]:
    """What Spark says of a table is the table's fault. Raises `fault`, and of SparkEngineError SparkConflict where
    another writer was first; ConnectionError where a store or a catalog does not answer, which is all tables' fault;
    what says that Spark itself is gone."""
    try:
        yield
    except SPARK_ERRORS as e:
        if spark_ended(e):
            raise
        if (why := away(e)) is not None:
            raise ConnectionError(why) from e
        if fault is SparkEngineError and was_first(e):
            raise SparkConflict(first_line(e)) from e
        raise fault(first_line(e)) from e


class SparkEngine:
    def __init__(self, spark: SparkSession, store: Store) -> None:
        self.spark = spark
        self.store = store

    def prepare(
        self, target: Table, incoming: Sequence[pa.Schema], policy: Policy, before: Snapshot | None = None
    ) -> pa.Schema:
        """Create the table, or widen its columns, so that `incoming` fits; returns the schema rows are to have.
        `before`: the table as it was opened just now, where it was there.

        New columns are left to the write itself (mergeSchema). Safe to repeat, and repeated where another writer was
        first. Raises as `asking`.
        """
        return _retried(before, lambda table: self._prepare(target, incoming, policy, table))

    def _prepare(
        self, target: Table, incoming: Sequence[pa.Schema], policy: Policy, before: Snapshot | None
    ) -> pa.Schema:
        table = before or Snapshot.open(target.uri, self.store)
        evolution = evolve(columns_of(table), incoming, for_spark(policy, table))
        with asking(SparkEngineError):
            if table is None:
                self._create(target, evolution.schema)
            else:
                self._widen(target.uri, evolution, table)
        return evolution.schema

    def _create(self, target: Table, schema: pa.Schema) -> None:
        for key, columns in (("partition_by", target.partitioned_by), ("cluster_by", target.clustered_by)):
            if missing := [name for name in columns if name.split(".")[0] not in schema.names]:
                raise SparkEngineError(f"tables.{key} names {missing[0]!r}, and the rows have no such column")
        if is_named(target.uri):
            self._make_schema(target.uri)
            self.spark.sql(create_text(target, schema))
            return
        builder = SparkDeltaTable.createIfNotExists(self.spark).location(target.uri)
        for key, value in {**_mapping(schema), **target.properties_of_new}.items():
            builder = builder.property(key, value)
        builder = builder.addColumns(spark_schema(schema))
        if target.partitioned_by:
            builder = builder.partitionedBy(*target.partitioned_by)
        if target.clustered_by:
            builder = builder.clusterBy(*target.clustered_by)
        if target.comment is not None:
            builder = builder.comment(target.comment)
        builder.execute()

    def _make_schema(self, uri: str) -> None:
        """That of a table by its name. Where it is there, nobody need be allowed to make one."""
        schema = schema_name(uri)
        if self.spark.catalog.databaseExists(schema):
            return
        try:
            self.spark.sql(f"CREATE DATABASE IF NOT EXISTS {schema}")
        except PySparkException:  # of two tables that are made at once, one is first
            if not self.spark.catalog.databaseExists(schema):
                raise

    def _widen(self, uri: str, evolution: Evolution, table: Snapshot) -> None:
        owner, properties = table.owner, table.properties
        needed = {**_mapping(evolution.schema), **({WIDENING: "true"} if evolution.widened else {})}
        missing = {key: value for key, value in needed.items() if properties.get(key) != value}
        if owner is not None and OWNER_KEY not in properties:
            missing |= owner.properties()  # as `Snapshot.keep_owner`
        name = sql_name(uri)
        if missing:
            # In one statement: Spark takes no other property of a table that needs its names mapped.
            pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in missing.items())
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({pairs})")
        for path, kind in evolution.widened:
            column, wide = ".".join(map(quoted, path)), from_arrow_type(kind).simpleString()
            self.spark.sql(f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {wide}")

    def append(self, rows: DataFrame, uri: str, txn: Txn, before: Snapshot | None = None) -> bool:
        """Append `rows` under the batch's transaction; False when the table has taken this batch before. `before`: as
        for `prepare`; who comes between the two is found by Delta, and it is done again.

        Raises as `asking`.
        """
        return _retried(before, lambda table: self._append(rows, uri, txn, table))

    def _append(self, rows: DataFrame, uri: str, txn: Txn, before: Snapshot | None) -> bool:
        table = before or Snapshot.open(uri, self.store)
        if table is not None and table.has(txn):
            return False
        with asking(SparkEngineError):
            writer = rows.write.option("txnAppId", txn.app_id).option("txnVersion", str(txn.version))
            append_to(writer.option("userMetadata", json.dumps(txn.about())), uri)
        return True


def _retried(before: Snapshot | None, write: Callable[[Snapshot | None], T]) -> T:
    """`write` with the table as it was opened; done again, where another writer was first, with the table as it is."""
    opened = iter([before])
    return retried(lambda: write(next(opened, None)))


def create_text(target: Table, schema: pa.Schema) -> str:
    """The command that makes a table by its name: Delta's builder takes no name of three parts (4.4.0)."""
    columns = ", ".join(_column_text(field) for field in schema)
    text = f"CREATE TABLE IF NOT EXISTS {sql_name(target.uri)} ({columns}) USING DELTA"
    for words, names in (("PARTITIONED BY", target.partitioned_by), ("CLUSTER BY", target.clustered_by)):
        if names:
            text += f" {words} ({', '.join('.'.join(map(quoted, name.split('.'))) for name in names)})"
    if target.comment is not None:
        text += f" COMMENT {literal(target.comment)}"
    properties = {**_mapping(schema), **target.properties_of_new}
    pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    return text + (f" TBLPROPERTIES ({pairs})" if pairs else "")


def _column_text(field: pa.Field) -> str:
    about = _comment(field) or {}
    comment = f" COMMENT {literal(about['comment'])}" if "comment" in about else ""
    return f"{quoted(field.name)} {ddl(field.type)}{'' if field.nullable else ' NOT NULL'}{comment}"


def append_to(writer: DataFrameWriter, uri: str) -> None:
    """Append rows to a table, which gets the columns that it lacks. Raises PySparkException."""
    writer = writer.format("delta").mode("append").option("mergeSchema", "true")
    if is_named(uri):
        writer.saveAsTable(sql_name(uri))
    else:
        writer.save(uri)


def table_of(spark: SparkSession, uri: str) -> SparkDeltaTable:
    return SparkDeltaTable.forName(spark, sql_name(uri)) if is_named(uri) else SparkDeltaTable.forPath(spark, uri)


MAPPING = "delta.columnMapping.mode"
_ODD = re.compile(r"[ ,;{}()\n\t=]")


def _mapping(schema: pa.Schema) -> dict[str, str]:
    """What a table needs where Spark refuses names of its columns in Parquet files: other names there."""
    return {MAPPING: "name"} if _ODD.search("".join(_names(schema))) else {}


def _names(fields: Iterable[pa.Field]) -> Iterator[str]:
    for field in fields:
        yield field.name
        if pa.types.is_struct(field.type):
            yield from _names(field.type)
        elif pa.types.is_list(field.type):
            yield from _names([field.type.value_field])
        elif pa.types.is_map(field.type):
            yield from _names([field.type.key_field, field.type.item_field])


def spark_schema(schema: pa.Schema) -> StructType:
    """A table's Arrow schema as Spark spells it, with the comments of its columns (not of fields inside of them)."""
    return StructType([StructField(f.name, from_arrow_type(f.type), f.nullable, _comment(f)) for f in schema])


def _comment(field: pa.Field) -> dict[str, str] | None:
    about = comment_of(field)
    return None if about is None else {key.decode(): text.decode() for key, text in about.items()}


def spark_ended(error: BaseException) -> bool:
    """Whether an error says that Spark itself is gone or was told to stop, which is no table's fault."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Py4JNetworkError):
            return True
        if isinstance(cause, PySparkException) and _condition(cause) == "SPARK_JOB_CANCELLED":
            return True
        cause = cause.__cause__
    return False


def _condition(error: PySparkException) -> str | None:
    """Spark's own word for the error; it asks the JVM, which may not answer."""
    try:
        return error.getCondition()
    except Exception:
        return None


def causes_of(error: Any) -> Iterator[str]:
    """The JVM's error and its causes, outermost first; nothing where it can't be asked."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        for _ in range(_DEPTH):
            if cause is None:
                return
            yield str(cause.toString()).strip()
            cause = cause.getCause()
    except Exception:  # the JVM is gone
        return


def away(error: BaseException) -> str | None:
    """What says that a store or a catalog which Spark asked does not answer; None where nothing does."""
    for cause in causes_of(error):
        lost: list[str] = _LOST_TASK.findall(cause)[:1]
        for text in (cause, *lost):
            if NETWORK.match(text) or _NOT_US.match(text):
                return text[:300]
    return None


def was_first(error: BaseException) -> bool:
    """Does an error say that another writer's commit came first?"""
    return any(_FOREIGN_COMMIT.match(cause) for cause in causes_of(error))


def first_line(error: BaseException) -> str:
    """What says most of an error of Spark's: what a Python worker raised, else what Java threw, for py4j's own words
    say nothing; else its first line. Of a store's 403, that answer and what it may mean."""
    thrown = list(causes_of(error))
    for cause in thrown:
        if _DENIED.match(cause):
            return f"{cause.split(chr(10), 1)[0][:500]}. {_DENIED_MEANS}"
    raised: list[str] = [text for cause in thrown for text in _RAISED.findall(cause)]
    texts: list[str] = [*raised[-1:], *(thrown if isinstance(error, Py4JError) else ()), str(error)]
    return texts[0].strip().split("\n", 1)[0][:500]


def ddl(kind: pa.DataType) -> str:
    """An Arrow type as Spark SQL spells it, names inside it quoted."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(f.name)}: {ddl(f.type)}' for f in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl(kind.key_type)}, {ddl(kind.item_type)}>"
    return str(from_arrow_type(kind).simpleString())
