"""The owner's side of a batch, in process on real Delta tables: decode, fit, write, and write again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.config import Tables
from distributary.engine.decisions import Decision
from distributary.engine.messages import pieces
from distributary.engine.messages.chunks import RECORD_SCHEMA
from distributary.engine.messages.decode import Decoded, decode, fit, incoming_schemas
from distributary.engine.messages.deliver import deliver, deliver_route
from distributary.engine.messages.pieces import SIDE_BY_SIDE, cells_of, cut_pieces
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.outcomes import Outcome
from distributary.errors import Reason
from distributary.schemas.registry.compile import CompiledSchema, compile_text
from distributary.tables.column_names import leaves
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy, evolve
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, write_rejected
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip
from tests.scenarios import message

V1 = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
V2 = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; string boss = 3; }'
LONG = 'syntax = "proto3"; message event { string user = 1; int64 score = 2; }'
TEXT = 'syntax = "proto3"; message event { string user = 1; string score = 2; }'
SCHEMAS = {i: compile_text(text, id=i) for i, text in enumerate((V1, V2, LONG, TEXT), 1)}
TEXTS = {1: V1, 2: V2, 3: LONG, 4: TEXT}


@pytest.fixture
def spec(lake: Path) -> MessageSpec:
    return MessageSpec(
        pipeline="games",
        stream="stream-1",
        batch=0,
        tables=Tables(root=str(lake)),
        store=Store(),
        quarantine=str(lake / "quarantine"),
        payload_framed=True,
        raw_nested_indexes=False,
    )


def event(schema_id: int, **values: Any) -> tuple[int, bytes]:
    return schema_id, message(TEXTS[schema_id], "event", **values)


def decoded(
    *events: tuple[int, bytes],
    spec: MessageSpec,
    route: str = "a",
    schemas: Mapping[int, CompiledSchema] = SCHEMAS,
    first: int = 0,
) -> Decoded:
    """Events as one chunk would bring them, offsets in the order given."""
    rows = sorted((schema_id, first + at, payload) for at, (schema_id, payload) in enumerate(events))
    records = pa.RecordBatch.from_pylist(
        [{"payload": p, "topic": "t", "partition": 0, "offset": at} for _, at, p in rows], schema=RECORD_SCHEMA
    )
    groups = [[i, "0", sum(r[0] == i for r in rows)] for i in sorted({r[0] for r in rows})]
    return decode(route, [(groups, records)], spec, schemas)


def put(
    spec: MessageSpec, *events: tuple[int, bytes], route: str = "a", first: int = 0
) -> tuple[Outcome, list[pa.Table]]:
    return deliver_route(route, decoded(*events, spec=spec, route=route, first=first), spec)


def next_batch(spec: MessageSpec, **evolution: str | int) -> MessageSpec:
    """Orders of the batch after; from now on under these evolution rules."""
    tables = spec.tables
    if evolution:
        tables = Tables.model_validate({"root": tables.root, "evolution": evolution})
    return replace(spec, batch=spec.batch + 1, tables=tables)


def rows_of(spec: MessageSpec, route: str = "a") -> list[dict[str, Any]]:
    rows = DeltaTable(spec.table(route)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda r: r["_origin"]["offset"])


def reasons(rejected: Sequence[pa.Table]) -> list[tuple[int, str]]:
    return sorted((r["offset"], r["reason"]) for part in rejected for r in part.to_pylist())


def test_a_new_table_takes_all_versions_of_a_batch_each_by_its_own_schema(spec: MessageSpec) -> None:
    """Case E1: the order of arrival does not matter, absent columns are null."""
    outcome, bad = put(spec, event(2, user="x", boss="b"), event(1, user="y", score=1), event(2, user="z"))
    assert (outcome.state, outcome.append.created, outcome.append.evolved) == ("written", True, False)
    assert (outcome.rows_in, outcome.rows_written, outcome.schema_ids) == (3, 3, {2: 2, 1: 1})
    assert not bad
    assert [(r["user"], r["score"], r["boss"]) for r in rows_of(spec)] == [
        ("x", 0, "b"),
        ("y", 1, None),
        ("z", 0, ""),
    ]


def test_each_row_says_where_it_came_from(spec: MessageSpec) -> None:
    put(spec, event(1, user="x"), event(2, user="y"))
    assert [r["_origin"] for r in rows_of(spec)] == [
        {
            "topic": "t", "partition": 0, "offset": at, "timestamp": None, "headers": None, "schema_id": at + 1,
            "envelope_schema_id": None, "batch": 0,
        }
        for at in (0, 1)
    ]  # fmt: skip


def test_the_origin_can_be_left_out(spec: MessageSpec) -> None:
    spec = replace(spec, tables=Tables(root=spec.tables.root, origin=False))
    put(spec, event(1, user="x"))
    assert DeltaTable(spec.table("a")).to_pyarrow_table().column_names == ["user", "score"]


def test_a_payload_field_named_as_the_origin_column_keeps_both(spec: MessageSpec) -> None:
    text = 'syntax = "proto3"; message event { string _origin = 1; string _Origin2 = 2; }'
    schemas = {9: compile_text(text, id=9)}
    given = decoded((9, message(text, "event", _origin="mine")), spec=spec, schemas=schemas)
    outcome, _ = deliver_route("a", given, spec)
    assert outcome.state == "written"
    (row,) = rows_of(spec)
    assert (row["_origin__field"], row["_origin"]["schema_id"]) == ("mine", 9)


def test_a_replayed_batch_writes_nothing(spec: MessageSpec) -> None:
    events = [event(1, user="x"), event(2, user="y"), (1, b"\xff")]
    first, bad = put(spec, *events)
    again, bad_again = put(spec, *events)
    assert (first.state, again.state) == ("written", "replayed")
    assert (again.rows_in, again.rows_written, again.reasons) == (3, 2, first.reasons)
    assert reasons(bad) == reasons(bad_again) == [(2, "CORRUPT_PAYLOAD")]
    assert len(rows_of(spec)) == 2


def test_a_batch_older_than_the_newest_one_is_a_replay_too(spec: MessageSpec) -> None:
    put(spec, event(1, user="x"))
    put(next_batch(spec), event(1, user="y"), first=1)
    outcome, _ = put(spec, event(1, user="x"))
    assert outcome.state == "replayed"
    assert [r["user"] for r in rows_of(spec)] == ["x", "y"]


def test_a_replay_that_decodes_to_other_rows_is_refused(spec: MessageSpec) -> None:
    """Never guessed away: the table fails, its rows are kept aside, and the reason says which version began it."""
    put(spec, event(1, user="x"), event(1, user="y"))
    outcome, bad = put(spec, event(1, user="x"))
    assert outcome.state == "failed"
    assert "ReplayMismatch" in str(outcome.error)
    assert reasons(bad) == [(0, "TABLE_PARKED")]
    assert len(rows_of(spec)) == 2


def test_another_stream_is_no_replay(spec: MessageSpec) -> None:
    """Case S1: batch 0 of a new checkpoint is not batch 0 of the old one."""
    put(spec, event(1, user="x"))
    outcome, _ = put(replace(spec, stream="stream-2"), event(1, user="y"), first=1)
    assert outcome.state == "written"
    assert [r["user"] for r in rows_of(spec)] == ["x", "y"]


def test_a_crash_after_the_column_was_added_replays_cleanly(spec: MessageSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case E2: new columns are a commit of their own, before the rows."""
    put(spec, event(1, user="x"))
    spec = next_batch(spec)

    class Died(SystemExit):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(DeltaTable, "create_write_transaction", die)
        put(spec, event(2, user="y", boss="b"), first=1)
    assert "boss" in DeltaTable(spec.table("a")).to_pyarrow_table().column_names
    assert len(rows_of(spec)) == 1
    outcome, _ = put(spec, event(2, user="y", boss="b"), first=1)
    assert outcome.state == "written"
    assert [r["boss"] for r in rows_of(spec)] == [None, "b"]


