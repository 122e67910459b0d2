"""Files of change events: as real ones, byte for byte where there are some; and what faults may and may not do."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributary.changes.model import Kind
from distributary_simulate.change_files.avro_encoding import compact, container, encoder
from distributary_simulate.change_files.bulk import BulkPlan, write_bulk
from distributary_simulate.change_files.events import Event, Layout, event_schema
from distributary_simulate.change_files.faults import Faults
from distributary_simulate.change_files.stream import Pace, write_history, write_history_live
from distributary_simulate.change_files.writer import STREAM, ChangeFiles, FilesPlan
from distributary_simulate.changes.history import START_MS, History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.changes.model import Change, Column, Position, Table
from distributary_simulate.changes.unified import (
    BOOLEAN,
    BYTES,
    DATE,
    DATETIME,
    DOUBLE,
    FLOAT,
    GEOMETRY,
    INTEGER,
    INTERVAL,
    JSON,
    LONG,
    NUMBER,
    STRING,
    TIME,
    TIME_INTERVAL,
    TIME_TZ,
    TIMESTAMP,
    TIMESTAMP_TZ,
    UNSUPPORTED,
    Unified,
    array,
    decimal,
    varchar,
)
from distributary_simulate.errors import SimulationInvalid
from tests.change_order import assert_equal, fold_files, plain, raw_events

SAMPLES = Path(__file__).parents[2] / "shared" / "samples" / "datastream"
REAL = sorted(path.stem for path in (SAMPLES / "avro").glob("*.avro") if "2020" not in path.stem)
NAME = re.compile(r"[0-9a-f]{40}_[a-z-]+_\d+_\d_\d+\.(avro|jsonl|jsonl\.gz|parquet)")


def written(root: Path, history: History | None = None, events: int = 400, **plan: Any) -> ChangeFiles:
    files = ChangeFiles(FilesPlan(root, **{"seed": 0, **plan}))
    write_history(history or History(HistoryPlan(schema_changes=20)), files, events)
    return files


def every_schema(plan: HistoryPlan, events: int) -> dict[str, list[Table]]:
    history = History(plan)
    tables: dict[str, dict[Table, None]] = {}
    for change in [*history.changes(events), *history.finish()]:
        tables.setdefault(change.table.route, {})[change.table] = None
    return {route: list(found) for route, found in tables.items()}


# -- like real files --------------------------------------------------------------------------------------------------


def unified_of(kind: Any) -> Unified:
    """The unified type of an avro type of a payload, without its union."""
    simple = {"boolean": BOOLEAN, "int": INTEGER, "long": LONG, "float": FLOAT, "double": DOUBLE, "string": STRING}
    if isinstance(kind, str):
        return {**simple, "bytes": BYTES}[kind]
    if kind["type"] == "record":
        if kind["name"] == "timestampTz":
            return TIMESTAMP_TZ
        return array(unified_of(kind["fields"][1]["type"][1]))
    logical = kind["logicalType"]
    if logical == "decimal":
        return decimal(kind["precision"], kind["scale"])
    if logical == "varchar":
        return varchar(kind["length"])
    micros = {"timestamp-micros": TIMESTAMP, "time-interval-micros": TIME_INTERVAL, "date": DATE}
    return {**micros, "number": NUMBER, "json": JSON}[logical]


def stored(body: bytes) -> bytes:
    """The records of an avro file as its blocks hold them."""
    blocks: Any = fastavro.block_reader(BytesIO(body))
    return b"".join(block.bytes_.getvalue() for block in blocks)


@pytest.fixture(params=REAL if REAL else [None])
def real(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    """Name and bytes of a real file."""
    if request.param is None:
        pytest.skip("the public sample files are not beside the project")
    return request.param, (SAMPLES / "avro" / f"{request.param}.avro").read_bytes()


def real_layout(name: str, schema: dict[str, Any]) -> Layout:
    fields = [field["name"] for field in schema["fields"]]
    if fields[-1] == "sort_keys":
        return Layout.Y2021_03
    has_default = any("default" in field for field in schema["fields"][-1]["type"]["fields"])
    if "sort_keys" not in fields or (name.startswith("mysql") and not has_default):
        return Layout.Y2021_06
    return Layout.Y2025 if name.startswith("mysql-tz") else Layout.Y2024


def real_table(name: str, schema: dict[str, Any], event: dict[str, Any]) -> Table:
    metadata, payload = event["source_metadata"], schema["fields"]
    record = next(field["type"] for field in payload if field["name"] == "payload")
    columns = tuple(Column(field["name"], unified_of(field["type"][1])) for field in record["fields"])
    kind = Kind(name.split("-")[0])
    keys = tuple(metadata.get("primary_keys") or ())
    place = (metadata.get("database", ""), metadata.get("schema", ""), metadata["table"])
    return Table(kind, *place, columns, keys)


def test_a_real_file_has_the_same_schema(real: tuple[str, bytes]) -> None:
    name, body = real
    schema = json.loads(fastavro.reader(BytesIO(body)).metadata["avro.schema"])
    table = real_table(name, schema, raw_events(body)[0])
    layout = real_layout(name, schema)
    ours = event_schema(table, layout, STREAM).schema
    if name == "mysql-2021-numbers":  # 2021-08: sort_keys are there already, defaults are not yet
        ours["fields"].insert(7, schema["fields"][7])
    assert ours == schema
    assert compact_order(ours) == compact_order(schema)


def compact_order(schema: dict[str, Any]) -> str:
    """The order of the fields; that of the keys within a field varies among real files."""
    return json.dumps(schema, sort_keys=True)


def test_the_events_of_a_real_file_are_written_to_the_same_bytes(real: tuple[str, bytes]) -> None:
    name, body = real
    schema = json.loads(fastavro.reader(BytesIO(body)).metadata["avro.schema"])
    events = raw_events(body)
    table, layout = real_table(name, schema, events[0]), real_layout(name, schema)
    if name == "mysql-2021-numbers" or layout is Layout.Y2021_03:
        layout = Layout.Y2024 if table.kind is Kind.MYSQL else layout
    ours = bytearray()
    for event in events:
        one = replace(event_schema(table, layout, event["stream_name"]), key=event["schema_key"])
        if layout is Layout.Y2021_03:  # its second sort key is nothing that a simulator could know
            assert one.sort_keys(real_change(table, event))[::2] == tuple(event["sort_keys"][::2])
            event["sort_keys"] = list(one.sort_keys(real_change(table, event)))
        ours += one.avro(Event(real_change(table, event), event["uuid"], event["read_timestamp"]))
    theirs = stored(body)
    if layout is Layout.Y2021_03:
        assert len(ours) - len(theirs) in range(-9 * len(events), 9 * len(events))
        assert ours[:300] == theirs[:300]
    else:
        assert bytes(ours) == theirs


def real_change(table: Table, event: dict[str, Any]) -> Change:
    metadata = dict(event["source_metadata"])
    kinds = {column.name: column.type for column in table.columns}
    row = {name: plain(kinds[name], found) for name, found in event["payload"].items()}
    position = Position(metadata, tuple(event.get("sort_keys", ())) or (0,), event["source_timestamp"])
    return Change(table, metadata["change_type"], metadata["is_deleted"], row, position, event["read_method"], 0)


def test_the_header_holds_the_schema_alone_and_blocks_are_not_compressed(tmp_path: Path) -> None:
    files = written(tmp_path / "bucket")
    for file in files.written[:5]:
        reader = fastavro.reader(BytesIO((tmp_path / "bucket" / file.path).read_bytes()))
        assert set(reader.metadata) == {"avro.schema"}
        assert reader.codec == "null"


# -- paths and names --------------------------------------------------------------------------------------------------


def test_a_file_lies_in_the_minute_of_its_events_and_is_named_after_schema_and_method(tmp_path: Path) -> None:
    for file in written(tmp_path / "bucket").written:
        *folder, name = file.path.split("/")
        events = raw_events((tmp_path / "bucket" / file.path).read_bytes())
        assert NAME.fullmatch(name)
        for event in events:
            minute = np.datetime_as_string(np.datetime64(event["source_timestamp"], "ms"), unit="m")
            assert folder == [event["object"], *re.split("[-T:]", minute)]
            assert name.startswith(f"{event['schema_key']}_{event['read_method']}_")


def test_one_file_has_one_schema_and_backfills_have_their_own(tmp_path: Path) -> None:
    names = {file.path.rsplit("/", 1)[1] for file in written(tmp_path / "bucket").written}
    assert len(names) == len(written(tmp_path / "again").written)
    assert {name.split("_")[1] for name in names} >= {"mysql-cdc-binlog", "mysql-backfill-fulldump", "backfill", "cdc"}


def test_the_same_seed_gives_the_same_tree(tmp_path: Path) -> None:
    faults = Faults.named("all")
    for name in ("one", "two"):
        written(tmp_path / name, History(HistoryPlan(seed=3)), format="jsonl.gz", faults=faults, schema_files=True)
    one, two = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()}
        for n in ("one", "two")
    )
    assert one == two and len(one) > 50


def test_runs_without_a_seed_share_no_name(tmp_path: Path) -> None:
    for _ in range(2):
        files = written(tmp_path / "bucket", events=50, seed=None)
    assert sum(1 for path in (tmp_path / "bucket").rglob("*.avro")) == 2 * len(files.written)


def some_changes(count: int, table: Table | None = None, step_ms: int = 1) -> Iterator[Change]:
    table = table or tables_of([Kind.MYSQL], 1)[0]
    for number in range(count):
        position = Position({"log_file": "b.1", "log_position": number}, (START_MS, "b.1", number), START_MS)
        yield Change(table, "INSERT", False, {"id": number}, position, "mysql-cdc-binlog", START_MS + number * step_ms)


def test_a_file_ends_at_its_size(tmp_path: Path) -> None:
    files = ChangeFiles(FilesPlan(tmp_path / "bucket", rotate_bytes=20_000))
    for change in some_changes(1_000):
        files.add(change)
    files.close()
    assert len(files.written) > 5
    # the first is a guess
    assert all(15_000 < file.bytes < 30_000 for file in files.written[1:-1])


def test_a_file_ends_at_its_age(tmp_path: Path) -> None:
    files = ChangeFiles(FilesPlan(tmp_path / "bucket", rotate_ms=100))
    for change in some_changes(10, step_ms=50):
        files.add(change)
    assert [file.events for file in files.written] == [2, 2, 2, 2]
    files.tick(START_MS + 1_000)
    assert [file.events for file in files.written] == [2, 2, 2, 2, 2]


def test_a_file_ends_with_its_schema(tmp_path: Path) -> None:
    table = tables_of([Kind.MYSQL], 1)[0]
    wider = table.with_columns((*table.columns, Column("more", STRING)))
    files = ChangeFiles(FilesPlan(tmp_path / "bucket"))
    for change in [*some_changes(3), *some_changes(3, wider), *some_changes(3)]:
        files.add(change)
    files.close()
    assert sorted(file.events for file in files.written) == [3, 6]
    assert len({file.path.split("/")[-1][:40] for file in files.written}) == 2


def test_a_reader_never_meets_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Path] = []
    whole = Path.write_bytes

    def looking(path: Path, body: bytes) -> int:
        met.append(path)
        return whole(path, body)

    monkeypatch.setattr(Path, "write_bytes", looking)
    written(tmp_path / "bucket", events=50, schema_files=True)
    assert met and not any((tmp_path / "bucket") in path.parents for path in met)
    assert [path.name for path in tmp_path.iterdir()] == ["bucket"]


def test_schema_files_stand_beside_their_data_under_the_same_name(tmp_path: Path) -> None:
    files = written(tmp_path / "bucket", format="jsonl.gz", schema_files=True)
    for file in files.written:
        beside = tmp_path / "bucket" / (file.path.removesuffix("jsonl.gz") + "schema")
        schema = json.loads(beside.read_text())
        line = json.loads(gzip.decompress((tmp_path / "bucket" / file.path).read_bytes()).splitlines()[0])
        assert [field["name"] for field in schema["fields"]] == list(line)
        assert [field["name"] for field in schema["fields"][-1]["type"]["fields"]] == list(line["payload"])


def test_placeholders_are_empty_folders(tmp_path: Path) -> None:
    written(tmp_path / "with", placeholders=True)
    written(tmp_path / "without")
    assert [path for path in (tmp_path / "with").rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert not [path for path in (tmp_path / "without").rglob("*") if path.is_dir() and not any(path.iterdir())]


# -- uuids ------------------------------------------------------------------------------------------------------------


def test_a_uuid_ends_in_a_binary_number_and_a_new_batch_begins_after_256(tmp_path: Path) -> None:
    files = ChangeFiles(FilesPlan(tmp_path / "bucket"))
    for change in some_changes(300):
        files.add(change)
    files.close()
    (file,) = files.written
    events = raw_events((tmp_path / "bucket" / file.path).read_bytes())
    numbers = [event["uuid"][-8:] for event in events]
    assert numbers[:3] == ["00000000", "00000001", "00000010"] and numbers[107] == "01101011"
    assert numbers[255:257] == ["11111111", "00000000"]
    assert len({event["uuid"] for event in events}) == 300
    assert len({(event["uuid"][:28], event["read_timestamp"]) for event in events}) == 2
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{4}[01]{8}", event["uuid"]) for event in events)


def test_a_later_batch_has_a_later_read_time(tmp_path: Path) -> None:
    files = ChangeFiles(FilesPlan(tmp_path / "bucket"))
    for change in some_changes(2_000, step_ms=0):
        files.add(change)
    files.close()
    events = raw_events((tmp_path / "bucket" / files.written[0].path).read_bytes())
    assert [event["read_timestamp"] for event in events] == sorted(event["read_timestamp"] for event in events)
    assert len({event["read_timestamp"] for event in events}) == 8


# -- values in all formats --------------------------------------------------------------------------------------------

EVERY_TYPE: dict[str, tuple[Unified, Any, str]] = {
    # column: type, plain value, JSON text
    "flag": (BOOLEAN, True, "true"),
    "small": (INTEGER, -(2**31), "-2147483648"),
    "big": (LONG, 2**63 - 1, "9223372036854775807"),
    "single": (FLOAT, 1.2000000476837158, "1.2"),
    "double": (DOUBLE, float("inf"), '"Infinity"'),
    "text": (STRING, 'é "q" \n', '"é \\"q\\" \\n"'),
    "binary": (BYTES, b"\x00\xff", '"AP8="'),
    "amount": (decimal(30, 9), Decimal("-12345678901234567890.100000000"), "-12345678901234567890.100000000"),
    "wide": (decimal(65, 30), Decimal("0.500000000000000000000000000000"), "0.500000000000000000000000000000"),
    "number": (NUMBER, "12345678901234567890.123456789", '"12345678901234567890.123456789"'),
    "short": (varchar(5), "abc", '"abc"'),
    "json": (JSON, '{"a": [1, null]}', '{"a": [1, null]}'),
    "day": (DATE, -1, '"1969-12-31"'),
    "moment": (DATETIME, (19_782, 3_723_000_004), '"2024-02-29T01:02:03.000004"'),
    "clock": (TIME, 3_723_500_000, '"01:02:03.500000"'),
    "span": (TIME_INTERVAL, -3_020_399_000_000, "-3020399000000"),
    "instant": (TIMESTAMP, -1, '"1969-12-31T23:59:59.999999Z"'),
    "never": (TIMESTAMP, 9_223_372_036_825_200_000, '"294247-01-10T04:00:25.200000Z"'),
    "zoned": (TIMESTAMP_TZ, (1_602_599_400_056_483, 3_600_000), '"2020-10-13T15:30:00.056483+01:00"'),
    "also_zoned": (TIMESTAMP_TZ, (0, -19_800_000), '"1969-12-31T18:30:00.000000-05:30"'),
    "zoned_clock": (TIME_TZ, (3_723_000_000, -3_600_000), '"01:02:03.000000-01:00"'),
    "months": (INTERVAL, (14, 67, 389_500_000), '"P14MT67H389.500000S"'),
    "shape": (GEOMETRY, (b"\x01", 4326, "POINT"), '{"value":"AQ==","srid":4326,"type":"POINT"}'),
    "list": (array(INTEGER), [1, None, 3], "[1,null,3]"),
    "nested": (array(STRING), [["a"], ["b", None]], '[["a"],["b",null]]'),
    "odd name": (STRING, None, "null"),
    "nothing": (UNSUPPORTED, None, "null"),
}


def one_of_every_type(kind: Kind = Kind.POSTGRESQL) -> Change:
    columns = tuple(Column(name, kind) for name, (kind, _, _) in EVERY_TYPE.items())
    table = Table(kind, "", "public", "every type", columns, ("odd name",))
    row = {name: found for name, (_, found, _) in EVERY_TYPE.items()}
    position = Position({"tx_id": 7, "lsn": "16/CB002DB0"}, (START_MS, "16/CB002DB0"), START_MS)
    return Change(table, "UPDATE", False, row, position, "postgresql-cdc", START_MS)


def body_of(root: Path, change: Change, **plan: Any) -> bytes:
    files = ChangeFiles(FilesPlan(root, **plan))
    files.add(change)
    files.close()
    return (root / files.written[0].path).read_bytes()


def test_every_type_comes_back_from_avro(tmp_path: Path) -> None:
    (event,) = raw_events(body_of(tmp_path / "bucket", one_of_every_type()))
    found = dict(zip(EVERY_TYPE, event["payload"].values(), strict=True))
    assert {name: plain(EVERY_TYPE[name][0], value) for name, value in found.items()} == one_of_every_type().row
    assert "odd_name" in event["payload"] and event["source_metadata"]["primary_keys"] == ["odd_name"]


def test_every_type_is_written_to_json_as_documented(tmp_path: Path) -> None:
    line = body_of(tmp_path / "bucket", one_of_every_type(), format="jsonl").decode()
    texts = ",".join(f"{json.dumps(name)}:{text}" for name, (_, _, text) in EVERY_TYPE.items())
    assert line.endswith(f'"payload":{{{texts}}}}}\n')
    assert json.loads(line)["source_metadata"]["primary_keys"] == ["odd name"]


def test_every_type_but_nested_lists_comes_back_from_parquet(tmp_path: Path) -> None:
    change = one_of_every_type()
    columns = tuple(column for column in change.table.columns if column.name != "nested")
    flat = replace(change, table=change.table.with_columns(columns))
    table = pq.read_table(BytesIO(body_of(tmp_path / "bucket", flat, format="parquet")))
    payload = table.column("payload").combine_chunks()
    for column in columns:
        name = column.name.replace(" ", "_")
        wanted = column.type.arrow_value(change.row[column.name])
        got = payload.field(name)
        plain_type = got.cast("int64") if column.type in (TIMESTAMP, TIME) else got
        plain_type = got.cast("int32") if column.type is DATE else plain_type
        if column.type.name in ("DATETIME", "TIMESTAMP_TZ", "TIME_TZ", "INTERVAL"):
            assert [
                int(part.cast("int64" if part.type.bit_width == 64 else "int32")[0].as_py()) for part in got.flatten()
            ] == [*wanted.values()]
        else:
            assert plain_type[0].as_py() == wanted, column.name
    assert table.column("sort_keys").to_pylist() == [
        [{"member0": None, "member1": START_MS}, {"member0": "16/CB002DB0", "member1": None}]
    ]


def test_the_formats_hold_the_same_events(tmp_path: Path) -> None:
    bodies: dict[str, list[tuple[str, str, Any]]] = {}
    for format_ in ("avro", "jsonl", "jsonl.gz", "parquet"):
        root = tmp_path / format_
        files = written(root, History(HistoryPlan(seed=9)), 300, format=format_)
        bodies[format_] = sorted(
            (event["uuid"], str(event["source_metadata"]["change_type"]), event["object"])
            for file in files.written
            for event in events_of((root / file.path).read_bytes(), format_)
        )
    assert bodies["avro"] == bodies["jsonl"] == bodies["jsonl.gz"] == bodies["parquet"]


def events_of(body: bytes, format_: str) -> list[dict[str, Any]]:
    if format_ == "avro":
        return raw_events(body)
    if format_ == "parquet":
        return list(pq.read_table(BytesIO(body), columns=["uuid", "object", "source_metadata"]).to_pylist())
    lines = (gzip.decompress(body) if format_ == "jsonl.gz" else body).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("layout", "read", "source"),
    [
        (Layout.Y2021_03, "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"),
        (Layout.Y2021_06, "2026-01-01 00:00:00.000", "2026-01-01T00:00:00.000"),
        (Layout.Y2025, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z"),
    ],
)
def test_times_of_events_are_spelt_as_their_age_spells_them(layout: Layout, read: str, source: str) -> None:
    change = next(some_changes(1))
    line = json.loads(event_schema(change.table, layout, STREAM).line(Event(change, "u", START_MS)))
    assert (line["read_timestamp"], line["source_timestamp"]) == (read, source)


@pytest.mark.parametrize(
    ("layout", "sort_keys", "place"),
    [
        (Layout.Y2021_06, None, (None, None)),
        (Layout.Y2024, [START_MS, "", 0], ("", 0)),
        (Layout.Y2025, [START_MS, 0, 0], ("", 0)),
    ],
)
def test_a_mysql_backfill_has_the_sort_keys_of_its_age(layout: Layout, sort_keys: Any, place: Any) -> None:
    history = History(HistoryPlan(tables_of([Kind.MYSQL], 1)))
    change = next(change for change in history.finish())
    schema = event_schema(change.table, layout, STREAM)
    (event,) = raw_events(container(schema.text, [schema.avro(Event(change, "u", 1))], bytes(16)))
    assert event.get("sort_keys") == sort_keys
    assert (event["source_metadata"]["log_file"], event["source_metadata"]["log_position"]) == place


def test_the_layout_of_gtid_streams_names_the_position_otherwise() -> None:
    change = next(some_changes(1))
    schema = event_schema(change.table, Layout.GTID, STREAM)
    (event,) = raw_events(container(schema.text, [schema.avro(Event(change, "u", 1))], bytes(16)))
    assert event["source_metadata"]["binlog_file"] == "b.1" and "log_file" not in event["source_metadata"]


def test_sqlserver_keys_stand_in_replication_index_or_in_primary_keys(tmp_path: Path) -> None:
    orders, lines = (event_schema(table, Layout.Y2025, STREAM) for table in tables_of([Kind.SQLSERVER]))
    names = [[field["name"] for field in schema.schema["fields"][-2]["type"]["fields"]] for schema in (orders, lines)]
    assert names[0][-1] == "replication_index" and names[1][-1] == "primary_keys"


@given(st.recursive(st.integers(-(2**63), 2**63 - 1), lambda inner: st.lists(inner, max_size=4), max_leaves=10))
def test_long_values_and_nested_arrays_survive_the_encoding(found: Any) -> None:
    kind = array(LONG)
    rows = found if isinstance(found, list) else [found]
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", kind.avro("a", set())]}]}
    out = bytearray()
    encoder(schema)(out, (kind.avro_value(rows),))
    back: Any = fastavro.schemaless_reader(BytesIO(bytes(out)), fastavro.parse_schema(json.loads(compact(schema))))
    assert plain(kind, back["a"]) == rows


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**20), max_value=10**20))
def test_decimals_survive_the_encoding(found: Decimal) -> None:
    schema = decimal(38, 9).avro("a", set())
    out = bytearray()
    encoder(schema)(out, found)
    assert fastavro.schemaless_reader(BytesIO(bytes(out)), fastavro.parse_schema(schema)) == found


def test_a_decimal_of_too_many_digits_behind_the_point_is_not_cut() -> None:
    with pytest.raises(ValueError, match="scale"):
        encoder(decimal(9, 2).avro("a", set()))(bytearray(), Decimal("1.234"))


# -- faults -----------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_with_all_faults_in_any_order_give_the_truth(tmp_path: Path, seed: int) -> None:
    plan = HistoryPlan(seed=seed, schema_changes=10)
    history = History(plan)
    root = tmp_path / str(seed)
    files = written(root, history, 400, seed=seed, faults=Faults.named("all"), rotate_ms=5_000)
    good = [root / file.path for file in files.written if file.events]
    assert_equal(fold_files(reversed(good), every_schema(plan, 400)), history.truth())


def names_of(files: ChangeFiles, root: Path) -> set[tuple[str, str]]:
    return {
        (event["uuid"], str(event["source_metadata"]))
        for file in files.written
        if not file.extra
        for event in raw_events((root / file.path).read_bytes())
    }


def test_no_fault_loses_an_event(tmp_path: Path) -> None:
    faulty = replace(Faults.named("all"), old_layouts=False, skew_ms=0, one_backfill_uuid=False)
    clean = written(tmp_path / "clean", History(HistoryPlan()), 1_000)
    broken = written(tmp_path / "broken", History(HistoryPlan()), 1_000, faults=faulty)
    assert names_of(clean, tmp_path / "clean") == names_of(broken, tmp_path / "broken")


def faulty(root: Path, **faults: Any) -> ChangeFiles:
    history = History(HistoryPlan(changes_per_sec=5))
    return written(root, history, 1_000, faults=Faults(**faults), rotate_ms=10_000)


def test_duplicates_come_in_another_file_with_the_same_uuid(tmp_path: Path) -> None:
    files = faulty(tmp_path / "b", duplicates=0.5)
    again = [file for file in files.written if file.extra == "duplicate"]
    first = {
        event["uuid"]
        for f in files.written
        if not f.extra
        for event in raw_events((tmp_path / "b" / f.path).read_bytes())
    }
    assert again
    for file in again:
        assert {event["uuid"] for event in raw_events((tmp_path / "b" / file.path).read_bytes())} <= first


def test_late_files_land_after_files_of_later_minutes(tmp_path: Path) -> None:
    on_time, late = faulty(tmp_path / "a"), faulty(tmp_path / "b", late=0.5)
    assert inversions(late) > 5 * inversions(on_time)
    assert names_of(on_time, tmp_path / "a") == names_of(late, tmp_path / "b")


def inversions(files: ChangeFiles) -> int:
    """Pairs of a table's files of which the later one lies in the earlier folder."""
    folders = [file.path.rsplit("/", 1)[0] for file in files.written if "backfill" not in file.path]
    return sum(
        later < sooner and later.split("/")[0] == sooner.split("/")[0]
        for place, sooner in enumerate(folders)
        for later in folders[place:]
    )


