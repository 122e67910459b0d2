"""Readable names of tables, and which of two routes has one that both would have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distributary.config import Tables
from distributary.engine.messages.table_names import TableNames
from distributary.errors import ConfigError
from distributary.names import MAX_NAME_CHARS, digest_name, route_of, table_name, without_rules
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.test_config import load_document


@pytest.mark.parametrize(
    ("route", "template", "name"),
    [
        ("Chess", "{route}", "x_x43_hess"),
        ("Chess", "{route|lower}", "chess"),
        ("shop.orders-v2", "{route|lower}", "shop_x2e_orders_x2d_v2"),
        ("acme.OrderPlaced", "silver_{route|last|snake}_v1", "silver_order_placed_v1"),
        ("ORDER_PLACED", "{route|snake}", "order_placed"),
        ("HTTPServerError2Go", "{route|snake}", "http_server_error2_go"),
        ("player_xp", "{route}", "player_x5f_xp"),
        ("player_xp", "{route|snake}", "player_xp"),
        ("__", "{route|snake}", table_name("__")),
        ("\u00dcber", "{route|lower}", "x_xfc_ber"),
        ("a.", "{route|last}", table_name("a.")),
    ],
)
def test_rules_make_names_readable_and_what_they_leave_odd_is_escaped(route: str, template: str, name: str) -> None:
    assert table_name(route, template) == name


@example("0" * 201, "{route|lower}")
@given(st.text(min_size=1), st.sampled_from(["{route|lower}", "{route|last|snake}", "a_{route|snake|lower}_b"]))
def test_a_name_by_rules_is_as_safe_as_any(route: str, template: str) -> None:
    name = table_name(route, template)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") and not name.startswith("_")
    assert 0 < len(name) <= MAX_NAME_CHARS
    assert route_of(name, template) is None
    # A name that was cut for its length has the digest already.
    assert digest_name(route, template) != name or re.search(r"_xh[0-9a-f]{32}(_b)?$", name)
    assert route_of(table_name(route, without_rules(template)), without_rules(template)) in (route, None)


@pytest.mark.parametrize("template", ["{route|upper}", "{route|}", "{route}|lower", "{route|lower}{route}"])
def test_a_template_with_another_rule_is_refused(template: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as e:
        load_document(tmp_path, tables={"root": "/x", "name": template})
    assert e.value.parameters["key"] == "tables.name"


class Lake:
    """Tables by name, and whose each is."""

    def __init__(self, root: Path, **keys: Any) -> None:
        self.tables = Tables.model_validate({"root": str(root), **keys})

    def make(self, name: str, route: str, pipeline: str = "games") -> None:
        Table(f"{self.tables.root}/{name}", Store(), Owner(pipeline, route)).create(pa.schema([("a", pa.int64())]))

    def names(self, *routes: str, of: TableNames | None = None) -> list[str]:
        settled = (of or self.settler()).settle(routes)
        return [settled.get(route) or self.tables.table_name(route) for route in routes]

    def settler(self) -> TableNames:
        return TableNames("games", self.tables, Store())


def test_a_route_that_finds_its_name_taken_has_one_that_no_other_can_have(tmp_path: Path) -> None:
    lake = Lake(tmp_path, name="{route|lower}")
    assert lake.names("Chess", "go") == ["chess", "go"]
    lake.make("chess", "Chess")
    digest = digest_name("chess", "{route|lower}")
    assert digest.startswith("chess_xh")
    assert lake.names("Chess", "chess", "CHESS") == ["chess", digest, table_name("CHESS")]
    lake.make(digest, "chess")
    assert lake.names("chess") == [digest]
    lake.make("poker", "poker", "another_pipeline")
    assert lake.names("poker", "Poker") == [digest_name("poker", "{route|lower}"), table_name("Poker")]


def test_two_new_routes_of_one_batch_settle_the_same_in_every_attempt(tmp_path: Path) -> None:
    lake = Lake(tmp_path, name="{route|lower}")
    assert lake.names("Chess", "CHESS") == [table_name("Chess"), "chess"]
    assert lake.names("CHESS", "Chess") == ["chess", table_name("Chess")]
    lake.make(table_name("Chess"), "Chess")  # that attempt made one table, and died
    assert lake.names("Chess", "CHESS") == [table_name("Chess"), "chess"]


def test_a_table_of_the_name_that_the_pipeline_gave_before_is_kept(tmp_path: Path) -> None:
    """Names had no rules then: `Chess` was the folder `x_x43_hess`."""
    old = Lake(tmp_path)
    old.make(table_name("Chess"), "Chess")
    old.make(table_name("Go"), "Go", "another_pipeline")
    ruled = Lake(tmp_path, name="{route|lower}", routes={"Poker": {"name": "cards"}})
    assert old.names("Chess", "Go") == ["x_x43_hess", "x_x47_o"]
    assert ruled.names("Chess", "Go", "Poker") == ["x_x43_hess", "go", "cards"]
    old.make(table_name("Poker"), "Poker")
    assert ruled.names("Poker") == [table_name("Poker")]
    old.make("cards", "Poker")
    assert ruled.names("Poker") == ["cards"]


def test_what_the_ledger_says_spares_a_look_and_what_could_not_be_written_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, name="{route|lower}")
    settler = lake.settler()
    settler.remember({"Chess": f"{tmp_path}/x_x43_hess", "Go": f"{tmp_path}/elsewhere"})
    monkeypatch.setattr(Table, "open", lambda _: pytest.fail("a table was opened"))
    assert lake.names("Chess", "Go", of=settler) == ["x_x43_hess", "go"]
    monkeypatch.undo()
    lake.make("go", "GO")
    assert lake.names("Go", of=settler) == ["go"]
    settler.forget("Go")
    assert lake.names("Go", of=settler) == [table_name("Go")]
    plain = Lake(tmp_path / "other")
    monkeypatch.setattr(Store, "list", lambda *_: pytest.fail("a folder was listed"), raising=False)
    assert plain.names("Chess") == ["x_x43_hess"]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("tables.routes", {"tables": {"root": "/x", "routes": {"a": {"name": "t"}, "b": {"name": "t"}}}}),
        ("tables.routes.a.name", {"tables": {"root": "/x", "routes": {"a": {"name": "T"}}}}),
        ("tables.routes.a.name", {"tables": {"root": "/x", "routes": {"a": {"name": "t"}}}, "layout": "wide"}),
        ("tables.name", {"tables": {"root": "/x", "name": "{route|snake}"}, "layout": "declarative"}),
        ("tables.name", {"tables": {"root": "/x", "name": "{route|snake}"}, "layout": "wide"}),
        (
            "tables.routes.a.name",
            {
                "source": {"type": "datastream", "path": "/x"},
                "registry": None,
                "tables": {"root": "/x", "routes": {"a": {"name": "t"}}},
            },
        ),
    ],
)
def test_names_that_nobody_could_tell_apart_are_refused(key: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as e:
        load_document(tmp_path, **changes)
    assert e.value.parameters["key"] == key