def test_racing_writers_of_one_batch_write_it_once(spec: MessageSpec) -> None:
    """Case S4: also when the batch creates the table, or adds a column to it."""
    for batch, events in enumerate([[event(1, user="x")], [event(2, user="y", boss="b")]]):
        now = replace(spec, batch=batch)
        given = decoded(*events, spec=now, first=batch)
        with ThreadPoolExecutor(4) as pool:
            outcomes = [o for o, _ in pool.map(lambda n, g=given: deliver_route("a", g, n), [now] * 4)]
        assert sorted(o.state for o in outcomes) == ["replayed"] * 3 + ["written"], [o.error for o in outcomes]
    assert [r["user"] for r in rows_of(spec)] == ["x", "y"]


def test_an_unknown_id_keeps_its_rows_aside_and_the_others_land(spec: MessageSpec) -> None:
    """Case W8."""
    spec = replace(spec, refused={77: (Reason.UNKNOWN_SCHEMA_ID, "no such schema")})
    outcome, bad = put(spec, (77, b"\x01\x02"), event(1, user="x"))
    assert reasons(bad) == [(0, "UNKNOWN_SCHEMA_ID")]
    assert outcome.reasons == {"UNKNOWN_SCHEMA_ID": 1}
    assert (outcome.rows_in, outcome.rows_written) == (2, 1)
    kept = bad[0].to_pylist()[0]
    assert (kept["value"], kept["schema_id"], kept["route"]) == (b"\x00\x00\x00\x00\x4d\x00\x01\x02", 77, "a")


def test_a_route_of_only_bad_rows_makes_no_table(spec: MessageSpec) -> None:
    outcome, bad = put(spec, (1, b"\xff"), (1, b"\xfe"))
    assert outcome.state == "empty"
    assert reasons(bad) == [(0, "CORRUPT_PAYLOAD"), (1, "CORRUPT_PAYLOAD")]
    assert not Path(spec.table("a")).exists()


