"""An event's key stays the key that the event names, whatever becomes of the columns of its table."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributary.engine.changes.task_spec import ORIGIN_TYPE
from distributary.repair.resync_changes import known_route, rebuild
from tests.extent import either
from tests.key_events import Said, in_table, living, newest, send, spelling
from tests.sparkless import Sparkless

Types = str | Mapping[str, Any] | None
LONG = {"id": "long", "v": "string"}
TEXT = {"id": "string", "v": "string"}


def write_logs_as_before(patch: pytest.MonkeyPatch) -> None:
    """As versions did that did not write keys into logs."""
    patch.setattr("distributary.engine.changes.fitting.ORIGIN_TYPE", pa.struct(list(ORIGIN_TYPE)[:3]))
    patch.setattr("distributary.engine.changes.fitting._key", lambda events, keys: [])


@pytest.fixture
def shop(tmp_path: Path) -> Sparkless:
    return Sparkless(tmp_path)


def keys_in_log(shop: Sparkless, name: str = "public_t_log") -> list[tuple[str | None, str | None]]:
    return [(row["_origin"]["key"], row["_origin"]["key_columns"]) for row in shop.log(name)]


def test_the_log_has_each_event_s_key_as_the_event_spells_it(shop: Sparkless) -> None:
    send(shop, Said({"id": 1, "v": "a"}, 1), Said({"id": 2**40, "v": "b"}, 2), types=LONG)
    send(shop, Said({"id": "1", "v": "c"}, 3), Said({"id": 'a"b\n', "v": "d"}, 4), types=TEXT)
    send(shop, Said({"id": "x", "v": "e", "r": None}, 5, keys=("id", "r")), types={**TEXT, "r": "int"})
    send(shop, Said({"v": "f"}, 6, keys=()), types={"v": "string"})
    shop.run()
    assert keys_in_log(shop) == [
        ('["1"]', '["id"]'),
        ('["1099511627776"]', '["id"]'),
        ('["1"]', '["id"]'),
        ('["a\\"b\\n"]', '["id"]'),
        ('["x",null]', '["id","r"]'),
        (None, None),
    ]


def test_keys_that_the_settings_give_are_the_keys_in_the_log(tmp_path: Path) -> None:
    shop = Sparkless(tmp_path, tables={"routes": {"public.t": {"keys": ["v"]}}})
    send(shop, Said({"id": 1, "v": "a"}, 1, keys=()), types=LONG)
    shop.run()
    assert keys_in_log(shop) == [('["a"]', '["v"]')]


@pytest.mark.parametrize("new_column", ["add", "quarantine", "freeze"])
def test_a_log_of_a_version_before_gets_keys_whatever_the_policy_for_new_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_column: str
) -> None:
    shop = Sparkless(tmp_path, tables={"evolution": {"new_column": new_column}})
    send(shop, Said({"id": 1, "v": "a"}, 1), types=LONG)
    with monkeypatch.context() as before:
        write_logs_as_before(before)
        shop.run()
    assert "key" not in shop.log("public_t_log")[0]["_origin"]
    send(shop, Said({"id": 2, "v": "b"}, 2), types=LONG)
    shop.run()
    assert keys_in_log(shop) == [(None, None), ('["2"]', '["id"]')]
    assert shop.quarantined() == []
    shop.check()


# -- types -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A key whose type changes: avro types (None: JSON without a schema) and keys before and after; what holds both."""

    before: Types
    first: list[Any]
    after: Types
    then: list[Any]
    holds: pa.DataType


UNSIGNED = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
DATE, TIME = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-micros"}
DAYS, TIMES = ["2026-01-01", "2026-01-02"], ["2026-01-01T00:00:00Z", "2026-01-02T10:00:00Z", "2026-01-03T00:00:00Z"]
UUIDS = ["0b8f8f0e-52c2-4b55-8dd0-27a1f2a4a1a1", "6b6f1c9e-0000-4000-8000-000000000000"]
TO_TEXT = {
    "int to text": Change("int", [1, 2], "string", ["1", "zwei", "drei"], pa.string()),
    "bigint to digits": Change("long", [1, 2], "string", ["1", "2", "3", "007"], pa.string()),
    "bigint to uuid": Change("long", [1, 2], "string", UUIDS, pa.string()),
    "text to bigint": Change("string", ["1", "zwei"], "long", [1, 3, 4], pa.string()),
    "double to text": Change("double", [0.5, 2.0], "string", ["0.5", "2", "x"], pa.string()),
    "date to timestamp": Change(DATE, DAYS, TIME, TIMES, pa.string()),
    "no schema, large": Change(None, [1, 2], None, [2**63 + 3, 2**63 + 5], pa.string()),
    "no schema, text": Change(None, [1, 2], None, ["2", "x", "y"], pa.string()),
}
WIDER = {
    "int to bigint": Change("int", [1, 2], "long", [1, 2**40], pa.int64()),
    "bigint to unsigned": Change("long", [1, 2], UNSIGNED, [1, 2**63 + 3, 2**64 - 1], pa.decimal128(20, 0)),
}
WAYS = ("one run", "two runs", "newer first", "merged later", "several tasks", "no log")


