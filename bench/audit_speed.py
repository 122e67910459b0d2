"""What `verify` costs, beside a plain reader that looks at the same files, records and rows and compares nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
from deltalake import DeltaTable

from bench.measure import MIB, peak_memory
from bench.result import Case, Result
from bench.workload import CORES, Place, Workload, WrongRows, in_child, say
from distributary.audit.judge.changes import verify_changes
from distributary.audit.judge.opened_records import RecordOpener
from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.judge.plain_values import plain
from distributary.audit.verify import verify
from distributary.config import Pipeline
from distributary.running.stream import run as run_pipeline
from distributary_simulate.change_files.bulk import BulkPlan, write_bulk

NOTE = (
    "Microseconds of CPU time for an event or a record. Ours: `verify` (messages: with `--deep`, so that all are "
    "compared). Other: a plain reader makes Python values of the same files with fastavro, or of the same records with "
    "the official protobuf library, and of all rows of the tables, and compares nothing. Each in a process of its own; "
    "`peak` is its memory at most, before the first row `at rest`."
)


def run(place: Place) -> Result:
    counts = place.size((200_000, 1_000_000), (2_000, 4_000))
    cases = [_changes(place.part("changes").root, count) for count in counts]
    cases.append(_messages(place.part("messages").root, place.size(200_000, 2_000)))
    return Result("audit_speed", NOTE, tuple(cases))


# -- change files ------------------------------------------------------------------------------------------


def _changes(root: Path, events: int) -> Case:
    root = root / str(events)
    plan = BulkPlan(root / "files", events=events, tables=4, keys=max(100, events // 20))
    write_bulk(plan)
    in_child(_run_changes, root)
    ours, plainly = in_child(_measured, _verify_changes, root), in_child(_measured, _read_changes, root)
    return _case(f"{events:,} change events", events, ours, plainly)


def _config(root: Path) -> Pipeline:
    source = {"type": "datastream", "path": str(root / "files")}
    given = {"pipeline": "audit", "source": source, "tables": {"root": str(root / "lake")}}
    return Pipeline.model_validate({**given, "spark": {"master": f"local[{CORES}]"}})


def _run_changes(root: Path) -> None:
    run_pipeline(_config(root), once=True)


def _verify_changes(root: Path) -> None:
    found = verify_changes(_config(root))
    if found.problems or found.rows_written != found.rows_in:
        raise WrongRows(f"verify: {found.problems[:3]}")


def _read_changes(root: Path) -> None:
    for path in sorted((root / "files").rglob("*.avro")):
        with path.open("rb") as file:
            for _ in fastavro.reader(file):
                pass
    _read_tables(root / "lake")


def _read_tables(lake: Path) -> None:
    for log in sorted(lake.glob("[!._]*/_delta_log")):
        for batch in DeltaTable(str(log.parent)).to_pyarrow_dataset().to_batches(batch_size=4_096):
            for column in batch.columns:
                plain(column)


# -- messages ----------------------------------------------------------------------------------------------


def _messages(root: Path, records: int) -> Case:
    work = Workload(root, 4)
    work.feed_delta(records // 4)
    in_child(_run_messages, root)
    ours, plainly = in_child(_measured, _verify_messages, root), in_child(_measured, _read_messages, root)
    return _case(f"{records:,} records of a Delta source, --deep", records, ours, plainly)


def _games(root: Path) -> Pipeline:
    work = Workload(root, 4)
    return work.config("lake", work.delta_source(), trigger="once")


def _run_messages(root: Path) -> None:
    run_pipeline(_games(root), once=True)


def _verify_messages(root: Path) -> None:
    config = _games(root)
    found = judge_payloads(config, verify(config), deep=True)
    compared = sum(table.rows_compared for table in found.tables)
    if found.problems or found.notes or compared != found.rows_written or not compared:
        raise WrongRows(f"verify: {compared} rows compared, {found.problems[:3]} {found.notes[:3]}")


def _read_messages(root: Path) -> None:
    opener = RecordOpener(_games(root))
    for batch in DeltaTable(str(root / "source")).to_pyarrow_dataset().to_batches(columns=["value"]):
        for value in batch.column("value").to_pylist():
            if value is not None:
                _, schema_id, payload = opener.envelope(value)
                opener.message(*opener.payload(schema_id, payload))
    _read_tables(root / "lake")


# -- measures ----------------------------------------------------------------------------------------------


def _measured(work: Callable[[Path], None], root: Path) -> tuple[float, float, float]:
    """(seconds of CPU time of all threads, MiB at most, MiB before)."""
    before, began = _peak_mib(), time.process_time()
    work(root)
    return time.process_time() - began, _peak_mib(), before


def _peak_mib() -> float:
    return peak_memory() / MIB


def _case(label: str, rows: int, ours: tuple[float, ...], plainly: tuple[float, ...]) -> Case:
    details: dict[str, Any] = {"peak MiB": ours[1], "at rest MiB": ours[2], "plain reader's peak MiB": plainly[1]}
    say(f"{label}: {ours[0]:.1f} s of CPU time, the plain reader {plainly[0]:.1f} s; {ours[1]:.0f} MiB at most")
    return Case(label, "us", ours[0] / rows * 1e6, plainly[0] / rows * 1e6, details=details)
