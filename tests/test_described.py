"""What tables are given for their readers: comments, properties, columns to partition or cluster by."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.config import Pipeline, Tables
from distributary.schemas.avro.payload import AvroSchema
from distributary.schemas.avro.payload import decoder_for as avro_decoder_for
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry.compile import compile_text
from distributary.tables.comments import COMMENT
from distributary.tables.commits import read_commit
from distributary.tables.engines import policy_of, why_spark
from distributary.tables.evolve import evolve
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import OWNER_KEY, Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table

STORE = Store()
ROWS = pa.table({"id": [1, 2], "player": [{"name": "ann"}, {"name": "bob"}]})


def tables(root: Path, **keys: object) -> Tables:
    return Tables.model_validate({"root": str(root), **keys})


def appended(table: Table, settings: Tables, rows: pa.Table, batch: int) -> Snapshot:
    route = "" if table.owner is None else table.owner.route
    before = table.open()
    evolution = evolve(None if before is None else before.schema, [rows.schema], policy_of(settings, route))
    table.commit(before, evolution, [table.write(rows.select(evolution.schema.names))], Txn("s", batch))
    after = table.open()
    assert after is not None
    return after


def comments(table: Snapshot) -> dict[str, str]:
    """Path of a column -> its comment, as the table's schema has it."""

    def within(fields: list[dict[str, object]], path: str) -> dict[str, str]:
        commented: dict[str, str] = {}
        for field in fields:
            kind, metadata = field["type"], field["metadata"]
            assert isinstance(metadata, dict)
            if "comment" in metadata:
                commented[f"{path}{field['name']}"] = metadata["comment"]
            if isinstance(kind, dict) and kind["type"] == "struct":
                commented |= within(kind["fields"], f"{path}{field['name']}.")
        return commented

    return within(json.loads(table.schema_json)["fields"], "")


# -- settings ----------------------------------------------------------------------------------------------


def test_a_route_is_described_by_all_tables_then_by_each_pattern_in_order_then_by_itself(tmp_path: Path) -> None:
    settings = tables(
        tmp_path,
        comment="Events of {route}",
        properties={"a": "1", "b": "1", "c": "1"},
        patterns=[
            {"routes": ["chess_*", "go"], "properties": {"b": "2", "c": "2"}, "partition_by": ["day"]},
            {"routes": ["*_blitz"], "properties": {"c": "3"}, "column_comments": {"elo": "Strength"}},
        ],
        routes={"chess_blitz": {"comment": "Fast chess", "partition_by": []}},
    )
    assert settings.described("poker").properties == {"a": "1", "b": "1", "c": "1"}
    assert settings.described("poker").comment == "Events of poker"
    assert settings.described("go").partition_by == ("day",)
    own = settings.described("chess_blitz")
    assert own.properties == {"a": "1", "b": "2", "c": "3"}
    assert (own.comment, own.column_comments, own.partition_by) == ("Fast chess", {"elo": "Strength"}, ())


GAMES: dict[str, object] = {
    "pipeline": "games",
    "source": {"type": "kafka", "bootstrap_servers": "localhost:9092", "topic": "events"},
    "registry": {"url": "http://localhost:8081"},
    "envelope": {"format": "protobuf", "route": "game_name", "schema_id": "schema_id", "payload": "payload"},
}


@pytest.mark.parametrize(
    ("keys", "layout", "key", "words"),
    [
        ({"partition_by": ["day"], "engine": "task"}, "fanout", "tables.engine", "written by Spark"),
        ({"routes": {"go": {"cluster_by": ["id"], "engine": "task"}}}, "fanout", "tables.routes.go.engine", "Spark"),
        ({"partition_by": ["day"], "cluster_by": ["id"]}, "fanout", "tables.cluster_by", "give one of the two"),
        ({"partition_by": ["day", "Day"]}, "fanout", "tables.partition_by", "stands there twice"),
        ({"partition_by": ["day"], "keys": ["id"]}, "fanout", "tables.partition_by", "a merge finds its rows"),
        ({"written_at": True, "origin": False}, "fanout", "tables.written_at", "a field of _origin"),
        ({"written_at": True, "keys": ["id"]}, "fanout", "tables.written_at", "messages without keys"),
        ({"written_at": True, "evolution": "none"}, "fanout", "tables.written_at", "new_column add"),
        (
            {"routes": {"go": {"properties": {"delta.feature.catalogManaged": "supported"}}}},
            *("fanout", "tables.routes.go.properties", "managed tables of Unity Catalog"),
        ),
        ({"comment": "Games"}, "wide", "tables.comment", "not allowed with layout wide"),
        ({"routes": {"go": {"properties": {"a": "1"}}}}, "wide", "tables.routes.go.properties", "those of tables.prop"),
        ({"routes": {"go": {"properties": {"a": "1"}}}}, "declarative", "tables.routes.go.properties", "those of"),
        ({"patterns": [{"routes": ["a*"], "comment": "A"}]}, "wide", "tables.patterns", "not allowed with layout wide"),
    ],
)
def test_what_a_table_cannot_be_given_is_refused(
    tmp_path: Path, keys: dict[str, object], layout: str, key: str, words: str
) -> None:
    document = {**GAMES, "layout": layout, "tables": {"root": str(tmp_path), **keys}}
    with pytest.raises(ValueError, match=words) as refused:
        Pipeline.model_validate(document)
    assert key in str(refused.value.errors()[0]["ctx"]["key"])  # type: ignore[attr-defined]


