"""Bronze from outside Spark: counts, what is set aside, and replays into it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from deltalake import write_deltalake

from distributary.declarative.bronze_counts import ENVELOPE
from distributary.declarative.replay import replay
from distributary.errors import Reason
from distributary.tables.snapshot import Snapshot
from tests.declarative_at_rest import Rest


def test_records_are_counted_by_route_schema_id_and_reason(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    rest.take(records)
    table = rest.bronze.open()
    assert table is not None
    counts = rest.bronze.count(table)
    for game in rest.games.names:
        mine = [r for r in records if r.game == game]
        good = [r for r in mine if r.fault is None]
        assert counts[game].good == len(good)
        assert dict(counts[game].schema_ids) == {good[0].schema_id: len(good)}
        assert counts[game].reasons[Reason.CORRUPT_PAYLOAD] == sum(r.fault == "corrupt" for r in mine)
    aside = sum(c.aside for c in counts.values())
    assert aside == sum(r.fault not in (None, "tombstones") for r in records)
    assert sum(c.tombstones for c in counts.values()) == sum(r.fault == "tombstones" for r in records)
    assert sum(c.reasons.total() for c in counts.values()) == aside


def test_only_files_that_came_since_a_version_are_counted(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    second = rest.send(2)
    rest.take(second)
    table = rest.bronze.open()
    assert table is not None
    files = rest.bronze.added(table, 0)
    assert files
    counts = rest.bronze.count(table, files)
    assert sum(c.good for c in counts.values()) == sum(r.fault is None for r in second)
    assert rest.bronze.added(table, table.version) == []
    assert rest.bronze.count(table, []) == {}


def test_a_bronze_that_was_rewritten_says_that_all_must_be_counted_again(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    rest.take(rest.send(2))
    table = rest.bronze.open()
    assert table is not None
    table.delta.optimize.compact()
    assert rest.bronze.added(Snapshot(rest.bronze.uri, rest.bronze.store), 0) is None
    write_deltalake(
        rest.bronze.uri, table.delta.to_pyarrow_table().slice(0, 0), mode="overwrite", partition_by=["route"]
    )
    again = rest.bronze.open()
    assert again is not None
    assert rest.bronze.added(again, 1) is None
    assert rest.bronze.count(again) == {}


def test_a_replayed_row_is_not_aside_any_more_and_its_original_stays(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    early = rest.known()
    second = rest.send(2)
    rest.take(second, early)
    before = rest.bronze.quarantined_rows([Reason.UNKNOWN_SCHEMA_ID])
    report = replay(rest.config, rest.registry)
    after = rest.bronze.quarantined_rows([Reason.UNKNOWN_SCHEMA_ID])
    assert before.num_rows - after.num_rows == sum(report.rows.values())
    table = rest.bronze.open()
    assert table is not None
    counts = rest.bronze.count(table)
    good = Counter(r.game for r in rest.sent if r.fault is None)
    assert {r: c.good + c.replayed for r, c in counts.items() if r} == dict(good)
    assert sum(c.aside for c in counts.values()) == rest.bronze.quarantined_rows().num_rows


def test_rows_set_aside_are_found_by_reason_and_route(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    assert rest.bronze.quarantined_rows().num_rows == 0
    records = rest.send(1)
    rest.take(records)
    game = rest.games.names[0]
    mine = [r for r in records if r.game == game and r.fault == "corrupt"]
    found = rest.bronze.quarantined_rows([Reason.CORRUPT_PAYLOAD], game)
    assert found.num_rows == len(mine)
    assert {r["route"] for r in found.to_pylist()} <= {game}


def test_an_unknown_envelope_is_counted_under_no_schema_id(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    known = rest.known()
    rest.take(records, known.__class__(known.reader.__class__(**{**vars(known.reader), "schemas": {}}), known.routes))
    table = rest.bronze.open()
    assert table is not None
    assert list(rest.bronze.count(table)[None].unknown) == [ENVELOPE]
