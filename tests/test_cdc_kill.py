"""`distributary run` over change files, killed by SIGKILL at random moments while files come and columns change."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.changes.model import METADATA, Kind
from distributary.state.ledger import Ledger, is_batch
from distributary.tables.store import Store
from distributary_simulate.change_files.faults import Faults
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.demo.changes import prove
from tests.extent import either
from tests.killing import check_by_command, run_and_kill
from tests.processes import SMALL_SPARK
from tests.shop import Shop

KILLS = either(3, 12)
EVENTS = either(2_000, 8_000)
FAULTS = Faults(duplicates=0.3, late=0.3, cut=0.2, truncated=0.1, garbage=0.1, shuffled=True, one_backfill_uuid=True)


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_the_tables_are_the_sources_and_each_event_is_in_its_log_once(lake: Path) -> None:
    dice = random.Random(4)
    shop = Shop(
        lake,
        source={"max_files_per_batch": 12},
        tables={
            "evolution": "overwrite",
            "routes": {"shop.orders": {"evolution": {"type_change": "widen"}}},
            "history": "{database}_{table}_history",
        },
        trigger="continuous",
        spark=SMALL_SPARK,
    )
    tables = tables_of((Kind.MYSQL, Kind.POSTGRESQL, Kind.ORACLE, Kind.SQLSERVER), 2)
    history = History(HistoryPlan(tables, seed=4, schema_changes=40))
    files = ChangeFiles(FilesPlan(shop.files, seed=4, rotate_ms=20_000, faults=FAULTS))
    changes = history.changes(EVENTS)
    sent: Counter[str] = Counter()

    def add(kills: int) -> None:
        """A part of the history, the rows of backfills and late files among it."""
        for change in islice(changes, EVENTS // KILLS):
            files.add(change)
        if kills == KILLS - 1:
            for change in [*changes, *history.finish()]:
                files.add(change)
            files.close()
        else:
            files.flush()

    kills = run_and_kill(shop.file, lake / "processes.log", dice, lambda kills: kills == KILLS, add)
    assert kills == KILLS
    for written in files.written:
        sent[written.route] += written.events
    for route, truth in history.truth().items():
        if truth.table.keys:
            assert prove(shop.config, route, truth).differences == ()
        assert Counter(places(shop, route).values()) == Counter({1: sent[route]}), route
    entries = Ledger(shop.config.state_root, "shop", Store()).entries()
    batches = [e for e in entries if e.route is None and is_batch(e.stream)]
    assert len({e.stream for e in batches}) == 1
    assert len(batches) == len({e.batch for e in batches}) > KILLS
    assert set(shop.reasons()) <= {"FILE_BROKEN", "CORRUPT_EVENT"}
    check_by_command(shop.file)


def places(shop: Shop, route: str) -> Counter[tuple[str, int]]:
    """How often each event of each file is in the route's log."""
    table = DeltaTable(str(shop.entry(route).table)).to_pyarrow_dataset().to_table(columns=["_origin", METADATA])
    return Counter((row["_origin"]["file"], row["_origin"]["row"]) for row in table.to_pylist())
