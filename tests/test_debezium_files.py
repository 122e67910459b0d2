"""Files of Debezium's messages, as sinks of Kafka Connect write them, become the tables that the topics would."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest

from distributary.audit.judge.changes import verify_changes
from distributary.audit.judge.histories import judge_histories
from distributary.audit.plan import plan_changes
from distributary.changes.debezium.heads import Message
from distributary.changes.model import Kind
from distributary.engine.changes import merging
from distributary.kinds import kind_of
from distributary.tables.snapshot import Snapshot
from distributary_simulate.changes.history import History, HistoryPlan
from tests.debezium_messages import change
from tests.sparkless import Sparkless
from tests.test_debezium_histories import assert_source_rows, merged_name, messages_of
from tests.test_debezium_topics import KINDS, of_row, put
from tests.test_truncates import truncate


def files_of(root: Path, **tables: Any) -> Sparkless:
    source = {"type": "debezium_files", "path": str(root / "files")}
    return Sparkless(root, source=source, tables={"history": "{database}_{schema}_{table}_history", **tables})


def line(message: Message, way: str) -> bytes:
    """`values`: as Confluent's sink has it; `records` as Aiven's; `texts`: where the converter is for texts."""
    key, value = message.key or b"null", message.value or b"null"
    if way == "values":
        return value
    if way == "texts":
        texts = {
            "key": None if message.key is None else key.decode(),
            "value": value.decode() if message.value else None,
        }
        return json.dumps({**texts, "offset": message.record.offset}).encode()
    return b'{"key":' + key + b',"value":' + value + b',"offset":1}'


def write(shop: Sparkless, name: str, messages: Sequence[Message], way: str = "records") -> None:
    body = b"".join(line(message, way) + b"\n" for message in messages)
    path = shop.files / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(body) if name.endswith(".gz") else body)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (Kind.MYSQL, "records"),
        (Kind.POSTGRESQL, "texts"),
        (Kind.SQLSERVER, "records"),
        (Kind.ORACLE, "records"),
        (Kind.MONGODB, "records"),
    ],
)
def test_after_any_files_in_any_order_the_merged_tables_are_those_of_the_source(
    kind: Kind, way: str, tmp_path: Path
) -> None:
    tables = tuple(table for table in HistoryPlan().tables if table.kind is kind)
    history = History(HistoryPlan(tables=tables, seed=4, schema_changes=0))
    messages = messages_of(history, 160, schemas=True)
    random = Random(4)
    sent = [*messages, *random.sample(messages, 20)]
    random.shuffle(sent)
    shop = files_of(tmp_path)
    for number, begin in enumerate(range(0, len(sent), 60)):
        name = f"srv.topic+0+{number:010d}.json{'.gz' if number % 2 else ''}"
        write(shop, name, sent[begin : begin + 60], way)
        shop.run()
    # MongoDB: a document was gone when it was looked up.
    assert shop.reasons().keys() <= ({"NO_ROW_IMAGE"} if kind is Kind.MONGODB else set())
    found = judge_histories(shop.config, verify_changes(shop.config))
    assert (found.problems, found.notes) == ((), ())
    for truth in history.truth().values():
        table = truth.table
        if not table.keys:
            continue
        rows = [row for row in shop.merged(merged_name(table)).to_pylist() if not row["_deleted"]]
        assert_source_rows(truth, rows)


def test_rows_of_one_binlog_event_stand_in_its_order(tmp_path: Path) -> None:
    """`SET id = id + 1`, the last row first: one position, and the number of the row tells them apart."""
    rows = [("d", 2, 0), ("c", 3, 1), ("d", 1, 2), ("c", 2, 3)]
    moved = [
        change(op, {"id": key, "name": "a", "big": None}, kinds=KINDS, offset=9 + row, pos=90, row=row)
        for op, key, row in rows
    ]
    shop = files_of(tmp_path)
    write(shop, "b.jsonl", moved[::-1])
    shop.run()
    write(shop, "a.jsonl", [put("c", 1, 1, 10), put("c", 2, 2, 20)])
    shop.run()
    assert [key for key, *_ in shop.living("shop_orders")] == [2, 3]
    shop.check()


def test_rows_of_oracle_that_exchange_keys_in_one_statement_live(tmp_path: Path) -> None:
    """Debezium writes the insert of a key's new row before the delete of its old one."""
    changes = [("c", 1, "A"), ("c", 2, "B"), ("d", 1, "A"), ("c", 2, "A"), ("d", 2, "B"), ("c", 1, "B")]
    messages = [of_row(op, key, row_id, place) for place, (op, key, row_id) in enumerate(changes)]
    shop = files_of(tmp_path)
    for number, some in enumerate((messages[4:], messages[:2], messages[1:5])):
        write(shop, f"{number}.jsonl", some)
        shop.run()
    assert shop.living("shop_orders", ["id", "name"]) == [(1, "B"), (2, "A")]
    shop.check()


