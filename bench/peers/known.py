"""The peers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.processes import SERIAL
from tests.services import ServiceMissing, free_ports, java_for, maven

from bench.peers.lakes import DeltaLake, IcebergLake, Lake
from bench.peers.peer import ROOT, Job, Missing, Peer, python
from bench.peers.records import COLUMNS
from bench.workload import CORES

HEAP = "2g"


def _versions(*names: str) -> dict[str, str]:
    return {name: version(name) for name in names}


class Distributary(Peer):
    name = "distributary"
    title = "distributary"
    writes = "Delta"
    settings = (
        "`trigger: continuous` (the default is every 10 seconds), `types: inferred` beside the ten declared columns, "
        "`local[2]`"
    )

    def install(self) -> dict[str, str]:
        return _versions("distributary", "pyspark", "deltalake")

    def prepare(self, job: Job) -> None:
        super().prepare(job)
        (job.folder / "peer.yaml").write_text(
            yaml.safe_dump(
                {
                    "pipeline": "peer",
                    "source": {"type": "kafka", "bootstrap_servers": job.brokers, "topic": job.topic},
                    "envelope": {"format": "none", "route": "kind"},
                    "payload": {"format": "json", "framing": "none", "columns": COLUMNS, "types": "inferred"},
                    "tables": {"root": str(job.lake)},
                    "trigger": "continuous",
                    "spark": {"master": f"local[{CORES}]", "conf": {"spark.driver.memory": HEAP}},
                }
            )
        )

    def command(self, job: Job) -> list[str]:
        return python("distributary", "run", job.folder / "peer.yaml")

    def lake(self, job: Job) -> Lake:
        return DeltaLake(job.lake)

    def kept_bad(self, job: Job) -> str:
        kept = DeltaLake(job.lake / "_distributary" / "peer").rows().get("quarantine", 0)
        return f"{kept} in the quarantine" if kept else ""


class ForeachBatch(Peer):
    name = "foreach_batch"
    title = "Spark, foreachBatch with a job per table"
    writes = "Delta"
    settings = (
        "schema in the code (`from_json`), appends in 8 threads with `txnAppId` and `txnVersion`, as Delta's "
        "documentation says; 4 shuffle partitions, `local[2]`"
    )
    job_module = "bench.peers.jobs.foreach_batch"

    def install(self) -> dict[str, str]:
        return _versions("pyspark", "delta-spark")

    def command(self, job: Job) -> list[str]:
        places = ("--lake", job.lake, "--checkpoints", job.folder / "checkpoints")
        topic = ("--brokers", job.brokers, "--topic", job.topic, "--kinds", ",".join(job.kinds))
        return python(self.job_module, *topic, *places)

    def lake(self, job: Job) -> Lake:
        return DeltaLake(job.lake)


class StreamPerRoute(ForeachBatch):
    name = "stream_per_route"
    title = "Spark, a stream per table"
    settings = "schema in the code (`from_json`), Delta's own streaming sink; all streams in one driver, `local[2]`"
    job_module = "bench.peers.jobs.stream_per_route"


class IcebergConnect(Peer):
    """Kafka Connect, standalone, with the jars of Apache Iceberg's sink."""

    name = "iceberg_connect"
    title = "Iceberg Kafka Connect, dynamic routing"
    writes = "Iceberg"
    settings = (
        "standalone worker, `tasks.max` 2, tables made and evolved by the sink (off by default), "
        "`iceberg.control.commit.interval-ms` 1000 (the default is 300000), `offset.flush.interval.ms` 1000 "
        "(60000: so long a task without new records waits until it hears of a commit), Hadoop catalog on local files, "
        "heap 2 GiB"
    )
    tolerance = "`errors.tolerance=all` with a dead letter topic"
    iceberg, kafka, hadoop = "1.12.0", "4.3.1", "3.4.1"

    def install(self) -> dict[str, str]:
        worker = [f"org.apache.kafka:connect-{part}:{self.kafka}" for part in ("runtime", "json")]
        worker.append("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
        sink = [f"org.apache.iceberg:iceberg-{part}:{self.iceberg}" for part in ("kafka-connect", "parquet")]
        sink += [f"org.apache.hadoop:hadoop-client-{part}:{self.hadoop}" for part in ("api", "runtime")]
        try:
            self._worker, self._sink = maven.jars("kafka_connect", *worker), maven.jars(self.name, *sink)
            self._java = java_for(self.name)
        except ServiceMissing as missing:
            raise Missing(str(missing)) from missing
        (self._port,) = free_ports(1)
        return {"iceberg-kafka-connect": self.iceberg, "Kafka Connect": self.kafka}

    def prepare(self, job: Job) -> None:
        super().prepare(job)
        (job.folder / "plugins").mkdir()
        (job.folder / "plugins" / "iceberg").symlink_to(self._sink)
        admin = AdminClient({"bootstrap.servers": job.brokers})
        topics = [NewTopic(name, num_partitions=1, replication_factor=1) for name in ("control-iceberg", "dead")]
        for made in admin.create_topics(topics).values():
            made.result(30)

    def command(self, job: Job) -> list[str]:
        worker, sink = self._written(job)
        start = [self._java, f"-Xmx{HEAP}", SERIAL, "-cp", f"{self._worker}/*"]
        return [*start, "org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(sink)]

    def lake(self, job: Job) -> Lake:
        return IcebergLake(job.lake / "lake")

    def working(self, job: Job) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/connectors/peer/status", timeout=5) as answer:
                return all(task["state"] != "FAILED" for task in json.load(answer)["tasks"])
        except urllib.error.HTTPError as refused:
            refused.close()
        except OSError:
            pass
        return True  # it is still starting

    def kept_bad(self, job: Job) -> str:
        consumer = Consumer({"bootstrap.servers": job.brokers, "group.id": "dead"})
        kept = consumer.get_watermark_offsets(TopicPartition("dead", 0), timeout=10)[1]
        consumer.close()
        return f"{kept} in the dead letter topic" if kept else ""

    def _written(self, job: Job) -> tuple[Path, Path]:
        converter = "org.apache.kafka.connect"
        worker = {
            "bootstrap.servers": job.brokers,
            "key.converter": f"{converter}.storage.StringConverter",
            "value.converter": f"{converter}.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(job.folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "plugin.path": str(job.folder / "plugins"),
            "plugin.discovery": "service_load",
            "listeners": f"http://127.0.0.1:{self._port}",
        }
        sink = {
            "name": "peer",
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": str(CORES),
            "topics": job.topic,
            "iceberg.tables.dynamic-enabled": "true",
            "iceberg.tables.route-field": "db_table",
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.tables.evolve-schema-enabled": "true",
            "iceberg.control.commit.interval-ms": "1000",
            "iceberg.catalog.type": "hadoop",
            "iceberg.catalog.warehouse": f"file://{job.lake}",
            "iceberg.kafka.bootstrap.servers": job.brokers,
        }
        if job.tolerant:
            sink |= {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead"}
            sink |= {"errors.deadletterqueue.topic.replication.factor": "1"}
        return _properties(job.folder / "worker.properties", worker), _properties(job.folder / "sink.properties", sink)


def _properties(file: Path, values: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


class Dlt(Peer):
    name = "dlt"
    title = "dlt"
    writes = "Delta"
    settings = (
        "load after load in one process, Kafka's consumer as in its verified source, `table_format` delta, pages of "
        "5,000 records, 2 workers to normalize (the default is 1), no telemetry"
    )
    tolerance = "records that are no JSON go to a table of their own, in the resource's code"
    release = "1.31.0"

    def install(self) -> dict[str, str]:
        home = ROOT / "build" / "peers" / "dlt"
        self._python = home / "bin" / "python"
        asked = [f"dlt[deltalake]=={self.release}", *(f"{n}=={version(n)}" for n in ("deltalake", "confluent-kafka"))]
        try:
            if not self._python.exists():
                subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *asked]
            subprocess.run(pip, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as failed:
            shutil.rmtree(home, ignore_errors=True)
            raise Missing(f"pip could not install it: {str(failed.stderr).strip()[-200:]}") from failed
        return {"dlt": self.release, **_versions("deltalake")}

    def command(self, job: Job) -> list[str]:
        script = ROOT / "bench" / "peers" / "jobs" / "dlt_loop.py"
        topic = ["--brokers", job.brokers, "--topic", job.topic, "--tolerant", "yes" if job.tolerant else "no"]
        return [str(self._python), str(script), *topic, "--lake", str(job.lake), "--state", str(job.folder / "state")]

    def environ(self, job: Job) -> Mapping[str, str]:
        return {"PYTHONPATH": "", "RUNTIME__DLTHUB_TELEMETRY": "false", "NORMALIZE__WORKERS": str(CORES)}

    def lake(self, job: Job) -> Lake:
        return DeltaLake(job.lake / "lake")

    def kept_bad(self, job: Job) -> str:
        kept = self.lake(job).rows().get("bad_records", 0)
        return f"{kept} in the table `bad_records`" if kept else ""


PEERS: tuple[Peer, ...] = (Distributary(), ForeachBatch(), StreamPerRoute(), IcebergConnect(), Dlt())
