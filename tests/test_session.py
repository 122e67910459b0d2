from __future__ import annotations

import gc
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.cli.signals import Stopper
from distributary.errors import EnvironmentFault, Exit, JavaMissing, SparkNotStarted
from distributary.spark import launcher, session
from distributary.spark.launcher import Jars, explained
from pyspark_distributary.worker import QUICKACK, AtOnce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`code` in a process of its own: a JVM can be started only once in a process."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


# -- settings ----------------------------------------------------------------------------------------------


def test_the_jars_have_the_versions_of_the_installed_packages() -> None:
    delta, kafka = (coordinate.split(":") for coordinate in session.PACKAGES)
    assert delta[2] == version("delta-spark")
    assert kafka[2] == version("pyspark")


def test_a_callers_setting_wins_over_ours() -> None:
    settings = session._settings("app", "local[2]", {"spark.driver.memory": "8g", "spark.ui.enabled": "true"})
    assert settings["spark.driver.memory"] == "8g"
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.app.name"] == "app"
    assert settings["spark.master"] == "local[2]"


def test_a_callers_extensions_and_java_options_are_joined_with_ours() -> None:
    wanted = {"spark.sql.extensions": "a.B", "spark.driver.extraJavaOptions": "-Dx=1"}
    settings = session._settings("app", "local[2]", wanted)
    assert settings["spark.sql.extensions"] == f"a.B,{session.EXTENSION}"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:")
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dx=1")


def test_a_callers_log_setting_is_the_only_one() -> None:
    option = "-Dlog4j2.configurationFile=file:/mine.properties"
    settings = session._settings("app", "local", {"spark.driver.extraJavaOptions": option})
    assert settings["spark.driver.extraJavaOptions"] == option


def test_a_short_lived_jvm_leaves_its_second_compiler_out_unless_the_caller_wants_it() -> None:
    options = "spark.driver.extraJavaOptions"
    assert session.SHORT_JAVA in session._settings("app", "local", {}, short_lived=True)[options]
    assert session.SHORT_JAVA not in session._settings("app", "local", {})[options]
    wanted = session._settings("app", "local", {options: "-XX:TieredStopAtLevel=4"}, short_lived=True)[options]
    assert wanted.endswith(f"{session.SHORT_JAVA} -XX:TieredStopAtLevel=4")


def test_a_cluster_gets_no_settings_of_one_machine() -> None:
    settings = session._settings("app", "yarn", {}, local_state=True)
    assert not (session.LOCAL_CONF | session.LOCAL_STATE_CONF).keys() & settings.keys()


def test_checkpoints_are_renamed_without_hadoops_processes_only_where_they_lie_on_this_machine() -> None:
    assert session.LOCAL_STATE_CONF.items() <= session._settings("app", "local", {}, local_state=True).items()
    assert not session.LOCAL_STATE_CONF.keys() & session._settings("app", "local", {}).keys()


# -- jars --------------------------------------------------------------------------------------------------


def test_jars_are_asked_from_ivy_once_and_then_known_by_path(tmp_path: Path) -> None:
    jar = tmp_path / "a jar.jar"
    jar.touch()
    jars = Jars(tmp_path / "cache", ["g:a:1"], ["org.slf4j:*"], {})
    with jars.first_start_alone():
        assert jars.settings() == {"spark.jars.packages": "g:a:1", "spark.jars.excludes": "org.slf4j:*"}
        jars.remember(jar.as_uri())
    again = Jars(tmp_path / "cache", ["g:a:1"], ["org.slf4j:*"], {"spark.jars": "own.jar"})
    assert again.settings() == {"spark.jars": f"own.jar,{jar.as_uri()}", "spark.jars.packages": ""}


def test_hadoops_parts_for_object_stores_are_not_left_out() -> None:
    """`spark.jars.packages: org.apache.hadoop:hadoop-aws:3.5.0`: Ivy drops what is excluded, also where it is named."""
    parts = [entry.split(":") for entry in session.SHIPPED_BY_SPARK]
    assert {len(part) for part in parts} == {2}
    assert {artifact for group, artifact in parts if group == "org.apache.hadoop"} == {
        "hadoop-client-api",
        "hadoop-client-runtime",
    }


