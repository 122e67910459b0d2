"""`verify` of messages compares rows with their records, decoded anew: each planted fault is found, no other is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge import payloads
from distributary.audit.judge.messages import differs, message_class
from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.judge.raw_records import Place
from distributary.audit.verify import Verification, verify
from distributary.engine.messages.orders import ORIGIN, ORIGIN_TYPE
from distributary.errors import SourceDown
from distributary.names import table_name
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry import open_registry
from distributary.schemas.registry.compile import compile_schema, compile_text
from distributary.state.ledger import Entry
from distributary.tables.snapshot import Mark, Owner
from distributary.tables.wide import KEY, packed
from tests.lake import Lake

ENVELOPE = 'syntax = "proto3"; message E { string game_name = 1; int32 schema_id = 2; bytes payload = 3; }'
SCORE = """syntax = "proto3"; package games;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
message Score {
  enum Kind { NONE = 0; WON = 1; }
  message Place { string city = 1; Place near = 2; }
  string user = 1; int64 score = 2; optional int32 level = 3; Kind kind = 4; repeated string tags = 5;
  map<string, int32> counts = 6; Place place = 7; google.protobuf.Timestamp at = 8; google.protobuf.Duration took = 9;
  google.protobuf.StringValue note = 10; google.protobuf.Struct more = 11; google.protobuf.Any any = 12;
  bytes raw = 13; uint64 big = 14; double ratio = 15; oneof either { string left = 16; int32 right = 17; }
}"""
ROUTES = ("ann_game", "bob_game")
Rows = list[dict[str, Any]]


class Records:
    """The topic, kept here. `gone`: offsets that retention has taken."""

    whole = True

    def __init__(self, values: Mapping[int, bytes]) -> None:
        self.values = dict(values)

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, tuple[int | None, bytes]]:
        return {place: (None, self.values[place.offset]) for place in places if place.offset in self.values}

    def close(self) -> None:
        return None


class Down(Records):
    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, tuple[int | None, bytes]]:
        raise SourceDown(source="Kafka", detail="no broker answers")


def fill(score: Any, n: int) -> None:
    score.user, score.score, score.kind, score.big, score.ratio = f"user {n}", n * 1000, 1 + n % 3, 2**64 - 1 - n, n / 4
    score.tags.extend(["a", f"b{n}"][: n % 3])
    score.counts["x"], score.raw, score.note.value = n, bytes([n, 255]), f"note {n}"
    score.at.seconds, score.at.nanos, score.took.seconds = 1_767_225_600 + n, 123_456_789, n
    score.place.city, score.place.near.city, score.more["k"] = f"city {n}", "next", n
    score.any.type_url, score.any.value = "type.googleapis.com/x.Y", b"\1"
    if n % 2:
        score.level, score.left = n, "left"
    else:
        score.right = n


@pytest.fixture
def made(lake: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Lake, Records]:
    """Two tables of 30 rows, as the product decodes and writes them."""
    made = Lake(lake)
    assert made.config.registry is not None
    registry = open_registry(made.config.registry)
    outer = registry.register("events-value", ENVELOPE)
    inner = registry.register("score", SCORE)
    compiled = compile_schema(inner.schema, registry)
    envelope, score = message_class(compile_schema(outer.schema, registry), [0]), message_class(compiled, [0])
    values: dict[int, bytes] = {}
    made.begin()
    entries = [Entry(made.stream, 0, None)]
    for route in ROUTES:
        bodies = []
        first = len(values)
        for n in range(first, first + 30):
            message = score()
            fill(message, n)
            bodies.append(message.SerializeToString())
            framed = frame(inner.schema.id, bodies[-1])
            opened = envelope(game_name=route, schema_id=inner.schema.id, payload=framed)
            values[n] = frame(outer.schema.id, opened.SerializeToString())
        split = decoder_for(compiled).decode(pa.array(bodies, pa.binary()))
        assert not split.rejected
        origins = [
            {"topic": "events", "partition": 0, "offset": n, "schema_id": inner.schema.id, "batch": 0}
            for n in range(first, first + 30)
        ]
        rows = pa.Table.from_batches([split.rows]) if isinstance(split.rows, pa.RecordBatch) else split.rows
        rows = rows.append_column(pa.field(ORIGIN, ORIGIN_TYPE), pa.array(origins, ORIGIN_TYPE))
        made.append(route, rows, Mark(made.stream, 0))
        count = {"rows_in": 30, "rows_written": 30, "schema_ids": {inner.schema.id: 30}}
        entries.append(Entry(made.stream, 0, route, table=made.table(route), state="written", **count))  # type: ignore[arg-type]
    made.ledger.record(made.stream, 0, entries, {})
    records = Records(values)
    monkeypatch.setattr(payloads, "KafkaRecords", lambda _: records)
    return made, records


def judged(made: Lake, *, deep: bool = True) -> Verification:
    return judge_payloads(made.config, verify(made.config), deep=deep)


def test_rows_that_are_right_are_found_right_in_a_sample_and_in_full(made: tuple[Lake, Records]) -> None:
    lake, _ = made
    for deep, compared in ((True, 30), (False, payloads.SAMPLE)):
        found = judged(lake, deep=deep)
        assert (found.problems, found.notes) == ((), ())
        assert [t.rows_compared for t in found.tables] == [compared, compared]


def rewrite(change: Callable[[Rows], Rows]) -> Callable[[str], None]:
    def plant(uri: str) -> None:
        table = DeltaTable(uri)
        rows = table.to_pyarrow_table()
        write_deltalake(table, pa.Table.from_pylist(change(rows.to_pylist()), rows.schema), mode="overwrite")

    return plant


def put(**values: Any) -> Callable[[str], None]:
    return rewrite(lambda rows: [{**rows[0], **values}, *rows[1:]])


def lost_file(uri: str) -> None:
    next(Path(uri).glob("*.parquet")).unlink()


FAULTS: dict[str, Callable[[str], None]] = {
    "a null in place of a value": put(score=None),
    "a value in place of a null": rewrite(lambda rows: [*rows[:1], {**rows[1], "right": 7}, *rows[2:]]),
    "a changed text": put(user="somebody"),
    "a changed number": put(big=1),
    "a changed time": rewrite(lambda rows: [{**r, "at": r["at"].replace(microsecond=1)} for r in rows]),
    "a changed enum": put(kind="NONE"),
    "a lost item of a list": rewrite(lambda rows: [{**r, "tags": r["tags"][:1]} for r in rows]),
    "a changed entry of a map": put(counts=[("x", 99)]),
    "a changed field of a struct": rewrite(lambda rows: [{**r, "place": {**r["place"], "city": "x"}} for r in rows]),
    "swapped columns": rewrite(lambda rows: [{**r, "user": r["note"], "note": r["user"]} for r in rows]),
    "two rows under each other's origin": rewrite(
        lambda rows: [{**rows[0], ORIGIN: rows[1][ORIGIN]}, {**rows[1], ORIGIN: rows[0][ORIGIN]}, *rows[2:]]
    ),
    "a row of another route": rewrite(lambda rows: [{**rows[0], ORIGIN: {**rows[0][ORIGIN], "offset": 45}}, *rows[1:]]),
    "a doubled append": rewrite(lambda rows: [*rows, rows[0]]),
    "a dropped row": rewrite(lambda rows: rows[1:]),
    "a lost data file": lost_file,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_table_is_found(made: tuple[Lake, Records], fault: str) -> None:
    lake, _ = made
    FAULTS[fault](lake.table("ann_game"))
    found = judged(lake)
    assert not found.ok
    assert {t.route for t in found.tables if t.problems} == {"ann_game"}


@pytest.mark.parametrize(
    ("column", "seconds", "nanos", "right"),
    [
        ("at", 253_402_300_800, 0, True),
        ("at", 253_402_300_799, 999_999_999, False),
        ("at", 1, -1, True),
        ("took", 1, -1, True),
        ("took", -1, -1, False),
        ("took", 0, 10**9, True),
    ],
)
def test_a_null_is_right_only_of_a_time_that_no_reader_can_hold(
    column: str, seconds: int, nanos: int, right: bool
) -> None:
    message = message_class(compile_text(SCORE), (0,))()
    getattr(message, column).seconds, getattr(message, column).nanos = seconds, nanos
    row = {"user": "", "score": 0, "kind": "NONE", "raw": b"", "big": 0, "ratio": 0.0, column: None}
    assert differs(message, row) == (None if right else column)


def test_records_that_retention_took_are_said_and_no_problem(made: tuple[Lake, Records]) -> None:
    lake, records = made
    for offset in range(5):
        del records.values[offset]
    found = judged(lake)
    assert found.ok and len(found.notes) == 1
    assert [t.rows_compared for t in found.tables] == [25, 30]


def test_a_broker_that_is_down_is_said_and_the_counts_stand(
    made: tuple[Lake, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, _ = made
    monkeypatch.setattr(payloads, "KafkaRecords", lambda _: Down({}))
    found = judged(lake)
    assert found.ok and len(found.notes) == 1
    assert replace(found, notes=()) == verify(lake.config)


# -- one table for all routes ----------------------------------------------------------------------------------


def in_one_table(made: Lake, root: Path) -> Lake:
    """The rows of `made` in the table of `layout: wide`."""
    wide = Lake(root, layout="wide", registry={"path": str(made.config.tables.root / Path("r"))})
    uri, name = str(root / "wide"), wide.config.pipeline
    parts, entries = [], [Entry(wide.stream, 0, None)]
    for route in ROUTES:
        rows = packed(route, DeltaTable(made.table(route)).to_pyarrow_table(), ORIGIN)
        parts.append(rows.append_column(KEY, pa.array([table_name(route)] * rows.num_rows)))
        count = {"rows_in": 30, "rows_written": 30, "schema_ids": rows_by_schema(rows)}
        entries.append(Entry(wide.stream, 0, route, table=uri, state="written", **count))  # type: ignore[arg-type]
    together = pa.concat_tables(parts, promote_options="default")
    write_deltalake(uri, together, partition_by=[KEY], description=Owner(name, "").text())
    wide.begin()
    wide.ledger.record(wide.stream, 0, entries, {})
    return wide


def rows_by_schema(rows: pa.Table) -> dict[int, int]:
    ids = [origin["schema_id"] for origin in rows.column(ORIGIN).to_pylist()]
    return {schema_id: ids.count(schema_id) for schema_id in set(ids)}


def in_struct(**values: Any) -> Callable[[str], None]:
    """Other values in the first row of a route's struct."""

    def change(rows: Rows) -> Rows:
        at = next(n for n, row in enumerate(rows) if row["_route"] == "ann_game")
        rows[at] = {**rows[at], "ann_game": {**rows[at]["ann_game"], **values}}
        return rows

    return rewrite_wide(change)


