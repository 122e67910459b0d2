"""The text of our own commits: what the protocol asks for, in the order in which readers want it."""

from __future__ import annotations

import json
from typing import Any

from distributary.tables.commits import APPEND, OVERWRITE, commit_text
from distributary.tables.datafile import DataFile
from distributary.tables.snapshot import Txn

FILE = DataFile("part-1.parquet", 10, 3, "{}", 1_700_000_000_000)


def actions(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_append_says_who_made_it_and_from_which_version() -> None:
    info, txn, add = actions(commit_text(6, Txn("stream", 7), [FILE], rows=3, about=APPEND))
    said = info["commitInfo"]
    assert (said["operation"], said["readVersion"], said["isBlindAppend"]) == ("WRITE", 6, True)
    assert said["distributary.rows"] == "3"
    assert (said["distributary.app"], said["distributary.batch"]) == ("stream", "7")
    assert {key: txn["txn"][key] for key in ("appId", "version")} == {"appId": "stream", "version": 7}
    assert add["add"] == FILE.as_log()


def test_files_are_removed_before_others_are_added_and_metadata_comes_first() -> None:
    text = commit_text(0, Txn("s", 1), [FILE], [("old.parquet", 99)], about=OVERWRITE, metadata={"id": "x"})
    assert [next(iter(action)) for action in actions(text)] == ["commitInfo", "metaData", "txn", "remove", "add"]
    removed = actions(text)[3]["remove"]
    assert (removed["path"], removed["size"], removed["dataChange"]) == ("old.parquet", 99, True)
    assert "distributary.rows" not in actions(text)[0]["commitInfo"], "a merge's rows are in its operationMetrics"
