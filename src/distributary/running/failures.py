"""What Spark says when a stream has ended, in our words: whose fault it is, and whether it may pass by itself.

By the types of the JVM's errors, which `java.lang.Throwable.toString` puts first, from the outermost to its causes;
only what follows a known type is read. Where the JVM can't be asked (Spark Connect) its text has the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from distributary.engine.workers import told_death, told_fault
from distributary.errors import (
    SourceDataLost,
    SourceDown,
    SourceHistoryGone,
    SourceReplaced,
    SourceRewritten,
    StoreDown,
    StreamTakenOver,
    WorkersDied,
)
from distributary.state.checkpoint_damage import wrong_sum
from distributary.tables.spark_engine import NETWORK, SPARK_ERRORS, causes_of

RESTARTS = 10
"""Outages in a row after which a run gives up; a finished batch starts the count anew."""
DEATHS = 3
"""Of a run that takes what is there and ends: it waits for no neighbour, but a batch whose workers died is tried again.
"""
_DISK = re.compile(
    r"(?:java\.io\.\w+|java\.nio\.file\.\w+|org\.apache\.hadoop\.fs\.\w+): .*?"
    r"(?:No space left on device|Disk quota exceeded|Read-only file system|Input/output error|Too many open files)\)?$"
)
_LOST = re.compile(r"^Reason: (.{1,400}?)(?:\nwith consumer group|$)", re.MULTILINE | re.DOTALL)
_OTHER_TABLE = re.compile(
    r"an unexpected Delta table \(id = '(?P<now>[^']*)'\)\..*?\(id = '(?P<began>[^']*)'\)", re.DOTALL
)
"""DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE, at a start."""
_LOST_TASK = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\)(?: \([^()\n]*\))?")
_TAKEN_OVER = re.compile(r"org\.apache\.spark\.[\w.$]+: \[CONCURRENT_STREAM_LOG_UPDATE\]")


def tries(error: Exception, once: bool) -> int:
    """How many outages in a row a run lives through, if they are like this one. `once`: it takes what is there."""
    if once:
        return DEATHS if isinstance(error, WorkersDied) else 0
    return RESTARTS


def translated(error: BaseException, source: str, checkpoint: str) -> BaseException:
    """A failure of Spark's in our words; any other error, and one that nobody knows, as it is."""
    if not isinstance(error, SPARK_ERRORS):
        return error
    text = str(error)
    if (fault := told_fault(text)) is not None:
        return fault
    if told_death(text):
        return WorkersDied(detail=_task(text))
    causes = list(causes_of(error)) or [line.strip().removeprefix("Caused by: ") for line in text.splitlines()]
    return _of_source(text, causes, source) or wrong_sum(text) or _of_store(causes, source, checkpoint) or error


def _of_source(text: str, causes: Sequence[str], source: str) -> Exception | None:
    if any(sign in text for sign in ("Some data may have been lost", "offset was changed from", "DATA_LOSS")):
        return SourceDataLost(source=source, detail=_lost(text) or _first(text))
    if any(sign in text for sign in ("DELTA_LOG_FILE_NOT_FOUND", "DELTA_VERSIONS_NOT_CONTIGUOUS")):
        return SourceHistoryGone(source=source, detail=_first(text))
    if "DELTA_SOURCE_TABLE_IGNORE_CHANGES" in text or "DELTA_SOURCE_IGNORE_DELETE" in text:
        return SourceRewritten(source=source, detail=_first(text))
    if (other := _OTHER_TABLE.search(text)) is not None:
        return SourceReplaced(source=source, began=other["began"], now=other["now"])
    return None


def _of_store(causes: Sequence[str], source: str, checkpoint: str) -> Exception | None:
    if any(_TAKEN_OVER.match(cause) for cause in causes):
        return StreamTakenOver(checkpoint=checkpoint)
    for cause in causes:
        if _DISK.match(cause):
            detail = f"{cause} (if that disk is well: the one of spark.local.dir)"
            return StoreDown(path=checkpoint, detail=detail)
    for cause in causes:
        if cause.startswith("org.apache.kafka.common.") or "TimeoutException" in cause.split(":", 1)[0]:
            return SourceDown(source=source, detail=cause[:300])
    for cause in causes:
        if NETWORK.match(cause):
            return StoreDown(path=checkpoint, detail=cause[:300])
    return None


def _lost(text: str) -> str | None:
    """Which offsets of which partition, where Kafka's source says it; its advice is about a setting that is ours."""
    match = _LOST.search(text)
    return None if match is None else " ".join(match[1].split())


def _task(text: str) -> str:
    match = _LOST_TASK.search(text)
    return "Spark does not say of which task" if match is None else f"Spark {match[0][0].lower()}{match[0][1:]}"


def _first(text: str) -> str:
    for line in text.splitlines():
        if "Caused by" in line or "Exception:" in line:
            return line.strip()[:300]
    return next(iter(text.strip().splitlines()), "")[:300]
