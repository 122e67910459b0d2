"""Debezium's topics to log and merged tables, end to end, against change files of the same changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import pyarrow.compute as pc
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.services.kafka import Kafka

from bench.result import Case, Result
from bench.workload import CORES, Place, WrongRows, in_child, say
from distributary.changes.model import Kind
from distributary.config import Pipeline, RegistryConfig
from distributary.engine.batch import BatchReport
from distributary.running.stream import run as run_pipeline
from distributary.schemas.registry import open_registry
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.change_messages.connect_avro_form import AvroForm
from distributary_simulate.change_messages.connect_protobuf_form import ProtobufForm
from distributary_simulate.change_messages.debezium import ChangeMessage, DebeziumTopics
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.changes.model import Change
from distributary_simulate.changes.truth import TableTruth

NOTE = (
    "Changes per second of three MySQL tables, an invented history: a whole run over a backlog of three batches, from "
    "one finished batch to the next, median. Ours: Debezium's messages in Kafka, in each form. Other: the same changes "
    "as files of Datastream in batches of as many, beside JSON JSON lines with .schema files, beside Avro and protobuf "
    "Avro. Both: Spark's stream, log tables, reduction, merge, ledger. Checked: all changes are in the logs, and the "
    "living keys are the source's."
)
BATCHES = 3


def run(place: Place) -> Result:
    changes = place.size(40_000, 500) * BATCHES
    history = History(HistoryPlan(tables=tables_of((Kind.MYSQL,), 3), seed=3, backfill=False, schema_changes=0))
    made = [*history.changes(changes), *history.finish()]
    truth = list(history.truth().values())
    say(f"{len(made):,} changes")
    by_file = {form: _files(place.part(form).root, form, made, truth) for form in ("jsonl", "avro")}
    say(", ".join(f"change files in {form} {rate:,.0f} changes/s" for form, rate in by_file.items()))
    cases = []
    for label, form, writer in _forms(place.root):
        part = place.part(f"kafka-{form}").root
        other = by_file["jsonl" if form.startswith("json") else "avro"]
        topics = DebeziumTopics(schemas=writer is not None or label.endswith("message"), tombstones=False)
        messages = [message for change in made for message in topics.messages(change)]
        messages = messages if writer is None else [writer(message) for message in messages]
        with Kafka(part / "kafka") as kafka:
            _send(kafka, messages)
            rate = in_child(_ours, part, kafka.bootstrap_servers, form.split("-")[0], -(-len(made) // BATCHES))
        _check(part / "lake", truth, len(made))
        say(f"{label}: {rate:,.0f} changes/s")
        size = round(sum(len(m.value or b"") for m in messages) / len(messages))
        cases.append(
            Case(label, "changes/s", rate, other, less_is_better=False, goal=0.5, details={"bytes a message": size})
        )
    return Result("debezium_kafka", NOTE, tuple(cases))


def _forms(root: Path) -> list[tuple[str, str, Callable[[ChangeMessage], ChangeMessage] | None]]:
    """Label, folder and writer of each form of messages."""

    def registered(kind: str) -> Callable[[str, str], int]:
        registry = open_registry(RegistryConfig(path=str(root / f"kafka-{kind.lower()}" / "registry")))
        return lambda subject, text: registry.register(subject, text, kind=kind).schema.id

    avro, protobuf = AvroForm(registered("AVRO")), ProtobufForm(registered("PROTOBUF"))
    return [
        ("JSON, with its schema in each message", "json", None),
        ("JSON, without schemas", "json-bare", None),
        ("Avro", "avro", avro.message),
        ("protobuf", "protobuf", protobuf.message),
    ]


def _send(kafka: Kafka, messages: Sequence[ChangeMessage]) -> None:
    producer = Producer({**kafka.client(), "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
    for topic in sorted({message.topic for message in messages}):
        kafka.create_topic(topic, 1)
    for message in messages:
        while True:
            try:
                producer.produce(message.topic, key=message.key, value=message.value)
                break
            except BufferError:
                producer.poll(0.5)
        producer.poll(0)
    if producer.flush(120):
        raise WrongRows("the broker did not take all messages")


def _ours(root: Path, brokers: str, form: str, changes: int) -> float:
    source = {"type": "kafka", "bootstrap_servers": brokers, "topic_pattern": "srv[.].*"}
    registry = {} if form == "json" else {"registry": {"path": str(root / "registry")}}
    given = {"envelope": "debezium", "payload": {"format": form}, **registry}
    return _rate(root, {"source": {**source, "max_offsets_per_batch": changes}, **given})


def _files(root: Path, form: Literal["jsonl", "avro"], changes: Sequence[Change], truth: Sequence[TableTruth]) -> float:
    files = ChangeFiles(FilesPlan(root / "source", form, seed=3, schema_files=form == "jsonl"))
    for change in changes:
        files.add(change)
    files.close()
    size = sum(path.stat().st_size for path in (root / "source").rglob(f"*.{form}"))
    source = {"type": "datastream", "path": str(root / "source"), "max_files_per_batch": 100_000}
    rate = in_child(_rate, root, {"source": {**source, "max_bytes_per_batch": int(size / BATCHES * 1.02)}})
    _check(root / "lake", truth, len(changes))
    return rate


def _rate(root: Path, given: dict[str, Any]) -> float:
    tables = {"root": str(root / "lake"), "log": "{table}_log", "merged": "{table}"}
    config = Pipeline.model_validate(
        {"pipeline": "ours", "tables": tables, "spark": {"master": f"local[{CORES}]"}, **given}
    )
    ends: list[tuple[float, BatchReport]] = []
    run_pipeline(config, once=True, progress=lambda report: ends.append((time.monotonic(), report)))
    most = max(report.rows_in for _, report in ends)
    # What is left over at the end is no batch of the size.
    whole_batches = [(before, at, report) for (before, _), (at, report) in pairwise(ends) if 2 * report.rows_in > most]
    return median(report.rows_in / (at - before) for before, at, report in whole_batches)


def _check(lake: Path, truth: Sequence[TableTruth], changes: int) -> None:
    """All changes are in the logs, and the living keys are the source's."""
    logs = (DeltaTable(str(lake / f"{one.table.name}_log")).to_pyarrow_dataset().count_rows() for one in truth)
    if (rows := sum(logs)) != changes:
        raise WrongRows(f"{rows} changes in the logs, not {changes}")
    for one in truth:
        keys = list(one.table.keys)
        rows_left = DeltaTable(str(lake / one.table.name)).to_pyarrow_table(columns=[*keys, "_deleted"])
        living = rows_left.filter(pc.invert(rows_left.column("_deleted"))).select(keys).to_pylist()
        if {tuple(row.values()) for row in living} != set(one.by_key()) or len(living) != len(one.rows):
            raise WrongRows(f"{one.table.name}: not the rows of the source")
