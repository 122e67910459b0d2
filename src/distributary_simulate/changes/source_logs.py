"""The logs of invented databases: where a change stands, and the sort keys that a stream makes of it.

Numbers start where texts and numbers order differently (file 999999 and 1000000, LSN F/... and 10/...), so a reader
that compares them as text fails early.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from distributary.changes.model import Kind
from distributary_simulate.changes.model import Position


class SourceLog(ABC):
    """One database's log. Times are in ms of that database's clock and never fall."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.now_ms = 0

    def begin(self, now_ms: int) -> None:
        """A transaction begins (and, as far as times go, commits)."""
        self.now_ms = max(self.now_ms, now_ms)

    def statement(self) -> None:
        """The next changes are of another statement."""
        return None

    def row(self) -> None:
        """The next changes are of another row. Both events of a key update are of one row."""
        return None

    @abstractmethod
    def position(self, row_id: str) -> Position: ...

    @abstractmethod
    def backfill(self, started_ms: int, row_id: str) -> Position:
        """The position of a row that a backfill task read which began at `started_ms`."""


class MySqlLog(SourceLog):
    """A binlog. An event's time is its statement's START in whole seconds; its position the END of the event."""

    first_file, rotate_bytes = 999_998, 40_000

    def __init__(self, choices: random.Random) -> None:
        super().__init__(choices)
        self.file, self.end, self.seconds = self.first_file, 4, 0

    def begin(self, now_ms: int) -> None:
        super().begin(now_ms)
        if self.end > self.rotate_bytes:
            self.file, self.end = self.file + 1, 4
        self.end += self.choices.randint(40, 90)

    def statement(self) -> None:
        self.end += self.choices.randint(60, 900)
        # A long statement writes its rows at its end, under the time of its start.
        lag_ms = self.choices.choice((0, 0, 0, 0, 0, 0, 900, 5_000))
        self.seconds = (self.now_ms - lag_ms) // 1000

    def position(self, row_id: str) -> Position:
        name, time = f"mysql-bin.{self.file:06d}", self.seconds * 1000
        return Position({"log_file": name, "log_position": self.end}, (time, name, self.end), time)

    def backfill(self, started_ms: int, row_id: str) -> Position:
        time = started_ms // 1000 * 1000
        return Position({"log_file": "", "log_position": 0}, (time, "", 0), time)


class PostgreSqlLog(SourceLog):
    """A WAL. All changes of a transaction have its commit time; the first may stand at its begin's LSN."""

    def __init__(self, choices: random.Random) -> None:
        super().__init__(choices)
        self.lsn, self.transaction, self.is_first = 0xF_FFFF_F000, 363_000, True

    def begin(self, now_ms: int) -> None:
        super().begin(now_ms)
        self.transaction += 1
        self.lsn += self.choices.randint(8, 60) * 8
        self.is_first = True

    def row(self) -> None:
        if not self.is_first:
            self.lsn += self.choices.randint(8, 60) * 8
        self.is_first = False

    def position(self, row_id: str) -> Position:
        lsn = f"{self.lsn >> 32:X}/{self.lsn & 0xFFFF_FFFF:X}"
        return Position({"tx_id": self.transaction, "lsn": lsn}, (self.now_ms, lsn), self.now_ms)

    def backfill(self, started_ms: int, row_id: str) -> Position:
        return Position({"tx_id": None, "lsn": None}, (started_ms, ""), started_ms)


class OracleLog(SourceLog):
    """LogMiner's view: several changes share an SCN, then the record set id and the SQL number order them."""

    archive = "/u01/app/oracle/fast_recovery_area/XE/archivelog/o1_mf_1_4_.arc"

    def __init__(self, choices: random.Random) -> None:
        super().__init__(choices)
        self.scn, self.block, self.ssn, self.transaction = 999_990, 0x000_0FFF0, 0, 0

    def begin(self, now_ms: int) -> None:
        super().begin(now_ms)
        self.transaction += 1
        self.scn += self.choices.choice((0, 0, 1, 3))

    def statement(self) -> None:
        self.block += 1
        self.ssn = 0

    def row(self) -> None:
        self.ssn += 1

    def position(self, row_id: str) -> Position:
        record = f" 0x000004.{self.block:08x}.0010 "
        time = self.now_ms // 1000 * 1000
        fields = {"row_id": row_id, "scn": self.scn, "ssn": self.ssn, "rs_id": record, "log_file": self.archive}
        fields["tx_id"] = f"BAAB{self.transaction:08X}"
        return Position(fields, (time, self.scn, record, self.ssn), time)

    def backfill(self, started_ms: int, row_id: str) -> Position:
        fields = {"row_id": row_id, "scn": self.scn, "ssn": 0, "rs_id": "", "tx_id": None, "log_file": ""}
        return Position(fields, (started_ms, self.scn, "", 0), started_ms)


class SqlServerLog(SourceLog):
    """Change tables: all rows of a transaction share its commit LSN."""

    def __init__(self, choices: random.Random) -> None:
        super().__init__(choices)
        self.lsn, self.transaction = 0xFFF0, 1234

    def begin(self, now_ms: int) -> None:
        super().begin(now_ms)
        self.transaction += 1
        self.lsn += self.choices.randint(1, 9)

    def position(self, row_id: str) -> Position:
        lsn = f"00000025:{self.lsn:08x}:0003"
        return Position({"lsn": lsn, "tx_id": str(self.transaction)}, (self.now_ms, lsn), self.now_ms)

    def backfill(self, started_ms: int, row_id: str) -> Position:
        return Position({"lsn": None, "tx_id": None}, (started_ms,), started_ms)


class MongoDbLog(SourceLog):
    """A change stream: a cluster time of seconds and an increment within them, which stands where nanoseconds would."""

    def __init__(self, choices: random.Random) -> None:
        super().__init__(choices)
        self.increment = 0

    def row(self) -> None:
        self.increment += 1

    def begin(self, now_ms: int) -> None:
        if now_ms // 1000 > self.now_ms // 1000:
            self.increment = 0
        super().begin(now_ms)

    def position(self, row_id: str) -> Position:
        return Position({}, (self.now_ms // 1000, self.increment), self.now_ms)

    def backfill(self, started_ms: int, row_id: str) -> Position:
        return Position({}, (started_ms // 1000, started_ms % 1000 * 1_000_000), started_ms)


LOGS: dict[Kind, type[SourceLog]] = {
    Kind.MYSQL: MySqlLog,
    Kind.POSTGRESQL: PostgreSqlLog,
    Kind.ORACLE: OracleLog,
    Kind.SQLSERVER: SqlServerLog,
    Kind.MONGODB: MongoDbLog,
}
