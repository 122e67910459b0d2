"""Any history of several tables, in any order, doubled, cut into any files and batches, with any number of ends of the
process on the way: the merged tables are the fold in true order, and the logs have each event of the files once.

Files go in, tables come out: everything between is the product's own but Spark, in whose place the tasks run here
(`sparkless`). The answer is a loop over plain values (`naive_fold`).

More cases: `pytest --hypothesis-profile=long` (CONTRIBUTING.md).
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributary.audit.judge.changes import verify_changes
from distributary.audit.judge.histories import judge_histories
from distributary.changes.model import METADATA, Kind, SourceTable
from distributary.engine import appending
from distributary.engine.changes import attempt, concluding, deliver, merges, merging
from distributary.engine.changes import writer as cdc_writer
from distributary.engine.changes.retries import EventQuarantine
from distributary.engine.changes.table_settings import Named
from distributary.sources.file_ledger import FileLedger
from distributary.state.ledger import Ledger
from distributary.tables import history_table
from distributary.tables import merge as merge_module
from distributary.tables.table import Table as StoredTable
from distributary_simulate.change_files.avro_encoding import container
from distributary_simulate.change_files.events import Event, EventSchema, Layout, event_schema
from distributary_simulate.change_files.writer import STREAM
from distributary_simulate.changes.model import CDC_METHOD, Change, Column, Position, Table, backfill_change
from distributary_simulate.changes.unified import INTEGER, LONG, STRING, Unified, decimal
from tests.naive_fold import is_delete, is_gone, living, newest, spelling
from tests.shop import START_MS
from tests.sparkless import Sparkless

KINDS = (Kind.MYSQL, Kind.POSTGRESQL, Kind.ORACLE, Kind.SQLSERVER, Kind.MONGODB)
KEYS = 4
UUID = "0b8f8f0e-52c2-4b55-8dd0-27a1f2a4a1a1"
FORMATS = ("avro", "jsonl", "jsonl.gz", "parquet")

# -- histories --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A statement. `forward`: how far the log goes on before it; 0: it shares the place of the one before."""

    table: int
    what: str
    key: int
    other: int
    forward: int
    sec: int


ALTERATIONS = ("new column", "type of key", "name of key")
STEPS = st.builds(
    Step,
    st.integers(0, 3),
    # A wild event is one that no database would write: any type, whatever the row is.
    st.sampled_from(["put", "put", "put", "delete", "move", "swap", "backfill", "wild", "read again", *ALTERATIONS]),
    st.integers(0, KEYS - 1),
    st.integers(0, KEYS - 1),
    st.sampled_from([0, 1, 1, 1, 7]),
    st.integers(-90, 90),
)


@dataclass
class Lived:
    """A table: its rows as far as the statements made sense, and all that was logged or backfilled of it."""

    table: Table
    rows: dict[int, str] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


