"""Every source keeps the contract of the port, and is chosen in one place."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake
from pydantic import ValidationError
from pyspark.sql import SparkSession

from distributary.audit.verify import verify
from distributary.config import DeltaSource, Pipeline, load_document
from distributary.errors import ConfigError, SourceMissing
from distributary.running.bronze.bronze_table import make_bronze, schema_of
from distributary.running.source_lag import source_lag
from distributary.sources.bronze import Bronze
from distributary.sources.bronze_rows import KEY, RECEIVED
from distributary.sources.discovery import FileDiscovery, open_tree
from distributary.sources.file_ledger import FileLedger
from distributary.sources.registered import SOURCES, origin_of, source_of
from distributary.tables.store import Store
from tests.scenarios import Scenario
from tests.services.kafka import Kafka
from tests.source_contract import Stage, check_all, read_up_to, run
from tests.test_batch import event

SRC = Path(__file__).parent.parent / "src"


def pipeline(root: Path, source: dict[str, Any], **keys: Any) -> Pipeline:
    given = {"pipeline": "games", "source": source, "tables": {"root": str(root / "tables")}, **keys}
    return Pipeline.model_validate(given)


REGISTRY = {"registry": {"path": "registry"}}


class DeltaStage(Stage):
    def __init__(self, root: Path) -> None:
        self.path = root / "source"
        super().__init__(root, pipeline(root, {"type": "delta", "path": str(self.path)}, **REGISTRY))

    def add(self, count: int) -> None:
        write_deltalake(str(self.path), pa.table({"value": [b"x"] * count}), mode="append")

    def make_anew(self) -> None:
        shutil.rmtree(self.path)


class BronzeStage(Stage):
    def __init__(self, root: Path) -> None:
        keys = {"layout": "two_hop", "envelope": {"format": "columns"}}
        super().__init__(root, pipeline(root, {"type": "delta", "path": "source"}, **keys, **REGISTRY))

    def add(self, count: int) -> None:
        make_bronze(self.config, Store())
        rows = {
            RECEIVED: pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "game_name": ["a"] * count,
            "schema_id": pa.array([1] * count, pa.int32()),
            "payload": [b"x"] * count,
            KEY: ["a"] * count,
        }
        blank = {f.name: pa.nulls(count, f.type) for f in schema_of(self.config)}
        table = pa.table({**blank, **rows}).cast(schema_of(self.config))
        write_deltalake(self.config.bronze_path, table, mode="append")

    def make_anew(self) -> None:
        shutil.rmtree(self.config.bronze_path)


class FilesStage(Stage):
    has_records = False

    def __init__(self, root: Path) -> None:
        self.files = root / "files"
        super().__init__(root, pipeline(root, {"type": "datastream", "path": str(self.files)}))
        self.ledger = FileLedger(self.config.state_root, "games", Store())

    def add(self, count: int) -> None:
        folder = self.files / "orders" / "2026" / "01" / "31" / "12" / "00"
        folder.mkdir(parents=True, exist_ok=True)
        there = len(list(folder.iterdir()))
        for n in range(there, there + count):
            (folder / f"{n}.jsonl").write_text("{}\n")

    def prepare(self) -> None:
        self.ledger.create()
        FileDiscovery(open_tree(str(self.files), {}), self.ledger, 100, 10**9).look(full=True)

    def taken(self) -> int:
        return self.ledger.newest_file_batch

    def make_anew(self) -> None:
        raise NotImplementedError


class KafkaStage(Stage):
    def __init__(self, root: Path, kafka: Kafka, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        super().__init__(root, pipeline(root, kafka.source(topic), **REGISTRY))

    def add(self, count: int) -> None:
        if self.topic not in self.kafka._admin().list_topics(timeout=60).topics:
            self.kafka.create_topic(self.topic)
        producer = Producer(self.kafka.client())
        for n in range(count):
            producer.produce(self.topic, b"x", partition=n % 2)
        assert producer.flush(30) == 0

    def make_anew(self) -> None:
        self.kafka.delete_topic(self.topic)


@pytest.mark.spark
@pytest.mark.parametrize("stage", [DeltaStage, BronzeStage, FilesStage])
def test_a_source_of_tables_and_files_keeps_the_contract(lake: Path, spark: SparkSession, stage: type[Stage]) -> None:
    check_all(stage(lake), spark)  # type: ignore[call-arg]


@pytest.mark.spark
@pytest.mark.services
def test_topics_keep_the_contract(lake: Path, spark: SparkSession, kafka: Kafka) -> None:
    stage = KafkaStage(lake, kafka, f"contract-{lake.name}".replace("_", "-"))
    try:
        check_all(stage, spark)
    finally:
        kafka.delete_topic(stage.topic)


class NamedStage(DeltaStage):
    """The same by its name in the catalog, which only Spark can ask."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        super().__init__(root)
        self.spark = spark
        self.name = f"named_{abs(hash(root))}"
        self.config = pipeline(root, {"type": "delta", "table": f"default.{self.name}"}, **REGISTRY)

    def register(self) -> None:
        self.spark.sql(f"CREATE TABLE default.{self.name} USING DELTA LOCATION '{self.path}'")


