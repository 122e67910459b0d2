"""change_sequence_number: a greater text is the newer event, for every kind of source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.digit_rows import uuid_parts
from distributary.changes.digits import WIDTH
from distributary.changes.model import METADATA_TYPE
from distributary.changes.sequence import OrderSettings, sequence_numbers, standing
from tests.events import START_MS, Event, backfilled, deleted, table_of

COLUMNS = {"id": pa.int64(), "value": pa.string()}


def numbers(*events: Event, kind: str = "mysql") -> list[str]:
    metadata = table_of(events, COLUMNS, kind).column("datastream_metadata").combine_chunks()
    return [str(n) for n in pa.compute.struct_field(metadata, "change_sequence_number").to_pylist()]


def ascending(found: Sequence[str]) -> bool:
    return all(a < b for a, b in itertools.pairwise(found))


HEX = set("0123456789abcdef")
ROW: dict[str, Any] = {"id": 1, "value": "a"}


def test_every_number_has_one_width_and_is_a_pure_function_of_its_event() -> None:
    events = [Event(ROW, 5), backfilled(ROW), deleted(ROW, 7)]
    assert {len(n) for n in numbers(*events)} == {WIDTH}
    assert numbers(*events) == [*numbers(events[0]), *numbers(*events[1:])]


def test_mysql_orders_by_file_number_then_position_then_time() -> None:
    """DataflowTemplates#2867; the number at the end of a binlog's name counts, not its text."""
    assert ascending(
        numbers(
            Event(ROW, 4, sec=99),
            Event(ROW, 999, sec=50),
            Event(ROW, 1000, sec=40),
            Event(ROW, 1, file="mysql-bin.999999"),
            Event(ROW, 1, file="mysql-bin.1000000"),
        )
    )


def test_any_change_beats_any_backfilled_row() -> None:
    assert ascending(numbers(backfilled(ROW, sec=9000), Event(ROW, 1, sec=0)))


def test_in_mysql_the_upsert_is_the_newer_of_two_events_at_one_place() -> None:
    assert ascending(numbers(Event(ROW, 9, "UPDATE-DELETE"), Event(ROW, 9, "UPDATE-INSERT")))


def read(counter: int, change: str, batch: str = "8546a123-e6bc-49ca-b0c4-2490", ms: int = 0) -> Event:
    sec = counter % 2
    return Event(ROW, 9, change, sec=sec, uuid=f"{batch}{counter:08b}", read_ms=ms - sec * 1000)


def test_in_mysql_the_rows_of_one_binlog_event_stand_in_the_order_in_which_they_were_read() -> None:
    """A key that is left and then taken lives; one that is taken and then left does not. Their times say nothing."""
    assert ascending(numbers(read(1, "UPDATE-DELETE"), read(4, "UPDATE-INSERT")))
    assert ascending(numbers(read(2, "UPDATE-INSERT"), read(3, "UPDATE-DELETE")))


def test_in_mysql_a_later_reading_of_one_binlog_event_holds_whatever_its_counters() -> None:
    other = "00000000-e6bc-49ca-b0c4-2490"
    assert ascending(numbers(read(255, "UPDATE-DELETE"), read(0, "UPDATE-INSERT", other, ms=1)))
    assert ascending(numbers(read(255, "UPDATE-INSERT"), read(0, "UPDATE-DELETE", other, ms=1)))
    # In one millisecond nobody knows, but everybody takes the same one.
    pair = [read(255, "UPDATE-INSERT"), read(0, "UPDATE-DELETE", other)]
    assert sorted(numbers(*pair)) == sorted(numbers(*reversed(pair)))


TEXTS = st.one_of(
    st.text("0123456789abcdefABCDEF-xé", min_size=0, max_size=40),
    st.uuids().map(str),
    st.uuids().map(lambda uuid: uuid.hex.upper()),
    st.uuids().map(lambda uuid: str(uuid).replace("-", "0-", 1).replace("-", "", 1)[:36]),
    st.tuples(st.uuids(), st.integers(0, 35), st.sampled_from("gG-")).map(
        lambda one: str(one[0])[: one[1]] + one[2] + str(one[0])[one[1] + 1 :]
    ),
)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(["", "-", "no uuid at all"]))
def test_a_uuid_says_the_same_in_any_company(uuids: list[str], odd: str) -> None:
    """Among uuids of one form it is read by other code than beside one that has none."""
    together = uuid_parts(pa.array(uuids))
    beside = uuid_parts(pa.array([*uuids, odd, None]))
    for part, wider in zip(together, beside, strict=True):
        assert part.tolist() == wider[:-2].tolist()
    for uuid, reading, counter in zip(uuids, *(part.tolist() for part in together), strict=True):
        plain = uuid.replace("-", "").lower()
        is_uuid = len(plain) == 32 and set(plain) <= HEX
        assert bytes(reading).decode() == (plain[:7] if is_uuid else "0" * 7)
        ends = uuid[-8:].lower()
        assert bytes(counter).decode() == (ends if len(ends) == 8 and set(ends) <= HEX else "0" * 8)


def test_oracle_orders_by_scn_then_rs_id_as_hex_then_ssn() -> None:
    """DataflowTemplates 58a91af3e5; rs_id has blanks around it."""

    def event(scn: int, rs_id: str, ssn: int) -> Event:
        return Event(ROW, source={"scn": scn, "rs_id": rs_id, "ssn": ssn})

    assert ascending(
        numbers(
            event(99, " 0x0000ff.00000705.0010 ", 0),
            event(100, " 0x000004.00000705.0010 ", 0),
            event(100, " 0x000004.00000705.0010 ", 1),
            event(100, " 0x000004.0000a705.0010 ", 0),
            kind="oracle",
        )
    )


