"""status: what each table and the source are at, and what somebody should look at."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from distributary.audit.status import Status, TableStatus, render, status, watched
from distributary.cli.entry import execute
from distributary.config import KafkaSource
from distributary.errors import Exit, StoreUnreadable
from distributary.running.source_lag import source_lag
from distributary.sources.kafka import Topic
from distributary.sources.kafka_source import kafka_lag
from distributary.sources.registered import origin_of
from distributary.state.checkpoint import last_committed
from distributary.state.ledger import Entry
from distributary.state.lock import only_run
from distributary.state.streams import StreamRecord, StreamState
from tests.lake import Lake
from tests.services.kafka import Kafka

NOW = 1_800_000_000.0


@pytest.fixture
def made(lake: Path) -> Lake:
    """A Delta source of 60 rows in 6 versions of 2 files each, read up to nothing yet."""
    source = lake / "source"
    for version in range(6):
        _add(source, version, files=2)
    return Lake(lake, source={"type": "delta", "path": str(source)})


def _add(source: Path, version: int, files: int) -> None:
    """A version of `files` files with 5 rows each."""
    parts = [f"{version}-{n}" for n in range(files) for _ in range(5)]
    rows = pa.table({"value": [b"x"] * len(parts), "p": parts})
    write_deltalake(source, rows, mode="append", partition_by=["p"])


def _offsets(made: Lake, version: int, index: int, starting: bool) -> dict[str, Any]:
    table = DeltaTable(str(made.config.source.path))  # type: ignore[union-attr]
    place = {"reservoirVersion": version, "index": index, "isStartingVersion": starting}
    return {"sourceVersion": 1, "reservoirId": str(table.metadata().id), **place}


def one(tables: tuple[TableStatus, ...], route: str) -> TableStatus:
    return next(t for t in tables if t.route == route)


# -- tables ------------------------------------------------------------------------------------------------


def test_a_pipeline_that_never_ran_has_a_status(made: Lake) -> None:
    said = status(made.config)
    assert (said.running, said.last_batch, said.tables, said.rows) == (False, None, (), 0)
    assert said.exit_code == Exit.OK


def test_the_command_s_exit_code_says_that_a_table_is_parked(made: Lake, tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    about = {"pipeline": "games", "source": {"type": "delta", "path": "/there/is/none"}, "registry": {"path": "/r"}}
    file.write_text(json.dumps({**about, "tables": {"root": made.config.tables.root}}))
    made.batch(0, {"ann_game": {1: 3}})
    assert [execute(["status", str(file), *more]) for more in ([], ["--json"])] == [Exit.OK, Exit.OK]
    made.batch(1, {}, parked={"ann_game": 2})
    assert [execute(["status", str(file), *more]) for more in ([], ["--json"])] == [Exit.ATTENTION] * 2


def test_a_status_leaves_nothing_behind(made: Lake) -> None:
    status(made.config)
    assert not Path(made.config.state_root).exists()


def test_each_table_says_rows_last_batch_and_age(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 30}, "bob_game": {1: 10}}, newest=int((NOW - 90) * 1e6))
    made.batch(1, {"ann_game": {1: 5}}, bad={"ann_game": 4}, newest=int((NOW - 20.5) * 1e6))
    said = status(made.config, now=lambda: NOW)
    ann, bob = one(said.tables, "ann_game"), one(said.tables, "bob_game")
    assert all(t.age_sec is not None and t.age_sec < 300 for t in status(made.config).tables), "since it was written"
    assert (ann.rows, ann.last_batch, ann.lag_sec, ann.quarantined, ann.state) == (35, 1, 20.5, 4, "written")
    assert (bob.rows, bob.last_batch, bob.lag_sec, bob.quarantined) == (10, 0, 90.0, 0)
    assert (said.last_batch, said.rows, said.quarantined) == (1, 45, 4)
    assert ann.last_write is not None and ann.last_write.endswith("Z")
    assert ann.table == made.table("ann_game")


def test_a_parked_table_needs_attention(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 30}, "bob_game": {1: 10}})
    made.batch(1, {"ann_game": {1: 5}}, parked={"bob_game": 6})
    said = status(made.config)
    bob = one(said.tables, "bob_game")
    assert (bob.state, bob.lag_rows, bob.failures, bob.rows, bob.last_batch) == ("parked", 6, 2, 10, 0)
    assert bob.retry_at is not None and bob.error == "OSError: disk <on> fire"
    assert said.parked == ("bob_game",) and said.exit_code == Exit.ATTENTION
    assert any("bob_game is parked" in line and "6 rows wait" in line for line in said.attention)


def test_a_batch_or_a_table_of_which_most_rows_were_quarantined_is_not_well(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 30}, "bob_game": {1: 10}}, bad={"ann_game": 4})
    assert status(made.config).exit_code == Exit.OK, "some bad rows are no alarm by themselves"
    made.batch(1, {"ann_game": {1: 5}, "bob_game": {}}, bad={"bob_game": 3})
    said = status(made.config)
    assert one(said.tables, "bob_game").state == "quarantined"
    assert (said.exit_code, said.all_quarantined) == (Exit.ATTENTION, False)
    assert any("rows of bob_game in its last batch (3)" in line for line in said.attention)
    assert said.unwell == ("1 table refused",)
    made.batch(2, {"bob_game": {1: 3}}, bad={"bob_game": 3})
    assert (status(made.config).exit_code, status(made.config).unwell) == (Exit.OK, ())
    made.batch(3, {"ann_game": {1: 9}, "bob_game": {1: 1}}, bad={"bob_game": 3})
    assert one(status(made.config).tables, "bob_game").state == "quarantined"
    made.batch(4, {}, bad={None: 200})
    made.batch(5, {})
    said = status(made.config)
    assert (said.exit_code, said.all_quarantined) == (Exit.ATTENTION, True)
    assert any("all 200 rows of the last batch" in line for line in said.attention)


def test_rows_in_the_quarantine_need_attention_and_it_says_whether_they_grow(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 30}}, bad={"ann_game": 4, None: 2})
    assert any("6 rows are in the quarantine, 6 of them from the last" in a for a in status(made.config).attention)
    made.batch(1, {"ann_game": {1: 30}})
    assert any("6 rows are in the quarantine (CORRUPT_PAYLOAD 6)" in a for a in status(made.config).attention)
    DeltaTable(made.quarantine).update({"state": "'replayed'", "replay": "1"})
    assert not any("quarantine" in a for a in status(made.config).attention)


def test_each_table_and_the_pipeline_say_why_rows_are_in_the_quarantine(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 2}}, bad={"ann_game": 3, None: 1}, parked={"bob_game": 4})
    said = status(made.config)
    assert one(said.tables, "ann_game").reasons == {"CORRUPT_PAYLOAD": 3}
    assert said.reasons == {"TABLE_PARKED": 4, "CORRUPT_PAYLOAD": 4}


def test_a_state_that_cannot_be_read_is_an_error_of_the_environment(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 30}})
    for file in (Path(made.config.state_root) / "ledger" / "_delta_log").iterdir():
        file.write_text("{")
    with pytest.raises(StoreUnreadable):
        status(made.config)


def test_a_running_pipeline_is_told_by_its_lock(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 30}})
    with only_run(made.config.state_root, "games"):
        assert status(made.config).running is True
    assert status(made.config).running is False


# -- what waits at a Delta source --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "index", "starting", "waiting"),
    [
        (3, 2, True, 45),
        (3, 5, True, 30),
        (4, -1, False, 20),
        (5, 0, False, 5),
        (5, 1, False, 0),
        (6, -1, False, 0),
    ],
)
def test_a_delta_source_is_counted_from_where_the_checkpoint_stands(
    made: Lake, version: int, index: int, starting: bool, waiting: int
) -> None:
    """Offsets as Spark 4.2 with Delta 4.4 wrote them for such a source, read 3 files a batch."""
    made.commit_offsets(0, _offsets(made, version, index, starting))
    assert source_lag(made.config, made.store).rows == waiting


def test_a_delta_source_that_was_never_read_waits_whole(made: Lake) -> None:
    assert source_lag(made.config, made.store).rows == 60
    late = Lake(Path(made.config.tables.root), source={**made.config.source.model_dump(), "starting_version": 4})
    assert source_lag(late.config, late.store).rows == 20


def test_a_pipeline_at_rest_with_rows_that_wait_needs_attention(made: Lake) -> None:
    made.commit_offsets(0, _offsets(made, 4, -1, False))
    said = status(made.config)
    assert said.lag_rows == 20
    assert "the pipeline is not running, and 20 rows wait at the source" in said.attention


def test_commits_that_delete_count_only_where_they_are_read(made: Lake) -> None:
    path = made.config.source.path  # type: ignore[union-attr]
    made.commit_offsets(0, _offsets(made, 6, -1, False))
    write_deltalake(path, pa.table({"value": [b"x"] * 3, "p": ["0-0"] * 3}), mode="overwrite", predicate="p = '0-0'")
    assert source_lag(made.config, made.store).rows == 3
    skips = {**made.config.source.model_dump(), "skip_change_commits": True}
    assert source_lag(Lake(Path(made.config.tables.root), source=skips).config, made.store).rows == 0


def test_source_versions_whose_log_is_gone_are_a_note(made: Lake) -> None:
    """Case of a stream that was down longer than the source keeps its log (delta-io/delta#3254)."""
    path = Path(made.config.source.path)  # type: ignore[union-attr]
    made.commit_offsets(0, _offsets(made, 2, -1, False))
    DeltaTable(str(path)).create_checkpoint()
    (path / "_delta_log" / f"{3:020d}.json").unlink()
    said = status(made.config)
    assert said.lag_rows is None and "version 3" in said.notes[0]


def test_a_source_that_is_another_table_now_is_a_note(made: Lake) -> None:
    path = Path(made.config.source.path)  # type: ignore[union-attr]
    made.commit_offsets(0, _offsets(made, 2, -1, False))
    shutil.rmtree(path)
    assert "cannot be asked" in status(made.config).notes[0]
    _add(path, 0, files=1)
    assert "another table" in status(made.config).notes[0]


def test_a_checkpoint_without_its_offsets_is_a_note(made: Lake) -> None:
    made.commit_offsets(3, _offsets(made, 2, -1, False))
    (Path(made.config.checkpoint_path) / "offsets" / "3").unlink()
    said = status(made.config)
    assert said.lag_rows is None and "batch 3" in said.notes[0]


def test_the_last_committed_batch_is_the_highest_number(made: Lake) -> None:
    assert last_committed(made.config.checkpoint_path, made.store) is None
    for batch in (9, 10):
        made.commit_offsets(batch, {})
    (Path(made.config.checkpoint_path) / "commits" / ".11.crc").write_text("")
    assert last_committed(made.config.checkpoint_path, made.store) == 10


# -- what waits at Kafka -----------------------------------------------------------------------------------

TOPIC = Topic("events", "id", {0: 5, 1: 0}, {0: 105, 1: 40})


def _source(**keys: Any) -> KafkaSource:
    return KafkaSource.model_validate({"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "events", **keys})


def test_a_topic_waits_from_the_committed_offsets_on() -> None:
    assert kafka_lag(_source(), [TOPIC], {"events": {"0": 100, "1": 40}}).rows == 5


def test_a_partition_that_is_new_waits_from_its_beginning() -> None:
    assert kafka_lag(_source(), [TOPIC], {"events": {"0": 105}}).rows == 40


def test_before_the_first_batch_a_topic_waits_whole_where_it_is_read_from_the_beginning() -> None:
    assert kafka_lag(_source(), [TOPIC], None).rows == 140
    assert kafka_lag(_source(starting_offsets="latest"), [TOPIC], None).rows is None


def test_a_topic_that_ends_before_what_was_read_is_noted() -> None:
    said = kafka_lag(_source(), [TOPIC], {"events": {"0": 500, "1": 30}})
    assert said.rows == 10 and said.note is not None and "ends at 105, but was read up to 500" in said.note


def test_a_broker_that_is_down_is_a_note(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.sources.kafka.TIMEOUT_SEC", 0.5)
    made = Lake(lake)
    made.batch(0, {"ann_game": {1: 30}})
    said = status(made.config)
    assert said.lag_rows is None and "cannot be asked" in said.notes[0]
    assert said.rows == 30 and said.exit_code == Exit.OK


@pytest.mark.services
def test_a_real_topic_waits_with_all_its_records(lake: Path, kafka: Kafka) -> None:
    with kafka.topic(partitions=2) as topic:
        producer = Producer(kafka.client())
        for n in range(50):
            producer.produce(topic, b"x", partition=n % 2)
        producer.flush(10)
        made = Lake(lake, source=kafka.source(topic))
        assert source_lag(made.config, made.store).rows == 50
        newest = origin_of(made.config).newest(5)
        assert sorted(newest.column("offset").to_pylist())[-2:] == [24, 24] and newest.num_rows == 5
        made.commit_offsets(0, {topic: {"0": 20, "1": 25}})
        assert source_lag(made.config, made.store).rows == 5


# -- showing it --------------------------------------------------------------------------------------------


def _odd(made: Lake) -> None:
    made.batch(0, {"<b>[red]bold": {1: 3}})
    made.batch(1, {}, parked={"<b>[red]bold": 2})


def test_the_json_is_plain(made: Lake) -> None:
    _odd(made)
    said = json.loads(json.dumps(status(made.config).to_json()))
    assert {"pipeline", "running", "last_batch", "lag_rows", "tables", "attention"} <= said.keys()
    keys = {"route", "table", "engine", "state", "rows", "last_batch", "lag_rows", "lag_sec", "quarantined", "error"}
    assert keys <= said["tables"][0].keys()


def test_it_says_which_library_reads_the_rows_of_each_schema_id(made: Lake) -> None:
    made.batch(0, {"a": {1: 3, 2: 4}})
    said_by_tasks = Entry("other", 0, "a", decoders={1: "ptars", 2: "protobuf"})
    made.ledger.record("other", 0, [said_by_tasks, Entry("other", 0, None)], {})
    [said] = json.loads(json.dumps(status(made.config).to_json()))["tables"]
    assert said["decoders"] == {"1": "ptars", "2": "protobuf"}


def test_a_terminal_shows_names_as_they_are(made: Lake) -> None:
    _odd(made)
    console = Console(width=160, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(render(status(made.config)))
    text = captured.get()
    assert "<b>[red]bold" in text and "parked (2 failed)" in text and "not running" in text


def many(number: int) -> Status:
    """A pipeline of so many tables, two of which are not well, and one of which had a bad row long ago."""
    well = [
        TableStatus(
            f"route_number_{n:05}", "t", "task", "written", 1_000_000, 7, "2027-01-15T08:00:00.000Z", 3, 3, 0, 0
        )
        for n in range(number - 3)
    ]
    odd = [
        TableStatus("zz_parked", "t", "task", "parked", 1, 6, None, 99, 9, 12, 12, failures=3, error="disk"),
        TableStatus("zz_refused", "t", "task", "quarantined", 1, 6, None, 99, 9, 0, 200, refused=200),
        TableStatus("zz_once_bad", "t", "task", "written", 1, 6, None, 99, 9, 0, 1),
    ]
    tables = (*well, *odd)
    attention = tuple(f"line {n} of what should be looked at, which is much longer than a line of 80" for n in range(9))
    return Status("games", "", True, 7, "2027-01-15T08:00:00.000Z", 0, 1, 1, tables, attention, ())


@pytest.mark.parametrize("height", [12, 24, 60])
def test_a_screen_of_80_columns_shows_3000_routes_worst_first(height: int) -> None:
    console = Console(width=80, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(watched(many(3000)))
    lines = captured.get().splitlines()
    assert len(lines) <= height and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "NOT WELL (1 table parked, 1 table refused)" in text.replace("\n", " ")
    at = next(n for n, line in enumerate(lines) if line.startswith("route"))
    assert lines[at].split() == ["route", "state", "rows", "age", "waiting", "quarantined"]
    assert lines[at + 1].split() == ["zz_parked", "parked", "(3", "failed)", "1", "99", "s", "12", "12"]
    if height > 12:
        assert lines[at + 2].split()[:2] == ["zz_refused", "refused"]
        assert lines[at + 3].split()[0] == "route_number_00000"
        assert any("more, all of them well" in line for line in lines)
    assert lines[-1].startswith("and 5 more lines")


def test_on_a_screen_with_room_all_that_needs_attention_is_said_whole_with_the_files_name() -> None:
    line = "9 rows are in the quarantine. What to do: distributary quarantine FILE; then: distributary replay FILE"
    few = replace(many(6), attention=(line, "FILE is a route, and stays one"))
    console = Console(width=80, height=24, force_terminal=False)
    with console.capture() as captured:
        console.print(watched(few, "games.yaml"))
    text = " ".join(captured.get().split())
    assert "distributary quarantine games.yaml; then: distributary replay games.yaml" in text
    assert "! FILE is a route, and stays one" in text and len(captured.get().splitlines()) <= 24


@pytest.mark.parametrize("clusters", [2, 40])
def test_streams_of_clusters_leave_room_for_tables_on_a_small_screen(clusters: int) -> None:
    why = "RegistryDown: http://registry:8081 refused the connection, and that is a long line"
    streams = [StreamRecord(f"cluster-{n}", StreamState.RUNNING, 1.0, 4000 + n, rows_in=10**9) for n in range(clusters)]
    streams[-1] = replace(streams[-1], state=StreamState.PARKED, error=why, failures=5)
    console = Console(width=80, height=24, force_terminal=False)
    with console.capture() as captured:
        console.print(watched(replace(many(3000), streams=tuple(streams))))
    lines = captured.get().splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    at = next(n for n, line in enumerate(lines) if line.startswith("stream "))
    assert lines[at + 1].split()[:2] == [f"cluster-{clusters - 1}", "parked"] and "RegistryDown" in lines[at + 1]
    assert any(line.startswith("zz_parked") for line in lines)
    assert any("34 more streams" in line for line in lines) == (clusters == 40)


def test_few_tables_leave_no_word_of_others_and_a_long_name_is_cut_on_a_narrow_screen() -> None:
    long = TableStatus("a" * 200, "t", "task", "written", 1, 7, None, 3, 3, 0, 0)
    found = Status("games", "", True, 7, None, 0, 1, 0, (long,), (), ())
    console = Console(width=80, height=24, force_terminal=False)
    with console.capture() as captured:
        console.print(watched(found))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80 and not any("more" in line for line in lines)
    assert "…" in lines[-1] and lines[-1].split()[-1] == "0" and "games: well" in lines[0]


def test_a_table_that_had_a_bad_row_once_is_not_marked_for_ever(made: Lake) -> None:
    made.batch(0, {"ann_game": {1: 5}}, bad={"ann_game": 1})
    assert one(status(made.config).tables, "ann_game").refused == 1
    made.batch(1, {"ann_game": {1: 5}})
    said = status(made.config)
    assert (one(said.tables, "ann_game").quarantined, one(said.tables, "ann_game").refused) == (1, 0)
