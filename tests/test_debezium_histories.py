"""Invented histories of five kinds of databases, as Debezium's messages: what is left is what the tables hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distributary.changes.debezium import json_messages
from distributary.changes.debezium.heads import Form, Message, Record
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.model import METADATA, Kind, Reading
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.errors import Reason
from distributary_simulate.change_messages.debezium import DebeziumTopics
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.model import Table
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.changes.unified import Unified, instant_text
from tests.debezium_messages import change

KINDS = (Kind.MYSQL, Kind.POSTGRESQL, Kind.ORACLE, Kind.SQLSERVER, Kind.MONGODB)


def messages_of(history: History, events: int, *, schemas: bool) -> list[Message]:
    topics = DebeziumTopics(schemas=schemas)
    made: list[Message] = []
    for changes in (history.changes(events), history.finish()):
        for one in changes:
            for message in topics.messages(one):
                headers = frozenset(name for name, _ in message.headers)
                made.append(Message(Record(message.topic, 0, len(made), 0, headers), message.key, message.value))
    return made


def plain(kind: Unified, value: Any) -> Any:
    """A value of the history as its column has it."""
    match kind.name:
        case _ if value is None:
            return None
        case "NUMBER":
            return format(Decimal(value), "f")
        case "TIME" | "TIME_INTERVAL":
            seconds, micros = divmod(abs(value), 1_000_000)
            text = f"{'-' if value < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
            return text + (f".{micros:06d}".rstrip("0") if micros else "")
        case "TIMESTAMP" | "TIMESTAMP_TZ":
            micros = value if kind.name == "TIMESTAMP" else value[0]
            return instant_text(micros, "")
        case "DATE":
            return str(np.datetime64(value, "D"))
        case "FLOAT":
            return str(np.float32(value))
        case "DOUBLE":
            return str(value)
        case _:
            return value


def shown(kind: Unified, value: Any) -> Any:
    """A value of a column, in the same form."""
    match kind.name:
        case _ if value is None:
            return None
        case "TIMESTAMP" | "TIMESTAMP_TZ":
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0")
        case "DATE":
            return value.isoformat()
        case "FLOAT":
            return str(np.float32(value))
        case "DOUBLE":
            return str(value)
        case _:
            return value


def left(truth: TableTruth, rows: pa.Table) -> dict[Any, Mapping[str, Any]]:
    keys = truth.table.keys
    newest = reduce_rows(rows, list(keys), OrderSettings()).rows.to_pylist()
    living = [row for row in newest if not row[METADATA]["is_deleted"]]
    return {tuple(row[key] for key in keys): row for row in living}


def merged_name(table: Table) -> str:
    return "_".join(part for part in (table.database or "app", table.schema, table.name) if part).lower()


def assert_source_rows(truth: TableTruth, rows: list[dict[str, Any]]) -> None:
    """The rows that live in a merged table are the source's own."""
    table = truth.table
    if table.kind is Kind.MONGODB:
        assert {json.loads(row["_id"]): row["data"] for row in rows} == {row["_id"]: row["data"] for row in truth.rows}
        return
    ours = {tuple(row[key] for key in table.keys): row for row in rows}
    assert len(ours) == len(rows) == len(truth.rows)
    for key, row in truth.by_key().items():
        for column in table.columns:
            is_held = shown(column.type, ours[key].get(column.name))
            assert is_held == plain(column.type, row.get(column.name)), (key, column)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schemas", [True, False], ids=["with schemas", "without"])
def test_what_is_left_is_what_the_tables_hold(kind: Kind, schemas: bool) -> None:
    history = History(HistoryPlan(tables=tuple(t for t in HistoryPlan().tables if t.kind is kind), seed=11))
    messages = messages_of(history, 1_500, schemas=schemas)
    Random(5).shuffle(messages)
    found = read_messages(messages, Reading(json_numbers="double"))
    assert {bad.reason for bad in found.bad} <= ({Reason.NO_ROW_IMAGE} if kind is Kind.MONGODB else set())
    for truth in history.truth().values():
        table = truth.table
        if not table.keys:
            continue
        mine = [
            events.rows
            for events in found.events
            if (events.table.table, events.table.schema) == (table.name, table.schema)
        ]
        rows = left(truth, pa.concat_tables(mine, promote_options="permissive"))
        if kind is Kind.MONGODB:
            assert {json.loads(key[0]): row["data"] for key, row in rows.items()} == {
                row["_id"]: row["data"] for row in truth.rows
            }
            continue
        assert rows.keys() == truth.by_key().keys()
        if schemas:
            for key, row in truth.by_key().items():
                for column in table.columns:
                    expected, ours = (
                        plain(column.type, row.get(column.name)),
                        shown(column.type, rows[key].get(column.name)),
                    )
                    assert ours == expected, (table.route, key, column)


@pytest.mark.parametrize("schemas", [True, False], ids=["with schemas", "without"])
@pytest.mark.parametrize("form", [Form(), Form(by_offset=True)], ids=["by position", "by offset"])
def test_messages_that_are_read_at_once_say_what_they_say_one_by_one(
    form: Form, schemas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = messages_of(History(HistoryPlan(seed=6)), 600, schemas=schemas)
    unlogged = change("u", {"id": 1, "big": "__debezium_unavailable_value"}, connector="postgresql", headers=["h"])
    moved = change("d", {"id": 1, "big": "b"}, headers=["__debezium.newkey"])
    odd = change("c", {"id": 1}, file=None)  # of no position
    several = [*messages, unlogged, moved, odd, change("d", None, before=None)]

    def read() -> tuple[list[Any], list[Any]]:
        found = read_messages(several, Reading(), form)
        rows = [
            (number, events.table, events.keys, events.schema_key, row)
            for events in found.events
            for number, row in zip(events.numbers.to_pylist(), events.rows.to_pylist(), strict=True)
        ]
        return sorted(rows, key=lambda row: row[0]), [(bad.row, bad.reason, bad.detail) for bad in found.bad]

    at_once = read()
    monkeypatch.setattr(json_messages, "read_at_once", lambda messages, *_: list(range(len(messages))))
    assert at_once == read()
    assert len(at_once[0]) > 500
