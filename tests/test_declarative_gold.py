"""Gold: which routes have it, and its SQL."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from distributary.declarative.datasets import quarantine_sql
from distributary.declarative.gold import plan
from distributary.declarative.persisted_views import View, keep_current
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


class Catalog(SimpleNamespace):
    """Stands for a session: notes the statements, and fails those that hold `broken`."""

    def __init__(self, broken: str = "nothing") -> None:
        super().__init__(said=[], broken=broken)

    def sql(self, statement: str) -> None:
        self.said.append(statement)
        if self.broken in statement:
            raise ValueError("it cannot be")


def test_views_that_no_graph_makes_are_made_in_order_and_changed_only_when_they_say_something_else(
    tmp_path: Path,
) -> None:
    rest = Rest(tmp_path)
    sql = rest.datasets.sql
    views = {"gold_a": View("SELECT 1", ("silver_a",)), "Unified": View("SELECT 2", ("gold_a",))}
    made: dict[str, Any] = {"made_here": views.keys()}

    first: Any = Catalog()
    assert keep_current(first, rest.config, views, {"silver_a"}, **made) == []
    assert first.said == [f"CREATE VIEW {sql('gold_a')} AS SELECT 1", f"CREATE VIEW {sql('Unified')} AS SELECT 2"]

    second: Any = Catalog()
    there = {"silver_a", "gold_a", "unified"}
    assert keep_current(second, rest.config, views, there, **made) == []
    assert second.said == []

    # Somebody dropped one, and the other is to say something else.
    third: Any = Catalog()
    views["Unified"] = View("SELECT 3", ("gold_a",))
    assert keep_current(third, rest.config, views, there - {"gold_a"}, **made) == []
    assert third.said == [f"CREATE VIEW {sql('gold_a')} AS SELECT 1", f"ALTER VIEW {sql('Unified')} AS SELECT 3"]


def test_a_view_that_cannot_be_made_is_told_and_tried_again(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    views = {"gold_a": View("SELECT 1", ("silver_a",)), "unified": View("SELECT 2", ("gold_a",))}
    broken: Any = Catalog("gold_a`")
    (problem,) = keep_current(broken, rest.config, views, {"silver_a"}, made_here=views.keys())
    assert "view gold_a is not there, for it cannot be made" in problem
    assert len(broken.said) == 1, "what reads it waits for it"
    again: Any = Catalog()
    assert keep_current(again, rest.config, views, {"silver_a"}, made_here=views.keys()) == []
    assert len(again.said) == 2