def test_damaged_files_are_extra_ones_that_cannot_be_read_to_their_end(tmp_path: Path) -> None:
    files = faulty(tmp_path / "b", truncated=0.3, garbage=0.3, empty=0.3)
    assert {file.extra for file in files.written} == {"", "truncated", "garbage", "empty"}
    for file in files.written:
        body = (tmp_path / "b" / file.path).read_bytes()
        assert len(body) == file.bytes
        if file.extra == "empty":
            assert body == b"" and file.events == 0
        elif file.extra:
            assert file.events == 0
            with pytest.raises((EOFError, ValueError, IndexError, UnicodeDecodeError)):
                raw_events(body)


def test_cut_files_are_two_halves(tmp_path: Path) -> None:
    assert len(faulty(tmp_path / "b", cut=1.0).written) > 1.5 * len(faulty(tmp_path / "a").written)


def test_shuffled_rows_are_the_same_rows(tmp_path: Path) -> None:
    files = faulty(tmp_path / "b", shuffled=True)
    numbers = [
        [event["uuid"] for event in raw_events((tmp_path / "b" / file.path).read_bytes())] for file in files.written
    ]
    assert any(found != sorted(found) for found in numbers)


def test_all_rows_of_backfills_can_share_one_uuid(tmp_path: Path) -> None:
    files = faulty(tmp_path / "b", one_backfill_uuid=True)
    uuids = {
        event["uuid"]
        for file in files.written
        if "mysql-backfill" in file.path
        for event in raw_events((tmp_path / "b" / file.path).read_bytes())
    }
    assert len(uuids) == 1