def test_a_jar_that_was_deleted_is_asked_for_again(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    jars = Jars(tmp_path / "cache", ["g:a:1"], [], {})
    with jars.first_start_alone():
        jars.remember(jar.as_uri())
    jar.unlink()
    assert jars.settings()["spark.jars.packages"] == "g:a:1"


def test_other_packages_or_repositories_are_another_list(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    jars = Jars(tmp_path / "cache", ["g:a:1"], [], {})
    with jars.first_start_alone():
        jars.remember(jar.as_uri())
    assert Jars(tmp_path / "cache", ["g:a:2"], [], {}).known() == []
    assert Jars(tmp_path / "cache", ["g:a:1"], [], {"spark.jars.ivy": "/i"}).known() == []


def test_a_cache_that_cannot_be_written_only_costs_the_next_look_up(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    jars = Jars(tmp_path / "file", ["g:a:1"], [], {})
    with jars.first_start_alone():
        jars.remember((tmp_path / "file").as_uri())
    assert jars.known() == []


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (":: io.delta#delta;4: not found\nunresolved dependency: io.delta#delta;4: not found]", "io.delta#delta;4"),
        ("Invalid maximum heap size: -Xmxabc\nError: Could not create", "heap size: -Xmxabc. Check spark.driver.mem"),
        ("An error occurred\n: java.lang.IllegalStateException: bad\n\tat a.b.Error.c", "IllegalStateException: bad."),
        # Hadoop 3.5, and 3.4, of a process whose user has no line in /etc/passwd.
        ("java.io.IOException: Invalid UID, could not determine effective user\n\tat org", "a number and no name, and"),
        (
            "auth.login.LoginException: java.lang.NullPointerException: invalid null input: name\n",
            "useradd --uid NUMBER",
        ),
        ("first\nlast words\n", "last words."),
        ("", "without a word"),
    ],
)
def test_what_the_jvm_printed_is_explained(printed: str, said: str) -> None:
    error = explained(printed)
    assert error.condition == "SPARK_NOT_STARTED"
    assert error.exit_code is Exit.ENVIRONMENT
    assert said in str(error)


def test_a_jvm_that_does_not_start_is_explained_by_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin" / "java"
    binary.write_text("#!/bin/sh\necho 'Invalid maximum heap size: -Xmx9z' >&2\nexit 1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    reason = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves the stdin of a dead JVM open
        try:
            launcher.launch({"spark.master": "local[1]"}, launcher.Console(), os.environ)
        except SparkNotStarted as error:
            reason = str(error)
        gc.collect()
    assert "heap size: -Xmx9z" in reason


def test_without_java_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> Path:
        raise JavaMissing()

    monkeypatch.setattr(session, "find_java", missing)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(JavaMissing):
        session.build_session("app")


@pytest.mark.parametrize("name", ["SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"])
def test_where_spark_is_a_connect_server_a_run_is_refused_in_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv(name, "sc://serverless")
    with pytest.raises(EnvironmentFault, match=r"serverless compute.*dedicated access mode.*docs/sink\.md"):
        session.build_session("app")


@pytest.mark.spark
def test_a_start_is_silent_and_a_failed_one_can_be_followed_by_a_good_one(tmp_path: Path) -> None:
    done = run_python(
        """
        import os
        from distributary.errors import SparkNotStarted
        from distributary.spark.session import build_session
        names = ("JAVA_HOME", "PYSPARK_PYTHON")
        before = [os.environ.get(name) for name in names]
        try:
            build_session("bad", master="local[1]", conf={"spark.driver.port": "99999999"})
        except SparkNotStarted as error:
            print(error.parameters["detail"])
        spark = build_session("good", master="local[1]")
        print(spark.range(3).count())
        spark.stop()
        spark = build_session("again", master="local[1]")
        print(spark.range(4).count(), [os.environ.get(name) for name in names] == before)
        """,
        tmp_path,
    )
    assert done.stderr == ""
    reason, *counts = done.stdout.splitlines()
    assert "startPort" in reason
    assert counts == ["3", "4 True"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("old_signals")
def test_a_signal_that_comes_while_the_jvm_starts_comes_when_it_is_up(number: int) -> None:
    Stopper()
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit), launcher.signals_kept_back():
        signal.raise_signal(number)
        is_up = True
    assert is_up
    with launcher.signals_kept_back():
        pass
    # Elsewhere a signal does not reach a thread that starts one.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: launcher.signals_kept_back().__enter__()).result() is None


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


@pytest.mark.spark
def test_a_stop_while_the_jvm_starts_leaves_no_jvm(tmp_path: Path) -> None:
    code = """
        from distributary.cli.signals import Stopper
        from distributary.spark.session import build_session

        Stopper()
        build_session("stopped", master="local[1]")
    """
    process = psutil.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path)
    started: list[psutil.Process] = []
    try:
        while not started and process.poll() is None:
            started = [one for one in process.children() if "org.apache.spark.deploy.SparkSubmit" in _command(one)]
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert (process.wait(480), len(started)) == (0, 1)
        assert psutil.wait_procs(started, timeout=240)[1] == []
    finally:
        for one in [process, *started]:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def test_settings_are_written_as_a_properties_file_in_ascii() -> None:
    text = launcher.properties({"spark.a": "b c=d", "k\n": "ü\U0001f41f\\"})
    assert text == "spark.a=b\\u0020c\\u003dd\nk\\u000a=\\u00fc\\ud83d\\udc1f\\u005c\n"


@pytest.mark.spark
def test_a_session_of_somebody_else_is_taken_over_or_refused_without_delta(tmp_path: Path) -> None:
    done = run_python(
        """
        from pyspark.sql import SparkSession
        from distributary.errors import EnvironmentFault
        from distributary.spark.session import EXTENSION, build_session
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        theirs = builder.config("spark.sql.session.timeZone", "Asia/Tokyo").getOrCreate()
        try:
            build_session("ours")
        except EnvironmentFault as error:
            print(EXTENSION in str(error))
        theirs.conf.set("spark.databricks.clusterUsageTags.clusterId", "1")
        ours = build_session("ours", conf={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"})
        print(ours.sparkContext is theirs.sparkContext, ours.conf.get("spark.sql.session.timeZone"))
        print(ours.conf.get("spark.sql.shuffle.partitions"), ours.sparkContext.master)
        """,
        tmp_path,
    )
    assert done.stdout.splitlines() == ["True", "True UTC", "3 local[1]"], done.stderr


# -- the running session -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_delta_tables_are_written_and_read(spark: SparkSession, lake: Path) -> None:
    spark.range(3).write.format("delta").save(str(lake / "t"))
    assert spark.sql(f"select count(*) as n from delta.`{lake / 't'}`").collect()[0]["n"] == 3


@pytest.mark.spark
def test_workers_run_this_python_with_bounded_thread_pools(spark: SparkSession) -> None:
    import pyarrow as pa

    def facts(batches):  # type: ignore[no-untyped-def]
        import sys

        list(batches)
        yield pa.RecordBatch.from_pydict({"a": [sys.executable, os.environ["TOKIO_WORKER_THREADS"]]})

    rows = spark.range(1, numPartitions=1).mapInArrow(facts, "a string").collect()
    assert [row.a for row in rows] == [sys.executable, "2"]


@pytest.mark.spark
def test_workers_acknowledge_what_they_read_at_once(spark: SparkSession) -> None:
    """Else each job of Python tasks stands still for 40 ms."""

    def reader(rows):  # type: ignore[no-untyped-def]
        import inspect

        list(rows)
        frames = (frame.frame.f_locals.get("infile") for frame in inspect.stack())
        yield next(type(file.raw).__qualname__ for file in frames if file is not None)

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(reader).collect() == ["AtOnce"]


class Noted(socket.socket):
    """A socket that notes what is asked of it."""

    def setsockopt(self, *args: Any) -> None:
        self.asked = [*getattr(self, "asked", []), args]
        super().setsockopt(*args)


def test_a_worker_starts_without_the_sink_which_is_there_once_spark_asks_for_it() -> None:
    code = """
import sys
import pyspark_distributary.worker
assert not [name for name in sys.modules if name.startswith("distributary")]
assert pyspark_distributary.DefaultSource.name() == "distributary"
assert not hasattr(pyspark_distributary, "OtherSource")
"""
    subprocess.run([sys.executable, "-c", code], timeout=400, check=True)


@pytest.mark.skipif(QUICKACK is None, reason="TCP_QUICKACK is Linux' own")
def test_a_worker_asks_for_an_acknowledgement_at_once_before_each_read() -> None:
    """Once is not enough: the kernel goes back to waiting as soon as data go the other way."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as jvm:
        connection = Noted(fileno=server.accept()[0].detach())
        infile = io.BufferedReader(AtOnce(connection))
        for number in range(1, 4):
            jvm.sendall(b"abcd")
            assert infile.read(4) == b"abcd"
            connection.sendall(b"x")
            assert connection.asked == [(socket.IPPROTO_TCP, QUICKACK, 1)] * number
        infile.close()
        assert connection.fileno() == -1


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_plain_udf_over_a_delta_scan_ends(spark: SparkSession, lake: Path) -> None:
    """SPARK-58241: without our setting it hangs for ever."""
    from pyspark.sql.functions import udf

    spark.range(3).write.format("delta").save(str(lake / "t"))
    plus_one = udf(lambda value: value + 1, "long")
    rows = spark.read.format("delta").load(str(lake / "t")).select(plus_one("id").alias("v")).collect()
    assert sorted(row.v for row in rows) == [1, 2, 3]


@pytest.mark.spark
def test_timestamps_are_read_in_utc(spark: SparkSession) -> None:
    assert spark.sql("select cast(timestamp'1970-01-01 00:00:01' as long) as s").collect()[0]["s"] == 1


@pytest.mark.spark
def test_times_outside_of_nanoseconds_are_read_by_others_as_spark_wrote_them(spark: SparkSession, lake: Path) -> None:
    times = [datetime(year, 3, 1, 12, 30, tzinfo=UTC) for year in (1, 1500, 1582, 1677, 1969, 2263, 9999)]
    rows = spark.createDataFrame([(time,) for time in times], "t timestamp")
    rows.write.format("delta").save(str(lake / "t"))
    found = DeltaTable(lake / "t").to_pyarrow_table().column("t").to_pylist()
    assert sorted(found) == times
    types = {pq.read_schema(file).field("t").type for file in (lake / "t").glob("*.parquet")}
    assert {kind.unit for kind in types} == {"us"}
