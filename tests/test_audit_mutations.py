"""`verify` is not clean after any random fault in a lake that was right: in tables, quarantine, ledger or Delta log.

`DISTRIBUTARY_TEST_MUTATIONS=420` plants so many, in place of a few; seeds are fixed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge.changes import verify_changes
from distributary.changes.model import METADATA
from distributary.config import Pipeline
from distributary.errors import DistributaryError
from distributary_simulate.change_files.stream import write_history
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from tests.sparkless import Sparkless

MUTATIONS = int(os.environ.get("DISTRIBUTARY_TEST_MUTATIONS", "24"))
OURS = (METADATA, "_origin", "_deleted", "_deleted_at")
Rows = list[dict[str, Any]]


class Nothing(Exception):
    """This fault has no place in this table."""


class Lake:
    """A pipeline's tables, by kind; each fault is planted by somebody who knows nothing of the product."""

    def __init__(self, root: Path) -> None:
        self.shop = Sparkless(root)
        history = History(HistoryPlan(seed=7, schema_changes=0, initial_rows=8))
        write_history(
            history,
            ChangeFiles(
                FilesPlan(self.shop.files, format="avro"),
            ),
            120,
        )
        self.shop.run()
        self.shop.garbage()
        self.shop.run()
        self.lake = root / "lake"
        self.state = Path(self.shop.config.state_root)
        tables = sorted(p.parent for p in self.lake.glob("*/_delta_log") if p.parent.name[0] not in "._")
        self.logs = [t for t in tables if t.name.endswith("_log")]
        self.merged = [t for t in tables if t not in self.logs]
        self.spare = root / "spare"
        self.saved = sorted({self.lake, self.state})
        for number, folder in enumerate(self.saved):
            shutil.copytree(folder, self.spare / str(number))

    @property
    def config(self) -> Pipeline:
        return self.shop.config

    def mend(self) -> None:
        for number, folder in enumerate(self.saved):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.spare / str(number), folder)


def read(uri: Path) -> tuple[pa.Schema, Rows]:
    table = DeltaTable(str(uri)).to_pyarrow_table()
    return table.schema, table.to_pylist()


def rewrite(uri: Path, rows: Rows, schema: pa.Schema) -> None:
    write_deltalake(str(uri), pa.Table.from_pylist(rows, schema), mode="overwrite")


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | Decimal):
        return value - 1 if value > 100 else value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, datetime | date):
        return value + timedelta(days=1 if value.year < 9000 else -1)
    raise Nothing


def places(rows: Rows, schema: pa.Schema, *, living: bool = True) -> list[tuple[int, str]]:
    """(row, column) of every payload value there is. The values of tombstones are nobody's."""
    names = [n for n in schema.names if n not in OURS]
    return [
        (at, name)
        for at, row in enumerate(rows)
        if not (living and row.get("_deleted"))
        for name in names
        if row[name] is not None
    ]


def pick(random: Random, found: list[Any]) -> Any:
    if not found:
        raise Nothing
    return random.choice(found)


def table(lake: Lake, random: Random) -> tuple[Path, pa.Schema, Rows]:
    uri = random.choice([*lake.logs, *lake.merged])
    return uri, *read(uri)


def change_a_cell(lake: Lake, random: Random) -> None:
    uri, schema, rows = table(lake, random)
    at, name = pick(random, places(rows, schema))
    rows[at][name] = other(rows[at][name])
    rewrite(uri, rows, schema)


def set_null(lake: Lake, random: Random) -> None:
    uri, schema, rows = table(lake, random)
    at, name = pick(random, places(rows, schema))
    rows[at][name] = None
    rewrite(uri, rows, schema)


def swap_values(lake: Lake, random: Random) -> None:
    uri, schema, rows = table(lake, random)
    at, name = pick(random, places(rows, schema))
    others = [n for n, c in places(rows, schema) if c == name and rows[n][name] != rows[at][name]]
    to = pick(random, others)
    rows[at][name], rows[to][name] = rows[to][name], rows[at][name]
    rewrite(uri, rows, schema)


def drop_a_row(lake: Lake, random: Random) -> None:
    uri, schema, rows = table(lake, random)
    rows.pop(random.randrange(len(rows)))
    rewrite(uri, rows, schema)


def double_a_row(lake: Lake, random: Random) -> None:
    uri, schema, rows = table(lake, random)
    write_deltalake(str(uri), pa.Table.from_pylist([random.choice(rows)], schema), mode="append")


