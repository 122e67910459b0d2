"""What is in the quarantine, as `distributary quarantine` shows and exports it."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.audit import quarantined
from distributary.audit.status import status
from distributary.cli.entry import execute
from distributary.errors import BadInput, Exit, Reason
from distributary.state.ledger import Entry, replay_stream
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, update_rows, write_rejected
from distributary.tables.store import Store
from tests.lake import Lake


@pytest.fixture
def made(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def _summary(made: Lake, samples: int = 1) -> quarantined.Rejections:
    return quarantined.summarize("games", quarantined.quarantined_rows(made.config), samples)


def _file(made: Lake, folder: Path) -> str:
    path = folder / "games.yaml"
    path.write_text(json.dumps(made.config.model_dump(mode="json", exclude_defaults=True)))
    return str(path)


def test_a_pipeline_that_never_ran_has_set_nothing_aside(made: Lake) -> None:
    assert _summary(made).groups == ()


def test_rows_are_counted_by_route_and_reason_the_most_first(made: Lake) -> None:
    made.batch(0, {"chess": {7: 2}}, bad={"chess": 3, None: 1})
    made.batch(1, {"chess": {7: 2}}, bad={"chess": 2}, parked={"go": 4})
    found = _summary(made)
    assert [(g.route, g.reason, g.rows) for g in found.groups] == [
        ("chess", Reason.CORRUPT_PAYLOAD, 5),
        ("go", Reason.TABLE_PARKED, 4),
        (None, Reason.CORRUPT_PAYLOAD, 1),
    ]
    assert found.rows == status(made.config).quarantined == 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("daily-load-eu", "daily-load-us"),
        (f"{uuid.UUID(int=7)} chess", f"{uuid.UUID(int=7)} go"),
        (str(uuid.UUID(int=7)), f"{uuid.UUID(int=7)} go"),
    ],
)
def test_rows_of_streams_that_begin_alike_have_ids_of_their_own(tmp_path: Path, one: str, other: str) -> None:
    uri, rows = str(tmp_path / "q"), pa.Table.from_pylist([{"value": b"?"}], schema=REJECTED_SCHEMA)
    for stream in (one, other):
        commit_quarantine(uri, "games", [write_rejected(uri, [rows], stream, 1, "0", Store())], stream, 1, Store())
    ids = {row["stream"]: row["id"] for row in DeltaTable(uri).to_pyarrow_table().to_pylist()}
    update_rows(uri, Store(), [ids[one]], {"state": "'replayed'"})
    found = DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert {row["stream"]: row["state"] for row in found} == {one: "replayed", other: "open"}


def test_the_id_of_a_streaming_query_begins_its_rows_ids(tmp_path: Path) -> None:
    stream, rows = str(uuid.UUID(int=7 << 96)), pa.Table.from_pylist([{"value": b"?"}], schema=REJECTED_SCHEMA)
    file = write_rejected(str(tmp_path), [rows], stream, 3, "5", Store())
    assert pq.read_table(tmp_path / file.path).column("id").to_pylist() == ["00000007-3-5-0"]


def test_a_group_has_its_newest_rows_as_samples_and_counts_its_details(made: Lake) -> None:
    for batch in range(3):
        made.batch(batch, {"chess": {7: 1}}, bad={"chess": 2})
    (group,) = _summary(made, samples=2).groups
    assert [s.batch for s in group.samples] == [2, 2]
    assert sum(group.details.values()) == group.rows == 6
    assert group.first is not None and group.last is not None and group.first <= group.last


def test_rows_that_were_replayed_are_gone_and_those_of_a_replay_that_did_not_end_are_not(made: Lake) -> None:
    made.batch(0, {"chess": {7: 1}}, bad={"chess": 5})
    ids = pa.concat_tables(quarantined.quarantined_rows(made.config)).column("id").to_pylist()
    update_rows(made.quarantine, made.store, ids[:2], {"state": "'replayed'", "replay": "1"})
    update_rows(made.quarantine, made.store, ids[2:4], {"state": "'claimed'", "replay": "2"})
    assert _summary(made).rows == 3
    made.ledger.record(replay_stream(2), 2, [Entry(replay_stream(2), 2, None)], {})
    assert _summary(made).rows == 1


def test_rows_of_a_decided_batch_count_before_they_are_committed(made: Lake) -> None:
    made.batch(0, {"chess": {7: 1}}, bad={"chess": 2}, quarantined=False)
    assert _summary(made).rows == 2


def test_details_without_end_are_counted_and_not_kept(made: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantined, "MOST_DETAILS", 3)
    group = quarantined.Group("chess", "CORRUPT_PAYLOAD")
    made.batch(0, {}, bad={"chess": 9})
    for n, piece in enumerate(quarantined.quarantined_rows(made.config)):
        rows = piece.set_column(
            piece.column_names.index("detail"), "detail", pa.array([f"detail {n} {m}" for m in range(piece.num_rows)])
        )
        group.add(rows, 1)
    assert len(group.details) <= 4
    assert sum(group.details.values()) == 9


@pytest.mark.parametrize("name", ["all.parquet", "all.jsonl"])
def test_an_export_has_every_row_with_its_bytes(made: Lake, tmp_path: Path, name: str) -> None:
    made.batch(0, {"chess": {7: 1}}, bad={"chess": 3, "go": 2})
    out = tmp_path / name
    assert quarantined.export(quarantined.chosen(quarantined.quarantined_rows(made.config), "chess", []), out) == 3
    if out.suffix == ".parquet":
        rows = pq.read_table(out).to_pylist()
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        rows = [{**row, "value": base64.b64decode(row["value"])} for row in rows]
    wanted = [r for p in quarantined.quarantined_rows(made.config) for r in p.to_pylist() if r["route"] == "chess"]
    assert [(r["id"], r["value"]) for r in rows] == [(r["id"], r["value"]) for r in wanted]


def test_an_export_of_nothing_is_a_file_without_rows(made: Lake, tmp_path: Path) -> None:
    assert quarantined.export(iter(()), tmp_path / "none.parquet") == 0
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_an_export_of_another_kind_or_place_is_refused(tmp_path: Path) -> None:
    for name in ("all.csv", "no/folder/all.jsonl"):
        with pytest.raises(BadInput):
            quarantined.export(iter(()), tmp_path / name)


def test_every_reason_says_what_was_found_and_what_to_do() -> None:
    for reason in Reason:
        assert reason.cause.endswith(".") and reason.remedy.endswith("."), reason
        assert Reason(reason.value) is reason


def test_the_command_shows_exports_and_gives_json(
    made: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.batch(0, {"chess": {7: 2}}, bad={"chess": 3, "[/red]\x1b[31m": 1, None: 2})
    file = _file(made, tmp_path)

    def told(*more: str) -> str:
        assert execute(["quarantine", file, *more]) == Exit.OK
        return capsys.readouterr().out

    shown = told()
    assert "chess: CORRUPT_PAYLOAD, 3 rows" in shown and "without a route" in shown
    assert "\x1b" not in shown
    found = json.loads(told("--json", "--route", "chess", "--reason", "CORRUPT_PAYLOAD"))
    assert (found["rows"], found["groups"][0]["remedy"]) == (3, Reason.CORRUPT_PAYLOAD.remedy)
    sample = found["groups"][0]["samples"][0]
    assert len(base64.b64decode(sample["value"])) == sample["size"]
    assert told("--reason", "BAD_MAGIC")
    out = tmp_path / "a.jsonl"
    told("--export", str(out), "--route", "chess")
    assert len(out.read_text().splitlines()) == 3
    assert execute(["quarantine", file, "--json", "--export", str(out)]) == Exit.BAD_INPUT
