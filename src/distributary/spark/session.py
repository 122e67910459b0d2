"""The only builder of a SparkSession, and the only place that names jars."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from distributary.config.environment import environment
from distributary.errors import EnvironmentFault
from distributary.scratch import Scratch
from distributary.spark.java import cache_folder, find_java
from distributary.spark.launcher import Console, Jars, explained, for_now, launch
from distributary.spark.versions import PACKAGES as PACKAGES
from distributary.spark.versions import check_spark, number

SHIPPED_BY_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "at.yawk.lz4:*",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.scala-lang.modules:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""What Spark has. Without it a first start fetches 23 MB, not 98 MB. Of Hadoop not the whole group: Spark has no
hadoop-aws, and a coordinate that is excluded is not fetched even where the user asks for it."""

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
LOG_SETTING = "log4j2.configurationFile"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
JAVA_TEMPORARY = "java.io.tmpdir"
SHORT_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Of a JVM that has little to do: without its second compiler, which takes half of a cold run's CPU time to make code
fast that hardly runs then (`make bench ONLY=cold_run`). One compiler alone has 48 MB for its code, too little for
Spark."""
LOCAL_DIR = "spark.local.dir"
LOCAL_IP = "SPARK_LOCAL_IP"
"""Where Spark's UI listens, if it is switched on: no setting says it. Without it, on all interfaces."""

REDACTED = (
    r"(?i)url|secret|password|passphrase|token|credential|jaas|access[.]?key|account[.]?key|private[.]?key|"
    r"keystore[.]?key|\bsas\b"
)
"""Names of settings and options whose values Spark shows nowhere."""

RUNTIME_CONF = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's default is INT96, which Parquet has given up: other readers take it for nanoseconds, so that a time before
    # 1677 or after 2262 comes out as another one.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # SPARK-58241 (pyspark 4.2.0): a plain @udf straight over a Parquet or Delta scan hangs for ever.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    # A kill while the first batch's offsets are written leaves a temporary file of Spark's beside them, and then Spark
    # would never begin (4.2.0: STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). Whether a checkpoint is another stream's is
    # checked before each start (`state.checkpoint`).
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
"""Set on every session, also on one that was there before us."""

WORKER_ENV = {
    # Every Python worker starts deltalake's thread pool. Its default is the machine's cores, so that an
    # executor with 16 cores would run 256 threads.
    "TOKIO_WORKER_THREADS": "2",
    # Workers allocate and free the same tens of megabytes for every window of rows. glibc and Arrow's own pools give
    # such blocks back to the kernel each time: the page faults cost more than the decoding (bench: pipeline_vs_limit).
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}
"""The environment of Spark's Python workers."""

START_CONF = RUNTIME_CONF | {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.redaction.regex": REDACTED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENV.items()},
}

CONNECT = {"SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"}
"""Variables of a process whose Spark is that of a Spark Connect server; pyspark's, and so Databricks'."""
_NO_JVM = (
    "Spark is reached by Spark Connect here (serverless compute, standard access mode), and a run needs a driver of "
    "its own: take dedicated access mode, as `distributary workflow databricks` does, or write the rows by "
    'format("distributary"), which needs none (docs/sink.md)'
)

LOCAL_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Delta's default of 50 tasks per snapshot is for clusters: on 2 cores it costs seconds per table.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Executors of a cluster may get the package by --py-files, which a worker reads of only once it has begun.
    "spark.python.worker.module": "pyspark_distributary.worker",
}

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming"
LOCAL_STATE_CONF = {
    # The default renames by way of Hadoop's FileContext, which on local files runs `readlink` and `chmod` in processes
    # of their own: some 30 ms for each of a batch's two files, in place of 8 (measured with pyspark 4.2.0). Neither
    # is atomic there against a second writer.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTS}{'.checkpointing' if number(pyspark.__version__) >= (4, 1) else ''}"
        ".FileSystemBasedCheckpointFileManager"
    ),
}


