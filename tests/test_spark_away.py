"""Engine `spark` while a store or a catalog does not answer: in the middle of making a table, an append, a MERGE. The
batch fails and is tried again, as with engine `task`; no route is parked for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from py4j.protocol import Py4JNetworkError

from distributary.engine.attempts import RouteFault, end_attempt
from distributary.engine.decisions import Decision
from distributary.engine.messages.attempt import Attempt
from distributary.engine.outcomes import Append, Delivered, Fault, Merge, Outcome
from distributary.errors import Outage, StoreDown
from distributary.errors.border import TableFault
from distributary.tables.outage import is_store_fault
from distributary.tables.spark_engine import SPARK_ERRORS, SparkEngineError, asking
from distributary.tables.table import retried
from tests.conftest import needed
from tests.faults.proxy import WELL, Proxy, Rule
from tests.faults.proxy import Fault as Answer
from tests.killing import processes
from tests.processes import SMALL_SPARK
from tests.scenarios import Scenario, message
from tests.services import hadoop
from tests.services.stores import S3
from tests.test_stream_failures import BROKEN, FromJava

TRIED = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times"
UNITY = "io.unitycatalog.client.ApiException: getTable call failed with"
AWAY = [
    "java.net.ConnectException: Connection refused",
    "java.net.http.HttpConnectTimeoutException: HTTP connect timed out",
    "java.net.SocketTimeoutException: Read timed out",
    "java.io.IOException: HTTP/1.1 header parser received no bytes",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException: PUT 0-object on a/b: (Status Code: 503)",
    "org.apache.hadoop.fs.s3a.AWSClientIOException: Unable to execute HTTP request",
    "org.apache.hadoop.fs.s3a.HttpChannelEOFException: listObjects() on s3a://b/t",
    "org.apache.http.NoHttpResponseException: The target server failed to respond",
    "org.apache.http.conn.ConnectTimeoutException: Connect to 127.0.0.1:1 timed out",
    "software.amazon.awssdk.services.s3.model.S3Exception: no (Service: S3, Status Code: 401, Request ID: null)",
    "org.apache.hadoop.fs.s3a.AWSBadRequestException: PUT 0-byte object on lake/a/_delta_log/1.json: "
    "software.amazon.awssdk.services.s3.model.S3Exception: The provided token has expired. (Service: S3, "
    "Status Code: 400, Request ID: X, Extended Request ID: Y):ExpiredToken: The provided token has expired.",
    "software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate. (Service: S3, "
    "Status Code: 503, Request ID: X)",
    "software.amazon.awssdk.services.s3.model.S3Exception: The provided token has expired. (Service: S3, "
    "Status Code: 400, Request ID: X)",
    "com.amazon.ws.emr.hadoop.fs.shaded.com.amazonaws.services.s3.model.AmazonS3Exception: Slow Down (Service: Amazon "
    "S3; Status Code: 503; Error Code: 503 Slow Down; Request ID: X; S3 Extended Request ID: Y; Proxy: null)",
    "com.amazonaws.services.s3.model.AmazonS3Exception: The provided token has expired. (Service: Amazon S3; "
    "Status Code: 400; Error Code: ExpiredToken; Request ID: X)",
    'org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException: Operation failed: "The server is '
    'busy.", 503, PUT, https://x.dfs.core.windows.net/lake/a, ServerBusy, "Operations per second is over the limit."',
    'org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException: Operation failed: "x", 429, GET, '
    "https://x.dfs.core.windows.net/lake/a, TooManyRequests",
    "org.apache.hadoop.fs.azurebfs.oauth2.AzureADAuthenticator$HttpException: HTTP Error 503; url='https://login'",
    "com.google.cloud.hadoop.repackaged.gcs.com.google.api.client.googleapis.json.GoogleJsonResponseException: "
    "429 Too Many Requests",
    "com.google.api.client.googleapis.json.GoogleJsonResponseException: 503 Service Unavailable",
    "javax.net.ssl.SSLException: Connection reset",
    f"{UNITY}: 503 - [no body]",
    f"{UNITY}: 401 - token has ended",
]
THEIRS = [
    "org.apache.spark.sql.delta.DeltaAnalysisException: [DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields",
    "org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] `java.net.ConnectException` cannot be found",
    "java.nio.file.AccessDeniedException: s3a://b/java.net.ConnectException: Forbidden (Status Code: 403)",
    "software.amazon.awssdk.services.s3.model.S3Exception: no (Service: S3, Status Code: 403, Request ID: 401)",
    "java.io.IOException: HTTP/1.1 is what the table is called",
    "java.nio.file.AccessDeniedException: s3a://b/ExpiredToken: (Service: S3, Status Code: 403, X):AccessDenied",
    'org.apache.hadoop.fs.azurebfs.contracts.exceptions.AbfsRestOperationException: Operation failed: "x", 404, GET, '
    "https://x.dfs.core.windows.net/lake/503, PathNotFound",
    "com.google.api.client.googleapis.json.GoogleJsonResponseException: 403 Forbidden",
    f"{UNITY}: 403 - no right to `503`",
    f"{UNITY}: 500 - of this one table",
    f"{UNITY}: 404 - call failed with: 503",
]


def ended_by(*texts: str) -> BaseException:
    """What engine `spark` raises for an error with these causes."""
    with pytest.raises((SparkEngineError, ConnectionError)) as raised, asking(SparkEngineError):
        raise FromJava(TRIED, *texts)
    return raised.value


def test_what_is_said_of_an_error_is_what_a_worker_raised_or_java_threw_and_not_py4js_own_words() -> None:
    python = (
        "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] thrown from the Python worker: "
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nValueError: x\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in g\n    g()\n'
        "distributary.errors.tables.ExpectationBroken: strict: 1 rows break it\n\n\tat org.apache.spark.Task\n"
    )
    assert str(ended_by(python)) == "ExpectationBroken: strict: 1 rows break it"
    assert str(ended_by("java.lang.IllegalStateException: closed")) == TRIED


@pytest.mark.parametrize("text", AWAY)
def test_what_does_not_answer_ends_the_batch_and_parks_no_table(text: str) -> None:
    error = ended_by("java.lang.RuntimeException: x", text)
    assert is_store_fault(error) and text in str(error)
    with pytest.raises(StoreDown, match=r"s3a://lake/a"):
        end_attempt(error, "a", "s3a://lake/a")


def test_a_store_that_did_not_answer_a_task_is_known_where_only_the_jobs_error_tells() -> None:
    met = "java.net.SocketTimeoutException: Read timed out"
    task = (
        "Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 4) (host executor 1)"
    )
    error = ended_by(f"org.apache.spark.SparkException: Job aborted due to stage failure: {task}: {met}\n\tat x.Y")
    assert isinstance(error, ConnectionError) and str(error) == met


@pytest.mark.parametrize("text", THEIRS)
def test_what_is_wrong_with_a_table_parks_it_alone(text: str) -> None:
    error = ended_by(text)
    assert isinstance(error, SparkEngineError) and not is_store_fault(error)
    with pytest.raises(RouteFault) as raised:
        end_attempt(error, "a", "s3a://lake/a")
    assert raised.value.route == "a"


@pytest.mark.parametrize(
    "text",
    [
        "java.nio.file.AccessDeniedException: s3a://lake/a/_delta_log: getFileStatus on s3a://lake/a: (403)",
        "software.amazon.awssdk.services.s3.model.S3Exception: null (Service: S3, Status Code: 403, Request ID: 1)",
    ],
)
def test_a_403_of_s3_is_said_with_the_right_that_may_be_missing(text: str) -> None:
    """Without s3:ListBucket, S3 answers 403 in place of 404 to a HEAD, whose answer has no body."""
    error = ended_by("org.apache.spark.SparkException: Job aborted", text)
    assert str(error).startswith(text) and "s3:ListBucket" in str(error) and "docs/stores.md" in str(error)
    other = ended_by("java.lang.IllegalStateException: java.nio.file.AccessDeniedException: s3a://lake (403)")
    assert "s3:ListBucket" not in str(other)


FIRST = [
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException: [DELTA_CONCURRENT_WRITE] there has been one",
    "io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict",
    "io.delta.exceptions.MetadataChangedException: [DELTA_METADATA_CHANGED] The metadata of the table has changed",
    "io.delta.exceptions.ProtocolChangedException: [DELTA_PROTOCOL_CHANGED] The protocol has been changed",
]


@pytest.mark.parametrize("text", FIRST)
def test_a_write_of_sparks_before_which_another_writer_came_is_done_again(text: str) -> None:
    tried: list[int] = []

    def write() -> int:
        tried.append(1)
        with asking(SparkEngineError):
            if len(tried) < 3:
                raise FromJava(TRIED, text)
        return len(tried)

    assert retried(write) == 3
    assert isinstance(ended_by(text), SparkEngineError), "where it never ends, the table is parked"


def test_a_table_that_is_looked_at_is_told_from_a_catalog_that_is_away_in_the_same_way() -> None:
    with pytest.raises(TableFault), asking():
        raise FromJava(THEIRS[0])
    with pytest.raises(ConnectionError), asking():
        raise FromJava(AWAY[0])
    with pytest.raises(Py4JNetworkError), asking():
        raise Py4JNetworkError("Answer from Java side is empty")


def test_an_outage_that_a_worker_of_the_append_has_met_is_said_as_the_worker_did() -> None:
    noted = 'distributary fault {"is": "StoreDown", "path": "/state", "detail": "full"}'
    with pytest.raises(Outage, match="full"):
        end_attempt(ended_by(f"org.apache.spark.api.python.PythonException: Traceback\n{noted}\n"), "a", "/lake/a")


def test_a_worker_that_died_in_the_append_is_no_fault_of_the_table_or_the_store() -> None:
    """Its broken pipe looks like a network's. The search for records that end their reader comes first."""
    pipe = BROKEN.replace("java.io.IOException", "java.net.SocketException")
    with pytest.raises(SPARK_ERRORS):
        end_attempt(ended_by(f"{pipe}\n\tat org.apache.spark.api.python.BasePythonRunner.x(A:1)"), "a", "/lake/a")