def test_skewed_clocks_move_times_and_folders_but_no_positions(tmp_path: Path) -> None:
    clean, skewed = faulty(tmp_path / "a"), faulty(tmp_path / "b", skew_ms=600_000)

    def found(files: ChangeFiles, root: Path) -> dict[str, tuple[int, str]]:
        events = [event for f in files.written for event in raw_events((root / f.path).read_bytes())]
        return {e["uuid"]: (e["source_timestamp"], str(e["source_metadata"])) for e in events}

    before, after = found(clean, tmp_path / "a"), found(skewed, tmp_path / "b")
    assert {uuid: place for uuid, (_, place) in before.items()} == {uuid: place for uuid, (_, place) in after.items()}
    steps = [after[uuid][0] - before[uuid][0] for uuid in before]
    assert min(steps) < 0 < max(steps) and max(map(abs, steps)) <= 600_000


def test_old_layouts_can_be_mixed(tmp_path: Path) -> None:
    tables = tables_of([Kind.MYSQL], 3)
    seen = set()
    for seed in range(6):
        root = tmp_path / str(seed)
        files = written(root, History(HistoryPlan(tables)), 50, seed=seed, faults=Faults(old_layouts=True))
        seen |= {("sort_keys" in e, "binlog_file" in e["source_metadata"]) for f in files.written
                 for e in raw_events((root / f.path).read_bytes())}  # fmt: skip
    assert seen == {(False, False), (True, False), (True, True)}