@pytest.mark.spark
def test_a_table_is_read_by_its_name_and_known_to_others_once_a_run_has_found_it(
    lake: Path, spark: SparkSession
) -> None:
    stage = NamedStage(lake, spark)
    with pytest.raises(SourceMissing, match=r"source\.table"):
        stage.source.stream(spark)
    stage.add(3)
    stage.register()
    try:
        assert (stage.waiting(None), stage.source.ids()) == (None, None), "before a run nobody knows where it is"
        assert run(stage, spark, "a") == 3
        source = stage.source
        source.stream(spark)
        source.decided(lambda: None)
        stage.add(2)
        assert stage.waiting(read_up_to(stage, "a")) == 2, "another process asks by the place that was written down"
        assert stage.source.newest(9).num_rows > 0
        ids = stage.source.ids()
        assert ids is not None and list(ids.now()) == [str(stage.path)]
        stage.config = DeltaStage(lake).config
        assert run(stage, spark, "a") == 2, "and the stream goes on by the path that the name stood for"
    finally:
        spark.sql(f"DROP TABLE default.{stage.name}")


@pytest.mark.spark
def test_a_run_by_the_name_writes_down_where_the_table_is(lake: Path, spark: SparkSession) -> None:
    scenario = Scenario(lake)
    scenario.send(event(scenario, "a_game"), None)
    name = f"run_{abs(hash(lake))}"
    spark.sql(f"CREATE TABLE default.{name} USING DELTA LOCATION '{scenario.source}'")
    given = scenario.config.model_dump(exclude={"source"})
    config = scenario.config = Pipeline.model_validate(
        {**given, "source": {"type": "delta", "table": f"default.{name}"}}
    )
    try:
        for _ in range(2):
            scenario.run()
            scenario.send(event(scenario, "a_game"))
        assert json.loads(Path(config.state_folder.source).read_text()) == {
            "table": f"default.{name}",
            "path": scenario.source,
        }
        assert source_lag(config, Store()).rows == 1
        assert verify(config).ok
        scenario.run()
        scenario.check(tombstones=1)
    finally:
        spark.sql(f"DROP TABLE default.{name}")


@pytest.mark.parametrize(
    ("given", "words"),
    [({}, "exactly one"), ({"path": "a", "table": "b"}, "exactly one"), ({"table": "a..b"}, "names with dots")],
)
def test_a_delta_table_is_named_in_one_way(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DeltaSource.model_validate({"type": "delta", **given})


def test_columns_of_kafka_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    kafka = {"type": "kafka", "bootstrap_servers": "b:1", "topic": "t"}
    given = {"pipeline": "p", "source": kafka, "tables": {"root": str(tmp_path)}, "envelope": {"format": "columns"}}
    with pytest.raises(ConfigError) as caught:
        load_document({**given, **REGISTRY})
    assert "envelope.format" in str(caught.value) and "protobuf, avro, json and none" in str(caught.value)


def test_a_source_is_chosen_by_its_type_and_bronze_stands_for_it_in_the_second_hop(tmp_path: Path) -> None:
    given: dict[str, dict[str, Any]] = {
        "kafka": {"type": "kafka", "bootstrap_servers": "b:1", "topic": "t"},
        "delta": {"type": "delta", "path": "source"},
        "dataframe": {"type": "dataframe"},
        **{name: {"type": name, "path": "files"} for name in ("datastream", "debezium_files", "dms_files")},
    }
    assert given.keys() == SOURCES.keys()
    for kind, source in given.items():
        config = pipeline(tmp_path, source, **(REGISTRY if kind in ("kafka", "delta") else {}))
        assert type(source_of(config)) is SOURCES[kind]
    two = pipeline(tmp_path, given["kafka"], layout="two_hop", **REGISTRY)
    assert (type(source_of(two)), type(origin_of(two))) == (Bronze, SOURCES["kafka"])


ASKED = re.compile(
    r"isinstance\([\w.]+, (?:Kafka|Delta|Datastream)Source\)|case (?:Kafka|Delta|Datastream)Source"
    r"|source\.type (?:==|!=|in|not in) |\blayout (?:==|!=|in|not in) ?[\"(]"
)


def test_what_a_pipeline_is_is_asked_in_few_places() -> None:
    """Each other one asks a property by its name, or the source itself."""
    found = [
        f"{path.relative_to(SRC)}: {line.strip()}"
        for path in sorted((SRC / "distributary").rglob("*.py"))
        for line in path.read_text().splitlines()
        if ASKED.search(line)
    ]
    assert len(found) < 20, "\n".join(found)
    outside = [line for line in found if not re.match(r"distributary/(config|kinds|sources|audit/judge)/", line)]
    assert len(outside) <= 2, "\n".join(outside)
