"""Every real sample file is read to the values that are in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.changes.avro_files import read_avro
from distributary.changes.file_events import peek, read_events
from distributary.changes.model import METADATA, FileEvents, Kind, Reading

SAMPLES = Path(__file__).parents[2] / "shared" / "samples" / "datastream"
AVRO = sorted((SAMPLES / "avro").glob("*.avro"))
PRESENT = pytest.mark.skipif(not AVRO, reason="the sample files are not beside this project")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

pytestmark = PRESENT


def read(path: Path, reading: Reading | None = None) -> FileEvents:
    return read_events(path.read_bytes(), str(path), reading or Reading())


def stored(path: Path) -> list[dict[str, Any]]:
    """The first rows as an independent reader gave them: raw avro values, bytes as {"$hex": ...}."""
    lines = (SAMPLES / "rows" / f"{path.stem}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def types(path: Path) -> dict[str, Any]:
    fields = json.loads((SAMPLES / "avsc" / f"{path.stem}.avsc").read_text())["fields"]
    payload = next(field for field in fields if field["name"] == "payload")
    return {field["name"]: field for field in payload["type"]["fields"]}


def expected(field: dict[str, Any], value: Any) -> Any:
    """What a column holds for a raw avro value, worked out one value at a time."""
    if value is None:
        return None
    kind = field["type"]
    kind = next(branch for branch in kind if branch != "null") if isinstance(kind, list) else kind
    kind = {"type": kind} if isinstance(kind, str) else kind
    logical = kind.get("logicalType") or field.get("logicalType")
    if isinstance(value, dict) and "$hex" in value:
        number = bytes.fromhex(value["$hex"])
        if logical != "decimal":
            return number
        with localcontext(prec=80):
            exact = Decimal(int.from_bytes(number, "big", signed=True)).scaleb(-kind["scale"])
        return exact if kind["precision"] <= 38 else f"{exact:f}"
    if isinstance(value, dict):
        return value["value"] if "value" in value else EPOCH + timedelta(microseconds=value["timestamp"])
    if logical == "timestamp-micros":
        return EPOCH + timedelta(microseconds=value)
    if logical in ("timestamp-millis", "time-millis"):  # only in a file whose values are far too great for either
        return None
    if logical in ("time-micros", "time-interval-micros"):
        hours, rest = divmod(value, 3_600_000_000)
        minutes, rest = divmod(rest, 60_000_000)
        seconds, fraction = divmod(rest, 1_000_000)
        return f"{hours:02d}:{minutes:02d}:{seconds:02d}" + (f".{fraction:06d}".rstrip("0") if fraction else "")
    return value


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in AVRO])
def test_a_real_avro_file_is_read_to_its_values(path: Path) -> None:
    found = read(path)
    assert not found.bad and not found.unknown_fields
    (events,) = found.events
    fields = types(path)
    late = [name for name in ("update_timestamp_micros",) if name in fields]  # the year 56009: no Python datetime
    for name in late:
        assert events.rows.column(name).null_count == len(events.rows) <= found.beyond[f"{events.table.route}.{name}"]
    rows = events.rows.drop_columns(late).to_pylist()
    for raw, row in zip(stored(path), rows, strict=False):
        metadata, source = row.pop(METADATA), raw["source_metadata"]
        assert row.keys() == fields.keys() - set(late)
        for name in row:
            assert row[name] == expected(fields[name], raw["payload"][name]), name
        for name in ("uuid", "source_timestamp", "read_timestamp", "object", "read_method", "stream_name"):
            assert metadata[name] == raw[name]
        assert metadata["schema_key"] == raw.get("schema_key")
        assert metadata["sort_keys"] == ([str(key) for key in raw["sort_keys"]] if "sort_keys" in raw else None)
        for name, value in metadata["source"].items():
            assert value == (None if source.get(name) is None else type(value)(source[name])), name
        deleted = source.get("change_type") in ("DELETE", "UPDATE-DELETE") or source.get("is_deleted") or False
        assert metadata["is_deleted"] == deleted
        assert metadata["change_type"] == source.get("change_type")
        assert metadata["is_backfill"] == ("backfill" in raw["read_method"] or "dump" in raw["read_method"])
    assert events.keys == tuple(stored(path)[0]["source_metadata"].get("primary_keys") or ())
    assert events.table.kind == path.stem.split("-")[0]
    assert peek(path.read_bytes(), str(path), Reading()) == events.table
    assert peek(path.read_bytes()[:-10], str(path), Reading()) == events.table


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in AVRO])
def test_both_avro_readers_agree_on_a_real_file(path: Path) -> None:
    body = pa.py_buffer(path.read_bytes())
    fast, slow = read_avro(body, "fast"), read_avro(body, "slow", fast=False)
    assert [part.columns.to_pylist() for part in fast.stored] == [part.columns.to_pylist() for part in slow.stored]


def test_an_update_of_a_key_in_a_real_oracle_file_deletes_the_old_key() -> None:
    """In it is_deleted is false for UPDATE-DELETE; a reader that trusts it leaves the old key alive."""
    (events,) = read(SAMPLES / "avro" / "oracle-update-pk.avro").events
    metadata = events.rows.column(METADATA).to_pylist()
    assert [(one["change_type"], one["is_deleted"]) for one in metadata] == [
        ("UPDATE-DELETE", True), ("UPDATE-INSERT", False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("badal-events-records1.json", {("mysql", "demo.inventory.voters"): 6}),
        ("badal-events-records2.json", {("mysql", "demo.inventory.voters"): 4}),
        ("badal-test_accounts-45-records1.json", {("mysql", "badal.accounts"): 1}),
        ("badal-test_customers-45-records1.json", {("mysql", "badal.customers"): 1}),
        ("badal-test_customers-46-records2.json", {("mysql", "badal.customers"): 1}),
        ("mongodb-backfill-shape.json", {("mongodb", "extended_types.mycol"): 1}),
        ("oracle-backfill-hr-jobs.jsonl", {("oracle", "XE.HR.JOBS"): 1, ("oracle", "XE.HR.EMPLOYEES"): 1}),
        ("postgresql-cdc-pipeline_run.jsonl", {("postgresql", "public.pipeline_run"): 1}),
    ],
)
def test_a_real_json_file_is_read_to_its_tables(name: str, tables: dict[tuple[str, str], int]) -> None:
    found = read(SAMPLES / "json" / name)
    assert not found.bad and not found.unknown_fields
    assert {(one.table.kind.value, one.table.route): len(one.rows) for one in found.events} == tables


def test_a_real_postgresql_json_event_keeps_its_values_exactly() -> None:
    path = SAMPLES / "json" / "postgresql-cdc-pipeline_run.jsonl"
    line = path.read_text()
    (events,) = read(path).events
    (row,) = events.rows.to_pylist()
    metadata = row.pop(METADATA)
    assert (events.keys, events.table.kind) == (("id",), Kind.POSTGRESQL)
    assert metadata["source_timestamp"] == 1_762_367_011_393
    assert metadata["read_timestamp"] == 1_762_367_026_698
    assert metadata["source"]["lsn"] == "BD/A0007310"
    assert metadata["sort_keys"] == ["1762367011393", "BD/A0007310"]
    assert row["variables"] in line  # JSON stays as written, to the character
    written = {name: value for name, value in json.loads(line)["payload"].items() if value is not None}
    assert row == written | {"variables": row["variables"]}


def test_the_synthetic_sql_server_lines_give_keys_in_each_way() -> None:
    """The second and third line have no log position and are set aside for that; nothing is lost."""
    found = read(SAMPLES / "json" / "sqlserver-cdc-synthetic.jsonl")
    assert [(one.table.route, one.keys) for one in found.events] == [("mydb.dbo.EMPLOYEES", ("EMPLOYEE_ID",))]
    assert [(one.row, one.reason.value) for one in found.bad] == [(1, "BAD_POSITION"), (2, "BAD_POSITION")]