class Databases:
    """Tables of any kind, all with one log and one clock."""

    def __init__(self, kinds: Sequence[Kind], *, hands_on: bool = False) -> None:
        """`hands_on`: transactions of Oracle may hand a key on more than once."""
        self._hands_on = hands_on
        # The first two share folder, schema and names of files.
        self.tables = [Lived(_table(Kind.MYSQL, "a", "b_c")), Lived(_table(Kind.MYSQL, "a_b", "c"))]
        self.tables += [Lived(_table(kind, f"d{n}", f"t{n}")) for n, kind in enumerate(kinds)]
        self._place = 0
        self._made = 0
        self._sec = 100
        self._transaction = 0

    def live(self, step: Step) -> None:
        lived = self.tables[step.table % len(self.tables)]
        self._place += step.forward
        self._transaction += 1 if step.forward else 0
        # A binlog event has the time at which its statement began; elsewhere times follow the log, but for a clock that
        # is set back.
        self._sec += 1 if step.forward > 1 else 0
        getattr(self, f"_{step.what.replace(' ', '_')}")(lived, step)

    def _put(self, lived: Lived, step: Step) -> None:
        kind = lived.table.kind
        change = "INSERT" if step.key not in lived.rows else "UPDATE-INSERT" if kind is Kind.MYSQL else "UPDATE"
        lived.rows[step.key] = self._value()
        lived.ids.setdefault(step.key, f"row {self._made}")
        self._log(lived, change, step.key, lived.rows[step.key], lived.ids[step.key], step)

    def _delete(self, lived: Lived, step: Step) -> None:
        if step.key in lived.rows:
            self._log(lived, "DELETE", step.key, lived.rows.pop(step.key), lived.ids.pop(step.key), step)

    def _move(self, lived: Lived, step: Step) -> None:
        if step.key in lived.rows and step.other not in lived.rows:
            self._moves(lived, {step.key: step.other}, step)

    def _swap(self, lived: Lived, step: Step) -> None:
        """Oracle checks keys at the end of a statement, so that it logs one key's new row before its old one."""
        if step.key != step.other and step.key in lived.rows and step.other in lived.rows:
            self._moves(lived, {step.key: step.other, step.other: step.key}, step)

    def _moves(self, lived: Lived, moves: dict[int, int], step: Step) -> None:
        if lived.table.kind is Kind.MONGODB:
            return  # a document's _id never changes
        self._transaction += 0 if self._hands_on else 1
        self._place += 1
        taken = {new: (lived.rows.pop(old), lived.ids.pop(old)) for old, new in moves.items()}
        # Others take the keys that were left before, row after row.
        late = [] if lived.table.kind is Kind.ORACLE else list(moves.items())
        for old, new in late:
            self._log(lived, "UPDATE-DELETE", old, *taken[new], step)
        for old, new in moves.items():
            if not late:
                self._log(lived, "UPDATE-DELETE", old, *taken[new], step)
            self._log(lived, "UPDATE-INSERT", new, *taken[new], step)
        for new, (value, row_id) in taken.items():
            lived.rows[new], lived.ids[new] = value, row_id
        self._transaction += 0 if self._hands_on else 1
        self._place += 1

    def _wild(self, lived: Lived, step: Step) -> None:
        if lived.table.kind is not Kind.ORACLE:
            kinds = ("INSERT", "UPDATE", "UPDATE-INSERT", "UPDATE-DELETE", "DELETE", "", None)
            self._log(lived, kinds[(2 * step.other + step.sec) % len(kinds)], step.key, self._value(), None, step)

    def _backfill(self, lived: Lived, step: Step) -> None:
        for key, value in lived.rows.items():
            time_ms = START_MS + (self._sec + step.sec) * 1000
            position = self._backfilled(lived, key, time_ms)
            row = self._row(lived.table, key, value)
            lived.events.append(self._event(backfill_change(lived.table, row, position, time_ms)))

    def _read_again(self, lived: Lived, step: Step) -> None:
        """A reader that begins again where it was: the event once more, with another uuid."""
        if lived.events:
            lived.events.append(self._event(lived.events[step.sec % len(lived.events)].change))

    def _new_column(self, lived: Lived, step: Step) -> None:
        if lived.table.kind is not Kind.MONGODB:
            gone = [c for c in lived.table.columns if c.name != "note"]
            lived.table = replace(lived.table, columns=tuple([*gone, Column("note", INTEGER)] if step.key else gone))

    def _type_of_key(self, lived: Lived, step: Step) -> None:
        """From now on the key is written in another type; not every key is in each."""
        self._alter(lived, KEY_TYPES[(step.key + 2 * step.other) % len(KEY_TYPES)], lived.table.keys[0])

    def _name_of_key(self, lived: Lived, step: Step) -> None:
        self._alter(lived, lived.table.columns[0].type, "ID" if step.key % 2 else "id")

    def _alter(self, lived: Lived, kind: Unified, name: str) -> None:
        if lived.table.kind is not Kind.MONGODB:
            columns = (Column(name, kind), *lived.table.columns[1:])
            lived.table = replace(lived.table, columns=columns, keys=(name,))

    # -- events ----------------------------------------------------------------------------------------------

    def _value(self) -> str:
        self._made += 1
        return f"value {self._made}"

    def _row(self, table: Table, key: int, value: str) -> dict[str, Any]:
        if table.kind is Kind.MONGODB:
            return {"_id": f'"{key}"', "data": json.dumps({"value": value}) if self._made % 5 else None}
        values = {"id": _key_value(table.columns[0].type, key), "value": value, "note": self._made}
        return {column.name: values[column.name.lower()] for column in table.columns}

    def _log(self, lived: Lived, change: str | None, key: int, value: str, row_id: str | None, step: Step) -> None:
        table = lived.table
        row = self._row(table, key, value)
        if table.kind is Kind.POSTGRESQL and change == "DELETE":
            row = {name: value if name in table.keys else None for name, value in row.items()}
        deleted = change in ("DELETE", "UPDATE-DELETE") and table.kind is not Kind.ORACLE
        position = self._position(table.kind, row_id, step)
        # Both spellings of "not deleted" are on record.
        said = True if deleted else None if step.sec % 2 else False
        lived.events.append(self._event(Change(table, change, said, row, position, CDC_METHOD[table.kind], 0)))

    def _event(self, change: Change) -> Event:
        self._made += 1
        # Eight binary digits count the rows of a read batch.
        uuid = f"00000000-0000-0000-0000-0000{self._made % 256:08b}"
        return Event(change, uuid, START_MS + 10**6 + self._made // 3)

    def _position(self, kind: Kind, row_id: str | None, step: Step) -> Position:
        at, sec = self._place, self._sec
        if kind is Kind.MYSQL:
            ms = START_MS + (sec + step.sec) * 1000
            file = f"mysql-bin.{999_998 + at // 9}"
            return Position({"log_file": file, "log_position": 990 + at % 9 * 5}, (ms, file, 990 + at % 9 * 5), ms)
        # A server's clock may be set back; only its log goes on.
        clock = step.sec if kind in (Kind.POSTGRESQL, Kind.SQLSERVER) else 0
        ms = START_MS + (sec + clock) * 1000
        if kind is Kind.ORACLE:
            fields = {"scn": 99 + at // 5, "rs_id": f" 0x000004.{at // 2:08x}.0010 ", "ssn": at % 2, "row_id": row_id}
            return Position({**fields, "tx_id": f"tx {self._transaction}", "log_file": ""}, (ms,), ms)
        if kind is Kind.POSTGRESQL:
            return Position({"lsn": f"{15 + at // 9:X}/{at:X}", "tx_id": at}, (ms,), ms)
        if kind is Kind.SQLSERVER:
            return Position({"lsn": f"00000025:{at // 2:08x}:0003", "tx_id": ""}, (ms,), ms)
        return Position({}, (sec, at), ms)

    def _backfilled(self, lived: Lived, key: int, ms: int) -> Position:
        kind = lived.table.kind
        if kind is Kind.MYSQL:
            place = {"log_file": "", "log_position": 0} if self._place % 2 else {"log_file": None, "log_position": None}
            return Position(place, (ms, "", 0), ms)
        if kind is Kind.ORACLE:
            fields = {"scn": 99 + self._place // 5, "rs_id": "", "ssn": 0, "row_id": lived.ids.get(key, "")}
            return Position({**fields, "tx_id": None, "log_file": ""}, (ms,), ms)
        return Position({"lsn": None, "tx_id": None}, (ms // 1000, 0), ms)


def _table(kind: Kind, database: str, name: str) -> Table:
    if kind is Kind.MONGODB:
        return Table(kind, database, "", name, (Column("_id", STRING), Column("data", STRING)), ("_id",))
    place = ("", "s") if kind is Kind.POSTGRESQL else (database, "" if kind is Kind.MYSQL else "s")
    columns = (Column("id", LONG), Column("value", STRING))
    return Table(kind, *place, name, columns, ("id",), replication_index=kind is Kind.SQLSERVER and name[-1] == "1")


KEY_TYPES = (INTEGER, LONG, decimal(20, 0), STRING)


def _key_value(kind: Unified, key: int) -> int | Decimal | str:
    """The last key is one that only a type as wide as this has."""
    if kind == STRING:
        return UUID if key == KEYS - 1 else str(key)
    if kind == decimal(20, 0):
        return Decimal(2**63 + 3 if key == KEYS - 1 else key)
    return 2**40 if kind == LONG and key == KEYS - 1 else key


# -- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """What happens between the databases and the tables."""

    format: str
    dice: Random
    files_per_batch: int
    merge_every: str
    log: bool
    shared: bool
    rounds: int
    ends: tuple[int, ...]
    beside: bool


WAYS = st.builds(
    Way,
    st.sampled_from(FORMATS),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
    st.sampled_from(["0 seconds", "0 seconds", "1 hour"]),
    st.sampled_from([True, True, True, False]),
    st.booleans(),
    st.integers(1, 3),
    st.lists(st.integers(0, 25), max_size=4).map(tuple),
    st.booleans(),
)


@dataclass
class Bucket:
    """`files`: names below the root and bodies, in the order in which they land. `counts`: by route, how often each
    event is in them."""

    files: list[tuple[str, bytes]] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)


def bucket_of(events: Sequence[Event], way: Way) -> Bucket:
    """Each event once or more; events of one schema in any cut and order."""
    bucket = Bucket()
    held: dict[tuple[str, str, str], list[tuple[EventSchema, Event]]] = {}
    for event in events:
        table = event.change.table
        schema = event_schema(table, Layout.Y2025, STREAM)
        # The folder is the source's minute; tables that share it and the schema share files here.
        folder = f"{table.object}/2026/01/01/00/{event.change.position.source_ms // 60_000 % 3:02d}"
        times = way.dice.choice((1, 1, 1, 2))
        keys = [spelling(event.change.row[key]) for key in table.keys]
        if not is_gone(event):
            bucket.counts.setdefault(table.route, Counter())[line(event.uuid, event.read_ms, keys)] += times
        held.setdefault((folder, schema.key, event.change.read_method), []).extend([(schema, event)] * times)
    for (folder, key, method), found in held.items():
        way.dice.shuffle(found)
        while found:
            size = way.dice.randint(1, len(found))
            name = f"{folder}/{key}_{method}_{len(bucket.files)}_1_1.{way.format}"
            bucket.files.append((name, body_of(found[:size], way.format)))
            found = found[size:]
    way.dice.shuffle(bucket.files)
    return bucket


def line(uuid: str, read_ms: int, keys: Sequence[str | None]) -> str:
    """An event, as far as it takes to tell it from others."""
    return f"{uuid} {read_ms} {list(keys)}"


def body_of(events: Sequence[tuple[EventSchema, Event]], format: str) -> bytes:
    if format == "avro":
        return container(events[0][0].text, [schema.avro(event) for schema, event in events], b"0123456789abcdef")
    if format == "parquet":
        out = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables([schema.arrow([event]) for schema, event in events]), out)
        return bytes(out.getvalue().to_pybytes())
    lines = "".join(f"{schema.line(event)}\n" for schema, event in events).encode()
    return gzip.compress(lines) if format.endswith("gz") else lines


# -- ends of the process ----------------------------------------------------------------------------------------------

BORDERS: tuple[tuple[Any, str], ...] = (
    (FileLedger, "_enter"),
    (attempt, "run_deliver"),
    (concluding, "run_merges"),
    (StoredTable, "commit"),
    (deliver, "append_events"),
    (deliver, "merge_now"),
    (appending, "append_on_tip"),
    (history_table, "put_commit"),
    (merging, "merge_rows"),
    (merge_module, "_bury"),
    (merges, "run_merges"),
    (Ledger, "record"),
    (cdc_writer, "commit_quarantine"),
    (EventQuarantine, "release"),
)


class Ended(SystemExit):
    """The end of the process: nothing in the product catches it, wherever it is."""


@contextmanager
def ending_at(number: int | None) -> Iterator[None]:
    """The process ends at the border of this number, counted before and after each step that leaves something behind;
    never where fewer are passed, or for None."""
    left = [number]

    def passed() -> None:
        if left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                left[0] = None
                raise Ended

    def bordered(whole: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            passed()
            result = whole(*args, **kwargs)
            passed()
            return result

        return step

    with pytest.MonkeyPatch.context() as patch:
        for target, name in BORDERS:
            patch.setattr(target, name, bordered(getattr(target, name)))
        try:
            yield
        except Ended:
            return


# -- the property -----------------------------------------------------------------------------------------------------


def pipeline(root: Path, way: Way) -> Sparkless:
    return Sparkless(
        root,
        source={"max_files_per_batch": way.files_per_batch},
        tables={
            "log": "l_{database}__{schema}_{table}" if way.log else None,
            "merged": "m_{database}__{schema}_{table}",
            "history": "h_{database}__{schema}_{table}" if way.log else None,
            "merge_every": way.merge_every if way.log else 0,
            "tombstones": "beside" if way.beside else "in_table",
            # A log's column that is to get wider is out of reach here.
            "evolution": {"type_change": "new_column"},
        },
    )


def run_through(shop: Sparkless, files: Sequence[tuple[str, bytes]], way: Way) -> None:
    ends = list(way.ends)
    size = -(-len(files) // way.rounds)
    for start in range(0, len(files), max(1, size)):
        for name, body in files[start : start + size]:
            path = shop.files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        with ending_at(ends.pop() if ends else None):
            shop.run()
    for end in ends:
        with ending_at(end):
            shop.run()
    shop.run()


def source_of(table: Table) -> SourceTable:
    return SourceTable(table.kind, table.database, table.schema, table.name)


def log_of(shop: Sparkless, lived: Lived) -> Counter[str]:
    if all(map(is_gone, lived.events)):
        return Counter()
    uri = Named.of(shop.config).log(source_of(lived.table))
    assert uri is not None
    rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
    return Counter(
        line(row[METADATA]["uuid"], row[METADATA]["read_timestamp"], json.loads(row["_origin"]["key"])) for row in rows
    )


def check_table(shop: Sparkless, lived: Lived) -> None:
    if all(map(is_gone, lived.events)):
        return
    uri = Named.of(shop.config).merged(source_of(lived.table))
    assert uri is not None
    rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
    beside = Path(uri, "_tombstones")
    dead = DeltaTable(beside).to_pyarrow_table().to_pylist() if beside.exists() else []
    keys = [next(name for name in rows[0] if name.lower() == key.lower()) for key in lived.table.keys] if rows else []
    keys = keys or [name for key in lived.table.keys for name in (dead or [{}])[0] if name.lower() == key.lower()]
    found = {tuple(spelling(row[k]) for k in keys): row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    named = {c.name for event in lived.events for c in event.change.table.columns}
    columns = {name for name in named if name.lower() != "id"}
    wanted = living(lived.events, columns)
    # A column of JSON that never had a value has no type, so it is not there.
    alive = {key: {n: row.get(n) for n in columns} for key, row in found.items() if not row["_deleted"]}
    assert alive == wanted, lived.table.route
    gone = {key for key, event in newest(lived.events).items() if is_delete(event)}
    deleted_keys = {key for key, row in found.items() if row["_deleted"]}
    assert not (beside.exists() and deleted_keys)
    assert deleted_keys | ({tuple(spelling(row[k]) for k in keys) for row in dead} - found.keys()) == gone
    if (uri := Named.of(shop.config).history(source_of(lived.table))) is not None:
        versions = DeltaTable(uri).to_pyarrow_table().to_pylist()
        current = [row for row in versions if row["is_current"]]
        assert {tuple(spelling(row[k]) for k in keys): {n: row.get(n) for n in columns} for row in current} == wanted
        assert len(current) == len(wanted), "two versions of a key are current"


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2), st.lists(STEPS, min_size=1, max_size=40), WAYS)
def test_merged_tables_are_the_fold_in_true_order_and_logs_have_each_event_once(
    kinds: list[Kind], steps: list[Step], way: Way
) -> None:
    # Without a log nobody can look up what else a transaction did.
    databases = Databases(kinds, hands_on=way.log)
    for step in steps:
        databases.live(step)
    bucket = bucket_of([event for lived in databases.tables for event in lived.events], way)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if way.shared:
            # Several tasks read one route: the driver commits, and merges out of files.
            patch.setattr("distributary.engine.packing.SHARE_ROWS", 1)
        shop = pipeline(Path(folder), way)
        run_through(shop, bucket.files, way)
        for lived in databases.tables:
            check_table(shop, lived)
            if way.log:
                assert log_of(shop, lived) == bucket.counts.get(lived.table.route, Counter())
        histories = judge_histories(shop.config, verify_changes(shop.config))
        assert histories.ok and not [note for note in histories.notes if "history" in note], histories
        assert shop.quarantined() == []
