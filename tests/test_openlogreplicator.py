"""OpenLogReplicator's messages through a pipeline without Spark: log and merged tables, in the order of the commits."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.audit.judge.histories import judge_histories
from distributary.changes.debezium.heads import Message, Record
from distributary.changes.openlogreplicator import as_debezium, divided, routes_of
from tests.test_debezium_topics import Shop, judged

TABLES = {"routes": {"ORCL.SHOP.ORDERS": {"keys": ["ID"]}, "ORCL.SHOP.LINES": {"keys": ["ID"]}}}
MERGED = "orcl_shop_orders"
Row = dict[str, Any]


def change(
    op: str, num: int, before: Row | None, after: Row | None, table: str = "ORDERS", columns: bool = True
) -> Row:
    schema: Row = {"owner": "SHOP", "table": table}
    if columns:
        schema["columns"] = [{"name": name, "type": "number", "nullable": True} for name in ("ID", "NAME", "N")]
    item: Row = {"op": op, "schema": schema, "num": num, "rid": "AAAzU8AAMAAAACUAAA"}
    return item | ({"before": before} if before is not None else {}) | ({"after": after} if after is not None else {})


def sent(offset: int, scn: int, *items: Row, **head: Any) -> Message:
    said = {"e_scn": scn, "tm": 1_790_000_000_123_000_000, "c_scn": 1, "c_idx": 0, "xid": "0x0002.012.00004162"}
    body = json.dumps({**said, "db": "ORCL", **head, "payload": list(items)}).encode()
    return Message(Record("srv.ora", 0, offset), None, body)


def living(shop: Shop, table: str = MERGED) -> list[tuple[Any, ...]]:
    return sorted((row["ID"], row.get("NAME"), row.get("N")) for row in shop.living(table))


HISTORY = [
    sent(0, 100, {"op": "begin"}),
    sent(1, 100, change("c", 0, None, {"ID": 1, "NAME": "a", "N": 1})),
    sent(2, 100, change("c", 1, None, {"ID": 2, "NAME": "b"})),
    sent(3, 100, {"op": "commit"}),
    sent(4, 200, change("u", 0, {"ID": 1, "NAME": "a"}, {"ID": 1, "NAME": "c"})),
    sent(5, 300, change("d", 0, {"ID": 2, "NAME": "b"}, None)),
    sent(6, 300, change("u", 1, {"ID": 1, "N": 1}, {"ID": 1, "N": None})),
    sent(7, 400, change("c", 0, None, {"ID": 3, "NAME": "x", "N": 5})),
    sent(8, 500, change("u", 0, {"ID": 3, "NAME": "x", "N": 5}, {"ID": 4, "NAME": "x", "N": 5})),
    sent(9, 600, {"op": "ddl", "ddl": "alter table"}),
]


@pytest.mark.parametrize("seed", range(4))
def test_the_merged_table_is_the_source_in_whatever_order_and_batches_messages_come(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    order = random.sample([*HISTORY, *random.sample(HISTORY, 3)], len(HISTORY) + 3) if seed else HISTORY
    shop = Shop(tmp_path, {**TABLES, "history": "{database}_{schema}_{table}_history"}, format="openlogreplicator")
    cut = random.randrange(1, len(order))
    for batch in (order[:cut], order[cut:]):
        shop.take(batch)
    assert living(shop) == [(1, "c", None), (4, "x", 5)]
    assert shop.quarantined() == []
    found = judged(shop, order)
    assert (found.ok, found.problems, found.notes) == (True, (), ())
    histories = judge_histories(shop.config, found)
    assert histories.ok, histories.problems


@pytest.mark.parametrize("order", ["position", "offset"])
def test_changes_of_a_transaction_without_numbers_are_in_their_order(tmp_path: Path, order: str) -> None:
    changes = [
        change("c", 0, None, {"ID": 1, "NAME": "a", "N": 1}),
        change("u", 1, {"ID": 1, "N": 1}, {"ID": 1, "N": 2}),
        change("u", 2, {"ID": 1, "N": 2}, {"ID": 1, "N": 3}),
    ]
    message = sent(0, 100, {"op": "begin"}, *({n: v for n, v in one.items() if n != "num"} for one in changes))
    shop = Shop(tmp_path, TABLES, format="openlogreplicator", order=order)
    shop.take([message])
    assert living(shop) == [(1, "a", 3)]
    found = judged(shop, [message])
    assert (found.ok, found.problems, found.notes) == (True, (), ())


def test_keys_that_the_pipeline_file_has_in_other_letters_are_the_keys(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"routes": {"ORCL.SHOP.ORDERS": {"keys": ["id"]}}}, format="openlogreplicator")
    shop.take(HISTORY)
    assert living(shop) == [(1, "c", None), (4, "x", 5)]
    assert shop.quarantined() == []
    assert judged(shop, HISTORY).problems == ()


def test_a_message_with_a_whole_transaction_is_its_changes_each_in_its_table(tmp_path: Path) -> None:
    transaction = sent(
        0, 100, {"op": "begin"},
        change("c", 0, None, {"ID": 1, "NAME": "a", "N": 1}),
        change("c", 1, None, {"ID": 7, "NAME": "line"}, table="LINES"),
        change("u", 2, {"ID": 1, "N": 1}, {"ID": 1, "N": 2}),
        {"op": "commit"},
    )  # fmt: skip
    shop = Shop(tmp_path, TABLES, format="openlogreplicator")
    report = shop.take([transaction])
    assert (report.rows_in, report.rows_written) == (3, 3)
    assert living(shop) == [(1, "a", 2)]
    assert living(shop, "orcl_shop_lines") == [(7, "line", None)]
    found = judged(shop, [transaction])
    assert (found.ok, found.problems) == (True, ())
    wrong = [change("c", 0, None, {"ID": 1, "NAME": "z", "N": 1}), *json.loads(transaction.value or b"")["payload"][2:]]
    assert not judged(shop, [sent(0, 100, *wrong)]).ok


def test_of_a_transaction_in_one_message_the_change_that_does_not_fit_is_the_one_set_aside(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {**TABLES, "evolution": {"new_column": "quarantine"}}, format="openlogreplicator")
    more = change("c", 1, None, {"ID": 3, "MORE": 1})
    first = sent(0, 100, change("c", 0, None, {"ID": 1}))
    transaction = sent(1, 200, change("c", 0, None, {"ID": 2}), more, change("c", 2, None, {"ID": 4}))
    shop.take([first])
    shop.take([transaction])
    assert [row[0] for row in living(shop)] == [1, 2, 4]
    kept = DeltaTable(f"{shop.config.state_root}/quarantine").to_pyarrow_table().to_pylist()
    assert [json.loads(row["value"])["payload"][0]["after"] for row in kept] == [{"ID": 3, "MORE": 1}]
    assert judged(shop, [first, transaction]).ok


def test_what_cannot_be_a_row_is_set_aside_and_what_is_none_is_passed_over(tmp_path: Path) -> None:
    shop = Shop(tmp_path, TABLES, format="openlogreplicator")
    shop.take(
        [
            sent(0, 100, {"op": "chkpt", "seq": 1, "offset": 0}),
            sent(1, 100, change("u", 0, {"ID": 1}, {"ID": 1, "N": 2}, columns=False)),
            sent(2, 100, change("c", 1, None, {"ID": 5}), e_scn=None),
            sent(3, 100, change("c", 2, None, {"ID": 6}), e_scn=None, scns="0x64"),
            sent(4, 100, {"op": "c", "after": {"ID": 1}}),
            Message(Record("srv.ora", 0, 5), None, b'{"a":1}'),
        ]
    )
    assert [row[0] for row in living(shop)] == [6]
    assert [reason for reason, _ in shop.quarantined()] == [
        "BAD_POSITION", "CORRUPT_ENVELOPE", "CORRUPT_ENVELOPE", "UNKNOWN_CHANGE_TYPE"
    ]  # fmt: skip


@pytest.mark.parametrize("said", [{"NAME": "a"}, {}, None])
def test_a_delete_that_names_its_row_by_its_row_id_only_is_set_aside(tmp_path: Path, said: Row | None) -> None:
    shop = Shop(tmp_path, TABLES, format="openlogreplicator")
    shop.take([sent(0, 100, change("c", 0, None, {"ID": 1, "NAME": "a"}), change("c", 1, None, {"ID": 2}))])
    gone = [change("d", 0, {"ID": 2}, None), change("d", 1, said, None, columns=False)]
    report = shop.take([sent(1, 200, *gone, xid="0x0002.012.00004163")])
    assert (report.rows_in, report.rows_written, report.reasons) == (2, 1, {"NO_KEY_VALUE": 1})
    assert [row[0] for row in living(shop)] == [1]
    assert shop.quarantined() == [("NO_KEY_VALUE", "open")]


def test_a_table_without_keys_is_a_log(tmp_path: Path) -> None:
    shop = Shop(tmp_path, format="openlogreplicator")
    shop.take(HISTORY[:3])
    assert len(shop.rows(f"{MERGED}_log")) == 2


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ({"tm": 1_790_000_000_123_456_789}, 1_790_000_000_123),
        ({"tm": 1_790_000_000_123_456}, 1_790_000_000_123),
        ({"tm": 1_790_000_000_123}, 1_790_000_000_123),
        ({"tm": 1_790_000_000}, 1_790_000_000_000),
        ({"tms": "1790000000123"}, 1_790_000_000_123),
        ({"tms": "2026-09-21T14:13:20.123Z"}, 1_790_000_000_123),
        ({"tms": "2026-09-21 14:13:20.123456"}, 1_790_000_000_123),
        ({"tm": 5, "e_tm": 1_790_000_000_123}, 1_790_000_000_123),
    ],
)
def test_the_time_is_read_in_each_of_its_forms(said: Row, ms: int) -> None:
    message = sent(0, 1, change("c", 0, None, {"ID": 1}), **{"tm": None, **said})
    assert json.loads(as_debezium(message).value or b"")["source"]["ts_ms"] == ms


def test_routes_are_the_tables_names_and_most_messages_are_one_change() -> None:
    bodies = [message.value or b"" for message in HISTORY]
    found = routes_of([*bodies, b"null"])
    assert set(found.routes) == {"ORCL.SHOP.ORDERS"} and found.passed == 3
    assert [position for position, _ in found.bad] == [len(bodies)]
    one = [bodies[1]]
    assert divided(["ORCL.SHOP.ORDERS"], [None], one, {}) is None