def build_session(
    app: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    local_state: bool = False,
    short_lived: bool = False,
) -> SparkSession:
    """Start Spark with Delta and Kafka, or take over the session that is there (Databricks, spark-submit).

    Args:
        app: Spark's application name.
        master: a Spark master URL; default `spark.master` of `conf`, else `local[*]`.
        conf: Spark settings. They win over ours; packages, extensions and Java options are joined.
        packages: more Maven coordinates, `group:artifact:version`.
        local_state: checkpoints are written to this machine's files, and a lock keeps other writers away.
        short_lived: its JVM is not to have many rows (see `SHORT_JAVA`).

    The first start on a machine fetches the jars; later starts need no network. What the JVM prints while it
    starts is kept back, and shown by the error if it fails. `spark.driver.memory` is 2g on a local master.

    Raises:
        JavaMissing: there is no Java 17 or 21.
        SparkNotStarted: the JVM or the context did not start; says why and what to do.
        EnvironmentFault: the session that is there has no Delta, or is Spark Connect's, or there is none for the
            installed Spark.
    """
    asked_conf = dict(conf or {})
    environ = environment()
    if SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in environ:
        return _adopted(app, asked_conf)
    if CONNECT & environ.keys():
        raise EnvironmentFault(detail=_NO_JVM)
    check_spark(pyspark.__version__)
    master = master or asked_conf.get("spark.master") or "local[*]"
    settings = _settings(app, master, asked_conf, local_state=local_state, short_lived=short_lived)
    jars = Jars(cache_folder(environ), (*PACKAGES, *packages), [*SHIPPED_BY_SPARK], asked_conf)
    start_environ = {"JAVA_HOME": str(find_java(environ))}
    if master.startswith("local") or "PYSPARK_PYTHON" not in environ:
        # Else workers take `python3` from the PATH, which need not be the one that has our packages.
        start_environ["PYSPARK_PYTHON"] = sys.executable
    if master.startswith("local") and LOCAL_IP not in environ:
        start_environ[LOCAL_IP] = "127.0.0.1"
    with jars.first_start_alone(), for_now(environ, start_environ):
        return _started(settings | jars.settings() | _temporary_files(settings), jars)


def _settings(
    app: str, master: str, asked_conf: Mapping[str, str], *, local_state: bool = False, short_lived: bool = False
) -> dict[str, str]:
    """Everything but the jars. A setting of the caller wins, except where both can hold."""
    is_local = master.startswith("local")
    local = {**(LOCAL_CONF if is_local else {}), **(LOCAL_STATE_CONF if is_local and local_state else {})}
    settings = {**START_CONF, **local, **asked_conf, "spark.app.name": app, "spark.master": master}
    extensions = [name for name in asked_conf.get("spark.sql.extensions", "").split(",") if name]
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys([*extensions, EXTENSION]))
    options = asked_conf.get(JAVA_OPTIONS, "")
    if short_lived:
        options = f"{SHORT_JAVA} {options}".strip()  # of two that contradict each other, the JVM takes the last
    if LOG_SETTING not in options:
        log_file = Path(str(files("distributary.spark") / "log4j2.properties")).as_uri()
        options = f"-D{LOG_SETTING}={log_file} {options}".strip()
    settings[JAVA_OPTIONS] = options
    return settings


@cache
def _scratch() -> Scratch:
    return Scratch("spark")


def _temporary_files(settings: Mapping[str, str]) -> dict[str, str]:
    """Where Spark and its JVM put theirs: rows among them, which a killed JVM leaves."""
    folder, options = str(_scratch().folder), settings.get(JAVA_OPTIONS, "")
    changed = {LOCAL_DIR: folder} if settings["spark.master"].startswith("local") and LOCAL_DIR not in settings else {}
    if JAVA_TEMPORARY not in options:
        changed[JAVA_OPTIONS] = f"-D{JAVA_TEMPORARY}={folder} {options}".strip()
    return changed


def _started(settings: Mapping[str, str], jars: Jars) -> SparkSession:
    console = None
    # A stopped context leaves its JVM, and pyspark can't have two: the next context starts in the same one.
    if (gateway := SparkContext._gateway) is None:
        console = Console()
        gateway = launch(settings, console, environment(), _scratch())
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        context = SparkContext(conf=conf, gateway=gateway)
        session = SparkSession.builder.getOrCreate()
    except Py4JError as exc:
        raise explained(str(exc)) from exc
    finally:
        if console is not None:
            console.pass_on()
    jars.remember(context.getConf().get("spark.jars") or "")
    return session


def _adopted(app: str, asked_conf: Mapping[str, str]) -> SparkSession:
    """The session of whoever started this process: its jars, memory and master are not ours to choose."""
    session = SparkSession.builder.appName(app).getOrCreate()
    for key, value in {**RUNTIME_CONF, **asked_conf}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    databricks = session.conf.get("spark.databricks.clusterUsageTags.clusterId", None)
    if databricks is None and EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise EnvironmentFault(
            detail=f"this Spark session was started without Delta. Start it with spark.sql.extensions={EXTENSION} "
            f"and --packages {','.join(PACKAGES)}"
        )
    return session
