"""`declarative.silver_as: sink`: one flow for all silver tables, by Spark's sink `format("distributary")`.

    bronze, the good rows -> one flow -> tasks decode, a file per route -> one commit per table

A streaming table is a query of its own in every update; this is one, however many routes there are. What Spark does for
a streaming table is done here before the flow: a table is made, gets its new columns, and is entered in the catalog.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets
from distributary.declarative.flows import Flows
from distributary.declarative.known_routes import (
    WRITERS_PROPERTY,
    KnownRoutes,
    Route,
    add_writers,
    parse_writers,
    write_down,
)
from distributary.declarative.trials import decode_in_task
from distributary.engine.messages.chunks import one_array
from distributary.engine.messages.task_spec import ORIGIN
from distributary.engine.windows import windows
from distributary.errors import BadInput
from distributary.names import literal
from distributary.sink.by_routes import HELD_BYTES, split
from distributary.sink.data_source import packed
from distributary.sink.sink_options import ROWS_OPTION, SinkOptions
from distributary.sink.written import RouteFiles, WrittenFiles, removed_on_failure
from distributary.sources.bronze_rows import RECORD_KEY
from distributary.state.ledger import EMPTIED, Ledger, totals
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store, local_path
from distributary.tables.table import Table

TABLES_AT_A_TIME = 8
SOURCE_COLUMNS = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
IDS = {"schema_id": pa.int32(), "envelope_schema_id": pa.int32()}
ORIGIN_FIELD = pa.field(ORIGIN, pa.struct([pa.field(name, kind) for name, kind in {**SOURCE_COLUMNS, **IDS}.items()]))
TAKEN = ("route", "schema_id", "message", "payload", "topic", "partition", "offset", "timestamp", "envelope_schema_id")
"""Columns of bronze that the flow takes."""


@dataclass(frozen=True)
class SilverRows:
    """Takes good bronze rows of all routes. `routes`: as the update knows them. Pickles, and ships to tasks."""

    options: SinkOptions
    routes: Mapping[str, Route]
    origin: bool
    read_sec: float
    careful: bool

    def take(self, batches: Iterable[pa.RecordBatch], stream: str, batch: int, task: str) -> WrittenFiles:
        """Decode them into files. Raises StoreDown, and ValueError where a record does not decode that bronze has
        called good: the flow fails, nothing is lost."""
        written = WrittenFiles()
        with removed_on_failure(written, self.options):
            for rows in windows(batches, HELD_BYTES):
                for name, route_rows in split(rows, "route"):
                    if name is not None:
                        written.parts.append(self._route(name, route_rows))
        return written

    def _route(self, name: str, rows: pa.Table) -> RouteFiles:
        route = self.routes.get(name)
        if route is None:
            raise ValueError(f"{name}: bronze has called records good whose table this update cannot write")
        ids, message, payload = (one_array(rows.column(n)) for n in ("schema_id", "message", "payload"))
        keys = one_array(rows.column(RECORD_KEY)) if RECORD_KEY in rows.column_names else None
        decoded = decode_in_task(ids, message, payload, keys, route=route, read_sec=self.read_sec, careful=self.careful)
        table = pa.Table.from_struct_array(decoded)
        if self.origin:
            fields = list(ORIGIN_FIELD.type)
            origins = [one_array(rows.column(f.name)).cast(f.type) for f in fields]
            table = table.append_column(ORIGIN_FIELD, pa.StructArray.from_arrays(origins, fields=fields))
        target = self.options.target(name)
        return RouteFiles.of(name, target.uri, table, target.write(table))


def sink_options(config: Pipeline, known_routes: KnownRoutes, careful: bool) -> dict[str, str]:
    """Options of the sink: all that its tasks must know, which is what bronze's verdicts are made by."""
    read_sec = known_routes.reader.read_sec
    rows = SilverRows(_options(config), known_routes.routes, config.tables.origin, read_sec, careful)
    return {ROWS_OPTION: packed(rows)}


def _options(config: Pipeline) -> SinkOptions:
    names = config.declarative.silver
    tables = config.tables.model_copy(update={"name": names, "routes": {}})
    return SinkOptions("route", config.pipeline, tables, config.state_root, parks=False, keeps_books=False)


def good_rows(bronze: DataFrame, *, has_keys: bool) -> DataFrame:
    """What the flow takes of bronze: no repartition, for a file of bronze holds one route. `has_keys`: the records'
    keys are columns."""
    good = bronze.where(F.col("route").isNotNull() & F.col("reason").isNull())
    return good.select(*TAKEN, *([RECORD_KEY] if has_keys else []))


# -- the tables --------------------------------------------------------------------------------------------