def rewrite_wide(change: Callable[[Rows], Rows]) -> Callable[[str], None]:
    def plant(uri: str) -> None:
        rows = DeltaTable(uri).to_pyarrow_table()
        changed = pa.Table.from_pylist(change(rows.to_pylist()), rows.schema)
        write_deltalake(uri, changed, mode="overwrite", partition_by=[KEY])

    return plant


def both_structs(rows: Rows) -> Rows:
    other = next(row["bob_game"] for row in rows if row["_route"] == "bob_game")
    return [{**row, "bob_game": other} if row["_route"] == "ann_game" else row for row in rows]


WIDE_FAULTS: dict[str, Callable[[str], None]] = {
    "a changed value": in_struct(user="somebody"),
    "a null in place of a value": in_struct(score=None),
    "no struct": rewrite_wide(lambda rows: [{**r, "ann_game": None} if r["_route"] == "ann_game" else r for r in rows]),
    "another route's struct beside its own": rewrite_wide(both_structs),
    "another route's name": rewrite_wide(
        lambda rows: [{**r, "_route": "bob_game"} if r["_route"] == "ann_game" else r for r in rows]
    ),
}


def test_the_table_of_all_routes_is_compared_too_and_each_fault_in_it_is_found(
    made: tuple[Lake, Records], tmp_path: Path
) -> None:
    wide = in_one_table(made[0], tmp_path / "right")
    for deep, compared in ((True, 30), (False, payloads.SAMPLE)):
        found = judged(wide, deep=deep)
        assert (found.problems, found.notes) == ((), ())
        assert [t.rows_compared for t in found.tables] == [compared, compared]
    for name, plant in WIDE_FAULTS.items():
        wrong = in_one_table(made[0], tmp_path / name)
        plant(str(tmp_path / name / "wide"))
        assert {t.route for t in judged(wrong).tables if t.problems} == {"ann_game"}, name
