"""One update of a declarative pipeline on a warm server: define, run, listen, count."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.block_session_mutations import block_session_mutations
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.output import Output, Table
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run
from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets, storage
from distributary.declarative.definitions import Defined, register
from distributary.declarative.edges import Reads, made_in_sql, streams_in, views_in_sql, with_readers
from distributary.declarative.event_log import RUN_DONE, UNDER_WAY, Event, dataset_of, read_event
from distributary.declarative.flows import Flows
from distributary.declarative.libraries import Library, load_library
from distributary.declarative.persisted_views import keep_current
from distributary.declarative.polling import poll_often
from distributary.declarative.row_counts import version_of, written_since
from distributary.declarative.server import Server, client, server_conf
from distributary.declarative.silver_sink import check_whole, enter, silver_flow, url
from distributary.engine.schemas import Schemas
from distributary.engine.workers import told_death
from distributary.errors import BadInput, without_stack
from distributary.errors.border import contained
from distributary.names import literal
from distributary.state.lock import only_run
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store

Listener = Callable[[Event], None]

_REASON_CHARS = 2000


@dataclass(frozen=True)
class Selection:
    """What an update does. All empty: every dataset, incrementally."""

    refresh: tuple[str, ...] = ()
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False
    dry_run: bool = False

    def refills(self, names: Collection[str]) -> bool:
        """Is one of these filled anew?"""
        return not self.dry_run and (self.full_refresh_all or bool(set(names) & set(self.full_refresh)))

    def but_for(self, name: str | None) -> Selection:
        """Without this name among those that are filled anew."""
        return replace(self, full_refresh=tuple(n for n in self.full_refresh if n != name))


@dataclass
class Update:
    """What an update did. `states`: the last state of each dataset that has flows. `rows`: written, by dataset.

    `notes`: what somebody should look at, in words. `error`: why the run as a whole did not complete. `behind`: the one
    flow into silver is left to the next update.
    """

    states: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    defined: Defined | None = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    completed: bool = False
    behind: bool = False
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        return sorted(name for name, state in self.states.items() if state == "FAILED")

    @property
    def problems(self) -> list[str]:
        return [*(self.defined.problems if self.defined is not None else ()), *self.notes]

    def died(self) -> bool:
        """Has a process ended that was at work for a flow?"""
        return any(map(told_death, [*self.reasons.values(), self.error or ""]))

    def hear(self, event: Event) -> None:
        """Events come from several threads of Spark's, so that the order of two is not to be relied on: a stream that
        fails is said to have completed too, and the run may be over before its last flow is."""
        if event.state is None:
            return
        if event.dataset is None:
            self.completed = event.state == RUN_DONE
        elif (self.states.get(event.dataset), event.state) != ("FAILED", RUN_DONE):
            self.states[event.dataset] = event.state
            if event.state == "FAILED":
                self.reasons[event.dataset] = event.text
        if self.completed:
            # Spark says so only where no flow has failed and none runs on.
            self.states |= {name: RUN_DONE for name, state in self.states.items() if state in UNDER_WAY}

    def leave_out(self, failed: Mapping[str, str]) -> None:
        """Datasets that cannot even be defined, and why."""
        self.states |= dict.fromkeys(failed, "FAILED")
        self.reasons |= failed

    def kinds(self) -> dict[str, str]:
        """What each dataset is: bronze, silver and so on, or the user's own."""
        defined_kinds = self.defined.kinds if self.defined is not None else {}
        return {name: defined_kinds.get(name, "own") for name in [*defined_kinds, *self.states]}

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.completed and not self.failed,
            "seconds": round(self.seconds, 3),
            "datasets": {
                name: {
                    "kind": kind,
                    "state": self.states.get(name),
                    "rows": self.rows.get(name),
                    "version": self.versions.get(name),
                }
                for name, kind in self.kinds().items()
            },
            "failed": {name: self.reasons.get(name) for name in self.failed},
            "error": self.error,
            "problems": self.problems,
        }


def prepare_database(spark: SparkSession, datasets: Datasets) -> None:
    """Make the pipeline's database, whose folder is `tables.root`, where it is not there."""
    # Asked first: a CREATE IF NOT EXISTS that has nothing to do leaves an error of Hive's in the log.
    if not spark.catalog.databaseExists(datasets.place):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {datasets.place} LOCATION {literal(url(datasets.root))}")


def make_database(config: Pipeline) -> str:
    """Make the pipeline's database on a server of its own; returns its name. Raises AlreadyRunning, SparkNotStarted."""
    datasets = Datasets.of(config)
    with (
        only_run(config.state_root, config.pipeline),
        Server(server_conf(config), config.spark.master) as server,
        client(server.remote) as spark,
    ):
        prepare_database(spark, datasets)
    return datasets.database


