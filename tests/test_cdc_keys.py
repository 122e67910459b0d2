"""An event's key stays the key that the event names, whatever becomes of the columns of its table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from distributary.cdc.orders import ORIGIN_TYPE
from tests.key_events import Said, send
from tests.sparkless import Sparkless

LONG = {"id": "long", "v": "string"}
TEXT = {"id": "string", "v": "string"}


def write_logs_as_before(patch: pytest.MonkeyPatch) -> None:
    """As versions did that did not write keys into logs."""
    patch.setattr("distributary.cdc.fitting.ORIGIN_TYPE", pa.struct(list(ORIGIN_TYPE)[:3]))
    patch.setattr("distributary.cdc.fitting._key", lambda events, keys: [])


@pytest.fixture
def shop(tmp_path: Path) -> Sparkless:
    return Sparkless(tmp_path)


def keys_in_log(shop: Sparkless, name: str = "public_t_log") -> list[tuple[str | None, str | None]]:
    return [(row["_origin"]["key"], row["_origin"]["key_columns"]) for row in shop.log(name)]


def test_the_log_has_each_event_s_key_as_the_event_spells_it(shop: Sparkless) -> None:
    send(shop, Said({"id": 1, "v": "a"}, 1), Said({"id": 2**40, "v": "b"}, 2), types=LONG)
    send(shop, Said({"id": "1", "v": "c"}, 3), Said({"id": 'a"b\n', "v": "d"}, 4), types=TEXT)
    send(shop, Said({"id": "x", "v": "e", "r": None}, 5, keys=("id", "r")), types={**TEXT, "r": "int"})
    send(shop, Said({"v": "f"}, 6, keys=()), types={"v": "string"})
    shop.run()
    assert keys_in_log(shop) == [
        ('["1"]', '["id"]'),
        ('["1099511627776"]', '["id"]'),
        ('["1"]', '["id"]'),
        ('["a\\"b\\n"]', '["id"]'),
        ('["x",null]', '["id","r"]'),
        (None, None),
    ]


def test_keys_that_the_settings_give_are_the_keys_in_the_log(tmp_path: Path) -> None:
    shop = Sparkless(tmp_path, tables={"routes": {"public.t": {"keys": ["v"]}}})
    send(shop, Said({"id": 1, "v": "a"}, 1, keys=()), types=LONG)
    shop.run()
    assert keys_in_log(shop) == [('["a"]', '["v"]')]


@pytest.mark.parametrize("new_column", ["add", "quarantine", "freeze"])
def test_a_log_of_a_version_before_gets_keys_whatever_the_policy_for_new_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_column: str
) -> None:
    shop = Sparkless(tmp_path, tables={"evolution": {"new_column": new_column}})
    send(shop, Said({"id": 1, "v": "a"}, 1), types=LONG)
    with monkeypatch.context() as before:
        write_logs_as_before(before)
        shop.run()
    assert "key" not in shop.log("public_t_log")[0]["_origin"]
    send(shop, Said({"id": 2, "v": "b"}, 2), types=LONG)
    shop.run()
    assert keys_in_log(shop) == [(None, None), ('["2"]', '["id"]')]
    assert shop.quarantined() == []
    shop.check()