def test_a_store_that_is_away_in_the_merge_of_a_route_that_several_tasks_write_parks_nothing() -> None:
    attempt = Attempt.__new__(Attempt)
    attempt.spec = cast(Any, SimpleNamespace(decision=lambda route: Decision().shared(), decisions={"a": Decision()}))
    merge = Merge("/lake/a", "parked", Fault("no answer", of_store=True))
    with pytest.raises(StoreDown, match="no answer"):
        attempt._check(Delivered({"a": Outcome("a", "/lake/a_log", merge=merge)}))


def test_a_table_that_spark_has_written_does_not_make_a_fault_of_all_others_their_own() -> None:
    """It was written before the tasks began, and by another client."""
    attempt, decisions = Attempt.__new__(Attempt), {"c": Decision("counted")}
    attempt.spec = cast(Any, SimpleNamespace(decision=lambda route: decisions.get(route, Decision())))
    fault = Fault("what nobody knows", below=True)
    outcomes = {route: Outcome(route, f"/lake/{route}", fault=fault) for route in "ab"}
    with pytest.raises(StoreDown, match="what nobody knows"):
        attempt._check(Delivered({**outcomes, "c": Outcome("c", "/lake/c", append=Append("written"))}))


# -- a store that really does not answer -------------------------------------------------------------------

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
GIVES_UP_SOON = {
    f"spark.hadoop.fs.s3a.{name}": value
    for name, value in {
        "attempts.maximum": "1",
        "retry.limit": "1",
        "retry.interval": "50ms",
        "retry.throttle.limit": "1",
        "retry.throttle.interval": "50ms",
        "connection.timeout": "3s",
    }.items()
}
"""As it does by itself after some minutes."""
SLOW_DOWN = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>slow</Message></Error>'
BREAKS = {
    "as the tables are made": Rule(Answer.dropped(), r"^PUT .*/_delta_log/"),
    "as the log's rows are written": Rule(Answer.answer(503, SLOW_DOWN), r"^PUT .*/a_log/[^_].*\.parquet"),
    "as the merge reads its table": Rule(Answer.dropped(), r"^GET .*/a/[^_].*\.parquet"),
    "as the merge is committed": Rule(Answer.dropped(), r"^PUT .*/a/_delta_log/"),
}
USERS = 5
AWAY_SEC = 4
"""After the first request that has met it: longer than Spark tries by itself here, so that batches fail."""


