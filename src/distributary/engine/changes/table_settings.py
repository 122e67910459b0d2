"""Settings of the tables, by route: their names, keys, rules. One small value that ships to tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from distributary.changes.debezium.heads import PLAIN, Form
from distributary.changes.debezium.source_table import table_of
from distributary.changes.model import CHANGE, Kind, Reading, SourceTable
from distributary.changes.sequence import OrderSettings
from distributary.config import Pipeline, Tables
from distributary.config.quantities import milliseconds
from distributary.config.writing import RouteOverride
from distributary.names import name_beside, pattern_name, table_name
from distributary.tables.engines import policy_of
from distributary.tables.evolve import Policy
from distributary.tables.merge_rows import MergeRules
from distributary.tables.store import join


@dataclass(frozen=True)
class Named:
    """The tables of a pipeline of change files."""

    of_files: ClassVar = True
    """Do events come in files, which may be others when a batch is attempted again?"""

    tables: Tables
    epochs: tuple[str, ...] = ()
    restart_margin: float = 7200.0
    has_unchanged: bool = False
    """May an event's schema key name columns of which it does not speak?"""

    @classmethod
    def of(cls, config: Pipeline) -> Named:
        source = config.change_files
        return cls(
            config.tables.for_tasks, tuple(source.epochs), source.restart_margin, source.written_by == "debezium"
        )

    def takes(self, route: str) -> bool:
        """Are the rows of this route events?"""
        return True

    def table(self, route: str) -> str | None:
        """Address of the table that stands for the route, where that is not the one of `tables.name`."""
        return None

    @property
    def keeps(self) -> bool:
        """Does an update leave a column alone that the source has lost? Then it is to be known what each schema has."""
        return self.tables.dropped_columns == "keep"

    def log(self, source: SourceTable) -> str | None:
        """Address of the log table; None where there is none."""
        return self._at(self.tables.log, self.own(source.route).log, source)

    def merged(self, source: SourceTable) -> str | None:
        """Address of the merged table; None where there is none."""
        return self._at(self.tables.merged, self.own(source.route).merged, source)

    def history(self, source: SourceTable) -> str | None:
        """Address of the history table; None where there is none."""
        return self._at(self.tables.history, self.own(source.route).history, source)

    def all_of(self, source: SourceTable) -> list[str]:
        """Addresses of all tables of a source table."""
        addresses = (self.log(source), self.merged(source), self.history(source))
        return [uri for uri in addresses if uri is not None]

    def table_name(self, pattern: str, source: SourceTable) -> str:
        return pattern_name(pattern, source.database, source.schema, source.table)

    def _at(self, pattern: str | None, name: str | None, source: SourceTable) -> str | None:
        return None if pattern is None else join(self.tables.root, name or self.table_name(pattern, source))

    def own(self, route: str) -> RouteOverride:
        return self.tables.routes.get(route) or RouteOverride()

    def keys(self, source: SourceTable, named_keys: tuple[str, ...]) -> tuple[str, ...]:
        """The key columns: those of the settings, else those that the events name."""
        configured = self.own(source.route).keys
        return named_keys if configured is None else tuple(configured)

    def policy(self, route: str) -> Policy:
        return policy_of(self.tables, route)

    def order(self, source: SourceTable) -> OrderSettings:
        table_config = self.own(source.route)
        epochs = self.epochs if table_config.epochs is None else table_config.epochs
        return OrderSettings(
            tuple((milliseconds(time), n) for n, time in enumerate(sorted(epochs), start=1)),
            tuple(sorted(milliseconds(time) for time in table_config.repair_backfills)),
            source.kind.value,
            round(self.restart_margin * 1000),
        )

    def rules(self, source: SourceTable, purged_until: int | None) -> MergeRules:
        tables = self.tables
        return MergeRules(
            keep_deleted_values=tables.deleted_values == "keep",
            dropped_columns=tables.dropped_columns,
            toast_columns=tuple(self.own(source.route).toast_columns),
            purged_until=purged_until,
            settled=None if self.log(source) is None else frozenset(),
            task_rows=tables.merge_engine_rows,
            on_read=tables.merge == "merge_on_read",
            beside=tables.tombstones == "beside",
            has_unchanged=self.has_unchanged,
            order=self.order(source),
        )


