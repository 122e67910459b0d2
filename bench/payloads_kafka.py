"""Avro and JSON from topics of Kafka to tables, against Spark's `from_avro` and `from_json` in a stream per table."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import fastavro
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from tests.services.kafka import Kafka

from bench.cdc_events_per_second import AVRO
from bench.decode_avro import SCHEMA as AVRO_SCHEMA
from bench.decode_avro import record as avro_record
from bench.decode_json import SCHEMA as JSON_SCHEMA
from bench.decode_json import record as json_record
from bench.measure import Meter, heap_of
from bench.result import Case, Result
from bench.spark_jobs import append
from bench.stream import Held, HeldQueries, HeldStream, written
from bench.workload import Place, WrongRows, check_tables, in_child, say, session
from distributary.config import Pipeline, RegistryConfig
from distributary.schemas import header
from distributary.schemas.registry import open_registry

NOTE = (
    "Rows per second of a warm batch, median, from topics of Kafka (a topic and a table for each of ten kinds of "
    "events, plain messages of ten columns) to Delta tables: from the moment the records are there and the stream may "
    "go on until the tables are committed. Ours: one pipeline, `envelope: none`; with the registry's header, or JSON "
    "without a schema whose columns are inferred. Other: Spark's own from_avro or from_json with the schema given, a "
    "streaming query per topic, each with foreachBatch and Spark's Delta writer, all in one driver; the header is cut "
    "off. Each side in a process of its own, its records in topics of its own. Checked: each table has all its rows, "
    "and the sum of a column is right."
)
KINDS = tuple(f"kind{n}" for n in range(10))
SAMPLE = 2_000
"""Different records of a kind, which repeat."""
WARM = 2


@dataclass(frozen=True)
class Form:
    """Records of one format. `payload`: keys of the pipeline file; `text`, `kind`: of the registry's schema; `column`:
    where ours has the whole number `score`."""

    label: str
    payload: dict[str, Any]
    text: str | None = None
    kind: str = ""
    column: str = "score"

    def bodies(self) -> list[bytes]:
        """The same for each kind, with numbers that are known."""
        rnd = random.Random(7)
        make = avro_record if self.kind == "AVRO" else json_record
        records = [{**make(rnd), "score": number} for number in range(SAMPLE)]
        if self.kind != "AVRO":
            return [json.dumps(one).encode() for one in records]
        return [_avro(one) for one in records]

    def decoded(self) -> Column:
        """The record as Spark reads it."""
        if self.kind == "AVRO":
            from pyspark.sql.avro.functions import from_avro

            return from_avro(F.expr("substring(value, 6)"), json.dumps(AVRO_SCHEMA))
        text = F.col("value") if self.text is None else F.expr("substring(value, 6)")
        return F.from_json(text.cast("string"), _DDL)


_DDL = (
    "user string, score bigint, ratio double, stable boolean, boss string, kind string, levels array<bigint>, "
    "place struct<x: bigint, y: double>, at string, micros bigint"
)
_JSON: dict[str, Any] = {"format": "json"}
FORMS = (
    Form("Avro", {"format": "avro"}, json.dumps(AVRO_SCHEMA), "AVRO"),
    Form("JSON with a schema", _JSON, json.dumps(JSON_SCHEMA), "JSON"),
    Form("JSON, inferred", {**_JSON, "framing": "none", "types": "inferred"}, column="score__bigint"),
)


def run(place: Place) -> Result:
    rows, rounds = place.size(20_000, 50), place.size(3, 1)
    cases = []
    for form in FORMS:
        sides = {
            side: in_child(measure, place.part(f"{side}-{form.kind}"), form, rows, rounds)
            for side, measure in (("ours", ours), ("other", queries))
        }
        rates = {side: len(KINDS) * rows / found["seconds"] for side, found in sides.items()}
        say(f"{form.label}: " + ", ".join(f"{side} {rate:,.0f} rows/s" for side, rate in rates.items()))
        cpu = {f"{side} CPU s": found["cpu s"] for side, found in sides.items()}
        size = round(sum(map(len, form.bodies())) / SAMPLE)
        cases.append(
            Case(
                form.label,
                "rows/s",
                rates["ours"],
                rates["other"],
                less_is_better=False,
                details={**cpu, "rows a batch": len(KINDS) * rows, "bytes a record": size},
            )
        )
    for form, many, goal in ((FORMS[0], 200_000, 500_000), (FORMS[1], 50_000, 300_000)):
        cases.append(_large_batches(place, form, place.size(many, 50), rounds, goal))
    return Result("payloads_kafka", NOTE, tuple(cases))


def _large_batches(place: Place, form: Form, rows: int, rounds: int, goal: int) -> Case:
    """Ours alone: what is left where a batch's own cost hardly counts."""
    found = in_child(ours, place.part(f"ours-many-{form.kind}"), form, rows, rounds)
    rate = len(KINDS) * rows / found["seconds"]
    details = {"ours CPU s": found["cpu s"], "rows a batch": len(KINDS) * rows}
    label = f"{form.label}, large batches"
    return Case(label, "rows/s", rate, less_is_better=False, goal=goal, goal_of="ours", details=details)


