from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.casts import NAMED
from distributary.cli.entry import execute
from distributary.config import DeltaSource, KafkaSource, Pipeline, load, text_files
from distributary.config.databricks import not_on_databricks
from distributary.config.quantities import COLUMN_TYPES, seconds, size_bytes
from distributary.errors import ConfigError, ConfigFileMissing, DistributaryError, Exit, NotYet, SecretMissing

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
VARIABLES = ("KAFKA_PASSWORD", "REGISTRY_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
SECRET = "Hunter2-of-the-lake"

KAFKA = {"type": "kafka", "bootstrap_servers": "localhost:9092", "topic": "events"}
DELTA = {"type": "delta", "path": "/lake/bronze"}
SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "reader", "password": "word"}


def document(**changes: Any) -> dict[str, Any]:
    """A small valid pipeline; `a__b=x` sets key b of a, None removes."""
    base: dict[str, Any] = {
        "pipeline": "games",
        "source": dict(KAFKA),
        "registry": {"path": "/lake/registry"},
        "tables": {"root": "/lake/silver"},
    }
    for key, value in changes.items():
        *above, last = key.split("__")
        target = base
        for part in above:
            target = target.setdefault(part, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return base


def load_text(folder: Path, text: str) -> Pipeline:
    file = folder / "games.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def load_document(folder: Path, **changes: Any) -> Pipeline:
    return load_text(folder, yaml.safe_dump(document(**changes), sort_keys=False))


def fault(folder: Path, **changes: Any) -> dict[str, Any]:
    """The parameters of the ConfigError that loading raises, checked to be one line for each problem."""
    with pytest.raises(ConfigError) as caught:
        load_document(folder, **changes)
    return parameters_of(caught.value)


def parameters_of(error: DistributaryError) -> dict[str, Any]:
    assert error.condition == "CONFIG_INVALID"
    assert error.exit_code == Exit.BAD_INPUT
    problems = error.parameters.get("problems", [error.parameters])
    assert str(error).splitlines() == [f"{error.parameters['file']}: {p['key']}: {p['detail']}" for p in problems]
    return error.parameters


# -- what loads --------------------------------------------------------------------------------------------


def test_the_smallest_pipeline_has_every_default(tmp_path: Path) -> None:
    pipeline = load_document(tmp_path)
    assert isinstance(pipeline.source, KafkaSource)
    assert pipeline.source.topics == ("events",)
    assert pipeline.source.starting_offsets == "earliest"
    assert pipeline.envelope_subject == "events-value"
    assert pipeline.envelope.columns == (
        "game_name",
        "schema_id",
        "payload",
    )
    assert pipeline.layout == "fanout"
    assert pipeline.tables.name == "{route}"
    assert pipeline.tables.retry_after == 60
    assert (pipeline.quarantine.max_ratio, pipeline.quarantine.min_rows) == (0.5, 100)
    assert (pipeline.trigger.mode, pipeline.trigger.every) == ("every", 10)
    assert pipeline.state_root == "/lake/silver/_distributary/games"
    assert pipeline.checkpoint_path == "/lake/silver/_distributary/games/checkpoint"


@pytest.mark.parametrize("example", ["kafka", "delta"])
def test_the_documented_examples_load(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_URL", "http://registry:8081")
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    pipeline = load(EXAMPLES / f"{example}.yaml")
    assert pipeline.source.type == example
    assert SECRET not in repr(pipeline) + str(pipeline) + str(pipeline.as_dict_masked())


def test_a_pipeline_survives_pickling(tmp_path: Path) -> None:
    pipeline = load_document(tmp_path)
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


def test_what_is_printed_loads_again_to_the_same_pipeline(tmp_path: Path) -> None:
    pipeline = load_document(
        tmp_path,
        source__topic=["a", "b"],
        source__starting_offsets={"a": {0: 5, 1: -1}},
        tables__routes={"Ann": {"evolution": {"new_column": "freeze"}}},
        trigger="once",
    )
    again = load_text(tmp_path, yaml.safe_dump(pipeline.as_dict_masked()))
    assert again == pipeline


def test_models_are_frozen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_document(tmp_path).layout = "wide"


@pytest.mark.parametrize(
    ("written", "mode", "every"),
    [
        ("once", "once", 10),
        ("continuous", "continuous", 10),
        ({"every": "2 minutes"}, "every", 120),
        ({"every": 1.5}, "every", 1.5),
    ],
)
def test_a_trigger_is_a_word_or_an_interval(tmp_path: Path, written: object, mode: str, every: float) -> None:
    trigger = load_document(tmp_path, trigger=written).trigger
    assert (trigger.mode, trigger.every) == (mode, every)


def test_a_route_can_have_its_own_engine_and_a_part_of_the_evolution(tmp_path: Path) -> None:
    tables = load_document(
        tmp_path,
        tables__evolution={"new_column": "quarantine"},
        tables__routes={"Ann": {"engine": "spark", "evolution": {"type_change": "freeze"}}, 2048: {"engine": "task"}},
    ).tables
    engine, evolution = tables.for_route("Ann")
    assert (engine, evolution.new_column, evolution.type_change) == ("spark", "quarantine", "freeze")
    assert tables.for_route("2048")[0] == "task"
    assert tables.for_route("ann") == ("auto", tables.evolution)


def test_option_values_may_be_numbers_and_booleans(tmp_path: Path) -> None:
    pipeline = load_text(
        tmp_path, yaml.safe_dump(document()) + "spark: {conf: {a: true, b: 8, c: 0.5, d: no, e: 2026-01-31}}\n"
    )
    assert pipeline.spark.conf == {"a": "true", "b": "8", "c": "0.5", "d": "no", "e": "2026-01-31"}


def test_a_date_and_a_base_60_number_stay_text(tmp_path: Path) -> None:
    text = yaml.safe_dump(document(source=None)) + (
        "source: {type: delta, path: 12:30, starting_timestamp: 2026-01-31 12:00:00}\n"
    )
    source = load_text(tmp_path, text).source
    assert isinstance(source, DeltaSource)
    assert (source.path, source.starting_timestamp) == ("12:30", "2026-01-31 12:00:00")


def test_the_state_and_the_checkpoint_can_live_elsewhere(tmp_path: Path) -> None:
    pipeline = load_document(tmp_path, state="s3a://state/games/")
    assert (pipeline.state_root, pipeline.checkpoint_path) == ("s3a://state/games", "s3a://state/games/checkpoint")
    assert load_document(tmp_path, checkpoint="/fast/cp").checkpoint_path == "/fast/cp"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10 seconds", 10),
        ("1 minute", 60),
        ("500 ms", 0.5),
        ("2h", 7200),
        ("1.5 Days", 129600),
        (3, 3),
        (0.25, 0.25),
        (0, 0),
    ],
)
def test_durations_are_seconds(written: object, expected: float) -> None:
    assert seconds(written) == pytest.approx(expected)


