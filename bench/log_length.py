"""What a commit costs as a table's log grows: opened and appended by delta-rs, against a commit on a known tip."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties, Transaction, write_deltalake

from bench.result import Case, Result
from bench.workload import Place, WrongRows, say
from distributary.tables.checkpoints import checkpoint_due
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Owner, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip, append_on_tip

NOTE = (
    "Milliseconds of CPU time for one append of 100 rows to a table with so many commits since its last checkpoint, "
    "mean over 40 tables. Ours: the commit on a known tip, which the table's log does not concern. Other: the table is "
    "opened and appended to by delta-rs. Both write the same data file, by the same code."
)
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
STORE = Store()
ROWS = pa.table({"user": [f"u{n}" for n in range(100)], "score": range(100), "game": ["g"] * 100})


def run(place: Place) -> Result:
    lengths = place.size((5, 20, 50, 90), (2, 10))
    names = (str(place.root / f"t{n}") for n in range(10_000))
    turns = [v for length in lengths for v in (length, length + 1)]
    free = (uri for uri in names if not any(checkpoint_due(uri, version) for version in turns))
    tables = [next(free) for _ in range(place.size(40, 2))]
    return Result("log_length", NOTE, tuple(_case(tables, length) for length in lengths))


def _case(tables: Sequence[str], commits: int) -> Case:
    for uri in tables:
        table = Table(uri, STORE).open()
        for version in range(0 if table is None else table.version + 1, commits):
            txn = CommitProperties(app_transactions=[Transaction("tip", version)])
            write_deltalake(uri, ROWS, mode="append", commit_properties=txn, post_commithook_properties=NO_HOOKS)
    ours = _cpu_ms(tables, lambda uri: _on_tip(uri, commits - 1))
    other = _cpu_ms(tables, lambda uri: _by_delta_rs(uri, commits))
    for uri in tables:
        found = Table(uri, STORE).open()
        if found is None or found.delta.count() != ROWS.num_rows * (commits + 2):
            raise WrongRows(f"{uri}: not {commits + 2} commits of {ROWS.num_rows} rows")
    say(f"after {commits} commits: {ours:.2f} ms on the tip, {other:.2f} ms by delta-rs")
    return Case(f"after {commits} commits", "ms", ours, other)


def _cpu_ms(tables: Sequence[str], write: Callable[[str], None]) -> float:
    began = time.process_time()
    for uri in tables:
        write(uri)
    return 1000 * (time.process_time() - began) / len(tables)


def _on_tip(uri: str, version: int) -> None:
    tip = Tip.of(version, ROWS.schema, Txn("tip", version))
    if not append_on_tip(uri, tip, [write_data_file(uri, ROWS, STORE)], Txn("tip", version + 1), STORE):
        raise WrongRows(f"{uri}: no commit on the tip {version}")


def _by_delta_rs(uri: str, version: int) -> None:
    table = Table(uri, STORE).open()
    evolution = evolve(columns_of(table), [ROWS.schema], Policy())
    file = write_data_file(uri, ROWS, STORE)
    Table(uri, STORE, Owner("bench", uri)).commit(table, evolution, [file], Txn("delta-rs", version))
