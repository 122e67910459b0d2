"""JSON from a real broker into tables, with a schema and without, through plan, run, verify and replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distributary.audit.plan import plan
from distributary.config import RegistryConfig
from distributary.repair.replays import replay
from distributary.schemas import header
from distributary.schemas.registry import open_registry
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.services.kafka import Kafka
from tests.test_json_payloads import V1, V2
from tests.test_routes_kafka import Shop, ran, reasons, rows

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]

MORE = json.dumps({"properties": {"user": {"type": "string"}, "tags": {"additionalProperties": {"type": "number"}}}})


def test_json_comes_into_tables(lake: Path, kafka: Kafka) -> None:
    files = {101: V1, 102: V2, 103: MORE}
    for schema_id, schema in files.items():
        (lake / f"{schema_id}.json").write_text(schema)
    texts = {schema_id: str(lake / f"{schema_id}.json") for schema_id in files}
    open_registry(RegistryConfig(path=str(lake / "registry"))).register("wrapper", WRAPPER_TEXT)
    shop = Shop(lake, kafka, 0)

    def sent(schema_id: int, **record: Any) -> bytes:
        return header.frame(schema_id, json.dumps(record).encode())

    with kafka.topic(1) as orders:
        values = [
            sent(102, user="bob", score=7),
            sent(101, user="ann", score=8),
            sent(102, user="bob", score="7"),
            sent(103, user="cat", tags={"a": 1.5}),
            header.frame(102, b"{"),
            b"\xff" * 9,
        ]
        shop.send(orders, [{"value": value} for value in values])
        folder = orders.replace("-", "_")

        def pipeline(name: str, known: dict[int, str], **keys: Any) -> Any:
            registry = {"path": str(lake / "registry"), "texts": known}
            return shop.pipeline(name, orders, registry=registry, payload={"format": "json"}, **keys)

        config = pipeline("json", {i: file for i, file in texts.items() if i != 103}, envelope="none")
        (planned,) = plan(config).tables
        assert (planned.route, planned.rows_written) == (orders, 2)
        ran(config)
        assert rows(config) == {
            folder: [
                {"user": "bob", "_undeclared": None, "score": 7},
                {"user": "ann", "_undeclared": '{"score":8}', "score": None},
            ]
        }
        assert reasons(config) == {
            (orders, "CORRUPT_PAYLOAD"): 2,
            (orders, "UNKNOWN_SCHEMA_ID"): 1,
            (orders, "BAD_MAGIC"): 1,
        }
        config = pipeline("json", texts, envelope="none")
        assert replay(config).rows == {orders: 1}
        (last,) = [row for row in rows(config)[folder] if row["user"] == "cat"]
        assert last["tags"] == [("a", 1.5)]
        ran(config)

        config = pipeline("two_hop", texts, envelope={"format": "none", "route": "user"}, layout="two_hop")
        ran(config)
        assert rows(config).keys() >= {"ann", "bob", "cat"}
        assert sum(reasons(config).values()) == 3

    with kafka.topic(1) as plain:
        records = [{"meta": {"kind": kind}, "player": n, "mode": "duel"} for n, kind in enumerate(["go", "chess"])]
        bodies = [json.dumps(record).encode() for record in records]
        shop.send(plain, [{"value": value} for value in (*bodies, b'{"meta": {"kind": "go"}, "player": "x"}', b"{")])
        bare = {"format": "json", "framing": "none", "columns": {"player": "bigint", "meta.kind": "string"}}
        envelope = {"format": "none", "route": "meta.kind"}
        config = shop.pipeline("bare", plain, registry=None, envelope=envelope, payload=bare, layout="wide")
        ran(config)
        config = shop.pipeline("bare_each", plain, registry=None, envelope=envelope, payload=bare)
        ran(config)
        assert {name: [row["player"] for row in found] for name, found in rows(config).items()} == {
            "go": [0],
            "chess": [1],
        }
        assert {row["_undeclared"] for found in rows(config).values() for row in found} == {'{"mode":"duel"}'}
        assert reasons(config) == {("go", "CORRUPT_PAYLOAD"): 1, (None, "CORRUPT_ENVELOPE"): 1}
