"""One real run with a secret of every kind that it takes: nobody else sees one, and no door is open to others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Producer

from distributary.cli.entry import execute
from tests.conftest import needed
from tests.doors import Door, doors, family, shown_by
from tests.processes import SMALL_SPARK, command
from tests.scenarios import message
from tests.services import wait_until
from tests.services.kafka import Kafka
from tests.services.stores import S3, Bucket
from tests.test_kafka_pipeline import EVENT, KafkaScenario
from tests.test_registry_confluent import Authority
from tests.test_secrets import Canaries, Echo

BY_ENVIRONMENT = "DISTRIBUTARY_TEST_SECRET"
ODD = "ca:na=ry \\ #!\n\tü \U0001f41f {} end"
"""Of what a properties file writes otherwise."""
WHOLE = """
import sys, threading, time
from pyspark import SparkContext
_, told, wanted, *sys.argv[1:] = sys.argv
def look():
    while (jsc := getattr(SparkContext._active_spark_context, "_jsc", None)) is None:
        time.sleep(0.1)
    with open(told, "w") as file:
        file.write(str(jsc.hadoopConfiguration().get("fs.s3a.secret.key") == open(wanted).read()))
threading.Thread(target=look, daemon=True).start()
from distributary.cli import main
main()
"""
"""A command that also tells, in a file, whether a secret has come to Spark's Hadoop as it was written."""
PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery")
APPLICATION = ("jobs", "stages", "executors", "environment", "sql", "storage/rdd")


class Sights(Canaries):
    """All that others can see of a run, and which secrets are in it."""

    def in_processes(self, pids: list[int]) -> set[str]:
        return self.in_text("\0".join(map(shown_by, pids)))

    def in_rows(self, root: Path) -> dict[str, set[str]]:
        """As `in_files`, of the rows of Parquet files: what is packed is not seen in a file's bytes."""
        found = {str(file): self.in_text(str(pq.read_table(file).to_pylist())) for file in root.rglob("*.parquet")}
        return {path: kinds for path, kinds in found.items() if kinds}


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode(errors="replace"))


def pages(pids: list[int]) -> Iterator[tuple[str, str]]:
    """What Spark's UI shows, and its REST interface: wherever one of the open ports has it."""
    for door in doors(pids):
        base = f"http://127.0.0.1:{door.port}"
        with suppress(OSError, ValueError, HTTPException):
            [application] = json.loads(fetched(f"{base}/api/v1/applications"))
            for page in PAGES:
                yield page, fetched(f"{base}/{page}/")
            for part in APPLICATION:
                yield part, fetched(f"{base}/api/v1/applications/{application['id']}/{part}")


