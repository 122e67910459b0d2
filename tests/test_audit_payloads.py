"""`verify` of messages compares rows with their records, decoded anew: each planted fault is found, no other is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge import delta_values, payloads
from distributary.audit.judge.opened_records import Record, RecordOpener
from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.judge.protobuf_rows import differs, message_class
from distributary.audit.judge.raw_records import Place
from distributary.audit.verify import Verification, verify
from distributary.engine.messages.task_spec import ORIGIN, ORIGIN_TYPE
from distributary.errors import SourceDown
from distributary.names import table_name
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry import open_registry
from distributary.schemas.registry.compile import compile_schema, compile_text
from distributary.state.ledger import Entry
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, write_rejected
from distributary.tables.snapshot import Owner, Txn
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

    def __init__(self, values: Mapping[int, bytes]) -> None:
        self.values = dict(values)

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        return {place: Record(self.values[place.offset]) for place in places if place.offset in self.values}

    def close(self) -> None:
        return None


class Down(Records):
    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
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
        made.append(route, rows, Txn(made.stream, 0))
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
    ("setting", "header"),
    [("raw_nested_indexes", b"\4\0\2"), ("legacy_varints", b"\2\0\0"), ("none of them", b"\4\0\0")],
)
def test_headers_of_payloads_are_read_as_their_writers_wrote_them_and_those_of_envelopes_as_ever(
    lake: Path, setting: str, header: bytes
) -> None:
    made = Lake(lake, payload={"format": "protobuf", setting: True} if "_" in setting else {"format": "protobuf"})
    assert made.config.registry is not None
    registry = open_registry(made.config.registry)
    outer = registry.register("o-value", f'syntax = "proto3"; message First {{}} {ENVELOPE.split(";", 1)[1]}').schema
    nested = "message Outer { map<string, int32> counts = 1; message Inner { int32 x = 1; } Inner inner = 2; }"
    inner = registry.register("i-value", f'syntax = "proto3"; {nested}').schema
    opener = RecordOpener(made.config)
    payload = b"\0" + inner.id.to_bytes(4, "big") + header + b"\x08\x07"
    second = message_class(compile_schema(outer, registry), [1])(game_name="a", payload=payload)
    value = b"\0" + outer.id.to_bytes(4, "big") + b"\2\2" + second.SerializeToString()
    route, _, found = opener.envelope(Record(value))
    writer, body = opener.payload(None, found)
    assert (route, writer.schema_id, opener.message(writer, body).x) == ("a", inner.id, 7)


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


# -- rows of a Delta source, which name no record ----------------------------------------------------------------


def from_delta(made: tuple[Lake, Records], root: Path, **keys: Any) -> Lake:
    """The rows of `made`, as a pipeline over a Delta table writes them; one record more than its rows is set aside."""
    before, records = made
    source = str(root / "source")
    values = [*records.values.values(), b"\0broken", None, next(iter(records.values.values()))]
    write_deltalake(source, pa.table({"value": pa.array(values, pa.binary())}))
    registry = {"path": str(before.config.tables.root / Path("r"))}
    lake = Lake(root, source={"type": "delta", "path": source}, registry=registry, **keys)
    lake.begin()
    entries = [Entry(lake.stream, 0, None, rows_in=1, rows_quarantined=1)]
    for route in ROUTES:
        rows = DeltaTable(before.table(route)).to_pyarrow_table()
        origins = [{"schema_id": o["schema_id"], "batch": 0} for o in rows.column(ORIGIN).to_pylist()]
        rows = rows.set_column(
            rows.column_names.index(ORIGIN), pa.field(ORIGIN, ORIGIN_TYPE), pa.array(origins, ORIGIN_TYPE)
        )
        lake.append(route, rows, Txn(lake.stream, 0))
        aside = int(route == "ann_game")
        count = {"rows_in": 30 + aside, "rows_written": 30, "rows_quarantined": aside}
        ids = rows_by_schema(rows)
        entries.append(Entry(lake.stream, 0, route, table=lake.table(route), state="written", schema_ids=ids, **count))  # type: ignore[arg-type]
    envelopes = [RecordOpener(lake.config).envelope(Record(value)) for value in list(made[1].values.values())[:1]]
    rejected = [
        {"route": None, "reason": "CORRUPT_ENVELOPE", "level": "envelope", "value": b"\0broken"},
        {"route": "ann_game", "reason": "FROZEN_COLUMN", "level": "payload", "value": envelopes[0][2]},
    ]
    file = write_rejected(
        lake.quarantine, [pa.Table.from_pylist(rejected, REJECTED_SCHEMA)], lake.stream, 0, "x", lake.store
    )
    lake.ledger.record(lake.stream, 0, entries, {})
    commit_quarantine(lake.quarantine, lake.config.pipeline, [file], lake.stream, 0, lake.store)
    identity = DeltaTable(source).metadata().id
    lake.commit_offsets(0, {"reservoirId": identity, "reservoirVersion": 1, "index": -1, "isStartingVersion": False})
    return lake


@pytest.mark.parametrize("held", [100_000, 7])
def test_rows_of_a_delta_source_are_compared_with_the_records_by_all_their_values(
    made: tuple[Lake, Records], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(delta_values, "HELD", held)
    lake = from_delta(made, tmp_path / "delta")
    assert verify(lake.config).problems == ()
    for deep, compared in ((True, 30), (False, delta_values.SAMPLE)):
        found = judged(lake, deep=deep)
        assert (found.problems, found.notes) == ((), ())
        assert [t.rows_compared for t in found.tables] == [compared, compared]


BY_PLACE_ONLY = {"two rows under each other's origin", "a row of another route"}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in BY_PLACE_ONLY])
def test_a_fault_in_a_table_of_a_delta_source_is_found(made: tuple[Lake, Records], tmp_path: Path, fault: str) -> None:
    lake = from_delta(made, tmp_path / "delta")
    FAULTS[fault](lake.table("ann_game"))
    found = judged(lake)
    assert {t.route for t in found.tables if t.problems} == {"ann_game"}


def test_records_that_no_stream_is_certain_to_have_read_are_not_missed(
    made: tuple[Lake, Records], tmp_path: Path
) -> None:
    lake = from_delta(made, tmp_path / "delta")
    source = str(tmp_path / "delta" / "source")
    changed = [value.replace(b"user ", b"loser") for value in made[1].values.values()]
    write_deltalake(source, pa.table({"value": pa.array(changed, pa.binary())}), mode="append")
    assert judged(lake).problems == ()


@pytest.mark.parametrize(
    ("offset", "compared"),
    [
        ({"reservoirVersion": 1, "index": -1, "isStartingVersion": False}, 30),
        ({"reservoirVersion": 0, "index": 0, "isStartingVersion": False}, 30),
        ({"reservoirVersion": 0, "index": 0, "isStartingVersion": True}, 30),
        ({"reservoirVersion": 0, "index": -1, "isStartingVersion": True}, 0),
        ({"reservoirVersion": 0, "index": -1, "isStartingVersion": False}, 0),
    ],
)
def test_what_was_read_of_the_source_is_known_by_the_offset(
    made: tuple[Lake, Records], tmp_path: Path, offset: dict[str, Any], compared: int
) -> None:
    lake = from_delta(made, tmp_path / "delta")
    lake.ledger.record(lake.stream, 1, [Entry(lake.stream, 1, None)], {})
    lake.commit_offsets(1, {"reservoirId": "", **offset})
    (Path(lake.config.checkpoint_path) / "commits" / "1").unlink()  # Spark may end before it
    found = judged(lake)
    assert found.problems == ()
    assert [t.rows_compared for t in found.tables] == [compared, compared]


def test_a_source_that_was_not_read_from_its_beginning_is_said_and_no_problem(
    made: tuple[Lake, Records], tmp_path: Path
) -> None:
    lake = from_delta(made, tmp_path / "delta")
    config = lake.config
    lake.config = config.model_copy(update={"source": config.source.model_copy(update={"starting_version": 0})})
    found = judged(lake)
    assert found.ok and len(found.notes) == 1
    assert [t.rows_compared for t in found.tables] == [0, 0]
