"""Messages that say their route themselves, in a declarative pipeline: no envelope, and no subject names a route."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.config import DeltaSource
from distributary.declarative.replay import replay
from distributary.schemas.protobuf.framing import frame
from tests.declarative_at_rest import Rest
from tests.scenarios import message

TEXT = """syntax = "proto3"; package acme;
message Event { string game_name = 1; string user = 2; oneof what { Move move = 3; Chat chat = 4; } }
message Move { string square = 1; }
message Chat { string text = 1; }
"""


def send(rest: Rest, values: Sequence[bytes | None]) -> list[Any]:
    source = rest.config.source
    assert isinstance(source, DeltaSource)
    rows = pa.table({"value": pa.array(values, pa.binary())})
    write_deltalake(source.path, rows, mode="append")
    return [SimpleNamespace(value=value) for value in values]


@pytest.mark.parametrize(
    ("route", "expected", "nameless"),
    [
        ("game_name", {"chess": ["ann", "bob"], "go": ["ann"]}, 1),
        ({"oneof": "what"}, {"move": ["a1"], "chat": ["hi"]}, 2),
        ({"from": "message_type"}, {"acme.Event": ["ann", "bob", "ann", ""]}, 0),
    ],
)
def test_a_new_route_is_set_aside_once_and_has_its_table_with_the_next_update(
    tmp_path: Path, route: Any, expected: dict[str, list[str]], nameless: int
) -> None:
    rest = Rest(tmp_path, envelope={"format": "none", "route": route})
    schema_id = rest.registry.register("events-value", TEXT).schema.id
    events: list[dict[str, Any]] = [
        {"game_name": "chess", "user": "ann", "move": {"square": "a1"}},
        {"game_name": "chess", "user": "bob"},
        {"game_name": "go", "user": "ann", "chat": {"text": "hi"}},
        {},
    ]
    values = [frame(schema_id, message(TEXT, "acme.Event", **event)) for event in events]
    records = send(rest, [*values, b"no header", None])
    assert rest.known().routes == {}, "the subject of the messages is no route"
    rest.take(records)
    aside = rest.bronze.quarantined_rows()
    unknown = [row for row in aside.to_pylist() if row["reason"] == "UNKNOWN_SCHEMA_ID"]
    assert sorted({row["route"] for row in unknown}) == sorted(expected)
    assert {row["payload"] for row in unknown} <= set(values), "with its header, as it came"
    assert replay(rest.config, rest.registry).rows == {name: len(found) for name, found in expected.items()}
    known = rest.known()
    assert sorted(known.routes) == sorted(expected)
    table = rest.bronze.open()
    assert table is not None
    copies = table.dataset().to_table()
    rest.silver(copies.filter(pa.compute.is_valid(copies.column("replay_of"))), known)
    for name, found in expected.items():
        rows = DeltaTable(rest.datasets.uri(rest.datasets.silver(name))).to_pyarrow_table()
        column = next(c for c in ("user", "square", "text") if c in rows.column_names)
        assert sorted(rows.column(column).to_pylist()) == sorted(found)
    left = sorted(rest.bronze.quarantined_rows().column("reason").to_pylist())
    rest.take(send(rest, values), known)
    counts = rest.bronze.count(rest.bronze.open())  # type: ignore[arg-type]
    assert {name: counts[name].good for name in expected} == {name: len(found) for name, found in expected.items()}
    assert left == ["BAD_MAGIC", *["NO_ROUTE"] * nameless]
