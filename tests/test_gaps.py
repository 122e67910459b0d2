"""Upkeep in the gaps of a running stream: which tables, when, and that nothing is lost or doubled by it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.verify import verify
from distributary.engine.batch import BatchReport
from distributary.running import gaps
from distributary.running.gaps import CLOCK_SEC, LAST_SEC, NEVER_SEEN, QUIET_SEC, SHARE, TURN_BATCHES, Due, Gaps
from distributary.running.maintain import Carer, OwnTable, tables_of
from distributary.state.ledger import Ledger, totals
from distributary.state.lock import only_run
from distributary.tables.crowding import LARGER, fullest, joined_bytes
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan
from tests.lake import Lake
from tests.layouts import FANOUT, WIDE, Laid, LayoutCase
from tests.scenarios import dying
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

DAY = 86_400.0
URIS = [f"/lake/t{n}" for n in range(40)]


def no_spark() -> None:
    raise AssertionError("delta-rs writes these tables")


def report(batch: int, *routes: str, rows_quarantined: int = 0) -> BatchReport:
    return BatchReport(
        "s", batch, 1, 1, rows_quarantined, 0, len(routes), (), (), (), (), {}, written=dict.fromkeys(routes, 1)
    )


# -- which files -------------------------------------------------------------------------------------------


def test_small_files_are_joined_and_a_much_larger_one_is_left_alone() -> None:
    assert joined_bytes([10] * 64) == 640
    assert joined_bytes([10] * 64 + [1280]) == 640 + 1280
    assert joined_bytes([10] * 64 + [1281]) == 640
    assert fullest([[10] * 3, [7] * 5], 1000).files == 5
    assert fullest([[10] * 64], 100).join_up_to == 100, "no larger than was asked for"
    assert fullest([], 100).files == 0


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=80))
def test_at_least_two_files_are_joined_and_none_that_is_much_larger_than_the_rest(sizes: list[int]) -> None:
    up_to = fullest([sizes], 10**12).join_up_to
    joined = [size for size in sizes if size < up_to]
    assert len(joined) >= 2
    left = [size for size in sizes if size >= up_to]
    assert all(size > LARGER * sum(joined) for size in left)


@given(st.integers(16, 64), st.integers(100, 1500))
def test_a_row_is_written_anew_some_times_only_however_many_batches_come(at_most: int, batches: int) -> None:
    files: list[int] = []
    written = 0
    for _ in range(batches):
        files.append(1)
        if len(files) > at_most:
            up_to = fullest([files], 10**12).join_up_to
            joined = sum(size for size in files if size < up_to)
            files = [size for size in files if size >= up_to] + [joined]
            written += joined
    assert sum(files) == batches
    assert written <= batches * (2 + batches.bit_length())


# -- which tables ------------------------------------------------------------------------------------------


def test_a_table_is_due_once_its_small_files_are_too_many_and_the_worst_is_first() -> None:
    due = Due(64, DAY, 0.0)
    for uri in URIS[:3]:
        due.seen(uri, 60)
    for batch in range(5):
        due.written(batch, URIS[:1], URIS)
    assert due.next() == URIS[0] and due.crowded == {URIS[0]: 65}
    due.seen(URIS[1], 63)
    for batch in range(5, 9):
        due.written(batch, URIS[1:2], URIS)
    assert due.next() == URIS[1]


def test_what_cannot_be_joined_is_not_tried_at_every_batch() -> None:
    due = Due(64, DAY, 0.0)
    due.seen(URIS[0], 70)
    tried = 0
    for batch in range(100):
        due.written(batch, URIS[:1], URIS[:1])
        if due.next() is not None:
            tried += 1
            due.seen(URIS[0], 70)  # nothing could be joined
    assert tried == 100 // 32


def test_tables_that_nothing_is_known_of_take_turns_and_none_in_the_first_batches() -> None:
    due, seen = Due(64, DAY, 0.0), list[int]()
    for batch in range(3 * TURN_BATCHES):
        due.written(batch, URIS, URIS)
        seen.append(len(due.crowded))
        while (uri := due.next()) is not None:
            assert due.crowded[uri] == NEVER_SEEN
            due.seen(uri, 1)
    assert sum(seen[:TURN_BATCHES]) == 0 and sum(seen) == len(URIS)
    assert max(seen) < len(URIS) / 3, "not all at once"


def test_every_table_has_its_time_once_a_day_also_where_runs_are_short() -> None:
    found: dict[str, int] = {}
    for hour in range(1, 73):
        due = Due(64, DAY, (hour - 1) * 3600.0)  # a run a time: all that is known is when the last one was
        due.clock(hour * 3600.0, URIS)
        for uri in due.timely:
            found[uri] = found.get(uri, 0) + 1
    assert found == dict.fromkeys(URIS, 3)


# -- when --------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def made(lake: Path) -> Lake:
    made = Lake(lake, maintenance={"small_files": 3})
    for batch in range(6):
        made.batch(batch, {"ann_game": {1: 3}, "bob_game": {1: 2}}, bad={"ann_game": 1})
    return made


def gaps_of(made: Lake, clock: Clock) -> tuple[Gaps, threading.Lock]:
    busy = threading.Lock()
    ledger = Ledger(made.config.state_root, made.config.pipeline, made.store)
    return Gaps(made.config, ledger, no_spark, busy, clock), busy  # type: ignore[arg-type]


def files(made: Lake, route: str) -> int:
    return len(DeltaTable(made.table(route)).file_uris())


def crowd(ours: Gaps, made: Lake, *routes: str) -> None:
    ours.batch(report(5, *routes))
    for route in routes:
        ours.due.crowded[made.table(route)] = 6


def test_a_busy_stream_gives_upkeep_a_share_of_its_time_only(made: Lake) -> None:
    clock = Clock()
    ours, _ = gaps_of(made, clock)
    crowd(ours, made, "ann_game", "bob_game")
    ours._look()
    assert files(made, "ann_game") == 6, "nothing is saved yet"
    clock.now = 0.5
    ours._look()
    done = [files(made, "ann_game"), files(made, "bob_game")]
    assert sorted(done) == [1, 6], "one table a gap"
    ours._saved = -SHARE  # it took longer than was saved
    clock.now = 0.9
    ours._look()
    assert sorted([files(made, "ann_game"), files(made, "bob_game")]) == [1, 6]
    clock.now += QUIET_SEC + 1
    ours._look()
    assert [files(made, "ann_game"), files(made, "bob_game")] == [1, 1], (
        "while nothing comes, it may take what it needs"
    )


def test_memory_is_given_back_once_a_minute_and_only_after_work(made: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    ours, _ = gaps_of(made, clock)
    times: list[float] = []
    monkeypatch.setattr("distributary.running.gaps.give_back", lambda: times.append(clock.now))
    for second in range(300):
        clock.now = float(second)
        if second == 100:
            crowd(ours, made, "ann_game")
        if second == 200:
            ours.batch(report(6))
        ours._look()
    assert files(made, "ann_game") == 1
    assert times == [2 * CLOCK_SEC, 4 * CLOCK_SEC]


def test_no_table_is_begun_while_a_batch_is_written(made: Lake) -> None:
    clock = Clock()
    ours, busy = gaps_of(made, clock)
    crowd(ours, made, "ann_game")
    clock.now = 100.0
    with busy:
        ours._look()
    assert files(made, "ann_game") == 6
    ours._look()
    assert files(made, "ann_game") == 1


def test_a_run_that_has_taken_all_does_what_is_due_before_it_ends(made: Lake) -> None:
    ours, _ = gaps_of(made, clock := Clock())
    ours.begin()
    crowd(ours, made, "ann_game", "bob_game")
    ours.end(drained=True)
    assert clock.now < LAST_SEC
    assert [files(made, "ann_game"), files(made, "bob_game")] == [1, 1]
    assert verify(made.config).ok


def test_without_it_nothing_is_done(lake: Path) -> None:
    made = Lake(lake, maintenance={"automatic": False, "small_files": 1})
    for batch in range(3):
        made.batch(batch, {"ann_game": {1: 1}})
    ours, _ = gaps_of(made, Clock())
    ours.begin()
    ours.batch(report(40, "ann_game"))
    ours.end(drained=True)
    assert not ours.due.crowded and files(made, "ann_game") == 3


def test_the_tables_of_a_small_or_young_stream_are_not_touched(lake: Path) -> None:
    made = Lake(lake)
    for batch in range(10):
        made.batch(batch, {"ann_game": {1: 1}})
    ours, _ = gaps_of(made, Clock())
    for batch in range(200):
        ours.batch(report(batch, "ann_game"))
        if batch > 2 * TURN_BATCHES:
            ours.due.seen(made.table("ann_game"), 10)
        while ours.one() is not None:
            pass
    assert DeltaTable(made.table("ann_game")).version() == 9


def test_the_quarantine_is_left_alone_while_rows_are_brought_back(made: Lake) -> None:
    ours, _ = gaps_of(made, Clock())
    ours.batch(report(5, "ann_game", rows_quarantined=1))
    ours.due.crowded[made.quarantine] = 6
    with only_run(made.config.state_root, "games", "replay"):
        done = ours.one()
        assert done is not None and done.busy
    assert len(DeltaTable(made.quarantine).file_uris()) == 6
    ours.due.crowded[made.quarantine] = 6
    ours.one()
    assert len(DeltaTable(made.quarantine).file_uris()) == 1
    assert verify(made.config).ok


def test_a_fault_of_a_table_ends_nothing(made: Lake, caplog: pytest.LogCaptureFixture) -> None:
    ours, _ = gaps_of(made, Clock())
    crowd(ours, made, "ann_game")
    Snapshot(made.table("ann_game"), made.store).set_properties(Owner("others", "ann_game").properties())
    with caplog.at_level("INFO"):
        done = ours.one()
    assert done is not None and done.skipped
    assert "upkeep of" in caplog.text and ours.one() is None


# -- nothing is lost or doubled ----------------------------------------------------------------------------


def test_a_batch_that_is_done_again_after_upkeep_finds_its_mark(made: Lake) -> None:
    before = DeltaTable(made.table("ann_game")).to_pyarrow_table().num_rows
    carer = Carer(made.config, made.store, no_spark)  # type: ignore[arg-type]
    for table in tables_of(made.config, totals(made.ledger.entries())):
        carer.join(table, 1)
    assert files(made, "ann_game") == 1
    with pytest.raises(CommitConflict, match="is in the table already"):
        made.batch(5, {"ann_game": {1: 3}, "bob_game": {1: 2}}, bad={"ann_game": 1})
    assert DeltaTable(made.table("ann_game")).to_pyarrow_table().num_rows == before
    assert verify(made.config).ok


def test_a_history_joins_its_own_files_and_nobody_else_does(made: Lake) -> None:
    carer = Carer(made.config, made.store, no_spark)  # type: ignore[arg-type]
    table = OwnTable(made.table("ann_game"), "ann_game", Owner("games", "ann_game"), joins=False)
    assert carer.join(table, 1).skipped is None and carer.whole(table).skipped is None
    assert files(made, "ann_game") == 6


ORDERS = mysql_table()


def look_after(shop: Sparkless) -> int:
    """Join all small files of all tables; how many tables had some."""
    ledger = Ledger(shop.config.state_root, shop.config.pipeline, Store.of(shop.config.tables))
    carer = Carer(shop.config, ledger.store, no_spark)  # type: ignore[arg-type]
    done = [carer.join(table, 1) for table in tables_of(shop.config, dict(ledger.newest))]
    assert not [one.skipped for one in done if one.skipped]
    return sum(one.files_after < one.files_before for one in done)


def test_change_files_with_upkeep_after_every_batch_give_the_same_tables(lake: Path) -> None:
    shop, joined = Sparkless(lake), 0
    for number in range(1, 5):
        shop.send(change(ORDERS, "UPDATE-INSERT", order(number % 3, f"at {number}"), 100 * number, sec=70 * number))
        shop.run()  # which does the batch before it once more, as Spark may
        joined += look_after(shop)
    shop.replay()
    assert joined >= 2
    assert shop.living("shop_orders") == [(0, "at 3"), (1, "at 4"), (2, "at 2")]
    shop.check()


def test_upkeep_beside_the_batches_loses_and_doubles_nothing(lake: Path) -> None:
    shop = Sparkless(lake, source={"max_files_per_batch": 1})
    for number in range(1, 25):
        shop.send(change(ORDERS, "UPDATE-INSERT", order(number % 7, f"at {number}"), 100 * number, sec=70 * number))
    over, joined = threading.Event(), [0]

    def work() -> None:
        while not over.wait(0.01):
            if Path(shop.config.state_root, "ledger").exists():
                joined[0] += look_after(shop)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        shop.run()
    finally:
        over.set()
        thread.join()
    assert joined[0] > 0
    assert shop.living("shop_orders") == [
        (key, f"at {number}") for key, number in sorted({number % 7: number for number in range(1, 25)}.items())
    ]
    shop.check()


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("layout", [FANOUT, WIDE], ids=lambda layout: layout.name)
def test_a_stream_that_is_kept_up_goes_on_after_a_crash_with_every_row_once(
    lake: Path, layout: LayoutCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "TURN_BATCHES", 1)
    monkeypatch.setattr(gaps, "SHARE", 100.0)
    laid = Laid(lake, layout, maintenance={"small_files": 1}, trigger={"every": 0.2})
    games = laid.games(Plan(games=2, versions=1, records=20, seed=5, faults=Faults(corrupt=2)))
    laid.send_mixed(games, {1: games.names})
    with laid.going() as going:
        for number in range(1, 4):
            going.wait_sent()
            laid.send_mixed(games, {1: games.names}, start=20 * number)
        going.wait_sent()
    laid.send_mixed(games, {1: games.names}, start=80)
    # The tables have the batch, the ledger has not.
    with dying(Ledger, "record"):
        laid.run()
    made = Carer(laid.config, Store.of(laid.config.tables), no_spark)  # type: ignore[arg-type]
    books = Ledger(laid.config.state_root, laid.config.pipeline, made.store)
    for table in tables_of(laid.config, dict(books.newest)):
        assert made.join(table, 1).skipped is None
    laid.run()
    laid.check()
    history = DeltaTable(str(books.newest[games.names[0]].table)).history()
    assert sum(one["operation"] == "OPTIMIZE" for one in history) >= 2, "by itself, and by us"
    assert verify(laid.config).ok
