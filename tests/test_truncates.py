"""TRUNCATE deletes all rows that are older, and none that is newer, whatever comes first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.judge.histories import judge_histories
from distributary.audit.verify import verify
from distributary.changes.debezium.heads import Message
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.model import METADATA, Reading
from distributary.changes.reduce import newest
from distributary.changes.sequence import OrderSettings
from distributary.changes.truncates import Truncates, apart
from distributary.engine import packing
from distributary.engine.changes import key_shares, recording
from distributary.engine.changes.emptying import older_rows
from distributary.engine.messages import chunks
from distributary.errors import Reason
from distributary.kinds import kind_of
from tests.debezium_columns import written
from tests.debezium_messages import MS, change, text
from tests.extent import either
from tests.test_debezium_avro import AvroShop
from tests.test_debezium_order import Table, cut, living, told
from tests.test_debezium_protobuf import ProtobufShop
from tests.test_debezium_topics import KINDS, Shop, judged

HISTORY = {"history": "{database}_{table}_history"}


def put(op: str, key: int, at: int, name: str | None = None) -> Message:
    """`at`: where it stands in the log; also its second, and its offset."""
    row = {"id": key, "name": name or f"v{at}", "big": None}
    return change(op, row, kinds=KINDS, offset=at, pos=10 * at, ts_ms=MS + 1000 * at)


def truncate(at: int) -> Message:
    """In another partition than the rows: it has no key."""
    return as_truncate(put("c", 0, at), at)


def problems(shop: Shop, messages: Sequence[Message]) -> list[str]:
    """What `verify` finds wrong with the tables."""
    by_messages, by_log = judged(shop, messages), judge_histories(shop.config, verify(shop.config))
    assert not [note for note in (*by_messages.notes, *by_log.notes) if "judged" in note or "compared" in note]
    return [*by_messages.problems, *by_log.problems]


def test_rows_from_before_it_are_deleted_and_rows_from_after_it_live(tmp_path: Path) -> None:
    shop = Shop(tmp_path, HISTORY)
    messages = [put("c", 1, 1), put("c", 2, 2), truncate(3), put("c", 2, 4), put("c", 3, 5)]
    assert shop.take(messages).rows_written == 5
    assert sorted((row["id"], row["name"]) for row in shop.living("shop_orders")) == [(2, "v4"), (3, "v5")]
    assert [row["id"] for row in shop.rows("shop_orders_log") if row[METADATA]["change_type"] == "TRUNCATE"] == [None]
    assert problems(shop, messages) == []
    assert shop.quarantined() == []


@pytest.mark.parametrize("tombstones", ["in_table", "beside"])
@pytest.mark.parametrize("merge", ["copy_on_write", "merge_on_read"])
def test_it_empties_a_table_that_is_there_and_holds_for_what_comes_late(
    merge: str, tombstones: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, {**HISTORY, "merge": merge, "tombstones": tombstones})
    batches = [[put("c", 1, 1), put("c", 2, 6)], [truncate(5)], [put("u", 1, 2), put("c", 3, 3)], [put("c", 1, 7)]]
    for batch in batches:
        shop.take(batch)
    assert sorted((row["id"], row["name"]) for row in shop.living("shop_orders")) == [(1, "v7"), (2, "v6")]
    assert problems(shop, [message for batch in batches for message in batch]) == []


def test_a_history_is_read_for_those_that_come_and_not_for_those_it_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def reads(*given: Any) -> Iterator[pa.Table]:
        read.append(given[-1])
        return older_rows(*given)

    monkeypatch.setattr(recording, "older_rows", reads)
    shop = Shop(tmp_path, HISTORY)
    batches = [[put("c", 1, 1)], [truncate(20)], [put("c", 1, 35), truncate(30)], [truncate(10), put("c", 2, 5)]]
    for batch in batches:
        shop.take(batch)
    assert read == [0, 1, 0]
    assert problems(shop, [message for batch in batches for message in batch]) == []


def test_one_that_comes_before_any_row_of_its_table_waits_in_the_quarantine(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.take([truncate(2)])
    assert shop.quarantined() == [(Reason.TRUNCATED.value, "open")]
    shop.take([put("c", 1, 1), put("c", 2, 3)])
    assert shop.replay().rows == {"shop.orders": 1}
    assert [row["name"] for row in shop.living("shop_orders")] == ["v3"]


def as_truncate(message: Message, offset: int) -> Message:
    """The message as a TRUNCATE at its place. It has no key, so that it may lie in another partition than the rows."""
    body = json.loads(message.value or b"")
    body = {**body, "payload": {**body["payload"], "op": "t", "before": None, "after": None}}
    place = message.record._replace(partition=1, offset=offset)
    return message._replace(value=text(body), key=None, record=place)


class Emptied(Table):
    """A table that is emptied now and then."""

    def _truncate(self, key: int, other: int) -> None:
        self._tell("c", key, ("", ""), self.log.place())
        self.messages.append(as_truncate(self.messages.pop(), len(self.messages)))
        self.rows.clear()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "move", "shift", "truncate"]),
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    max_size=30,
)


@pytest.mark.parametrize("connector", ["mysql", "mariadb", "postgresql", "oracle"])
@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_the_order_of_arrival_plays_no_part(connector: str, steps: list[tuple[str, int, int]], random: Random) -> None:
    table = told(connector, steps, kind=Emptied)
    messages = [*table.messages, *random.sample(table.messages, len(table.messages) // 3)]
    random.shuffle(messages)
    order, held, known = OrderSettings(kind=connector), None, None
    for batch in cut(messages, random):
        found = read_messages(batch, Reading(order=order))
        assert found.bad == []
        for rows in (events.rows for events in found.events):
            rows, came = apart(rows)
            known = Truncates(came, order) if known is None else known.joined(Truncates(came, order)).newest()
            held = rows if held is None else pa.concat_tables([held, rows])
        if held is not None and known is not None:
            held = newest(known.emptied(held, ["id"]), ["id"], order)
    assert living(held) == table.rows


@pytest.mark.parametrize("seed", range(either(2, 40)))
def test_tables_hold_what_the_source_holds_after_any_batches_in_any_order(seed: int, tmp_path: Path) -> None:
    """Each change at its second, doubled and shuffled, with the log, the merged table and the history."""
    random = Random(seed)
    rows: dict[int, str] = {}
    messages: list[Message] = []
    for at in range(1, 40):
        key = random.randrange(6)
        if random.random() < 0.1:
            messages.append(truncate(at))
            rows.clear()
        elif random.random() < 0.2:
            messages.append(put("d", key, at))
            rows.pop(key, None)
        else:
            messages.append(put("u" if key in rows else "c", key, at))
            rows[key] = f"v{at}"
    sent = [*messages, *random.sample(messages, 10)]
    random.shuffle(sent)
    shop = Shop(tmp_path, {**HISTORY, "merge": ("copy_on_write", "merge_on_read")[seed % 2]})
    for begin in range(0, len(sent), 17):
        shop.take(sent[begin : begin + 17])
    shop.replay()
    assert {row["id"]: row["name"] for row in shop.living("shop_orders")} == rows
    current = {row["id"]: row["name"] for row in shop.rows("shop_orders_history") if row["is_current"]}
    assert {key: name for key, name in current.items() if name is not None} == rows
    assert problems(shop, messages) == []
    before = shop.rows("shop_orders")
    kind_of(shop.config, tmp_path / "shop.yaml").resync("shop.orders")
    ids = [sorted((row["id"], row[METADATA]["uuid"]) for row in found) for found in (before, shop.rows("shop_orders"))]
    assert ids[0] == ids[1]
    assert problems(shop, messages) == []


def test_verify_finds_one_that_was_not_followed(tmp_path: Path) -> None:
    shop = Shop(tmp_path, HISTORY)
    messages = [put("c", 1, 1), truncate(2), put("c", 2, 3)]
    shop.take(messages[::2])
    shop.take([messages[1]])
    assert problems(shop, messages) == []
    table = DeltaTable(f"{shop.config.tables.root}/shop_orders")
    table.restore(0)
    DeltaTable(f"{shop.config.tables.root}/shop_orders_history").restore(0)
    wrong = problems(shop, messages)
    assert any("merged table" in text for text in wrong)
    assert any("history" in text for text in wrong)


def test_one_of_a_log_that_has_begun_anew_parks_its_table(tmp_path: Path) -> None:
    """Hours later, and before the rows by its place."""
    shop = Shop(tmp_path)
    shop.take([put("c", 1, 1)])
    late = truncate(2)
    body = json.loads(late.value or b"")
    body["payload"]["source"] |= {"pos": 4, "ts_ms": MS + 10 * 3_600_000}
    assert shop.take([late._replace(value=text(body))]).parked == ("shop.orders",)


@pytest.mark.parametrize("shares", [1, 3])
def test_it_holds_for_rows_that_other_tasks_read(shares: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 4)
    monkeypatch.setattr(packing, "SHARE_ROWS", 4)
    monkeypatch.setattr(packing, "TABLE_WEIGHT", 0)
    monkeypatch.setattr(key_shares, "SHARE_BYTES", key_shares.SHARE_BYTES if shares == 1 else 1 << 12)
    monkeypatch.setattr(key_shares, "SMALL_BYTES", 0)
    shop = Shop(tmp_path, HISTORY)
    first, late = [put("c", key, 1 + key) for key in range(12)], [put("c", 20 + key, 30 + key) for key in range(12)]
    shop.take([*first, put("c", 50, 90)])
    shop.take([*late, truncate(60), put("c", 51, 91), *(put("u", key, 70 + key) for key in range(3))])
    assert sorted(row["id"] for row in shop.living("shop_orders")) == [0, 1, 2, 50, 51]
    shop.take([put("u", 4, 40), put("c", 60, 41)])
    assert sorted(row["id"] for row in shop.living("shop_orders")) == [0, 1, 2, 50, 51]
    counted = judge_histories(shop.config, verify(shop.config))
    assert (counted.problems, shop.quarantined()) == ((), [])


def test_one_that_another_task_reads_before_its_table_is_there_takes_no_row_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 4)
    monkeypatch.setattr(packing, "SHARE_ROWS", 4)
    monkeypatch.setattr(packing, "TABLE_WEIGHT", 0)
    rows, emptied = [put("c", key, 1 + key) for key in range(4)], [truncate(at) for at in (0, 1, 2, 3)]
    for number, messages in enumerate(([*rows, *emptied], [*emptied, *rows])):
        shop = Shop(tmp_path / str(number), HISTORY)
        shop.take(messages)
        assert len(shop.quarantined()) == 4
        assert sorted(row["id"] for row in shop.living("shop_orders")) == [0, 1, 2, 3]
        shop.replay()
        assert sorted(row["id"] for row in shop.living("shop_orders")) == [2, 3]
        assert problems(shop, messages) == []


@pytest.mark.parametrize("made", [AvroShop, ProtobufShop])
def test_one_in_avro_or_protobuf_does_what_one_in_json_does(
    made: type[AvroShop] | type[ProtobufShop], tmp_path: Path
) -> None:
    shop = made(tmp_path)
    messages = [put("c", 1, 1), put("c", 2, 2), truncate(3), put("c", 2, 4)]
    sent = [written(shop.form, message) for message in messages]
    shop.take(sent[:1])
    assert shop.take(sent[1:]).rows_written == 3
    assert [(row["id"], row["name"]) for row in shop.living("shop_orders")] == [(2, "v4")]
    assert shop.quarantined() == []
    assert judged(shop, sent).problems == ()


@pytest.mark.spark
def test_spark_merges_follow_it_too(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"merge_engine_rows": 1})
    shop.spark = spark
    batches = [
        [put("c", key, key) for key in (1, 2, 3)],
        [put("c", 4, 9), truncate(8)],
        [put("u", 1, 5), put("u", 2, 9)],
    ]
    for batch in batches:
        assert shop.take(batch).parked == ()
    assert sorted(row["id"] for row in shop.living("shop_orders")) == [2, 4]
    made = Shop(tmp_path / "made", {"engine": "spark"})
    made.spark = spark
    for batch in ([put("c", 1, 1), truncate(2), put("c", 2, 3)], [put("u", 3, 1)]):
        assert made.take(batch).parked == ()
    assert sorted(row["id"] for row in made.living("shop_orders")) == [2]