def downloaded(bucket: Bucket, into: Path) -> Path:
    """All objects of a bucket, as files."""
    store = bucket.store
    assert isinstance(store, S3)
    listed = ET.fromstring(store.request("GET", f"/{bucket.name}?list-type=2", None, store._headers))
    for key in (element.text for element in listed.iter() if element.tag.endswith("Key")):
        file = into / str(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(store.request("GET", f"/{bucket.name}/{quote(str(key))}", None, store._headers))
    return into


@contextmanager
def going(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, env={**os.environ, **environment})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(240)


def test_a_door_that_is_open_to_the_network_is_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_to_all, socket.create_server(("127.0.0.1", 0)) as ours:
        found = {door.port: door for door in doors([os.getpid()])}
        assert not found[open_to_all.getsockname()[1]].is_loopback
        assert found[ours.getsockname()[1]].is_loopback
    assert Door(1, "::ffff:127.0.0.1", 1).is_loopback
    assert not Door(1, "::", 1).is_loopback


@pytest.mark.spark
@pytest.mark.services
@pytest.mark.usefixtures("old_signals")
def test_a_run_shows_no_secret_and_listens_on_loopback_only(
    tmp_path: Path,
    registry_url: str,
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The broker wants a password and shows a certificate, the registry and a webhook are told secrets, tables lie in
    an object store, Spark's UI is on, and one table is parked so that all of them are talked about."""
    root = tmp_path / "seen"
    temporary = root / "tmp"
    temporary.mkdir(parents=True)
    seen = Sights(tmp_path)
    authority, echo, bucket = Authority(tmp_path, "private authority"), Echo(500), s3.bucket()
    password = seen.new("kafka")
    with needed():
        users = {"ann": seen.known["kafka"]}
        broker = Kafka(tmp_path / "kafka", mechanism="PLAIN", users=users, certificate=authority.issue("broker"))
    security = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "ann", "password": password}
    document: dict[str, Any] = {
        "pipeline": "games",
        "registry": {"url": registry_url, "username": "ann", "password": seen.new("registry")},
        "tables": {
            "root": f"{bucket.url}/lake",
            "storage_options": {**s3.options, "aws_secret_access_key": seen.new("store")},
        },
        "state": str(root / "state"),
        "quarantine": {"max_ratio": 1.0},
        "trigger": {"every": "1 second"},
        "spark": {
            **SMALL_SPARK,
            "conf": {
                **SMALL_SPARK["conf"],
                "spark.hadoop.fs.s3a.secret.key": seen.new("spark", ODD),
                "spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net": f"${{env:{BY_ENVIRONMENT}}}",
                "spark.ui.enabled": "true",
                "spark.ui.port": "0",
            },
        },
        "notices": {
            "webhooks": [seen.new("webhook", f"{echo.url}/services/{{}}")],
            "email": {
                "host": "127.0.0.1",
                "port": 1,
                "username": "ann",
                "password": seen.new("mail"),
                "sender": "a@example.org",
                "to": ["b@example.org"],
            },
        },
    }
    seen.known["environment"] = "canary-environment-bird"
    monkeypatch.setenv(BY_ENVIRONMENT, seen.known["environment"])
    seen.known["record"] = "canary-record-bird"  # no secret of ours: shows that what is looked through is there
    log, whole = tmp_path / "run.log", root / "whole"
    with broker, broker.topic(partitions=1) as topic:
        source = {**broker.source(topic), "bootstrap_servers": broker.secure_servers}
        document["source"] = {**source, "security": {**security, "ca_file": authority.file}}
        scenario = KafkaScenario(root, broker, topic, registry_url, source=document["source"] | {"security": None})
        schema = scenario.schema(scenario.named("event"), EVENT)
        good = message(EVENT, "event", user=seen.known["record"])
        values = [scenario.event("a", schema, good), scenario.event("parked", schema, good), b"no envelope"]
        producer = Producer(broker.client())
        for value in values:
            producer.produce(topic, value, b"key")
        assert producer.flush(30) == 0
        del producer  # else it complains of the broker that is stopped below
        bucket.put("lake/parked/_delta_log/00000000000000000000.json", b"no commit")
        scenario.file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
        run = [*command()[:2], WHOLE, str(whole), str(seen.folder / "spark")]
        with going([*run, "--debug", "run", str(scenario.file)], log, {"TMPDIR": str(temporary)}) as process:
            wait_until(lambda: "batch 0" in log.read_text() or process.poll() is not None, 300, "the first batch")
            pids = family(process.pid)
            listening, shown = doors(pids), dict(pages(pids))
            assert seen.in_processes(pids) == {"environment"}, "an environment is inherited, and nothing else is there"
            assert whole.read_text() == "True"
            assert len(pids) > 1 and len(listening) > 2
            assert [door for door in listening if not door.is_loopback] == []
            assert shown.keys() >= {*PAGES, *APPLICATION} and "fs.s3a.secret.key" in shown["environment"]
            assert {page: found for page, text in shown.items() if (found := seen.in_text(text))} == {}
            left = seen.in_files(root)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) in (0, 1)
    said = log.read_text()
    assert "parked" in said and "webhook" in said
    assert seen.in_text(said) == set()
    monkeypatch.chdir(root)
    for words in (
        ["status", "--json"],
        ["check"],
        ["views"],
        ["workflow", "databricks", "--out", str(root / "bundle")],
    ):
        execute(["--debug", *words, str(scenario.file)])
        told = capfd.readouterr()
        assert seen.in_text(told.out + told.err) == set(), words
    tables = downloaded(bucket, root / "bucket")
    assert set().union(*left.values(), *seen.in_files(root).values()) <= {"record"}
    rows = seen.in_rows(root)
    assert {"record"} == set().union(*rows.values())
    assert any(str(tables) in file for file in rows) and any("quarantine" in file for file in rows)
