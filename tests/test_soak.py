"""The parts of `make soak`: what it sends, what it notes, and that its judge sees what is wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.chaos.messages import ENVELOPE
from tests.soak.judge import judged
from tests.soak.plan import LONG, events, first_routes
from tests.soak.records import BAD, LEVEL_GROWS_AT, NEWEST, Column, Shape, Truth, columns, route_name, schema_text
from tests.soak.samples import batches, collections, growth, not_flat, quarters
from tests.soak.sender import Sender

Row = dict[str, Any]
_TYPES = {"q": "TYPE_SFIXED64", "d": "TYPE_DOUBLE", "i": "TYPE_SFIXED32", "8s": "TYPE_STRING"}
_ARROW = {"q": pa.int64(), "d": pa.float64(), "i": pa.int32(), "8s": pa.string()}


def _message(name: str, fields: dict[str, tuple[int, str]]) -> Any:
    """A message class of the official library."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    for field, (number, kind) in fields.items():
        message.field.add(name=field, number=number, type=kind, label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _opened(value: bytes) -> tuple[str, int, bytes]:
    """Route, schema id and payload of a record, by the official library."""
    envelope = _message(
        "Envelope",
        {"game_name": (1, "TYPE_STRING"), "schema_id": (2, "TYPE_INT32"), "payload": (3, "TYPE_BYTES")},
    ).FromString(value[6:])
    return envelope.game_name, envelope.schema_id, envelope.payload


def _values(number: int, version: int) -> Row:
    values = {column.name: column.value(number) for column in columns(version)[2:]}
    values["player"] = values["player"].decode()
    return {"number": number, "version": version, **values}


@pytest.mark.parametrize("version", [1, 3, 4, NEWEST])
def test_a_record_is_what_its_schema_says(version: int) -> None:
    value = Shape(7, 42, "kind_0003", version).good(5_000_000_123)
    route, schema_id, payload = _opened(value)
    assert (value[:6], route, schema_id, payload[:6]) == (b"\0\0\0\0\7\0", "kind_0003", 42, b"\0\0\0\0\x2a\0")
    fields = {c.name: (int(c.proto.split("= ")[1][:-1]), _TYPES[c.code]) for c in columns(version)}
    message = _message("Kind", fields).FromString(payload[6:])
    assert {name: getattr(message, name) for name in fields} == _values(5_000_000_123, version)
    assert message.SerializeToString() == payload[6:]


def test_a_new_version_only_adds_fields_but_for_the_level_that_grows() -> None:
    for version in range(1, NEWEST):
        older, newer = columns(version), columns(version + 1)
        names = [c.name for c in newer[: len(older)]]
        assert names == [c.name for c in older] and len(newer) == len(older) + 1
        changed = [c.name for c, d in zip(older, newer, strict=False) if c.proto != d.proto]
        assert changed == (["level"] if version + 1 == LEVEL_GROWS_AT else [])
    assert "message Kind_0001 {" in schema_text("kind_0001", 2) and ENVELOPE.startswith("syntax")


@pytest.mark.parametrize("way", list(BAD))
def test_each_way_of_damage_is_one(way: str) -> None:
    shape = Shape(7, 42, "kind_0003", 2)
    assert shape.bad(10, way) != shape.good(10)
    if way != "envelope":
        assert _opened(shape.bad(10, way))[:2] == ("kind_0003", 42)


# -- what is noted -------------------------------------------------------------------------------------------------


class _Broker:
    """Acknowledges what `poll` finds, and refuses the records of one partition where it is told to."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._waiting: list[tuple[int, int, Callable[[Any, Any], None]]] = []
        self.full = 0

    def produce(self, _topic: str, value: bytes, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        if self.full:
            raise BufferError
        self.values.append(value)
        self._waiting.append((partition, len(self.values), on_delivery))

    def poll(self, _timeout: float) -> None:
        self.full = max(0, self.full - 1)

    def answer(self, error: object = None) -> None:
        for partition, offset, on_delivery in self._waiting:
            record = type("Record", (), {"partition": lambda _, p=partition: p, "offset": lambda _, o=offset: o})()
            on_delivery(error, record)
        self._waiting.clear()


def _sender(broker: _Broker, routes: int = 3) -> Sender:
    sender = Sender(broker, "events", 7, seed=1, bad_every=50)
    for rank in range(routes):
        sender.tell({"route": route_name(rank), "version": 1, "schema_id": rank})
    return sender


def test_only_what_the_broker_acknowledged_is_noted() -> None:
    broker = _Broker()
    sender = _sender(broker)
    sender.send(1000)
    assert (sender.sent, sender.truth.rows, sender.truth.bad) == (1000, 0, {})
    broker.answer()
    assert (sender.truth.rows, len(sender.truth.bad), sender.truth.failed) == (980, 20, 0)
    assert set(sender.truth.bad.values()) == set(BAD.values())
    bad = {number for number in range(1, 1001) if number % 50 == 0}
    assert sum(sent.total for sent in sender.truth.routes.values()) == sum(range(1, 1001)) - sum(bad)
    sender.send(10)
    broker.answer("timed out")
    assert (sender.truth.rows, sender.truth.failed) == (980, 10)


def test_a_queue_that_is_full_loses_nothing() -> None:
    broker = _Broker()
    sender = _sender(broker)
    broker.full = 3
    sender.send(5)
    assert len(broker.values) == 5


def test_routes_come_by_zipfs_law_and_new_ones_from_when_they_are_told() -> None:
    broker = _Broker()
    sender = _sender(broker, routes=20)
    sender.send(20_000)
    sender.tell({"route": route_name(20), "version": 1, "schema_id": 20})
    sender.tell({"route": route_name(0), "version": 2, "schema_id": 99})
    broker.answer()
    rows = [sender.truth.routes[route_name(rank)].rows for rank in range(21)]
    assert rows[20] == 0 and 1.6 < rows[0] / rows[1] < 2.4 and rows[0] > rows[9] > rows[19] > 0
    assert sender.truth.routes[route_name(0)].versions.keys() == {1}
    sender.send(20_000)
    broker.answer()
    assert sender.truth.routes[route_name(20)].rows > 0
    assert sender.truth.routes[route_name(0)].versions.keys() == {1, 2}


def test_the_truth_outlives_its_process() -> None:
    broker = _Broker()
    sender = _sender(broker)
    sender.send(500)
    broker.answer()
    assert Truth.of_json(json.loads(json.dumps(sender.truth.as_json()))) == sender.truth


# -- the judge -----------------------------------------------------------------------------------------------------


def _made(folder: Path, change: Callable[[list[Row]], None] | None = None) -> Truth:
    """A table of three versions and a quarantine as they should be, but for `change`."""
    truth = Truth(bad={(0, 5): "CORRUPT_PAYLOAD", (1, 6): "BAD_MAGIC"})
    newest = columns(5)
    rows: list[Row] = []
    sender = _sender(_Broker(), routes=1)
    for number in range(1, 200):
        version = 1 + number * 5 // 200
        rows.append({column.name: None for column in newest} | _values(number, version))
        sender.truth.routes[route_name(0)].add(number, version)
    truth.routes = sender.truth.routes
    if change is not None:
        change(rows)
    schema = pa.schema([(column.name, _ARROW[column.code]) for column in newest])
    write_deltalake(str(folder / "lake" / route_name(0)), pa.Table.from_pylist(rows, schema))
    places = {"partition": [0, 1, 0], "offset": [5, 6, 9], "reason": ["CORRUPT_PAYLOAD", "BAD_MAGIC", "TABLE_PARKED"]}
    aside = pa.table({**places, "state": ["open", "open", "replayed"]})
    write_deltalake(str(folder / "quarantine"), aside)
    return truth


def _lost(rows: list[Row]) -> None:
    rows.pop()


def _doubled(rows: list[Row]) -> None:
    rows.append(dict(rows[0]))


def _exchanged(rows: list[Row]) -> None:
    rows[0] |= _values(1_000, 1)


def _nulled(rows: list[Row]) -> None:
    rows[-1]["extra_2"] = None


def _filled(rows: list[Row]) -> None:
    rows[0]["extra_5"] = 1.0


def _other_value(rows: list[Row]) -> None:
    rows[0]["player"] = "00000000"


def _cut(rows: list[Row]) -> None:
    rows[-1]["level"] = rows[-1]["number"] % 1000 + 1


def _other_version(rows: list[Row]) -> None:
    rows[0] |= _values(rows[0]["number"], 2)


def test_the_judge_finds_nothing_where_all_is_right(tmp_path: Path) -> None:
    verdict = judged(tmp_path / "lake", tmp_path / "quarantine", _made(tmp_path), tmp_path)
    assert dataclasses.asdict(verdict) == {"rows": 199, "lost": 0, "doubled": 0, "quarantined": 2, "wrong": []}


@pytest.mark.parametrize("fault", [_lost, _doubled, _exchanged, _nulled, _filled, _other_value, _cut, _other_version])
def test_the_judge_sees_a_fault_of_one_row(tmp_path: Path, fault: Callable[[list[Row]], None]) -> None:
    verdict = judged(tmp_path / "lake", tmp_path / "quarantine", _made(tmp_path, fault), tmp_path)
    assert verdict.wrong
    assert (verdict.lost, verdict.doubled) == (int(fault is _lost), int(fault is _doubled))


def test_the_judge_sees_a_fault_of_the_quarantine_and_of_tables_that_are_not_there(tmp_path: Path) -> None:
    truth = _made(tmp_path)
    right = dict(truth.bad)
    for bad in ({**right, (2, 7): "BAD_MAGIC"}, {(0, 5): right[0, 5]}, {**right, (0, 5): "BAD_MAGIC"}):
        truth.bad = bad
        assert len(judged(tmp_path / "lake", tmp_path / "quarantine", truth, tmp_path).wrong) == 1
    truth.bad = right
    truth.failed = 1
    assert len(judged(tmp_path / "lake", tmp_path / "quarantine", truth, tmp_path).wrong) == 1
    truth.failed = 0
    truth.routes["kind_0009"] = truth.routes.pop(route_name(0))
    verdict = judged(tmp_path / "lake", tmp_path / "quarantine", truth, tmp_path)
    assert (verdict.lost, len(verdict.wrong)) == (199, 2)


def test_a_column_says_the_same_in_sql_and_in_python() -> None:
    import duckdb

    def said(column: Column, number: int) -> Any:
        query = f"SELECT {column.sql} FROM (SELECT {number}::BIGINT AS number, {version} AS version)"
        return duckdb.execute(query).fetchall()[0][0]

    for version in (3, 4, NEWEST):
        for column in columns(version)[2:]:
            for number in (1, 999, 1000, 49_999_999):
                value = column.value(number)
                assert said(column, number) == (value.decode() if isinstance(value, bytes) else value)


# -- figures -------------------------------------------------------------------------------------------------------


def _life(memory: Callable[[float], float], minutes: int = 40) -> list[Row]:
    names = ("driver_mib", "jvm_mib", "workers_mib", "all_mib", "all_own_mib", "descriptors", "threads")
    return [
        {"at": 60.0 * minute, "cpu_sec": 6.0 * minute, **dict.fromkeys(names, memory(minute / minutes))}
        for minute in range(minutes + 1)
    ]


def _told(seconds: Callable[[float], float] = lambda _: 1.0) -> list[Row]:
    return [{"at": 10.0 * n, "batch": n, "rows": 1000, "seconds": seconds(n / 240)} for n in range(240)]


def test_a_life_that_warms_up_and_then_stays_is_flat() -> None:
    found = quarters(_life(lambda share: 500 + min(share, 0.25) * 1000), _told(), [(30.0, 90), (2000.0, 95)])
    assert not_flat(found) == []
    assert growth(found)["all_mib"] == 1.0 and growth(found)["batch_sec"] == 1.0
    assert [quarter["batches"] for quarter in found] == [61, 61, 61, 60]
    assert found[0]["heap_least_mib"] == 90 and found[3]["heap_least_mib"] == 95
    assert 16 < found[1]["cpu_sec_a_million_rows"] * 61 / 60 / 60 < 17


def test_a_life_that_grows_is_told_of() -> None:
    found = quarters(_life(lambda share: 500 + share * 100), _told(), [])
    assert not_flat(found) == ["all_mib of the last quarter is 1.093 of the second"]


def test_a_short_life_says_nothing_of_growth() -> None:
    assert not_flat(quarters(_life(lambda share: 500 + share * 900, minutes=10), _told(), [])) == []


def test_a_batch_that_a_kill_has_cut_is_left_out_and_pauses_are_read() -> None:
    body = {"kind": "batch", "at": "2026-11-30T12:00:00.500Z", "batch": 3, "rows_in": 7, "tables": 2, "parked": ["a"]}
    line = json.dumps({**body, "seconds": {"total": 0.5}})
    wanted = {"at": 1796040000.5, "batch": 3, "rows": 7, "tables": 2, "seconds": 0.5, "parked": 1}
    assert batches([line[:40], "", line, '{"kind": "run"}']) == [wanted]
    lines = [
        "[0.010s] Using G1",
        "[12.500s][info][gc] GC(3) Pause Young (Normal) (G1 Preventive) 300M->80M(512M) 3.1ms",
    ]
    assert collections([*lines, "[13.0s] GC(4) Concurrent Mark Cycle"], 1000.0) == [(1012.5, 80)]


def test_each_quarter_of_the_longest_life_has_the_same_faults() -> None:
    ends = [share for share, what in LONG if what.startswith("kill") and "broker" not in what]
    begin, end = max((b - a, a, b) for a, b in itertools.pairwise(ends))[1:]
    assert end - begin > 0.8
    for number in range(4):
        first, last = (begin + (end - begin) * part / 4 for part in (number, number + 1))
        within = [what for share, what in LONG if first < share < last]
        assert (within.count("registry"), sum("broker" in what for what in within)) == (1, 1)


@pytest.mark.parametrize("minutes", [2.0, 100.0])
def test_new_versions_and_new_routes_come_all_the_time(minutes: float) -> None:
    planned = events(minutes)
    assert planned == sorted(planned) and planned[0].at_sec > 0 and planned[-1].at_sec < minutes * 60
    counts = {what: sum(one.what == what for one in planned) for what in ("new version", "new route", "registry")}
    assert counts["new version"] >= 5 and counts["new route"] >= 5 and counts["registry"] >= 1
    assert first_routes(500) == 450 and first_routes(1) == 1