@pytest.mark.parametrize(
    "written", ["10 parsecs", "ten seconds", "-1 s", "", "10", True, None, -1, float("nan"), float("inf"), [1]]
)
def test_what_is_no_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="allowed: a duration"):
        seconds(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [("64 MB", 64 << 20), ("1g", 1 << 30), ("512 KiB", 512 << 10), ("10 B", 10), ("1.5 kb", 1536), (7, 7)],
)
def test_sizes_are_bytes_in_powers_of_1024(written: object, expected: int) -> None:
    assert size_bytes(written) == expected


@pytest.mark.parametrize("written", ["64 MX", "MB", "0 MB", "0.1 b", -5, 0, True, 1.5, None])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="allowed: a size"):
        size_bytes(written)


# -- what is refused: one clear line each ------------------------------------------------------------------


def test_an_unknown_key_names_the_nearest_and_all_allowed_keys(tmp_path: Path) -> None:
    problem = fault(tmp_path, source__topics="events")
    assert problem["key"] == "source.topics"
    assert "did you mean 'topic'?" in problem["detail"]
    assert "topic_pattern, starting_offsets, starting_timestamp" in problem["detail"]
    assert "(line 6)" in problem["detail"]


def test_a_key_that_is_gone_says_what_to_do_in_its_place(tmp_path: Path) -> None:
    problem = fault(tmp_path, layout="two_hop", hop={"shape": "per_route"})
    assert problem["key"] == "hop"
    assert "shares" in problem["detail"]


@pytest.mark.parametrize(
    ("changes", "key", "near"),
    [
        ({"layot": "fanout"}, "layot", "layout"),
        ({"tables__evolution": {"new_colum": "add"}}, "tables.evolution.new_colum", "new_column"),
        ({"tables__routes": {"Ann": {"engin": "task"}}}, "tables.routes.Ann.engin", "engine"),
        ({"source__security": {**SASL, "user_name": "x"}}, "source.security.user_name", "username"),
        ({"trigger": {"evry": 1}}, "trigger.evry", "every"),
    ],
)
def test_an_unknown_key_is_found_at_any_depth(tmp_path: Path, changes: dict[str, Any], key: str, near: str) -> None:
    problem = fault(tmp_path, **changes)
    assert problem["key"] == key
    assert f"did you mean {near!r}?" in problem["detail"]


@pytest.mark.parametrize(
    ("changes", "key", "allowed"),
    [
        ({"pipeline": 7}, "pipeline", "allowed: text; this is a whole number"),
        ({"source__headers": "yes"}, "source.headers", "allowed: true or false; this is text"),
        ({"source__max_offsets_per_batch": "many"}, "source.max_offsets_per_batch", "allowed: a whole number"),
        ({"source__max_offsets_per_batch": True}, "source.max_offsets_per_batch", "this is true or false"),
        ({"source__topic": 7}, "source.topic", "allowed: a topic name, or a list of topic names"),
        ({"source__topic": []}, "source.topic", "allowed: a topic name, or a list of topic names"),
        ({"source__bootstrap_servers": ["a:1"]}, "source.bootstrap_servers", "allowed: text; this is a list"),
        ({"source": "kafka"}, "source", "allowed: a mapping; this is text"),
        ({"tables": ["a"]}, "tables", "allowed: a mapping; this is a list"),
        ({"tables__routes": {"Ann": "spark"}}, "tables.routes.Ann", "allowed: a mapping; this is text"),
        ({"tables__storage_options": {"k": 3}}, "tables.storage_options.k", "allowed: text; this is a whole number"),
        ({"quarantine__max_ratio": "half"}, "quarantine.max_ratio", "allowed: a number; this is text"),
        ({"spark__conf": {"a": ["b"]}}, "spark.conf.a", "allowed: text; this is a list"),
    ],
)
def test_a_wrong_type_says_what_is_allowed(tmp_path: Path, changes: dict[str, Any], key: str, allowed: str) -> None:
    problem = fault(tmp_path, **changes)
    assert problem["key"] == key
    assert allowed in problem["detail"]


