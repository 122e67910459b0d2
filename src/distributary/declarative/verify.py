"""Is every row where it belongs? Source, bronze and silver counted against each other, with nothing of the books.

    rows of the source that bronze has read = good + set aside + tombstones of bronze
    good rows of bronze that a silver table has read = its rows, by writer schema

How far a table has read is in its checkpoint. What it has not read yet (its flow failed, or an update died) is pending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pyarrow.compute as pc
import pyarrow.dataset as ds

from distributary.audit.verify import TABLES_AT_A_TIME, TableCheck, Verification
from distributary.config import DeltaSource, Pipeline
from distributary.declarative.bronze_counts import Bronze, Counts, RouteCount
from distributary.declarative.datasets import Datasets
from distributary.declarative.flows import Flows
from distributary.engine.messages.task_spec import ORIGIN
from distributary.errors import StoreUnreadable
from distributary.errors.border import contained
from distributary.running.named_tables import with_session
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

GOLD = "gold is made of silver by SQL: it was not looked at"
HIDDEN = "how far bronze has read is Lakeflow's to know: it was not compared with the source"


def verify(config: Pipeline) -> Verification:
    """Recount everything. Best with no update under way: what one has written half-way is a difference.

    Raises StoreUnreadable when bronze cannot be read. A silver table that cannot be read counts as lost.
    """
    with_session(config)
    return _Recount(config).all()


class _Recount:
    def __init__(self, config: Pipeline) -> None:
        self.config = config
        self.store = Store.of(config.tables)
        self.datasets = Datasets.of(config)
        self.bronze = Bronze.of(self.datasets, self.store)
        self.flows = Flows.of(config, self.store)
        # Most routes have read the same versions.
        self.bronze_rows = lru_cache(maxsize=8)(self._bronze_rows)

    def _bronze_rows(self, version: int | None) -> ds.Dataset | None:
        table = self.bronze.open(version)
        return None if table is None else table.dataset()

    def all(self) -> Verification:
        try:
            table = self.bronze.open()
            counts = {} if table is None else self.bronze.count(table)
            source = self._source_rows(table, counts)
        except BaseException as e:
            raise StoreUnreadable(path=self.bronze.uri, detail=contained(e)) from e
        routes = sorted(route for route in counts if route is not None)
        with ThreadPoolExecutor(TABLES_AT_A_TIME) as pool:
            tables = list(pool.map(lambda route: self._table(route, counts[route]), routes))
        return self._sum_up(counts, tables, *source)

    # -- source against bronze -----------------------------------------------------------------------------

    def _source_rows(self, bronze: Snapshot | None, counts: Counts) -> tuple[int, int, list[str]]:
        """(rows lost, rows doubled, problems) between the source and bronze."""
        source = self.config.source
        if bronze is None:
            return 0, 0, []
        if not isinstance(source, DeltaSource) or not source.path:
            doubled = self._repeated(bronze)
            return 0, doubled, [f"{doubled} records are in bronze more than once"] if doubled else []
        reads_all = source.starting_version is None and source.starting_timestamp is None
        place = self.flows.place(self.datasets.bronze)
        if not reads_all or source.skip_change_commits or place is None:
            return 0, 0, []
        least = self._rows_before(source.path, place.certain)
        most = self._rows_before(source.path, place.possible)
        counted = sum(c.good + c.aside + c.replayed + c.tombstones for c in counts.values())
        lost, doubled = max(0, least - counted), max(0, counted - most)
        problems = [f"bronze: {lost} rows of the source are missing"] if lost else []
        return lost, doubled, problems + ([f"bronze: {doubled} rows are there twice"] if doubled else [])

    def _rows_before(self, uri: str, version: int) -> int:
        if version <= 0:
            return 0
        return int(Snapshot(uri, self.store, version - 1).dataset().count_rows())

    def _repeated(self, bronze: Snapshot) -> int:
        """Kafka records that are in bronze again under the same topic, partition, offset and time; replays apart."""
        keys = ["topic", "partition", "offset", "timestamp"]
        rows = bronze.dataset().to_table(columns=keys, filter=ds.field("replay_of").is_null())
        rows = rows.filter(pc.is_valid(rows.column("offset")))
        return int(rows.num_rows - rows.group_by(keys).aggregate([]).num_rows)

    # -- bronze against silver -----------------------------------------------------------------------------

    def _table(self, route: str, count: RouteCount) -> TableCheck:
        name = self.datasets.silver(route)
        uri = self.datasets.uri(name)
        good = count.good + count.replayed
        problems: list[str] = []
        pending = lost = doubled = 0
        ids_in_silver: Counter[int] | None = Counter()
        rows = 0
        try:
            table = Table(uri, self.store).open()
            if table is not None:
                rows, ids_in_silver = self._silver(table)
            least, most = self._read_by(name, route)
            pending = good - most.total()
            lost, doubled = max(0, least.total() - rows), max(0, rows - most.total())
            if ids_in_silver is not None:
                lost, doubled = max(lost, (least - ids_in_silver).total()), max(doubled, (ids_in_silver - most).total())
        except BaseException as e:
            problems.append(f"the table cannot be read: {contained(e)}")
            lost = good
        if lost:
            problems.append(f"{lost} rows are missing from the table")
        if doubled:
            problems.append(f"{doubled} rows are in the table more often than they came in")
        return TableCheck(
            route=route,
            table=uri,
            engine="spark",
            rows_in=count.good + count.replayed + count.aside,
            rows_written=rows,
            rows_quarantined=count.aside,
            rows_lost=lost,
            rows_duplicated=doubled,
            schema_ids=dict(sorted((ids_in_silver if ids_in_silver is not None else count.schema_ids).items())),
            tombstones=count.tombstones,
            rows_pending=pending,
            problems=tuple(problems),
        )

    def _silver(self, table: Snapshot) -> tuple[int, Counter[int] | None]:
        """Rows, and rows by writer schema where the table says it."""
        rows = table.dataset()
        if ORIGIN not in rows.schema.names:
            return int(rows.count_rows()), None
        schema_ids = rows.to_table(columns={"schema_id": ds.field(ORIGIN, "schema_id")}).column("schema_id")
        counts = {c["values"]: c["counts"] for c in pc.value_counts(schema_ids).to_pylist()}
        return len(schema_ids), Counter(counts)

    def _read_by(self, name: str, route: str) -> tuple[Counter[int], Counter[int]]:
        """The least and the most good rows of a route, by schema id, in the part of bronze that its silver has read."""
        place = self.flows.place(name)
        if place is None:
            every = self._good(None, route)
            return every, every
        least = self._good(place.certain - 1, route)
        return least, least if place.possible == place.certain else self._good(place.possible - 1, route)

    def _good(self, version: int | None, route: str) -> Counter[int]:
        rows = None if version is not None and version < 0 else self.bronze_rows(version)
        if rows is None:
            return Counter()
        condition = (ds.field("route") == route) & ds.field("reason").is_null() & ds.field("payload").is_valid()
        ids = rows.to_table(columns=["schema_id"], filter=condition).column("schema_id")
        return Counter({c["values"]: c["counts"] for c in pc.value_counts(ids).to_pylist()})

    # -- all of them ---------------------------------------------------------------------------------------

    def _sum_up(
        self, counts: Counts, tables: list[TableCheck], lost: int, doubled: int, problems: list[str]
    ) -> Verification:
        nameless = counts.get(None, RouteCount())
        problems = problems + [f"{t.table}: {text}" for t in tables for text in t.problems]
        pending = sum(t.rows_pending for t in tables)
        if pending:
            problems.append(f"{pending} rows of bronze are not in silver yet: distributary pipeline run FILE --once")
        row_states: Mapping[str, int] = {
            "open": nameless.aside + sum(t.rows_quarantined for t in tables),
            "replayed": sum(c.replayed for c in counts.values()),
        }
        return Verification(
            pipeline=self.config.pipeline,
            ok=not problems,
            rows_in=nameless.aside + sum(t.rows_in for t in tables),
            rows_written=sum(t.rows_written for t in tables),
            rows_quarantined=row_states["open"],
            rows_lost=lost + sum(t.rows_lost for t in tables),
            rows_duplicated=doubled + sum(t.rows_duplicated for t in tables),
            tombstones=sum(c.tombstones for c in counts.values()),
            tables=tuple(tables),
            quarantine={state: n for state, n in row_states.items() if n},
            source_losses=(),
            problems=tuple(problems),
            notes=(*((GOLD,) if tables else ()), *((HIDDEN,) if self.flows.hidden else ())),
        )