@pytest.mark.spark
@pytest.mark.services
def test_a_store_that_is_away_in_the_middle_of_spark_s_writes_parks_nothing(s3: S3, lake: Path) -> None:
    """Spark's requests only go by the proxy: ours, which find it away as a table is opened, would end the batch."""
    with needed():
        conf = hadoop.s3a(s3)
    bucket, log = s3.bucket(), lake / "run.log"
    log.touch()
    with Proxy(s3.endpoint) as proxy:
        spark = {**SMALL_SPARK["conf"], **conf, **GIVES_UP_SOON, "spark.hadoop.fs.s3a.endpoint": proxy.endpoint}
        tables = {"root": f"s3a://{bucket.name}/lake", "storage_options": dict(s3.options), "engine": "spark"}
        scenario = Scenario(
            lake,
            state=str(lake / "state"),
            tables={**tables, "keys": ["user"], "log": "{route}_log"},
            spark={**SMALL_SPARK, "conf": spark},
            trigger={"every": "1 second"},
        )

        def rows(table: str) -> list[dict[str, Any]]:
            try:
                found = DeltaTable(f"{bucket.url}/lake/{table}", storage_options=dict(s3.options))
            except TableNotFoundError:
                return []
            return list(found.to_pyarrow_table(columns=["user", "score"]).to_pylist())

        with processes(scenario.file, log, 1) as following:
            process = following()
            process.go(["run", str(scenario.file)])
            for n, (when, rule) in enumerate(BREAKS.items()):
                proxy.rule, hits = rule, proxy.hits
                known = scenario.schema("a-value", EVENT)
                scenario.send(
                    *(
                        scenario.event("a", known, message(EVENT, "event", user=f"u{user}", score=n))
                        for user in range(USERS)
                    )
                )
                wait(lambda: proxy.hits > hits, f"{when}: nobody met it", log)  # noqa: B023
                time.sleep(AWAY_SEC)
                proxy.rule = WELL
                wait(lambda: len(rows("a_log")) == (n + 1) * USERS, f"{when}: the log", log)  # noqa: B023
                wait(lambda: {row["score"] for row in rows("a")} == {n}, f"{when}: the merged table", log)  # noqa: B023
    assert Counter(row["user"] for row in rows("a")) == {f"u{n}": 1 for n in range(USERS)}
    assert Counter(row["score"] for row in rows("a_log")) == dict.fromkeys(range(len(BREAKS)), USERS)
    assert "PARKED" not in log.read_text()
    assert not scenario.quarantined()
    assert {entry.state for entry in scenario.entries() if entry.route} <= {"written", "replayed"}


def wait(holds: Callable[[], bool], what: str, log: Path) -> None:
    end = time.monotonic() + 480
    while not holds():
        assert time.monotonic() < end, f"{what}\n{log.read_text()[-6000:]}"
        time.sleep(0.3)
