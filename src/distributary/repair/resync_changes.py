"""A merged table and its history, built anew from their log beside the old ones, each put in its place in one commit.

Others may run meanwhile: readers see the old rows until the commit, and what a run merges in between is merged into the
new rows too, before they take over. A rebuild that dies has changed nothing; repeat it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from distributary.changes.model import Kind, metadata_in
from distributary.changes.reduce import reduce_rows
from distributary.config import Pipeline
from distributary.engine.changes.emptying import all_truncates, remembering, without_truncates
from distributary.engine.changes.gather import Gathered, by_share
from distributary.engine.changes.key_columns import (
    NEWEST,
    key_columns,
    key_types,
    newest_key_columns,
    whole,
    with_types,
)
from distributary.engine.changes.key_shares import key_shares
from distributary.engine.changes.keyed_table import absent
from distributary.engine.changes.ledger_fields import MergeBacklog, about, ledger_fields
from distributary.engine.changes.log_append import payload_schema
from distributary.engine.changes.log_rows import log_rows
from distributary.engine.changes.merging import of_one_log
from distributary.engine.changes.orphans import resolve, split
from distributary.engine.changes.table_settings import Named, named_of
from distributary.engine.changes.task_spec import ORIGIN
from distributary.engine.outcomes import Merge, Outcome, SourceEvents
from distributary.errors import BadInput, StoreDown
from distributary.names import shown
from distributary.state.cleaning import check_not_begun
from distributary.state.ledger import RESYNC, Entry, Ledger, read_entries, totals
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.engines import for_rewrites, spark_needed
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import CommitConflict, reading, writing
from distributary.tables.files import TableFiles, file_names
from distributary.tables.history_rows import as_columns
from distributary.tables.history_table import history_files
from distributary.tables.merge_rows import as_merged
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tombstones import (
    BESIDE,
    IN_TABLE,
    PROPERTY,
    are_beside,
    columns_beside,
    living_and_dead,
    place_of,
)

SWAPS = 20
"""How often a rebuild lets a run merge in between before it gives up."""


@dataclass
class LogRebuilt:
    """What a rebuild did. `rows`: of the merged table now, tombstones among them. `added`: keys that it did not have
    before. `caught_up`: how often a run had merged meanwhile. `dead`: of tombstones that lie beside. `versions`: of the
    history, where there is one."""

    route: str
    table: str
    rows: int = 0
    events: int = 0
    passes: int = 0
    caught_up: int = 0
    unknown: int = 0
    files: list[DataFile] = field(default_factory=list)
    dead: list[DataFile] = field(default_factory=list)
    versions: int = 0
    history: list[DataFile] = field(default_factory=list)


def known_route(config: Pipeline, route: str) -> MergeBacklog:
    """Source table and keys of a route that the ledger knows; keys of the pipeline file come first.

    Raises BadInput for a route without a key, or one that nobody has seen.
    """
    store = Store.of(config.tables)
    with reading(config.state_root):
        sums = totals(read_entries(config.state_root, store))
    ledger_fields_found = about(sums[route]) if route in sums else None
    if ledger_fields_found is None:
        known_names = ", ".join(sorted(r for r in sums if r)) or "none yet"
        raise BadInput(detail=f"no events of {route!r} have come; known source tables: {known_names}")
    named = _named(config, {})
    if not named.takes(route):
        raise BadInput(detail=f"{route} has no keys (tables.keys): its table has every message, and is not made anew")
    keys = named.keys(ledger_fields_found.source, ledger_fields_found.keys)
    if not keys:
        raise BadInput(detail=f"{route} has no key, so it has no merged table; give tables.routes.{route}.keys")
    return MergeBacklog(ledger_fields_found.source, keys, ledger_fields_found.brought)


def _named(config: Pipeline, newest: Mapping[str | None, Entry]) -> Named:
    """The pipeline's tables, each called what it was called when it was made."""
    merged = {route: e for route, e in newest.items() if route is not None and e.merged}
    names = {route: str(e.merged).rpartition("/")[2] for route, e in merged.items()}
    logs = {route: e.table.rpartition("/")[2] for route, e in merged.items() if e.table and e.table != e.merged}
    named_tables = named_of(config, names, logs)
    if named_tables is None:
        raise BadInput(detail="its tables have every message: nothing is merged there, and nothing made anew")
    return named_tables