@pytest.mark.parametrize(
    ("changes", "key", "detail"),
    [
        ({"pipeline": "Games!"}, "pipeline", "'Games!' is not allowed; allowed: a-z, 0-9, _ and -"),
        ({"pipeline": "g" * 65}, "pipeline", "at most 64 characters"),
        ({"source__type": "kafak"}, "source.type", "(did you mean 'kafka'?); allowed: 'kafka', 'delta'"),
        ({"source__type": None}, "source.type", "is required; allowed: 'kafka', 'delta'"),
        (
            {"source__on_data_loss": "Fail"},
            "source.on_data_loss",
            "(did you mean 'fail'?); allowed: 'fail', 'continue'",
        ),
        ({"source__starting_offsets": "first"}, "source.starting_offsets", "allowed: 'earliest', 'latest', or topic"),
        ({"source__starting_offsets": {"events": {"a": 1}}}, "source.starting_offsets", "allowed: 'earliest'"),
        ({"source__starting_offsets": {"events": {0: -3}}}, "source.starting_offsets", "allowed: 'earliest'"),
        ({"source__starting_offsets": {"other": {0: 3}}}, "source.starting_offsets", "names 'other'"),
        ({"source__bootstrap_servers": "broker"}, "source.bootstrap_servers", "allowed: host:port"),
        ({"source__bootstrap_servers": "a:9092,b:x"}, "source.bootstrap_servers", "allowed: host:port"),
        ({"source__bootstrap_servers": "a:65536"}, "source.bootstrap_servers", "allowed: host:port"),
        ({"source__bootstrap_servers": "$BROKER"}, "source.bootstrap_servers", "write ${env:BROKER}"),
        ({"source__topic": "no topic!"}, "source.topic", "allowed: topic names"),
        ({"registry": {"url": "http://r:8081/subjects"}}, "registry.url", "without /subjects"),
        ({"registry": {"url": "http://r:8081/api/schemas/ids/7"}}, "registry.url", "without /schemas/ids/7"),
        ({"registry": {"url": "http://r:8081", "token": " "}}, "registry.token", "is empty"),
        ({"tables__unity": {"url": "https://me:secret@acme.org"}}, "tables.unity.url", "without credentials"),
        ({"tables__unity": {"url": "http://a,http://b"}}, "tables.unity.url", "one address"),
        ({"tables__unity": {"url": "http://a", "token": ""}}, "tables.unity.token", "is empty"),
        ({"registry": {"url": "https://r:8081", "ca_file": "/tmp"}}, "registry.ca_file", "this is a folder"),
        (
            {"source__security": {"protocol": "SSL", "ca_file": "/etc/certs/"}},
            "source.security.ca_file",
            "this is a folder",
        ),
        ({"source__group_id": " "}, "source.group_id", "without spaces around it"),
        ({"registry__url": "localhost:8081"}, "registry.url", "like http://registry:8081"),
        ({"registry__url": "http://"}, "registry.url", "like http://registry:8081"),
        ({"registry__url": "http://a,ftp://b"}, "registry.url", "like http://registry:8081"),
        ({"tables__root": "~/lake"}, "tables.root", "~ is not replaced"),
        ({"tables__root": "sthree://b/lake"}, "tables.root", "no store is known by sthree://; allowed: a folder, or"),
        ({"tables__root": "S3A://b/lake"}, "tables.root", "did you mean s3a://?"),
        ({"tables__root": "s3n://b/lake"}, "tables.root", "did you mean s3a://?"),
        ({"source": {**DELTA, "path": "gcs3://b/t"}}, "source.path", "no store is known by gcs3://"),
        ({"state": "ggs://b/state"}, "state", "did you mean gs://?"),
        ({"tables__root": "s3a://my bucket/lake"}, "tables.root", "a bucket's name, which has no spaces"),
        ({"tables__root": "/data/*/lake"}, "tables.root", "one folder; * is not expanded here"),
        ({"source": {**DELTA, "path": "/lake/bronze{1,2}"}}, "source.path", "one folder; {1,2} is not expanded"),
        ({"source": {**DELTA, "path": "/lake/bronze "}}, "source.path", "without spaces around it"),
        ({"tables__root": "/lake\n"}, "tables.root", "without line breaks"),
        ({"tables__root": "C:\\lake"}, "tables.root", "nothing here runs on Windows"),
        ({"tables__root": ""}, "tables.root", "allowed: text; this is empty"),
        ({"state": "/lake/silver"}, "state", "a folder of its own; '/lake/silver' is tables.root"),
        ({"checkpoint": "file:/lake/silver/"}, "checkpoint", "a folder of its own"),
        ({"source": {**DELTA, "path": "/lake"}}, "tables.root", "a folder outside of it; '/lake/silver' lies in"),
        ({"registry": {"url": "http://my host:8081"}}, "registry.url", "like http://registry:8081"),
        ({"source__topic": ".."}, "source.topic", "allowed: topic names of a-z"),
        ({"source__options": {"group.id": "g"}}, "source.options", "'group.id' is not allowed: give source.group_id"),
        ({"envelope__route": "game name"}, "envelope.route", "this is 'game name'"),
        ({"envelope__payload": "pay-load"}, "envelope.payload", "allowed: letters, digits and _"),
        ({"tables__keys": ["id", "id"]}, "tables.keys", "'id' is given twice"),
        ({"tables__database": "a.b.c"}, "tables.database", "a database, or catalog and database"),
        ({"tables__history": "{route}_history"}, "tables.history", "Debezium, and with tables.keys only"),
        ({"spark": {"master": "locall[2]"}}, "spark.master", "allowed: local[4], local[*], spark://host:7077"),
        ({"spark": {"master": "local[x]"}}, "spark.master", "allowed: local[4]"),
        ({"spark": {"conf": {"driver.memory": "4g"}}}, "spark.conf", "write 'spark.driver.memory'"),
        ({"maintenance": {"target_file_size": 128}}, "maintenance.target_file_size", "1 MB or more, as '128 MB'"),
        ({"tables__root": "{{ lake }}"}, "tables.root", "a template's {{ }} is not replaced here"),
        ({"source__topic": ["a", "a"]}, "source.topic", "'a' is given twice"),
        ({"source": {"type": "delta", "table": "`a`.b"}}, "source.table", "without quotes, as in main.bronze.events"),
        ({"databricks": {"schedule": "*/15 * * * *"}}, "databricks.schedule", "Quartz cron, which begins with seconds"),
        ({"metrics": {"address": "localhost:9464"}}, "metrics.address", "an address without a port"),
        ({"trigger": 10}, "trigger", "an interval as in {every: 10 seconds}; this is 10"),
        ({"quarantine__max_ratio": "0.5"}, "quarantine.max_ratio", "allowed: a number; this is text: '0.5'"),
        ({"tables__root": "${HOME}/lake"}, "tables.root", "write ${env:HOME} as the whole value"),
        ({"tables__root": "s3a://"}, "tables.root", "names no bucket"),
        ({"tables__root": "s3a:/bucket/lake"}, "tables.root", "s3a://bucket/prefix, with two slashes"),
        ({"tables__root": "gcs://bucket/lake"}, "tables.root", "write gs://"),
        ({"tables__root": "http://minio:9000/lake"}, "tables.root", "storage_options, as endpoint"),
        ({"source__topic": None, "source__topic_pattern": "shop(.*"}, "source.topic_pattern", "not a regular"),
        ({"registry__texts": {"seven": "a.proto"}}, "registry.texts.seven", "allowed: a whole number"),
        ({"tables__root": "s3://bucket/lake"}, "tables.root", "write s3a://"),
        ({"state": "s3://bucket/state"}, "state", "write s3a://"),
        ({"checkpoint": "s3://bucket/checkpoint"}, "checkpoint", "write s3a://"),
        ({"tables__root": "s3://b/l", "state": "/s", "layout": "two_hop"}, "tables.root", "write s3a://"),
        ({"source__topic": None}, "source.topic", "exactly one of topic and topic_pattern"),
        ({"source__topic_pattern": "e.*"}, "source.topic", "exactly one of topic and topic_pattern"),
        ({"source__max_offsets_per_batch": 0}, "source.max_offsets_per_batch", "greater than or equal to 1; this is 0"),
        ({"source__options": {"kafka.acks": "1"}}, "source.options", "write 'acks', not 'kafka.acks'"),
        ({"source__bootstrap_servers": None}, "source.bootstrap_servers", "is required"),
        ({"source__bootstrap_servers": ""}, "source.bootstrap_servers", "this is empty"),
        ({"tables__engine": "tsk"}, "tables.engine", "'tsk' is not allowed (did you mean 'task'?); allowed: 'auto'"),
        ({"tables__name": "silver"}, "tables.name", "{route} exactly once"),
        ({"tables__name": "{route}_{route}"}, "tables.name", "{route} exactly once"),
        ({"tables__retry_after": "soon"}, "tables.retry_after", "allowed: a duration like '10 seconds'"),
        ({"tables__root": None}, "tables.root", "is required"),
        ({"trigger": "often"}, "trigger", "allowed: 'once', 'continuous', or an interval"),
        ({"quarantine__max_ratio": 2}, "quarantine.max_ratio", "less than or equal to 1; this is 2"),
        ({"registry": None}, "registry", "protobuf payloads need a registry"),
        ({"registry": None, "payload": {"format": "avro"}, "envelope": "none"}, "registry", "avro payloads need a"),
        (
            {"registry": None, "payload": {"format": "json"}, "envelope": "none"},
            "registry",
            "or, where messages are JSON without a schema, payload: {format: json, framing: none}",
        ),
        (
            {"registry": None, "payload": {"format": "text"}, "envelope": {"route": "kind"}},
            "registry",
            "an envelope is protobuf unless envelope.format says otherwise: none, where the message is the payload",
        ),
        (
            {"envelope__route": ["meta", "kind"]},
            "envelope.route",
            "a field by its path, as in meta.kind, or where else",
        ),
        ({"registry": {}}, "registry.url", "exactly one of url (a server) and path"),
        ({"registry__url": "http://h"}, "registry.url", "exactly one of url (a server) and path"),
        ({"registry__username": "u"}, "registry.password", "go together"),
        (
            {"registry": {"url": "http://h", "username": "u", "password": "p", "token": "t"}},
            "registry.token",
            "not both",
        ),
        ({"registry__key_file": "k.pem"}, "registry.cert_file", "key_file needs cert_file"),
        ({"tables__origin": "yes"}, "tables.origin", "allowed: true or false"),
        ({"source__on_data_loss": False}, "source.on_data_loss", "false is not allowed"),
        ({"registry__timeout_sec": 0}, "registry.timeout_sec", "greater than 0"),
        ({"source__topic": ["a", "b"], "envelope__framing": "none"}, "envelope.proto", "give proto or subject"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(tmp_path: Path, changes: dict[str, Any], key: str, detail: str) -> None:
    problem = fault(tmp_path, **changes)
    assert problem["key"] == key
    assert detail in problem["detail"]


@pytest.mark.parametrize(
    "url", ["http://schemas", "http://subjects/", "https://gateway/schemas", "https://gw/schemas/v1"]
)
def test_a_registry_may_be_called_as_a_path_of_its_own_is(tmp_path: Path, url: str) -> None:
    registry = load_document(tmp_path, registry={"url": url}).registry
    assert registry is not None and registry.url == url


@pytest.mark.parametrize(
    ("security", "key"),
    [
        ({**SASL, "password": None}, "password"),
        ({**SASL, "username": None}, "username"),
        ({**SASL, "mechanism": None}, "mechanism"),
        ({**SASL, "protocol": "SSL"}, "mechanism"),
        ({"protocol": "SSL", "cert_file": "c.pem"}, "key_file"),
        ({"protocol": "PLAINTEXT", "ca_file": "c.pem"}, "ca_file"),
    ],
)
def test_security_that_does_not_fit_its_protocol_is_refused(tmp_path: Path, security: dict[str, Any], key: str) -> None:
    given = {name: value for name, value in security.items() if value is not None}
    assert fault(tmp_path, source__security=given)["key"] == f"source.security.{key}"


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"starting_version": 1, "starting_timestamp": "2026-01-31"}, "source.starting_timestamp"),
        ({"starting_timestamp": "yesterday"}, "source.starting_timestamp"),
        ({"starting_version": -1}, "source.starting_version"),
        ({"max_bytes_per_batch": "64 MX"}, "source.max_bytes_per_batch"),
        ({"max_bytes_per_batch": 64}, "source.max_bytes_per_batch"),
        ({"topic": "events"}, "source.topic"),
    ],
)
def test_a_delta_source_is_checked_by_its_own_keys(tmp_path: Path, source: dict[str, Any], key: str) -> None:
    assert fault(tmp_path, source={**DELTA, **source})["key"] == key