def spell_a_key_otherwise(lake: Lake, random: Random) -> None:
    uri = random.choice(lake.logs)
    schema, rows = read(uri)
    at = pick(random, [n for n, row in enumerate(rows) if row["_origin"].get("key")])
    rows[at]["_origin"]["key"] = rows[at]["_origin"]["key"].replace('["', '["0x')
    if '"0x' not in rows[at]["_origin"]["key"]:
        raise Nothing
    rewrite(uri, rows, schema)


def drop_a_tombstone(lake: Lake, random: Random) -> None:
    uri = random.choice(lake.merged)
    schema, rows = read(uri)
    at = pick(random, [n for n, row in enumerate(rows) if row["_deleted"]])
    rows.pop(at)
    rewrite(uri, rows, schema)


def revive_a_tombstone(lake: Lake, random: Random) -> None:
    uri = random.choice(lake.merged)
    schema, rows = read(uri)
    pick(random, [row for row in rows if row["_deleted"]])["_deleted"] = False
    rewrite(uri, rows, schema)


def move_to_another_table(lake: Lake, random: Random) -> None:
    uri, to = random.sample(random.choice([lake.logs, lake.merged]), 2)
    (schema, rows), (to_schema, to_rows) = read(uri), read(to)
    moved = rows.pop(random.randrange(len(rows)))
    rewrite(uri, rows, schema)
    names = set(OURS)
    rewrite(to, [*to_rows, {n: moved.get(n) if n in names else None for n in to_schema.names}], to_schema)


def refill_a_column_with_null(lake: Lake, random: Random) -> None:
    uri, schema, rows = table(lake, random)
    _, name = pick(random, places(rows, schema))
    rewrite(uri, [{**row, name: None} for row in rows], schema)


def cut_the_last_commit(lake: Lake, random: Random) -> None:
    uri = random.choice([*lake.logs, *lake.merged])
    commits = sorted((uri / "_delta_log").glob("*.json"))
    if any(uri.glob("_delta_log/*.parquet")) or not _adds(commits[-1]):
        raise Nothing
    commits[-1].unlink()


def _adds(commit: Path) -> bool:
    return '"add"' in commit.read_text()


def lose_a_data_file(lake: Lake, random: Random) -> None:
    uri = random.choice([*lake.logs, *lake.merged])
    Path(random.choice(DeltaTable(str(uri)).file_uris())).unlink()


def change_a_state_in_the_quarantine(lake: Lake, random: Random) -> None:
    uri = lake.state / "quarantine"
    schema, rows = read(uri)
    pick(random, rows)["state"] = "replayed"
    rewrite(uri, rows, schema)


def forget_an_entry_of_the_ledger(lake: Lake, random: Random) -> None:
    uri = lake.state / "ledger"
    schema, rows = read(uri)
    at = pick(random, [n for n, row in enumerate(rows) if row["rows_in"]])
    rows.pop(at)
    rewrite(uri, rows, schema)


FAULTS: tuple[Callable[[Lake, Random], None], ...] = (
    change_a_cell,
    set_null,
    swap_values,
    drop_a_row,
    double_a_row,
    spell_a_key_otherwise,
    drop_a_tombstone,
    revive_a_tombstone,
    move_to_another_table,
    refill_a_column_with_null,
    cut_the_last_commit,
    lose_a_data_file,
    change_a_state_in_the_quarantine,
    forget_an_entry_of_the_ledger,
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("mutations"))


def is_clean(lake: Lake) -> bool:
    try:
        return verify_changes(lake.config).ok
    except DistributaryError:
        return False


def test_a_ledger_that_lost_its_newest_batch_is_found(lake: Lake) -> None:
    """Its rows must not pass for those of a batch that is under way."""
    schema, rows = read(lake.state / "ledger")
    newest = max(row["batch"] for row in rows)
    try:
        rewrite(lake.state / "ledger", [row for row in rows if row["batch"] != newest], schema)
        assert not is_clean(lake)
    finally:
        lake.mend()


def test_a_lake_that_was_changed_at_random_is_never_found_right(lake: Lake) -> None:
    assert is_clean(lake)
    missed, planted = [], set()
    for seed in range(MUTATIONS):
        fault = FAULTS[seed % len(FAULTS)]
        try:
            fault(lake, Random(seed))
        except Nothing:
            lake.mend()
            continue
        planted.add(fault)
        if is_clean(lake):
            missed.append((fault.__name__, seed))
        lake.mend()
    assert missed == []
    assert len(planted) >= min(MUTATIONS, len(FAULTS)) - 2
    assert is_clean(lake)
