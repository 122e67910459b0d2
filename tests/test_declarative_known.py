"""What an update knows when it begins."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.declarative import known_routes as module
from distributary.declarative.judge import judge_values
from distributary.declarative.known_routes import add_writers, discover, parse_writers, read_writers, write_down
from distributary.declarative.replay import ids_there, replay
from distributary.engine.messages.task_spec import ORIGIN
from distributary.engine.schemas import Schemas
from distributary.errors import Reason, SchemaNotFound, StoreUnreadable, TableCollision
from distributary.schemas.formats import decoder_for
from distributary.schemas.registry.compile import CompiledSchema
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary_simulate.games.schemas import event_text
from tests.declarative_at_rest import Rest
from tests.exceptions import panic


def test_routes_come_from_subjects_and_envelopes_are_none(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    assert rest.known().routes == {}
    rest.send(1)
    known = rest.known()
    assert sorted(known.routes) == sorted(rest.games.names)
    assert len(known.reader.schemas) == 1, "the wrapper's own subject ends in -value too, and is no route"


def test_a_route_knows_all_versions_and_its_columns_are_their_union(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    game = rest.games.names[0]
    rest.send(1)
    one = rest.known().routes[game]
    rest.send(2)
    two = rest.known().routes[game]
    assert (len(one.slots), len(two.slots)) == (1, 2)
    assert set(two.columns.names) - set(one.columns.names) == {f"col_{game}_2"}
    assert pickle.loads(pickle.dumps(two)).columns == two.columns


def test_columns_that_the_table_has_stay_in_their_place(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    game = rest.games.names[0]
    rest.take(rest.send(1))
    before = rest.known().routes[game]
    assert before.before is not None
    assert ORIGIN not in before.before.names
    rest.send(2)
    after = rest.known().routes[game]
    assert after.columns.names[: len(before.before)] == before.before.names


def test_a_schema_that_does_not_compile_concerns_its_own_id_only(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    game = rest.games.names[0]
    rest.send(1)
    rest.registry.set_compatibility(f"{game}-value", "NONE")
    text = 'syntax = "proto3"; message event { string a = 1; } message other { string b = 1; }'
    bad = rest.registry.register(f"{game}-value", text).schema.id
    strict = Rest(tmp_path, payload={"format": "protobuf", "message": "1"})
    known = discover(strict.config, Schemas(strict.registry))
    assert [writer[0] for writer in known.routes[game].slots] == [bad]
    assert len(known.routes[game].broken) == 1, "version 1 has no second message"


def test_writers_that_no_subject_names_are_kept_in_the_table_and_in_a_file(tmp_path: Path) -> None:
    rest = Rest(tmp_path, declarative={"subject": None})
    rest.send(1)
    game = rest.games.names[0]
    schema_id = rest.registry.latest(f"{game}-value").schema.id
    assert rest.known().routes == {}
    assert list(discover(rest.config, Schemas(rest.registry), {game: {(schema_id, "0")}}).routes) == [game]
    add_writers(rest.config, Store(), {game: {(schema_id, "0")}})
    add_writers(rest.config, Store(), {game: {(schema_id, "0")}, "other": {(7, "0.1")}})
    assert read_writers(rest.config, Store()) == {game: {(schema_id, "0")}, "other": {(7, "0.1")}}
    assert list(rest.known().routes) == [game]


def test_writers_are_written_down_and_read_again() -> None:
    writers = {(7, "0"), (5, "0"), (9, "0.1")}
    assert write_down(writers) == "5 7 9:0.1"
    assert parse_writers(write_down(writers)) == writers
    assert parse_writers("") == set()


def test_a_schema_that_breaks_its_decoder_breaks_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    game = rest.games.names[0]
    bad = rest.registry.register(f"{game}-value", event_text(game, 2)).schema.id
    whole = decoder_for

    def decoder(schema: CompiledSchema, *args: Any, **more: Any) -> Any:
        if schema.id == bad:
            raise panic()
        return whole(schema, *args, **more)

    monkeypatch.setattr(module, "decoder_for", decoder)
    known = rest.known()
    assert sorted(known.routes) == sorted(rest.games.names)
    assert list(known.routes[game].broken) == [bad]
    assert bad not in {schema_id for schema_id, _ in known.routes[game].slots}


@pytest.mark.parametrize("dataset", ["bronze", "silver_amber_anchor_game_events"])
def test_a_table_of_another_pipeline_is_refused(tmp_path: Path, dataset: str) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    write_deltalake(rest.datasets.uri(dataset), pa.table({"x": [1]}), description=Owner("others", "").text())
    with pytest.raises(TableCollision):
        rest.known()


def test_a_table_that_cannot_be_read_is_left_out_with_its_rows_and_is_no_new_table(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    records = rest.send(1)
    rest.take(records)
    game = rest.games.names[0]
    log = Path(rest.silver_uri(game), "_delta_log", f"{0:020}.json")
    whole = log.read_text()
    log.write_text("{broken")
    known = rest.known()
    assert list(known.failed) == [game]
    assert list(known.routes) == rest.games.names[1:]
    verdicts = judge_values(pa.array([r.value for r in records], pa.binary()), known).to_pylist()
    assert {v["reason"] for v in verdicts if v["route"] == game} == {Reason.TABLE_PARKED}
    log.write_text(whole)
    assert rest.known().failed == {}


def test_a_store_that_is_away_leaves_no_table_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    whole = Table.open

    def away(self: Table) -> Any:
        if "silver" in self.uri:
            raise TimeoutError
        return whole(self)

    monkeypatch.setattr(Table, "open", away)
    with pytest.raises(StoreUnreadable):
        rest.known()


def test_a_new_text_of_a_subject_is_known_by_the_next_update(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.take(rest.send(1))
    game = rest.games.names[0]
    rest.registry.register(f"{game}-value", event_text(game, 2))
    assert len(rest.known().routes[game].slots) == 2
    assert len(DeltaTable(rest.silver_uri(game)).schema().fields) < len(rest.known().routes[game].columns) + 1


def test_an_update_makes_so_many_new_tables_and_the_next_one_as_many_again(tmp_path: Path) -> None:
    rest = Rest(tmp_path, tables={"max_new_tables": 1})
    first, second = rest.games.names
    records = rest.send(1)
    values = pa.array([r.value for r in records], pa.binary())
    known = rest.known()
    assert (list(known.routes), list(known.beyond)) == ([first], [second])
    reasons = {(v["route"], v["reason"]) for v in judge_values(values, known).to_pylist() if v["level"] == "payload"}
    assert (second, Reason.TOO_MANY_ROUTES) in reasons
    assert not any(route == first and reason == Reason.TOO_MANY_ROUTES for route, reason in reasons)
    rest.take(records)
    known = rest.known()
    assert (sorted(known.routes), known.beyond) == (sorted((first, second)), {})
    rest.take(rest.send(1))
    assert replay(rest.config, rest.registry, reasons={Reason.TOO_MANY_ROUTES}).rows.keys() == {second}


def test_columns_and_routes_have_their_bounds(tmp_path: Path) -> None:
    rest = Rest(tmp_path, tables={"evolution": {"max_columns": 2}}, envelope={"max_route_length": 5})
    game = rest.games.names[0]
    good = [r for r in rest.send(1) if r.game == game and r.fault is None]
    known = rest.known()
    assert sum(not isinstance(f.type, pa.StructType) for f in known.routes[game].columns) <= 2
    [verdict, *_] = judge_values(pa.array([r.value for r in good], pa.binary()), known).to_pylist()
    assert verdict["reason"] == Reason.ROUTE_TOO_LONG
    whole = replace(known, reader=replace(known.reader, max_route_length=4_096))
    reasons = {v["reason"] for v in judge_values(pa.array([r.value for r in good], pa.binary()), whole).to_pylist()}
    assert reasons == {Reason.TOO_MANY_COLUMNS}


def test_only_so_many_unknown_ids_are_asked_for_between_updates(tmp_path: Path) -> None:
    asked: list[int] = []

    class Counting:
        def get(self, schema_id: int) -> object:
            asked.append(schema_id)
            raise SchemaNotFound(registry="this one", what=schema_id)

    config = Rest(tmp_path).config
    assert ids_there(config, Counting(), range(9, 0, -1), 3) == set()  # type: ignore[arg-type]
    assert asked == [1, 2, 3]
