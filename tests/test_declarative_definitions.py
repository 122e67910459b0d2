"""What definitions add to tables that are there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from distributary.declarative.definitions import grown, growth
from distributary_simulate.games.schemas import event_text
from tests.declarative_at_rest import Rest


def test_new_fields_of_a_struct_are_added_before_an_update(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    rest.send(1)
    rest.take(rest.send(2))
    assert growth(rest.datasets, rest.known()) == []
    game = rest.games.names[0]
    rest.registry.register(f"{game}-value", event_text(game, 3))
    (change,) = growth(rest.datasets, rest.known())
    assert change.endswith(f"ADD COLUMNS (`col_{game}_2`.`level_3` bigint)")


def test_fields_are_found_in_lists_and_maps_of_structs_and_whole_columns_are_not() -> None:
    def inner(*names: str) -> pa.DataType:
        return pa.struct([(name, pa.int64()) for name in names])

    before = [
        pa.field("l", pa.list_(inner("a"))),
        pa.field("m", pa.map_(pa.string(), inner("a"))),
        pa.field("s", pa.struct([("deep", inner("a"))])),
    ]
    after = [
        pa.field("l", pa.list_(inner("a", "b"))),
        pa.field("m", pa.map_(pa.string(), inner("a", "b"))),
        pa.field("s", pa.struct([("deep", inner("a", "b `c`"))])),
        pa.field("new", inner("x")),
    ]
    found = [path for path, _ in grown(before, after)]
    assert found == ["`l`.element.`b`", "`m`.value.`b`", "`s`.`deep`.`b ``c```"]
    assert list(grown(None, after)) == []
    assert list(grown(after, after)) == []
