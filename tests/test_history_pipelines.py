"""Pipelines with history tables: change files and messages with keys, through batches, faults and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.audit.judge.changes import verify_changes
from distributary.audit.judge.histories import HistoryRules, compare, judge_histories
from distributary.audit.verify import Verification, verify
from distributary.engine.changes import attempt, merging
from distributary.errors import BadInput, ConfigError
from distributary.kinds import kind_of
from distributary.repair.clean import apply, clean
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain
from distributary.state.ledger import Ledger
from distributary.tables import history_table
from distributary.tables.engines import for_rewrites
from distributary.tables.table import Table
from tests.shop import START_MS, Shop, change, mysql_table
from tests.sparkless import Sparkless
from tests.sparkless_messages import Players

ORDERS = mysql_table()
TABLES = {"history": "{database}_{table}_history"}
TEXTS = {1: 'syntax = "proto3"; message player { string id = 1; int32 level = 2; }'}
KEYED: dict[str, Any] = {"source": {"key": "id"}, "tables": {"log": "{route}_log", "history": "{route}_history"}}


def versions(path: Path | str, key: str, value: str) -> list[tuple[Any, Any, int, int | None, bool]]:
    """(key, value, from, to, is it current) of a history, in seconds since the first; deletes left out."""
    rows = [row for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist() if not row["_deleted"]]
    rows.sort(key=lambda row: (row[key], row["valid_from"]))
    first = START_MS / 1000 if "datastream_metadata" in rows[0] else 1_700_000_000
    at = [
        [None if row[name] is None else round(row[name].timestamp() - first) for row in rows]
        for name in ("valid_from", "valid_to")
    ]
    return [(r[key], r[value], b, e, r["is_current"]) for r, b, e in zip(rows, *at, strict=True)]


@contextmanager
def ended(target: Any, name: str, after: bool = False) -> Iterator[None]:
    """The process ends where it calls `target.name`, or behind it."""
    whole = getattr(target, name)

    def killed(*args: Any, **kwargs: Any) -> Any:
        if after:
            whole(*args, **kwargs)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, killed)
        with pytest.raises(KeyboardInterrupt):
            yield


def verified(shop: Shop) -> Verification:
    found = judge_histories(shop.config, verify_changes(shop.config))
    assert found.ok, found.problems
    return found


def orders(shop: Shop) -> list[tuple[Any, Any, int, int | None, bool]]:
    return versions(shop.root / "lake" / "shop_orders_history", "id", "status")


def send(shop: Shop, id: int, status: str, at: int, kind: str = "UPDATE-INSERT") -> None:
    shop.send(change(ORDERS, kind, {"id": id, "status": status}, at, sec=at))


def test_change_files_tell_from_when_to_when_each_version_held(lake: Path) -> None:
    shop = Sparkless(lake, tables=TABLES)
    send(shop, 1, "new", 100, "INSERT")
    send(shop, 2, "new", 110, "INSERT")
    shop.run()
    send(shop, 1, "paid", 300)
    send(shop, 2, "new", 310, "DELETE")
    shop.run()
    send(shop, 1, "packed", 200)
    shop.run()
    assert orders(shop) == [
        (1, "new", 100, 200, False),
        (1, "packed", 200, 300, False),
        (1, "paid", 300, None, True),
        (2, "new", 110, 310, False),
    ]
    assert not [note for note in verified(shop).notes if "history" in note]


def test_a_late_event_says_what_a_version_behind_it_did_not_by_toast_columns(lake: Path) -> None:
    shop = Sparkless(lake, tables={**TABLES, "routes": {"shop.orders": {"toast_columns": ["status"]}}})
    send(shop, 1, "first", 100, "INSERT")
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", {"id": 1, "status": None}, 300, sec=300))
    shop.run()
    send(shop, 1, "second", 200)
    shop.run()
    assert [row[1] for row in orders(shop)] == ["first", "second", "second"]


@pytest.mark.parametrize(
    ("target", "name", "after"),
    [
        (history_table, "put_commit", False),
        (history_table, "put_commit", True),
        (attempt, "run_deliver", True),
        (merging, "merge_rows", False),
        (Ledger, "record", False),
    ],
)
def test_a_crash_anywhere_doubles_and_loses_no_version(lake: Path, target: Any, name: str, after: bool) -> None:
    shop = Sparkless(lake, tables=TABLES)
    send(shop, 1, "new", 100, "INSERT")
    shop.run()
    send(shop, 1, "paid", 200)
    send(shop, 1, "sent", 300)
    with ended(target, name, after=after):
        shop.run()
    shop.run()
    assert [row[1:] for row in orders(shop)] == [
        ("new", 100, 200, False),
        ("paid", 200, 300, False),
        ("sent", 300, None, True),
    ]
    verified(shop)


def test_what_waits_for_its_merge_waits_for_its_history(lake: Path) -> None:
    shop = Sparkless(lake, tables={**TABLES, "merge_every": "1 hour"})
    send(shop, 1, "new", 100, "INSERT")
    send(shop, 1, "paid", 200)
    shop.run()
    assert [row[1:] for row in orders(shop)] == [("new", 100, 200, False), ("paid", 200, None, True)]
    verified(shop)


def test_a_history_that_cannot_be_written_parks_the_route_and_is_caught_up(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Sparkless(lake, tables=TABLES)
    send(shop, 1, "new", 100, "INSERT")
    shop.run()

    def broken(*_: Any, **__: Any) -> int:
        raise ValueError("no")

    send(shop, 1, "paid", 200)
    with monkeypatch.context() as patch:
        patch.setattr("distributary.engine.changes.recording.merge_history", broken)
        shop.run()
        assert shop.living("shop_orders") == [(1, "new")]
    shop.run()
    assert shop.living("shop_orders") == [(1, "paid")]
    assert [row[1:] for row in orders(shop)] == [("new", 100, 200, False), ("paid", 200, None, True)]
    verified(shop)


def test_verify_finds_a_version_that_is_missing_or_wrong(lake: Path) -> None:
    shop = Sparkless(lake, tables=TABLES)
    send(shop, 1, "new", 100, "INSERT")
    send(shop, 1, "paid", 200)
    shop.run()
    verified(shop)
    table = DeltaTable(str(shop.root / "lake" / "shop_orders_history"))
    table.update(updates={"status": "'other'"}, predicate="is_current")
    assert "do not have the values" in problems(shop)
    table.update(updates={"status": "'paid'", "valid_from": "valid_from + INTERVAL '1 second'"}, predicate="is_current")
    assert "did not hold from when to when" in problems(shop)
    table.delete("is_current")
    assert "lack versions" in problems(shop)


def test_a_history_is_written_by_tasks_whatever_the_other_tables_ask_for(lake: Path) -> None:
    vectors = {"merge": "merge_on_read", "properties": {"delta.enableDeletionVectors": "true"}}
    shop = Sparkless(lake, tables={**TABLES, **vectors})
    for number in range(3):
        send(shop, 1, f"status {number}", 100 * number + 100)
        shop.run()
    assert [row[1] for row in orders(shop)] == ["status 0", "status 1", "status 2"]
    verified(shop)
    wanted = {"delta.checkpointInterval": "5", "delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
    assert for_rewrites(wanted) == {"delta.checkpointInterval": "5"}


def test_resync_makes_the_history_of_all_that_the_log_has(lake: Path) -> None:
    shop = Sparkless(lake)
    send(shop, 1, "new", 100, "INSERT")
    send(shop, 1, "paid", 200)
    shop.run()
    shop.configure(tables=TABLES)
    send(shop, 1, "sent", 300)
    shop.run()
    assert [row[1] for row in orders(shop)] == ["sent"]
    assert "lack versions" in problems(shop)
    done = rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))
    assert (done.rows, done.versions) == (1, 3)
    verified(shop)
    send(shop, 1, "packed", 250)
    shop.run()
    assert [row[1:] for row in orders(shop)] == [
        ("new", 100, 200, False),
        ("paid", 200, 250, False),
        ("packed", 250, 300, False),
        ("sent", 300, None, True),
    ]
    verified(shop)


@pytest.mark.parametrize("tables", [{}, TABLES], ids=["merged", "with a history"])
def test_resync_holds_a_batch_that_came_while_it_opened_the_tables(
    lake: Path, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Sparkless(lake, tables=tables)
    send(shop, 1, "new", 100, "INSERT")
    shop.run()
    send(shop, 2, "meanwhile", 200, "INSERT")
    really, calls = Table.open, count()

    def opened(table: Table) -> Any:
        found = really(table)
        if table.uri.endswith("_log") and next(calls) == 0:
            with monkeypatch.context() as patch:
                patch.setattr(Table, "open", really)
                shop.run()
        return found

    known = known_route(shop.config, "shop.orders")
    with monkeypatch.context() as patch:
        patch.setattr(Table, "open", opened)
        rebuild(shop.config, "shop.orders", known)
    assert shop.living("shop_orders") == [(1, "new"), (2, "meanwhile")]
    verified(shop)


def test_a_history_of_a_log_that_began_anew_is_put_in_order_once_it_is_known_since_when(lake: Path) -> None:
    shop = Sparkless(lake, tables=TABLES)
    send(shop, 1, "new", 90_000, "INSERT")
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", {"id": 1, "status": "after"}, 5, sec=100_000))
    shop.run()
    shop.configure(tables=TABLES, source={"epochs": ["2026-01-02T02:00:00Z"]})
    shop.run()
    assert shop.living("shop_orders") == [(1, "after")]
    assert [row[1:] for row in orders(shop)] == [("new", 90_000, 100_000, False), ("after", 100_000, None, True)]
    verified(shop)


def test_upkeep_leaves_the_files_of_a_history_apart_and_clean_removes_it(lake: Path) -> None:
    shop = Sparkless(lake, tables=TABLES, maintenance={"min_files": 1})
    for number in range(4):
        send(shop, 1, f"status {number}", 100 * number + 100)
        shop.run()
    path = shop.root / "lake" / "shop_orders_history"
    before = len(DeltaTable(str(path)).file_uris())
    assert before > 1
    done = {one.table: one for one in maintain(shop.config)}
    assert done[str(path)].skipped is None and len(DeltaTable(str(path)).file_uris()) == before
    verified(shop)
    apply(clean(shop.config))
    assert not path.exists()


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"history": "{route}_history"}, "tables.history"),
        ({"history": "{database}_{table}_history", "log": None}, "tables.history"),
        ({"history": "{database}_{table}_history", "merged": None}, "tables.history"),
        ({"history": "{database}_{table}", "merged": "{database}_{table}"}, "tables.log"),
        ({**TABLES, "routes": {"a.b": {"evolution": {"type_change": "type_widening"}}}}, "tables.history"),
    ],
)
def test_a_history_that_cannot_be_is_refused(lake: Path, tables: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Sparkless(lake, tables=tables)
    assert key in str(refused.value)


def problems(shop: Shop) -> str:
    found = judge_histories(shop.config, verify_changes(shop.config))
    assert not found.ok
    return "\n".join(found.problems)


# -- messages with keys ------------------------------------------------------------------------------------


@pytest.fixture
def players(lake: Path) -> Iterator[Players]:
    yield Players(lake, TEXTS, **KEYED)


def levels(players: Players) -> list[tuple[Any, Any, int, int | None, bool]]:
    return versions(f"{players.table}_history", "id", "level")


def judged(players: Players) -> None:
    found = judge_histories(players.config, verify(players.config))
    assert found.ok and not [note for note in found.notes if "history" in note], (found.problems, found.notes)


def test_messages_with_keys_have_a_history_and_a_record_without_a_value_ends_it(players: Players) -> None:
    one = players.record
    writer = players.writer()
    players.take(0, [one("x", level=1), one("y", level=2), one("x", level=3)], writer)
    players.take(1, [one("y", None), one("x", level=4)], writer)
    assert levels(players) == [
        ("x", 1, 1, 3, False),
        ("x", 3, 3, 5, False),
        ("x", 4, 5, None, True),
        ("y", 2, 2, 4, False),
    ]
    judged(players)


def test_a_message_that_comes_out_of_the_quarantine_is_put_where_it_was(players: Players, lake: Path) -> None:
    one = players.record
    players.take(0, [one("x", level=1), one("x", schema_id=99, level=2), one("x", level=3)])
    (lake / "player.proto").write_text(TEXTS[1])
    players.config.registry.texts[99] = str(lake / "player.proto")  # type: ignore[union-attr]
    assert players.replay().rows == {"players": 1}
    assert [row[1:] for row in levels(players)] == [(1, 1, 2, False), (2, 2, 3, False), (3, 3, None, True)]
    judged(players)


def test_resync_makes_tables_of_messages_anew_from_their_log(players: Players, lake: Path) -> None:
    one = players.record
    players.take(0, [one("x", level=1), one("y", level=2), one("x", level=3), one("y", None)])
    for table in (players.table, f"{players.table}_history"):
        DeltaTable(table).delete()
    done = kind_of(players.config, lake / "players.yaml").resync("players")
    assert (done.counts["rows"], done.counts["events"], done.counts["versions"]) == (2, 4, 4)
    assert [row[1:] for row in levels(players)] == [(1, 1, 3, False), (3, 3, None, True), (2, 2, 4, False)]
    rows = DeltaTable(players.table).to_pyarrow_table().to_pylist()
    assert {row["id"]: None if row["_deleted"] else row["level"] for row in rows} == {"x": 3, "y": None}
    players.take(1, [one("x", level=5)])
    assert [row[1:] for row in levels(players)][:2] == [(1, 1, 3, False), (3, 3, 5, False)]
    judged(players)


DAY = 86_400


def test_upkeep_removes_tombstones_of_messages_where_it_is_asked_for(lake: Path) -> None:
    tables = {**KEYED["tables"], "tombstone_retention": "3 days"}
    players = Players(lake, TEXTS, **{**KEYED, "tables": tables})
    one = players.record
    players.take(0, [one("y", level=1, schema_id=99), one("x", level=1), one("x", None)])
    players.offset += 5 * DAY
    players.take(1, [one("z", level=2), one("w", None)])
    held = {done.table: done for done in maintain(players.config)}[players.table]
    assert (held.purged, "quarantine" in str(held.held)) == (0, True), held
    (lake / "player.proto").write_text(TEXTS[1])
    players.config.registry.texts[99] = str(lake / "player.proto")  # type: ignore[union-attr]
    players.replay()
    done = {done.table: done for done in maintain(players.config)}[players.table]
    assert (done.purged, done.held, done.skipped) == (1, None, None)
    rows = DeltaTable(players.table).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["_deleted"] for row in rows} == {"y": False, "z": False, "w": True}
    assert [row[0] for row in levels(players)] == ["x", "y", "z"]
    judged(players)
    players.take(2, [one("x", level=9)])
    assert ("x", 9) in {row[:2] for row in levels(players) if row[-1]}


def test_tombstones_of_messages_stay_where_nothing_else_is_said(players: Players) -> None:
    one = players.record
    players.take(0, [one("x", level=1), one("x", None)])
    players.offset += 50 * DAY
    players.take(1, [one("z", level=2)])
    assert {done.table: done.purged for done in maintain(players.config)}[players.table] == 0


def test_resync_says_what_it_needs_where_messages_have_no_log(lake: Path) -> None:
    players = Players(lake, TEXTS)
    players.take(0, [players.record("x", level=1)])
    with pytest.raises(BadInput, match=r"tables\.log"):
        kind_of(players.config, lake / "players.yaml").resync("players")


def test_a_run_that_dies_between_the_history_and_the_merge_is_finished_by_the_next(players: Players) -> None:
    one = players.record
    players.take(0, [one("x", level=1)])
    batch = [one("x", level=2), one("x", None)]
    with ended(merging, "merge_rows"):
        players.take(1, batch)
    players.take(1, batch)
    assert [row[1:] for row in levels(players)] == [(1, 1, 2, False), (2, 2, 3, False)]
    judged(players)


def test_the_judge_takes_a_key_for_itself_whichever_column_of_the_log_holds_it() -> None:
    about = {"source_timestamp": 1_000, "is_backfill": False, "is_deleted": False, "schema_key": "a"}
    event = {"datastream_metadata": {**about, "change_sequence_number": "0" * 108}, "status": "new"}
    log = {**event, "id": None, "id__string": "2", "_origin": {"key": '["2"]', "key_columns": '["id"]'}}
    held = {"valid_from": 1_000_000, "valid_to": None, "is_current": True, "_deleted": False, "_until": "~"}
    kept = {**event, **held, "id": "2", "id__string": "2"}
    assert not compare([[log]], [[kept]], HistoryRules(("id",)))
    assert compare([[log]], [[{**kept, "status": "other"}]], HistoryRules(("id",)))
