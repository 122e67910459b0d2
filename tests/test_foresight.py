"""`history` tells what became of a route; `plan --schema` what a schema would change. Neither takes Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from distributary.audit.foresight import Foresight, TableChange, foresee
from distributary.audit.history import HistoryStep, RouteHistory, history
from distributary.cli.entry import execute
from distributary.cli.render_history import foresight_text, history_text
from distributary.cli.terminal import PlainConsole
from distributary.config import RegistryConfig
from distributary.errors import BadInput, Exit, SchemaBroken
from distributary.schemas.registry import Registry, open_registry
from distributary.state.ledger import Entry
from distributary.tables.snapshot import Txn
from tests.lake import Lake

SESSION = 'syntax = "proto3"; package shop; message Session { string user = 1; }'
OTHER = 'syntax = "proto3"; package shop; message Other { string user = 1; }'
GROWN = 'syntax = "proto3"; package shop; message Session { string user = 1; double score = 2; }'
NUMBER = 'syntax = "proto3"; package shop; message Session { int64 user = 1; }'


@pytest.fixture
def registry(lake: Path) -> Registry:
    """Schema id 1 is Session's, 2 is Other's."""
    found = open_registry(RegistryConfig(path=str(lake / "r")))
    assert [found.register(name, text).schema.id for name, text in (("s", SESSION), ("o", OTHER))] == [1, 2]
    return found


def proto(root: Path, text: str) -> Path:
    file = root / "new.proto"
    file.write_text(text)
    return file


def text_of(shown: Any, width: int = 160) -> str:
    out = io.StringIO()
    console = PlainConsole(width=width)
    console.file = out
    console.print(shown)
    return out.getvalue()


# -- plan --schema -----------------------------------------------------------------------------------------


def filled(lake: Path, **keys: Any) -> Lake:
    made = Lake(lake, **keys)
    made.batch(0, {"ann": {1: 3}, "bob": {2: 2}})
    made.batch(1, {"cid": {1: 1}})
    return made


def test_a_new_field_is_a_new_column_in_the_tables_of_its_message_only(lake: Path, registry: Registry) -> None:
    made = filled(lake)
    before = sorted(str(path) for path in lake.rglob("*"))
    found = foresee(made.config, file=proto(lake, GROWN))
    assert found.message == "shop.Session" and found.exit_code == Exit.OK
    assert [(t.route, dict(t.new_columns)) for t in found.tables] == [
        ("ann", {"score": "double"}),
        ("cid", {"score": "double"}),
    ]
    assert found.new_table == {"user": "string", "score": "double"}
    (lake / "new.proto").unlink()
    assert sorted(str(path) for path in lake.rglob("*")) == before, "nothing is written"


def test_the_newest_schema_of_a_subject_is_looked_at_too(lake: Path, registry: Registry) -> None:
    made = filled(lake)
    registry.set_compatibility("s", "NONE")
    schema_id = registry.register("s", GROWN).schema.id
    found = foresee(made.config, subject="s")
    assert found.schema == f"s, schema id {schema_id}"
    assert {t.route for t in found.tables} == {"ann", "cid"} and found.tables[0].new_columns == {"score": "double"}


def test_a_type_that_does_not_fit_gets_a_second_column_or_is_refused_as_the_file_says(
    lake: Path, registry: Registry
) -> None:
    file = proto(lake, NUMBER)
    beside = foresee(filled(lake).config, file=file, routes=["ann"])
    assert beside.exit_code == Exit.OK and list(beside.tables[0].new_columns.values()) == ["bigint"]
    strict = Lake(lake, tables={"evolution": {"type_change": "quarantine"}})
    refused = foresee(strict.config, file=file, routes=["ann"])
    assert list(refused.tables[0].refused) == ["user"] and refused.exit_code == Exit.ATTENTION


def test_a_field_that_is_gone_and_a_frozen_table_are_told(lake: Path, registry: Registry) -> None:
    filled(lake)
    frozen = Lake(lake, tables={"evolution": {"new_column": "quarantine"}})
    gone = 'syntax = "proto3"; package shop; message Session { double score = 2; }'
    (table,) = foresee(frozen.config, file=proto(lake, gone), routes=["ann"]).tables
    assert table.unfilled == ("user",) and list(table.refused) == ["score"]


AVRO = '{"type": "record", "name": "M", "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "long"}]}'
JSON = '{"title": "M", "type": "object", "properties": {"user": {"type": "string"}, "n": {"type": "integer"}}}'


@pytest.mark.parametrize(("kind", "ending", "text"), [("avro", "avsc", AVRO), ("json", "json", JSON)])
def test_schemas_of_avro_and_json_are_foreseen_by_their_files_ending(
    lake: Path, registry: Registry, kind: str, ending: str, text: str
) -> None:
    made = filled(lake, payload={"format": kind})
    file = lake / f"new.{ending}"
    file.write_text(text)
    found = foresee(made.config, file=file, routes=["ann"])
    assert found.message == "M" and "n" in found.tables[0].new_columns
    assert "user" not in found.tables[0].new_columns and found.exit_code == Exit.OK


def test_a_json_schema_without_a_title_belongs_to_no_table_by_itself(lake: Path, registry: Registry) -> None:
    made = filled(lake, payload={"format": "json"})
    file = lake / "new.json"
    file.write_text(JSON.replace('"title": "M", ', ""))
    found = foresee(made.config, file=file)
    assert found.tables == () and "--route" in found.notes[0]


def test_a_file_that_is_not_there_is_said_plainly(lake: Path, registry: Registry) -> None:
    with pytest.raises(BadInput) as e:
        foresee(filled(lake).config, file=lake / "nothing.proto")
    assert "there is no such file" in str(e.value)


def test_columns_that_the_product_adds_are_not_missed_in_a_schema(lake: Path, registry: Registry) -> None:
    made = filled(lake)
    rows = made.rows(2, {1: 1}).append_column("_deleted", [[False]])
    made.append("ann", rows, Txn(made.stream, 2))
    (table,) = foresee(made.config, file=proto(lake, GROWN), routes=["ann"]).tables
    assert table.unfilled == () and table.new_columns == {"score": "double"}


def test_a_new_route_and_a_message_that_nobody_sends_have_their_table_told(lake: Path, registry: Registry) -> None:
    text = 'syntax = "proto3"; message A { int32 a = 1; } message B { string b = 1; }'
    config = filled(lake).config
    found = foresee(config, file=proto(lake, text), message="B")
    assert (found.message, found.tables, found.new_table) == ("B", (), {"b": "string"})
    (table,) = foresee(config, file=proto(lake, text), routes=["nobody"]).tables
    assert table.new_columns == {"a": "int"}


def test_what_does_not_compile_or_has_no_such_message_is_an_error(lake: Path, registry: Registry) -> None:
    config = filled(lake).config
    with pytest.raises(SchemaBroken):
        foresee(config, file=proto(lake, "message {"))
    with pytest.raises(BadInput):
        foresee(config, file=proto(lake, SESSION), message="shop.Nothing")
    with pytest.raises(BadInput):
        foresee(config)


def test_foresight_in_words_says_the_worst_first() -> None:
    tables = (
        TableChange("ann", "t", new_columns={"score": "double"}),
        TableChange("bob", "t", refused={"user": "TYPE_CHANGED"}, unfilled=("old",)),
        TableChange("cid", "t"),
    )
    text = text_of(foresight_text(Foresight("games", "new.proto", "shop.Session", tables, {"user": "string"}, ("hm",))))
    lines = text.splitlines()
    assert "3 tables have rows of it, 2 would change; values would be quarantined in 1 of them" in lines[0]
    assert [line.split()[0] for line in lines[3:7]] == ["bob", "no", "ann", "cid"]
    assert "a new route would get a table of: user string" in text and "note: hm" in text


# -- history -----------------------------------------------------------------------------------------------


def test_a_route_s_history_says_schemas_columns_versions_and_offsets(lake: Path, registry: Registry) -> None:
    made = Lake(lake)
    made.batch(0, {"ann": {1: 3}, "bob": {2: 2}})
    made.batch(1, {"ann": {1: 2, 7: 1}}, bad={"ann": 4})
    made.batch(2, {"bob": {2: 1}})
    made.batch(3, {"ann": {1: 1}}, parked={"bob": 2})
    found = history(made.config, "ann")
    assert found.table == made.table("ann") and found.rows == 7 and found.columns == {"user": "string"}
    assert [(s.id, s.rows, s.first_batch) for s in found.schemas] == [(1, 6, 0), (7, 1, 1)]
    assert all(s.first_offset for s in found.schemas) and found.schemas[0].first_offset["0"] == 0
    assert [(s.batch, s.rows, s.quarantined, s.version) for s in found.steps] == [
        (0, 3, 0, 0),
        (1, 3, 4, 1),
        (3, 1, 0, 2),
    ]
    first, second, _ = found.steps
    assert first.created and first.new_columns == {"user": "string"} and first.new_schemas == (1,)
    assert second.new_schemas == (7,) and second.reasons == {"CORRUPT_PAYLOAD": 4}
    assert history(made.config, "bob").steps[-1].state == "parked"


def test_a_column_is_told_with_the_batch_that_brought_it(lake: Path) -> None:
    made = Lake(lake)
    made.batch(0, {"ann": {1: 3}})
    rows = made.rows(1, {1: 2})
    grown = rows.append_column("score", [[1.5, 2.5]])
    made.append("ann", grown, Txn(made.stream, 1))
    entry = Entry(
        made.stream, 1, "ann", table=made.table("ann"), state="written", rows_in=2, rows_written=2, evolved=True
    )
    made.ledger.record(made.stream, 1, [entry, Entry(made.stream, 1, None)], {})
    step = history(made.config, "ann").steps[-1]
    assert (step.new_columns, step.version, step.is_event) == ({"score": "double"}, 2, True)  # a commit adds the column


def test_an_unknown_route_names_those_that_are_known(lake: Path) -> None:
    made = Lake(lake)
    made.batch(0, {"ann": {1: 3}})
    with pytest.raises(BadInput) as e:
        history(made.config, "amn")
    assert "ann" in e.value.parameters["detail"]


def test_history_in_words_has_events_and_the_newest_batches() -> None:
    steps = tuple(
        HistoryStep(
            "batch",
            n,
            "2026-11-29T20:00:00Z",
            "written",
            10,
            0,
            version=n,
            created=n == 0,
            new_columns={"a": "int"} if n == 0 else {},
        )
        for n in range(30)
    )
    odd = HistoryStep("batch", 30, None, "parked", 0, 3, error="disk\n[red]full")
    text = text_of(history_text(RouteHistory("games", "ann", "/lake/ann", {"a": "int"}, 300, (), (*steps, odd)), 5))
    words = " ".join(text.split())
    assert "batch 0, 2026-11-29T20:00:00Z: new table: a int" in words
    assert "batch 30, -: PARKED: disk" in words and "[red]full" in words
    assert "\n26 " in text and "\n25 " not in text


def test_the_commands_say_it_as_json_and_by_exit_code(
    lake: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    made = filled(lake)
    file = lake / "p.yaml"
    about = {
        "pipeline": "games",
        "source": {"type": "delta", "path": "/nowhere"},
        "registry": {"path": str(lake / "r")},
    }
    tables = {"root": made.config.tables.root, "evolution": {"type_change": "quarantine"}}
    file.write_text(json.dumps({**about, "tables": tables}))
    new = proto(lake, NUMBER)
    assert execute(["plan", str(file), "--schema", str(new), "--json"]) == Exit.ATTENTION
    assert json.loads(capsys.readouterr().out)["tables"][0]["refused"].keys() == {"user"}
    assert execute(["plan", str(file), "--subject", "s"]) == Exit.OK
    assert execute(["plan", str(file), "--route", "ann"]) == Exit.BAD_INPUT
    assert execute(["history", str(file), "--route", "ann", "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 3
    assert execute(["history", str(file), "--route", "ann"]) == Exit.OK
