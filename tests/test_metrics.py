"""The list of metrics and what is made of it, the board, the endpoint, the push."""

from __future__ import annotations

import json
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from distributary.config import Pipeline, load_document
from distributary.engine.batch import BatchReport
from distributary.metrics.board import Board
from distributary.metrics.endpoint import exposition, served
from distributary.metrics.meter import Meter, measured, port_of
from distributary.metrics.metric_list import BY_NAME, COMMON, METRICS, NO_ROUTE, OTHER
from distributary.metrics.otlp import provider_of
from distributary.running.bronze.ingest import STREAM as BRONZE
from distributary.shares import Division
from distributary.state.ledger import Entry, replay_stream
from tests.test_deploy import printed_by, program

DEPLOY = Path(__file__).parent.parent / "deploy"
STREAM = "0f3c"
REPORT = BatchReport(
    stream=STREAM, batch=7, rows_in=10, rows_written=9, rows_quarantined=1, tombstones=0, tables=1, created=(),
    evolved=(), parked=(), recovered=(), seconds={"total": 1.5, "deliver": 1.0},
)  # fmt: skip


def pipeline(tmp_path: Path, **metrics: Any) -> Pipeline:
    return load_document(
        {
            "pipeline": "games",
            "source": {"type": "kafka", "bootstrap_servers": "localhost:9092", "topic": "events"},
            "payload": {"format": "text"},
            "envelope": {"format": "none", "route": {"from": "topic"}},
            "tables": {"root": str(tmp_path)},
            "metrics": metrics,
        }
    )


def written(route: str | None, rows: int = 10, bad: int = 0, **more: Any) -> Entry:
    reasons = {"CORRUPT_PAYLOAD": bad} if bad else {}
    more = {"state": "written" if rows > bad else "empty", "finished_at": 5_000_000, **more}
    return Entry(STREAM, 7, route, rows_in=rows, rows_written=rows - bad, rows_quarantined=bad, reasons=reasons, **more)


def parked(route: str, rows: int = 3) -> Entry:
    kept = {"TABLE_PARKED": rows}
    return Entry(STREAM, 7, route, state="parked", rows_in=rows, rows_quarantined=rows, reasons=kept)


def values(board: Board, name: str) -> dict[tuple[str, ...], float]:
    return {sample.labels: sample.value for sample in board.samples() if sample.name == name}


# -- the list and what is made of it -----------------------------------------------------------------------


def named(expression: str) -> set[str]:
    return set(re.findall(r"distributary_\w+", expression))


def test_every_metric_says_what_it_is_and_what_to_do() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", metric.name)
        assert metric.meaning.endswith(".") and metric.remedy.endswith((".", "?"))
        assert not set(metric.labels) & set(COMMON)


def test_every_expression_names_metrics_of_the_list_only() -> None:
    series = {metric.series for metric in METRICS}
    for metric in METRICS:
        for expression in (metric.panel, metric.alert.when if metric.alert is not None else None):
            if expression is not None:
                assert named(expression) <= series and metric.series in named(expression), expression


def test_the_alert_rules_are_as_prometheus_reads_them() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"]
    rules = groups[0]["rules"]
    assert len(groups) == 1 and len(rules) == sum(metric.alert is not None for metric in METRICS)
    for rule in rules:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"]) and named(rule["expr"])
        assert rule["labels"]["severity"] in ("page", "ticket")
    assert len({rule["alert"] for rule in rules}) == len(rules)


def test_the_dashboard_draws_each_panel_once_for_the_chosen_pipelines() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    for panel in panels:
        expression = panel["targets"][0]["expr"]
        assert named(expression) <= {metric.series for metric in METRICS}
        assert expression.count('pipeline=~"$pipeline",stream=~"$stream"') == len(
            re.findall(r"distributary_\w+", expression)
        )
        assert expression.count("{") == expression.count("}") and "}{" not in expression
    assert [variable["name"] for variable in board["templating"]["list"]] == ["source", "pipeline", "stream"]


# -- the board ---------------------------------------------------------------------------------------------