def history(change: Change) -> tuple[list[Said], list[Said]]:
    """Every key is written; of the old ones the first is written again, and the last deleted, by its new spelling."""
    old = [Said({"id": key, "v": f"a{n}"}, 1 + n, "INSERT") for n, key in enumerate(change.first)]
    new = [Said({"id": key, "v": f"b{n}"}, 100 + n) for n, key in enumerate(change.then)]
    gone = [Said({"id": change.then[-1], "v": None}, 200, "DELETE")]
    return old, [*new, *gone]


def a_shop(root: Path, way: str, patch: pytest.MonkeyPatch, **evolution: str) -> Sparkless:
    if way == "several tasks":
        patch.setattr("distributary.engine.packing.SHARE_ROWS", 1)
    tables: dict[str, Any] = {"evolution": evolution, "retry_after": "1 second"}
    tables |= {"log": None} if way == "no log" else {"merge_every": "1 hour"} if way == "merged later" else {}
    return Sparkless(root, tables=tables)


def deliver(shop: Sparkless, change: Change, way: str) -> list[Said]:
    old, new = history(change)
    waves = [(old, change.before), (new, change.after)]
    for events, kind in reversed(waves) if way == "newer first" else waves:
        half = len(events) // 2
        for part in (events[:half], events[half:]):
            send(shop, *part, types=None if kind is None else {"id": kind, "v": "string"})
        if way != "one run":
            shop.run()
    shop.run()
    return [*old, *new]


def check(shop: Sparkless, events: Sequence[Said], keys: Sequence[str] = ("id",), name: str = "public_t") -> None:
    """The merged table has one row per key that the events name, its newest; nothing is parked, lost or kept aside."""
    rows = shop.merged(name).to_pylist()
    assert in_table(rows, keys) == living(events, keys)
    gone = {key for key, event in newest(events, keys).items() if event.change == "DELETE"}
    assert {tuple(spelling(row[key]) for key in keys) for row in rows if row["_deleted"]} == gone
    assert shop.quarantined() == []
    shop.check()


def test_a_merged_table_alone_that_gets_wider_is_in_the_ledger(shop: Sparkless) -> None:
    """The log keeps what came, in a second column; the key's column in the merged table is written anew as text."""
    for number, (types, key) in enumerate(((LONG, 1), (TEXT, "x"))):
        send(shop, Said({"id": key, "v": "a"}, 1 + number), types=types)
        shop.run()
    assert shop.entry("public.t").widened == {"id": "bigint -> string"}
    assert shop.batches[-1].widened == ("public.t",)


def resync(shop: Sparkless, route: str = "public.t") -> None:
    rebuild(shop.config, route, known_route(shop.config, route))


PAIRS = [
    (name, WAYS[(n + 1 + more) % len(WAYS)])
    for n, name in enumerate([*TO_TEXT, *WIDER])
    for more in either((0,), (0, 3))
]
"""Each change in one way, all ways among them; at length in two."""
PAIRS += [("date to timestamp", "no log")] * (("date to timestamp", "no log") not in PAIRS)


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_a_key_stays_itself_when_its_type_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    type_change = "new_column" if name in WIDER else "widen"
    change = {**TO_TEXT, **WIDER}[name]
    shop = a_shop(tmp_path, way, monkeypatch, type_change=type_change)
    events = deliver(shop, change, way)
    check(shop, events)
    assert shop.merged("public_t").schema.field("id").type == change.holds
    assert shop.entry("public.t").state != "parked"
    if way == "no log":
        return
    resync(shop)
    check(shop, events)
    last = Said({"id": change.first[0], "v": "again"}, 300)
    send(shop, last, types=None if change.before is None else {"id": change.before, "v": "string"})
    shop.run()
    check(shop, [*events, last])


def test_a_time_is_the_same_key_in_a_json_file_and_in_a_table_alone(tmp_path: Path) -> None:
    """`verify` reads the file as it is, where the time is a text that the schema beside it calls a time."""
    shop = Sparkless(tmp_path, tables={"log": None})
    events = [Said({"id": time, "v": f"v{n}"}, 1 + n) for n, time in enumerate(TIMES)]
    send(shop, *events, types={"id": TIME, "v": "string"})
    shop.run()
    shop.check()


