"""Rows to the table that they are appended to, once per transaction: the rules of both engines.

in the task    known tip -> fit -> commit on it; else open -> fit -> there already? Spark's? -> file -> commit
the driver     files of several tasks -> there already? -> one commit
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from distributary.engine.outcomes import Append
from distributary.errors import ReplayMismatch
from distributary.steps import Steps, finished, unless_large
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Evolution
from distributary.tables.rewrite import committed_widening
from distributary.tables.snapshot import Snapshot, Txn, columns_of
from distributary.tables.table import Table, retried
from distributary.tables.tip import Tip, append_on_tip
from distributary.tables.widening import said_of, settled
from distributary.version import __version__


class FittedRows(Protocol):
    """Rows in the columns of a table. `evolution`: what they make of these."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def evolution(self) -> Evolution: ...


F = TypeVar("F", bound=FittedRows)


@dataclass(frozen=True)
class ReplayCheck:
    """What an attempt expects where the batch is in a table already: as many rows as it has itself (`fewer` False,
    `more` False), or what else may be right."""

    batch: int
    fewer: bool = False
    more: bool = False

    def rows(self, committed: int | None, decoded: int, uri: str) -> int:
        """How many rows the commit holds; None (`committed`): it does not say.

        Raises ReplayMismatch: a row would be in no table, or twice.
        """
        if committed is None:
            return decoded
        if (committed < decoded and not self.fewer) or (committed > decoded and not self.more):
            raise ReplayMismatch(table=uri, batch=self.batch, committed=committed, decoded=decoded, version=__version__)
        return committed


@dataclass(frozen=True)
class Appending(Generic[F]):
    """One route's rows on their way into `target`. `tip`: what is known of it, if anything. `fit`: the rows in columns
    of a table that has these, as it is open (None: none is); `write`: rows as files; `why_spark`: as in
    `tables.engines`."""

    target: Table
    txn: Txn
    tip: Tip | None
    replay: ReplayCheck
    fit: Callable[[pa.Schema | None, Snapshot | None], F]
    write: Callable[[pa.Table], Steps[Sequence[DataFile]]]
    why_spark: Callable[[Snapshot | None, Evolution], str | None]

    def run(self) -> tuple[F, Append]:
        """The rows as they were fitted, and what was done with them. State `spark`: nothing, that engine must.

        Raises CommitConflict (other writers were first each time), TableCollision, ReplayMismatch, TableFault, OSError.
        """
        return finished(self.steps())

    def steps(self) -> Steps[tuple[F, Append]]:
        """`run`, step by step."""
        return (yield from self._on_tip()) or retried(self._opened)

    def _on_tip(self) -> Steps[tuple[F, Append] | None]:
        """Without opening the table, where its newest version is known; None where that does not do."""
        tip = self.tip
        if tip is None or not tip.leads(self.target.uri, self.target.store):
            return None
        fitted = self.fit(tip.arrow_schema(), None)
        if fitted.evolution.changed or not fitted.table.num_rows:
            return None
        return (yield from unless_large(fitted.table.nbytes, self._written_on(tip, fitted)))

    def _written_on(self, tip: Tip, fitted: F) -> Steps[tuple[F, Append] | None]:
        yield
        files = yield from self.write(fitted.table)
        yield
        if not append_on_tip(self.target.uri, tip, files, self.txn, self.target.store):
            return None
        return fitted, Append("written", fitted.table.num_rows, tip=tip.after(self.txn), size=size_of(files))

    def _opened(self) -> tuple[F, Append]:
        """Open the table, decide with what is there, and commit."""
        table = self.target.open()
        fitted = self.fit(columns_of(table), table)
        rows, evolution = fitted.table.num_rows, fitted.evolution
        if why := self.why_spark(table, evolution):
            return fitted, Append("spark", why_spark=why)
        if table is not None and table.has(self.txn):
            return fitted, replayed(table, self.txn, self.replay, rows)
        if not rows:
            return fitted, Append()
        files = finished(self.write(fitted.table))
        version = self.target.commit(table, evolution, files, self.txn)
        tip = None if version is None else Tip.of(version, evolution.schema, self.txn)
        return fitted, _written(table, evolution, rows, files, tip)


def commit_files(
    target: Table, files: Sequence[DataFile], rows: int, columns: pa.Schema | None, txn: Txn, replay: ReplayCheck
) -> Append:
    """One commit for the files of many tasks, whose `rows` have `columns`.

    Raises CommitConflict (also where the table has got other columns since), ReplayMismatch, TableFault, OSError.
    """
    table = target.open()
    if table is not None and table.has(txn):
        return replayed(table, txn, replay, rows)
    if not files:
        return Append()
    evolution = settled(table, columns)
    target.commit(table, evolution, files, txn)
    return _written(table, evolution, rows, files)


def replayed(table: Snapshot, txn: Txn, replay: ReplayCheck, rows: int) -> Append:
    """An earlier attempt has committed the batch: what it did, where `rows` are found now. Raises ReplayMismatch."""
    committed = replay.rows(table.rows_of(txn), rows, table.uri)
    return Append("replayed", committed, widened=committed_widening(table, txn), other=committed != rows)


def _written(
    table: Snapshot | None, evolution: Evolution, rows: int, files: Sequence[DataFile], tip: Tip | None = None
) -> Append:
    widened = said_of(table, evolution)
    return Append("written", rows, table is None, evolution.changed, widened, tip, size=size_of(files))


def size_of(files: Sequence[DataFile]) -> int:
    """Bytes of all of them."""
    return sum(file.size for file in files)
