"""Columns of changing types, batch by batch: every row has its value, whatever the sizes and the cuts."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from distributary.config import Tables
from distributary.tables.conform import conform
from distributary.tables.datafile import write_data_file
from distributary.tables.engines import policy_of
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Owner, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.widening import evolve_table, for_spark, settled, why_not_rewritten

STORE, OWNER = Store(), Owner("p", "r")
KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "smallint": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "decimal": (pa.decimal128(20, 0), st.integers(0, 2**64 - 1).map(Decimal)),
    "string": (pa.string(), st.text(max_size=3)),
}
SHAPES = ("plain", "struct", "list", "map")


def shaped(shape: str, kind: pa.DataType) -> pa.DataType:
    shapes = {
        "plain": kind,
        "struct": pa.struct([("x", kind)]),
        "list": pa.list_(pa.field("element", kind)),
        "map": pa.map_(pa.string(), kind),
    }
    return shapes[shape]


def wrapped(shape: str, value: Any) -> Any:
    return {"plain": value, "struct": {"x": value}, "list": [value], "map": [("k", value)]}[shape]


def values_in(held: Any) -> list[Any]:
    """The values inside what a row has, in whichever column or field."""
    if isinstance(held, dict):
        return [found for inner in held.values() for found in values_in(inner)]
    if isinstance(held, list):
        return [found for inner in held for found in values_in(inner[1] if isinstance(inner, tuple) else inner)]
    return [] if held is None else [held]


@st.composite
def sent(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """(type, value) of each row, in the order in which they come."""
    names = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=8))
    return [(name, draw(KINDS[name][1])) for name in names]


def write(uri: str, batch: int, shape: str, rows: list[tuple[int, str, Any]], limit: int | None) -> None:
    """One batch into the table, as a task writes it; each type is a schema of its own."""
    table = Table(uri, STORE).open()
    names = sorted({name for _, name, _ in rows})
    schemas = [pa.schema([("id", pa.int64()), ("v", shaped(shape, KINDS[name][0]))]) for name in names]
    before = columns_of(table)
    evolution = evolve_table(table, before, schemas, Policy(rewrite_up_to=limit))
    parts = []
    for name, schema, slots in zip(names, schemas, evolution.slots, strict=True):
        mine = [{"id": at, "v": wrapped(shape, value)} for at, own, value in rows if own == name]
        conformed = conform(pa.RecordBatch.from_pylist(mine, schema), slots, evolution.schema)
        assert not conformed.rejected
        parts.append(pa.table(conformed.columns, schema=evolution.schema))
    file = write_data_file(uri, pa.concat_tables(parts), STORE)
    txn = Txn("s", batch)
    Table(uri, STORE, OWNER).commit(table, settled(table, evolution.schema), [file], txn)
    # Done again, it finds its transaction.
    with pytest.raises(CommitConflict):
        again = Table(uri, STORE).open()
        Table(uri, STORE, OWNER).commit(again, settled(again, evolution.schema), [file], txn)


@given(sent(), st.sampled_from(SHAPES), st.data())
def test_each_row_has_its_value_whatever_types_came_before_and_after_and_however_the_batches_are_cut(
    rows: list[tuple[str, Any]], shape: str, data: st.DataObject
) -> None:
    numbered = [(at, name, value) for at, (name, value) in enumerate(rows)]
    with TemporaryDirectory() as folder:
        uri, batch = str(Path(folder) / "t"), 0
        while numbered:
            size = data.draw(st.integers(1, len(numbered)), label="rows of the batch")
            # As a table that has become too large, or small again.
            limit = data.draw(st.sampled_from([None, 0, 2**30]), label="rewrite_up_to")
            write(uri, batch, shape, numbered[:size], limit)
            numbered, batch = numbered[size:], batch + 1
        table = DeltaTable(uri)
        assert table.protocol().min_reader_version == 1
        found = table.to_pyarrow_table().to_pylist()
    held = {row["id"]: [v for name, one in row.items() if name != "id" for v in values_in(one)] for row in found}
    assert held == {at: [value] for at, (_, value) in enumerate(rows)}


def opened(uri: str) -> Snapshot:
    table = Table(uri, STORE).open()
    assert table is not None
    return table


def test_what_keeps_a_table_from_being_rewritten_is_said(tmp_path: Path) -> None:
    uri = str(tmp_path)
    write_deltalake(uri, pa.table({"a": pa.array([1], pa.int32())}))
    size = opened(uri).adds().column("size_bytes")[0].as_py()
    fits = Policy(rewrite_up_to=size)
    assert why_not_rewritten(opened(uri), fits) is None
    assert "bytes" in str(why_not_rewritten(opened(uri), Policy(rewrite_up_to=size - 1)))
    assert why_not_rewritten(opened(uri), Policy()) == "the settings"
    elsewhere = opened(uri)
    elsewhere.uri, elsewhere.store = "s3://b/t", Store({"conditional_put": "disabled"})
    assert "conditional_put" in str(why_not_rewritten(elsewhere, fits))
    opened(uri).delta.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    assert why_not_rewritten(opened(uri), fits) == "deletion vectors"


@pytest.mark.parametrize(
    ("keys", "rewrites", "by_spark"),
    [
        ({}, True, False),
        ({"engine": "task"}, True, False),
        ({"engine": "spark"}, False, False),
        ({"evolution": {"type_change": "type_widening"}}, False, True),
        ({"engine": "spark", "evolution": {"type_change": "type_widening"}}, False, True),
    ],
)
def test_the_settings_say_how_a_column_gets_wider(keys: dict[str, Any], rewrites: bool, by_spark: bool) -> None:
    policy = policy_of(Tables.model_validate({"root": "/lake", **keys}), "r")
    assert (policy.type_change, policy.rewrite_up_to is not None) == ("widen", rewrites)
    assert for_spark(policy, None).can_widen is by_spark


@pytest.mark.parametrize("route", [None, "a"])
def test_type_widening_by_engine_task_is_refused_with_its_key(route: str | None) -> None:
    asked = {"evolution": {"type_change": "type_widening"}}
    keys = asked if route is None else {"routes": {route: asked}}
    with pytest.raises(ValidationError) as error:
        Tables.model_validate({"root": "/lake", "engine": "task", **keys})
    key = "evolution.type_change" if route is None else f"routes.{route}.evolution.type_change"
    assert error.value.errors()[0]["ctx"]["key"] == key
