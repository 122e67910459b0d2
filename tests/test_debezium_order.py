"""Any history of a table, its messages in any order, doubled and cut into any batches: what is left of each key is what
the source's table holds. The answer is the dict that the statements changed, not anything that the messages say.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.anew import BegunAnew
from distributary.changes.debezium.heads import PLAIN, Form, Message
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.digits import WIDTH
from distributary.changes.model import METADATA, Reading
from distributary.changes.reduce import newest, reduce_rows
from distributary.changes.sequence import OrderSettings
from tests.debezium_messages import MS, change, document

CONNECTORS = ("mysql", "mariadb", "postgresql", "sqlserver", "oracle", "mongodb")
KINDS = {"id": "int32", "value": "string", "big": "string"}
NO_SETTINGS = OrderSettings()
PLACEHOLDER = "__debezium_unavailable_value"
Step = tuple[str, int, int]
STATEMENTS = st.sampled_from(["put", "put", "delete", "move", "shift", "snapshot"])
STEPS = st.lists(
    st.tuples(STATEMENTS, st.integers(0, 4), st.integers(0, 4)),
    max_size=30,
)


@dataclass
class Log:
    """One database's log: gives each change of a row its place, in the fields of its connector."""

    connector: str
    at: int = 0
    row: int = 0

    def statement(self, by: int = 1) -> None:
        self.at += max(1, by)
        self.row = 0

    def place(self) -> dict[str, Any]:
        at, row = self.at, self.row
        self.row += 1
        match self.connector:
            case "mysql":  # 999998, 999999, 1000000: numbers that texts put in another order
                return {"file": f"mysql-bin.{999_998 + at // 7:06d}", "pos": 4 + at % 7 * 100, "row": row}
            case "mariadb":
                # After a failover files begin anew, and the GTID goes on.
                file = f"mysql-bin.{(40 if at > 9 else 90):06d}"
                return {"gtid": f"0-{1 + (at > 9)}-{at}", "file": file, "pos": 4, "row": row}
            case "postgresql":
                return {"lsn": 0xF_FFFF_FFF0 + at * 64 + row * 8}
            case "sqlserver":
                return {
                    "commit_lsn": f"00000025:{0xFFF0 + at:08x}:0003",
                    "change_lsn": f"00000025:{0xFFF0 + at:08x}:{row + 1:04x}",
                    "event_serial_no": 1,
                }
            case "oracle":
                return {"scn": str(999_990 + at // 3), "rs_id": f"0x000004.{0xFFF0 + at:08x}.0010", "ssn": row}
            case _:
                return {"ts_ms": MS + at // 5 * 1000, "ord": at % 5 * 100 + row}


@dataclass
class Table:
    log: Log
    rows: dict[int, tuple[str, str]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    made: int = 0
    toast: bool = False

    def live(self, step: Step) -> None:
        what, key, other = step
        self.log.statement(other)
        getattr(self, f"_{what}")(key, other)

    def _tell(self, op: str, key: int, row: tuple[str, str], place: dict[str, Any], **more: Any) -> None:
        said = {"id": key, "value": row[0], "big": row[1]}
        given = {"connector": self.log.connector, "kinds": KINDS, "offset": len(self.messages), **place, **more}
        if self.log.connector == "mongodb":
            del given["kinds"], given["connector"]
            self.messages.append(document(op, key, {"value": row[0], "big": row[1]}, **given))
        else:
            self.messages.append(change(op, said, **given))

    def _new(self) -> tuple[str, str]:
        self.made += 1
        return f"v{self.made}", f"big{self.made}"

    def _put(self, key: int, other: int) -> None:
        value, big = self._new()
        known = self.rows.get(key)
        if self.toast and known is not None and other % 2:
            self.rows[key] = value, known[1]
            self._tell("u", key, (value, PLACEHOLDER), self.log.place())
        else:
            self.rows[key] = value, big
            self._tell("c" if known is None else "u", key, self.rows[key], self.log.place())

    def _delete(self, key: int, other: int) -> None:
        if key in self.rows:
            self._tell("d", key, self.rows.pop(key), self.log.place())

    def _move(self, key: int, other: int) -> None:
        if key in self.rows and other not in self.rows:
            place, row = self.log.place(), self.rows.pop(key)
            self.rows[other] = row
            self._tell("d", key, row, place)
            self._tell("c", other, row, place)

    def _shift(self, key: int, other: int) -> None:
        """`SET id = id + 1`, the last row first."""
        for old in sorted(self.rows, reverse=True):
            place, row = self.log.place(), self.rows.pop(old)
            self.rows[old + 1] = row
            self._tell("d", old, row, place)
            self._tell("c", old + 1, row, place)

    def _snapshot(self, key: int, other: int) -> None:
        """Read now; what the log says of these rows is in it too."""
        place = self.log.place()
        for at, row in self.rows.items():
            self._tell("r", at, row, place, snapshot="incremental")


def told(connector: str, steps: Sequence[Step], *, toast: bool = False, kind: type[Table] = Table) -> Table:
    table = kind(Log(connector), toast=toast)
    for key in range(3):
        table.live(("put", key, 1))
    for step in steps:
        table.live(step)
    return table


def merged(
    batches: Sequence[Sequence[Message]], form: Form = PLAIN, order: OrderSettings = NO_SETTINGS
) -> dict[int, Any]:
    """What is left when each batch is merged into what the ones before it have left."""
    held: pa.Table | None = None
    for batch in batches:
        found = read_messages(batch, Reading(order=order), form)
        assert found.bad == []
        parts = [*([] if held is None else [held]), *(events.rows for events in found.events)]
        if parts:
            rows = pa.concat_tables(parts)
            held = newest(rows, ["_id" if "_id" in rows.column_names else "id"], order)
    return living(held)


def living(rows: pa.Table | None) -> dict[int, Any]:
    found = {}
    for row in [] if rows is None else rows.to_pylist():
        if not row[METADATA]["is_deleted"]:
            values = json.loads(row["data"]) if "data" in row else row
            found[int(row.get("_id", values.get("id")))] = values["value"], values["big"]
    return found


def cut(messages: list[Message], random: Random) -> list[list[Message]]:
    places = sorted(random.randrange(len(messages) + 1) for _ in range(random.randrange(4)))
    return [messages[a:b] for a, b in itertools.pairwise([0, *places, len(messages)])]


@pytest.mark.parametrize("connector", CONNECTORS)
@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_the_order_of_arrival_plays_no_part(connector: str, steps: list[Step], random: Random) -> None:
    table = told(connector, steps)
    again = [
        m._replace(record=m.record._replace(offset=m.record.offset + 1_000))
        for m in table.messages
        if random.random() < 0.3
    ]
    messages = [*table.messages, *again]
    random.shuffle(messages)
    assert merged(cut(messages, random)) == table.rows


@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_what_was_not_logged_comes_from_the_events_before(steps: list[Step], random: Random) -> None:
    table = told("postgresql", [step for step in steps if step[0] in ("put", "delete")], toast=True)
    messages = list(table.messages)
    random.shuffle(messages)
    found = read_messages(messages, Reading())
    rows = pa.concat_tables([events.rows for events in found.events])
    assert living(reduce_rows(rows, ["id"], OrderSettings()).rows) == table.rows


@given(steps=STEPS, random=st.randoms(use_true_random=False))
def test_by_offset_the_newest_message_of_a_key_holds_whatever_positions_say(steps: list[Step], random: Random) -> None:
    """As after a failover: the positions begin anew, and a snapshot is newer than the changes before it."""
    table = told("mysql", steps)
    restarted = Table(Log("mysql"), dict(table.rows), list(table.messages), table.made)
    restarted.rows[77] = ("lost by the log", "")
    restarted.live(("snapshot", 0, 0))
    restarted.live(("put", 1, 0))
    messages = list(restarted.messages)
    random.shuffle(messages)
    assert merged(cut(messages, random), Form(by_offset=True)) == restarted.rows


def numbers(*messages: Message) -> list[str]:
    found = read_messages(messages, Reading())
    placed = [
        (at, row["change_sequence_number"])
        for events in found.events
        for at, row in zip(events.numbers.to_pylist(), events.rows.column(METADATA).to_pylist(), strict=True)
    ]
    return [number for _, number in sorted(placed)]


def at(connector: str, **source: Any) -> Message:
    return change("u", {"id": 1, "value": "a"}, connector=connector, **source)


def sqlserver(change_end: str, serial: int) -> Message:
    lsn = "00000025:00000728"
    return at("sqlserver", commit_lsn=f"{lsn}:0003", change_lsn=f"{lsn}:{change_end}", event_serial_no=serial)


ASCENDING: dict[str, list[Callable[[], Message]]] = {
    "mysql": [
        lambda: at("mysql", file="b.999999", pos=900, ts_ms=MS + 9),
        lambda: at("mysql", file="b.1000000", pos=4, ts_ms=MS),
        lambda: at("mysql", file="b.1000000", pos=40, row=0),
        lambda: at("mysql", file="b.1000000", pos=40, row=10),
        lambda: at("mysql", file="b.1000000", pos=200),
    ],
    "mariadb": [
        lambda: at("mariadb", gtid="0-1-9", file="b.90"),
        lambda: at("mariadb", gtid="0-2-10", file="b.2"),
        lambda: at("mariadb", gtid="0-2-10", file="b.2", row=1),
    ],
    "postgresql": [
        lambda: at("postgresql", lsn=0xF_FFFF_FFFF),
        lambda: at("postgresql", lsn=0x10_0000_0000, ts_ms=MS - 5),
    ],
    "sqlserver": [
        lambda: sqlserver("0002", 2),
        lambda: sqlserver("0010", 1),
        lambda: sqlserver("0010", 2),
        lambda: at("sqlserver", commit_lsn="00000025:00000730:0001", change_lsn="00000025:00000001:0001"),
        lambda: at("sqlserver", commit_lsn="00000100:00000001:0001", change_lsn=None),
    ],
    "oracle": [
        lambda: at("oracle", scn="999", rs_id="0x000009.00000705.0010"),
        lambda: at("oracle", scn="1000", rs_id="0x000004.00000705.0010", ssn=9),
        lambda: at("oracle", scn="1000", rs_id="0x000004.00000705.0020", ssn=0),
        lambda: at("oracle", scn="1000", rs_id="0x000004.00001000.0010", ssn=0),
        lambda: at("oracle", scn="10000", rs_id=None),
    ],
    "vitess": [lambda: at("vitess", ts_ms=MS), lambda: at("vitess", ts_ms=MS + 1)],
}  # fmt: skip


@pytest.mark.parametrize("connector", ASCENDING)
def test_a_later_place_in_the_log_is_a_greater_number(connector: str) -> None:
    found = numbers(*(make() for make in ASCENDING[connector]))
    assert all(a < b for a, b in itertools.pairwise(found)), found
    assert {len(number) for number in found} == {WIDTH}


def test_of_two_messages_of_one_place_the_one_with_the_greater_offset_holds() -> None:
    for connector in ASCENDING:
        one, other = numbers(at(connector, offset=9), at(connector, offset=10))
        assert one < other, connector


def test_a_row_of_a_snapshot_is_older_than_any_change_and_a_later_snapshot_is_newer() -> None:
    for connector in ASCENDING:
        row, later = (
            change("r", {"id": 1}, connector=connector, snapshot="true", ts_ms=MS + n, offset=n) for n in (8, 9)
        )
        found = numbers(row, later, at(connector, ts_ms=MS - 9_000))
        assert found == sorted(found), connector


def test_a_log_that_has_begun_anew_is_told_and_an_epoch_mends_it() -> None:
    hours = 3 * 3_600_000
    old = at("mysql", file="b.90", pos=4, ts_ms=MS)
    new = change("u", {"id": 1, "value": "b"}, file="b.1", pos=4, ts_ms=MS + hours, offset=1)
    rows = pa.concat_tables([events.rows for events in read_messages([old, new], Reading()).events])
    with pytest.raises(BegunAnew):
        newest(rows, ["id"], OrderSettings(kind="mysql"))
    order = OrderSettings(epochs=((MS + hours - 1, 1),), kind="mysql")
    assert newest(rows, ["id"], order).column("value").to_pylist() == ["b"]
