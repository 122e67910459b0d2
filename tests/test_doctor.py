"""`doctor`: each check says what it finds and what to do, and none hides another."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.audit.doctor import checks, diagnose
from distributary.audit.doctor.checks import CHECKS
from distributary.audit.doctor.findings import Check, Diagnosis, Finding
from distributary.cli.entry import execute
from distributary.config import Pipeline, load_document
from distributary.errors import Exit
from distributary.redaction import MASK, hide
from distributary.tables.put_once import put_once
from tests.services.kafka import Kafka

TEXT = {"payload": {"format": "text"}, "envelope": {"format": "none", "route": {"constant": "all"}}}


def pipeline(root: Path, **keys: Any) -> Pipeline:
    source = {"type": "delta", "path": str(root / "source")}
    return load_document(
        {"pipeline": "games", "source": source, "tables": {"root": str(root / "lake")}, **TEXT, **keys}
    )


def found_by(name: str, config: Pipeline) -> list[Finding]:
    """What one check finds."""
    return list(diagnose(config, 20, [check for check in CHECKS if check.name == name]).findings)


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


@pytest.fixture
def source(lake: Path) -> Path:
    write_deltalake(str(lake / "source"), pa.table({"value": [b"x"]}))
    return lake


# -- side by side ------------------------------------------------------------------------------------------


def test_a_check_that_fails_or_hangs_hides_no_other_and_the_time_is_bounded(lake: Path) -> None:
    secret = "p4ssw0rd-of-the-broker"
    hide(secret)
    over = threading.Event()

    def fails(_: Pipeline) -> Iterator[Finding]:
        yield Finding("fails", "ok", "so far")
        raise RuntimeError(f"refused {secret}")

    def hangs(_: Pipeline) -> Iterator[Finding]:
        over.wait(60)
        yield Finding("hangs", "ok", "too late")

    def well(_: Pipeline) -> Iterator[Finding]:
        yield Finding("well", "ok", "fine")

    given = [Check("hangs", hangs, "wait"), Check("fails", fails, "mend it"), Check("well", well, "")]
    began = time.monotonic()
    found = diagnose(pipeline(lake), 0.5, given)
    over.set()
    assert time.monotonic() - began < 45
    assert [(one.check, one.level, one.remedy) for one in found.findings] == [
        ("hangs", "fault", "wait"), ("fails", "ok", None), ("fails", "fault", "mend it"), ("well", "ok", None),
    ]  # fmt: skip
    assert secret not in str(found) and MASK in found.findings[2].detail
    assert found.exit_code == Exit.ENVIRONMENT


def test_warnings_are_no_fault() -> None:
    assert Diagnosis("p", (Finding("a", "ok", ""), Finding("b", "warning", "", "x"))).exit_code == Exit.OK


# -- each ---------------------------------------------------------------------------------------------------


def test_a_pipeline_that_has_what_it_needs_is_well_and_nothing_is_left_behind(source: Path) -> None:
    found = diagnose(pipeline(source), 60)
    assert {one.check for one in found.findings} == {"versions", "java", "spark", "source", "store", "state", "disk"}
    assert not [one for one in found.findings if one.level == "fault"], found
    assert [path.name for path in source.iterdir()] == ["source"]


def test_a_store_that_cannot_be_listed_is_a_fault_and_keeps_no_probe(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no list")

    monkeypatch.setattr("distributary.tables.put_proof.names_in", refused)
    (found,) = found_by("store", pipeline(source))
    assert found.level == "fault" and "no list" in found.detail
    assert [path.name for path in source.iterdir()] == ["source"]


def test_a_source_that_is_not_there_is_a_fault_with_its_place(lake: Path) -> None:
    (found,) = found_by("source", pipeline(lake))
    assert found.level == "fault" and str(lake / "source") in found.detail and found.remedy


def test_a_broker_that_nobody_answers_at_is_a_fault(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.sources.kafka.TIMEOUT_SEC", 1.0)
    kafka = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "events"}
    (found,) = found_by("source", pipeline(lake, source=kafka))
    assert found.level == "fault" and "127.0.0.1:1" in found.detail


@pytest.mark.services
def test_a_real_broker_says_whether_the_topic_is_there_and_has_records(lake: Path, kafka: Kafka) -> None:
    from confluent_kafka import Producer

    def asked(name: str, check: str = "source") -> Finding:
        given = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "topic": name}
        return found_by(check, pipeline(lake, source=given))[0]

    with kafka.topic() as topic:
        assert (asked(topic).level, asked("nobody-made-this").level) == ("warning", "fault")
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(topic, b"x", timestamp=int((time.time() + 400) * 1000))
        producer.flush()
        found = asked(topic)
        assert found.level == "ok" and " 1 offsets" in found.detail
        clock = asked(topic, "clocks")
        assert clock.level == "fault" and "ahead" in clock.detail


@pytest.mark.services
def test_a_real_registry_says_whether_the_subject_is_there(lake: Path, registry_url: str) -> None:
    keys = {"registry": {"url": registry_url}, "payload": {"format": "protobuf"}}
    envelope = {"format": "protobuf", "subject": "nobody-registered-this"}
    (found,) = found_by("registry", pipeline(lake, **keys, envelope=envelope))
    assert found.level == "warning" and "nobody-registered-this" in found.detail
    plain = {"format": "none", "route": {"from": "message_type"}}
    (found,) = found_by("registry", pipeline(lake, **keys, envelope=plain))
    assert found.level == "ok" and "subjects" in found.detail
    (clock,) = found_by("clocks", pipeline(lake, **keys, envelope=envelope))
    assert clock.level == "ok"


@contextmanager
def answering(status: int, ahead_sec: float = 0) -> Iterator[str]:
    """A registry's address, which answers so, with the time of a clock that goes ahead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            self.send_header("Date", formatdate(time.time() + ahead_sec, usegmt=True))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("ahead_sec", "status", "level"), [(0, 200, "ok"), (0, 401, "ok"), (-60, 200, "warning"), (900, 401, "fault")]
)
def test_the_registry_s_clock_is_compared_with_ours(lake: Path, ahead_sec: int, status: int, level: str) -> None:
    with answering(status, ahead_sec) as url:
        assert levels(found_by("clocks", pipeline(lake, registry={"url": url}))) == [level]