@dataclass(frozen=True)
class MessageNames(Named):
    """The tables of messages with keys: a route's own table is its merged one. `names`, `logs`: of routes whose table,
    or log, is not called what the pipeline file says. A history is called as the log is."""

    names: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    of_files: ClassVar = False

    def takes(self, route: str) -> bool:
        return bool(self.tables.keys_of(route))

    def log(self, source: SourceTable) -> str | None:
        pattern = self.tables.message_log
        return None if pattern is None else join(self.tables.root, self._log_name(source.route, pattern))

    def _log_name(self, route: str, pattern: str) -> str:
        return self.logs.get(route) or table_name(route, pattern)

    def merged(self, source: SourceTable) -> str | None:
        return join(self.tables.root, self.names.get(source.route) or self.tables.table_name(source.route))

    def history(self, source: SourceTable) -> str | None:
        pattern, log = self.tables.history, self.tables.message_log
        if pattern is None or log is None:
            return None
        name = name_beside(source.route, pattern, self._log_name(source.route, log), log)
        return join(self.tables.root, name)

    def keys(self, source: SourceTable, named_keys: tuple[str, ...]) -> tuple[str, ...]:
        return named_keys

    def order(self, source: SourceTable) -> OrderSettings:
        return OrderSettings(kind=source.kind.value, metadata=CHANGE)


@dataclass(frozen=True)
class DebeziumNames(Named):
    """The tables of topics of Debezium, or of others (`changes.dialects`). `form`: of their messages. A route is its
    source table's names, and gives them back (`table_of`), so that who knows only the route calls its tables as who
    knows the table does."""

    form: Form = PLAIN
    dialect: str | None = None
    of_files: ClassVar = False

    def log(self, source: SourceTable) -> str | None:
        return super().log(table_of(source.route))

    def merged(self, source: SourceTable) -> str | None:
        return super().merged(table_of(source.route))

    def history(self, source: SourceTable) -> str | None:
        return super().history(table_of(source.route))

    def table(self, route: str) -> str | None:
        source = table_of(route)
        return self.log(source) or self.merged(source)

    def rules(self, source: SourceTable, purged_until: int | None) -> MergeRules:
        return replace(super().rules(source, purged_until), has_unchanged=True)


def source_of(about: str) -> SourceTable:
    """The source table of which a ledger entry speaks (`Entry.about`)."""
    kind, database, schema, table = json.loads(about)["source"]
    return SourceTable(Kind(kind), database, schema, table)


def named_of(
    config: Pipeline, names: Mapping[str, str] | None = None, logs: Mapping[str, str] | None = None
) -> Named | None:
    """The tables of routes whose rows are events; None where there are no such. `names`, `logs`: as `MessageNames` has
    them."""
    if config.holds_changes:
        return Named.of(config)
    if config.envelope.is_debezium:
        return DebeziumNames(config.tables.for_tasks, form=form_of(config), dialect=config.envelope.dialect)
    return MessageNames(config.tables.for_tasks, names=names or {}, logs=logs or {}) if config.tables.has_keys else None


def history_of(config: Pipeline, about: str | None, log: str | None) -> str | None:
    """Address of the history of the route of a ledger entry (`Entry.about`); None where there is none. `log`: the
    address of its log (`Entry.table`)."""
    if config.tables.history is None or about is None:
        return None
    source = source_of(about)
    logs = {} if log is None else {source.route: log.rpartition("/")[2]}
    if (named := named_of(config, logs=logs)) is None:
        return None
    return named.history(source) if named.takes(source.route) else None


def form_of(config: Pipeline) -> Form:
    """How the messages of a pipeline of Debezium's topics are made."""
    envelope = config.envelope
    return Form(envelope.flattened, envelope.order == "offset", envelope.placeholder)


def reading_of(config: Pipeline) -> Reading:
    """How the files of a pipeline are read."""
    source = config.change_files
    return Reading(
        kind=None if source.kind == "auto" else Kind(source.kind),
        written_by=source.written_by,
        format=source.format,
        columns=dict(source.columns),
        out_of_range=source.out_of_range,
        wide_decimals=source.wide_decimals,
        json_bytes=source.json_bytes,
        text_bytes=source.text_bytes,
        json_numbers=source.json_numbers,
        max_unpacked_bytes=source.max_unpacked_bytes,
        csv_null=source.csv[0],
        csv_delimiter=source.csv[1],
    )
