"""Readable names of tables, and which of two routes has one that both would have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st

from distributary.changes.model import Kind, SourceTable
from distributary.config import Tables
from distributary.engine.changes.table_settings import MessageNames, history_of
from distributary.engine.messages import table_names
from distributary.engine.messages.table_names import TableNames
from distributary.errors import ConfigError
from distributary.names import MAX_NAME_CHARS, digest_name, readable_name, route_of, table_name, without_rules
from distributary.repair.resync_bronze import _Resync
from distributary.repair.resync_changes import known_route, rebuild
from distributary.state.ledger import Entry, Ledger
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.lake import Lake as Resting
from tests.sparkless_messages import Players, Session
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
        ("Chess", "{route|exact}", "x_x43_hess"),
    ],
)
def test_rules_make_names_readable_and_what_they_leave_odd_is_escaped(route: str, template: str, name: str) -> None:
    assert table_name(route, template) == name


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("chess", "chess"),
        ("Chess", "chess"),
        ("player_xp", "player_xp"),
        ("a__b", "a__b"),
        ("acme.OrderPlaced", "acme_order_placed"),
        ("order-placed v2", "order_placed_v2"),
        ("_hidden", "hidden"),
        ("\u00dcber-Blick", "uber_blick"),
        ("stra\u00dfe", "stra_xdf_e"),
        ("--", table_name("--")),
    ],
)
def test_without_rules_a_name_is_the_route_in_words(route: str, name: str) -> None:
    assert readable_name(route, "{route}") == name
    assert readable_name(route, "silver_{route}") == f"silver_{name}"


@given(st.text(min_size=1))
def test_a_name_in_words_is_as_safe_as_any(route: str) -> None:
    name = readable_name(route, "s_{route}_t")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") and 0 < len(name) <= MAX_NAME_CHARS
    assert not readable_name(route, "{route}").startswith("_")
    assert route_of(table_name(route, "{route|exact}"), "{route|exact}") in (route, None)


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
    """Names were exact then: `Chess` was the folder `x_x43_hess`."""
    exact = Lake(tmp_path, name="{route|exact}")
    exact.make(table_name("Chess"), "Chess")
    exact.make(table_name("Go"), "Go", "another_pipeline")
    ruled = Lake(tmp_path, name="{route|lower}", routes={"Poker": {"name": "cards"}})
    assert exact.names("Chess", "Go") == ["x_x43_hess", "x_x47_o"]
    assert Lake(tmp_path).names("Chess", "Go", "Poker") == ["x_x43_hess", "go", "poker"]
    assert ruled.names("Chess", "Go", "Poker") == ["x_x43_hess", "go", "cards"]
    exact.make(table_name("Poker"), "Poker")
    assert ruled.names("Poker") == [table_name("Poker")]
    exact.make("cards", "Poker")
    assert ruled.names("Poker") == ["cards"]


def test_a_table_that_is_named_in_words_is_kept_where_rules_come_later(tmp_path: Path) -> None:
    Lake(tmp_path).make("acme_order_placed", "acme.OrderPlaced")
    ruled = Lake(tmp_path, name="{route|last|snake}")
    assert ruled.names("acme.OrderPlaced", "acme.Payment") == ["acme_order_placed", "payment"]


def test_only_where_two_routes_meet_has_one_of_them_an_escape(tmp_path: Path) -> None:
    lake = Lake(tmp_path, name="silver_{route}")
    assert lake.names("Chess", "chess", "go-1") == ["silver_x_x43_hess", "silver_chess", "silver_go_1"]
    lake.make("silver_chess", "Chess")
    digest = digest_name("chess", "silver_{route}")
    assert lake.names("Chess", "chess") == ["silver_chess", digest]
    lake.make(digest, "chess")
    assert lake.names("chess", "CHESS") == [digest, f"silver_{table_name('CHESS')}"]


@pytest.mark.parametrize("template", ["{route}", "{route|lower}"])
def test_files_of_a_task_that_was_killed_before_its_first_commit_take_no_name(tmp_path: Path, template: str) -> None:
    lake = Lake(tmp_path, name=template)
    (tmp_path / "chess").mkdir()
    (tmp_path / "chess" / "part-0.parquet").write_bytes(b"PAR1")
    assert lake.names("Chess") == ["chess"]


def test_the_table_of_a_stranger_is_not_gone_round_in_silence_where_the_route_is_its_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.make("chess", "chess", "another_pipeline")
    (tmp_path / "go").mkdir()
    assert lake.names("chess", "go") == ["chess", "go"], "whose it is, is said where it is written"
    assert lake.names("Chess") == ["x_x43_hess"]


def test_a_table_that_cannot_be_read_stays_its_route_s(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.make("chess", "Chess")
    (log,) = (tmp_path / "chess" / "_delta_log").glob("*.json")
    log.write_text("{broken")
    assert lake.names("Chess") == ["chess"]


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
    plain = Lake(tmp_path / "other", name="{route|exact}")
    monkeypatch.setattr(table_names, "names_in", lambda *_: pytest.fail("a folder was listed"))
    assert plain.names("Chess") == ["x_x43_hess"]


def test_a_rebuild_makes_a_table_that_is_gone_where_the_run_beside_it_writes(tmp_path: Path) -> None:
    """The ledger has a name of an earlier version; nothing of the table is there."""
    resting = Resting(tmp_path)
    entry = Entry(resting.stream, 0, "Chess", table=f"{tmp_path}/x_x43_hess", rows_in=1, rows_written=1)
    resting.ledger.record(resting.stream, 0, [entry, Entry(resting.stream, 0, None)], {})
    rebuild = _Resync.__new__(_Resync)
    rebuild.spark, rebuild.store = Session(), resting.store  # type: ignore[assignment]
    spec = rebuild._replay(resting.config).fanout.spec("", 0, {}, {}, ["Chess"])
    assert spec.table("Chess") == f"{tmp_path}/x_x43_hess"


KEYED = {"keys": ["id"], "log": "{route}_log", "history": "{route}_history"}


def _logs(lake: Lake, *routes: str) -> list[tuple[str, str]]:
    """(log, history) of each route."""
    settler = lake.settler()
    names = settler.settle(routes)
    named = MessageNames(lake.tables, names=names, logs=settler.settle_logs(routes))
    sources = (SourceTable(Kind.MESSAGES, "", "", route) for route in routes)
    return [tuple(str(uri).rpartition("/")[2] for uri in (named.log(s), named.history(s))) for s in sources]  # type: ignore[misc]


def test_a_log_and_a_history_are_called_in_words_as_the_table_is(tmp_path: Path) -> None:
    assert _logs(Lake(tmp_path, **KEYED), "Chess", "go") == [("chess_log", "chess_history"), ("go_log", "go_history")]
    exact = Lake(tmp_path, keys=["id"], log="{route|exact}_log", history="{route|exact}_history")
    assert _logs(exact, "Chess") == [("x_x43_hess_log", "x_x43_hess_history")]


def test_a_log_that_is_there_keeps_its_name_and_so_does_the_history_beside_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path, **KEYED)
    lake.make("x_x43_hess_log", "Chess")
    assert _logs(lake, "Chess") == [("x_x43_hess_log", "x_x43_hess_history")]
    # By rules, the names were those that the rules say.
    ruled = Lake(tmp_path / "ruled", keys=["id"], log="{route|lower}_log", history="{route}_history")
    ruled.make("chess_log", "Chess")
    assert _logs(ruled, "Chess") == [("chess_log", "x_x43_hess_history")]


def test_a_log_and_the_table_of_another_route_never_meet_in_one_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path, **KEYED)
    assert _logs(lake, "Chess", "chess_log") == [
        ("x_x43_hess_log", "x_x43_hess_history"),
        ("chess_log_log", "chess_log_history"),
    ]
    digest = digest_name("chess", "{route}_log")
    assert _logs(lake, "chess", "chess_log")[0] == (digest, digest_name("chess", "{route}_history"))
    lake.make("chess_log", "chess")
    settler = lake.settler()
    assert settler.settle(["chess_log"]) == {"chess_log": digest_name("chess_log", "{route}")}
    lake.make("poker_history", "poker_history")
    assert _logs(lake, "Poker") == [("x_x50_oker_log", "x_x50_oker_history")]


def test_rows_of_routes_with_keys_are_in_tables_called_in_words_batch_after_batch(tmp_path: Path) -> None:
    players = Players(
        tmp_path, {1: 'syntax = "proto3"; message player { int64 id = 1; int64 score = 2; }'}, tables=KEYED
    )
    for batch in range(2):
        records = []
        for players.topic in ("Chess", "chess_log", "Go"):
            records.append(players.record(1, score=batch))
        report = players.take(batch, records)
        assert (report.rows_written, report.rows_quarantined, report.parked) == (3, 0, ())
    lake = Path(players.config.tables.root)
    folders = {path.name for path in lake.iterdir() if not path.name.startswith("_")}
    bodies = ("x_x43_hess", "chess_log", "go")
    assert folders == {"chess", "chess_log", "go", *(f"{b}_log" for b in bodies), *(f"{b}_history" for b in bodies)}
    entries = Ledger(players.config.state_root, "players", Store()).newest
    for route in ("Chess", "chess_log", "Go"):
        history = history_of(players.config, entries[route].about, entries[route].table)
        assert DeltaTable(str(history)).to_pyarrow_table().column("score").to_pylist() in ([0, 1], [1, 0])
        assert DeltaTable(str(entries[route].merged)).to_pyarrow_table().column("score").to_pylist() == [1]
        assert rebuild(players.config, route, known_route(players.config, route)).table == entries[route].merged
    assert {path.name for path in lake.iterdir() if not path.name.startswith("_")} == folders


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