def rebuild(config: Pipeline, route: str, behind: MergeBacklog) -> LogRebuilt:
    """Rebuild the merged table of `route`, and its history, from the log, by the keys of `behind`; enters it into the
    ledger.

    Raises BadInput (no log, or a table that Spark must write), LogBegunAnew, CleanUnfinished, StateNewer, StoreDown.
    """
    store = Store.of(config.tables)
    with writing(config.tables.root):
        check_not_begun(config, store)
        ledger = Ledger(config.state_root, config.pipeline, store)
        named = _named(config, ledger.newest)
        with of_one_log(route, str(named.merged(behind.source))):
            build = _Rebuild(config, named, ledger, route, behind)
            built = build.run()
        # In the ledger it is one entry of its own: a table that was parked, for its keys, is not any more.
        stream = f"{RESYNC}{uuid.uuid4()}"
        log = named.log(behind.source)
        events = SourceEvents(behind.source, build.keys, brought=dict(behind.brought), keeps=bool(behind.brought))
        table_fields = ledger_fields(Outcome(route, log or "", merge=Merge(built.table, "merged"), events=events))
        entries = [
            Entry(stream, 0, route, table=log, state="merged", batches=0, **table_fields),
            Entry(stream, 0, None, batches=0),
        ]
        ledger.record(stream, 0, entries, {"rebuilt": built.rows})
        return built


