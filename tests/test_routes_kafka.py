"""Topics as people have them, on a real broker: wherever the route of a record is, its row is in the route's table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.plan import plan
from distributary.audit.verify import verify
from distributary.config import Pipeline, RegistryConfig
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.replay import Replay
from distributary.engine.schemas import schemas_of
from distributary.running import hops
from distributary.running.stream import session_of
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary.state.ledger import Ledger, totals
from distributary.tables.store import Store
from distributary_simulate.games.events import message_class
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]

SHOP = """syntax = "proto3"; package acme;
import "google/protobuf/any.proto"; import "google/protobuf/timestamp.proto";
message Order { string user = 1; google.protobuf.Timestamp at = 2; }
message Payment { string user = 1; int64 cents = 2; }
message Event { string game_name = 1; string user = 2; }
enum Kind { UNKNOWN = 0; ORDER_PLACED = 1; PAYMENT_MADE = 2; }
message Meta { Kind event_type = 1; }
message Wrapped { Meta meta = 1; int32 schema_id = 2; bytes payload = 3; }
message Either { string id = 1; oneof event { Order order = 2; Payment payment = 3; string note = 4; } }
message Packed { string id = 1; google.protobuf.Any details = 2; }
"""
INDEX = {"Order": 0, "Payment": 1, "Event": 2, "Wrapped": 4, "Either": 5, "Packed": 6}
Sent = Mapping[str, Any]
NAMES = {"name": "{route|last|snake}"}


@dataclass
class Shop:
    root: Path
    kafka: Kafka
    id: int
    topics: dict[str, str] = field(default_factory=dict)

    def message(self, name: str, **values: Any) -> bytes:
        body: bytes = message_class(SHOP, f"acme.{name}")(**values).SerializeToString()
        return frame(self.id, body, [INDEX[name]])

    def body(self, name: str, **values: Any) -> bytes:
        found: bytes = message_class(SHOP, f"acme.{name}")(**values).SerializeToString()
        return found

    def send(self, topic: str, records: Iterable[Sent]) -> None:
        producer = Producer(self.kafka.client())
        for record in records:
            producer.produce(topic, partition=0, **record)
        assert producer.flush(30) == 0

    def pipeline(self, name: str, topic: str, **keys: Any) -> Pipeline:
        source = {**self.kafka.source(topic), **keys.pop("source", {})}
        if "topic_pattern" in source:
            del source["topic"]
        return Pipeline.model_validate(
            {
                "pipeline": name,
                "source": source,
                "registry": {"path": str(self.root / "registry")},
                "tables": {"root": str(self.root / name), **keys.pop("tables", {})},
                "quarantine": {"max_ratio": 1.0},
                "trigger": {"mode": "once"},
                **keys,
            }
        )


def rows(config: Pipeline) -> dict[str, list[dict[str, Any]]]:
    """Of each table its rows, by offset, without what says where they come from."""
    found = {}
    for folder in sorted(Path(config.tables.root).glob("*/_delta_log")):
        read = DeltaTable(folder.parent).to_pyarrow_table().to_pylist()
        read.sort(key=lambda row: (row["_origin"]["topic"], row["_origin"]["offset"]))
        found[folder.parent.name] = [{k: v for k, v in row.items() if k != "_origin"} for row in read]
    return found


def reasons(config: Pipeline) -> dict[tuple[str | None, str], int]:
    path = Path(config.state_root) / "quarantine"
    kept = DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
    return dict(Counter((row["route"], row["reason"]) for row in kept))


def ran(config: Pipeline) -> None:
    hops.run(config, once=True)
    check(config)


def replay(config: Pipeline) -> None:
    store = Store.of(config.tables)
    fanout = Fanout(session_of(config), config, schemas_of(config), store)
    Replay(config, Ledger(config.state_root, config.pipeline, store), fanout).run(None, None)


def check(config: Pipeline) -> None:
    """What its ledger and its tables say is true, value by value."""
    found = judge_payloads(config, verify(config), deep=True)
    assert (found.problems, found.notes) == ((), ())
    entries = Ledger(config.state_root, config.pipeline, Store()).entries()
    for entry in totals(entries).values():
        assert entry.rows_in == entry.rows_written + entry.rows_quarantined
    written = sum(table.rows_compared for table in found.tables)
    assert written == sum(entry.rows_written for entry in entries) > 0


def test_each_natural_topic_has_its_tables(lake: Path, kafka: Kafka) -> None:
    registry = open_registry(RegistryConfig(path=str(lake / "registry")))
    shop = Shop(lake, kafka, registry.register("shop", SHOP).schema.id)
    order, payment = shop.message("Order", user="ann"), shop.message("Payment", user="bob", cents=7)
    garbage: Sent = {"value": b"no header", "key": b"k"}
    gone: Sent = {"value": None, "key": b"k"}
    ann, bob = {"user": "ann", "at": None}, {"user": "bob", "cents": 7}

    with kafka.topic(1) as orders, kafka.topic(1) as payments:
        shop.send(orders, [{"value": order}, garbage, gone])
        shop.send(payments, [{"value": payment}])
        config = shop.pipeline("by_topic", "", source={"topic_pattern": f"{orders}|{payments}"}, envelope="none")
        ran(config)
        folders = [topic.replace("-", "_") for topic in (orders, payments)]
        assert rows(config) == dict(zip(folders, ([ann], [bob]), strict=True))
        assert reasons(config) == {(orders, "BAD_MAGIC"): 1}

    with kafka.topic(1) as plain:
        events = [{"value": shop.message("Event", game_name=name, user="x")} for name in ("chess", "go", "chess", "")]
        shop.send(plain, [*events, garbage, gone])
        chess = {"game_name": "chess", "user": "x"}
        envelope: dict[str, Any] = {"format": "none", "route": "game_name"}
        config = shop.pipeline("plain", plain, envelope=envelope, tables={"exclude": ["g*"]})
        planned = plan(config)
        assert ([(t.route, t.rows_written) for t in planned.tables], planned.excluded) == ([("chess", 2)], 1)
        ran(config)
        assert rows(config) == {"chess": [chess, chess]}
        assert reasons(config) == {(None, "NO_ROUTE"): 1, (None, "BAD_MAGIC"): 1}
        assert verify(config).excluded == 1

    with kafka.topic(1) as several:
        headers = [("event-type", b"order"), ("other", b"x")]
        shop.send(
            several,
            [
                {"value": order, "key": b"ann", "headers": headers},
                {"value": payment, "key": b"bob", "headers": [("event-type", b"payment")]},
                {"value": order, "key": b"\xff\xfe"},
                gone,
            ],
        )
        config = shop.pipeline("by_type", several, envelope={"route": {"from": "message_type"}}, layout="wide")
        ran(config)
        [found] = rows(config).values()
        assert [row["acme_x2e__x4f_rder"] or row["acme_x2e__x50_ayment"] for row in found] == [ann, bob, ann]
        config = shop.pipeline(
            "by_key", several, envelope={"format": "none", "route": {"from": "key"}}, layout="two_hop"
        )
        ran(config)
        assert rows(config) == {"ann": [ann], "bob": [bob]}
        assert reasons(config) == {(None, "NO_ROUTE"): 1}
        envelope = {"format": "none", "route": {"header": "event-type"}}
        config = shop.pipeline("by_header", several, envelope=envelope, source={"headers": True})
        ran(config)
        assert rows(config) == {"order": [ann], "payment": [bob]}
        assert reasons(config) == {(None, "NO_ROUTE"): 1}

    with kafka.topic(1) as either:
        shop.send(
            either,
            [
                {"value": shop.message("Either", id="1", order={"user": "ann"})},
                {"value": shop.message("Either", id="2", payment={"user": "bob", "cents": 7})},
                {"value": shop.message("Either", id="3", note="hello")},
                {"value": shop.message("Either", id="4")},
                {"value": frame(shop.id, b"\xff\xff", [INDEX["Either"]])},
                {"value": order},
                gone,
                {"value": frame(shop.id + 1, shop.body("Either", order={"user": "late"}), [INDEX["Either"]])},
            ],
        )
        config = shop.pipeline("oneof", either, envelope={"route": {"oneof": "event"}}, layout="two_hop")
        ran(config)
        assert rows(config) == {"order": [ann], "payment": [bob], "note": [{"note": "hello"}]}
        kept = {(None, "NO_ROUTE"): 1, (None, "CORRUPT_ENVELOPE"): 2, (None, "UNKNOWN_SCHEMA_ID"): 1}
        assert reasons(config) == kept
        registry.register("later", f"{SHOP} message Later {{}}")
        replay(config)
        late = {"user": "late", "at": None}
        assert sorted(rows(config)["order"], key=str) == [ann, late]
        assert verify(config).ok

    with kafka.topic(1) as packed:

        def inside(kind: str, value: bytes) -> Sent:
            return {"value": shop.message("Packed", id="1", details={"type_url": f"t/{kind}", "value": value})}

        shop.send(
            packed,
            [
                inside("acme.Order", shop.body("Order", user="ann")),
                inside("acme.Payment", shop.body("Payment", user="bob", cents=7)),
                inside("acme.Payment", b"\xff\xff"),
                inside("acme.Unknown", b""),
                {"value": shop.message("Packed", id="2")},
            ],
        )
        config = shop.pipeline("by_any", packed, envelope={"route": {"any": "details"}}, tables=NAMES)
        ran(config)
        assert rows(config) == {"order": [ann], "payment": [bob]}
        assert reasons(config) == {
            ("acme.Payment", "CORRUPT_PAYLOAD"): 1, ("acme.Unknown", "BAD_INDEX"): 1, (None, "NO_ROUTE"): 1,
        }  # fmt: skip

    with kafka.topic(1) as nested:
        shop.send(
            nested,
            [
                {"value": shop.message("Wrapped", meta={"event_type": 1}, payload=order)},
                {"value": shop.message("Wrapped", meta={"event_type": 2}, payload=payment)},
                {"value": shop.message("Wrapped", meta={"event_type": 9}, payload=payment)},
                {"value": shop.message("Wrapped", payload=payment)},
            ],
        )
        config = shop.pipeline("nested", nested, envelope={"route": "meta.event_type"}, tables=NAMES, layout="two_hop")
        ran(config)
        assert rows(config) == {"order_placed": [ann], "payment_made": [bob], "9": [bob]}
        assert reasons(config) == {(None, "NO_ROUTE"): 1}