def run_update(
    spark: SparkSession,
    config: Pipeline,
    libraries: Sequence[Library],
    base: Path,
    selection: Selection,
    listen: Listener,
    schemas: Schemas,
    without: Collection[str] = (),
    careful: bool = False,
) -> Update:
    """Define everything anew and run it to the end. Flows that fail are in the result, not raised.

    `base`: the folder of the pipeline file. `schemas`: for one update after another. `without`: what is left out.
    `careful`: tasks look for records that end their reader first (`trials`).
    Raises BadInput (a dataset that is not there, a lost bronze), what `define` and the user's own files raise.
    """
    began = time.monotonic()
    datasets, store = Datasets.of(config), Store.of(config.tables)
    update = Update()
    flow = silver_flow(config)
    refill = flow is not None and selection.refills({flow, datasets.bronze})
    graph, registry, update.defined = _define(
        spark, config, libraries, base, schemas, dry=selection.dry_run, careful=careful, refill=refill
    )
    selection = selection.but_for(flow)
    update.leave_out({datasets.silver(route): why for route, why in update.defined.known_routes.failed.items()})
    tables = registry.tables()
    silver = {name for name, kind in update.defined.kinds.items() if kind == "silver"} - tables
    _check_names(selection, tables, update.defined.views)
    full = set() if selection.dry_run else _to_refill(selection, update.defined, config, store)
    full = {name for name in with_readers(full, registry.reads) if name in tables}
    # A sink runs in an update of everything only.
    rests = () if flow is not None and flow not in without else without
    chosen = _chosen(selection, tables, rests, full)
    before = {name: version_of(datasets.uri(name), store) for name in {*tables, *silver}}
    if not selection.dry_run:
        _adopt(
            spark,
            config,
            [n for n, version in before.items() if version >= 0 and n.lower() not in update.defined.there],
        )
    update.completed = chosen is None
    if chosen is not None:
        _listen(_started(spark, graph, config, selection, full, chosen), update, listen)
    if update.error is not None and not update.failed:
        _blame(update, tables)
    if not selection.dry_run:
        new = {name for name in update.defined.views if name.lower() not in update.defined.there}
        update.notes += keep_current(spark, config, update.defined.views, new=new)
        _count(update, datasets, store, before)
        update.behind = flow is not None and not selection.refresh and update.states.get(flow) in (None, "EXCLUDED")
    update.seconds = time.monotonic() - began
    return update


def _define(
    spark: SparkSession,
    config: Pipeline,
    libraries: Sequence[Library],
    base: Path,
    schemas: Schemas,
    *,
    dry: bool,
    careful: bool,
    refill: bool,
) -> tuple[str, _Registry, Defined]:
    """A new graph of our datasets and those of the user's files: its id, what was registered, what we know of ours."""
    datasets = Datasets.of(config)
    graph = create_dataflow_graph(
        spark, default_catalog=datasets.catalog, default_database=datasets.database, sql_conf={}
    )
    registry = _Registry(spark, graph)
    with (
        graph_element_registration_context(registry),
        add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None),
        block_session_mutations(),
    ):
        defined = register(config, base, spark, schemas=schemas, dry=dry, careful=careful, refill=refill)
        for library in libraries:
            load_library(library, spark, registry)
    return graph, registry, defined


def _started(
    spark: SparkSession,
    graph: str,
    config: Pipeline,
    selection: Selection,
    full: Collection[str],
    chosen: Sequence[str],
) -> Any:
    """The events of a run of the graph. `full`: what is refilled; `chosen`: what is brought up to date."""
    poll_often(spark, config)
    return start_run(
        spark,
        graph,
        full_refresh=sorted(full),
        full_refresh_all=selection.full_refresh_all,
        refresh=chosen,
        dry=selection.dry_run,
        storage=url(storage(config)),
    )


class _Registry(SparkConnectGraphElementRegistry):
    """Spark's own, and it remembers which datasets there are and what they read as a stream."""

    def __init__(self, spark: SparkSession, graph: str) -> None:
        super().__init__(spark, graph)
        self.reads: Reads = {}
        self._outputs: set[str] = set()
        self._in_sql: set[str] = set()

    def tables(self) -> set[str]:
        """All but views."""
        return self._outputs | self._in_sql

    def register_output(self, output: Output) -> None:
        super().register_output(output)
        if isinstance(output, Table):
            self._outputs.add(dataset_of(output.name))

    def register_flow(self, flow: Flow) -> None:
        def remembered() -> DataFrame:
            rows: Any = flow.func()
            streams = streams_in(rows._plan.plan(self._client))
            self.reads.setdefault(dataset_of(flow.target), set()).update(streams)
            return rows  # type: ignore[no-any-return]

        super().register_flow(replace(flow, func=remembered))

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        super().register_sql(sql_text, file_path)
        datasets = made_in_sql(sql_text)
        self._in_sql |= datasets.keys() - views_in_sql(sql_text)
        for name, streams in datasets.items():
            self.reads.setdefault(name, set()).update(streams)