def test_a_log_that_was_begun_without_keys_is_mended_by_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Sparkless(tmp_path)
    with monkeypatch.context() as before:
        write_logs_as_before(before)
        events = deliver(shop, TO_TEXT["int to text"], "two runs")
    last = Said({"id": "zwei", "v": "last"}, 300)
    send(shop, last, types=TEXT)
    shop.run()
    resync(shop)
    check(shop, [*events, last])
    assert shop.merged("public_t").schema.field("id").type == pa.string()


def test_what_waits_in_logs_of_both_kinds_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Sparkless(tmp_path, tables={"merge_every": "1 hour"})
    first, last = Said({"id": 1, "v": "a"}, 1), Said({"id": 2, "v": "b"}, 2)
    with monkeypatch.context() as before:
        write_logs_as_before(before)
        before.setattr("distributary.engine.changes.merges.Merges.run", lambda *_, **__: {})
        send(shop, first, types=LONG)
        shop.run()
    send(shop, last, types=LONG)
    shop.run()
    check(shop, [first, last])


def test_a_table_that_cannot_be_widened_here_is_parked_alone_and_comes_back_by_its_remedy(tmp_path: Path) -> None:
    shop = Sparkless(tmp_path)
    events = [Said({"id": 1, "v": "a"}, 1), Said({"id": 1, "v": "b"}, 2, table="healthy")]
    for event in events:
        send(shop, event, types=LONG)
    shop.run()
    table = DeltaTable(str(tmp_path / "lake" / "public_t"))
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    more = [Said({"id": "x", "v": "c"}, 3), Said({"id": "1", "v": "d"}, 4, "DELETE"), Said({"id": 2, "v": "e"}, 5)]
    for event in more:
        send(shop, event, types=LONG if event.row["id"] == 2 else TEXT)
    healthy = Said({"id": "y", "v": "f"}, 6, table="healthy")
    send(shop, healthy, types=TEXT)
    report = shop.run()
    assert report.parked == ("public.t",)
    entry = shop.entry("public.t")
    assert (entry.merge_state, entry.rows_written) == ("parked", 4)
    assert "KeyTypeChanged" in str(entry.error) and "resync FILE --route public.t" in str(entry.error)
    assert in_table(shop.merged("public_healthy").to_pylist(), ("id",)) == living([events[1], healthy], ("id",))
    resync(shop)
    assert shop.run().parked == ()
    check(shop, [events[0], *more])


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_key_may_be_spelled_in_another_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    shop = a_shop(tmp_path, way, monkeypatch)
    events = [Said({"id": 1, "v": "a"}, 1), Said({"id": 2, "v": "b"}, 2)]
    events += [Said({"ID": 1, "V": "c"}, 3, keys=("ID",)), Said({"ID": 3, "V": "d"}, 4, keys=("Id",))]
    events += [Said({"ID": "2", "V": "e"}, 5, keys=("ID",)), Said({"Id": "x", "v": "f"}, 6, keys=("id",))]
    waves = [(events[:2], LONG), (events[2:4], {"ID": "long", "V": "string"})]
    waves += [(events[4:5], {"ID": "string", "V": "string"}), (events[5:], {"Id": "string", "v": "string"})]
    for wave, types in reversed(waves) if way == "newer first" else waves:
        send(shop, *wave, types=types)
        if way != "one run":
            assert shop.run().parked == ()
    assert shop.run().parked == ()
    wanted = {("1",): "c", ("2",): "e", ("3",): "d", ("x",): "f"}
    rows = shop.merged("public_t").to_pylist()
    key = next(name for name in rows[0] if name.lower() == "id")
    value = next(name for name in rows[0] if name.lower() == "v")
    assert in_table(rows, (key,), value) == wanted
    shop.check()
    if way != "no log":
        resync(shop)
        assert in_table(shop.merged("public_t").to_pylist(), (key,), value) == wanted
        shop.check()


def test_columns_that_differ_in_case_only_keep_their_values_apart(shop: Sparkless) -> None:
    send(shop, Said({"id": 1, "Val": "upper", "val": "lower", "VAL": 7}, 1))
    send(shop, Said({"id": 2, "val": "lower2", "Val": "upper2", "VAL": 8}, 2))
    shop.run()
    send(shop, Said({"id": 3, "VAL": 9, "val": "lower3"}, 3), Said({"id": 4, "val": "lower4", "Val": "upper4"}, 4))
    shop.run()
    columns = ("id", "Val", "val__string", "VAL__bigint")
    found = sorted(tuple(row[name] for name in columns) for row in shop.merged("public_t").to_pylist())
    assert found == [
        (1, "upper", "lower", 7),
        (2, "upper2", "lower2", 8),
        (3, None, "lower3", 9),
        (4, "upper4", "lower4", None),
    ]
    shop.check()