def test_a_batch_is_counted_by_route_reason_and_phase() -> None:
    board = Board(10, clock=lambda: 100.0)
    board.record([written("chess", 10, 1, newest=4_000_000), written(None, 2, 2), parked("go")])
    board.batch(REPORT)
    assert values(board, "rows_in") == {("chess",): 10, (NO_ROUTE,): 2, ("go",): 3}
    assert values(board, "rows_written") == {("chess",): 9}
    assert values(board, "rows_quarantined") == {
        ("chess", "CORRUPT_PAYLOAD"): 1, (NO_ROUTE, "CORRUPT_PAYLOAD"): 2, ("go", "TABLE_PARKED"): 3
    }  # fmt: skip
    assert values(board, "table_parked") == {("chess",): 0, ("go",): 1}
    assert values(board, "tables") == {("ok",): 1, ("parked",): 1, ("refused",): 0}
    assert values(board, "last_write_timestamp_seconds") == {("chess",): 5.0}
    assert values(board, "newest_record_timestamp_seconds") == {("chess",): 4.0}
    assert values(board, "batch_seconds") == {("total",): 1.5, ("deliver",): 1.0}
    assert values(board, "last_batch_timestamp_seconds") == {(): 100.0}
    assert values(board, "commits") == {("task",): 1}
    assert all(len(sample.labels) == len(BY_NAME[sample.name].labels) for sample in board.samples())


def test_a_table_of_which_most_rows_were_refused_is_not_well_and_is_again_after_a_better_batch() -> None:
    board = Board(10)
    board.record([written("chess", 200, 200)])
    assert values(board, "tables")["refused",] == 1
    board.record([Entry(STREAM, 8, "chess", state="empty", tombstones=1)])
    assert values(board, "tables")["refused",] == 1
    board.record([written("chess", 200, 199)])
    assert values(board, "tables")["refused",] == 1
    board.record([written("chess", 200, 100)])
    assert values(board, "tables") == {("ok",): 1, ("parked",): 0, ("refused",): 0}


def test_a_replay_lowers_what_is_in_the_quarantine_and_no_counter() -> None:
    board = Board(10)
    board.record([written("chess", 10, 4)])
    back = Entry(
        replay_stream(1), 1, "chess", state="written", rows_written=4, rows_quarantined=-4,
        reasons={"CORRUPT_PAYLOAD": -4},
    )  # fmt: skip
    board.record([back])
    assert values(board, "quarantine_rows") == {("CORRUPT_PAYLOAD",): 0}
    assert values(board, "rows_quarantined") == {("chess", "CORRUPT_PAYLOAD"): 4}
    assert values(board, "rows_written") == {("chess",): 10}


def test_a_run_begins_with_the_states_of_the_ledger_and_counts_nothing_of_it() -> None:
    board = Board(10)
    board.begin([written("chess", 10, 2), parked("go"), Entry(STREAM, 7, None, finished_at=6_000_000)])
    assert values(board, "last_batch_timestamp_seconds") == {(): 6.0}
    assert values(board, "rows_in") == {}
    assert values(board, "table_parked") == {("chess",): 0, ("go",): 1}
    assert values(board, "quarantine_rows") == {("CORRUPT_PAYLOAD",): 2, ("TABLE_PARKED",): 3}
    assert values(board, "last_write_timestamp_seconds") == {("chess",): 5.0}


def test_a_batch_of_an_earlier_run_is_no_batch_of_this_one() -> None:
    board = Board(10)
    board.batch(BatchReport(**{**vars(REPORT), "already": True}))
    assert values(board, "batches") == {} and board.ready[0]


def test_three_thousand_routes_make_series_for_the_worst_and_one_for_the_others() -> None:
    board = Board(20)
    board.record([written(f"r{n:04}", 10 + n) for n in range(2990)])
    board.record([written(f"bad{n}", 5, 5) for n in range(6)] + [parked(f"parked{n}") for n in range(4)])
    assert len({s.labels[0] for s in board.samples() if s.name == "table_parked"}) == 21
    shown = {labels[0] for labels in values(board, "table_parked")}
    assert {f"bad{n}" for n in range(6)} | {f"parked{n}" for n in range(4)} < shown and OTHER in shown
    assert values(board, "routes") == {(): 3000}
    assert len(board.samples()) < 200
    total = sum(10 + n for n in range(2990)) + 30 + 12
    assert sum(board._counters[key] for key in board._counters if key[0] == "rows_in") == total


def test_no_counter_falls_while_routes_come_and_go_among_the_shown() -> None:
    board, before = Board(2), dict[tuple[str, tuple[str, ...]], float]()
    for number in range(30):
        board.record([written(f"r{number % 5}", 10, number % 3)])
        now = {(s.name, s.labels): s.value for s in board.samples() if BY_NAME[s.name].kind == "counter"}
        assert all(now[key] >= value for key, value in before.items() if key in now)
        before |= now


def test_a_route_may_have_the_name_that_stands_for_the_others() -> None:
    board = Board(1)
    board.record([written("chess", 10), written(OTHER, 3), written(NO_ROUTE, 2), written("go", 1)])
    assert len({(s.name, s.labels) for s in board.samples()}) == len(board.samples())