@pytest.mark.parametrize(("status", "level"), [(200, "ok"), (401, "fault"), (403, "fault"), (503, "fault")])
def test_a_registry_that_refuses_is_a_fault_and_no_password_is_told(lake: Path, status: int, level: str) -> None:
    secret = "s3cret-of-the-reader"
    with answering(status) as url:
        registry = {"url": url, "username": "reader", "password": secret}
        (found,) = found_by("registry", pipeline(lake, registry=registry))
    assert found.level == level and secret not in str(found)
    assert level == "ok" or found.remedy


def test_a_registry_that_is_down_is_a_fault_at_once(lake: Path) -> None:
    (found,) = found_by("registry", pipeline(lake, registry={"url": "http://127.0.0.1:1"}))
    assert found.level == "fault" and found.remedy and "127.0.0.1:1" in found.detail


def test_a_store_that_writes_over_what_is_there_is_a_fault(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = put_once

    def forgets(*given: Any) -> bool:
        real(*given)
        return True

    monkeypatch.setattr("distributary.tables.put_proof.put_once", forgets)
    assert levels(found_by("store", pipeline(lake))) == ["fault"]


def test_a_store_that_cannot_be_written_is_a_fault_with_the_reason(lake: Path) -> None:
    (lake / "lake").write_text("a file where the folder should be")
    (found,) = found_by("store", pipeline(lake))
    assert found.level == "fault" and "lake" in found.detail


def test_a_store_without_a_conditional_put_is_a_warning(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "cannot_put_once", lambda *_: "renames in place of conditional puts")
    assert levels(found_by("store", pipeline(lake))) == ["warning", "ok"]


def test_a_state_that_every_user_can_read_is_a_warning(lake: Path) -> None:
    config = pipeline(lake)
    folder = Path(config.state_root)
    folder.mkdir(parents=True, mode=0o755)
    assert levels(found_by("permissions", config)) == ["warning"]
    folder.chmod(0o700)
    assert levels(found_by("permissions", config)) == ["ok"]


@pytest.mark.parametrize(("free", "level"), [(100, "ok"), (3, "warning"), (0.2, "fault")])
def test_little_room_on_a_disk_is_told(lake: Path, monkeypatch: pytest.MonkeyPatch, free: float, level: str) -> None:
    usage = SimpleNamespace(free=int(free * checks.GIB))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert set(levels(found_by("disk", pipeline(lake)))) == {level}


def test_jars_that_are_not_here_are_a_warning(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(lake / "cache"))
    assert levels(found_by("spark", pipeline(lake))) == ["warning"]


def test_no_java_is_a_fault(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Any) -> Path:
        from distributary.errors import JavaMissing

        raise JavaMissing

    monkeypatch.setattr(checks, "find_java", none)
    (found,) = found_by("java", pipeline(lake))
    assert found.level == "fault" and "17" in found.detail


def test_the_command_says_it_in_lines_or_as_json(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = source / "p.yaml"
    about = {"pipeline": "games", "source": {"type": "delta", "path": "/there/is/none"}, **TEXT}
    file.write_text(json.dumps({**about, "tables": {"root": str(source / "lake")}}))
    assert execute(["doctor", str(file)]) == Exit.ENVIRONMENT
    said = capsys.readouterr().out
    assert any(line.startswith("fault") and "/there/is/none" in line for line in said.splitlines())
    assert "What to do: Check the address" in said
    assert execute(["doctor", str(file), "--json"]) == Exit.ENVIRONMENT
    found = json.loads(capsys.readouterr().out)
    assert {one["level"] for one in found["findings"]} >= {"ok", "fault"}
