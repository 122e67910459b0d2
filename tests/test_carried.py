"""Checkpoints carried forward hold what delta-rs's own would; all that is not plain is left to delta-rs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.tables import checkpoints
from distributary.tables.carried import FURTHEST, carry_forward
from distributary.tables.checkpoints import WHOLE, checkpoint_due, checkpoint_in_turn
from distributary.tables.commits import APPEND, commit_text, put_commit
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store, join
from distributary.tables.table import Table
from tests.extent import either
from tests.services.stores import S3

STORE = Store()
ROWS = pa.table(
    {
        "n": pa.array([1, None], pa.int64()),
        "word": pa.array(["ä", "\U00020000"]),
        "at": pa.array([0, 1], pa.timestamp("us", "UTC")),
        "inner": pa.array([{"x": 1.5}, None], pa.struct([("x", pa.float64())])),
    }
)


def make(uri: str, store: Store = STORE, **properties: str) -> str:
    """A table of one commit, with a checkpoint of it."""
    table = Table(
        uri, store, Owner("games", "a"), {name.replace("_", "."): value for name, value in properties.items()}
    )
    table.commit(None, evolve(None, [ROWS.schema], Policy()), [write_data_file(uri, ROWS, store)], Txn("s", 0))
    Snapshot(uri, store).checkpoint()
    return uri


def append(uri: str, batch: int, *, stream: str = "s", files: int = 1, store: Store = STORE) -> None:
    """A commit as a batch makes it."""
    version = Snapshot(uri, store).version
    added = [write_data_file(uri, ROWS, store) for _ in range(files)]
    text = commit_text(version, Txn(stream, batch), added, rows=len(added) * len(ROWS), about=APPEND)
    assert put_commit(uri, store, version + 1, text)


def checkpoints_of(uri: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in (Path(uri) / "_delta_log").glob("*.checkpoint.parquet"))


def actions(uri: str, version: int) -> list[str]:
    """What a checkpoint says, one text for each of its actions."""
    rows = pq.read_table(f"{uri}/_delta_log/{version:020d}.checkpoint.parquet").to_pylist(maps_as_pydicts="strict")
    return sorted(
        json.dumps({kind: action for kind, action in row.items() if action is not None}, sort_keys=True) for row in rows
    )


def by_delta_rs(uri: str, copy: Path) -> str:
    """The same table, its newest version checkpointed by delta-rs."""
    shutil.copytree(uri, copy)
    DeltaTable(str(copy)).create_checkpoint()
    return str(copy)


def test_a_carried_checkpoint_is_the_one_that_delta_rs_would_make(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"))
    for batch in range(7):
        append(uri, batch, files=batch % 3 + 1)
    append(uri, 3, stream="another")
    expected = by_delta_rs(uri, tmp_path / "b")
    assert carry_forward(uri, 8, STORE)
    assert actions(uri, 8) == actions(expected, 8)
    ours, theirs = (pq.read_schema(f"{place}/_delta_log/{8:020d}.checkpoint.parquet") for place in (uri, expected))
    assert ours.equals(theirs)
    said = [json.loads((Path(place) / "_delta_log" / "_last_checkpoint").read_text()) for place in (uri, expected)]
    assert [{k: v for k, v in last.items() if k != "sizeInBytes"} for last in said] == [
        {"version": 8, "size": 19, "numOfAddFiles": 15}
    ] * 2


def test_the_table_is_whole_without_the_commits_before_a_carried_checkpoint(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"))
    for batch in range(5):
        append(uri, batch)
    before = DeltaTable(uri)
    assert carry_forward(uri, 5, STORE)
    for commit in (Path(uri) / "_delta_log").glob("*.json"):
        commit.unlink()
    after = DeltaTable(uri)
    assert (after.version(), after.transaction_version("s")) == (5, 4)
    assert sorted(after.file_uris()) == sorted(before.file_uris())
    assert after.to_pyarrow_table().sort_by("word").equals(before.to_pyarrow_table().sort_by("word"))
    assert after.metadata().configuration == before.metadata().configuration
    assert Snapshot(uri, STORE).owner == Owner("games", "a")


def test_a_carried_checkpoint_is_carried_forward_again_and_read_by_delta_rs(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"))
    for batch in range(9):
        append(uri, batch)
        if batch % 3 == 2:
            assert carry_forward(uri, batch + 1, STORE)
    assert checkpoints_of(uri) == [0, 3, 6, 9]
    append(uri, 9)
    expected = by_delta_rs(uri, tmp_path / "b")
    assert carry_forward(uri, 10, STORE)
    assert actions(uri, 10) == actions(expected, 10)


def test_a_commit_that_delta_rs_made_is_carried_forward_though_it_says_what_is_null(tmp_path: Path) -> None:
    """As the first commit of each run is made."""
    uri = make(str(tmp_path / "a"))
    append(uri, 0)
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table(), mode="append")
    append(uri, 1)
    commit = (tmp_path / "a" / "_delta_log" / f"{2:020d}.json").read_text()
    assert any(None in line["add"].values() for line in map(json.loads, commit.splitlines()) if "add" in line)
    expected = by_delta_rs(uri, tmp_path / "b")
    assert carry_forward(uri, 3, STORE)
    assert actions(uri, 3) == actions(expected, 3)


def test_files_that_were_removed_before_stay_removed(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"))
    append(uri, 0)
    append(uri, 1)
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).create_checkpoint()
    append(uri, 2)
    expected = by_delta_rs(uri, tmp_path / "b")
    assert carry_forward(uri, 4, STORE)
    assert actions(uri, 4) == actions(expected, 4)
    assert any("remove" in action for action in actions(uri, 4))


def _compact(uri: str) -> None:
    DeltaTable(uri).optimize.compact()


def _delete(uri: str) -> None:
    DeltaTable(uri).delete("n = 1")


def _column(uri: str) -> None:
    wider = ROWS.append_column("more", pa.array([1, 2], pa.int64()))
    write_deltalake(uri, wider, mode="append", schema_mode="merge")


def _comment(uri: str) -> None:
    DeltaTable(uri).alter.set_table_description("mine")


def _again(uri: str) -> None:
    """A file comes once more, as a restore brings it."""
    log = Path(uri) / "_delta_log"
    (log / f"{3:020d}.json").write_bytes((log / f"{2:020d}.json").read_bytes())


def _empty(uri: str) -> None:
    (Path(uri) / "_delta_log" / f"{2:020d}.json").write_bytes(b"")


def _gone(uri: str) -> None:
    (Path(uri) / "_delta_log" / f"{1:020d}.json").unlink()


def _unknown_field(uri: str) -> None:
    commit = Path(uri) / "_delta_log" / f"{2:020d}.json"
    commit.write_text(commit.read_text().replace('"dataChange"', '"baseRowId": 5, "dataChange"'))


def _unknown_action(uri: str) -> None:
    with (Path(uri) / "_delta_log" / f"{2:020d}.json").open("a") as commit:
        commit.write(json.dumps({"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}) + "\n")


def _in_parts(uri: str) -> None:
    last = Path(uri) / "_delta_log" / "_last_checkpoint"
    last.write_text(json.dumps({**json.loads(last.read_text()), "parts": 2}))


def _without_hint(uri: str) -> None:
    (Path(uri) / "_delta_log" / "_last_checkpoint").unlink()


@pytest.mark.parametrize(
    "change",
    [
        _compact,
        _delete,
        _column,
        _comment,
        _again,
        _empty,
        _gone,
        _unknown_field,
        _unknown_action,
        _in_parts,
        _without_hint,
    ],
)
def test_what_is_more_than_added_files_is_left_to_delta_rs(tmp_path: Path, change: Callable[[str], None]) -> None:
    uri = make(str(tmp_path / "a"))
    append(uri, 0)
    append(uri, 1)
    change(uri)
    newest = max(int(path.stem) for path in (Path(uri) / "_delta_log").glob("*.json"))
    assert not carry_forward(uri, newest, STORE)
    assert checkpoints_of(uri) == [0]


def test_a_checkpoint_in_a_form_of_its_own_is_left_to_delta_rs(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"), delta_checkpoint_writeStatsAsStruct="true")
    append(uri, 0)
    assert not carry_forward(uri, 1, STORE)


def made_with(uri: str, change: Callable[[pa.Table], pa.Table]) -> str:
    """A table whose checkpoint another engine has written otherwise, and a commit after it."""
    path = f"{make(uri)}/_delta_log/{0:020d}.checkpoint.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    append(uri, 0)
    return uri


def test_a_checkpoint_that_another_engine_made_with_more_columns_is_left_to_delta_rs(tmp_path: Path) -> None:
    def with_one_more(actions: pa.Table) -> pa.Table:
        return actions.append_column("checkpointMetadata", pa.nulls(len(actions), pa.int64()))

    assert not carry_forward(made_with(str(tmp_path / "a"), with_one_more), 1, STORE)


def test_a_checkpoint_of_which_each_field_may_be_null_as_sparks_is_left_to_delta_rs(tmp_path: Path) -> None:
    def loosened(actions: pa.Table) -> pa.Table:
        fields = [field.with_nullable(True) for field in actions.schema.field("add").type]
        loose = actions.column("add").cast(pa.struct(fields))
        return actions.set_column(actions.column_names.index("add"), "add", loose)

    assert not carry_forward(made_with(str(tmp_path / "a"), loosened), 1, STORE)


def test_a_table_with_features_that_may_ask_for_more_is_left_to_delta_rs(tmp_path: Path) -> None:
    def with_a_feature(actions: pa.Table) -> pa.Table:
        rows = actions.to_pylist()
        for row in rows:
            if row["protocol"] is not None:
                row["protocol"] |= {"minReaderVersion": 3, "minWriterVersion": 7}
                row["protocol"] |= {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint"]}
        protocol = pa.array([row["protocol"] for row in rows], actions.schema.field("protocol").type)
        return actions.set_column(actions.column_names.index("protocol"), "protocol", protocol)

    assert not carry_forward(made_with(str(tmp_path / "a"), with_a_feature), 1, STORE)


def test_a_table_without_a_file_is_left_to_delta_rs(tmp_path: Path) -> None:
    uri = str(tmp_path / "a")
    Table(uri, STORE, Owner("games", "a")).create(ROWS.schema)
    Snapshot(uri, STORE).checkpoint()
    append(uri, 0)
    assert not carry_forward(uri, 1, STORE)


def test_a_checkpoint_too_long_ago_is_left_to_delta_rs(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"))
    assert not carry_forward(uri, 0, STORE)
    assert not carry_forward(uri, FURTHEST + 1, STORE)


def test_a_damaged_checkpoint_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    uri = make(str(tmp_path / "a"))
    append(uri, 0)
    (Path(uri) / "_delta_log" / f"{0:020d}.checkpoint.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError):
        carry_forward(uri, 1, STORE)
    assert checkpoints_of(uri) == [0]


@given(
    steps=st.lists(st.sampled_from(["ours", "ours", "ours", "two", "other", "theirs", "compact", "carry"]), max_size=14)
)
@settings(max_examples=either(12, 150), deadline=None)
def test_whatever_comes_a_carried_checkpoint_says_what_delta_rs_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("steps")
    uri = make(str(folder / "a"))
    for number, step in enumerate([*steps, "carry"]):
        match step:
            case "ours":
                append(uri, number)
            case "two":
                append(uri, number, files=2)
            case "other":
                append(uri, number, stream="another")
            case "theirs":
                write_deltalake(uri, ROWS, mode="append")
            case "compact":
                DeltaTable(uri).optimize.compact()
            case _:
                version = DeltaTable(uri).version()
                expected = by_delta_rs(uri, folder / str(number))
                if carry_forward(uri, version, STORE):
                    assert actions(uri, version) == actions(expected, version)
                else:
                    DeltaTable(uri).create_checkpoint()


def test_of_a_tables_checkpoints_most_are_carried_and_some_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, str]] = []
    monkeypatch.setattr(checkpoints, "CHECKPOINT_COMMITS", 2)

    def noted(uri: str, version: int, store: Store) -> bool:
        done = carry_forward(uri, version, store)
        made.append((version, "carried" if done else "refused"))
        return done

    monkeypatch.setattr(checkpoints, "carry_forward", noted)
    uri = make(str(tmp_path / "a"))
    for batch in range(2 * WHOLE * 2):
        append(uri, batch)
        checkpoint_in_turn(uri, batch + 1, STORE)
    due = [version for version in range(1, 2 * WHOLE * 2 + 1) if checkpoint_due(uri, version)]
    assert checkpoints_of(uri) == [0, *due]
    assert len(made) == len(due) - len(due) // WHOLE
    assert {how for _, how in made} == {"carried"}
    assert DeltaTable(uri).transaction_version("s") == 2 * WHOLE * 2 - 1


@pytest.mark.services
def test_a_table_in_an_object_store_is_carried_forward_as_well(s3: S3) -> None:
    bucket = s3.bucket()
    store = Store(dict(bucket.options))
    uri = make(f"s3a://{bucket.name}/lake/a b", store)
    for batch in range(3):
        append(uri, batch, store=store)
    assert carry_forward(uri, 3, store)
    for version in range(4):
        store.delete(join(uri, "_delta_log"), f"{version:020d}.json")
    table = Snapshot(uri, store)
    assert (table.version, table.newest("s"), len(table.sizes())) == (3, 2, 4)
