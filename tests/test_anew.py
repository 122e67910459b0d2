"""A source's log that begins anew: seen where a change would be lost by it, told, and mended by one setting; never seen
where clocks are wrong, files late, events doubled or rows read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.anew import BegunAnew
from distributary.changes.model import Kind
from distributary.changes.reduce import newest, reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.engine.changes.key_shares import KeyShares
from distributary.errors import LogBegunAnew
from distributary.repair.resync_changes import known_route, rebuild
from distributary.state.ledger import Ledger
from distributary.tables.merge_rows import Incoming, MergeRules, as_merged
from distributary.tables.store import Store
from distributary_simulate.changes.model import CDC_METHOD, Change, Position
from tests.events import START_MS, Event, backfilled, table_of
from tests.shop import mysql_table
from tests.sparkless import Sparkless

COLUMNS = {"id": pa.int64(), "value": pa.string()}
KINDS = ("mysql", "postgresql", "sqlserver", "oracle")
HOUR = 3600


def at(kind: str, place: int, sec: int, value: str = "", **more: Any) -> Event:
    sources: dict[str, dict[str, Any]] = {
        "mysql": {},
        "postgresql": {"lsn": f"0/{place:X}"},
        "sqlserver": {"lsn": f"00000025:{place:08x}:0001"},
        "oracle": {"scn": place, "rs_id": f"0x000001.{place:08x}.0010", "ssn": 0},
    }
    file, position = f"bin.{place // 10 + 1:06d}", place % 10
    return Event({"id": 1, "value": value}, position, sec=sec, file=file, source=sources[kind], **more)


def rows(kind: str, *events: Event) -> pa.Table:
    return table_of(events, COLUMNS, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_would_be_lost_although_it_is_far_later_is_seen_in_a_batch_and_in_a_merge(kind: str) -> None:
    order = OrderSettings(kind=kind)
    old, new = at(kind, 900, 0), at(kind, 1, 24 * HOUR)
    with pytest.raises(BegunAnew) as seen:
        newest(rows(kind, old, new), ["id"], order)
    assert seen.value.since == "2026-01-02T00:00:00Z"
    rules = MergeRules(order=order)
    for first, second in [(old, new), (new, old)]:
        incoming = Incoming(as_merged(rows(kind, second), ["id"], rules), ["id"], rules)
        with pytest.raises(BegunAnew):
            incoming.meet(as_merged(rows(kind, first), ["id"], rules))


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_between_the_two_answers(kind: str) -> None:
    order = OrderSettings(((START_MS + HOUR * 1000, 1),), kind=kind)
    found = newest(rows(kind, at(kind, 900, 0, "old"), at(kind, 1, 24 * HOUR, "new")), ["id"], order)
    assert found["value"].to_pylist() == ["new"]


@pytest.mark.parametrize("kind", KINDS)
def test_backfilled_rows_and_wrong_clocks_are_no_new_log(kind: str) -> None:
    order = OrderSettings(kind=kind)
    events = (backfilled({"id": 1}, sec=99 * HOUR), at(kind, 5, 2 * HOUR), at(kind, 6, 0, "last"))
    assert newest(rows(kind, *events), ["id"], order)["value"].to_pylist() == ["last"]


@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(-59, 59), st.integers(0, 5000), st.booleans()), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_one_log_is_never_taken_for_two_whatever_the_clocks_the_order_and_the_batches(
    kind: str, steps: list[tuple[int, int, bool]], dice: Any
) -> None:
    """Clocks up to an hour wrong, files that come late, events read twice, backfills of any time."""
    order, minute = OrderSettings(kind=kind), 0
    events: list[Event] = []
    for place, (skew, forward, is_backfill) in enumerate(steps):
        minute += forward
        sec = (minute + skew) * 60
        events.append(backfilled({"id": 1, "value": ""}, sec) if is_backfill else at(kind, place, sec, f"{place}"))
    last = next((e for e in reversed(events) if not e.backfill), events[-1])
    came = events + [
        event.with_(uuid=f"{dice.getrandbits(128):032x}", read_ms=9) for event in events if dice.random() < 0.3
    ]
    dice.shuffle(came)
    rules, held = MergeRules(order=order), None
    while came:
        size = dice.randint(1, len(came))
        reduced = reduce_rows(rows(kind, *came[:size]), ["id"], order).rows
        came = came[size:]
        merged = as_merged(reduced, ["id"], rules)
        if held is None or Incoming(merged, ["id"], rules).meet(held)[2].all():
            held = merged
    assert held is not None
    if not last.backfill:
        assert held["value"].to_pylist() == [last.row["value"]]


# -- a pipeline -------------------------------------------------------------------------------------------------------

TABLE = mysql_table("orders")


def mysql(id: int, status: str, file: int, sec: int) -> Change:
    ms = START_MS + sec * 1000
    name, at = f"bin.{file:06d}", 100 + id
    position = Position({"log_file": name, "log_position": at}, (ms, name, at), ms)
    return Change(TABLE, "UPDATE-INSERT", False, {"id": id, "status": status}, position, CDC_METHOD[Kind.MYSQL], ms)


def living(shop: Sparkless) -> dict[int, str]:
    found = DeltaTable(str(shop.root / "lake" / "shop_orders")).to_pyarrow_table().to_pylist()
    return {row["id"]: row["status"] for row in found if not row["_deleted"]}


@pytest.fixture
def reset(tmp_path: Path) -> Sparkless:
    """File 900, then RESET MASTER: row 2 is changed within the margin, and ignored; row 1 a day later."""
    shop = Sparkless(tmp_path)
    shop.send(mysql(1, "old", 900, 0), mysql(2, "old", 900, 0))
    shop.run()
    shop.send(mysql(2, "new", 1, HOUR))
    assert shop.run().parked == ()
    shop.send(mysql(1, "new", 2, 24 * HOUR), mysql(3, "new", 2, 24 * HOUR))
    return shop


def test_a_binlog_that_begins_anew_parks_the_merge_and_says_so_and_the_log_goes_on(reset: Sparkless) -> None:
    assert reset.run().parked == ("shop.orders",)
    entry = reset.entry("shop.orders")
    assert entry.error is not None and "LogBegunAnew" in entry.error and "2026-01-02T00:00:00Z" in entry.error
    assert len(reset.log("shop_orders_log")) == 5
    reset.send(mysql(3, "newer", 3, 48 * HOUR))
    assert reset.run().parked == ("shop.orders",)
    assert living(reset) == {1: "old", 2: "old"}


EPOCHS: dict[str, Any] = {"epochs": ["2026-01-01T00:30:00Z"]}


def test_once_the_settings_say_since_when_the_merge_goes_on_by_itself_with_all_that_it_had_ignored(
    reset: Sparkless,
) -> None:
    reset.run()
    reset.configure(source=EPOCHS)
    reset.run()
    assert living(reset) == {1: "new", 2: "new", 3: "new"}
    assert Ledger(reset.config.state_root, "shop", Store()).newest["shop.orders"].state == "merged"
    reset.check()
    reset.send(mysql(1, "newest", 4, 72 * HOUR))
    assert reset.run().parked == ()
    assert living(reset) == {1: "newest", 2: "new", 3: "new"}
    reset.check()


@pytest.mark.parametrize("rest", ["1 ms", "1 hour"], ids=["tried again between batches", "resting"])
def test_the_batches_that_follow_in_the_same_run_do_not_forget_that_all_of_the_log_is_to_be_merged(
    reset: Sparkless, rest: str
) -> None:
    one_a_batch, rests = {"max_files_per_batch": 1}, {"retry_after": rest}
    reset.configure(source=one_a_batch, tables=rests)
    reset.send(mysql(3, "newer", 3, 48 * HOUR))
    reset.send(mysql(3, "newest", 4, 50 * HOUR))
    batches = len(reset.batches)
    assert reset.run().parked == ("shop.orders",)
    assert len(reset.batches) == batches + 3
    reset.configure(source={**one_a_batch, **EPOCHS}, tables={"retry_after": "1 ms"})
    reset.run()
    assert living(reset) == {1: "new", 2: "new", 3: "newest"}
    reset.check()


def test_a_rebuild_refuses_without_the_setting_and_is_right_with_it(reset: Sparkless) -> None:
    reset.run()
    with pytest.raises(LogBegunAnew) as refused:
        rebuild(reset.config, "shop.orders", known_route(reset.config, "shop.orders"))
    assert refused.value.parameters["route"] == "shop.orders"
    reset.configure(source=EPOCHS)
    rebuild(reset.config, "shop.orders", known_route(reset.config, "shop.orders"))
    assert living(reset) == {1: "new", 2: "new", 3: "new"}
    reset.run()
    reset.check()


def test_a_margin_that_holds_the_longest_statement_is_the_other_answer(reset: Sparkless) -> None:
    reset.configure(source={"restart_margin": "90000 seconds"})
    assert reset.run().parked == ()
    assert living(reset) == {1: "old", 2: "old", 3: "new"}


def test_a_share_that_was_merged_before_the_setting_is_merged_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of a merge are commits of their own: the first one loses a change within the margin and is done, the last
    one is refused."""

    def by_hash(folder: str, names: list[str], keys: list[str], *_: Any) -> KeyShares:
        return KeyShares(tuple(keys), 8)

    monkeypatch.setattr("distributary.engine.changes.merging.key_shares", by_hash)
    ids = pa.table({"id": pa.array(range(1, 50), pa.int32())})
    of_key = dict(zip(ids["id"].to_pylist(), KeyShares(("id",), 8).numbers(ids).tolist(), strict=True))
    first, last = min(of_key, key=lambda key: of_key[key]), max(of_key, key=lambda key: of_key[key])
    shop = Sparkless(tmp_path)
    shop.configure(tables={"merge_every": "1 hour"})
    shop.send(mysql(first, "old", 900, 0), mysql(last, "old", 900, 0))
    shop.send(mysql(first, "new", 1, HOUR), mysql(last, "new", 2, 24 * HOUR))
    assert shop.run().parked == ("shop.orders",)
    assert living(shop) == {first: "old"}
    shop.configure(source=EPOCHS)
    shop.run()
    assert living(shop) == {first: "new", last: "new"}
    shop.check()
