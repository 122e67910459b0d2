"""Maxwell's messages through a pipeline without Spark: log and merged tables, in the order of the binlog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distributary.audit.judge.histories import judge_histories
from distributary.changes.debezium.heads import Message, Record
from distributary.changes.maxwell import KEY_CHANGED, as_debezium, routes_of
from tests.test_debezium_topics import Shop, judged

NAMED_BY_KEY, NAMED_BY_MESSAGE = "the key names the columns", "the message does"


def sent(
    type: str, offset: int, pos: int | None = None, *, old: Any = None, keys: str = NAMED_BY_MESSAGE, **data: Any
) -> Message:
    """A row of shop.orders. `pos`: in the binlog."""
    said: dict[str, Any] = {"database": "shop", "table": "orders", "type": type, "ts": 1_790_000_000, "data": data}
    if pos is not None:
        said |= {"position": f"bin.000007:{pos}", "xid": pos, "xoffset": 0}
    if old is not None:
        said["old"] = old
    key = None
    if keys == NAMED_BY_MESSAGE:
        said["primary_key_columns"] = ["id"]
    elif keys == NAMED_BY_KEY:
        key = json.dumps({"database": "shop", "table": "orders", "pk.id": data["id"]}).encode()
    return Message(Record("srv.maxwell", 0, offset), key, json.dumps(said).encode())


def living(shop: Shop) -> list[tuple[Any, Any]]:
    return sorted((row["id"], row["name"]) for row in shop.living("shop_orders"))


@pytest.mark.parametrize("keys", [NAMED_BY_KEY, NAMED_BY_MESSAGE])
def test_the_merged_table_is_the_source_in_whatever_order_messages_come(tmp_path: Path, keys: str) -> None:
    messages = [
        sent("bootstrap-insert", 0, keys=keys, id=9, name="old"),
        sent("insert", 1, 100, keys=keys, id=1, name="a"),
        sent("insert", 2, 200, keys=keys, id=2, name="b"),
        sent("update", 3, 300, keys=keys, old={"name": "a"}, id=1, name="c"),
        sent("delete", 4, 400, keys=keys, id=2, name="b"),
    ]
    for way, batches in enumerate(([messages], [messages[3:], messages[:3]], [messages[::-1], messages])):
        shop = Shop(tmp_path / str(way), format="maxwell")
        for batch in batches:
            shop.take(batch)
        assert living(shop) == [(1, "c"), (9, "old")]
        assert len(shop.rows("shop_orders_log")) == sum(map(len, batches))
        assert shop.quarantined() == []
        found = judged(shop, messages)
        assert (found.ok, found.problems, found.notes) == (True, (), ())


def test_what_is_no_row_is_passed_over_and_what_cannot_be_one_is_set_aside(tmp_path: Path) -> None:
    shop = Shop(tmp_path, format="maxwell")
    ddl = {"type": "table-alter", "database": "shop", "table": "orders", "ts": 1_790_000_000_000, "sql": "..."}
    shop.take(
        [
            Message(Record("srv.maxwell", 0, 0), None, json.dumps(ddl).encode()),
            sent("bootstrap-start", 1),
            sent("insert", 2, 100, id=1, name="a"),
            sent("insert", 4, id=6, name="no position"),
            sent("archive", 5, 300, id=7, name="unknown"),
            Message(Record("srv.maxwell", 0, 6), None, b'{"a":1}'),
            Message(Record("srv.maxwell", 0, 7), None, b"no JSON"),
        ]
    )
    assert living(shop) == [(1, "a")]
    assert [reason for reason, _ in shop.quarantined()] == [
        "BAD_POSITION", "CORRUPT_ENVELOPE", "CORRUPT_ENVELOPE", "UNKNOWN_CHANGE_TYPE"
    ]  # fmt: skip


@pytest.mark.parametrize("keys", [NAMED_BY_KEY, NAMED_BY_MESSAGE, "the pipeline file does"])
def test_an_update_of_the_key_ends_the_old_row_and_begins_a_new_one(tmp_path: Path, keys: str) -> None:
    messages = [
        sent("insert", 0, 100, keys=keys, id=1, name="a"),
        sent("insert", 1, 150, keys=keys, id=2, name="b"),
        sent("update", 2, 200, keys=keys, old={"id": 1}, id=5, name="a"),
        sent("update", 3, 300, keys=keys, old={"id": 2, "name": "b"}, id=1, name="c"),
        sent("update", 4, 400, keys=keys, old={"id": 1}, id=1, name="d"),
    ]
    tables = {"routes": {"shop.orders": {"keys": ["id"]}}, "history": "{database}_{table}_history"}
    for way, order in enumerate((messages, messages[::-1], messages[2:] + messages[:2])):
        shop = Shop(tmp_path / str(way), tables, format="maxwell")
        reports = [shop.take([message]) for message in order]
        assert living(shop) == [(1, "d"), (5, "a")]
        log = [(row["id"], row["datastream_metadata"]["change_type"]) for row in shop.rows("shop_orders_log")]
        assert len(log) == sum(report.rows_in for report in reports) == len(messages) + 2
        assert {(1, "UPDATE-DELETE"), (5, "UPDATE-INSERT"), (2, "UPDATE-DELETE"), (1, "UPDATE-INSERT")} <= set(log)
        assert shop.quarantined() == []
        found = judged(shop, messages)
        assert (found.ok, found.problems, found.notes) == (True, (), ())
        histories = judge_histories(shop.config, found)
        assert histories.ok, histories.problems
        assert len([row for row in shop.rows("shop_orders_history") if row["is_current"]]) == 2


def test_the_judge_finds_a_row_that_outlived_the_change_of_its_key(tmp_path: Path) -> None:
    insert, update = sent("insert", 0, 100, id=1, name="a"), sent("update", 1, 200, old={"id": 1}, id=5, name="a")
    shop = Shop(tmp_path, format="maxwell")
    shop.take([insert, update])
    assert not judged(shop, [insert, sent("update", 1, 200, old={"id": 7}, id=5, name="a")]).ok
    assert not judged(shop, [insert, sent("update", 1, 200, old={"name": "a"}, id=5, name="a")]).ok


def test_without_positions_the_order_of_the_topic_is_that_of_the_changes(tmp_path: Path) -> None:
    shop = Shop(tmp_path, format="maxwell", order="offset")
    shop.take([sent("update", 1, old={"name": "a"}, id=1, name="b"), sent("insert", 0, id=1, name="a")])
    assert living(shop) == [(1, "b")]


def test_the_judge_finds_a_wrong_value(tmp_path: Path) -> None:
    messages = [sent("insert", 0, 100, id=1, name="a"), sent("insert", 1, 200, id=2, name="b")]
    shop = Shop(tmp_path, format="maxwell")
    shop.take(messages)
    other = [messages[0], sent("insert", 1, 200, id=2, name="c")]
    assert not judged(shop, other).ok


def test_routes_are_the_tables_names() -> None:
    found = routes_of([sent("insert", 0, id=1).value or b"", b"null", b"[]"])
    assert (found.routes, found.positions, [at for at, _ in found.bad]) == (["shop.orders"], [0], [1, 2])


def test_the_record_s_key_in_small_letters_names_the_columns_as_the_row_spells_them() -> None:
    key = json.dumps({"database": "d", "table": "t", "pk.id": 1, "pk.tenantid": 2}).encode()
    body = {"database": "d", "table": "t", "type": "update", "data": {"id": 1, "tenantId": 2}, "old": {"tenantId": 1}}
    made = as_debezium(Message(Record("t", 0, 0), key, json.dumps(body).encode()))
    assert json.loads(made.key or b"") == {"id": 1, "tenantId": 2}
    assert json.loads(made.value or b"")["op"] not in ("u", "c", "d")


def test_a_key_column_that_the_row_lacks_is_null_and_merges_no_rows() -> None:
    body = {"database": "d", "table": "t", "type": "insert", "primary_key_columns": ["id", "n"], "data": {"id": 1}}
    made = as_debezium(Message(Record("t", 0, 0), None, json.dumps(body).encode()))
    assert json.loads(made.key or b"") == {"id": 1, "n": None}


def test_keys_of_the_configuration_tell_that_a_key_has_changed() -> None:
    body = {"database": "d", "table": "t", "type": "update", "data": {"id": 2}, "old": {"id": 1}}
    message = Message(Record("t", 0, 0), None, json.dumps(body).encode())
    assert json.loads(as_debezium(message).value or b"")["op"] == "u"
    assert json.loads(as_debezium(message, ("ID",)).value or b"")["op"] == KEY_CHANGED


@pytest.mark.parametrize("bad", [{"ts": 1e308}, {"position": "bin.000007:" + "1" * 5000}])
def test_a_number_beyond_all_bounds_sets_its_message_aside_and_no_other(tmp_path: Path, bad: dict[str, Any]) -> None:
    body = json.loads(sent("insert", 1, 100, id=2, name="b").value or b"") | bad
    shop = Shop(tmp_path, format="maxwell")
    shop.take(
        [sent("insert", 0, 50, id=1, name="a"), Message(Record("srv.maxwell", 0, 1), None, json.dumps(body).encode())]
    )
    assert living(shop) == [(1, "a")]
    assert len(shop.quarantined()) == 1


def test_the_last_row_of_a_transaction_which_has_no_xoffset_is_its_newest(tmp_path: Path) -> None:
    rows = [({"xoffset": 0}, "a"), ({"xoffset": 1}, "b"), ({"commit": True}, "c")]
    messages = []
    for offset, (more, name) in enumerate(rows):
        body = json.loads(sent("update", offset, 100, id=1, name=name).value or b"")
        del body["xoffset"]
        messages.append(Message(Record("srv.maxwell", 0, offset), None, json.dumps(body | more).encode()))
    for way, order in enumerate((messages, messages[::-1])):
        shop = Shop(tmp_path / str(way), format="maxwell")
        for message in order:
            shop.take([message])
        assert living(shop) == [(1, "c")]
        assert judged(shop, messages).ok
