"""Declarative pipelines over payloads that no schema describes, and over records' keys: the tasks' own functions."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets
from distributary.declarative.judge import VERDICT_SCHEMA
from distributary.declarative.known_routes import (
    KnownRoutes,
    add_writers,
    discover,
    parse_writers,
    read_writers,
    write_down,
)
from distributary.declarative.replay import ids_there, replay
from distributary.declarative.silver_values import judge_silver
from distributary.declarative.trials import decode_in_task, judge_in_task
from distributary.declarative.verify import verify
from distributary.engine.schemas import registry_of, schemas_of
from distributary.errors import Reason
from distributary.schemas import header
from distributary.schemas.header import WHOLE
from distributary.schemas.json.inferred import covers, united
from distributary.schemas.registry.absent import NoRegistry
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store
from tests.declarative_at_rest import _EXTRA, Rest

BARE: dict[str, Any] = {"format": "json", "framing": "none"}
INFERRED = {**BARE, "types": "inferred"}


class Sent(NamedTuple):
    value: bytes


def rest_of(root: Path, payload: dict[str, Any]) -> Rest:
    return Rest(root, envelope={"format": "none", "route": "kind"}, payload=payload)


def known_of(config: Pipeline) -> KnownRoutes:
    return discover(config, schemas_of(config))


def take(rest: Rest, *bodies: bytes) -> None:
    """An update over new records."""
    write_deltalake(str(rest.config.source.address), pa.table({"value": list(bodies)}), mode="append")
    sent: Any = [Sent(body) for body in bodies]
    rest.take(sent, known_of(rest.config))


def come_back(rest: Rest, already: int = 0) -> int:
    """A replay, and what the next update does with its copies; how many copies there are now."""
    replay(rest.config, registry_of(rest.config), reasons={Reason.UNKNOWN_SCHEMA_ID})
    bronze = DeltaTable(rest.bronze.uri).to_pyarrow_table()
    copies = bronze.filter(pc.is_valid(bronze.column("replay_of"))).sort_by("bronze_at")
    rest.silver(copies.slice(already), known_of(rest.config))
    return int(copies.num_rows)


def silver(rest: Rest, route: str) -> list[dict[str, Any]]:
    rows = DeltaTable(rest.silver_uri(route)).to_pyarrow_table().to_pylist()
    found = [{name: value for name, value in row.items() if name != "_origin" and value is not None} for row in rows]
    return in_order(found)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def reasons(rest: Rest) -> list[str]:
    return sorted(rest.bronze.quarantined_rows().column("reason").to_pylist())


def test_a_route_without_a_schema_gets_its_table_with_the_update_after_its_first_records(tmp_path: Path) -> None:
    rest = rest_of(tmp_path, {**BARE, "columns": {"score": "bigint"}})
    take(rest, b'{"kind":"go","score":7}', b'{"kind":"go","score":"x"}', b"{")
    assert reasons(rest) == ["CORRUPT_ENVELOPE", "UNKNOWN_SCHEMA_ID", "UNKNOWN_SCHEMA_ID"]
    [detail] = set(rest.bronze.quarantined_rows(["UNKNOWN_SCHEMA_ID"]).column("detail").to_pylist())
    assert detail == "the route 'go' was not known when the update began; the next one takes it in"
    assert come_back(rest) == 1
    take(rest, b'{"kind":"go","score":8}')
    assert silver(rest, "go") == [{"score": n, "_undeclared": '{"kind":"go"}'} for n in (7, 8)]
    assert verify(rest.config).ok


def test_columns_that_nothing_declares_come_with_the_update_after_their_first_records(tmp_path: Path) -> None:
    rest = rest_of(tmp_path, INFERRED)
    take(rest, b'{"kind":"go","a":1}', b'{"kind":"go","b":{"c":"x"}}')
    assert reasons(rest) == ["UNKNOWN_SCHEMA_ID"] * 2
    back = come_back(rest)
    # None of these asks for what none of those had: each alone, together, or less.
    take(
        rest, b'{"kind":"go","a":2,"b":{"c":"y"}}', b'{"kind":"go"}', b'{"kind":"go","a":"1"}', b'{"kind":"go","a":{}}'
    )
    assert back == 2 and reasons(rest) == ["UNKNOWN_SCHEMA_ID"] * 2
    details = set(rest.bronze.quarantined_rows().column("detail").to_pylist())
    ends = "of 'go' was not known when the update began; the next one takes it in"
    assert details == {f"{column} {ends}" for column in ("a__string", "a__empty")}
    assert come_back(rest, back) == 4
    assert silver(rest, "go") == in_order(
        {"kind__string": "go", **more}
        for more in (
            {"a__bigint": 1}, {"b": {"c__string": "x"}}, {"a__bigint": 2, "b": {"c__string": "y"}}, {},
            {"a__string": "1"}, {"a__empty": "{}"},
        )
    )  # fmt: skip
    checked = judge_silver(rest.config, verify(rest.config), deep=True)
    assert checked.ok, checked.problems
    assert [table.rows_compared for table in checked.tables] == [6]


def test_the_table_alone_remembers_which_columns_were_found(tmp_path: Path) -> None:
    shapes = united(['[["b", "x y", "string"]]'.replace("x y", "xy"), '[["a", "bigint"]]', WHOLE])
    assert shapes == {'[["a", "bigint"], ["b", "xy", "string"]]', WHOLE}
    writers = {(0, shape) for shape in shapes}
    assert parse_writers(write_down(writers)) == writers
    assert len(write_down(writers).split()) == 2


def test_what_is_written_down_does_not_grow_by_an_entry_with_each_column(tmp_path: Path) -> None:
    config = rest_of(tmp_path, INFERRED).config
    for number in range(4):
        add_writers(config, Store(), {"go": {(0, f'[["c{number}", "bigint"]]')}})
    [(_, shape)] = {writer for writer in read_writers(config, Store())["go"] if writer[1] != WHOLE}
    assert all(covers(shape, f'[["c{number}", "bigint"]]') for number in range(4))


_PATHS = st.lists(st.sampled_from(["a", "A", "b", "c"]), min_size=1, max_size=3)
_LEAVES = st.lists(st.tuples(_PATHS, st.sampled_from(["bigint", "string", "empty"])), min_size=1, max_size=4)


@given(st.lists(_LEAVES, max_size=6).flatmap(lambda groups: st.tuples(st.just(groups), st.permutations(groups))))
def test_united_shapes_cover_each_that_went_in_whatever_the_order(orders: tuple[list[Any], list[Any]]) -> None:
    shapes, shuffled = ([json.dumps(sorted([*path, kind] for path, kind in group)) for group in one] for one in orders)
    together = united(shapes)
    assert all(any(covers(one, shape) for one in together) for shape in (*shapes, WHOLE))
    assert united(shuffled) == together


def test_the_id_of_payloads_without_a_schema_is_always_there(tmp_path: Path) -> None:
    with_schema = rest_of(tmp_path / "a", {"format": "json"}).config
    assert ids_there(rest_of(tmp_path / "b", BARE).config, NoRegistry(), {0, 5}, 1) == {0}
    assert ids_there(with_schema, NoRegistry(), {0, 5}, None) == set()


# -- records' keys ------------------------------------------------------------------------------------------

KEY_SCHEMA = '{"type": "record", "name": "k", "fields": [{"name": "player", "type": "long"}]}'
KEYS = {
    "text": ({"column": "player", "type": "bigint"}, b"%d", b"x"),
    "json": ({"format": "json", "columns": {"player": "bigint"}}, b'{"player":%d}', b"{"),
    "avro": ({"format": "avro", "columns": {"player": "bigint"}}, None, b"\x00\x00\x00\x00\x63\x02"),
}


def with_keys(root: Path, key: Any) -> Pipeline:
    source = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t", "key": key}
    given_keys = {"envelope": {"format": "none", "route": "kind"}, "payload": {**BARE, "columns": {"score": "bigint"}}}
    return Pipeline.model_validate(
        {
            "pipeline": "games",
            "layout": "declarative",
            "source": source,
            "registry": {"path": str(root / "registry")},
            # A process apart of its own: another test plants what ends its reader in the one of other limits.
            "quarantine": {"read_sec": 299},
            "tables": {"root": str(root / "lake")},
            **given_keys,
        }
    )


def avro_key(schema_id: int, player: int) -> bytes:

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(KEY_SCHEMA)), {"player": player})
    return header.frame(schema_id, out.getvalue())


@pytest.mark.parametrize("form", KEYS)
def test_a_records_key_is_columns_of_silver_and_of_what_a_replay_brings(tmp_path: Path, form: str) -> None:
    key, template, broken = KEYS[form]
    config = with_keys(tmp_path, key)
    schema_id = registry_of(config).register("t-key", KEY_SCHEMA, kind="AVRO").schema.id
    keys = [(template % n if template else avro_key(schema_id, n)) for n in (1, 2)]
    bodies = [b'{"kind":"go","score":%d}' % n for n in (1, 2, 3, 4)]
    columns = (pa.array(bodies, pa.binary()), pa.array([*keys, broken, None], pa.binary()))
    unknown = pa.Table.from_struct_array(judge_in_task(*columns, known_routes=known_of(config), careful=False))
    assert unknown.column("reason").to_pylist() == ["UNKNOWN_SCHEMA_ID"] * 4

    add_writers(config, Store(), {"go": {(0, WHOLE)}})
    known = known_of(config)
    for careful in (False, True):
        verdicts = pa.Table.from_struct_array(judge_in_task(*columns, known_routes=known, careful=careful))
        assert verdicts.column("reason").to_pylist() == [None, None, "CORRUPT_KEY", None]
    good = verdicts.filter(pc.is_null(verdicts.column("reason"))).combine_chunks()
    names = ("schema_id", "message", "payload", "record_key")
    taken = (good.column(name).chunk(0) for name in names)
    rows = decode_in_task(*taken, route=known.routes["go"], read_sec=60, careful=False).to_pylist()
    assert [(row["score"], row["player"]) for row in rows] == [(1, 1), (2, 2), (4, None)]

    extra = {f.name: pa.nulls(4, f.type) for f in _EXTRA}
    bronze = pa.table([*unknown.columns, *extra.values()], schema=pa.schema([*VERDICT_SCHEMA, *_EXTRA]))
    uri = Datasets.of(config).uri("bronze")
    write_deltalake(uri, bronze, description=Owner("games", "").text())
    report = replay(config, registry_of(config))
    assert (report.rows, report.left) == ({"go": 3}, {"go": 1})
    copies = DeltaTable(uri).to_pyarrow_table()
    copies = copies.filter(pc.is_valid(copies.column("replay_of"))).combine_chunks()
    taken = (copies.column(name).chunk(0) for name in names)
    rows = decode_in_task(*taken, route=known.routes["go"], read_sec=60, careful=False).to_pylist()
    assert sorted((row["score"], row["player"]) for row in rows if row["player"]) == [(1, 1), (2, 2)]