def test_of_columns_that_differ_in_case_only_either_may_be_the_key(shop: Sparkless) -> None:
    events = [Said({"Id": 7, "id": 1, "v": "a"}, 1), Said({"Id": 7, "id": 2, "v": "b"}, 2)]
    events += [Said({"id": 1, "Id": 8, "v": "c"}, 3), Said({"id": "1", "Id": 9, "v": "d"}, 4)]
    for event in events:
        send(shop, event)
        shop.run()
    rows = shop.merged("public_t").to_pylist()
    assert in_table(rows, ("id__bigint",)) == {("1",): "d", ("2",): "b"}
    assert {row["Id"] for row in rows} == {7, 9}
    shop.check()
    resync(shop)
    assert in_table(shop.merged("public_t").to_pylist(), ("id__bigint",)) == {("1",): "d", ("2",): "b"}


def test_tasks_that_name_a_new_key_in_two_cases_and_types_write_it_to_one_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the files go to one task: it has no `id` beside its `ID`, and calls the second column `ID__bigint`."""
    shop = a_shop(tmp_path, "several tasks", monkeypatch, type_change="new_column")
    rows = [({"id": 1, "v": "a"}, "id"), ({"ID": 2**63 + 3, "v": "b"}, "ID"), ({"ID": 1, "v": "d"}, "ID")]
    events = [Said(row, at, "UPDATE", (key,)) for at, (row, key) in enumerate([*rows, ({"ID": 1, "v": "c"}, "ID")], 1)]
    for event in events:
        send(shop, event, types={"id": "long", "v": "string"} if "id" in event.row else None)
    shop.run()
    check(shop, events)
    assert not [name for name in shop.merged("public_t").column_names if name.startswith("ID")]


# -- columns -----------------------------------------------------------------------------------------------------------

PAIR = {"id": "long", "r": "string", "v": "string"}


@pytest.mark.parametrize("way", ["one run", "two runs", "newer first", "merged later", "several tasks"])
def test_a_key_of_other_columns_parks_its_table_until_it_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    shop = a_shop(tmp_path, way, monkeypatch)
    old = [Said({"id": 1, "r": "eu", "v": "a"}, 1), Said({"id": 2, "r": "eu", "v": "b"}, 2)]
    new = [
        Said({"id": 1, "r": "us", "v": "c"}, 3, keys=("id", "r")),
        Said({"id": 2, "r": "eu", "v": "d"}, 4, "DELETE", ("r", "id")),
    ]
    healthy = Said({"id": 1, "r": "eu", "v": "h"}, 1, table="healthy")
    for events in [new, old] if way == "newer first" else [old, new]:
        send(shop, *events, types=PAIR)
        if way != "one run":
            shop.run()
    send(shop, healthy, types=PAIR)
    report = shop.run()
    assert in_table(shop.merged("public_healthy").to_pylist(), ("id",)) == living([healthy], ("id",))
    assert len(shop.log("public_t_log")) == 4
    if way in ("two runs", "newer first"):  # else nothing was merged by another key before
        assert report.parked == ("public.t",)
        assert "KeysChanged" in str(shop.entry("public.t").error)
    resync(shop)
    check(shop, [*old, *new], ("id", "r"))
    last = Said({"r": "us", "id": 1, "v": "last"}, 9, keys=("r", "id"))
    send(shop, last, types=PAIR)
    assert shop.run().parked == ()
    check(shop, [*old, *new, last], ("id", "r"))


def test_keys_of_odd_texts_stay_apart(shop: Sparkless) -> None:
    texts = ["", " ", "a", "a ", "A", "\u00e9", "e\u0301", '["a"]', "null", "NaN", "a\nb", "\\"]
    events = [Said({"id": text, "v": str(n)}, n + 1) for n, text in enumerate(texts)]
    send(shop, *events)
    send(shop, Said({"id": 7, "v": "seven"}, 99))
    shop.run()
    check(shop, [*events, Said({"id": 7, "v": "seven"}, 99)])


def test_floats_have_one_zero_and_one_nan_as_keys(shop: Sparkless) -> None:
    events = [Said({"id": key, "v": str(n)}, n + 1) for n, key in enumerate(["NaN", -0.0, 0.0, "NaN", 1.5])]
    send(shop, *events, types={"id": "double", "v": "string"})
    send(shop, Said({"id": "1.5", "v": "text"}, 50), Said({"id": "NaN", "v": "text"}, 51), types=TEXT)
    shop.run()
    rows = shop.merged("public_t").to_pylist()
    assert {row["id"]: row["v"] for row in rows} == {"0": "2", "1.5": "text", "NaN": "text"} and len(rows) == 3
    shop.check()


# -- any history -------------------------------------------------------------------------------------------------------

NUMBERS = ["1", "2", str(2**40), str(2**63 + 3)]
WORDS = [*NUMBERS, "007", UUIDS[0]]
WRITERS: Mapping[str, tuple[Types, list[str], Callable[[str], Any]]] = {
    "int": ("int", NUMBERS[:2], int),
    "bigint": ("long", NUMBERS[:3], int),
    "unsigned": (UNSIGNED, NUMBERS, int),
    "text": ("string", WORDS, str),
    "number, no schema": (None, NUMBERS, int),
    "text, no schema": (None, WORDS, str),
}
"""How a source writes its key, by its column's type: avro's, the keys that it can have, each as JSON has it."""


@dataclass(frozen=True)
class Wave:
    """Events of one schema: how they write their key and its name."""

    writer: str
    name: str
    changes: list[tuple[int, str]]


WAVE = st.builds(
    Wave,
    st.sampled_from(sorted(WRITERS)),
    st.sampled_from(["id", "id", "ID"]),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["UPDATE", "UPDATE", "DELETE"])), min_size=1, max_size=4),
)


@dataclass(frozen=True)
class Course:
    """How the waves come: in which order, with a run behind which of them, and from which on keys have two columns."""

    dice: Random
    way: str
    type_change: str
    pairs_from: int | None


COURSE = st.builds(
    Course,
    st.randoms(use_true_random=False),
    st.sampled_from(WAYS),
    st.sampled_from(["new_column"]),
    st.sampled_from([None, None, None, 1, 3]),
)


def events_of(waves: Sequence[Wave], course: Course) -> list[tuple[Types, list[Said]]]:
    """The waves' events, in true order."""
    found, at = [], 0
    for number, wave in enumerate(waves):
        kind, texts, value = WRITERS[wave.writer]
        pair = course.pairs_from is not None and number >= course.pairs_from
        keys = (wave.name, "r") if pair else (wave.name,)
        events = []
        for choice, change in wave.changes:
            at += 1
            row = {wave.name: value(texts[choice % len(texts)]), "r": "eu" if choice % 2 else "us", "v": f"at {at}"}
            events.append(Said(row, at, change, keys))
        found.append((kind, events))
    return found


