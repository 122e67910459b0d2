"""What a pipeline wrote down as its own: its states, its streams, its tables."""

from __future__ import annotations

from urllib.parse import unquote

from distributary.config import Pipeline
from distributary.engine.changes.table_settings import history_of
from distributary.errors.border import TableFault
from distributary.running.bronze.bronze_table import hop_1_checkpoint
from distributary.running.named_tables import with_session
from distributary.state import layout_claim
from distributary.state.checkpoint import readable_stream_id
from distributary.state.cleaning import begun
from distributary.state.divisions import all_entries, parts
from distributary.state.ledger import Entry, totals
from distributary.tables.faults import reading
from distributary.tables.files import names_in
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import Store, join
from distributary.tables.table import Table


class CleaningBooks:
    """Read once, at the beginning. `config`: with the layout that its streams have followed, whatever the file says
    now: that is what made the tables."""

    def __init__(self, config: Pipeline) -> None:
        """Raises StoreUnreadable."""
        with_session(config)
        self.store = Store.of(config.tables)
        with reading(config.state_root):
            self.config = self._as_it_ran(config)
            self.intent = begun(config, self.store)
            self.parts = parts(self.config, self.store)
            self.owner = self._ledger_owner()
            self.entries = self._entries()
            self.hop_1 = readable_stream_id(hop_1_checkpoint(self.config), self.store)
            self.streams = self._streams()
            self.has_state = bool(self.names(self.config.state_root))
        self.made = {table for e in totals(self.entries).values() if e.created for table in self._tables_of(e)}
        self.made |= set(self.intent.tables)
        self.bronze_is_ours = self._has_our_bronze()

    def _as_it_ran(self, config: Pipeline) -> Pipeline:
        claims = (layout_claim.kept_layout(stream, self.store) for stream in parts(config, self.store))
        layout = next((name for name in claims if name is not None), None)
        return config if layout is None else config.model_copy(update={"layout": layout.split(" ")[0]})

    def _ledger_owner(self) -> Owner | None:
        if self.intent.pipeline is not None:
            return Owner(self.intent.pipeline, "")
        ledgers = (Table(stream.state_folder.ledger, self.store).open() for stream in self.parts)
        table = next((table for table in ledgers if table is not None), None)
        return None if table is None else table.owner

    def _entries(self) -> list[Entry]:
        """Of all the streams that the pipeline has had."""
        try:
            return all_entries(self.config, self.store)
        except TableFault:
            if self.intent.pipeline is not None:  # a clean-up died while it removed a ledger itself
                return []
            raise

    def _streams(self) -> set[str]:
        """Ids of this pipeline's streams, also of one that died in its first batch."""
        stream_ids = {e.stream for e in self.entries} | self.intent.streams
        for stream in self.parts:
            stream_ids |= set(self.names(stream.state_folder.plans))
            # Those of Spark's sink, also one that died in its first batch.
            stream_ids |= {unquote(name) for name in self.names(stream.state_folder.sink)}
            if self.config.checkpoint is None and (own_id := readable_stream_id(stream.checkpoint_path, self.store)):
                stream_ids.add(own_id)
        if self.hop_1 is not None and self._writes_bronze(self.hop_1):
            stream_ids.add(self.hop_1)
        return stream_ids

    def _writes_bronze(self, stream: str) -> bool:
        if self.config.checkpoint is None:
            return True
        table = Table(self.config.bronze_path, self.store).open()
        return table is not None and table.newest(stream) >= 0

    def _has_our_bronze(self) -> bool:
        """A declarative pipeline counts in its bronze, and its ledger names it by the table's own id."""
        if not self.config.is_declarative:
            return False
        from distributary.declarative.datasets import Datasets

        datasets = Datasets.of(self.config)
        table = self._open(datasets.uri(datasets.bronze))
        return table is not None and table.id in self.streams

    # -- tables --------------------------------------------------------------------------------------------

    def tables(self) -> list[tuple[str, str | None]]:
        """(path, route) of what may be ours: tables in the ledger, bronze, tables that an interrupted clean-up had
        begun to remove, and tables below the root that name this pipeline: a first batch that died has made tables
        without having come to the ledger. A table of all routes has none."""
        config = self.config
        routes = dict(self.intent.tables)
        for entry in totals(self.entries).values():
            for path in self._tables_of(entry):
                if path:
                    routes[path] = None if path == config.wide_path else entry.route
        root = config.tables.root
        for path in (config.bronze_path, *(join(root, name) for name in self.names(root))):
            if path not in routes and (owner := self.owner_of(path)) and owner.pipeline == config.pipeline:
                routes[path] = owner.route or None
        return sorted(routes.items())

    def _tables_of(self, entry: Entry) -> tuple[str | None, ...]:
        return entry.table, entry.merged, history_of(self.config, entry.about, entry.table)

    def owner_of(self, path: str) -> Owner | None:
        table = self._open(path)
        return None if table is None else table.owner

    def _open(self, path: str) -> Snapshot | None:
        try:
            return Table(path, self.store).open()
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """As `names_in`."""
        return names_in(folder, self.store)
