"""Keys that say what is written: tables, their evolution, the quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, PrivateAttr, SecretStr, StringConstraints, field_validator, model_validator

from distributary.config.addresses import Folder
from distributary.config.base import Model, fault
from distributary.config.describing import Describing, Description, Pattern, description_of
from distributary.config.evolution import Evolution, EvolutionOverride
from distributary.config.places import BY_NAME
from distributary.config.quantities import Database, Distinct, Duration, Text, Time
from distributary.config.shaping import Expectation, SelectList
from distributary.config.unity import Unity
from distributary.names import check_pattern, check_template, table_name

Place: TypeAlias = tuple[str, Literal["PATH_READ", "PATH_READ_WRITE"] | None]
"""A folder, and what credentials for it must allow, as Unity Catalog calls it."""
Engine: TypeAlias = Literal["auto", "task", "spark"]

DAY_SEC = 86400.0
SHORTEST_RETENTION_SEC = 3 * DAY_SEC
"""Late files can come for so long (data-integrations/datastream-delta-plugins, DATASTREAM_SLA)."""

TableName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]{0,199}$")]


class RouteOverride(Describing):
    CHANGE_KEYS: ClassVar = ("epochs", "repair_backfills", "toast_columns", "log", "merged", "view", "history")
    """Keys that mean something for change files only."""

    engine: Engine | None = Field(default=None, description="The engine of this route's table.")
    name: TableName | None = Field(
        default=None, description="The name of this route's table, in place of what tables.name makes of it."
    )
    evolution: EvolutionOverride | None = Field(
        default=None, description="What a change of schema does to this route's table."
    )
    expectations: list[Expectation] | None = Field(default=None, description="In place of tables.expectations.")
    select: SelectList | None = Field(default=None, description="In place of tables.select.")
    function: Text | None = Field(default=None, description="In place of tables.function.")
    keys: Distinct | None = Field(
        default=None,
        description="Messages: in place of tables.keys; `[]`: this route's table gets every message. Change files: the "
        "key columns, in place of those that the events name.",
    )
    newest_by: Text | None = Field(default=None, description="Messages: in place of tables.newest_by.")
    epochs: list[Time] | None = Field(default=None, description="Change files: in place of source.epochs.")
    repair_backfills: list[Time] = Field(
        default=[],
        description="Change files: start times of backfills that were made because changes had been missed. Their rows "
        "beat older changes.",
    )
    toast_columns: list[Text] = Field(
        default=[],
        description="Change files: columns whose null in an update means `unchanged` (PostgreSQL, unchanged TOAST).",
    )
    log: TableName | None = Field(
        default=None,
        description="Change files: the name of this route's log table, in place of what tables.log makes of it. For "
        "source tables that would share one, such as `Case` and `CASE`; to be given before the route's first run.",
    )
    merged: TableName | None = Field(default=None, description="Change files: the same for its merged table.")
    view: TableName | None = Field(default=None, description="Change files: the same for its view.")
    history: TableName | None = Field(default=None, description="Change files: the same for its history table.")


class Tables(Describing):
    CHANGE_KEYS: ClassVar = (
        "merged",
        "view",
        "history",
        "merge_every",
        "metadata_columns",
        "tombstone_retention",
        "deleted_values",
        "dropped_columns",
        "merge_engine_rows",
        *("merge", "tombstones"),
    )
    """Keys that mean something for change files only."""

    root: Folder = Field(description="Folder of the tables; each table is a folder below it.")
    name: Text = Field(
        default="{route}",
        description="Table name; must hold {route} once, which is written in words: `acme.OrderPlaced` as "
        "`acme_order_placed`. The rest: a-z, 0-9, _. Other rules: `{route|lower}`, `{route|last}` (what follows the "
        "last dot), `{route|snake}`, `{route|exact}`, or several, `{route|last|snake}`. See docs/routes.md.",
    )
    engine: Engine = Field(
        default="auto",
        description="`task`: written inside Spark's tasks by delta-rs. `spark`: by Spark's Delta writer, a job each. "
        "`auto`: task, and spark for tables whose protocol needs it.",
    )
    evolution: Evolution = Field(default=Evolution(), description="What a change of schema does to a table.")
    include: list[Text] = Field(
        default=[],
        description="Routes that are written, by patterns with `*`, `?` and `[ab]`; the rows of others are counted as "
        "excluded and left out. Without it all routes.",
    )
    exclude: list[Text] = Field(
        default=[], description="Routes that are left out and counted, by the same patterns; stronger than include."
    )
    routes: dict[str, RouteOverride] = Field(
        default={}, description="Settings of single routes, by the route as it is sent."
    )
    origin: bool = Field(
        default=True, description="Each table gets one struct column that tells where a row came from."
    )
    written_at: bool = Field(
        default=False,
        description="`_origin.written_at` says when a row was written, for readers that take what is new. Messages "
        "without keys only, with evolution.new_column add.",
    )
    expectations: list[Expectation] = Field(default=[], description="What a row should be. See docs/declarative.md.")
    select: SelectList | None = Field(
        default=None,
        description="The columns that are written, in SQL: `*` is all fields, `upper(user_name) AS player` one more.",
    )
    function: Text | None = Field(
        default=None,
        description="With `layout: declarative`, a Python function of DataFrame to DataFrame over each silver table: "
        "`own.py:name`. The path counts from the pipeline file's folder.",
    )
    keys: Distinct = Field(
        default=[],
        description="Messages: the columns by which rows are told apart. Each table then holds the newest message of "
        "each key, not every message. See docs/upserts.md.",
    )
    newest_by: Text | None = Field(
        default=None,
        description="Messages with keys: the column that says which message is the newer one, as `updated_at`; or "
        "`_origin.timestamp`, the record's own time. Without it the record's offset, which is right where a key stays "
        "in one partition.",
    )
    database: Database | None = Field(default=None, description="Register the tables here by name: `db`, `catalog.db`.")
    managed: bool = Field(
        default=False,
        description="The tables are the catalog's own: made in `database`, written and found by their names only, by "
        "engine `spark`. Instead of root. See docs/unity.md.",
    )
    storage_options: dict[str, SecretStr] = Field(
        default={}, description="Settings and credentials of the store for the task engine, as delta-rs names them."
    )
    unity: Unity | None = Field(
        default=None,
        description="Unity Catalog, which gives the task engine credentials for the folders of this pipeline, for a "
        "while each. See docs/unity.md.",
    )
    patterns: list[Pattern] = Field(
        default=[],
        description="Comments, properties and columns to partition or cluster by, of all routes that match. Later ones "
        "go before earlier ones, and a route's own settings before all.",
    )
    max_new_tables: int = Field(
        default=5_000,
        ge=1,
        description="The most tables that one batch makes. Rows of further new routes are quarantined (reason "
        "TOO_MANY_ROUTES) and come in by `distributary replay`, which makes up to as many.",
    )
    retry_after: Duration = Field(
        default=60.0,
        description="First retry of a parked table; the wait doubles with each, up to 1 hour. At least 1 ms.",
    )
    log: Text | None = Field(
        default="{database}_{schema}_{table}_log",
        description="Change files: name of a source table's log table, which gets every event as it came. Empty parts "
        "go with their underscore. `null`: no log tables. Messages with keys: `{route}_log` keeps every message beside "
        "the newest of each key; without `{route}` in it there is no log.",
    )
    merged: Text | None = Field(
        default="{database}_{schema}_{table}",
        description="Change files: name of a source table's merged table, with the newest row of each key. `null`: "
        "no merged tables.",
    )
    history: Text | None = Field(
        default=None,
        description="Change files: name of a source table's history table, with every version of each row and from "
        "when to when it held: `{database}_{table}_history`. Messages with keys: `{route}_history`. It needs `log`.",
    )
    view: Text | None = Field(
        default=None,
        description="Change files: name of a view of the merged table's living rows (`WHERE NOT _deleted`), beside the "
        "tables in `database`.",
    )
    merge_every: Duration = Field(
        default=0.0,
        description="Change files: how often events are merged; the log gets them in every batch. 0: in every batch.",
    )
    metadata_columns: bool = Field(
        default=False,
        description="Change files: also write `datastream_metadata_source_timestamp` and the like as columns of their "
        "own, as the Scala connector does.",
    )
    tombstone_retention: Duration = Field(
        default=7 * DAY_SEC,
        description="Change files: how long (source time) a deleted key is remembered, so that a late older event "
        "cannot bring it back. At least 3 days; `distributary maintain` removes older ones. Messages: only where it "
        "is given; without it, deleted keys are remembered for good.",
    )
    deleted_values: Literal["keep", "null"] = Field(
        default="null",
        description="Change files, messages with keys: what a deleted row's other columns hold until it is removed.",
    )
    dropped_columns: Literal["null", "keep"] = Field(
        default="null",
        description="Change files: what an update does to a column that the source lost: null, or the old value.",
    )
    merge: Literal["copy_on_write", "merge_on_read"] = Field(
        default="copy_on_write",
        description="A merge writes files anew, or marks rows in deletion vectors (docs/merge-on-read.md).",
    )
    tombstones: Literal["in_table", "beside"] = Field(
        default="in_table", description="Where a deleted key is remembered: in the merged table, or in one beside it."
    )
    merge_engine_rows: int | None = Field(
        default=None,
        ge=1,
        description="Change files: the most rows, in those files of a merged table that may hold a key of the batch, "
        "that a task merges; with more, Spark does. Without it: 20 million. Also for messages with keys.",
    )

    _places: tuple[Place, ...] = PrivateAttr(default=())

    @property
    def places(self) -> tuple[Place, ...]:
        """Folders that credentials are asked for, and what they are needed for."""
        return self._places if self.managed else ((self.root, "PATH_READ_WRITE"), *self._places)

    def with_places(self, others: Iterable[Place]) -> None:
        """`others`: those besides `root`, for the pipeline as a whole knows them."""
        self._places = tuple(others)

    @property
    def for_tasks(self) -> Self:
        """Without the catalog's token: the driver asks for credentials, and hands them over with the store."""
        return self if self.unity is None else self.model_copy(update={"unity": None})

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        """The catalog's schema stands for the folder that managed tables do not have."""
        if isinstance(data, dict) and data.get("managed") is True and "root" not in data:
            return {**data, "root": f"{BY_NAME}{data.get('database') or 'unknown'}"}
        return data

    @field_validator("name")
    @classmethod
    def _check_name(cls, template: str) -> str:
        check_template(template)
        return template

    @field_validator("log", "history")
    @classmethod
    def _check_log(cls, pattern: str | None) -> str | None:
        if pattern is not None and "{route" in pattern:
            check_template(pattern)
            return pattern
        return cls._check_pattern(pattern)

    @field_validator("merged", "view")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            check_pattern(pattern)
        return pattern

    @field_validator("tombstone_retention")
    @classmethod
    def _check_retention(cls, seconds: float) -> float:
        if seconds < SHORTEST_RETENTION_SEC:
            raise ValueError("allowed: 3 days or more; late files can come for so long")
        return seconds

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        patterns = [p for p in (self.log, self.merged, self.view, self.history) if p is not None]
        if self.log is None and self.merged is None:
            raise fault("merged", "log and merged are both null; at least one of them must be written")
        if self.merge_every and self.log is None:
            raise fault(
                "merge_every", "events wait in the log table for their merge: it needs tables.log; now it is null"
            )
        named = [table.name for table in self.routes.values() if table.name is not None]
        if len(set(named)) < len(named):
            raise fault("routes", f"two routes cannot have one table: {max(named, key=named.count)!r}")
        if len(set(patterns)) < len(patterns):
            raise fault("log", "log, merged, history and view need different names")
        if self.unity is not None and self.unity.names:
            if self.database is None or self.database.count(".") != 1:
                raise fault("database", "tables.unity.names needs the catalog and the schema, as in main.silver")
            if self.view is not None:
                raise fault("view", "not allowed with tables.unity.names: a view is made by Spark")
        if self.view is not None and (self.database is None or self.merged is None):
            raise fault("view", "a view needs tables.database to be in and tables.merged to read")
        return self

    @model_validator(mode="after")
    def _check_widening(self) -> Self:
        for route in (None, *self.routes):
            engine, evolution = self.for_route(route) if route is not None else (self.engine, self.evolution)
            if evolution.type_change == "type_widening" and engine == "task":
                key = "evolution.type_change" if route is None else f"routes.{route}.evolution.type_change"
                raise fault(key, "type_widening is Spark's: it needs engine auto or spark; widen needs no Spark")
        return self

    @field_validator("root")
    @classmethod
    def _strip_root(cls, root: str) -> str:
        return root.rstrip("/") or "/"

    def table_name(self, route: str) -> str:
        """What the table of `route` is to be called. Raises ValueError: it is empty."""
        table = self.routes.get(route)
        return table.name if table is not None and table.name is not None else table_name(route, self.name)

    def keys_of(self, route: str) -> tuple[str, ...]:
        """The columns by which the messages of `route` are told apart; none where its table gets them all."""
        table = self.routes.get(route)
        return tuple(self.keys if table is None or table.keys is None else table.keys)

    def newest_by_of(self, route: str) -> str | None:
        """The column that orders the messages of a key; None: their offset does."""
        table = self.routes.get(route)
        return self.newest_by if table is None or table.newest_by is None else table.newest_by

    @property
    def has_keys(self) -> bool:
        """Are the messages of any route told apart by keys?"""
        return bool(self.keys or any(table.keys for table in self.routes.values()))

    @property
    def message_log(self) -> str | None:
        """Name of the log tables of messages with keys; None where there are none."""
        return self.log if self.log is not None and "{route" in self.log else None

    def for_route(self, route: str) -> tuple[Engine, Evolution]:
        """The engine and the evolution rules of `route` (as it is sent): its own, where given, over the common ones."""
        engine: Engine = "spark" if self.managed else self.engine
        table = self.routes.get(route)
        if table is None:
            return engine, self.evolution
        rules = table.evolution.model_dump(exclude_none=True) if table.evolution else {}
        return engine if self.managed else table.engine or engine, self.evolution.model_copy(update=rules)

    def described(self, route: str) -> Description:
        """What the table of `route` (as it is sent) gets when it is made."""
        own = [self.routes[route]] if route in self.routes else []
        return description_of(route, [self, *(pattern for pattern in self.patterns if pattern.takes(route)), *own])

    def each(self, key: str) -> dict[str, Any]:
        """What a key says of all tables and what it says of a route, where it does; by the key's full name."""
        own = {f"tables.routes.{route}.{key}": getattr(table, key) for route, table in self.routes.items()}
        return {f"tables.{key}": getattr(self, key)} | {name: value for name, value in own.items() if value is not None}

    def row_settings_of(self, route: str) -> tuple[list[Expectation], list[str] | None, str | None]:
        """The expectations, the select list and the function of `route`: its own, where given, over the common ones."""
        table = self.routes.get(route)
        if table is None:
            return self.expectations, self.select, self.function
        return (
            self.expectations if table.expectations is None else table.expectations,
            self.select if table.select is None else table.select,
            self.function if table.function is None else table.function,
        )


class Quarantine(Model):
    max_ratio: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="A batch with a larger share of bad rows stops the stream once it is written.",
    )
    min_rows: int = Field(default=100, ge=0, description="A batch with fewer rows never trips max_ratio.")
    max_bad_batches: int | None = Field(
        default=None, ge=1, description="More consecutive batches than this with any bad row stop the stream."
    )
    read_sec: float = Field(
        default=300,
        ge=1,
        description="Seconds of CPU time that reading one change file, or decoding one route's records of a batch or a "
        "piece of them (2^24 cells), may take. What never ends is found then, and quarantined (reason KILLED_READER).",
    )

    def passed(self, rows: int, bad: int, bad_batches: int) -> str | None:
        """The limit that stops a stream after a batch of `rows`, of which `bad` are quarantined for what they are; None
        for none. `bad_batches`: so many in a row have such rows, this one counted."""
        if rows >= self.min_rows and bad > self.max_ratio * rows:
            return f"max_ratio {self.max_ratio}"
        if self.max_bad_batches is not None and bad_batches > self.max_bad_batches:
            return f"max_bad_batches {self.max_bad_batches}"
        return None