def test_faults_are_chosen_by_name() -> None:
    assert Faults.named("none") == Faults.named("") == Faults()
    assert Faults.named("late, duplicates").late > 0
    assert Faults.named("all").shuffled
    with pytest.raises(SimulationInvalid) as caught:
        Faults.named("late,lost")
    assert "lost" in caught.value.parameters["detail"] and "duplicates" in caught.value.parameters["detail"]


# -- live, and in bulk ------------------------------------------------------------------------------------------------


def test_a_live_history_follows_the_clock_until_its_time_is_up(tmp_path: Path) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(10.0, clock=lambda: now[0], sleep=sleep)
    history = History(HistoryPlan(changes_per_sec=30))
    files = ChangeFiles(FilesPlan(tmp_path / "bucket", rotate_ms=2_000))
    count = write_history_live(history, files, pace, lambda: START_MS + 86_400_000 + int(now[0] * 1000))
    assert 300 <= count < 900 and sum(file.events for file in files.written) == count
    assert {file.path.split("/")[3] for file in files.written} <= {"01", "02"}
    assert any(file.path.split("/")[3] == "02" for file in files.written)


def test_bulk_files_hold_what_they_say(tmp_path: Path) -> None:
    found = write_bulk(BulkPlan(tmp_path, events=3_001, tables=2, keys=50, deletes=0.2, file_events=400))
    assert sum(table.events for table in found.values()) == 3_001
    for table in found.values():
        paths = sorted(tmp_path.glob(f"{table.table.object}/**/*.avro"), key=lambda path: path.stem.split("_")[-1])
        events = [event for path in paths for event in raw_events(path.read_bytes())]
        assert len(events) == table.events and len(paths) == table.files
        alive: dict[int, int] = {}
        for event in events:
            row, kind = event["payload"], event["source_metadata"]["change_type"]
            assert (kind == "INSERT") == (row["id"] not in alive)
            assert event["source_metadata"]["is_deleted"] == (kind == "DELETE")
            alive[row["id"]] = row["revision"]
            if kind == "DELETE":
                del alive[row["id"]]
        assert dict(zip(*(column.tolist() for column in table.alive), strict=True)) == alive


def test_bulk_files_have_the_schema_and_the_bytes_that_the_writer_of_single_events_gives(tmp_path: Path) -> None:
    (table,) = write_bulk(BulkPlan(tmp_path, events=700, tables=1, keys=9, file_events=300)).values()
    for path in tmp_path.rglob("*.avro"):
        events = raw_events(path.read_bytes())
        schema = event_schema(table.table, Layout.Y2025, STREAM)
        again = [
            schema.avro(Event(real_change(table.table, event), event["uuid"], event["read_timestamp"]))
            for event in events
        ]
        theirs = stored(path.read_bytes())
        assert path.name.startswith(f"{schema.key}_mysql-cdc-binlog_")
        # decimals of a bulk are three bytes long, also where two would do: the values are equal, not the lengths
        assert [plain_events(b) for b in raw_events(container(schema.text, again, bytes(16)))] == [
            plain_events(event) for event in events
        ]
        assert abs(len(theirs) - sum(map(len, again))) <= 3 * len(events)


def plain_events(event: dict[str, Any]) -> dict[str, Any]:
    amount = plain(decimal(12, 2), event["payload"]["amount"])
    return {**event, "payload": {**event["payload"], "amount": amount}}