def _check_names(selection: Selection, tables: Collection[str], views: Collection[str]) -> None:
    """Raises BadInput for a name that is no table of this pipeline."""
    for flag, names in (("--refresh", selection.refresh), ("--full-refresh", selection.full_refresh)):
        for name in names:
            if name in views:
                raise BadInput(detail=f"{flag} {name}: it is a view, computed when it is read; there is nothing to do")
            if name not in tables:
                raise BadInput(
                    detail=f"{flag} {name}: the pipeline has no such table. It has: {', '.join(sorted(tables))}"
                )


def _to_refill(selection: Selection, defined: Defined, config: Pipeline, store: Store) -> set[str]:
    """What is refreshed in full: what the user says, and silver tables that do not go with their checkpoints."""
    flows, bronze = Flows.of(config, store), Datasets.of(config).bronze
    full = set(selection.full_refresh)
    if selection.full_refresh_all:
        return full
    if bronze not in full and flows.torn([bronze]):
        raise BadInput(
            detail=f"table {flows.datasets.uri(bronze)} and its checkpoint below {flows.storage} do not go together: "
            "one of them was removed. Restore it, or read the source again from its beginning: --full-refresh "
            f"{bronze} (what the source does not have any more is lost then)"
        )
    silver = [name for name, kind in defined.kinds.items() if kind == "silver"]
    if flows.sink is not None:
        check_whole(flows, silver)
        return full
    return full | set(flows.torn(silver))


def _chosen(
    selection: Selection, tables: Collection[str], without: Collection[str], full: Collection[str]
) -> list[str] | None:
    """What Spark is to refresh; it takes an empty list for all, or for none beside a full refresh. None: nothing."""
    everything = not (selection.refresh or selection.full_refresh)
    if selection.full_refresh_all or (everything and not without and not full):
        return []
    asked_names = set(tables) if everything else set(selection.refresh)
    chosen = sorted(asked_names - set(without) - set(full))
    return chosen if chosen or full else None


def _adopt(spark: SparkSession, config: Pipeline, unknown: Collection[str]) -> None:
    """Tell Spark's catalog of tables that it does not know: a kill came between a table's first commit and its entry in
    the catalog, or the catalog was lost. Spark refuses to make a table in a folder that has one.

    A table of somebody else is left to that refusal.
    """
    datasets, store = Datasets.of(config), Store.of(config.tables)
    for name in sorted(unknown):
        try:
            table = Snapshot.open(datasets.uri(name), store)
            owner = None if table is None else table.owner
            ours = owner is not None and owner.pipeline == config.pipeline
            is_ours = table is not None and (ours or not table.addresses())
        except BaseException as e:
            contained(e)  # its flow says so
            continue
        if is_ours:
            enter(spark, datasets, [name])


def _blame(update: Update, names: Collection[str]) -> None:
    """A table that cannot be prepared ends the whole run: find it in what Spark says, so that the others can go on."""
    words = set(re.findall(r"\w+", update.error or ""))
    for name in sorted(words & set(names)):
        update.states[name] = "FAILED"
        update.reasons[name] = str(update.error)[:_REASON_CHARS]


def _listen(events: Iterator[Mapping[str, Any]], update: Update, listen: Listener) -> None:
    try:
        for message in events:
            if "pipeline_event_result" not in message:
                continue
            log_event = message["pipeline_event_result"].event
            event = read_event(log_event.message, log_event.timestamp.ToDatetime())
            update.hear(event)
            listen(event)
    except PySparkException as e:
        # With a Python source in the pipeline, Spark's client trips over an answer that comes after the end (4.2.0).
        if not update.completed:
            update.error = without_stack(e)


def _count(update: Update, datasets: Datasets, store: Store, before: Mapping[str, int]) -> None:
    for name, version in before.items():
        try:
            written = written_since(datasets.uri(name), version, store)
        except BaseException as e:
            # Of the user's own tables: Spark reads it all the same.
            update.notes.append(
                f"{name} cannot be read without Spark: {contained(e)[:200]}. A string that a Python type or function "
                "has made is stored with a collation: write .cast('string')"
            )
            continue
        if written.version >= 0:
            update.rows[name], update.versions[name] = written.rows, written.version
