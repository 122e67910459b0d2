"""What becomes of a stream when something happens to it. Pure: time and chance come in as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distributary.backoff import Backoff
from distributary.errors import AlreadyRunning, BadInput, Exit, NeedsAttention, SourceMissing
from distributary.state.streams import StreamRecord, StreamState

LASTING_SECONDS = 3600.0

_PASSING = (AlreadyRunning, SourceMissing)
"""Bad input that may come right by itself: a run before this one still ends, a source is made by somebody else."""


def is_lasting(error: BaseException) -> bool:
    """An error that a new start does not mend."""
    return isinstance(error, BadInput | NeedsAttention) and not isinstance(error, _PASSING)


@dataclass(frozen=True)
class RestartPolicy:
    """When a stream that failed starts again. All times in seconds.

    After `tries` restarts in a row the circuit opens: the stream is parked, and tried once each `probe_sec`. A finished
    batch starts the count anew. `jitter`: chance makes a rest shorter by up to this part of it. `grace_sec`: what a
    stream gets to finish its batch.
    """

    tries: int = 10
    first_rest_sec: float = 30.0
    longest_rest_sec: float = 600.0
    jitter: float = 0.2
    probe_sec: float | None = LASTING_SECONDS
    grace_sec: float = 60.0

    def rest(self, failures: int, chance: float) -> float:
        """The rest after the failure number `failures` (from 1). `chance`: from 0 to 1."""
        return Backoff(self.first_rest_sec, self.longest_rest_sec, self.jitter).rest_sec(failures, chance)


@dataclass(frozen=True)
class Ending:
    """How a stream's process ended. `reported`: it said itself that its run was over. `lasting`: the error is one that
    a new start does not mend. A code below 0 is a signal's number."""

    code: int
    error: str | None = None
    condition: str | None = None
    lasting: bool = False
    reported: bool = False

    def text(self) -> str:
        if self.error:
            return self.error
        return f"killed by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


def started(record: StreamRecord, pid: int, now: float) -> StreamRecord:
    again = record.restarts + (record.exit_code is not None)
    return replace(record, state=StreamState.RUNNING, since=now, pid=pid, next_try=None, restarts=again)


def progressed(record: StreamRecord, report: Mapping[str, Any], now: float) -> StreamRecord:
    """A batch is finished (`report`: as `run --json` prints it): whatever was wrong before is over."""
    return replace(
        record,
        failures=0,
        error=None,
        condition=None,
        batch=report.get("batch"),
        batch_at=now,
        batch_sec=float(report.get("seconds", {}).get("total", 0.0)),
        last_rows=int(report.get("rows_in", 0)),
        rows_in=record.rows_in + report.get("rows_in", 0),
        rows_written=record.rows_written + report.get("rows_written", 0),
        quarantined=record.quarantined + report.get("rows_quarantined", 0),
        parked_tables=tuple(report.get("parked", ())),
    )


def ended(record: StreamRecord, ending: Ending, now: float, policy: RestartPolicy, chance: float) -> StreamRecord:
    """The process has ended by itself: well, or with a rest before its next start, or for good."""
    record = replace(record, pid=None, since=now, exit_code=ending.code, next_try=None)
    if ending.code == Exit.OK:
        return replace(record, state=StreamState.DONE, failures=0, error=None, condition=None)
    if ending.code == Exit.ATTENTION and ending.reported:
        return replace(record, state=StreamState.DONE, failures=0, error="tables are parked: see status")
    failures = record.failures + 1
    record = replace(record, failures=failures, error=ending.text(), condition=ending.condition)
    if ending.lasting:
        return replace(record, state=StreamState.PARKED)
    if failures > policy.tries:
        probe = None if policy.probe_sec is None else now + policy.probe_sec
        return replace(record, state=StreamState.PARKED, next_try=probe)
    return replace(record, state=StreamState.RESTING, next_try=now + policy.rest(failures, chance))


def stopped(record: StreamRecord, code: int, now: float) -> StreamRecord:
    """It ended because we asked it to."""
    return replace(record, state=StreamState.STOPPED, pid=None, since=now, exit_code=code, next_try=None)


def requested(record: StreamRecord, now: float) -> StreamRecord:
    """Somebody wants it to start now, with a new count. A running stream is left alone."""
    if record.state == StreamState.RUNNING:
        return record
    return replace(record, state=StreamState.WAITING, since=now, failures=0, next_try=now)


def is_due(record: StreamRecord, now: float) -> bool:
    if record.state == StreamState.WAITING:
        return True
    return record.next_try is not None and record.next_try <= now


def is_over(record: StreamRecord) -> bool:
    """Nothing more will come of it by itself."""
    return record.state in (StreamState.DONE, StreamState.STOPPED) or (
        record.state == StreamState.PARKED and record.next_try is None
    )


def is_well(record: StreamRecord) -> bool:
    """Does it end a supervisor's work with exit code 0? A stream that we stopped while it was failing does not."""
    ended_well = record.state in (StreamState.DONE, StreamState.STOPPED, StreamState.RUNNING)
    return ended_well and record.error is None and not record.parked_tables
