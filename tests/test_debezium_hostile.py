"""Whatever stands in a message of Debezium: nothing raises, and each message is an event, set aside, or passed over."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.debezium.heads import Form, Message
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.debezium.source_table import routes_of
from distributary.changes.model import Reading
from tests.debezium_messages import SOURCES, change, named, text

KINDS = {
    "id": "int32",
    "paid": named("bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
    "at": named("int64", "io.debezium.time.MicroTimestamp"),
    "seen": named("string", "io.debezium.time.ZonedTimestamp"),
    "list": {"type": "array", "items": {"type": "int32"}},
}
ROW = {"id": 1, "paid": "AQ==", "at": 5, "seen": "2024-02-03T04:05:06Z", "list": [1]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("x" * 300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FORMS = st.builds(Form, flattened=st.booleans(), by_offset=st.booleans())


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [deeper for name, part in parts for deeper in paths(part, (*path, name))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    parts = dict(value) if isinstance(value, dict) else list(value)
    parts[first] = replaced(parts[first], tuple(rest), new)
    return parts


def holds(messages: list[Message], form: Form) -> None:
    found = read_messages(messages, Reading(), form)
    assert sum(events.rows.num_rows for events in found.events) + len(found.bad) + found.skipped == len(messages)
    routes_of([message.value for message in messages if message.value is not None])


@given(st.data(), st.sampled_from(sorted(SOURCES)), st.booleans(), VALUES, FORMS)
def test_any_part_may_be_anything(data: st.DataObject, connector: str, schemas: bool, new: Any, form: Form) -> None:
    good = change("u", ROW, connector=connector, kinds=KINDS if schemas else None)
    body = json.loads(good.value or b"")
    spoiled = replaced(body, data.draw(st.sampled_from(paths(body))), new)
    key = replaced(json.loads(good.key or b"{}"), (), new) if data.draw(st.booleans()) else None
    holds([good._replace(value=text(spoiled), key=good.key if key is None else text(key)), good], form)


@given(st.binary(max_size=60), st.binary(max_size=20) | st.none(), FORMS)
def test_any_bytes_may_come(value: bytes, key: bytes | None, form: Form) -> None:
    good = change("u", ROW, kinds=KINDS)
    holds([good._replace(value=value, key=key), good], form)