def _avro(record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO_SCHEMA), record)
    return out.getvalue()


class Topics:
    """A topic of each kind, fed batch by batch."""

    def __init__(self, kafka: Kafka, bodies: Sequence[bytes], rows: int) -> None:
        self.producer = Producer({**kafka.client(), "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
        self.bodies, self.rows, self.batches = bodies, rows, 0
        for kind in KINDS:
            kafka.create_topic(kind, 1)

    def feed(self) -> None:
        """One batch's records."""
        for kind in KINDS:
            for number in range(self.rows):
                while True:
                    try:
                        self.producer.produce(kind, self.bodies[number % len(self.bodies)])
                        break
                    except BufferError:
                        self.producer.poll(0.5)
            self.producer.poll(0)
        if self.producer.flush(120):
            raise WrongRows("the broker did not take all records")
        self.batches += 1

    def check(self, uris: dict[str, str], column: str) -> None:
        check_tables(uris, self.rows * self.batches)
        whole, rest = divmod(self.rows, len(self.bodies))
        total = (whole * sum(range(len(self.bodies))) + sum(range(rest))) * self.batches
        for kind, uri in uris.items():
            found = DeltaTable(uri).to_pyarrow_table(columns=[column]).column(column).to_pylist()
            if sum(found) != total:
                raise WrongRows(f"{kind}: the scores are {sum(found)} together, not {total}")


def _framed(place: Place, form: Form) -> list[bytes]:
    if form.text is None:
        return form.bodies()
    registry = open_registry(RegistryConfig(path=str(place.root / "registry")))
    schema_id = registry.register("event", form.text, kind=form.kind).schema.id
    return [header.frame(schema_id, body) for body in form.bodies()]


def ours(place: Place, form: Form, rows: int, rounds: int) -> dict[str, float]:
    with Kafka(place.root / "kafka") as kafka:
        topics = Topics(kafka, _framed(place, form), rows)
        given: dict[str, Any] = {
            "pipeline": "ours",
            "source": {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "topic": list(KINDS)},
            "envelope": "none",
            "payload": form.payload,
            "tables": {"root": str(place.root / "lake")},
            "trigger": "continuous",
        }
        if form.text is not None:
            given["registry"] = {"path": str(place.root / "registry")}
        config = Pipeline.model_validate(given)
        topics.feed()
        spark = session()
        found = []
        with HeldStream(spark, config) as stream:
            for number in range(WARM + rounds):
                meter = Meter(apart={kafka.pid}, heap=heap_of(spark))
                timed = written(stream.batch(topics.feed, meter), len(KINDS) * rows)
                say(f"{form.label}, ours: {timed.wall_sec:.2f} s, {timed.usage.cpu_sec:.2f} CPU s")
                if number >= WARM:
                    found.append((timed.wall_sec, timed.usage.cpu_sec))
        topics.check({kind: f"{config.tables.root}/{kind}" for kind in KINDS}, form.column)
        spark.stop()
    return _summary(found)


def queries(place: Place, form: Form, rows: int, rounds: int) -> dict[str, float]:
    """The other side."""
    with Kafka(place.root / "kafka") as kafka:
        topics = Topics(kafka, _framed(place, form), rows)
        topics.feed()
        # Not our settings: what a session has by itself, and the jar of from_avro.
        spark = session(packages=(AVRO,))
        spark.conf.set("spark.sql.adaptive.enabled", "true")
        uris = {kind: str(place.root / "lake" / kind) for kind in KINDS}
        checkpoints = place.root / "checkpoints"
        streams = HeldQueries(
            uris,
            lambda kind, held: query_of(
                spark, kafka.bootstrap_servers, form, kind, uris[kind], str(checkpoints / kind), held
            ),
        )
        found = []
        try:
            streams.wait()
            for number in range(WARM + rounds):
                topics.feed()
                with Meter(apart={kafka.pid}, heap=heap_of(spark)) as meter:
                    seconds = streams.round()
                say(f"{form.label}, other: {seconds:.2f} s, {meter.usage.cpu_sec:.2f} CPU s")
                if number >= WARM:
                    found.append((seconds, meter.usage.cpu_sec))
        finally:
            streams.stop()
        topics.check(uris, "score")
        spark.stop()
    return _summary(found)


def query_of(spark: Any, brokers: str, form: Form, kind: str, uri: str, checkpoint: str, held: Held) -> StreamingQuery:
    def write(rows: DataFrame, batch: int) -> None:
        append(rows, uri, batch)
        held()

    options = {"kafka.bootstrap.servers": brokers, "subscribe": kind, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**options).load()
    rows = rows.select(form.decoded().alias("row")).select("row.*")
    query: StreamingQuery = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    return query


def _summary(found: list[tuple[float, float]]) -> dict[str, float]:
    return {"seconds": median(wall for wall, _ in found), "cpu s": median(cpu for _, cpu in found)}
