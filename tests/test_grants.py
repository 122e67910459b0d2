"""Grants: exactly what the file asks for, whatever the names; a strict reader takes each statement apart."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.cli.entry import execute
from distributary.config import Pipeline
from distributary.errors import ConfigError
from distributary.fleet.grants import GrantPlan, Securable, grant_plan, tables_of
from distributary.names import table_name
from distributary.state.ledger import Entry
from tests.lake import Lake

ROUTES = ["ann_game", "bob_game", "Ann-Game"]

_NAME = r"`((?:[^`]|``)+)`"
_STATEMENT = re.compile(
    rf"(GRANT|REVOKE) (SELECT|MODIFY|USE CATALOG|USE SCHEMA|ALL PRIVILEGES) ON "
    rf"(?:(CATALOG) {_NAME}|(SCHEMA) {_NAME}\.{_NAME}|(TABLE|VIEW|MATERIALIZED VIEW) {_NAME}\.{_NAME}\.{_NAME}) "
    rf"(TO|FROM) {_NAME}"
)


def taken_apart(sql: str) -> tuple[str, str, str, tuple[str, ...], str]:
    """(verb, privilege, kind, names, principal) of one statement; fails on anything that is not exactly one."""
    match = _STATEMENT.fullmatch(sql)
    assert match is not None, sql
    verb, privilege, *rest, preposition, principal = match.groups()
    assert preposition == ("TO" if verb == "GRANT" else "FROM")
    kind, *names = [part for part in rest if part is not None]
    return verb, privilege, kind, tuple(n.replace("``", "`") for n in names), principal.replace("``", "`")


def config(*grants: dict[str, Any], database: str | None = "main.silver") -> Pipeline:
    return Pipeline.model_validate(
        {
            "pipeline": "games",
            "source": {"type": "delta", "path": "/s"},
            "registry": {"path": "/r"},
            "tables": {"root": "/t", "database": database, "name": "silver_{route}"},
            "grants": list(grants),
        }
    )


def securables(*routes: str) -> list[Securable]:
    return [Securable("TABLE", table_name(r, "silver_{route}"), r) for r in routes]


def rights(plan: GrantPlan) -> dict[tuple[str, str], set[str]]:
    """(principal, object) -> privileges that the statements leave, and none that they took after giving it."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    given = set()
    for statement in plan.statements:
        verb, privilege, kind, names, principal = taken_apart(statement.sql)
        key = (principal, f"{kind} {'.'.join(names)}")
        if verb == "GRANT":
            assert privilege != "ALL PRIVILEGES"
            found[key].add(privilege)
            given.add((*key, privilege))
        else:
            assert (*key, privilege) not in given, "taken away after it was given"
    return dict(found)


def test_a_restricted_user_reads_one_table_and_no_other() -> None:
    plan = grant_plan(config({"principal": "eve@x.org", "tables": ["ann_game"]}), securables(*ROUTES))
    assert rights(plan) == {
        ("eve@x.org", "CATALOG main"): {"USE CATALOG"},
        ("eve@x.org", "SCHEMA main.silver"): {"USE SCHEMA"},
        ("eve@x.org", "TABLE main.silver.silver_ann_game"): {"SELECT"},
    }
    taken = {(s.privilege, s.on) for s in plan.statements if s.verb == "REVOKE"}
    assert ("SELECT", "TABLE `main`.`silver`.`silver_bob_game`") in taken
    assert ("ALL PRIVILEGES", "TABLE `main`.`silver`.`silver_bob_game`") in taken, "which SELECT is a part of"
    assert ("MODIFY", "TABLE `main`.`silver`.`silver_ann_game`") in taken
    assert ("SELECT", "SCHEMA `main`.`silver`") in taken, "a privilege on the schema reaches every table in it"


def test_what_is_taken_away_goes_first() -> None:
    plan = grant_plan(config({"principal": "a"}, {"principal": "b"}), securables(*ROUTES))
    verbs = [s.verb for s in plan.statements]
    assert verbs == sorted(verbs, reverse=True)


def test_an_empty_list_of_privileges_takes_all_away() -> None:
    plan = grant_plan(config({"principal": "eve", "privileges": []}), securables(*ROUTES))
    assert {s.verb for s in plan.statements} == {"REVOKE"}
    assert any(s.privilege == "USE SCHEMA" for s in plan.statements)


def test_nothing_on_the_catalog_is_ever_taken_away() -> None:
    plan = grant_plan(config({"principal": "eve", "privileges": []}), securables(*ROUTES))
    assert not any("CATALOG" in s.on for s in plan.statements)