def test_all_problems_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    problems = fault(tmp_path, pipeline="G", source__topics="x", tables__engine="tsk", trigger="often")["problems"]
    assert [p["key"] for p in problems] == ["pipeline", "source.topics", "tables.engine", "trigger"]
    assert [re.findall(r"\(line \d+\)$", p["detail"]) for p in problems] == [
        ["(line 1)"],
        ["(line 6)"],
        ["(line 11)"],
        ["(line 12)"],
    ]


def test_a_config_error_with_many_problems_survives_pickling(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path, pipeline="G", trigger="often")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.parameters) == (str(caught.value), caught.value.parameters)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"type": "files", "path": "gs://b"}},
    ],
)
def test_what_is_planned_answers_not_yet(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(NotYet) as caught:
        load_document(tmp_path, **changes)
    assert caught.value.exit_code == Exit.BAD_INPUT


@pytest.mark.parametrize("form", ["avro", "json", "bytes", "text"])
def test_payload_formats_have_keys_of_their_own(tmp_path: Path, form: str) -> None:
    assert load_document(tmp_path, payload__format=form).payload.format == form
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path, payload__format=form, payload__message="acme.Event")
    assert "payload.message" in str(caught.value.parameters["key"])


def test_json_without_a_schema_needs_no_registry_and_names_its_columns(tmp_path: Path) -> None:
    envelope = {"format": "none", "route": "meta.kind"}
    bare = {"registry": None, "envelope": envelope, "payload__format": "json", "payload__framing": "none"}
    columns = {"player": "bigint", "meta.at": "timestamp", "tags": "array<map<string, decimal(38, 2)>>"}
    found = load_document(tmp_path, payload__columns=columns, **bare).payload
    assert (found.encoding, found.is_framed, found.has_schema) == ("json_bare", True, False)
    for key, wrong in {
        "player": {"player": "long"},
        "a": {"a": "decimal(39,2)"},
        "b": {"b": "array<>"},
        "meta.at": {"meta.at": "date", "meta": "json"},
        "a..b": {"a..b": "date"},
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_document(tmp_path, payload__columns=wrong, **bare)
        assert caught.value.parameters["key"] == f"payload.columns.{key}"
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path, payload__format="json", payload__columns=columns)
    assert caught.value.parameters["key"] == "payload.columns"
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path, **{**bare, "envelope": {"format": "none", "route": {"from": "message_type"}}})
    assert caught.value.parameters["key"] == "envelope.route"


