"""What may become of an event between its file and its tables: pure, without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from distributary.changes.file_events import read_events
from distributary.changes.model import METADATA, Reading
from distributary.engine.changes import read, routing
from distributary.engine.changes.fitting import FilePart, RouteEvents, column_name, fit
from distributary.engine.changes.rejected_events import as_text
from distributary.engine.changes.task_spec import WorkFile
from distributary.errors import FileBroken, Reason
from distributary.tables.evolve import Policy
from tests.deadly import AtHome
from tests.event_files import event, json_lines


def route_events(*files: list[dict[str, Any]]) -> RouteEvents:
    parts = []
    for number, events in enumerate(files):
        for one in read_events(json_lines(events), "a.jsonl", Reading()).events:
            parts.append(FilePart(one, f"{number}.jsonl"))
    return RouteEvents(parts[0].events.table, parts)


def fitted_columns(fitted: Any) -> list[str]:
    return [name for name in fitted.evolution.schema.names if not name.startswith(("_", METADATA))]


def test_a_schema_of_which_no_row_may_enter_adds_no_column() -> None:
    table = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    policy = Policy(new_column="add", type_change="quarantine")
    good = [event(0, {"id": 0, "n": 1})]
    bad = [event(1, {"id": 1, "n": "text", "more": 1})]
    fitted = fit(route_events(bad, good), table, policy, 0, flat=False)
    assert fitted_columns(fitted) == ["id", "n"]
    assert fitted.table.column("id").to_pylist() == [0]
    assert [rows.column("reason").to_pylist() for rows in fitted.rejected] == [[Reason.TYPE_CONFLICT]]
    alone = fit(route_events(bad), table, policy, 0, flat=False)
    assert fitted_columns(alone) == ["id", "n"] and not alone.table.num_rows
    assert len(alone.rejected) == 1


def test_a_column_that_only_a_rejected_event_has_is_none_of_the_table() -> None:
    events = [event(0, {"id": 0}), event(1, {"id": 1, "more": "x"}, change_type="TRUNCATE")]
    (found,) = read_events(json_lines(events), "a.jsonl", Reading()).events
    assert found.rows.column_names == ["id", METADATA]


def test_a_payload_field_that_is_called_as_ours_has_one_name_wherever_it_is_written() -> None:
    payload = {"id": 0, "Datastream_Metadata": "mine", "_origin": "mine", "_deleted": "mine"}
    key = event(0, payload, primary_keys=["datastream_metadata"])
    for flat in (False, True):
        fitted = fit(route_events([key]), None, Policy(), 0, flat=flat)
        assert not fitted.rejected
        names = fitted.table.column_names
        assert names[:4] == ["id", "Datastream_Metadata__field", "_origin__field", "_deleted__field"]
    assert column_name("datastream_metadata") == "datastream_metadata__field"
    assert route_events([key]).key_lists() == [("Datastream_Metadata__field",)]


def test_a_row_that_python_has_no_values_for_can_be_shown(tmp_path: Path) -> None:
    far = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    shown = as_text(pa.table({"d": far, "b": [b"\xff", None]})).to_pylist()
    assert b"2147483647" in shown[0] and b'"ff"' in shown[0]
    assert b"1970-01-01" in shown[1]


def test_a_file_that_takes_more_memory_than_there_is_is_that_files_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError

    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([event(0)]))
    file = WorkFile(str(path), path.stat().st_size, 0)
    monkeypatch.setattr(read, "read_file", full)
    monkeypatch.setattr(routing, "first_table", full)
    monkeypatch.setattr(routing, "Apart", AtHome)
    orders: Any = SimpleNamespace(source_options={}, reading=Reading())
    with pytest.raises(FileBroken, match="MemoryError"):
        read.load(file, orders)
    assert routing.FileRoutes(Reading(), {}).routes([file]) == {str(path): ()}
