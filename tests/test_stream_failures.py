"""What ends a stream, in our words: from the JVM's errors by their types, and from a worker's by what it noted."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PythonException

from distributary.config import Trigger
from distributary.engine.messages.spool import write_spool
from distributary.engine.workers import in_worker, told_death, told_fault
from distributary.errors import DistributaryError, SourceDown, StoreDown
from distributary.running import stream
from distributary.running.failures import DEATHS, RESTARTS, translated, tries
from distributary.running.stream import Run
from distributary.sources.data_files import BatchFiles, Piece, SourceColumn, SourceFile
from distributary.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from distributary.config import Pipeline

LOST = (
    "org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not\n"
    "available, set the source option failOnDataLoss to false.\n"
    "Reason: Could not read records in offset [30, 50) for topic partition events-1\nwith consumer group x."
)
FULL = "java.io.IOException: No space left on device"
SEALED = "java.io.FileNotFoundException: /c/offsets/.1.tmp (Read-only file system)"
LATE = "org.apache.kafka.common.errors.TimeoutException: Timeout of 3000ms expired"


class Throwable:
    """Of the JVM."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def toString(self) -> str:
        return self._texts[0]

    def getCause(self) -> Throwable | None:
        return Throwable(*self._texts[1:]) if self._texts[1:] else None


class FromJava(Py4JError):  # type: ignore[misc]
    """As a job raises it: what it says is the whole stack."""

    def __init__(self, *texts: str) -> None:
        super().__init__("An error occurred while calling o1.getResult.\n: " + "\nCaused by: ".join(texts))
        self.java_exception = Throwable(*texts)


@pytest.mark.parametrize(
    ("texts", "condition"),
    [
        ((LOST,), "SOURCE_DATA_LOST"),
        ((FULL,), "STORE_DOWN"),
        ((SEALED,), "STORE_DOWN"),
        ((LATE,), "SOURCE_DOWN"),
        (("org.apache.spark.SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update",), "STREAM_TAKEN_OVER"),
        (("java.net.ConnectException: Connection refused",), "STORE_DOWN"),
        (("org.apache.hadoop.fs.s3a.AWSServiceThrottledException: slow: 503",), "STORE_DOWN"),
    ],
)
def test_a_cause_below_spark_s_own_errors_is_said_in_our_words(texts: tuple[str, ...], condition: str) -> None:
    wrapped = ("org.apache.spark.SparkException: Exception thrown in awaitResult: ", "java.lang.Exception: x", *texts)
    found = translated(FromJava(*wrapped), "Kafka h:1", "/state/checkpoint")
    assert isinstance(found, DistributaryError)
    assert found.condition == condition
    named = next(found.parameters[n] for n in ("source", "path", "checkpoint") if n in found.parameters)
    assert named in ("Kafka h:1", "/state/checkpoint")


BROKEN = "java.io.IOException: Broken pipe\n\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)"


@pytest.mark.parametrize(
    ("text", "died"),
    [
        (f"{BROKEN}\n\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)", True),
        (f"{BROKEN}\n\tat org.apache.spark.sql.execution.python.PythonArrowInput.x(A.scala:1)", True),
        (
            "java.io.EOFException: No port number\n\tat org.apache.spark.api.python.PythonWorkerFactory.x(A.scala:1)",
            True,
        ),
        (
            f"{BROKEN}\n\tat com.store.S3.read(A.java:1)\n\tat org.apache.spark.api.python.BasePythonRunner.x(A:1)",
            False,
        ),
        ('Cannot run program "p"\n\tat org.apache.spark.api.python.PythonWorkerFactory.x(A.scala:1)', False),
        ("org.apache.spark.api.python.PythonException: Traceback\n\tat org.apache.spark.api.python.X.y(A:1)", False),
    ],
)
def test_a_broken_pipe_to_a_worker_is_told_from_one_to_the_source(text: str, died: bool) -> None:
    assert told_death(text) is died


def test_workers_that_died_are_no_fault_of_the_store_whose_error_their_broken_pipe_looks_like() -> None:
    texts = (
        "org.apache.spark.SparkException: Job aborted: Lost task 0.0 in stage 3.0 (TID 6) (host executor driver)",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'a'",
        "java.net.SocketException: Connection reset",
    )
    found = translated(FromJava(*texts), "Kafka h:1", "/state/checkpoint")
    assert isinstance(found, DistributaryError)
    assert found.condition == "WORKERS_DIED"
    assert found.parameters["detail"] == "Spark lost task 0.0 in stage 3.0 (TID 6) (host executor driver)"
    assert tries(found, once=True) == DEATHS
    assert tries(found, once=False) == tries(StoreDown(path="", detail=""), once=False) == RESTARTS
    assert tries(StoreDown(path="", detail=""), once=True) == 0


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.IllegalStateException: table No space left on device",
        "java.lang.RuntimeException: org.apache.kafka is a name, TimeoutException too",
        "java.io.IOException: /lake/No space left on device/x is no folder",
    ],
)
def test_what_only_reads_like_an_outage_stays_what_it_is(text: str) -> None:
    error = FromJava(text)
    assert translated(error, "s", "c") is error