def test_a_registry_is_needed_where_a_schema_is(tmp_path: Path) -> None:
    envelope = {"format": "none", "route": {"constant": "all"}}
    found = load_document(tmp_path, payload__format="bytes", envelope=envelope, registry=None)
    assert (found.registry, found.payload.is_framed) == (None, True)
    for changes in ({"payload__format": "avro", "envelope": envelope}, {"payload__format": "text"}):
        with pytest.raises(ConfigError) as caught:
            load_document(tmp_path, registry=None, **changes)
        assert caught.value.parameters["key"] == "registry"


@pytest.mark.parametrize(
    ("form", "route"),
    [
        ("bytes", {"field": "user"}),
        ("text", {"from": "message_type"}),
        ("avro", {"oneof": "event"}),
        ("avro", {"any": "a"}),
    ],
)
def test_a_route_is_only_looked_for_where_a_format_can_have_it(
    tmp_path: Path, form: str, route: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path, payload__format=form, envelope={"format": "none", "route": route})
    assert caught.value.parameters["key"] == "envelope.route"


def test_a_store_that_spark_is_told_of_may_hold_a_source(tmp_path: Path) -> None:
    conf = {"spark.hadoop.fs.oss.impl": "org.apache.hadoop.fs.aliyun.oss.AliyunOSSFileSystem"}
    found = load_document(tmp_path, source={**DELTA, "path": "oss://b/t"}, spark={"conf": conf})
    assert found.source.address == "oss://b/t"


@pytest.mark.parametrize(("pattern", "told"), [("events*", 1), ("events.*", 0), ("shop-(a|b)*", 0), ("e[0-9]*", 0)])
def test_check_tells_of_a_pattern_that_a_shell_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, told: int
) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(json.dumps(document(source__topic=None, source__topic_pattern=pattern)))
    assert execute(["check", str(file)]) == 0
    assert capsys.readouterr().err.count("did you mean 'events.*'?") == told


def test_an_expectation_that_is_no_sql_names_its_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(yaml.safe_dump(document()) + "  expectations:\n  - name: a\n    that: score >\n")
    assert execute(["check", str(file)]) == Exit.BAD_INPUT
    line = len(file.read_text().splitlines())
    said = capsys.readouterr().err
    assert f"{file}: tables.expectations[0].that: 'score >' cannot be evaluated" in said and f"(line {line})" in said


