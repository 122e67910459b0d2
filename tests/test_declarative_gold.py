"""Gold: which routes have it, and its SQL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from distributary.declarative.gold import plan, quarantine_sql
from distributary.names import literal
from tests.declarative_at_rest import Rest


def test_every_route_with_a_player_and_a_time_has_gold_and_others_say_why(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    rest.registry.register("lonely-value", 'syntax = "proto3"; message event { string a = 1; }')
    found = plan(rest.config, rest.known(), rest.datasets)
    assert sorted(g.route for g in found.golds) == sorted(rest.games.names)
    assert found.problems == ("lonely: no gold, for its schemas have no field user_name and no field event_timestamp",)
    unified = found.unified_sql()
    assert unified.count(" UNION ALL ") == len(found.golds) - 1
    assert all(f"'{g.route}' AS route" in unified for g in found.golds)
    assert "CAST" not in unified


def test_types_that_differ_between_routes_are_text_in_unified_gold(tmp_path: Path) -> None:
    rest = Rest(tmp_path, declarative={"player": "who.id", "time": "at"})
    for name, kind in (("a", "string"), ("b", "int64")):
        text = f'syntax = "proto3"; message event {{ message w {{ {kind} id = 1; }} w who = 1; int64 at = 2; }}'
        rest.registry.register(f"{name}-value", text)
    found = plan(rest.config, rest.known(), rest.datasets)
    assert [g.player for g in found.golds] == ["`who`.`id`"] * 2
    tables = found.materialized()
    assert [tables[g.name]["who_id"] for g in found.golds] == [pa.string(), pa.int64()]
    assert tables["unified_gold"] == {
        "route": pa.string(), "who_id": pa.string(), "events": pa.int64(), "first_event": pa.int64(),
        "last_event": pa.int64(),
    }  # fmt: skip
    assert "CAST(`who_id` AS STRING) AS `who_id`, events, first_event, last_event" in found.unified_sql()


def test_no_gold_is_wanted_or_there_is_none(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    assert plan(rest.config, rest.known(), rest.datasets).columns() == []
    none = Rest(tmp_path, declarative={"gold_as": "none"})
    none.send(1)
    assert plan(none.config, none.known(), none.datasets).golds == ()


def test_names_are_quoted_and_texts_escaped(tmp_path: Path) -> None:
    assert literal("it's a \\") == "'it\\'s a \\\\'"
    assert "`spark_catalog`.`games`.`bronze`" in quarantine_sql(Rest(tmp_path).datasets)