def test_values_alone_take_their_keys_from_the_pipeline_file(tmp_path: Path) -> None:
    shop = files_of(tmp_path, routes={"shop.orders": {"keys": ["id"]}})
    write(
        shop,
        "topics/srv.shop.orders/partition=0/a.json",
        [put("c", 1, 1, 10, name="a"), put("u", 1, 2, 20, name="b")],
        "values",
    )
    shop.run()
    assert [(row["id"], row["name"]) for row in shop.merged("shop_orders").to_pylist()] == [(1, "b")]
    shop.check()


def test_a_value_that_was_not_logged_and_a_truncate_do_what_they_do_in_topics(tmp_path: Path) -> None:
    shop = files_of(tmp_path)
    write(shop, "a.jsonl", [put("u", 1, 5, 50, name="b", big="__debezium_unavailable_value"), put("c", 2, 2, 20)])
    shop.run()
    write(shop, "b.jsonl", [truncate(3), put("c", 1, 4, 40, name="a", big="long")])
    shop.run()
    rows = [row for row in shop.merged("shop_orders").to_pylist() if not row["_deleted"]]
    assert [(row["id"], row["name"], row["big"]) for row in rows] == [(1, "b", "long")]
    assert shop.reasons() == {}
    found = judge_histories(shop.config, verify_changes(shop.config))
    assert found.problems == ()


def test_what_is_no_change_is_set_aside_alone(tmp_path: Path) -> None:
    shop = files_of(tmp_path)
    good = put("c", 1, 1, 10)
    bad = [good._replace(value=body) for body in (b"{", b'{"x":1}', None)]
    write(shop, "a.jsonl", [good, *bad])
    planned = plan_changes(shop.config)
    assert (planned.rows_in, planned.reasons) == (3, {"CORRUPT_EVENT": 2})
    report = shop.run()
    assert (report.rows_written, shop.reasons()) == (1, {"CORRUPT_EVENT": 2})
    shop.check()


def test_a_truncate_alone_is_followed_by_a_merge_that_waited(tmp_path: Path) -> None:
    shop = files_of(tmp_path, merge_every="1 hour")
    sent = {"a": [put("c", 1, 1, 10), put("c", 2, 9, 90)], "b": [truncate(5)], "c": [put("u", 1, 2, 20)]}
    left = []
    for name, messages in sent.items():
        write(shop, f"{name}.jsonl", messages)
        shop.run()
        left.append([row["id"] for row in shop.merged("shop_orders").to_pylist() if not row["_deleted"]])
    assert left == [[1, 2], [2], [2]]
    assert judge_histories(shop.config, verify_changes(shop.config)).problems == ()


def test_a_truncate_before_the_first_merge_goes_by_the_key_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any) -> None:
        raise OSError("the store is away")

    shop = files_of(tmp_path, merge_every="1 hour", retry_after="0 seconds")
    with monkeypatch.context() as broken:
        broken.setattr(merging, "merge_rows", ended)
        for name, messages in {"a": [put("c", 1, 1, 10), put("c", 2, 9, 90)], "b": [truncate(5)]}.items():
            write(shop, f"{name}.jsonl", messages)
            assert shop.run().parked == ("shop.orders",)
    shop.run()
    assert ([key for key, *_ in shop.living("shop_orders")], shop.reasons()) == ([2], {})


def test_a_table_knows_of_a_truncate_from_its_first_commit_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the batch after that commit, which says that all of it is done."""

    def ended(*_: Any) -> None:
        raise OSError("the store is away")

    shop = files_of(tmp_path)
    write(shop, "a.jsonl", [put("c", 1, 1, 10), truncate(5), put("c", 2, 9, 90)])
    with monkeypatch.context() as broken:
        broken.setattr(Snapshot, "set_properties", ended)
        shop.run()
    write(shop, "b.jsonl", [put("c", 3, 3, 30)])
    shop.run()
    assert [key for key, *_ in shop.living("shop_orders")] == [2]
    with monkeypatch.context() as broken:
        broken.setattr(Snapshot, "set_properties", ended)
        for name in ("shop_orders", "shop_orders_history"):
            rmtree(tmp_path / "lake" / name)
        kind_of(shop.config, tmp_path / "shop.yaml").resync("shop.orders")
    write(shop, "c.jsonl", [put("c", 4, 4, 40)])
    shop.run()
    assert [key for key, *_ in shop.living("shop_orders")] == [2]
    assert judge_histories(shop.config, verify_changes(shop.config)).problems == ()
