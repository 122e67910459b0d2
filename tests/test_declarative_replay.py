"""Replays: rows that bronze has set aside come back as good copies, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from distributary.declarative.known_routes import KnownRoutes, read_writers
from distributary.declarative.replay import ids_there, replay
from distributary.declarative.verify import verify
from distributary.errors import Reason, StoreDown
from distributary.state.ledger import totals
from distributary.tables.store import Store
from distributary_simulate.games.records import Record
from tests.declarative_at_rest import Rest


def behind(rest: Rest) -> list[Record]:
    """Records of version 2 that came while version 1 was all that an update knew."""
    rest.take(rest.send(1))
    early = rest.known()
    second = rest.send(2)
    rest.take(second, early)
    return second


def test_a_version_that_came_after_the_definitions_is_set_aside_and_replayed_with_its_column(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    second = behind(rest)
    game = rest.games.names[0]
    column = f"col_{game}_2"
    assert column not in DeltaTable(rest.silver_uri(game)).to_pyarrow_table().column_names
    unknown = rest.books().unknown()
    good = Counter(r.game for r in second if r.fault is None)
    new_id = next(r.schema_id for r in second if r.game == game)
    assert unknown[game][new_id] == good[game] + sum(r.fault == "corrupt" and r.game == game for r in second)
    report = replay(rest.config, rest.registry, reasons={Reason.UNKNOWN_SCHEMA_ID})
    assert report.rows == dict(good)
    # The next update reads the copies.
    bronze = DeltaTable(rest.bronze.uri).to_pyarrow_table()
    copies = bronze.filter(pc.is_valid(bronze.column("replay_of")))
    rest.silver(copies, rest.known())
    rows = DeltaTable(rest.silver_uri(game)).to_pyarrow_table()
    assert column in rows.column_names
    sums = totals(rest.books().ledger.entries())
    assert sums[game].rows_written == sum(r.game == game and r.fault is None for r in rest.sent)
    found = verify(rest.config)
    assert found.ok, found.problems
    assert found.quarantine["replayed"] == good.total()
    assert found.rows_written == sum(r.fault is None for r in rest.sent)
    assert replay(rest.config, rest.registry).rows == {}


def test_an_envelope_of_an_unknown_schema_waits_as_a_row_of_no_route(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    known = rest.known()
    rest.take(records, KnownRoutes(known.reader.__class__(**{**vars(known.reader), "schemas": {}}), known.routes))
    report = replay(rest.config, rest.registry, reasons={Reason.UNKNOWN_SCHEMA_ID})
    assert sum(report.rows.values()) == sum(r.fault is None for r in records)
    bronze = DeltaTable(rest.bronze.uri).to_pyarrow_table()
    copies = bronze.filter(pc.is_valid(bronze.column("replay_of")))
    assert pc.all(pc.is_valid(copies.column("route"))).as_py()


def test_only_the_route_that_is_asked_for_comes_back(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    second = behind(rest)
    game, other = rest.games.names
    assert set(replay(rest.config, rest.registry, game).rows) == {game}
    good = sum(r.game == other and r.fault is None for r in second)
    assert replay(rest.config, rest.registry).rows == {other: good}


def test_writers_that_no_subject_names_are_remembered_for_the_next_update(tmp_path: Path) -> None:
    rest = Rest(tmp_path, declarative={"subject": None})
    records = rest.send(1)
    rest.take(records)
    assert rest.known().routes == {}
    report = replay(rest.config, rest.registry)
    good = Counter(r.game for r in records if r.fault is None)
    assert report.rows == dict(good)
    assert sorted(read_writers(rest.config, Store())) == sorted(good)
    assert sorted(rest.known().routes) == sorted(good)


def test_nothing_set_aside_is_no_trouble_and_an_unreadable_bronze_is_an_outage(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    assert replay(rest.config, rest.registry).rows == {}
    rest.take(rest.send(1))
    Path(rest.bronze.uri, "_delta_log", f"{0:020}.json").write_text("{broken")
    with pytest.raises(StoreDown):
        replay(rest.config, rest.registry)


def test_an_id_is_there_when_the_registry_has_it(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    assert ids_there(rest.config, rest.registry, {records[0].schema_id, 4711}, None) == {records[0].schema_id}
