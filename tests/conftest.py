"""Fixtures for all tests. Services start at their first use, once per run."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import kept_apart, services, thorough
from tests.class_archive import java_options
from tests.extent import register_profiles
from tests.processes import SERIAL, SPARK_JAVA
from tests.services.azure import AzureStorage, Azurite
from tests.services.gcs_writes import GcsWrites
from tests.services.kafka import Kafka
from tests.services.mariadb import MariaDb
from tests.services.postgres import Postgres
from tests.services.registry import Registry
from tests.services.stores import S3, GoogleStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"

os.environ["JDK_JAVA_OPTIONS"] = java_options()
register_profiles()


@contextmanager
def needed() -> Iterator[None]:
    """A service that can't be had skips the test, or fails it where REQUIRE_SERVICES=1."""
    try:
        yield
    except services.ServiceMissing as exc:
        if REQUIRED:
            pytest.fail(f"REQUIRE_SERVICES=1 and {exc}", pytrace=False)
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker without security, shared by all tests: use `kafka.topic()` for a topic of your own."""
    with needed():
        broker = Kafka(tmp_path_factory.mktemp("kafka"))
    with broker:
        yield broker


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A schema registry in memory, shared by all tests: use subject names of your own."""
    with needed():
        server = Registry(tmp_path_factory.mktemp("registry"))
    with server:
        yield server


@pytest.fixture(scope="session")
def registry_url(registry_server: Registry) -> str:
    return registry_server.url


@pytest.fixture(scope="session")
def google_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleStorage]:
    """A store in memory, shared by all tests: use `bucket()` for one of your own."""
    with needed():
        server = GoogleStorage(tmp_path_factory.mktemp("gcs"))
    with server:
        yield server


@pytest.fixture(scope="session")
def google_writes(tmp_path_factory: pytest.TempPathFactory, google_storage: GoogleStorage) -> Iterator[GcsWrites]:
    """A door to `google_storage` through which delta-rs and obstore can write, too."""
    with GcsWrites(tmp_path_factory.mktemp("gcs-writes"), google_storage) as door:
        yield door


@pytest.fixture(scope="session")
def azure_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStorage]:
    """A store in memory, shared by all tests: use `bucket()` for one of your own."""
    with AzureStorage(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Microsoft's own, where there is one."""
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A store in memory, shared by all tests: use `bucket()` for one of your own."""
    with needed():
        server = S3(tmp_path_factory.mktemp("s3"))
    with server:
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """A server with a row binlog, shared by all tests: use `database()` for one of your own."""
    with needed():
        server = MariaDb(tmp_path_factory.mktemp("mariadb"))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server with logical decoding, shared by all tests: use `database()` for one of your own."""
    with needed():
        server = Postgres(tmp_path_factory.mktemp("postgres"))
    with server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session for the whole run, built by the product's own builder."""
    from distributary.errors import JavaMissing
    from distributary.spark.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"{SPARK_JAVA} {SERIAL} -Dderby.system.home={folder}",
    }
    try:
        session = build_session("distributary-tests", master="local[2]", conf=conf, local_state=True)
    except JavaMissing as exc:
        if REQUIRED:
            pytest.fail(str(exc), pytrace=False)
        pytest.skip(f"Spark: {exc}")
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """An empty folder as the root of tables, checkpoints and state."""
    root = tmp_path / "lake"
    root.mkdir()
    return root


@pytest.fixture
def old_signals() -> Iterator[None]:
    """Afterwards, Ctrl-C and SIGTERM do again what they did."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def processes_apart() -> Iterator[None]:
    """Work apart goes to processes that are there already (`kept_apart`)."""
    with pytest.MonkeyPatch.context() as patch:
        kept_apart.keep(patch)
        yield
    kept_apart.end_all()


LONG = [
    "test_declarative_updates",
    "test_declarative_process",
    "test_merge_contract",
    "test_workflow_local",
    "test_demo_declarative",
    "test_engines",
    "test_declarative_sink",
    "test_cdc_postgres",
    "test_cdc_mariadb",
    "test_crash",
    "test_cdc_kill",
    "test_tombstones_beside",
    "test_resync",
    "test_fanout",
    "test_batch",
    "test_cli",
    "test_cdc_stores",
    "test_chaos",
    "test_debezium_engine",
    "test_cdc_upkeep",
    "test_doors",
    "test_cdc_keys",
    "test_killed",
    "test_spark_away",
    "test_sink_spark",
    "test_tutorial",
    "test_upserts_kill",
    "test_replay",
    "test_layouts",
    "test_bench",
    "test_demo",
    "test_handover",
    "test_new_checkpoint",
    "test_kafka_pipeline",
    "test_cdc_pipeline",
    "test_cdc_engines",
    "test_layout_verbs",
    "test_cdc_property",
]
"""Files that take long, longest first: they begin first, so that no process is left with one at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate", action="store_true", help="leave out the long tests that tests/thorough.py names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[thorough.UNKNOWN] = thorough.unknown(items)
    if config.getoption("--gate"):
        config.hook.pytest_deselected(items=[item for item in items if not thorough.is_of_gate(item)])
        items[:] = filter(thorough.is_of_gate, items)
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SaysAtOnce(config), "failures said at once")


class _SaysAtOnce:
    """A run that is cut off in the middle has said which tests failed, and in which line."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = str(crash or report.longreprtext).splitlines() or [""]
            terminal.write_line(
                f"\nfailed in {report.when} after {report.duration:.0f} s: {report.nodeid}: {words[0][:300]}"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.failed:
        for server in services.STARTED:
            if text := server.tail():
                report.sections.append((f"log of {server.name} (pid {server.pid})", text))
    return report
