"""The demo `debezium`: topics of Debezium to log and merged tables, on this machine, with no server.

An invented history of eight tables (MySQL, PostgreSQL, Oracle, SQL Server) comes as Debezium's messages while the
pipeline runs in the same process. They stand in a Delta table as they would in Kafka: key, value, topic, partition,
offset. The tables are read by an incremental snapshot while they change, and after each restart the connector sends its
last messages again. At the end each merged table is compared with the source's own table, value by value, which the
pipeline never sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, Final

from deltalake import DeltaTable, Schema

from distributary.changes.model import Kind
from distributary.config import Pipeline
from distributary.kinds import kind_of
from distributary.running.hops import TwoHop
from distributary.running.progress import Display, RunTotals
from distributary.running.stream import Run
from distributary_simulate.change_messages.debezium import ChangeMessage, DebeziumTopics
from distributary_simulate.change_messages.topics import RECORDS, Offsets
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.changes.model import Change, Table
from distributary_simulate.changes.truth import save_truth
from distributary_simulate.demo.changes import ProvenTables, prove
from distributary_simulate.demo.games import LONGEST_WAIT_SEC, Feeder, Folder, Handle, run_fed
from distributary_simulate.games.sinks import write_delta

PIPELINE: Final = "shop"
KINDS: Final = (Kind.MYSQL, Kind.POSTGRESQL, Kind.ORACLE, Kind.SQLSERVER)
PLAN: Final = HistoryPlan(tables=tables_of(KINDS, 2), seed=7, schema_changes=0)
CHANGES: Final = 6_000
ROUNDS: Final = 6
SENT_AGAIN: Final = 0.1
"""Of the messages of a round, how many come once more after the connector's restart."""

_FILE = """\
# Written by `distributary demo debezium`. All paths are absolute, so it works from any folder.
# From Kafka itself:  source: {{type: kafka, bootstrap_servers: "localhost:9092", topic_pattern: "srv\\\\..*"}}
pipeline: {pipeline}
source:   {{type: delta, path: {source}}}
envelope: debezium
payload:  {{format: json}}
tables:   {{root: {lake}}}
trigger:  {{every: 1 second}}
"""


class DebeziumFolder(Folder):
    """The demo's folder; `source` is the table of records."""

    def write_pipeline(self) -> Pipeline:
        return self._write(_FILE, pipeline=PIPELINE)


def route_of(table: Table) -> str:
    """As the messages name it."""
    return ".".join(word for word in (table.database or "app", table.schema, table.name) if word)


class Connector(Feeder):
    """Sends the changes of the history, a part at a time."""

    def __init__(self, folder: Folder, display: Display, history: History, changes: int) -> None:
        super().__init__("connector")
        self.display = display
        self.messages = self.again = 0
        self._folder, self._history, self._count = folder, history, changes
        self._debezium, self._offsets = DebeziumTopics(), Offsets()

    def feed(self, going: Run | TwoHop) -> bool:
        self._wait(lambda: going.query is not None)
        for number, messages in enumerate(self.rounds(), start=1):
            if self._cancelled:
                return False
            sent = write_delta(str(self._folder.source), self._offsets.records(messages))
            words = "the tables are read while they change" if number == 1 else "and sends its last messages again"
            self.display.say(f"the connector {'starts' if number == 1 else 'starts anew'}: {words} ({sent:,} messages)")
            time.sleep(0.5)
        return self.all_taken(going)

    def rounds(self) -> Iterator[list[ChangeMessage]]:
        """What comes at once: the newest messages of the round before, and new ones."""
        changes = chain(self._history.changes(self._count), self._history.finish())
        last: list[ChangeMessage] = []
        while some := list(islice(changes, self._count // ROUNDS)):
            messages = self._messages(some)
            again = last[len(last) - int(len(last) * SENT_AGAIN) :]
            self.messages, self.again = self.messages + len(messages) + len(again), self.again + len(again)
            yield [*again, *messages]
            last = messages

    def _messages(self, changes: list[Change]) -> list[ChangeMessage]:
        return [message for change in changes for message in self._debezium.messages(change)]

    def _wait(self, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + LONGEST_WAIT_SEC
        while not (is_done() or self._cancelled) and time.monotonic() < end:
            time.sleep(0.05)


@dataclass
class DebeziumResult(ProvenTables):
    messages: int
    again: int
    verified_by: str = "read all messages again by other code, fold them again"

    @property
    def sent(self) -> str:
        return f"{self.messages:,} messages ({self.again:,} were sent again, deletes have a tombstone)"

    def to_json(self) -> dict[str, Any]:
        counts = {"messages": self.messages, "again": self.again}
        return {"ok": self.ok, **counts, "tables": [asdict(p) for p in self.proofs]}


def play_debezium(
    folder: DebeziumFolder, display: Display, handle: Handle = lambda _: None, changes: int = CHANGES
) -> DebeziumResult:
    """The whole demo in `folder`. `handle` gets the Run, to stop it from a signal handler.

    Raises DemoFolderTaken, JavaMissing, SparkNotStarted, and KeyboardInterrupt when the run was stopped before its end.
    """
    began = time.monotonic()
    with folder.taken():
        config = folder.write_pipeline()
        DeltaTable.create(str(folder.source), Schema.from_arrow(RECORDS))
        history = History(PLAN)
        connector = Connector(folder, display, history, changes)
        tally = RunTotals()
        report = run_fed(config, connector, tally, display, handle)
        truth = history.truth()
        save_truth(truth, folder.truth)
        proofs = sorted((route_of(table.table), table) for table in truth.values())
        return DebeziumResult(
            folder,
            report,
            tally,
            tuple(prove(config, route, table) for route, table in proofs),
            kind_of(config, folder.file).verify(deep=True),
            connector.messages,
            connector.again,
            seconds=time.monotonic() - began,
        )
