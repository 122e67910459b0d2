"""Pipeline files of Debezium's topics: what they may say, and what is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from distributary.config import Pipeline
from distributary.running.report import build
from distributary.sources.delta import needed_columns


def pipeline(**keys: Any) -> Pipeline:
    source: dict[str, Any] = {"type": "kafka", "bootstrap_servers": "localhost:9092", "topic_pattern": "shop.*"}
    tables = {"root": "/lake", **keys.pop("tables", {})}
    given = {"pipeline": "shop", "source": source, "envelope": "debezium", "payload": {"format": "json"}, **keys}
    return Pipeline.model_validate({**given, "tables": tables})


def test_the_short_form_is_enough() -> None:
    config = pipeline()
    assert (config.envelope.is_debezium, config.envelope.order, config.reads_keys) == (True, "position", True)


def test_a_run_says_the_names_of_both_tables() -> None:
    assert build(pipeline()).tables == "/lake/{database}_{schema}_{table}_log and {database}_{schema}_{table}"


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"envelope": {"format": "debezium", "route": "name"}}, "envelope.route"),
        ({"envelope": {"format": "debezium", "subject": "s"}}, "envelope.subject"),
        ({"envelope": {"format": "none", "flattened": True}}, "envelope.flattened"),
        ({"payload": {"format": "text"}}, "payload.format"),
        ({"layout": "two_hop"}, "layout"),
        ({"registry": {"path": "/registry"}}, "registry"),
        ({"payload": {"format": "avro"}}, "registry"),
        ({"payload": {"format": "protobuf"}}, "registry"),
        ({"payload": {}}, "payload.format"),
        ({"payload": {"format": "protobuf", "message": "a.B"}, "registry": {"path": "/r"}}, "payload.message"),
        ({"payload": {"format": "avro", "framing": "none"}, "registry": {"path": "/r"}}, "payload.framing"),
        ({"tables": {"name": "{route}_x"}}, "tables.name"),
        ({"tables": {"keys": ["id"]}}, "tables.keys"),
        ({"tables": {"log": None}}, "tables.log"),
        ({"tables": {"log": "{route}_log"}}, "tables.log"),
        ({"tables": {"dropped_columns": "keep"}}, "tables.dropped_columns"),
        ({"tables": {"routes": {"shop.orders": {"name": "orders"}}}}, "tables.routes.shop.orders.name"),
    ],
)
def test_keys_that_mean_nothing_are_refused(keys: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as found:
        pipeline(**keys)
    (error,) = found.value.errors()
    assert ".".join([*map(str, error["loc"]), error["ctx"]["key"]]) == key


def test_a_table_of_records_is_a_source() -> None:
    config = pipeline(source={"type": "delta", "path": "/records", "value": "body"})
    assert config.reads_keys
    assert needed_columns(config.source, config.envelope) == {  # type: ignore[arg-type]
        "body": ("value", "binary"),
        "key": ("key", "binary"),
        "topic": ("topic", "string"),
        "partition": ("partition", "int"),
        "offset": ("offset", "bigint"),
    }


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_payloads_of_a_registry_are_read_with_their_keys(form: str) -> None:
    assert pipeline(payload={"format": form}, registry={"path": "/registry"}).reads_keys


def test_epochs_repairing_backfills_keys_and_names_can_be_given_by_route() -> None:
    own = {"epochs": ["2026-01-01"], "repair_backfills": ["2026-02-01"], "keys": ["id"], "log": "a_log", "merged": "a"}
    assert pipeline(tables={"routes": {"shop.orders": own}}).tables.routes["shop.orders"].merged == "a"