def test_check_tells_of_a_setting_that_is_only_nearly_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "games.yaml"
    options = {"fetch.max.byte": 5, "max.poll.records": 9, "fetch.max.bytes": 7}
    properties = {"delta.appendonly": "true", "delta.enableChangeDataFeed": "true", "owner": "me"}
    file.write_text(json.dumps(document(source__options=options, tables__properties=properties)))
    assert execute(["check", str(file)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: source.options: 'fetch.max.byte' is no known setting of Kafka's clients; did you mean "
        "'fetch.max.bytes'?",
        f"{file}: tables.properties: 'delta.appendonly' is no known property of Delta tables; did you mean "
        "'delta.appendOnly'?",
    ]


# -- the file itself ---------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileMissing) as caught:
        load(tmp_path / "no.yaml")
    assert caught.value.parameters["file"] == str(tmp_path / "no.yaml")


@pytest.mark.parametrize(
    ("text", "key", "detail"),
    [
        ("pipeline: games\nsource: {type: kafka\n", "line 2, column 9", "not YAML: the `{` here has no `}`"),
        ("source: {type: kafka\nregistry: {}\n", "line 1, column 9", "not YAML: the `{` here has no `}`"),
        ("source: [a b: c\nd: e\n", "line 1, column 9", "not YAML: the `[` here has no `]`"),
        ("a: !<x y>\n", "line 1, column 7", "not YAML: expected '>', but found ' '"),
        ("pipeline: a: b\n", "line 1, column 12", "not YAML: a second colon in this line"),
        ("pipeline: games\n\ttables: x\n", "line 2, column 1", "a tab; YAML takes spaces only"),
        ("pipeline: games\ntables: {root: 'lake}\n", "line 2, column 16", "no quote at its end"),
        ("source:\n  topic: x\n  type:kafka\n", "line 3, column 3", "a key needs a colon and a space after it"),
        ("source:\n  type:kafka\n  topic: x\n", "line 3, column 8", "no space after the colon of the line before"),
        ("source:\n  type: x\n topic: x\n", "line 3, column 2", "begins in another column than its neighbours"),
        ('source:\n  topic_pattern: "shop\\..*"\n', "line 2, column 24", "write each backslash twice"),
        ('source: {topic_pattern: "shop\\x.*"}\n', "line 1, column 32", "write each backslash twice"),
        ("pipeline: !!python/name:os.system\n", "line 1, column 11", "not YAML: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1", "not YAML"),
        ("a: \x01\n", "file", "not YAML"),
        ("", "file", "must be a mapping"),
        ("- a\n", "file", "must be a mapping"),
        ("pipeline: a\ntables: {root: x}\npipeline: b\n", "pipeline", "given twice (line 1 and line 3)"),
        ("tables:\n  root: x\n  name: y\n  root: z\n", "tables.root", "given twice (line 2 and line 4)"),
        ("tables: {routes: {0: {}, '0': {}}}\n", "tables.routes.0", "given twice"),
        ("a: &a [*a]\n", "a[0]", "contains itself"),
        ("? [a, b]\n: c\n", "line 1, column 3", "is not text"),
        ("a: " + "[" * 50_000, "line 1, column 53", "more than 50 levels"),
        ("a:\n" + "- " * 60 + "\n", "line 2, column 99", "more than 50 levels"),
        ("a: !!int many\n", "file", "not what its tag says"),
        ("a: !!timestamp soon\n", "file", "not what its tag says"),
        ("a: !!bool soon\n", "file", "not what its tag says"),
        ("a: " + "1" * 5000 + "\n", "file", "not what its tag says"),
        ("a: " + "x" * 2**22 + "\n", "file", "longer than 4 MB"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_is_not_a_plain_mapping_is_refused(tmp_path: Path, text: str, key: str, detail: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    parameters = parameters_of(caught.value)
    assert parameters["key"] == key
    assert detail in parameters["detail"]


@pytest.mark.parametrize("levels", [9, 40])
def test_aliases_that_stand_for_more_than_fits_into_memory_are_refused(tmp_path: Path, levels: int) -> None:
    """A few lines of ten aliases each, of the line before: ten to the power of the lines."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels))]
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "\n".join(lines))
    assert "more than 200,000 values" in parameters_of(caught.value)["detail"]


def test_aliases_one_in_the_other_are_refused_as_levels(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "\n".join(lines))
    assert "more than 50 levels" in parameters_of(caught.value)["detail"]


def test_an_alias_that_is_used_a_few_times_is_allowed(tmp_path: Path) -> None:
    text = yaml.safe_dump(document()) + "  routes: {a: &one {engine: spark}, b: *one, c: *one}\n"
    assert load_text(tmp_path, text).tables.for_route("c")[0] == "spark"


def test_a_pipe_is_read_to_its_end_and_one_that_nobody_writes_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "PIPE_WAIT_SEC", 0.2)
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError) as caught:
        load(pipe)
    assert "no end of it" in parameters_of(caught.value)["detail"]
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, yaml.safe_dump(document()).encode())
    with pytest.raises(ConfigError) as caught:  # its other end stays open
        load(pipe)
    assert "no end of it" in parameters_of(caught.value)["detail"]
    os.write(writer, yaml.safe_dump(document()).encode())
    os.close(writer)
    assert load(pipe).pipeline == "games"
    os.close(reader)


def test_a_device_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load("/dev/zero")
    assert "longer than 4 MB" in parameters_of(caught.value)["detail"]


@given(st.text(alphabet="ab:-[]{},&*!?|>'\"#% \n\t\x00\x1b0.9~", max_size=60))
def test_any_text_loads_or_is_one_of_our_errors(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    try:
        load_text(tmp_path_factory.mktemp("any"), text)
    except DistributaryError as error:
        assert error.exit_code == Exit.BAD_INPUT


def test_a_folder_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path, detail in ((tmp_path, "cannot be read"), (tmp_path / "binary.yaml", "is not UTF-8 text")):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert detail in parameters_of(caught.value)["detail"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(
        ["pipeline", "source", "registry", "envelope", "payload", "layout", "tables", "quarantine", "trigger", "spark"]
    ),
)
def test_any_value_under_any_key_loads_or_is_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, value: object, key: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        load_text(folder, yaml.safe_dump({**document(), key: value}, allow_unicode=True))
    except ConfigError as error:
        parameters_of(error)
    except (NotYet, SecretMissing):
        pass


# -- secrets -----------------------------------------------------------------------------------------------


def test_references_are_resolved_from_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    (tmp_path / "user").write_text("reader\n")
    security = {**SASL, "username": f"${{file:{tmp_path / 'user'}}}", "password": "${env:KAFKA_PASSWORD}"}
    source = load_document(tmp_path, source__security=security).source
    assert isinstance(source, KafkaSource)
    assert source.security is not None
    assert source.security.username == "reader"
    assert source.security.password is not None
    assert source.security.password.get_secret_value() == SECRET


def test_printing_shows_the_reference_and_never_the_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", SECRET)
    pipeline = load_document(
        tmp_path,
        registry={"url": "http://h", "token": "${env:HIDDEN}"},
        source__options={"sasl.jaas.config": SECRET, "innocent": "${env:HIDDEN}", "fetch.max.bytes": 5},
        spark__conf={"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.x": "${env:HIDDEN}"},
        tables__storage_options={"KEY": SECRET},
    )
    printed = pipeline.as_dict_masked()
    assert SECRET not in str(printed) + repr(pipeline) + str(pipeline)
    assert printed["registry"]["token"] == "${env:HIDDEN}"
    assert printed["source"]["options"] == {
        "sasl.jaas.config": "**********",
        "innocent": "${env:HIDDEN}",
        "fetch.max.bytes": "5",
    }
    assert isinstance(pipeline.source, KafkaSource)
    assert pipeline.source.options["sasl.jaas.config"] == SECRET


def test_no_error_shows_the_value_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", SECRET)
    with pytest.raises(ConfigError) as caught:
        load_document(
            tmp_path,
            pipeline="${env:HIDDEN}",
            registry={"url": "http://h", "pasword": SECRET, "token": [SECRET], "timeout_sec": "${env:HIDDEN}"},
            source__on_data_loss="${env:HIDDEN}",
            tables__retry_after="${env:HIDDEN}",
            tables__storage_options={"k": [SECRET]},
            source__options={"a.password": [SECRET]},
        )
    assert len(caught.value.parameters["problems"]) == 8
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "registry: {password: WORD-secret: x}",
        "registry: {password: *WORD-secret}",
        "registry: {password: !WORD-secret x}",
        "registry: {timeout_sec: !!int WORD-secret}",
        "registry: {password: 'WORD-secret}",
        "registry: {url: 'http://user:WORD-secret@host', password: x}",
    ],
)
def test_no_error_shows_what_is_written_where_the_file_is_no_yaml_with_its_causes_too(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, f"pipeline: games\n{text}\n")
    assert parameters_of(caught.value)["file"]
    assert "WORD-secret" not in "".join(traceback.format_exception(caught.value))


def test_no_error_shows_a_secret_when_models_are_built_directly() -> None:
    with pytest.raises(ValueError, match="registry") as caught:
        Pipeline.model_validate(document(registry={"url": "http://h", "password": [SECRET]}))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "remedy"),
    [
        ("${env:DISTRIBUTARY_UNSET}", "Set the environment variable DISTRIBUTARY_UNSET."),
        ("${env:DISTRIBUTARY_EMPTY}", "Set the environment variable DISTRIBUTARY_EMPTY."),
        ("${file:/no/such/file}", "Write the value to the file /no/such/file"),
        ("${databricks:lake/key}", "on Databricks only"),
        ("${databricks:lake}", "Write it as ${databricks:scope/key}."),
    ],
)
def test_a_secret_without_a_value_says_how_to_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, remedy: str
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setenv("DISTRIBUTARY_EMPTY", "")
    with pytest.raises(SecretMissing) as caught:
        load_document(tmp_path, registry={"url": "http://h", "token": reference})
    assert caught.value.parameters["key"] == "registry.token"
    assert caught.value.parameters["reference"] == reference
    assert remedy in caught.value.parameters["remedy"]
    assert caught.value.exit_code == Exit.BAD_INPUT


def test_a_databricks_secret_is_read_on_databricks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(scope: str, key: str) -> str:
        return {("lake", "token"): SECRET}[scope, key]

    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(secrets=SimpleNamespace(get=get))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    token = {"url": "http://h", "token": "${databricks:lake/token}"}
    registry = load_document(tmp_path, tables__root="s3://lake/silver", registry=token).registry
    assert registry is not None
    assert registry.token is not None
    assert registry.token.get_secret_value() == SECRET
    with pytest.raises(SecretMissing) as caught:
        load_document(tmp_path, registry={"url": "http://h", "token": "${databricks:lake/other}"})
    assert "scope lake has the key other" in caught.value.parameters["remedy"]


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("http://${env:HOST}:8081", "must be the whole value"),
        ("${env:A}${env:B}", "must be the whole value"),
        ("${env:A", "must be the whole value"),
        ("${vault:a/b}", "allowed: ${env:...}, ${file:...}, ${databricks:...}"),
    ],
)
def test_a_reference_is_the_whole_value_and_of_a_known_kind(tmp_path: Path, value: str, detail: str) -> None:
    problem = fault(tmp_path, registry={"url": value})
    assert problem["key"] == "registry.url"
    assert detail in problem["detail"]


@pytest.mark.parametrize("value", ["${PASSWORD}", "$PASSWORD"])
@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("registry.password", "registry__password"),
        ("tables.storage_options.aws_secret_access_key", "tables__storage_options__aws_secret_access_key"),
        ("spark.conf.password", "spark__conf__password"),
    ],
)
def test_a_variable_of_a_shell_is_refused_wherever_it_is_a_whole_value(
    tmp_path: Path, key: str, place: str, value: str
) -> None:
    problem = fault(tmp_path, registry__username="reader", **{place: value})
    assert problem["key"] == key
    assert "write ${env:PASSWORD} as the whole value (line " in problem["detail"]


@pytest.mark.parametrize("value", ["pa$$word", "$", "${}", "${user.name}", "$1", "a${B}"])
def test_what_only_looks_like_a_variable_is_left_alone(tmp_path: Path, value: str) -> None:
    assert load_document(tmp_path, spark={"conf": {"spark.app.tag": value}}).spark.conf["spark.app.tag"] == value


def test_a_reference_without_a_value_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(SecretMissing, match=r"registry.url: \$\{env:NO_SUCH_NAME\} has no value \(line \d+\)"):
        load_document(tmp_path, registry={"url": "${env:NO_SUCH_NAME}"})


def test_schema_ids_with_a_text_of_their_own_are_numbers_as_a_file_has_them(tmp_path: Path) -> None:
    config = load_document(tmp_path, registry={"url": "http://h", "texts": {7: "fixed.proto"}})
    assert config.registry is not None
    assert config.registry.texts == {7: "fixed.proto"}


@pytest.mark.parametrize("pattern", [r"shop\..*", r"\p{Alpha}+", r"(?<name>a)", r"[a-z&&[^b]](", r"\Q(\E.*", "a*+"])
def test_a_pattern_that_only_java_takes_is_left_to_java(tmp_path: Path, pattern: str) -> None:
    source = {"type": "kafka", "bootstrap_servers": "h:9092", "topic_pattern": pattern}
    assert load_document(tmp_path, source=source).source.topic_pattern == pattern  # type: ignore[union-attr]


def test_a_registry_address_may_not_hold_credentials(tmp_path: Path) -> None:
    problem = fault(tmp_path, registry={"url": f"http://reader:{SECRET}@h"})
    assert problem["key"] == "registry.url"
    assert SECRET not in problem["detail"]


# -- docs and fences ---------------------------------------------------------------------------------------


def test_the_generated_pages_are_current() -> None:
    script = EXAMPLES.parent / "generate.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_configuration_page_shows_the_examples_whole() -> None:
    page = (EXAMPLES.parent / "configuration.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert blocks == [
        (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8") for name in ("kafka", "delta", "datastream")
    ]


def test_every_key_has_a_description() -> None:
    schema = Pipeline.model_json_schema()
    models = [schema, *schema["$defs"].values()]
    fields = [(model["title"], key, field) for model in models for key, field in model["properties"].items()]
    assert [(title, key) for title, key, field in fields if not field.get("description")] == []


def test_checking_a_file_starts_no_spark() -> None:
    code = "import sys, distributary.config; sys.exit(any(m in sys.modules for m in ('pyspark', 'py4j', 'deltalake')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_folders_of_this_machine_count_from_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark, its workers and delta-rs each have a working folder of their own."""
    monkeypatch.chdir(tmp_path)
    found = load_document(tmp_path, tables__root="lake/", state="state", checkpoint="../cp")
    assert (found.tables.root, found.state_root) == (f"{tmp_path}/lake", f"{tmp_path}/state")
    assert found.checkpoint_path == f"{tmp_path.parent}/cp"
    assert load_document(tmp_path, layout="two_hop", bronze={"path": "b"}).bronze_path == f"{tmp_path}/b"
    for address in ("s3a://bucket/lake", "gs://b", "dbfs:/lake", "/lake", "file:/lake"):
        assert load_document(tmp_path, tables__root=address).tables.root == address


def test_s3_has_a_connector_where_spark_is_told_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = "s3://bucket/lake"
    assert load_document(tmp_path, tables__root=root, state="/state").tables.root == root, "tasks write the tables"
    conf = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    assert load_document(tmp_path, tables__root=root, spark={"conf": conf}).tables.root == root
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.0")
    assert load_document(tmp_path, tables__root=root).tables.root == root


@pytest.mark.parametrize(
    "place", ["/Volumes/main/silver", "/dbfs/lake", "dbfs:/lake", "/lake", "file:/lake", "dbfs:/Volumes/a/b"]
)
def test_tables_on_databricks_lie_at_an_external_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    found = load_document(tmp_path, tables__root=place, databricks={"node_type": "m5d.xlarge"})
    assert [key for key, _ in not_on_databricks(found)] == ["tables.root"], "the file may be tried elsewhere first"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    with pytest.raises(ConfigError, match=r"tables\.root: .*give the address of an external location"):
        load_document(tmp_path, tables__root=place)
    with pytest.raises(ConfigError, match=r"state: .*external location"):
        load_document(tmp_path, tables__root="s3://lake/silver", state=place)
    with pytest.raises(ConfigError, match=r"bronze\.path: .*external location"):
        load_document(tmp_path, tables__root="s3://lake/silver", layout="two_hop", bronze={"path": place})
    load_document(tmp_path, tables__root="s3://lake/silver", checkpoint=f"{place}/checkpoint")


def test_check_says_which_tables_cannot_lie_there_on_databricks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        "pipeline: games\nsource: {type: kafka, bootstrap_servers: 'broker:9092', topic: events}\n"
        "registry: {url: 'http://registry:8081'}\ntables: {root: /Volumes/main/lake}\n"
        "databricks: {node_type: m5d.xlarge}\n"
    )
    assert execute(["check", str(file)]) == 0
    said = capsys.readouterr().err
    assert f"{file}: tables.root: on Databricks, a volume is no place for tables" in said
    assert "give the address of an external location" in said


def test_an_address_may_be_a_reference_on_a_machine_without_its_value(tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(
        'pipeline: games\nsource: {type: kafka, bootstrap_servers: "${env:NO_BROKER}", topic: events}\n'
        'registry: {url: "${env:NO_REGISTRY}"}\ntables: {root: "${env:NO_LAKE}"}\n'
    )
    found = load(file, secrets=False)
    assert found.registry is not None and found.registry.url == "${env:NO_REGISTRY}"
    assert found.tables.root.endswith("${env:NO_LAKE}")


@pytest.mark.parametrize(
    ("columns", "says"), [({"flag": "boolean"}, "shop.orders.born"), ({"*.flag": "bool"}, "boolean")]
)
def test_columns_of_change_files_have_a_route_and_a_known_type(
    tmp_path: Path, columns: dict[str, str], says: str
) -> None:
    file = tmp_path / "shop.yaml"
    source = {"type": "datastream", "path": "/f", "columns": columns}
    file.write_text(json.dumps({"pipeline": "shop", "source": source, "tables": {"root": "/lake"}}))
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert raised.value.parameters["key"].startswith("source.columns")
    assert says in raised.value.parameters["detail"]


def test_the_types_that_a_file_may_ask_for_are_those_that_readers_know() -> None:
    assert set(COLUMN_TYPES) == set(NAMED)