PROGRESS = {
    "inputRowsPerSecond": 12.5,
    "processedRowsPerSecond": float("nan"),
    "durationMs": {"addBatch": 1500, "walCommit": 20},
    "sources": [
        {"endOffset": '{"events": {"0": 5, "1": 7}}', "latestOffset": '{"events": {"0": 9, "1": 7}}', "metrics": {}},
        {"endOffset": "12", "metrics": {"numBytesOutstanding": "2048", "numFilesOutstanding": "3"}},
    ],
}  # fmt: skip


def test_sparks_own_figures_are_read_from_its_progress() -> None:
    board = Board(10)
    board.spark(PROGRESS, {"isDataAvailable": True, "isTriggerActive": True, "message": "Processing new data"})
    assert values(board, "data_available") == {(): 1}
    assert values(board, "spark_input_rows_per_second") == {(): 12.5}
    assert values(board, "spark_processed_rows_per_second") == {}
    assert values(board, "spark_phase_seconds") == {("addBatch",): 1.5, ("walCommit",): 0.02}
    assert values(board, "source_backlog_rows") == {(): 4}
    assert values(board, "source_backlog_bytes") == {(): 2048}


# -- health ------------------------------------------------------------------------------------------------

IDLE = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}


def test_a_stream_is_ready_with_its_first_batch_or_when_nothing_waits_and_not_during_an_outage() -> None:
    board = Board(10)
    seen: list[tuple[bool, bool]] = []
    steps: list[Callable[[], None]] = [
        lambda: None,
        lambda: board.spark(None, {**IDLE, "message": "Initializing sources"}),
        lambda: board.spark(None, IDLE),
        lambda: board.batch(REPORT),
        lambda: board.outage(2),
        lambda: board.batch(REPORT),
        lambda: board.failed("the broker said no"),
    ]
    for happens in steps:
        happens()
        seen.append((board.healthy[0], board.ready[0]))
    fine, early, bad = (True, True), (True, False), (False, False)
    assert seen == [early, early, fine, fine, early, fine, bad]
    assert board.healthy == (False, "the broker said no")
    assert values(board, "up") == {(): 0}


# -- ways out ----------------------------------------------------------------------------------------------


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def test_the_endpoint_serves_figures_that_prometheus_can_read_and_the_health(tmp_path: Path) -> None:
    meter = Meter(pipeline(tmp_path))
    with served(meter, "127.0.0.1", 0) as port:
        assert get(port, "/readyz") == (503, "no batch was decided yet\n")
        meter.boards["whole"].record([written('a "b"\n\\c', 10, 1)])
        meter.batch(REPORT)
        assert [get(port, path)[0] for path in ("/healthz", "/readyz", "/nothing")] == [200, 200, 404]
        status, text = get(port, "/metrics")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        rows = families["distributary_rows_in"].samples[0]
        assert status == 200 and rows.value == 10
        assert rows.labels == {"pipeline": "games", "stream": "whole", "route": 'a "b"\n\\c'}
        meter.failed(RuntimeError("it fell"))
        assert get(port, "/healthz") == (503, "it fell\n")


def test_every_metric_of_the_list_can_be_exposed(tmp_path: Path) -> None:
    meter = Meter(pipeline(tmp_path))
    board = meter.boards["whole"]
    merged = {"upserts": 1, "merge_state": "merged"}
    every = written("chess", 10, 1, newest=1, widened={"a": "int -> bigint"}, tombstones=1, bytes_written=99, **merged)
    board.record([every, Entry(STREAM, 7, None, excluded=4)])
    board.batch(REPORT)
    board.spark({**PROGRESS, "processedRowsPerSecond": 1.0}, IDLE)
    said = {sample.name for sample in board.samples()}
    assert said == BY_NAME.keys()
    text = exposition(meter)[1].decode()
    assert {metric.series for metric in METRICS} <= set(re.findall(r"^(distributary_\w+)\{", text, re.MULTILINE))
    promtool = program("promtool", "prometheus")
    assert printed_by(promtool, "check", "metrics", given=text) == "", "what Prometheus' own linter says"


def test_a_port_that_is_taken_is_a_warning_and_the_run_goes_on(tmp_path: Path, caplog: Any) -> None:
    meter = Meter(pipeline(tmp_path))
    with served(meter, "127.0.0.1", 0) as port, served(meter, "127.0.0.1", port) as second:
        assert second == 0
    assert "cannot be opened" in caplog.text


def test_each_cluster_of_a_pipeline_has_the_next_port(tmp_path: Path) -> None:
    config = pipeline(tmp_path, port=9464)
    shares = Division.even(3).shares()
    assert [port_of(c) for c in (config, *map(config.for_share, shares))] == [9464, 9465, 9466, 9467]
    assert port_of(pipeline(tmp_path, port=0).for_share(shares[2])) == 0