POSTGRESQL = ["9/FFFFFFFF", "16/2", "16/CB002DB0"]
SQL_SERVER = ["00000025:00000728:0003", "00000025:00000728:000a", "00000025:00001000:0001", "000000a5:00000001:0001"]


@pytest.mark.parametrize("secs", [range(4), range(4, 0, -1)], ids=["a clock that goes on", "a clock set back"])
@pytest.mark.parametrize(("kind", "lsns"), [("postgresql", POSTGRESQL), ("sqlserver", SQL_SERVER)])
def test_lsns_order_as_hex_numbers_whatever_the_clock_says(kind: str, lsns: list[str], secs: range) -> None:
    events = [Event(ROW, sec=sec, source={"lsn": lsn}) for lsn, sec in zip(lsns, secs, strict=False)]
    assert ascending(numbers(backfilled(ROW, sec=9000), *events, kind=kind))


def first_layout(kind: str, event: Event, position: tuple[int, ...]) -> str:
    """The number that an event had before: `position` are k1..k4."""
    read, upsert = START_MS + event.sec * 1000, event.change not in ("DELETE", "UPDATE-DELETE")
    counter = event.uuid[-8:]
    return "0000002" + "".join(f"{k:016x}" for k in position) + f"{read:012x}{counter}{upsert:d}{0:016x}"


OLD_AND_NEW: list[tuple[str, Event, tuple[int, ...]]] = [
    ("mysql", Event(ROW, 7, "INSERT", sec=9), (1, 7, 1, START_MS + 9000)),
    ("mysql", Event(ROW, 8, "UPDATE-DELETE", uuid=f"{2:032b}"), (1, 8, 0, START_MS)),
    ("mysql", Event(ROW, 8, uuid=f"{3:032b}"), (1, 8, 1, START_MS)),
    ("mysql", Event(ROW, 9, "DELETE"), (1, 9, 0, START_MS)),
    ("postgresql", Event(ROW, sec=9, source={"lsn": "1/A"}), (START_MS + 9000, 1, 10, 0)),
    ("postgresql", Event(ROW, sec=2, source={"lsn": "1/B"}), (START_MS + 2000, 1, 11, 0)),
    ("postgresql", Event(ROW, sec=1, source={"lsn": "2/0"}), (START_MS + 1000, 2, 0, 0)),
    ("sqlserver", Event(ROW, sec=9, source={"lsn": "1:1:9"}), (START_MS + 9000, 1, 1, 9)),
    ("sqlserver", Event(ROW, sec=2, source={"lsn": "1:2:1"}), (START_MS + 2000, 1, 2, 1)),
    ("oracle", Event(ROW, sec=9, source={"scn": 1}), (1, 0, 0, START_MS + 9000)),
    ("oracle", Event(ROW, sec=2, source={"scn": 2}), (2, 0, 0, START_MS + 2000)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "sqlserver", "oracle"])
@pytest.mark.parametrize("epochs", [(), ((START_MS - 1, 1),)])
def test_numbers_of_the_first_layout_stand_among_those_of_todays_where_their_events_do(
    kind: str, epochs: tuple[tuple[int, int], ...]
) -> None:
    found = [(event, position) for of, event, position in OLD_AND_NEW if of == kind]
    settings = OrderSettings(epochs, kind=kind)
    for olds in itertools.product([False, True], repeat=len(found)):
        mixed = [
            first_layout(kind, event, position) if old else numbers(event, kind=kind)[0]
            for (event, position), old in zip(found, olds, strict=True)
        ]
        times = pa.array([START_MS + event.sec * 1000 for event, _ in found])
        places = standing(pa.array(mixed), times, pa.array([False] * len(mixed)), settings).tolist()
        assert all(a < b for a, b in itertools.pairwise(places)), olds
    backfill = numbers(backfilled(ROW, sec=9000), kind=kind)
    first = standing(pa.array(backfill), pa.array([START_MS]), pa.array([True]), settings)[0]
    assert first < places[0]


def test_a_place_that_cannot_be_read_is_said_with_its_row() -> None:
    metadata = pa.Table.from_pylist(
        [{"source": {"log_file": "no number", "log_position": 1}}, {"source": {"log_file": "b.1", "log_position": 1}}],
        pa.schema(list(METADATA_TYPE)),
    )
    found, bad = sequence_numbers("mysql", metadata, pa.array([1, 2], pa.uint64()))
    assert len(found) == 2
    assert [row for row, _ in bad] == [0]


def test_an_unknown_kind_of_source_is_refused() -> None:
    empty = pa.schema(list(METADATA_TYPE)).empty_table()
    with pytest.raises(ValueError, match="sybase"):
        sequence_numbers("sybase", empty, pa.array([], pa.uint64()))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40), st.integers(0, 10**6)), min_size=2, max_size=20))
def test_text_order_is_the_order_of_the_places(places: list[tuple[int, int, int]]) -> None:
    events = [Event(ROW, at, file=f"bin.{file}", sec=sec) for file, at, sec in places]
    found = numbers(*events)
    order = sorted(range(len(events)), key=lambda n: found[n])
    assert [places[n] for n in order] == sorted(places)


def test_settings_hold_for_numbers_that_were_made_without_them() -> None:
    plain = numbers(Event(ROW, 9000, sec=10), Event(ROW, 5, sec=90))
    settings = OrderSettings(epochs=((START_MS + 60_000, 1),))
    times = pa.array([START_MS + 10_000, START_MS + 90_000])
    before, after = standing(pa.array(plain), times, pa.array([False, False]), settings)
    assert before < after
    assert np.all(standing(pa.array([None, "odd"]), times, pa.array([False, False]), settings) < before)
