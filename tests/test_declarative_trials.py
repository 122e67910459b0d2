"""Records that end the process which reads them, in updates of a declarative pipeline: bronze sets them aside."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from distributary.declarative.judge import judge_columns, judge_values
from distributary.declarative.known_routes import KnownRoutes
from distributary.declarative.replay import replay
from distributary.declarative.trials import decode_in_task, judge_in_task
from distributary.errors import Reason
from tests.declarative import with_user
from tests.declarative_at_rest import Rest
from tests.test_killed import PLANTS


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes apart have readers that some bytes end: what is found there is never read here."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLANTS), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("planted")
def test_what_ends_its_reader_is_set_aside_with_how_and_the_rest_is_judged(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    sent = [r for r in rest.send(1) if r.fault is None][:4]
    deadly = [with_user(sent[0], "sigkill"), with_user(sent[1], "segfault"), with_user(sent[2], "x", "opening sigkill")]
    values = pa.array([r.value for r in [*sent, *deadly]], pa.binary())
    known = rest.known()
    found = judge_in_task(values, known_routes=known, careful=True).to_pylist()
    assert [v["reason"] for v in found] == [None] * 4 + [Reason.KILLED_READER] * 3
    assert [v["detail"].partition(": ")[2] for v in found[4:]] == ["SIGKILL", "SIGSEGV", "SIGKILL"]
    assert [(v["route"], v["level"]) for v in found[4:]] == [
        *((r.game, "payload") for r in deadly[:2]),
        (None, "envelope"),
    ]
    assert [v["payload"] for v in found[4:]] == [*(r.envelope.payload for r in deadly[:2]), deadly[2].value]
    # The envelope's columns, as sources may have them.
    opened = pa.array([r.envelope.payload for r in [*sent, deadly[0]]], pa.binary())
    names, ids = pa.array([r.game for r in [*sent, deadly[0]]]), pa.array([r.schema_id for r in [*sent, deadly[0]]])
    by_columns = judge_in_task(names, ids, opened, known_routes=known, careful=True)
    assert [v["reason"] for v in by_columns.to_pylist()] == [None] * 4 + [Reason.KILLED_READER]
    # Where nothing has died, nobody looks.
    assert judge_in_task(values, known_routes=known, careful=False).to_pylist()[4]["reason"] is None
    assert judge_columns(names, ids, opened, known).to_pylist()[4]["reason"] is None


@pytest.mark.usefixtures("planted")
def test_a_replay_tries_what_it_reads_in_a_process_apart(tmp_path: Path) -> None:
    """Also rows that wait for a schema: nobody has read them before."""
    rest = Rest(tmp_path)
    first = rest.send(1)
    rest.take(first)
    early = rest.known()
    late = [r for r in rest.send(2) if r.fault is None]
    rest.take([*late[1:], with_user(late[0], "sigkill")], early)
    report = replay(rest.config, rest.registry, reasons={Reason.UNKNOWN_SCHEMA_ID})
    assert sum(report.rows.values()) == len(late) - 1
    assert report.killed == {late[0].game: 1}
    assert sum(report.left.values()) == 1 + sum(r.fault == "unknown_id" for r in first)
    assert rest.bronze.quarantined_rows(["UNKNOWN_SCHEMA_ID"]).num_rows == sum(report.left.values())


@pytest.mark.usefixtures("planted")
def test_what_bronze_has_called_good_and_ends_its_reader_now_stops_its_silver_table_with_words(tmp_path: Path) -> None:
    rest = Rest(tmp_path)
    record = next(r for r in rest.send(1) if r.fault is None)
    known: KnownRoutes = rest.known()
    good = judge_values(pa.array([record.value, with_user(record, "segfault").value], pa.binary()), known)
    ids, messages, payloads = (pc.struct_field(good, n) for n in ("schema_id", "message", "payload"))
    route = known.routes[record.game]
    assert len(decode_in_task(ids, messages, payloads, route=route, read_sec=60, careful=False)) == 2
    with pytest.raises(ValueError, match=r"1 records of schema id \d+ .* \(SIGSEGV\)\. .* refresh bronze in full"):
        decode_in_task(ids, messages, payloads, route=route, read_sec=60, careful=True)