def test_both_hops_of_one_process_have_a_board_each(tmp_path: Path) -> None:
    meter = Meter(pipeline(tmp_path, port=0))
    ledger = SimpleNamespace(entries=lambda: [written("chess")], watcher=None)
    hop_1, hop_2 = SimpleNamespace(query=None, outages=0), SimpleNamespace(query=None, outages=1, ledger=ledger)
    meter.attach(SimpleNamespace(first=hop_1, second=hop_2, ledger=ledger))
    meter.batch(BatchReport(**{**vars(REPORT), "stream": BRONZE}))
    meter.look()
    assert meter.boards.keys() == {"hop-1", "whole"}
    assert meter.boards["hop-1"].ready[0] and not meter.ready()[0]
    assert values(meter.boards["hop-1"], "rows_in") == {(NO_ROUTE,): 10}
    ledger.watcher([written("chess", 4)])
    assert values(meter.boards["whole"], "rows_in") == {("chess",): 4}


def test_a_ledger_that_cannot_be_read_and_a_session_that_is_gone_stop_no_run(tmp_path: Path, caplog: Any) -> None:
    class Gone:
        @property
        def lastProgress(self) -> Any:
            raise ConnectionRefusedError

    def fails() -> list[Entry]:
        raise OSError("store away")

    meter = Meter(pipeline(tmp_path, port=0))
    meter.attach(SimpleNamespace(query=Gone(), outages=0, ledger=SimpleNamespace(entries=fails)))
    meter.look()
    assert "store away" in caplog.text


def test_the_same_figures_leave_by_opentelemetry(tmp_path: Path) -> None:
    meter, reader = Meter(pipeline(tmp_path)), InMemoryMetricReader()
    meter.boards["whole"].record([written("chess", 10, 1)])
    provider = provider_of(meter, reader)
    try:
        data: Any = reader.get_metrics_data()
    finally:
        provider.shutdown()
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    points = found["distributary.rows_written"].data.data_points
    assert [(point.value, dict(point.attributes)) for point in points] == [
        (9, {"pipeline": "games", "stream": "whole", "route": "chess"})
    ]
    assert found["distributary.rows_written"].unit == "rows" and found["distributary.rows_written"].data.is_monotonic


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, str | None, int]]]]:
    """A server that takes pushes: its address, and of each the path, the token and the size."""
    seen: list[tuple[str, str | None, int]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers["Authorization"], len(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_run_pushes_its_last_figures_when_it_ends(
    tmp_path: Path, collector: tuple[str, list[tuple[str, str | None, int]]]
) -> None:
    address, seen = collector
    otlp = {"endpoint": address, "headers": {"authorization": "Bearer something-long"}, "every": 3600}
    with measured(pipeline(tmp_path, otlp=otlp)) as meter:
        meter.batch(REPORT)
    assert [(path, token) for path, token, _ in seen] == [("/v1/metrics", "Bearer something-long")]
    assert seen[0][2] > 200


def test_a_last_push_that_fails_changes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise Exception("MeterProvider.shutdown failed")

    monkeypatch.setattr(MeterProvider, "shutdown", fails)
    with measured(pipeline(tmp_path, otlp={"endpoint": "http://127.0.0.1:1/v1/metrics", "every": 3600})) as meter:
        meter.batch(REPORT)
    assert "the last figures were not pushed" in caplog.text


def test_a_run_does_not_wait_for_a_collector_that_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()
    shutdown = MeterProvider.shutdown

    def waits(self: MeterProvider, *_: object, **__: object) -> None:
        answered.wait(240)
        shutdown(self)

    monkeypatch.setattr(MeterProvider, "shutdown", waits)
    monkeypatch.setattr("distributary.metrics.otlp.LAST_SEC", 0.01)
    with measured(pipeline(tmp_path, otlp={"endpoint": "http://127.0.0.1:1/v1/metrics", "every": 3600})):
        pass
    assert not answered.is_set() and "the collector gave no answer" in caplog.text
    answered.set()


@pytest.mark.parametrize(("address", "port"), [("127.0.0.1", 65_536), ("no..name", 0)])
def test_a_port_that_cannot_be_is_a_warning(
    tmp_path: Path, address: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with served(Meter(pipeline(tmp_path)), address, port) as found:
        assert found == 0
    assert "the stream runs without them" in caplog.text


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributary.errors import ExtraMissing

    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ExtraMissing) as e, measured(pipeline(tmp_path, port=0)):
        pass
    assert e.value.parameters["extra"] == "metrics"


def test_a_pipeline_without_the_key_loads_no_library_and_opens_no_port(tmp_path: Path) -> None:
    before = threading.active_count()
    with measured(pipeline(tmp_path)) as meter:
        meter.batch(REPORT)
        meter.attach(None)  # it does not even look
        assert threading.active_count() == before