def test_several_entries_of_a_principal_add_up() -> None:
    plan = grant_plan(
        config(
            {"principal": "team", "tables": ["*_game"]},
            {"principal": "team", "privileges": ["MODIFY"], "tables": ["bob_*"]},
        ),
        securables(*ROUTES),
    )
    found = rights(plan)
    assert found["team", "TABLE main.silver.silver_ann_game"] == {"SELECT"}
    assert found["team", "TABLE main.silver.silver_bob_game"] == {"SELECT", "MODIFY"}
    assert ("team", f"TABLE main.silver.{table_name('Ann-Game', 'silver_{route}')}") not in found


def test_a_view_is_only_read() -> None:
    plan = grant_plan(
        config({"principal": "a", "privileges": ["SELECT", "MODIFY"]}), [Securable("VIEW", "v", "ann_game")]
    )
    on_view = {(s.verb, s.privilege) for s in plan.statements if s.on.startswith("VIEW")}
    assert on_view == {("GRANT", "SELECT")}


NAMES = st.text(min_size=1, max_size=20).filter(lambda s: s.isprintable() and s == s.strip() and s)


@given(
    principals=st.lists(
        st.one_of(NAMES, st.sampled_from(["x` TO `admins", "`; DROP TABLE t; --", "a``b", "`"])), min_size=1, max_size=3
    ),
    routes=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True),
    patterns=st.lists(st.one_of(st.sampled_from(["*", "a*", "?", "[ab]*"]), NAMES), max_size=3),
    privileges=st.lists(st.sampled_from(["SELECT", "MODIFY"]), max_size=2),
    schema=NAMES.filter(lambda s: "." not in s),
)
def test_whatever_the_names_nothing_is_given_that_was_not_asked_for(
    principals: list[str], routes: list[str], patterns: list[str], privileges: list[str], schema: str
) -> None:
    asked = config(
        *({"principal": p, "privileges": privileges, "tables": patterns} for p in principals), database=f"main.{schema}"
    )
    plan = grant_plan(asked, securables(*routes))
    by_name = {f"TABLE main.{schema}.{table_name(r, 'silver_{route}')}": r for r in routes}
    for (principal, on), found in rights(plan).items():
        assert principal in principals
        if on in by_name:
            assert found <= set(privileges)
            assert any(fnmatchcase(by_name[on], pattern) for pattern in patterns)
        else:
            assert (on, found) in [("CATALOG main", {"USE CATALOG"}), (f"SCHEMA main.{schema}", {"USE SCHEMA"})]


def test_a_pattern_without_a_table_is_said() -> None:
    plan = grant_plan(config({"principal": "a", "tables": ["ann*", "later_*"]}), securables(*ROUTES))
    assert plan.unmatched == ("later_*",)


