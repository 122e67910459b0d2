"""Avro and bytes from a real broker into tables, through plan, run, verify and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distributary.audit.plan import plan
from distributary.config import RegistryConfig
from distributary.repair.replays import replay
from distributary.schemas import header
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary_simulate.games.schemas import WRAPPER_TEXT
from tests.avro_records import long, text
from tests.scenarios import message
from tests.services.kafka import Kafka
from tests.test_avro_payloads import EVENT, V1, V2
from tests.test_routes_kafka import Shop, ran, reasons, rows

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]

MORE = EVENT % (
    ', {"name": "score", "type": "long"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}'
    ', {"name": "tags", "type": {"type": "map", "values": ["null", "int", "string"]}}'
)


def test_avro_and_bytes_come_into_tables(lake: Path, kafka: Kafka) -> None:
    files = {101: V1, 102: V2, 103: MORE}
    for schema_id, schema in files.items():
        (lake / f"{schema_id}.avsc").write_text(schema)
    texts = {schema_id: str(lake / f"{schema_id}.avsc") for schema_id in files}
    path = str(lake / "registry")
    wrapper = open_registry(RegistryConfig(path=path)).register("wrapper", WRAPPER_TEXT).schema.id
    shop = Shop(lake, kafka, 0)

    def sent(schema_id: int, *parts: bytes) -> bytes:
        return header.frame(schema_id, b"".join(parts))

    ann, bob = sent(101, text(b"ann")), sent(102, text(b"bob"), long(7))
    cut, new = sent(102, text(b"bob")), sent(103, text(b"cat"), long(2**40), long(0), b"\0")
    with kafka.topic(1) as orders:
        shop.send(orders, [{"value": value} for value in (bob, ann, cut, new, b"x", b"\xff" * 9)])
        folder = orders.replace("-", "_")

        def pipeline(name: str, known: dict[int, str], **keys: Any) -> Any:
            registry = {"path": path, "texts": known}
            return shop.pipeline(name, orders, registry=registry, payload={"format": "avro"}, **keys)

        some = {i: file for i, file in texts.items() if i != 103}
        config = pipeline("avro", some, envelope="none")
        (planned,) = plan(config).tables
        assert (planned.route, planned.rows_written) == (orders, 2)
        ran(config)
        found = rows(config)
        assert found == {folder: [{"user": "bob", "score": 7}, {"user": "ann", "score": None}]}
        bad = {"CORRUPT_PAYLOAD": 1, "UNKNOWN_SCHEMA_ID": 1, "TOO_SHORT": 1, "BAD_MAGIC": 1}
        assert reasons(config) == {(orders, reason): 1 for reason in bad}
        config = pipeline("avro", texts, envelope="none")
        assert replay(config).rows == {orders: 1}
        (last,) = [row for row in rows(config)[folder] if row["user"] == "cat"]
        assert (last["score"], last["at"].year, last["tags"]) == (2**40, 1970, [])
        ran(config)

        config = pipeline("two_hop", texts, envelope={"format": "none", "route": "user"}, layout="two_hop")
        ran(config)
        assert set(rows(config)) >= {"ann", "bob", "cat"}
        assert sum(reasons(config).values()) == 3

        config = shop.pipeline("bytes", orders, registry=None, envelope="none", payload={"format": "bytes"})
        ran(config)
        assert [row["value"] for row in rows(config)[folder]] == [bob, ann, cut, new, b"x", b"\xff" * 9]

    with kafka.topic(1) as wrapped:
        values = [message(WRAPPER_TEXT, "wrapper", game_name="go", payload=payload) for payload in (ann, bob, cut)]
        shop.send(wrapped, [{"value": frame(wrapper, value)} for value in values])
        registry = {"path": path, "texts": texts}
        config = shop.pipeline("wrapped", wrapped, registry=registry, payload={"format": "avro"})
        ran(config)
        assert rows(config) == {"go": [{"user": "ann", "score": None}, {"user": "bob", "score": 7}]}
        assert reasons(config) == {("go", "CORRUPT_PAYLOAD"): 1}