def test_a_table_to_be_partitioned_or_clustered_asks_for_spark_by_name(tmp_path: Path) -> None:
    settings = tables(tmp_path, patterns=[{"routes": ["a"], "partition_by": ["day"]}], cluster_by=None)
    assert why_spark(None, settings, "a") == "tables.partition_by"
    assert why_spark(None, settings, "b") is None
    assert why_spark(None, tables(tmp_path, cluster_by=["id"]), "b") == "tables.cluster_by"


def test_the_page_says_which_engine_writes_each_feature(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "tables.md").read_text()
    rows = re.findall(
        r'^\|[^|]*\| `(delta[.]\w+(?:[.]\w+)?|\w+_by)(?:: ("?\w+"?))?`[^|]*\| (tasks|Spark)\b', text, re.M
    )
    assert len(rows) == 9
    for key, value, engine in rows:
        settings = {"properties": {key: value.strip('"')}} if value else {key: ["id"]}
        why = why_spark(None, tables(tmp_path, **settings), "a")
        assert (why is None) == (engine == "tasks"), (key, why)


# -- tables ------------------------------------------------------------------------------------------------


def test_a_new_table_has_its_comment_its_properties_and_the_comments_of_its_columns(tmp_path: Path) -> None:
    settings = tables(
        tmp_path,
        comment="Events of {route}",
        column_comments={"id": "Who", "player.name": "As shown", "later": "Came later"},
        patterns=[{"routes": ["g*"], "properties": {"delta.appendOnly": "true"}}],
    )
    table = Table.of_route(str(tmp_path / "go"), STORE, Owner("games", "go"), settings)
    made = appended(table, settings, ROWS, 0)
    assert made.delta.metadata().description == "Events of go"
    assert made.properties["delta.appendOnly"] == "true"
    assert comments(made) == {"id": "Who", "player.name": "As shown"}
    grown = appended(table, settings, ROWS.append_column("later", pa.array([1, 2])), 1)
    assert comments(grown) == {"id": "Who", "player.name": "As shown", "later": "Came later"}


def test_a_field_that_comes_later_inside_of_a_struct_has_its_comment_too(tmp_path: Path) -> None:
    first = tables(tmp_path, column_comments={"player.name": "As shown"})
    later = {"player.name": "It has one", "player.team": "Who with", "player.at.x": "X"}
    settings = tables(tmp_path, column_comments=later)
    table = Table.of_route(str(tmp_path / "go"), STORE, Owner("games", "go"), settings)
    appended(table, first, pa.table({"id": [1], "player": [{"name": "ann", "at": {"y": 1}}]}), 0)
    team = pa.field("team", pa.string(), metadata={COMMENT: b"As the schema says"})
    at = pa.field("at", pa.struct([("y", pa.int64()), ("x", pa.int64())]))
    player = pa.field("player", pa.struct([pa.field("name", pa.string()), at, team]))
    row = {"id": 2, "player": {"name": "bob", "at": {"y": 1, "x": 2}, "team": "red"}}
    after = appended(table, settings, pa.Table.from_pylist([row], pa.schema([("id", pa.int64()), player])), 1)
    assert comments(after) == {"player.name": "As shown", "player.team": "Who with", "player.at.x": "X"}
    assert row in after.query("SELECT * FROM t").to_pylist()


def test_what_people_say_of_a_column_stays_when_others_come_and_when_a_type_grows(tmp_path: Path) -> None:
    settings = tables(tmp_path, column_comments={"id": "Who"})
    table = Table.of_route(str(tmp_path / "go"), STORE, Owner("games", "go"), settings)
    appended(table, settings, pa.table({"id": pa.array([1], pa.int32())}), 0)
    DeltaTable(tmp_path / "go").alter.set_column_metadata("id", {"comment": "People say"})
    appended(table, settings, pa.table({"id": pa.array([1], pa.int32()), "n": [1]}), 1)
    after = appended(table, settings, pa.table({"id": pa.array([1 << 40]), "n": [1]}), 2)
    assert str(after.schema.field("id").type) == "int64"
    assert comments(after) == {"id": "People say"}


