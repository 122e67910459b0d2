"""The edge at which errors of deltalake leave."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import deltalake.exceptions
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from distributary.errors import StoreDown, StoreUnreadable
from distributary.errors.border import TableFault, in_words
from distributary.tables.edge import edge
from distributary.tables.faults import CommitConflict, reading, writing
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

KINDS = [kind for kind in vars(deltalake.exceptions).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_library_leaves_as_ours_in_its_own_words(kind: type[Exception]) -> None:
    with pytest.raises((TableFault, CommitConflict)) as caught, edge():
        raise kind("version 7 is gone")
    found = pickle.loads(pickle.dumps(caught.value))
    assert str(found) == "version 7 is gone"
    if kind is CommitFailedError:
        assert type(found) is CommitConflict
    else:
        assert issubclass(kind, DeltaError)
        assert isinstance(found, OSError)
        assert in_words(found) == f"{kind.__name__}: version 7 is gone"


def test_other_errors_pass_the_edge_as_they_are() -> None:
    for error in (OSError(28, "full"), ValueError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, edge():
            raise error
        assert caught.value is error


def test_a_table_that_is_not_there_is_none_and_a_version_that_is_not_there_a_fault(tmp_path: Path) -> None:
    assert Table(str(tmp_path), Store()).open() is None
    with pytest.raises(TableFault):
        Snapshot(str(tmp_path), Store())
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    table = Table(str(tmp_path), Store()).open()
    assert table is not None and table.version == 0
    with pytest.raises(TableFault):
        table.at(1)


def test_a_table_whose_commits_a_catalog_keeps_is_told_of_in_words(tmp_path: Path) -> None:
    features = ["catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"]
    about = {"id": "x", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "createdTime": 1}
    about |= {
        "schemaString": '{"type":"struct","fields":[]}',
        "configuration": {"delta.enableInCommitTimestamps": "true"},
    }
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": features}
    actions = [
        {
            "commitInfo": {
                "inCommitTimestamp": 1,
                "timestamp": 1,
                "operation": "CREATE TABLE",
                "operationParameters": {},
            }
        },
        {"protocol": {**protocol, "readerFeatures": ["catalogManaged", "vacuumProtocolCheck"]}},
        {"metaData": about},
    ]
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    log.parent.mkdir()
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(TableFault, match=r"only Spark reads and writes it, and by its name.*docs/unity\.md"):
        Table(str(tmp_path), Store()).open()


def test_a_change_that_came_too_late_is_a_conflict(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    one, other = (Snapshot(str(tmp_path), Store()) for _ in range(2))
    one.delete("a = 1")
    with pytest.raises(CommitConflict):
        other.delete("a = 1")


@pytest.mark.parametrize("error", [TableFault("gone"), PermissionError(13, "denied"), CommitConflict("too late")])
def test_what_cannot_be_written_is_said_of_its_place(error: Exception) -> None:
    with pytest.raises(StoreDown) as caught, writing("/lake/t"):
        raise error
    assert caught.value.parameters == {"path": "/lake/t", "detail": in_words(error)}


def test_what_cannot_be_read_is_said_of_its_place() -> None:
    with pytest.raises(StoreUnreadable) as caught, reading("/lake/t"):
        raise TableFault("gone")
    assert caught.value.parameters == {"path": "/lake/t", "detail": "TableFault: gone"}