@pytest.mark.parametrize("database", [None, "silver"])
def test_without_a_catalog_and_a_schema_there_is_nothing_to_grant_on(database: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        grant_plan(config({"principal": "a"}, database=database), [])
    assert caught.value.parameters["key"] == "tables.database"


def test_the_tables_are_those_of_the_ledger(lake: Path) -> None:
    made = Lake(lake)
    made.batch(0, {"ann_game": {1: 2}, "bob_game": {1: 1}}, bad={"ghost": 1, None: 1}, parked={"neighbours": 2})
    assert [s.route for s in tables_of(made.config)] == ["ann_game", "bob_game"]


def test_of_a_wide_table_only_views_are_given(lake: Path) -> None:
    """The table holds the rows of all routes: a privilege on it would be one on each of them."""
    keys: dict[str, Any] = {
        "tables": {"database": "main.silver"},
        "grants": [{"principal": "eve", "privileges": ["SELECT", "MODIFY"]}],
    }
    made = Lake(lake, layout="wide", **keys)
    entries = [Entry(made.stream, 0, r, table=made.config.wide_path, rows_written=1) for r in ("ann_game", "Bob")]
    made.ledger.record(made.stream, 0, [*entries, Entry(made.stream, 0, None)], {})
    plan = grant_plan(made.config)
    assert {on: r for (_, on), r in rights(plan).items() if not on.startswith(("CATALOG", "SCHEMA"))} == {
        "VIEW main.silver.ann_game": {"SELECT"},
        f"VIEW main.silver.{table_name('Bob')}": {"SELECT"},
    }
    on_table = {s.privilege for s in plan.statements if s.on == "TABLE `main`.`silver`.`wide`"}
    assert on_table == {"ALL PRIVILEGES", "SELECT", "MODIFY"} and plan.unmatched == ()


@pytest.mark.parametrize("what", [None, ["log"], ["view"], []])
def test_of_change_files_the_log_is_given_only_where_it_is_asked_for(lake: Path, what: list[str] | None) -> None:
    """It holds what was deleted since. Its reader need not be a reader of the merged table, nor the other way round."""
    grant = {"principal": "eve", "tables": ["shop.*"], **({} if what is None else {"what": what})}
    made = Lake(lake)
    config = Pipeline.model_validate(
        {
            "pipeline": "games",
            "source": {"type": "datastream", "path": "/s"},
            "tables": {"root": str(lake), "database": "main.silver", "view": "{database}_{table}_now"},
            "grants": [grant],
        }
    )
    entries = [
        Entry(made.stream, 0, f"{d}.Users", table=f"{lake}/{d}_users_log", merged=f"{lake}/{d}_users", rows_written=1,
              merge_state="merged", about=json.dumps({"source": ["mysql", d, "", "Users"], "keys": ["id"]}))
        for d in ("shop", "bank")
    ]  # fmt: skip
    made.ledger.record(made.stream, 0, [*entries, Entry(made.stream, 0, None)], {})
    plan = grant_plan(config)
    given = {on.split(".")[-1] for (_, on) in rights(plan) if on.startswith(("TABLE", "VIEW"))}
    names = {"table": "shop_users", "log": "shop_users_log", "view": "shop_users_now"}
    assert given == {names[one] for one in (["table", "view"] if what is None else what)}
    assert {s.on.split(".")[-1] for s in plan.statements if s.privilege == "ALL PRIVILEGES"} == {
        f"`{d}{name[4:]}`" for d in ("shop", "bank") for name in names.values() if f"{d}{name[4:]}" not in given
    }


def test_of_a_declarative_pipeline_silver_and_gold_of_a_route_are_given(lake: Path) -> None:
    keys: dict[str, Any] = {
        "tables": {"database": "main.silver"},
        "grants": [{"principal": "eve", "tables": ["ann_game"]}],
    }
    made = Lake(lake, layout="declarative", **keys)
    entries = [Entry("b", 0, r, table=f"{lake}/silver_{r}_events", rows_written=1) for r in ("ann_game", "bob_game")]
    made.ledger.record("b", 0, [*entries, Entry("b", 0, None, table=f"{lake}/bronze")], {})
    plan = grant_plan(made.config)
    assert {on for (_, on) in rights(plan) if on.startswith(("TABLE", "VIEW"))} == {
        "TABLE main.silver.silver_ann_game_events",
        "VIEW main.silver.gold_ann_game_player_agg",
    }
    taken = {s.on.split(".")[-1] for s in plan.statements if s.privilege == "ALL PRIVILEGES"}
    assert {"`bronze`", "`unified_gold`", "`quarantine`", "`silver_bob_game_events`"} <= taken


def test_the_command_prints_the_statements_and_runs_none(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Lake(lake).batch(0, {"ann_game": {1: 2}})
    file = lake / "games.yaml"
    file.write_text(
        f"pipeline: games\nsource: {{type: delta, path: {lake}/s}}\nregistry: {{path: {lake}/r}}\n"
        f"tables: {{root: {lake}, database: main.silver}}\ngrants: [{{principal: eve, tables: [ann_game]}}]\n"
    )
    assert execute(["grants", str(file)]) == 0
    out, err = capsys.readouterr()
    statements = [line.removesuffix(";") for line in out.splitlines()]
    assert [taken_apart(s)[0] for s in statements].count("GRANT") == 3
    assert "--apply runs them" in err


def test_apply_runs_the_statements_in_their_order(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session stands in for one of Unity Catalog: Spark's own has no GRANT."""
    import distributary.running.stream

    ran: list[str] = []
    session = type("Session", (), {"sql": lambda _, statement: ran.append(statement)})()
    monkeypatch.setattr(distributary.running.stream, "session_of", lambda _: session)
    made = Lake(lake)
    made.batch(0, {"ann_game": {1: 2}, "bob_game": {1: 1}})
    file = lake / "games.yaml"
    file.write_text(
        f"pipeline: games\nsource: {{type: delta, path: {lake}/s}}\nregistry: {{path: {lake}/r}}\n"
        f"tables: {{root: {lake}, database: main.silver}}\ngrants: [{{principal: eve, tables: [ann_game]}}]\n"
    )
    assert execute(["grants", str(file), "--apply"]) == 0
    assert [taken_apart(s)[0] for s in ran] == sorted((taken_apart(s)[0] for s in ran), reverse=True)
    assert "GRANT SELECT ON TABLE `main`.`silver`.`ann_game` TO `eve`" in ran
