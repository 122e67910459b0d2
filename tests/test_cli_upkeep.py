"""Verbs that look after tables, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributary.cli.entry import execute
from distributary.config import StateFolder
from distributary.errors import Exit
from distributary.state.cleaning import begin
from distributary.tables.store import Store
from tests.shop import backfilled, change, mysql_table, order
from tests.sparkless import Sparkless

pytestmark = pytest.mark.usefixtures("old_signals")

ORDERS = mysql_table()
DAY = 86_400


def test_reconcile_deletes_only_when_it_is_told_to(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Sparkless(lake)
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n) for n in (1, 2, 3)))
    shop.send(backfilled(ORDERS, order(1, "new"), sec=DAY), backfilled(ORDERS, order(3, "new"), sec=DAY))
    shop.run()
    command = ["reconcile", str(shop.file), "--route", "shop.orders"]
    assert execute(command) == Exit.OK
    said = capsys.readouterr().out
    assert "showed 2 keys; 1 rows would be deleted" in said
    assert "  id 2" in said.splitlines()
    assert "the same command with --apply" in said
    assert len(shop.living("shop_orders")) == 3
    begin(shop.config, {}, (), Store())
    assert execute([*command, "--apply"]) == execute(["resync", *command[1:]]) == Exit.BAD_INPUT
    assert capsys.readouterr().err.count("was begun and not finished") == 2
    assert len(shop.living("shop_orders")) == 3
    Path(shop.config.state_root, StateFolder.clean.name).unlink()
    assert execute([*command, "--apply", "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["vanished"], found["done"], found["keys"]) == (1, True, [{"id": 2}])
    assert shop.living("shop_orders") == [(1, "new"), (3, "new")]
    assert execute([*command, "--apply"]) == Exit.OK
    assert "0 rows would be deleted" in capsys.readouterr().out
    shop.check()
    assert execute([*command, "--since", "yesterday"]) == Exit.BAD_INPUT
    assert "--since 'yesterday': allowed" in capsys.readouterr().err
