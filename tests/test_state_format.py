"""The number of a state folder's format: written by the first start, looked at by each one after it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributary.audit.quarantined import quarantined_rows
from distributary.audit.status import status
from distributary.audit.verify import verify
from distributary.config import Pipeline, StateFolder, load
from distributary.errors import StateNewer, StoreDown, StoreUnreadable
from distributary.repair.clean import apply, clean
from distributary.repair.reconcile import Reconcile
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain
from distributary.shares import Share
from distributary.state.cleaning import at_work
from distributary.state.divisions import parts
from distributary.state.ledger import totals
from distributary.state.state_format import FORMAT, check_format, claim_format, has_state
from distributary.tables.store import Store
from distributary.version import __version__
from tests.lake import Lake
from tests.scenarios import Scenario, message
from tests.shop import backfilled, change, mysql_table, order
from tests.sparkless import Sparkless

OLDER = Path(__file__).parent / "older_state.tar.gz"
"""Two runs of release 0.1.0 while it was made (28 November 2026): a Delta source, a registry, two tables, two records
in the quarantine; its ledger has paths as the pipeline file had them, and neither `sequence` nor `excluded`."""
STORE = Store()
DAY = 86_400


def file(config: Pipeline) -> Path:
    return Path(config.whole_state) / StateFolder.format.name


def number(config: Pipeline, found: Any, release: str = "9.9.0") -> None:
    file(config).parent.mkdir(parents=True, exist_ok=True)
    file(config).write_text(json.dumps({"format": found, "release": release}))


def start(config: Pipeline) -> None:
    with at_work(config, STORE):
        pass


def test_the_first_start_writes_the_number_and_the_release(lake: Path) -> None:
    config = Lake(lake).config
    start(config)
    assert json.loads(file(config).read_text()) == {"format": FORMAT, "release": __version__}


def test_a_state_folder_is_there_once_something_is_in_it(tmp_path: Path) -> None:
    config = Lake(tmp_path).config
    assert not has_state(config)
    claim_format(config, STORE)
    assert has_state(config)


def test_a_start_over_its_own_number_writes_nothing(lake: Path) -> None:
    config = Lake(lake).config
    number(config, FORMAT, "0.0.1")
    start(config)
    assert json.loads(file(config).read_text())["release"] == "0.0.1"


READERS: dict[str, Callable[[Pipeline], Any]] = {
    "status": status,
    "verify": lambda config: verify(config),
    "quarantine": lambda config: list(quarantined_rows(config)),
    "clean": lambda config: apply(clean(config)),
    "shares": lambda config: parts(config, STORE),
    "maintain": lambda config: list(maintain(config)),
    "run": start,
}


@pytest.mark.parametrize("verb", READERS)
def test_state_of_a_newer_release_is_refused_with_what_to_install_and_nothing_changes(lake: Path, verb: str) -> None:
    made = Lake(lake)
    made.batch(0, {"chess": {3: 2}})
    number(made.config, FORMAT + 1)
    before = sorted(p for p in lake.rglob("*") if p.suffix != ".lock")
    with pytest.raises(StateNewer) as caught:
        READERS[verb](made.config)
    assert caught.value.parameters["found"] == FORMAT + 1
    assert {"9.9.0", __version__} <= set(caught.value.parameters.values())
    assert sorted(p for p in lake.rglob("*") if p.suffix != ".lock") == before


def test_repairs_refuse_state_of_a_newer_release(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(mysql_table(), "INSERT", order(1, "a"), 1))
    shop.send(backfilled(mysql_table(), order(2, "b"), sec=DAY))
    shop.run()
    known = known_route(shop.config, "shop.orders")
    found = Reconcile(shop.config, "shop.orders", known.source, known.keys)
    assert found.plan().vanished == 1
    number(shop.config, FORMAT + 1)
    for verb in (found.apply, lambda: rebuild(shop.config, "shop.orders", known)):
        with pytest.raises(StateNewer):
            verb()


def test_a_share_looks_at_the_number_of_the_whole_pipeline(lake: Path) -> None:
    config = Lake(lake).config
    number(config, FORMAT + 1)
    with pytest.raises(StateNewer):
        start(config.for_share(Share(0, 2, "a")))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "new", "release": "1"}', '{"format": null}'])
def test_a_number_that_cannot_be_read_is_said_with_the_way_out(lake: Path, text: str) -> None:
    config = Lake(lake).config
    number(config, 1)
    file(config).write_text(text)
    with pytest.raises(StoreUnreadable, match="Remove that one file"):
        start(config)
    file(config).unlink()
    start(config)
    assert check_format(config, STORE) == FORMAT


def test_a_folder_that_cannot_be_written_is_the_stores_fault(lake: Path) -> None:
    config = Lake(lake).config
    Path(config.whole_state).parent.mkdir(parents=True)
    Path(config.whole_state).write_text("a file")
    with pytest.raises((StoreDown, StoreUnreadable)):
        claim_format(config, STORE)


# -- the state folder of an earlier release --------------------------------------------------------------------


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    with tarfile.open(OLDER) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return load(tmp_path / "pipeline.yaml")


def test_an_earlier_releases_books_are_read_as_they_are(older: Pipeline) -> None:
    assert not file(older).exists()
    found = verify(older)
    assert (found.ok, found.rows_in, found.rows_written, found.rows_quarantined) == (True, 9, 7, 2)
    routes = {table.route: (table.rows_written, table.rows_quarantined) for table in found.tables}
    assert (routes["chess"], routes["go"]) == ((6, 1), (1, 0))
    assert sum(piece.num_rows for piece in quarantined_rows(older)) == 2
    assert not file(older).exists()


@pytest.mark.spark
@pytest.mark.usefixtures("spark", "older")
def test_a_run_goes_on_with_the_state_of_an_earlier_release_and_numbers_it(tmp_path: Path) -> None:
    text = 'syntax = "proto3"; message player { int64 id = 1; string nick = 2; int32 level = 3; bool vip = 4; }'
    on = Scenario(tmp_path)
    on.sent = {(0, offset): b"" for offset in range(9)}
    new = on.schema("chess", text)
    on.send(on.event("chess", new, message(text, "player", id=7, vip=True)), b"no envelope either")
    assert on.run().rows_written == 1
    on.check()
    assert on.values("chess", "id") == [0, 1, 2, 3, 4, 5, 7]
    assert {route: e.rows_in for route, e in totals(on.entries()).items() if route} == {"chess": 8, "go": 1}
    assert verify(on.config).ok
    assert check_format(on.config, STORE) == FORMAT