def test_an_owner_in_the_description_becomes_a_property_with_the_next_batch(tmp_path: Path) -> None:
    """Tables of version 0.1.0 had it there, where `COMMENT ON TABLE` takes it away."""
    owner, settings = Owner("games", "go"), tables(tmp_path)
    write_deltalake(tmp_path / "go", ROWS, description=owner.text())
    table = Table.of_route(str(tmp_path / "go"), STORE, owner, settings)
    appended(table, settings, ROWS, 0)
    DeltaTable(tmp_path / "go").alter.set_table_description("What players did")
    after = appended(table, settings, ROWS, 1)
    assert after.properties[OWNER_KEY] == owner.text()
    assert (after.owner, after.delta.metadata().description) == (owner, "What players did")
    assert len(after.query("SELECT * FROM t")) == 6


def test_where_nothing_can_be_put_once_the_owner_becomes_a_property_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.tables.table.cannot_put_once", lambda uri, store: "a locking provider for S3")
    settings = tables(tmp_path, comment="Events of {route}")
    owner = Owner("games", "go")
    made = appended(Table.of_route(str(tmp_path / "go"), STORE, owner, settings), settings, ROWS, 0)
    first = read_commit(made.uri, STORE, 0)
    assert first is not None and json.dumps(owner.text())[1:-1] in first.decode()
    assert (made.properties[OWNER_KEY], made.delta.metadata().description) == (owner.text(), "Events of go")


def test_the_columns_that_a_table_is_partitioned_by_are_read_from_its_log(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2, 3], "day": ["x", None, "y y"]})
    write_deltalake(tmp_path, rows, partition_by=["day"])
    snapshot = Snapshot.open(str(tmp_path), STORE)
    assert snapshot is not None
    files = TableFiles(snapshot)
    pieces = [row for piece in files.read_all(["a", "day"]) for row in piece.to_pylist()]
    assert sorted(pieces, key=lambda row: row["a"]) == rows.to_pylist()
    whole = [row for name in files.names for piece in files.read_whole(name) for row in piece.to_pylist()]
    assert sorted(whole, key=lambda row: row["a"]) == rows.to_pylist()
    assert [piece.to_pylist() for piece in files.within("day", "x").read_all(["day"])] == [[{"day": "x"}]]


# -- comments of schemas -----------------------------------------------------------------------------------

PROTO = """syntax = "proto3";
package games;
// One event.
message Event {
  // Who played.
  //   In full.
  string user = 1;  // not this
  int32 score = 2;  // points
  /* Where it
   * happened. */
  Place place = 3;
  message Place {
    string city = 1;  // its name
    string plain = 2;
  }
  repeated Place visited = 4;
}
"""


def said(columns: pa.Schema) -> dict[str, str]:
    return {
        f"{path}{field.name}": field.metadata[COMMENT].decode()
        for path, fields in (("", columns), ("place.", columns.field("place").type))
        for field in fields
        if COMMENT in (field.metadata or {})
    }


def test_comments_of_a_proto_schema_are_those_of_its_columns(tmp_path: Path) -> None:
    columns = decoder_for(compile_text(PROTO)).columns
    expected = {
        "user": "Who played. In full.", "score": "points", "place": "Where it happened.", "place.city": "its name",
    }  # fmt: skip
    assert said(columns) == expected
    settings = tables(tmp_path, column_comments={"score": "Points of the round"})
    table = Table.of_route(str(tmp_path / "go"), STORE, Owner("games", "go"), settings)
    with_rows = columns.empty_table()
    assert comments(appended(table, settings, with_rows, 0)) == expected | {"score": "Points of the round"}


def test_a_schema_that_compiles_without_its_options_only_keeps_its_comments() -> None:
    broken = PROTO.replace("int32 score = 2;", "int32 score = 2 [(gone.option) = 1];")
    assert said(decoder_for(compile_text(broken)).columns)["user"] == "Who played. In full."


def test_a_schema_without_comments_has_columns_without(tmp_path: Path) -> None:
    columns = decoder_for(compile_text('syntax = "proto3"; message A { int32 a = 1; string url = 2; }')).columns
    assert [COMMENT in field.metadata for field in columns] == [False, False]


def test_the_docs_of_an_avro_schema_are_comments_of_its_columns() -> None:
    place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string", "doc": "its name"}]}
    fields = [
        {"name": "user", "type": "string", "doc": "Who\n  played."},
        {"name": "place", "type": place},
        {"name": "odd", "type": "int", "doc": 7},
    ]
    text = json.dumps({"type": "record", "name": "Event", "fields": fields})
    assert said(avro_decoder_for(AvroSchema(1, (text,))).columns) == {"user": "Who played.", "place.city": "its name"}
