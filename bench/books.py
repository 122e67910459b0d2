"""What it costs to be safe from power cuts, and from tables that others make anew."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, WrongRows, say
from distributary.config import Pipeline
from distributary.state.ledger import Entry, Ledger
from distributary.state.provenance import Provenance
from distributary.tables.commits import carries, has_commit, read_commit
from distributary.tables.datafile import write_data_file
from distributary.tables.durable import bring_to_disk
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Owner, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table

NOTE = (
    "The first cases: milliseconds until all that was just written is on the disk, a data file of 2,000 rows and a "
    "commit for each table. Ours: once for all of them (syncfs), twice a batch. Other: fsync of each file and its "
    "folder, in one thread. The next case: milliseconds of CPU time for a look at the newest commit before an append, "
    "a table. Ours: is it the stream's own? Other: is it there? The last cases: milliseconds of CPU time in the first "
    "batch of a run, a table of 10 commits. Ours: to ask whose rows it has, and whether this state knows of them. "
    "Other: to open it, write a data file of 2,000 rows and commit it; decoding is not in it."
)
COMMITS = 10
STORE = Store()
STREAM = "00000000-0000-0000-0000-000000000000"
ROWS = pa.table({"user": [f"player {n * 7919 % 2000}" for n in range(2_000)], "score": range(2_000)})


def run(place: Place) -> Result:
    counts = place.size((100, 1_000), (2, 3))
    cases = [_to_disk(place.part(str(count)), count) for count in counts]
    cases.append(_mark(place.part("mark"), place.size(200, 2)))
    cases += [_whose(place.part(f"whose-{count}"), count) for count in counts]
    return Result("books", NOTE, tuple(cases))


def _tables(root: Path, count: int, batch: int) -> list[str]:
    uris = [str(root / f"t{number}") for number in range(count)]
    for uri in uris:
        file = write_data_file(uri, ROWS, STORE)
        evolution = evolve(None, [ROWS.schema], Policy())
        Table(uri, STORE, Owner("bench", uri)).commit(None, evolution, [file], Txn("bench", batch))
    return uris


def _to_disk(place: Place, count: int) -> Case:
    os.sync()
    whole = _tables(place.root / "whole", count, 0)
    ours = _wall_ms(lambda: bring_to_disk([str(place.root)]))
    os.sync()
    single = _tables(place.root / "single", count, 0)
    other = _wall_ms(lambda: _each(single))
    if len(whole) != len(single):
        raise WrongRows("not as many tables")
    say(f"{count} tables: {ours:.1f} ms at once, {other:.1f} ms each by itself")
    return Case(f"{count:,} tables onto the disk", "ms", ours, other)


def _each(uris: Iterable[str]) -> None:
    for uri in uris:
        places = [found for found in Path(uri).rglob("*") if found.is_file()]
        for place in [*places, *{found.parent for found in places}]:
            opened = os.open(place, os.O_RDONLY)
            os.fsync(opened)
            os.close(opened)


def _mark(place: Place, count: int) -> Case:
    uris = _tables(place.root, count, 0)

    def own(uri: str) -> bool:
        text = read_commit(uri, STORE, 0)
        return text is not None and carries(text, Txn("bench", 0))

    ours, other = _cpu_ms(uris, own), _cpu_ms(uris, lambda uri: has_commit(uri, STORE, 0))
    say(f"{ours:.3f} ms to read a mark, {other:.3f} ms to see a commit")
    return Case("the newest commit of a table", "ms", ours, other)


def _whose(place: Place, count: int) -> Case:
    config = Pipeline.model_validate(
        {
            "pipeline": "bench",
            "source": {"type": "delta", "path": str(place.root / "source")},
            "registry": {"path": str(place.root / "registry")},
            "tables": {"root": str(place.root / "lake")},
        }
    )
    uris = {f"t{number}": [str(place.root / "lake" / f"t{number}")] for number in range(count)}
    for batch in range(COMMITS):
        _append(uris, batch)
    ledger = Ledger(config.state_root, "bench", STORE)
    done = [Entry(STREAM, COMMITS - 1, route, state="written") for route in uris]
    ledger.record(STREAM, COMMITS - 1, [*done, Entry(STREAM, COMMITS - 1, None)], {})
    provenance = Provenance(config, ledger)
    began = time.process_time()
    provenance.check(uris, STREAM, COMMITS)
    ours = 1000 * (time.process_time() - began) / count
    began = time.process_time()
    _append(uris, COMMITS)
    other = 1000 * (time.process_time() - began) / count
    say(f"{count} tables: {ours:.3f} ms to ask whose each is, {other:.3f} ms to write it")
    return Case(f"whose {count:,} tables are", "ms", ours, other)


def _append(uris: Mapping[str, Sequence[str]], batch: int) -> None:
    for route, (uri,) in uris.items():
        table = Table(uri, STORE, Owner("bench", route))
        found = table.open()
        evolution = evolve(columns_of(found), [ROWS.schema], Policy())
        table.commit(found, evolution, [table.write(ROWS)], Txn(STREAM, batch))


def _wall_ms(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _cpu_ms(uris: list[str], look: Callable[[str], bool]) -> float:
    began = time.process_time()
    if not all(look(uri) for uri in uris):
        raise WrongRows("a commit is not there")
    return 1000 * (time.process_time() - began) / len(uris)