def ready_tables(config: Pipeline, known_routes: KnownRoutes, flows: Flows) -> None:
    """Make the silver tables that are not there, and give the others their new columns.

    Raises BadInput: a table was dropped that had rows. Raises TableFault, OSError, TableCollision.
    """
    options = _options(config)
    new = {name: route.slots for name, route in known_routes.routes.items() if route.before is None}
    if new:
        # A route that no subject names any more has rows in bronze all the same.
        add_writers(config, options.store, new)
    if new and flows.has_read(config.declarative.silver_flow):
        _check_dropped(config, new)
    with ThreadPoolExecutor(TABLES_AT_A_TIME) as pool:
        list(pool.map(lambda route: _ready(options, route, config.tables.origin), known_routes.routes.values()))


def _ready(options: SinkOptions, route: Route, origin: bool) -> None:
    target = options.target(route.route)
    columns = pa.schema([*route.columns, *([ORIGIN_FIELD] if origin else [])])
    table = target.open()
    writers = {WRITERS_PROPERTY: write_down(route.slots)}
    if table is None:
        properties = {**target.properties, **writers}
        Table(target.uri, target.store, target.owner).create(columns)
        table = target.open()
        assert table is not None
        table.set_properties(properties)
        return
    evolution = evolve(table.schema, [columns], Policy())
    if evolution.changed:
        table.add_columns(evolution.schema)
        table.refresh()
    if parse_writers(table.properties.get(WRITERS_PROPERTY, "")) != set(route.slots):
        table.set_properties(writers)


def _check_dropped(config: Pipeline, new: Collection[str]) -> None:
    ledger = Ledger(config.state_root, config.pipeline, Store.of(config.tables))
    sums = totals(ledger.entries())
    dropped = sorted(route for route in new if route in sums and sums[route].rows_written > 0)
    if dropped:
        names = ", ".join(Datasets.of(config).silver(route) for route in dropped)
        raise BadInput(
            detail=f"{names}: the table was dropped, and one flow fills all silver tables: put it back, or have all of "
            f"them filled anew from bronze: --full-refresh {config.declarative.silver_flow}"
        )


def check_whole(flows: Flows, names: Collection[str]) -> None:
    """Raises BadInput: the silver tables `names` have rows, and the checkpoint of their flow is gone."""
    flow = str(flows.sink)
    if flows.checkpoint(flow) is None and (torn := flows.torn(names)):
        raise BadInput(
            detail=f"{', '.join(torn)}: there are rows, and the checkpoint of the flow {flow!r} below {flows.storage} "
            f"is gone: put it back, or have all silver tables filled anew from bronze: --full-refresh {flow}"
        )


def empty_silver(config: Pipeline, known_routes: KnownRoutes, flows: Flows) -> None:
    """All silver tables without rows, and their flow at its beginning: it fills them anew from bronze.

    A crash in between is found by `check_whole`. Raises BadInput (a table cannot be read), TableFault, OSError.
    """
    if known_routes.failed:
        why = "; ".join(f"{route}: {text}" for route, text in sorted(known_routes.failed.items()))
        raise BadInput(detail=f"silver cannot be filled anew while a table of it cannot be read ({why}): drop it first")
    options = _options(config)
    flows.forget(config.declarative.silver_flow)
    txn = Txn(f"{EMPTIED}{uuid.uuid4().hex}", 0)
    for route in known_routes.routes:
        target = options.target(route)
        table = target.open()
        if table is not None and table.addresses():
            target.replace_all(table, table.schema, [], txn)


def silver_flow(config: Pipeline) -> str | None:
    """The name of the flow into all silver tables; None where each has its own."""
    return config.declarative.silver_flow if config.declarative.silver_as == "sink" else None


def prepare_silver(
    spark: SparkSession, config: Pipeline, known_routes: KnownRoutes, present: Collection[str], *, refill: bool
) -> set[str]:
    """Make and grow the silver tables, and tell Spark's catalog of those that are not `present`; returns their names.
    `refill`: empty them first.

    Raises what `ready_tables` raises.
    """
    datasets, flows = Datasets.of(config), Flows.of(config, Store.of(config.tables))
    if refill:
        empty_silver(config, known_routes, flows)
    ready_tables(config, known_routes, flows)
    names = [datasets.silver(route) for route in known_routes.routes]
    enter(spark, datasets, [name for name in names if name.lower() not in present])
    return {name.lower() for name in names}


def enter(spark: SparkSession, datasets: Datasets, names: Iterable[str]) -> None:
    """Tell Spark's catalog of tables that are there."""
    for name in names:
        spark.sql(f"CREATE TABLE {datasets.sql(name)} USING DELTA LOCATION {literal(url(datasets.uri(name)))}")


def url(address: str) -> str:
    """An address as Spark's server is told it."""
    folder = local_path(address)
    return address if folder is None else folder.resolve().as_uri()