def test_a_bad_message_index_is_the_rows_own_fault(spec: MessageSpec) -> None:
    """Case W3."""
    records = pa.RecordBatch.from_pylist([{"payload": b"", "offset": 0}] * 2, schema=RECORD_SCHEMA)
    given = decode("a", [([[1, "0", 1], [1, "8", 1]], records)], spec, SCHEMAS)
    outcome, bad = deliver_route("a", given, spec)
    assert outcome.rows_written == 1
    assert [r for _, r in reasons(bad)] == ["BAD_INDEX"]
    assert bad[0].to_pylist()[0]["value"] == b"\x00\x00\x00\x00\x01\x02\x10"


# -- type changes ------------------------------------------------------------------------------------------


def test_a_new_table_takes_the_widest_type(spec: MessageSpec) -> None:
    """Case E4 within one batch: no engine is needed to widen what does not exist yet."""
    outcome, bad = put(spec, event(3, user="y", score=5_000_000_000), event(1, user="x", score=1))
    assert (outcome.state, bad) == ("written", [])
    assert [r["score"] for r in rows_of(spec)] == [5_000_000_000, 1]


def test_a_column_gets_the_wider_type_in_the_batch_s_own_commit_and_is_said(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    spec = next_batch(spec)
    outcome, bad = put(spec, event(3, user="y", score=5_000_000_000), first=1)
    assert (outcome.state, outcome.append.why_spark, bad) == ("written", None, [])
    assert outcome.widened == {"score": "int -> bigint"}
    assert [r["score"] for r in rows_of(spec)] == [1, 5_000_000_000]
    table = DeltaTable(spec.table("a"))
    assert (table.version(), table.protocol().min_reader_version) == (1, 1)
    again, _ = put(replace(spec, tips={}), event(3, user="y", score=5_000_000_000), first=1)
    assert (again.state, again.rows_written, again.widened) == ("replayed", 1, outcome.widened)
    assert len(rows_of(spec)) == 2


def test_new_columns_and_a_wider_type_come_in_one_batch(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    events = [event(2, user="b", boss="b"), event(3, user="y", score=5_000_000_000)]
    outcome, bad = put(next_batch(spec), *events, first=1)
    assert (outcome.state, bad) == ("written", [])
    found = {r["user"]: (r["score"], r["boss"]) for r in rows_of(spec)}
    assert found == {"x": (1, None), "b": (0, "b"), "y": (5_000_000_000, None)}


def test_a_table_that_is_too_large_to_be_rewritten_gets_a_second_column_and_keeps_it(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    small = next_batch(spec, rewrite_up_to="1 KB")
    outcome, _ = put(small, event(3, user="y", score=5_000_000_000), first=1)
    assert (outcome.state, outcome.widened) == ("written", {})
    outcome, _ = put(next_batch(replace(small, tables=spec.tables)), event(3, user="z", score=7), first=2)
    assert (outcome.state, outcome.append.evolved, outcome.widened) == ("written", False, {})
    assert [(r["score"], r["score__bigint"]) for r in rows_of(spec)] == [(1, None), (None, 5_000_000_000), (None, 7)]


def test_a_route_s_columns_in_a_wide_table_get_the_wider_type_and_no_other_route_s_file_is_touched(
    spec: MessageSpec,
) -> None:
    spec = replace(spec, wide=f"{spec.tables.root}/all")
    put(spec, event(1, user="x", score=1))
    spec = next_batch(spec)
    put(spec, event(1, user="b", score=2), route="b", first=1)
    before = set(DeltaTable(spec.table("b")).file_uris())
    spec = next_batch(spec)
    outcome, bad = put(spec, event(3, user="y", score=5_000_000_000), first=2)
    assert (outcome.state, outcome.append.evolved, bad) == ("written", True, [])
    assert outcome.widened == {"score": "int -> bigint"}
    found = rows_of(spec)
    assert [(r["a"] or r["b"])["score"] for r in found] == [1, 2, 5_000_000_000]
    assert [r["_route_key"] for r in found] == ["a", "b", "a"]
    assert len(before & set(DeltaTable(spec.table("b")).file_uris())) == 1


def test_a_column_beside_names_with_blanks_and_dots_gets_the_wider_type(spec: MessageSpec) -> None:
    old = pa.table({"unit price": ["1"], "a.b": pa.array([1], pa.int32()), "score": pa.array([1], pa.int32())})
    write_deltalake(spec.table("a"), old)
    outcome, bad = put(spec, event(3, user="y", score=5_000_000_000))
    assert (outcome.state, bad) == ("written", [])
    rows = DeltaTable(spec.table("a")).to_pyarrow_table().to_pylist()
    found = sorted((r["score"], r["unit price"], r["a.b"]) for r in rows)
    assert found == [(1, "1", 1), (5_000_000_000, None, None)]


def test_a_schema_of_which_no_row_enters_adds_no_column(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    spec = next_batch(spec, type_change="quarantine")
    text = 'syntax = "proto3"; message event { string score = 2; string more = 3; }'
    events = [(9, message(text, "event", score="a")), (2, b"\xff"), event(1, user="z")]
    found = decoded(*events, spec=spec, schemas={**SCHEMAS, 9: compile_text(text, id=9)})
    outcome, bad = deliver_route("a", found, spec)
    assert (outcome.state, outcome.rows_in, outcome.rows_written, outcome.append.evolved) == ("written", 3, 1, False)
    assert sorted(reason for _, reason in reasons(bad)) == ["CORRUPT_PAYLOAD", "TYPE_CONFLICT"]
    assert not {"more", "boss"} & set(DeltaTable(spec.table("a")).to_pyarrow_table().column_names)


def test_type_widening_where_it_is_asked_for_is_the_other_engine_s(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    outcome, bad = put(next_batch(spec, type_change="type_widening"), event(3, user="y", score=5_000_000_000))
    assert (outcome.state, outcome.append.why_spark, bad) == ("spark", "widening score", [])
    assert len(rows_of(spec)) == 1


def test_a_conflicting_type_gets_a_second_column(spec: MessageSpec) -> None:
    """Case E3: number reuse, string after int."""
    put(spec, event(1, user="x", score=1))
    outcome, _ = put(next_batch(spec), event(4, user="y", score="high"), event(1, user="z", score=3), first=1)
    assert (outcome.state, outcome.append.evolved) == ("written", True)
    assert [(r["score"], r["score__string"]) for r in rows_of(spec)] == [(1, None), (None, "high"), (3, None)]


def test_new_column_instead_of_widening(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    outcome, _ = put(next_batch(spec, type_change="new_column"), event(3, user="y", score=5_000_000_000), first=1)
    assert outcome.state == "written"
    assert [(r["score"], r["score__bigint"]) for r in rows_of(spec)] == [(1, None), (None, 5_000_000_000)]


def test_an_older_producer_goes_on_after_the_column_was_widened(spec: MessageSpec) -> None:
    """Case E4, "long -> int back": every int32 fits into a bigint."""
    put(spec, event(3, user="x", score=5_000_000_000))
    outcome, bad = put(next_batch(spec), event(1, user="y", score=7), first=1)
    assert (outcome.state, bad) == ("written", [])
    assert [r["score"] for r in rows_of(spec)] == [5_000_000_000, 7]


def test_a_type_change_under_quarantine_keeps_only_its_rows_aside(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    spec = next_batch(spec, type_change="quarantine")
    outcome, bad = put(spec, event(4, user="y", score="high"), event(1, user="z", score=3), first=1)
    assert (outcome.state, outcome.rows_written) == ("written", 1)
    assert reasons(bad) == [(1, "TYPE_CONFLICT")]


def test_a_frozen_column_takes_the_values_that_fit(spec: MessageSpec) -> None:
    put(spec, event(1, user="x", score=1))
    spec = next_batch(spec, type_change="freeze")
    outcome, bad = put(spec, event(3, user="y", score=5_000_000_000), event(3, user="z", score=3), first=1)
    assert (outcome.state, outcome.rows_written) == ("written", 1)
    assert reasons(bad) == [(1, "VALUE_OUT_OF_RANGE")]
    assert [r["score"] for r in rows_of(spec)] == [1, 3]


@pytest.mark.parametrize(("rule", "reason"), [("quarantine", "NEW_COLUMN"), ("freeze", "FROZEN_COLUMN")])
def test_a_column_that_may_not_be_added_keeps_aside_the_rows_that_need_it(
    spec: MessageSpec, rule: str, reason: str
) -> None:
    put(spec, event(1, user="x"))
    outcome, bad = put(next_batch(spec, new_column=rule), event(2, user="y", boss="b"), event(1, user="z"), first=1)
    assert (outcome.state, outcome.rows_written) == ("written", 1)
    assert reasons(bad) == [(1, reason)]
    assert "boss" not in DeltaTable(spec.table("a")).to_pyarrow_table().column_names


def test_a_table_that_has_all_the_columns_it_may_keeps_aside_the_rows_that_bring_more(spec: MessageSpec) -> None:
    put(spec, event(1, user="x"))
    columns = leaves((Snapshot(spec.table("a"), Store())).schema)
    for most, written, kept in ((columns, 1, [(1, "TOO_MANY_COLUMNS")]), (columns + 1, 2, [])):
        spec = next_batch(spec, max_columns=most)
        outcome, bad = put(spec, event(2, user="y", boss="b"), event(1, user="z"), first=1)
        assert (outcome.state, outcome.rows_written, reasons(bad)) == ("written", written, kept)


def test_a_schema_of_too_many_columns_makes_no_table(spec: MessageSpec) -> None:
    spec = next_batch(spec, max_columns=1)
    outcome, bad = put(spec, event(1, user="x"), event(1))
    assert (outcome.state, outcome.rows_in, outcome.rows_written) == ("empty", 2, 0)
    assert reasons(bad) == [(0, "TOO_MANY_COLUMNS"), (1, "TOO_MANY_COLUMNS")]
    assert not Path(spec.table("a")).exists()


@pytest.mark.parametrize("rule", ["widen", "type_widening", "new_column", "quarantine", "freeze"])
def test_a_first_batch_with_conflicting_types_replays_to_the_same_rows(spec: MessageSpec, rule: str) -> None:
    """A replay finds the table that the first attempt made, and must come to the same decision for every row."""
    tables = {"root": spec.tables.root, "evolution": {"type_change": rule}}
    spec = replace(spec, tables=Tables.model_validate(tables))
    events = [event(1, user="x", score=1), event(3, user="y", score=5_000_000_000), event(4, user="z", score="high")]
    first, bad = put(spec, *events)
    again, bad_again = put(spec, *events)
    assert (first.state, again.state) == ("written", "replayed"), again.error
    assert reasons(bad) == reasons(bad_again)
    assert first.rows_written == again.rows_written


# -- tables that cannot be written -------------------------------------------------------------------------


def test_a_table_of_another_owner_is_not_touched(spec: MessageSpec) -> None:
    """Cases D2, L5."""
    put(replace(spec, pipeline="other"), event(1, user="theirs"))
    outcome, bad = put(spec, event(1, user="ours"))
    assert (outcome.state, [f.of_store for f in outcome.faults]) == ("failed", [False])
    assert "TableCollision" in str(outcome.error)
    assert reasons(bad) == [(0, "TABLE_PARKED")]
    assert [r["user"] for r in rows_of(spec)] == ["theirs"]


def test_a_table_that_nobody_marked_is_appended_to(spec: MessageSpec) -> None:
    """A table that the user made beforehand."""
    write_deltalake(spec.table("a"), pa.table({"user": ["old"], "more": [1]}))
    outcome, _ = put(spec, event(1, user="x"))
    assert outcome.state == "written"
    rows = DeltaTable(spec.table("a")).to_pyarrow_table().to_pylist()
    assert sorted((r["user"], r["more"], r["score"]) for r in rows) == [("old", 1, None), ("x", None, 0)]


def test_a_file_where_the_folder_should_be_fails_this_table_only(spec: MessageSpec) -> None:
    Path(spec.table("a")).write_text("in the way")
    failed, bad = put(spec, event(1, user="x"))
    other, _ = put(spec, event(1, user="y"), route="b")
    assert (failed.state, other.state) == ("failed", "written")
    assert reasons(bad) == [(0, "TABLE_PARKED")]


def test_a_parked_table_is_not_tried(spec: MessageSpec) -> None:
    spec = spec.deciding({"a": Decision("parked", why="it was broken a minute ago")})
    outcome, bad = put(spec, event(1, user="x"), (1, b"\xff"))
    assert (outcome.state, outcome.error) == ("failed", "it was broken a minute ago")
    assert reasons(bad) == [(0, "TABLE_PARKED"), (1, "CORRUPT_PAYLOAD")]
    assert not Path(spec.table("a")).exists()


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"delta.enableRowTracking": "true"}, "table properties delta.enableRowTracking"),
        ({"delta.columnMapping.mode": "name"}, "table properties delta.columnMapping.mode"),
    ],
)
def test_table_properties_beyond_delta_rs_ask_for_the_other_engine(
    spec: MessageSpec, properties: dict[str, str], why: str
) -> None:
    spec = replace(spec, tables=Tables(root=spec.tables.root, properties=properties))
    outcome, _ = put(spec, event(1, user="x"))
    assert (outcome.state, outcome.append.why_spark) == ("spark", why)


def test_properties_that_delta_rs_knows_are_set_on_a_new_table(spec: MessageSpec) -> None:
    spec = replace(spec, tables=Tables(root=spec.tables.root, properties={"delta.enableChangeDataFeed": "true"}))
    put(spec, event(1, user="x"))
    assert DeltaTable(spec.table("a")).metadata().configuration["delta.enableChangeDataFeed"] == "true"


def test_a_partitioned_table_asks_for_the_other_engine(spec: MessageSpec) -> None:
    write_deltalake(spec.table("a"), pa.table({"user": ["x"], "day": [1]}), partition_by=["day"])
    outcome, _ = put(spec, event(1, user="x"))
    assert (outcome.state, outcome.append.why_spark) == ("spark", "a partitioned table")


def test_rows_say_when_they_were_written_where_that_is_asked_for_also_in_a_table_that_is_there(
    spec: MessageSpec,
) -> None:
    put(spec, event(1, user="x"))
    before = datetime.now(UTC)
    told = replace(spec, batch=1, tables=spec.tables.model_copy(update={"written_at": True}))
    outcome, _ = put(told, event(1, user="y"))
    rows = {
        r["user"]: r["_origin"].get("written_at") for r in DeltaTable(spec.table("a")).to_pyarrow_table().to_pylist()
    }
    assert outcome.state == "written" and rows["x"] is None
    assert before <= rows["y"] <= datetime.now(UTC)


def test_rows_of_a_wide_table_that_is_there_say_when_they_were_written_too(spec: MessageSpec) -> None:
    spec = replace(spec, wide=f"{spec.tables.root}/all")
    put(spec, event(1, user="x"))
    spec = next_batch(replace(spec, tables=spec.tables.model_copy(update={"written_at": True})))
    outcome, _ = put(spec, event(1, user="y"), first=1)
    spec = next_batch(spec)
    again, _ = put(spec, event(1, user="z"), first=2)
    times = [row["_origin"]["written_at"] for row in rows_of(spec)]
    assert [time is None for time in times] == [True, False, False]
    assert (outcome.append.evolved, again.append.evolved) == (True, False)


# -- a task ------------------------------------------------------------------------------------------------


def test_a_task_writes_its_routes_and_one_file_for_the_quarantine(spec: MessageSpec) -> None:
    chunks = []
    for number, route in enumerate("ba"):
        records = pa.RecordBatch.from_pylist(
            [{"payload": b"", "offset": 2 * number}, {"payload": b"\xff", "offset": 2 * number + 1}],
            schema=RECORD_SCHEMA,
        )
        blob = records.serialize().to_pybytes()
        chunks.append({"kind": "rows", "route": route, "groups": '[[1, "0", 2]]', "blob": blob})
    said = list(deliver(chunks, spec, SCHEMAS, task="7"))
    outcomes = [o for o in said if isinstance(o, Outcome)]
    assert [(o.route, o.state, o.rows_in, o.rows_written) for o in outcomes] == [
        ("a", "written", 2, 1),
        ("b", "written", 2, 1),
    ]
    (file,) = [f for f in said if isinstance(f, DataFile)]
    assert not (Path(spec.quarantine) / "_delta_log").exists(), "the batch commits it, not the task"
    for _ in range(2):
        commit_quarantine(spec.quarantine, "games", [file], spec.stream, spec.batch, spec.store)
    rows = DeltaTable(spec.quarantine).to_pyarrow_table().to_pylist()
    assert sorted(r["route"] for r in rows) == ["a", "b"]
    assert len({r["id"] for r in rows}) == 2


def chunk(route: str, records: pa.RecordBatch) -> dict[str, Any]:
    groups = json.dumps([[1, "0", records.num_rows]])
    return {"kind": "rows", "route": route, "groups": groups, "blob": records.serialize()}


def test_many_routes_side_by_side_each_get_their_own_rows_and_one_that_fails_stops_none(spec: MessageSpec) -> None:
    routes = [f"r{number:02}" for number in range(2 * SIDE_BY_SIDE + 3)]
    (Path(spec.tables.root) / "r07").write_text("a file where a table should be")
    tips: dict[str, Tip] = {}
    for batch in range(3):
        payloads = {
            route: [
                {"payload": message(V1, "event", user=f"{route} {batch}"), "offset": n} for n in range(1 + number % 3)
            ]
            for number, route in enumerate(routes)
        }
        chunks = [chunk(r, pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)) for r, rows in payloads.items()]
        said = list(deliver(chunks, replace(spec, batch=batch, tips=tips), SCHEMAS, task="0"))
        outcomes = [o for o in said if isinstance(o, Outcome)]
        assert [o.route for o in outcomes] == routes
        assert {o.route for o in outcomes if o.state != "written"} == {"r07"}
        assert all(o.rows_in == len(payloads[o.route]) for o in outcomes)
        tips = {o.route: o.append.tip for o in outcomes if o.append.tip is not None}
        (file,) = [f for f in said if isinstance(f, DataFile)]
        assert file.rows == len(payloads["r07"])
    for number, route in enumerate(routes):
        if route != "r07":
            users = [row["user"] for row in rows_of(spec, route)]
            assert sorted(users) == sorted(f"{route} {batch}" for batch in range(3) for _ in range(1 + number % 3))


def test_small_pieces_are_grouped_and_a_large_one_is_a_group_by_itself() -> None:
    def piece(rows: int, size: int = 1) -> pieces.Chunks:
        return [([], pa.RecordBatch.from_pydict({"payload": pa.array([b"x" * size] * rows)}))]

    small = [(f"s{number}", piece(1)) for number in range(SIDE_BY_SIDE + 1)]
    many, large = ("many", piece(pieces.GROUP_ROWS + 1)), ("large", piece(1, pieces.GROUP_BYTES + 1))
    found = list(pieces.grouped([*small, many, *small[:2], large, small[0]]))
    assert [[route for route, _ in group] for group in found] == [
        [route for route, _ in small[:SIDE_BY_SIDE]],
        [small[-1][0]],
        ["many"],
        ["s0", "s1"],
        ["large"],
        ["s0"],
    ]


def test_tables_of_many_cells_are_not_held_side_by_side(spec: MessageSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes of payload may stand for thousands of columns, the writer's or the table's."""
    fields = " ".join(f"optional int64 f{n} = {n};" for n in range(1, 1001))
    texts = (f'syntax = "proto3"; message event {{ {fields} }}', 'syntax = "proto3"; message event { int64 f1 = 1; }')
    schemas = {id: compile_text(text, id=id) for id, text in enumerate(texts)}
    said: list[tuple[str, str]] = []

    def noted(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(first: Any, *args: Any, **more: Any) -> Any:
            said.append((step, first if isinstance(first, str) else Path(args[0]).name))
            return call(first, *args, **more)

        return noting

    monkeypatch.setattr("distributary.engine.messages.deliver.decode", noted("decode", decode))
    monkeypatch.setattr("distributary.engine.messages.deliver.fit", noted("fit", fit))
    monkeypatch.setattr(Store, "put", noted("put", Store.put))
    rows = pa.RecordBatch.from_pylist([{"payload": b"\x08\x01"}] * 1500, schema=RECORD_SCHEMA)
    tips: dict[str, Tip] = {}
    for batch, steps in enumerate((["decode", "fit", "put"], ["fit", "put"])):
        said.clear()
        chunks = [{**chunk(route, rows), "groups": json.dumps([[batch, "0", 1500]])} for route in "ab"]
        outcomes = [*deliver(chunks, replace(spec, batch=batch, tips=tips), schemas, task="0")]
        tips = {o.route: o.append.tip for o in outcomes if isinstance(o, Outcome) and o.append.tip is not None}
        assert set(tips) == {"a", "b"}
        assert [s for s in said if s[0] in steps and len(s[1]) == 1] == [(step, r) for r in "ab" for step in steps]


def test_rows_that_are_claimed_while_a_batch_commits_its_quarantine_only_make_it_commit_again(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(batch: int, user: str) -> None:
        rows = pa.Table.from_pylist([{"route": user, "value": b"?"}], schema=REJECTED_SCHEMA)
        file = write_rejected(spec.quarantine, [rows], spec.stream, batch, "0", spec.store)
        commit_quarantine(spec.quarantine, "games", [file], spec.stream, batch, spec.store)

    keep(0, "a")
    commit = Table.commit
    raced: list[Any] = []

    def beaten(table: Table, *args: Any, **more: Any) -> int | None:
        if not raced:
            raced.append(DeltaTable(spec.quarantine).update({"state": "'claimed'"}))
        return commit(table, *args, **more)

    monkeypatch.setattr(Table, "commit", beaten)
    keep(1, "b")
    assert raced
    found = sorted((r["route"], r["state"]) for r in DeltaTable(spec.quarantine).to_pyarrow_table().to_pylist())
    assert found == [("a", "claimed"), ("b", "open")]


@pytest.mark.parametrize("batches", [[(1, 2, 3)], [(1,), (2,), (3,)], [(1,), (3,), (2,)], [(3,), (2,), (1,)]])
def test_values_of_fields_that_differ_by_case_never_swap_columns(
    spec: MessageSpec, batches: list[tuple[int, ...]]
) -> None:
    texts = {
        1: 'syntax = "proto3"; message event { int32 Score = 1; }',
        2: 'syntax = "proto3"; message event { int32 Score = 1; int32 score = 2; }',
        3: 'syntax = "proto3"; message event { int32 score = 2; }',
    }
    schemas = {i: compile_text(text, id=i) for i, text in texts.items()}
    payloads = {1: b"\x08\x0b", 2: b"\x08\x0b\x10\x16", 3: b"\x10\x16"}
    for batch in batches:
        events = [(version, payloads[version]) for version in batch]
        outcome, bad = deliver_route("a", decoded(*events, spec=spec, schemas=schemas), spec)
        assert (outcome.state, bad) == ("written", [])
        spec = next_batch(spec)
    columns = DeltaTable(spec.table("a")).to_pyarrow_table().drop_columns(["_origin"])
    found = {
        name: set(column.to_pylist()) - {None, 0}
        for name, column in zip(columns.column_names, columns.columns, strict=True)
    }
    assert sorted(map(sorted, found.values())) == [[11], [22]]


# -- wide schemas ------------------------------------------------------------------------------------------


def test_a_wide_route_is_decoded_and_written_in_pieces(spec: MessageSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes by cells: the pieces' files are one commit of the driver's, and hold each row once."""
    monkeypatch.setattr(pieces, "PIECE_CELLS", 100)
    fields = " ".join(f"optional int32 f{n} = {n};" for n in range(1, 31))
    schemas = {1: compile_text(f'syntax = "proto3"; message event {{ {fields} }}', id=1), 2: SCHEMAS[1]}
    rows = [{"payload": bytes([8, n]), "offset": n} for n in range(10)]
    narrow = [{"payload": message(V1, "event", user="u"), "offset": n} for n in range(10, 70)]
    groups = [[1, "0", 5], [1, "0", 5], [9, "0", 1], [2, "0", 60]]
    gone = {"payload": b"", "offset": 70}
    records = pa.RecordBatch.from_pylist([*rows, gone, *narrow], schema=RECORD_SCHEMA)
    found = list(cut_pieces([(groups, records)], schemas, raw_nested_indexes=False))
    cells = [cells_of([g for one, _ in piece for g in one], schemas, raw_nested_indexes=False) for piece in found]
    assert max(cells) <= 100 and len(found) < 6
    assert pa.concat_tables([pa.Table.from_batches([r]) for piece in found for _, r in piece]).num_rows == 71
    incoming = incoming_schemas("a", {(1, "0"), (2, "0")}, schemas, spec)
    decisions = {"a": Decision("files", schema=evolve(None, incoming, Policy()).schema)}
    refused = {9: (Reason.UNKNOWN_SCHEMA_ID, "gone")}
    chunk = {"kind": "rows", "route": "a", "groups": json.dumps(groups), "blob": records.serialize()}
    *outcomes, file = deliver([chunk], replace(spec, decisions=decisions, refused=refused), schemas, "0")
    assert isinstance(file, DataFile) and file.rows == 1
    parts = [one for one in outcomes if isinstance(one, Outcome)]
    assert len(parts) == len(found)
    assert sum(one.rows_written for one in parts) == 70
    assert sum(f.rows for one in parts for f in one.append.files) == 70


# -- schemas and payloads that nest deep ---------------------------------------------------------------------


def deep(kind: str, levels: int) -> tuple[CompiledSchema, bytes]:
    """Messages inside each other, and a payload that fills them all."""
    field = {"plain": "{} next = 1;", "repeated": "repeated {} next = 1;", "map": "map<string, {}> next = 1;"}[kind]
    text = 'syntax = "proto3"; message event { string user = 3; ' + field.format("L1") + " }\n"
    for n in range(1, levels):
        text += f"message L{n} {{ {field.format(f'L{n + 1}')} int32 score = 2; }}\n"
    text += f"message L{levels} {{ int32 score = 2; map<string, int32> all = 4; }}"
    payload = b"\x10\x07"
    for _ in range(levels):
        if kind == "map":
            payload = b"\x0a\x01k\x12" + varint(len(payload)) + payload
        payload = b"\x0a" + varint(len(payload)) + payload
    return compile_text(text, id=1), b"\x1a\x01u" + payload


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


@pytest.mark.parametrize("kind", ["plain", "repeated", "map"])
def test_a_schema_nested_deeper_than_tables_can_be_keeps_what_is_too_deep_as_bytes(
    spec: MessageSpec, kind: str
) -> None:
    """What is below delta-rs panics at, and Arrow refuses, some 40 levels; the rows of every depth are written."""
    for levels in (2, 18, 19, 20, 21, 28, 29, 30, 31, 38, 39, 40, 41, 45):
        if kind == "map" and levels > 41:
            continue  # parsers stop at 100 messages, and an entry is one
        schema, payload = deep(kind, levels)
        route = f"{kind}{levels}"
        for batch in (0, 1):
            now = replace(spec, batch=batch)
            outcome, bad = deliver_route(route, decoded((1, payload), spec=now, schemas={1: schema}), now)
            assert (outcome.state, outcome.rows_written, bad) == ("written", 1, []), (levels, outcome.error)
        table = DeltaTable(spec.table(route))
        table.create_checkpoint()
        [row, again] = DeltaTable(spec.table(route)).to_pyarrow_table().to_pylist()
        assert row["user"] == again["user"] == "u"
        inner: Any = row["next"]
        for _ in range(levels):
            inner = inner[0] if isinstance(inner, list) else inner
            inner = inner[1] if isinstance(inner, tuple) else inner
            if isinstance(inner, bytes):
                break
            inner = inner.get("next", inner)
        fits = {"plain": 39, "repeated": 28, "map": 19}[kind]
        assert isinstance(inner, bytes) == (levels > fits), levels


def test_a_packed_message_of_any_depth_is_kept_where_it_cannot_be_shown_as_json(spec: MessageSpec) -> None:
    """Legal, 1,000 deep: Python's own recursion ends before it."""
    text = (
        'syntax = "proto3"; import "google/protobuf/any.proto";\n'
        "message event { string user = 1; google.protobuf.Any any = 2; }"
    )
    schema = compile_text(text, id=1)
    packed = b""
    for _ in range(1_000):
        url = b"type.googleapis.com/google.protobuf.Any"
        packed = b"\x0a" + varint(len(url)) + url + b"\x12" + varint(len(packed)) + packed
    payload = b"\x0a\x01u\x12" + varint(len(packed)) + packed
    events = [(1, b"\x0a\x01x"), (1, payload)]
    outcome, bad = deliver_route("a", decoded(*events, spec=spec, schemas={1: schema}), spec)
    assert (outcome.rows_written, bad) == (2, [])
    found = {row["user"]: row["any"] for row in rows_of(spec)}
    assert found["x"] is None
    assert found["u"]["json"] is None
    assert found["u"]["type_url"] == "type.googleapis.com/google.protobuf.Any"