def test_an_error_that_is_not_spark_s_stays_what_it_is() -> None:
    error = KeyError("x")
    assert translated(error, "s", "c") is error


def fail(error: Exception) -> Any:
    raise error


def from_worker(task: Any) -> PythonException:
    """The error of a task as Spark brings it to the driver: its text."""
    try:
        list(task(iter([])))
    except Exception:
        return PythonException(f"An exception was thrown from the Python worker:\n{traceback.format_exc()}")
    raise AssertionError("it raised nothing")


def test_an_outage_in_a_worker_is_that_outage_in_the_driver(tmp_path: Path) -> None:
    @in_worker
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        yield write_spool(str(tmp_path / "gone"), [pa.py_buffer(b"x")])

    found = translated(from_worker(task), "s", "c")
    assert isinstance(found, StoreDown)
    assert found.parameters["path"] == str(tmp_path / "gone")


def test_an_outage_goes_through_tasks_within_tasks_once() -> None:
    @in_worker
    def inner(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        yield from map(fail, [StoreDown(path="p", detail="a\nline")])

    @in_worker
    def outer(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        yield from inner(batches)

    found = told_fault(str(from_worker(outer)))
    assert isinstance(found, StoreDown) and found.parameters == {"path": "p", "detail": "a\nline"}


class Away(Store):
    def open(self, folder: str, name: str) -> pa.NativeFile:
        raise ConnectionResetError(104, "reset")


def test_a_source_whose_store_is_away_in_a_worker_is_an_outage_of_the_source() -> None:
    piece = Piece(SourceFile("a.parquet", 10, {}), 0, 10)
    files = BatchFiles("/lake/source", (SourceColumn("value", "value", pa.binary()),), ((piece,),), Away())

    @in_worker
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        yield from files.read(0)

    found = translated(from_worker(task), "s", "c")
    assert isinstance(found, SourceDown) and found.parameters["source"] == "/lake/source"


@pytest.mark.parametrize("said", ['{"is": "DistributaryError", "detail": "x"}', '{"is": "no_such"}'])
def test_only_outages_are_told(said: str) -> None:
    assert told_fault(f"distributary fault {said}") is None


def test_a_fault_of_a_worker_that_is_no_outage_is_none() -> None:
    @in_worker
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        yield from map(fail, [ValueError("distributary fault")])

    assert told_fault(str(from_worker(task))) is None


def test_offsets_that_are_gone_are_named_and_no_setting_that_is_not_ours() -> None:
    found = translated(FromJava(LOST), "Kafka h:1", "c")
    assert isinstance(found, DistributaryError)
    assert found.parameters["detail"] == "Could not read records in offset [30, 50) for topic partition events-1"


class Failing(Run):
    """A run without Spark, whose batch fails with all its rows in hand."""

    def __init__(self, error: BaseException) -> None:
        config = SimpleNamespace(state_root="/state", trigger=Trigger())
        self.config, self.error, self.intake = cast("Pipeline", config), error, None
        self._stream, self._stopping, self._busy = threading.Event(), threading.Event(), threading.Lock()
        self._failure = self._raised = None
        self._stream.set()

    def _take(self, rows: Any, batch: int) -> None:
        table = pa.table({"a": [batch]})
        self.held = weakref.ref(table)
        raise self.error

    def _query(self, once: bool) -> None:
        pass


@pytest.mark.parametrize(
    "error", [SourceDown(source="k", detail="x"), OSError(28, "No space left")], ids=["ours", "os"]
)
def test_a_batch_that_failed_is_not_kept_by_what_spark_was_told_once_the_next_query_begins(error: Exception) -> None:
    run = Failing(error)
    with pytest.raises(type(error)) as kept_by_pyspark:
        run._batch(cast("DataFrame", None), 7)
    assert isinstance(run._failure, StoreDown if isinstance(error, OSError) else SourceDown)
    assert run.held() is not None
    run._run_query(True)
    assert run.held() is None
    assert kept_by_pyspark.value is error


class Recovering(Failing):
    """Its source is away for the first two queries."""

    def __init__(self) -> None:
        super().__init__(SourceDown(source="Kafka h:1", detail="it does not answer"))
        self.store, self._outages, self.queries = Store(), 0, 0

    def _query(self, once: bool) -> None:
        self.queries += 1
        if self.queries <= 2:
            raise self.error


def test_a_stream_that_begins_again_after_an_outage_says_why_and_how_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FIRST_REST_SEC", 0.01)
    run = Recovering()
    assert run._run_queries(False)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.count(f"(restart {n} of {RESTARTS})") for n, text in enumerate(said, 1)] == [1, 1]
    assert all("Kafka h:1" in text and "it does not answer" in text for text in said)
