"""What `make peers` sees of its peers, from outside: rows, delays, ends; and the page that it makes of that."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.peers.__main__ import PAGE, RESULTS
from bench.peers.known import PEERS
from bench.peers.lakes import DeltaLake, IcebergLake, Lake
from bench.peers.peer import Job, Peer, Running
from bench.peers.records import COLUMNS, PARTITIONS, record
from bench.peers.report import page
from bench.peers.trial import QUICK, Trial, Watch, cpu_of, delays_of
from deltalake import DeltaTable, write_deltalake
from fastavro import parse_schema, writer

from tests.services.kafka import Kafka

ROWS = pa.table({"id": [1, 2, 3]})


def test_rows_of_delta_tables_are_counted_as_they_are_committed(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    assert lake.rows() == {}
    write_deltalake(str(tmp_path / "kind0"), ROWS)
    assert lake.rows() == {"kind0": 3}
    write_deltalake(str(tmp_path / "kind0"), ROWS.slice(1), mode="append")
    write_deltalake(str(tmp_path / "kind1"), ROWS)
    assert lake.rows() == {"kind0": 5, "kind1": 3}
    DeltaTable(str(tmp_path / "kind0")).optimize.compact()
    assert lake.rows() == {"kind0": 5, "kind1": 3}
    assert sorted(lake.read("kind0")["id"].to_pylist()) == [1, 2, 2, 3, 3]
    assert lake.read("kind7").num_rows == 0


def test_rows_of_iceberg_tables_are_those_of_the_current_snapshot(tmp_path: Path) -> None:
    table = tmp_path / "kind0"
    (table / "metadata").mkdir(parents=True)
    pq.write_table(ROWS, table / "1.parquet")
    pq.write_table(ROWS.append_column("extra", pa.array(["a", "b", "c"])), table / "2.parquet")
    pq.write_table(ROWS, table / "removed.parquet")
    path = {"type": "record", "name": "f", "fields": [{"name": "file_path", "type": "string"}]}
    status, data = {"name": "status", "type": "int"}, {"name": "data_file", "type": path}
    _avro(
        table / "metadata" / "manifest.avro",
        [status, data],
        [
            {"status": state, "data_file": {"file_path": f"file:{table}/{name}.parquet"}}
            for state, name in ((0, "1"), (1, "2"), (2, "removed"))
        ],
    )
    _avro(
        table / "metadata" / "list.avro",
        [{"name": "manifest_path", "type": "string"}, {"name": "content", "type": "int"}],
        [{"manifest_path": f"file://{table}/metadata/manifest.avro", "content": 0}],
    )
    lake = IcebergLake(tmp_path)
    _version(table, 1, None, 0)
    assert lake.rows() == {"kind0": 0}
    _version(table, 2, table / "metadata" / "list.avro", 6)
    assert lake.rows() == {"kind0": 6}
    found = lake.read("kind0")
    assert sorted(found["id"].to_pylist()) == [1, 1, 2, 2, 3, 3]
    assert found["extra"].null_count == 3


def _avro(file: Path, fields: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
    with file.open("wb") as out:
        writer(out, parse_schema({"type": "record", "name": "r", "fields": fields}), records)


def _version(table: Path, number: int, manifests: Path | None, rows: int) -> None:
    snapshot = {"snapshot-id": 7, "manifest-list": f"file:{manifests}", "summary": {"total-records": str(rows)}}
    metadata = {"current-snapshot-id": 7, "snapshots": [snapshot]} if manifests else {"snapshots": []}
    (table / "metadata" / f"v{number}.metadata.json").write_text(json.dumps(metadata))
    (table / "metadata" / "version-hint.text").write_text(str(number))


def test_a_delay_ends_when_as_many_rows_are_visible_as_were_sent() -> None:
    seen = [(10.0, 0), (11.0, 2), (12.0, 2), (14.0, 3)]
    assert delays_of([9.0, 10.5, 11.5], seen) == [2.0, 0.5, 2.5]
    with pytest.raises(ValueError, match="3 of 4"):
        delays_of([1.0, 2.0, 3.0, 4.0], seen)


def test_only_rows_of_the_kinds_that_were_sent_are_counted() -> None:
    class Fixed:
        def rows(self) -> dict[str, int]:
            return {"kind0": 3, "brandnew": 2, "bad_records": 50}

        def read(self, table: str) -> pa.Table:
            raise NotImplementedError

    assert Watch(Fixed(), ("kind0", "kind1")).look() == 5


class Sleeper(Peer):
    """Starts a process below itself and says its id."""

    name = "sleeper"
    title = writes = settings = ""

    def command(self, job: Job) -> list[str]:
        child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)"
        return [sys.executable, "-c", f"import subprocess, sys; c = {child}; print(c.pid, flush=True); c.wait()"]

    def lake(self, job: Job) -> Lake:
        return DeltaLake(job.lake)


def test_a_kill_takes_the_processes_below_along(tmp_path: Path) -> None:
    running = Running(Sleeper(), Job(tmp_path, "", "", ()))
    while not (said := running.log.read_text().strip()):
        time.sleep(0.01)
    running.kill()
    assert not running.alive
    state = Path(f"/proc/{said}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":  # until the kernel has ended it
        time.sleep(0.01)


def test_the_cpu_of_processes_that_have_ended_is_counted(tmp_path: Path) -> None:
    class Burner(Sleeper):
        def command(self, job: Job) -> list[str]:
            burn = "import time\nwhile time.process_time() < 0.3: pass"
            child = f"subprocess.run([sys.executable, '-c', {burn!r}])"
            return [
                sys.executable,
                "-c",
                f"import subprocess, sys, time; {child}; print('burnt', flush=True); sys.stdin.read(); time.sleep(600)",
            ]

    running = Running(Burner(), Job(tmp_path, "", "", ()))
    while not running.log.read_text():
        time.sleep(0.01)
    assert cpu_of(running.pid) >= 0.3
    running.kill()
    assert cpu_of(running.pid) == 0


class Copier(Peer):
    name = title = "copier"
    writes = "Delta"
    settings = ""
    tolerance = "a handler"

    def command(self, job: Job) -> list[str]:
        script = Path(__file__).parent / "copying_peer.py"
        return [sys.executable, str(script), job.brokers, job.topic, str(job.lake), "yes" if job.tolerant else "no"]

    def lake(self, job: Job) -> Lake:
        return DeltaLake(job.lake)


@pytest.mark.services
def test_a_peer_goes_through_all_of_the_trial(tmp_path: Path, kafka: Kafka) -> None:
    with kafka.topic(PARTITIONS) as topic:
        job = Job(tmp_path / "copier", kafka.bootstrap_servers, topic, ("kind0", "kind1", "kind2"))
        Copier().prepare(job)
        found = Trial(Copier(), job, QUICK).run()
    assert "ended" not in found
    for load in ("cold", "warm"):
        assert found[load]["seconds"] > 0
        assert found[load]["cpu_sec"] > 0
        assert found[load]["memory_mib"] > 0
    assert found["steady"]["mean_sec"] >= 0
    assert (found["killed"]["kills"], found["killed"]["lost"]) == (1, 0)
    assert (found["new_column"]["column"], found["new_column"]["values"]) == ("extra", QUICK.few)
    assert found["new_route"]["rows"] == QUICK.few
    assert not found["bad"]["working"]
    assert "JSONDecodeError" in found["bad"]["why"]
    assert found["bad"]["tolerant"]["rows"] == QUICK.few


def test_the_records_have_the_columns_that_spark_and_the_pipeline_file_declare() -> None:
    assert list(record(5, "kind1")) == list(COLUMNS)


def test_the_page_shows_the_kept_results() -> None:
    text = PAGE.read_text()
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else None
    assert page(text, kept) == text
    if kept is not None:
        assert kept["peers"].keys() == {peer.name for peer in PEERS}


def test_a_peer_that_cannot_be_had_is_named_with_the_reason_and_gets_no_figure() -> None:
    about = {"title": "Other", "writes": "Delta", "settings": "", "tolerance": ""}
    made = page("<!-- Made by `make peers`. -->\n<!-- end -->", _results({"other": {**about, "missing": "no jar"}}))
    assert "**Other** is not in the tables: no jar" in made
    assert "| Other |" not in made


def test_a_peer_that_did_not_get_through_says_where_it_stopped() -> None:
    found = {
        "cold": {"seconds": 20.0, "cpu_sec": 30.0, "memory_mib": 900},
        "ended": {"in": "warm", "why": "5 of 90 rows after 120 s at most; it stopped: Error"},
    }
    about = {"title": "Other", "writes": "Delta", "settings": "", "tolerance": "", "versions": {"other": "1.0"}}
    made = page("<!-- Made by `make peers`. -->\n<!-- end -->", _results({"other": {**about, "found": found}}))
    assert "| Other | 20 s, 30 of CPU | did not get there: 5 of 90 rows" in made


def _results(peers: dict[str, Any]) -> dict[str, Any]:
    machine = {"processor": "CPU", "cores": 2, "memory_gib": 24, "system": "Linux"}
    size = {"kinds": 3, "load": 90, "few": 3}
    return {"date": "2026-11-30", "machine": machine, "size": size, "bytes": 200, "remark": "", "peers": peers}