class _Rebuild:
    def __init__(self, config: Pipeline, named: Named, ledger: Ledger, route: str, behind: MergeBacklog) -> None:
        self.named, self.source = named, behind.source
        self.config, self.ledger, self.store, self.route = config, ledger, ledger.store, route
        self.keys, self.brought = behind.keys, behind.brought
        log, merged = named.log(behind.source), named.merged(behind.source)
        if log is None or merged is None:
            raise BadInput(detail=f"{route}: a rebuild needs both tables; set tables.log and tables.merged")
        self.log_uri, self.uri, self.history_uri = log, merged, named.history(behind.source)
        self.rules = named.rules(behind.source, None)
        self.owner = Owner(config.pipeline, route, behind.keys)
        self.report = LogRebuilt(route, merged)

    def run(self) -> LogRebuilt:
        for attempt in range(SWAPS):
            # The log last: it first has each batch, so it holds all that the others do.
            tables = {uri: Table(uri, self.store, self.owner).open() for uri in (self.history_uri, self.uri) if uri}
            beside = self.beside.open() if self.rules.beside else None
            log, table = Table(self.log_uri, self.store, self.owner).open(), tables[self.uri]
            if log is None:
                raise BadInput(detail=f"{self.route}: there is no log table at {self.log_uri}")
            for uri, snapshot in tables.items():
                if snapshot is not None and (why := spark_needed(snapshot)):
                    raise BadInput(detail=f"{uri}: it needs Spark's own writer ({why}), which a rebuild does not use")
            schema = log.schema
            self.keys = key_columns(schema.names, self._keys_now(log))
            self.types = key_types(schema, self.keys)
            self.owner = replace(self.owner, keys=self.keys)
            self._build(log, schema)
            if self._commit(tables, beside, self._mark(log, table)):
                return self.report
            self.report.caught_up = attempt + 1
        raise StoreDown(
            path=self.uri, detail=f"a run has merged into it {SWAPS} times meanwhile; raise tables.merge_every"
        )

    @property
    def beside(self) -> Table:
        """The table of tombstones, where these are not to lie in the merged one."""
        return place_of(Table(self.uri, self.store, self.owner))

    def _keys_now(self, log: Snapshot) -> tuple[str, ...]:
        """The key by the settings, else as the newest event names it: a late file may still name the one before."""
        if self.source.kind is Kind.MESSAGES or self.named.own(self.route).keys is not None:
            return self.keys
        return newest_key_columns(TableFiles(log).read_all(NEWEST)) or self.keys

    def _commit(self, tables: Mapping[str, Snapshot | None], beside: Snapshot | None, txn: Txn) -> bool:
        """The history first: what a run takes in twice changes nothing there."""
        schema = self._schema()
        if self.history_uri is not None:
            versions = as_columns(schema, self.keys)
            if not self._replaced(self.history_uri, tables[self.history_uri], versions, self.report.history, txn):
                return False
        merged = as_merged(schema.empty_table(), self.keys, self.rules).schema
        if self.rules.beside and not self._beside(beside, merged, txn):
            return False
        return self._replaced(self.uri, tables[self.uri], merged, self.report.files, txn)

    def _beside(self, before: Snapshot | None, merged: pa.Schema, txn: Txn) -> bool:
        """The tombstones in place of those `before`, which the log's rows say: before the table, as by each merge."""
        columns = columns_beside(merged, self.keys, metadata_in(merged.names))
        if before is not None:
            return self.beside.replace_all(before, columns, self.report.dead, txn)
        try:
            self.beside.commit(None, evolve(None, [columns], Policy()), self.report.dead, txn)
        except CommitConflict:
            return False
        return True

    def _replaced(
        self, uri: str, table: Snapshot | None, schema: pa.Schema, files: Sequence[DataFile], txn: Txn
    ) -> bool:
        # What the log's TRUNCATEs are to later events: of a history each, of the merged table the newest.
        truncates = all_truncates(None, self._came, self.rules.order)
        target = Table.of_route(uri, self.store, self.owner, self.config.tables)
        if uri == self.history_uri:
            target = replace(target, properties=for_rewrites(target.properties))
        target = remembering(target, truncates if uri == self.history_uri else truncates.newest())
        if uri == self.uri and (self.rules.beside or (table is not None and are_beside(table))):
            place = BESIDE if self.rules.beside else IN_TABLE
            target = replace(target, remembers={**target.remembers, PROPERTY: place})
        if table is not None:
            return target.replace_all(table, schema, files, txn)
        try:
            target.commit(None, evolve(None, [schema], Policy()), files, txn)
        except CommitConflict:
            return False
        return True

    def _mark(self, log: Snapshot, table: Snapshot | None) -> Txn:
        """The newest batch of the log that the rebuilt rows hold: a run goes on merging after it."""
        stream = self.ledger.stream or "resync"
        newest_merged = -1 if table is None else table.newest(stream)
        return Txn(stream, max(log.newest(stream), newest_merged, 0))

    # -- building ------------------------------------------------------------------------------------------

    def _build(self, log: Snapshot, schema: pa.Schema) -> None:
        """The newest row of each key, and its history, as data files that no commit names yet."""
        names = file_names(log)
        shares = key_shares(self.log_uri, names, self.keys, self.types, self.store)
        self._columns = schema
        report = replace(self.report, rows=0, events=0, passes=shares.count, files=[], versions=0, history=[], dead=[])
        orphans: list[pa.Table] = []
        self._came: list[pa.Array] = []
        resolved: pa.Table | None = None
        for share in by_share(self._keyed(names, schema, orphans, report), shares):
            every = self.rules.is_partial or self.history_uri is not None
            gathered = Gathered(self.keys, order := self.rules.order, keeps_all=every)
            for piece in share.pieces:
                gathered.add(piece)
            newest_rows = gathered.rows()
            if newest_rows is None:
                continue
            if orphans and resolved is None:
                # For all shares: who has the row may be in another one, or have been beaten. The log has it.
                resolved, unknown = resolve(pa.concat_tables(orphans), newest_rows, self.keys, [log])
                report.unknown = unknown.num_rows
            if resolved is not None:
                newest_rows = pa.concat_tables([newest_rows, shares.of(resolved, share.number)])
            newest_rows, truncates = newest_rows.drop_columns([ORIGIN]), all_truncates(None, self._came, order)
            if self.history_uri is not None:
                self._add_history(self.history_uri, truncates.ended(newest_rows, self.keys), report)
            rows = self._reduced(truncates.emptied(newest_rows, self.keys))
            if rows.num_rows:
                rows = as_merged(rows, self.keys, self.rules)
                report.rows += rows.num_rows
                self._add(rows, report)
        self.report = report

    def _add(self, rows: pa.Table, report: LogRebuilt) -> None:
        if self.rules.beside:
            rows, dead = living_and_dead(rows, self.keys, metadata_in(rows.column_names))
            if dead.num_rows:
                report.dead.append(write_data_file(self.beside.uri, dead, self.store))
        if rows.num_rows:
            report.files.append(write_data_file(self.uri, rows, self.store))

    def _add_history(self, uri: str, rows: pa.Table, report: LogRebuilt) -> None:
        gaps = self.rules.gaps(absent(rows, self.brought))
        files = history_files(uri, self.store, rows, self.keys, self.rules.order, gaps)
        report.history += files
        report.versions += sum(file.rows for file in files)

    def _keyed(
        self, names: Sequence[str], schema: pa.Schema, orphans: list[pa.Table], report: LogRebuilt
    ) -> Iterator[pa.Table]:
        """The log's rows that have a key; the others go to `orphans`."""
        for piece in without_truncates(log_rows(self.log_uri, names, self.store, schema), self._came):
            report.events += piece.num_rows
            rows, lost = split(whole(piece, self.types), self.keys)
            if lost.num_rows:
                orphans.append(lost)
            yield rows

    def _reduced(self, rows: pa.Table) -> pa.Table:
        gaps = self.rules.gaps(absent(rows, self.brought))
        return reduce_rows(rows, self.keys, self.rules.order, gaps).rows

    def _schema(self) -> pa.Schema:
        columns = with_types(payload_schema(self._columns), self.types)
        return pa.schema([f for f in columns if f.name != ORIGIN])


def in_words(rebuilt: LogRebuilt, keys: Sequence[str]) -> list[str]:
    """What was made anew, in lines."""
    by = ", ".join(map(shown, keys))
    lines = [f"{rebuilt.table}: {rebuilt.rows:,} rows from {rebuilt.events:,} events of its log, by {by}"]
    return [*lines, *([f"its history: {rebuilt.versions:,} versions"] if rebuilt.history else [])]
