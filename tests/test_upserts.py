"""Messages with keys, from a task, on real Delta tables: the newest of each key, whatever the order and the batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.message_order import message_numbers
from distributary.config import Tables
from distributary.config.source_keys import RecordKey
from distributary.engine.changes.table_settings import MessageNames
from distributary.engine.decisions import Decision
from distributary.engine.messages.chunks import GONE, RECORD_SCHEMA
from distributary.engine.messages.decode import decode
from distributary.engine.messages.deliver import deliver_route
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.outcomes import Outcome
from distributary.errors import Reason
from distributary.schemas.registry.compile import compile_text
from distributary.scratch import Scratch
from distributary.tables.store import Store
from tests.scenarios import message
from tests.sparkless_messages import Players

V1 = 'syntax = "proto3"; message player { string id = 1; int32 level = 2; }'
V2 = 'syntax = "proto3"; message player { string id = 1; int32 level = 2; optional int64 at = 3; }'
NUMBERED = 'syntax = "proto3"; message player { int64 id = 1; int32 level = 2; }'
NAMELESS = 'syntax = "proto3"; message player { int32 level = 2; }'
TEXTS = {1: V1, 2: V2, 3: NUMBERED, 4: NAMELESS}
SCHEMAS = {i: compile_text(text, id=i) for i, text in TEXTS.items()}


@dataclass(frozen=True)
class Sent:
    """A record of a topic. `level` None: it has no value."""

    key: Any
    offset: int
    level: int | None = None
    at: int | None = None
    schema: int = 2

    @property
    def record(self) -> dict[str, Any]:
        values = {"id": self.key, "level": self.level or 0} | ({} if self.at is None else {"at": self.at})
        values = {name: value for name, value in values.items() if f" {name} = " in TEXTS[self.schema]}
        payload = b"" if self.level is None else message(TEXTS[self.schema], "player", **values)
        return {"payload": payload, "topic": "t", "partition": 0, "offset": self.offset, "key": str(self.key).encode()}

    @property
    def writer(self) -> tuple[int, str]:
        return GONE if self.level is None else (self.schema, "0")


def orders_of(root: Path | str, *, record_key: RecordKey | None = None, **tables: Any) -> MessageSpec:
    given = Tables(root=str(root), keys=["id"], **tables)
    return MessageSpec(
        pipeline="players",
        stream="stream-1",
        batch=0,
        tables=given,
        store=Store(),
        quarantine=f"{root}/quarantine",
        payload_framed=True,
        raw_nested_indexes=False,
        named=MessageNames(given),
        record_key=record_key,
        parts=f"{root}/parts",
    )


def put(orders: MessageSpec, sent: Sequence[Sent]) -> tuple[Outcome, list[pa.Table]]:
    """One batch of a route."""
    ordered = sorted(sent, key=lambda one: one.writer)
    groups = [[*writer, sum(one.writer == writer for one in ordered)] for writer in sorted({s.writer for s in ordered})]
    records = pa.RecordBatch.from_pylist([one.record for one in ordered], schema=RECORD_SCHEMA)
    return deliver_route("a", decode("a", [(groups, records)], orders, SCHEMAS), orders)


def put_all(orders: MessageSpec, batches: Iterable[Sequence[Sent]]) -> None:
    for number, batch in enumerate(batches):
        outcome, bad = put(replace(orders, batch=number), batch)
        assert (outcome.fault, bad) == (None, [])
        assert outcome.rows_in == outcome.rows_written == len(batch)


def rows_of(orders: MessageSpec) -> dict[Any, tuple[int, int | None] | None]:
    """Key -> (level, at); None for a row that is deleted."""
    rows = DeltaTable(orders.table("a")).to_pyarrow_table().to_pylist()
    found = {r["id"]: None if r["_deleted"] else (r["level"], r.get("at")) for r in rows}
    assert len(found) == len(rows)
    return found


def reasons(rejected: Iterable[pa.Table]) -> list[tuple[int, str]]:
    return sorted((r["offset"], r["reason"]) for part in rejected for r in part.to_pylist())


def folded(sent: Iterable[Sent], by_column: bool) -> dict[Any, tuple[int, int | None] | None]:
    """What the table is to hold: one key after the other, by comparing."""
    newest: dict[Any, Sent] = {}
    for one in sent:
        held = newest.get(one.key)
        place = (one.at, one.offset) if by_column else one.offset
        if held is None or place > ((held.at, held.offset) if by_column else held.offset):  # type: ignore[operator]
            newest[one.key] = one
    return {k: None if one.level is None else (one.level, one.at) for k, one in newest.items()}


_LEVELS = st.integers(1, 9)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | _LEVELS, st.integers(-3, 3)), min_size=1, max_size=24),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_order_split_and_repetition_gives_the_newest_message_of_each_key(
    said: list[tuple[str, int | None, int]], by_column: bool, has_log: bool, data: st.DataObject
) -> None:
    sent = [
        Sent(key, n, level or (1 if by_column else None), at if level or by_column else None)
        for n, (key, level, at) in enumerate(said)
    ]
    again = data.draw(st.lists(st.sampled_from(sent), max_size=6))
    order = data.draw(st.permutations(sent + again))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(order)), max_size=4)))
    batches = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True) if a < b]
    more = {"newest_by": "at"} if by_column else {}
    more |= {"log": "{route}_log"} if has_log else {}
    with Scratch("upserts") as folder:
        orders = orders_of(folder, record_key=None if by_column else RecordKey(column="id"), **more)
        put_all(orders, batches)
        assert rows_of(orders) == folded(sent, by_column)
        if has_log:
            log = DeltaTable(f"{folder}/a_log").to_pyarrow_table()
            assert sorted(log.column("_origin").combine_chunks().field("row").to_pylist()) == sorted(
                one.offset for one in order
            )


def test_a_batch_that_is_written_again_changes_nothing(lake: Path) -> None:
    orders = orders_of(lake, log="{route}_log")
    for _ in range(2):
        outcome, bad = put(orders, [Sent("x", 0, 1), Sent("x", 1, 2), Sent("y", 2, 3)])
        assert (outcome.rows_in, outcome.rows_written, bad) == (3, 3, [])
    assert rows_of(orders) == {"x": (2, None), "y": (3, None)}
    assert DeltaTable(f"{lake}/a_log").to_pyarrow_table().num_rows == 3


def test_a_batch_says_how_many_rows_it_wrote_and_how_many_messages_were_older(lake: Path) -> None:
    orders = orders_of(lake, record_key=RecordKey(column="id"))
    put(orders, [Sent("x", 5, 1), Sent("y", 6, 1)])
    outcome, _ = put(replace(orders, batch=1), [Sent("x", 3, 2), Sent("y", 7), Sent("z", 8, 1)])
    assert outcome.merge is not None
    assert (outcome.merge.upserts, outcome.merge.deletes, outcome.merge.stale) == (1, 1, 1)
    assert (outcome.rows_in, outcome.rows_written, outcome.schema_ids) == (3, 3, {2: 2})


def test_a_deleted_row_leaves_its_key_and_nothing_else(lake: Path) -> None:
    orders = orders_of(lake, record_key=RecordKey(column="id"))
    put_all(orders, [[Sent("x", 0, 7, 1)], [Sent("x", 1)]])
    (row,) = DeltaTable(orders.table("a")).to_pyarrow_table().to_pylist()
    assert (row["id"], row["level"], row["at"], row["_deleted"]) == ("x", None, None, True)


def test_the_key_of_a_record_without_a_value_gets_the_type_of_its_column(lake: Path) -> None:
    orders = orders_of(lake, record_key=RecordKey(column="id"))
    put_all(orders, [[Sent(1, 0, 7, schema=3), Sent(2, 1)], [Sent(1, 2)]])
    table = DeltaTable(orders.table("a")).to_pyarrow_table()
    assert table.schema.field("id").type == pa.int64()
    assert [name for name in table.column_names if name.startswith("id")] == ["id"]
    assert rows_of(orders) == {1: None, 2: None}


def test_a_key_that_no_message_has_comes_from_the_record(lake: Path) -> None:
    orders = replace(orders_of(lake, record_key=RecordKey(column="who", type="bigint")))
    tables = Tables(root=str(lake), keys=["who"])
    orders = replace(orders, tables=tables, named=MessageNames(tables))
    put_all(orders, [[Sent(1, 0, 7, schema=4), Sent(2, 1, 8, schema=4), Sent(1, 2, 9, schema=4)], [Sent(2, 3)]])
    rows = DeltaTable(orders.table("a")).to_pyarrow_table().to_pylist()
    assert sorted((r["who"], r["level"], r["_deleted"]) for r in rows) == [(1, 9, False), (2, None, True)]


def test_a_key_that_is_none_of_the_type_that_is_given_names_no_row_and_changes_no_column(lake: Path) -> None:
    orders = orders_of(lake, record_key=RecordKey(column="id", type="bigint"))
    outcome, bad = put(
        orders, [Sent(1, 0, 7, schema=3), Sent(2, 1, 8, schema=3), Sent("x", 2), Sent("01", 3), Sent(2, 4)]
    )
    assert reasons(bad) == [(2, Reason.NO_KEY_VALUE), (3, Reason.NO_KEY_VALUE)]
    assert (outcome.rows_in, outcome.rows_written) == (5, 3)
    assert DeltaTable(orders.table("a")).to_pyarrow_table().schema.field("id").type == pa.int64()
    assert rows_of(orders) == {1: (7, None), 2: None}


def test_messages_that_name_no_row_or_no_place_are_set_aside_with_their_bytes(lake: Path) -> None:
    orders = orders_of(lake, newest_by="at")
    outcome, bad = put(orders, [Sent("x", 0, 1, 5), Sent("x", 1, 2), Sent("y", 2, 3, 1, schema=1)])
    assert reasons(bad) == [(1, Reason.BAD_POSITION), (2, Reason.BAD_POSITION)]
    assert (outcome.rows_in, outcome.rows_written, outcome.reasons) == (3, 1, {Reason.BAD_POSITION: 2})
    assert all(r["value"][:5] == bytes([0, 0, 0, 0, r["schema_id"]]) for part in bad for r in part.to_pylist())
    tables = Tables(root=str(lake / "other"), keys=["nobody"])
    outcome, bad = put(replace(orders, tables=tables, named=MessageNames(tables)), [Sent("x", 0, 1)])
    assert (reasons(bad), outcome.state) == ([(0, Reason.NO_KEY_VALUE)], "empty")


def test_a_table_that_cannot_be_written_gives_all_its_records_to_the_quarantine(lake: Path) -> None:
    orders = orders_of(lake, record_key=RecordKey(column="id"))
    Path(orders.table("a")).write_text("no folder")
    outcome, bad = put(orders, [Sent("x", 0, 1), Sent("y", 1)])
    assert (outcome.state, outcome.rows_in, outcome.rows_written) == ("failed", 2, 0)
    rows = sorted((r["offset"], r["reason"], r["value"] is None, r["key"]) for p in bad for r in p.to_pylist())
    assert rows == [(0, "TABLE_PARKED", False, b"x"), (1, "TABLE_PARKED", True, b"y")]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-(2**63), -1, 0, 1, 2**63 - 1], pa.int64()),
        pa.array([0, 1, 2**63, 2**64 - 1], pa.decimal128(20, 0)),
        pa.array([float("-inf"), -2.5, -0.1, 0.0, 0.1, 3e300, float("inf")], pa.float64()),
        pa.array([-5, 0, 5], pa.timestamp("us", tz="UTC")),
        pa.array([-5, 0, 5], pa.date32()),
        pa.array(["", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Zz", "Z", "é", "ü"], pa.string()),
    ],
)
def test_the_number_of_a_message_has_the_order_of_its_column_then_of_its_offset(values: pa.Array) -> None:
    nothing = pa.nulls(len(values))
    falling = pa.array(range(len(values), 0, -1), pa.int64())
    numbers = message_numbers(values, falling, nothing.cast(pa.int32()), nothing.cast(pa.string())).numbers.to_pylist()
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)
    alike = message_numbers(
        values.take(pa.array([0] * len(values))), falling, nothing.cast(pa.int32()), nothing.cast(pa.string())
    )
    assert alike.numbers.to_pylist() == sorted(alike.numbers.to_pylist(), reverse=True)


@pytest.mark.parametrize("column", ["_origin.batch", "_origin.topic", "_origin.time"])
def test_a_column_of_the_record_that_says_nothing_of_its_order_is_refused(column: str, lake: Path) -> None:
    with pytest.raises(ValueError, match="allowed are _origin"):
        Players(lake, TEXTS, tables={"newest_by": column})


def test_a_message_without_an_offset_or_a_value_or_with_nan_has_no_place() -> None:
    none = pa.nulls(1, pa.int64())
    about = (pa.nulls(1, pa.int32()), pa.nulls(1, pa.string()))
    assert [row for row, _ in message_numbers(None, none, *about).bad] == [0]
    assert [row for row, _ in message_numbers(none, pa.array([1]), *about).bad] == [0]
    assert message_numbers(pa.array([1]), none, *about).bad == []
    nan = message_numbers(pa.array([float("nan"), 1.0, -float("nan"), float("inf")]), pa.array([1, 2, 3, 4]),
                          pa.nulls(4, pa.int32()), pa.nulls(4, pa.string()))  # fmt: skip
    assert [row for row, _ in nan.bad] == [0, 2]
    with pytest.raises(ValueError, match="struct"):
        message_numbers(pa.array([{"a": 1}]), pa.array([1]), *about)


def test_a_plan_counts_and_writes_nothing(lake: Path) -> None:
    orders = orders_of(lake, newest_by="at")
    decided = orders.deciding({"a": Decision("counted")})
    outcome, bad = put(decided, [Sent("x", 0, 1, 5), Sent("x", 1, 2)])
    assert (outcome.state, outcome.rows_in, outcome.rows_written) == ("counted", 2, 1)
    assert reasons(bad) == [(1, Reason.BAD_POSITION)]
    assert not Path(orders.table("a")).exists()


@pytest.mark.parametrize("log", [{}, {"log": "{route}_log"}])
@pytest.mark.parametrize("rule", ["quarantine", "freeze"])
def test_a_column_that_may_not_be_added_keeps_aside_the_messages_that_need_it(
    lake: Path, rule: str, log: dict[str, Any]
) -> None:
    orders = orders_of(lake, evolution={"new_column": rule}, **log)
    put_all(orders, [[Sent("x", 0, 1, schema=1)]])
    outcome, bad = put(replace(orders, batch=1), [Sent("y", 1, 2, 3), Sent("z", 2, 4, schema=1), Sent("x", 3, 5)])
    assert [offset for offset, _ in reasons(bad)] == [1]
    assert (outcome.rows_in, outcome.rows_written) == (3, 2)
    assert rows_of(orders) == {"x": (5, None), "z": (4, None)}


@pytest.mark.parametrize("offset", [7, None])
def test_of_two_messages_at_one_place_the_one_that_does_not_fit_is_set_aside(lake: Path, offset: Any) -> None:
    orders = orders_of(lake, evolution={"new_column": "quarantine"}, newest_by="level", log="{route}_log")
    put_all(orders, [[Sent("w", 1, 1, schema=1)]])
    sent = [Sent("good", offset, 1, schema=1), Sent("bad", offset, 2, 3), Sent("last", offset, 4, schema=1)]
    outcome, bad = put(replace(orders, batch=1), sent)
    assert [(r["key"], r["schema_id"]) for part in bad for r in part.to_pylist()] == [(b"bad", 2)]
    assert (outcome.rows_in, outcome.rows_written, outcome.schema_ids) == (3, 2, {1: 2})
    assert rows_of(orders) == {"w": (1, None), "good": (1, None), "last": (4, None)}
