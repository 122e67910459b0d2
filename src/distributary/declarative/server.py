"""A Spark Connect server in a JVM of this process: warm for one update after another, gone when the process is.

The JVM is the one that `session.build_session` starts. It reads its standard input, which ends with this process
however that ends (SIGKILL too), and then goes by itself: no server is ever left behind.
"""

from __future__ import annotations

import secrets
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from distributary.config import DeclarativeFolder, Pipeline
from distributary.config.environment import environment
from distributary.declarative.datasets import state_folder
from distributary.errors import ConfigError
from distributary.redaction import hide
from distributary.spark.session import build_session
from distributary.tables.store import local_path

CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
_MODE = "SPARK_CONNECT_MODE_ENABLED"
END_SEC = 5.0
"""How long a JVM may take to end before it is killed."""
METASTORE_URL = "spark.hadoop.javax.jdo.option.ConnectionURL"
METASTORES = (METASTORE_URL, "spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris")


def catalog_conf(folder: Path) -> dict[str, str]:
    """Settings that every server of a pipeline needs. `folder`: of the metastore.

    The catalog must be kept from run to run: an in-memory one cannot make a table whose folder is there already. The
    format is the default, for a table that names its own is refused by the second run (DELTA_CANNOT_CHANGE_PROVIDER).
    """
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.sources.default": "delta",
        "spark.sql.warehouse.dir": str(folder / DeclarativeFolder.warehouse.name),
        METASTORE_URL: f"jdbc:derby:;databaseName={folder / DeclarativeFolder.metastore.name};create=true",
    }


def server_conf(config: Pipeline) -> dict[str, str]:
    """The static settings of a pipeline's server; those of the pipeline file win.

    Raises ConfigError where the state is not on this machine and no metastore is named.
    """
    folder = local_path(state_folder(config))
    configured = config.spark.conf
    if folder is None and not any(key in configured for key in METASTORES):
        detail = f"state is in an object store, where no metastore can be: set {METASTORES[1]} or {METASTORE_URL}"
        raise ConfigError(file="the pipeline", key="spark.conf", detail=detail)
    common = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.pipelines.maxFlowRetryAttempts": "0",
    }
    return {**common, **(catalog_conf(folder.resolve()) if folder is not None else {}), **configured}


@dataclass
class Server:
    """Use as a context manager; `connect` gives sessions."""

    conf: Mapping[str, str]
    master: str | None = None

    def __enter__(self) -> Self:
        self._token = secrets.token_hex(16)
        hide(self._token)
        metastore = self.conf.get(METASTORE_URL, "")
        if metastore.startswith("jdbc:derby:"):
            folder = Path(metastore.partition("databaseName=")[2].partition(";")[0]).parent
            folder.mkdir(parents=True, exist_ok=True)
            log = f"-Dderby.stream.error.file={folder / DeclarativeFolder.metastore_log.name}"
        else:
            log = ""
        java = f"{log} {self.conf.get('spark.driver.extraJavaOptions', '')}".strip()
        conf = {**self.conf, **CONNECT, "spark.connect.authenticate.token": self._token}
        if java:
            conf["spark.driver.extraJavaOptions"] = java
        self._jvm_session = build_session("distributary declarative", master=self.master, conf=conf)
        self._jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        service = "org.apache.spark.sql.connect.service.SparkConnectService$"
        self.port = int(getattr(getattr(self._jvm_session.sparkContext._jvm, service), "MODULE$").localPort())
        return self

    @property
    def remote(self) -> str:
        """The address for a Connect client on this machine, with its token."""
        return f"sc://localhost:{self.port}/;token={self._token}"

    def is_alive(self) -> bool:
        """Does its JVM still run?"""
        return self._jvm.poll() is None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.is_alive():
            with suppress(Exception):
                self._jvm_session.stop()
        # Not left to the end of this process: an update that was interrupted would run on, and the lock would be free.
        end_jvm()


def end_jvm() -> None:
    """End the JVM that this process has started, and let the next session start another one."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        process = gateway.proc
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_SEC)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


@contextmanager
def client(remote: str, *, impatient: bool = False) -> Iterator[SparkSession]:
    """A new session of the server at `remote` (`sc://...`), and `pyspark.sql.functions` that speak to it, meanwhile.

    `impatient`: of a server on this machine, whose silence means that it is gone. Others are asked again for minutes.
    """
    environ = environment()
    before = environ.get(_MODE)
    environ[_MODE] = "1"
    try:
        session: Any = ConnectSession.builder.remote(remote).create()
        if impatient:
            # The error that follows says it.
            warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
            session.client.set_retry_policies([DefaultPolicy(max_retries=4, max_backoff=1000)])
        try:
            yield session
        finally:
            # A server that is gone has no session to end.
            with suppress(Exception):
                session.stop()
    finally:
        if before is None:
            environ.pop(_MODE, None)
        else:
            environ[_MODE] = before
