"""A real database that is written to, its log that is read into change files, and a pipeline over them that is killed;
all at the same time, for a while."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.tables.files import TableFiles
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary_simulate.change_files.files import Format
from distributary_simulate.change_files.stream import Pace, open_source, write_server
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.databases.servers import server
from distributary_simulate.databases.workload import Done, Workload, run_workload
from tests.extent import either
from tests.killing import run_and_kill
from tests.processes import SMALL_SPARK
from tests.shop import Shop

SECONDS = float(os.environ.get("DISTRIBUTARY_TEST_WRITER_SEC", either(20, 600)))
"""How long the writer goes on."""


@dataclass
class Told:
    """What was done meanwhile."""

    written: Done
    kills: int
    formats: tuple[str, ...]
    files: int


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def live(shop: Shop, url: str, formats: Sequence[Format], seed: int, *, schema_files: bool = False) -> Told:
    """Write to the database for `SECONDS`, columns changed on the way; read its log into files, in one format after the
    other; run the pipeline over them, and kill it; in the end let it finish."""
    place, state = server(url), shop.root / "stream.json"
    run_workload(place, Workload(rows=60, seconds=None, rate=0, transactions=1, schema_changes=0, seed=seed))
    # The stream begins with a backfill of the rows that are older than its place in the log, while they change.
    open_source(place, state)
    files: list[ChangeFiles] = []

    def write() -> Done:
        return run_workload(place, Workload(rows=0, seconds=SECONDS, rate=25, schema_changes=90, seed=seed + 1))

    def read(format: Format, seconds: float | None) -> None:
        """A process of its own, as far as its position goes: each begins where the one before it has got to."""
        made = ChangeFiles(FilesPlan(shop.files, format=format, rotate_ms=500, schema_files=schema_files))
        files.append(made)
        write_server(open_source(place, state), made, state, Pace(seconds), now_ms)

    def stream(writer: Future[Done]) -> None:
        for format in formats:
            read(format, SECONDS / len(formats))
        writer.result()
        read(formats[-1], None)

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(write)
        reader = pool.submit(stream, writer)
        kills = run_and_kill(
            shop.file,
            shop.root / "processes.log",
            random.Random(seed),
            lambda kills: kills >= 3 and reader.done(),
            wait_sec=(1.0, 7.0),
        )
        reader.result()
    written = [file for made in files for file in made.written]
    found = {file.path.rpartition("_")[2].partition(".")[2] for file in written}
    return Told(writer.result(), kills, tuple(sorted(found)), len(written))


def living_rows(shop: Shop, route: str) -> list[dict[str, Any]]:
    """Of a merged table, whichever engine has written it."""
    uri = shop.entry(route).merged
    assert uri is not None
    table = Table(uri, Store()).open()
    assert table is not None
    names = table.schema.names
    files = TableFiles(table)
    rows = [row for name in files.names for piece in files.read(name, names) for row in piece.to_pylist()]
    return [row for row in rows if not row["_deleted"]]


def shop_of(root: Path, **tables: Any) -> Shop:
    return Shop(
        root, tables=tables, source={"max_files_per_batch": 40}, trigger={"every": "1 second"}, spark=SMALL_SPARK
    )