@settings(max_examples=max(15, settings().max_examples // 4), suppress_health_check=list(HealthCheck))
@given(st.lists(WAVE, min_size=1, max_size=6), COURSE)
def test_whatever_becomes_of_keys_a_merged_table_has_the_newest_event_of_each(
    waves: list[Wave], course: Course
) -> None:
    written = events_of(waves, course)
    events = [event for _, some in written for event in some]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        shop = a_shop(Path(folder), course.way, patch, type_change=course.type_change)
        course.dice.shuffle(written)
        for kind, some in written:
            for event in course.dice.sample(some, len(some)):
                name = next(iter(event.row))
                send(shop, event, types=None if kind is None else {name: kind, "r": "string", "v": "string"})
            if course.dice.random() < 0.5:
                shop.run()
        shop.run()
        keys = max(events, key=lambda event: event.at).keys
        if len({len(event.keys) for event in events}) > 1:
            if course.way == "no log":
                return  # there is nothing to rebuild it from: it stays parked
            resync(shop)
        rows = shop.merged("public_t").to_pylist()
        columns = [next(name for name in rows[0] if name.lower() == key.lower()) for key in keys]
        assert in_table(rows, columns) == living(events, keys)
        dead = {tuple(spelling(row[name]) for name in columns) for row in rows if row["_deleted"]}
        assert dead == {key for key, event in newest(events, keys).items() if event.change == "DELETE"}
        assert shop.quarantined() == []
        shop.check()
        if course.way != "no log":
            said = sorted(
                (row["_origin"]["key"], row["datastream_metadata"]["source"]["lsn"]) for row in shop.log("public_t_log")
            )
            assert said == sorted((key_of(event), f"0/{event.at:X}") for event in events)


def key_of(event: Said) -> str:
    return json.dumps([spelling(event.row[key]) for key in event.keys], separators=(",", ":"))
