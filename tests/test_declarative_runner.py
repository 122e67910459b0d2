"""The runner around its updates: stops, layouts and refusals, without Spark."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkValueError
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from distributary.cli.signals import Stopper
from distributary.declarative import runner
from distributary.declarative.definitions import Defined
from distributary.declarative.known_routes import KnownRoutes
from distributary.declarative.lines import line
from distributary.declarative.runner import Options, Runner
from distributary.declarative.update import Selection, Update
from distributary.engine.replay import ReplayReport
from distributary.errors import BadInput, Exit, LayoutChanged, QuarantineLimit, StoreDown, UpdateFailed
from distributary.running.hops import run as run_fanout
from distributary.state.layout_claim import claim_layout
from distributary.tables.store import Store
from tests.declarative_at_rest import Rest


class Spark:
    """In place of a server and its updates: `updates` are called one after the other, with what to refresh."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *updates: Any) -> None:
        self.updates = list(updates)
        self.selections: list[Selection] = []
        self.careful: list[bool] = []
        self.starts = 0
        self.alive = True
        spark = self

        class Server:
            remote = "sc://localhost"

            def __init__(self, conf: Any, master: Any) -> None: ...

            def __enter__(self) -> Server:
                spark.starts += 1
                # As SparkContext does.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return self

            def __exit__(self, *_: object) -> None: ...

            def is_alive(self) -> bool:
                return spark.alive

        @contextmanager
        def client(remote: str, *, impatient: bool = False) -> Iterator[None]:
            yield

        def update(session: Any, config: Any, libraries: Any, base: Any, selection: Selection, *more: Any) -> Update:
            self.selections.append(selection)
            self.careful.append(more[-1])
            found = self.updates.pop(0)()
            assert isinstance(found, Update)
            return found

        monkeypatch.setattr(runner, "Server", Server)
        monkeypatch.setattr(runner, "client", client)
        monkeypatch.setattr(runner, "prepare_database", lambda *_: None)
        monkeypatch.setattr(runner, "run_update", update)
        monkeypatch.setattr(runner, "FIRST_REST_SEC", 0.01)


def good(**states: str) -> Update:
    return Update(states={"bronze": "COMPLETED", **states}, completed=True)


def failed() -> Update:
    return Update(states={"bronze": "COMPLETED", "silver_a": "FAILED"}, reasons={"silver_a": "no room"})


def run(rest: Rest, told: list[dict[str, Any]] | None = None, **options: Any) -> Runner:
    return Runner(rest.config, Path(rest.config.tables.root), Options(**options), (told or []).append)


@pytest.mark.usefixtures("old_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_a_run_after_its_update_although_spark_took_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupted() -> Update:
        signal.raise_signal(number)
        return good()

    spark = Spark(monkeypatch, interrupted)
    stopper = Stopper()
    one = Runner(Rest(tmp_path).config, tmp_path, Options(every_sec=60), started=lambda: stopper.attach(one))
    assert one.go().updates == 1
    assert (stopper.received, spark.updates) == (number, [])


@pytest.mark.usefixtures("old_signals")
@pytest.mark.parametrize("raises", [True, False])
def test_sigterm_to_all_processes_at_once_ends_a_run_well_and_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """As service managers stop a service: the server goes while a call to it is under way."""

    def cut_off() -> Update:
        signal.raise_signal(signal.SIGTERM)
        assert one._stopping.wait(60)
        spark.alive = False
        if raises:
            raise SparkConnectGrpcException("<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = 14")
        return failed()

    spark = Spark(monkeypatch, cut_off)
    stopper, told = Stopper(), list[dict[str, Any]]()
    one = Runner(Rest(tmp_path).config, tmp_path, Options(), told.append, started=lambda: stopper.attach(one))
    report = one.go()
    assert (report.ok, report.updates, stopper.exit_code(Exit.OK)) == (True, 0, Exit.OK)
    assert [said["kind"] for said in told] == ["stopped", "run"]
    assert "the next run goes on from there" in str(line(told[0]))


def test_what_failed_is_tried_again_three_times_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = Spark(monkeypatch, failed, failed, failed)
    report = run(Rest(tmp_path), once=True).go()
    assert (report.ok, report.updates, report.failed) == (False, 3, {"silver_a": "no room"})
    assert spark.starts == 1, "on the same warm server"


def test_what_works_the_second_time_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Spark(monkeypatch, failed, lambda: good(silver_a="COMPLETED"))
    report = run(Rest(tmp_path), once=True).go()
    assert (report.ok, report.updates, report.failed) == (True, 2, {})


def test_after_a_worker_has_died_updates_look_for_what_ended_it_until_all_that_rests_is_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that leaves out what rests is well, and has found nothing."""
    died = Update(states={"bronze": "FAILED"}, reasons={"bronze": "Python worker exited unexpectedly (crashed)"})
    without = Update(states={"silver_a": "COMPLETED"}, completed=True)
    spark = Spark(monkeypatch, lambda: died, lambda: without, good, good)
    one = run(Rest(tmp_path))
    monkeypatch.setattr(one, "_is_done", lambda _: not spark.updates)
    one.options = replace(one.options, every_sec=0)
    assert one.go().ok
    assert spark.careful == [False, True, True, False]


def test_the_file_of_events_keeps_the_newest_ones_and_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "EVENTS_BYTES", 1000)
    one = run(Rest(tmp_path))
    assert one._events is not None
    sizes = []
    for number in range(100):
        one._tell({"number": number, "text": "ä" * 20})
        sizes.append((one._events / "events.jsonl").stat().st_size)
    assert max(sizes) <= 1000
    numbers = [json.loads(line)["number"] for line in (one._events / "events.jsonl").read_text().splitlines()]
    assert numbers == list(range(numbers[0], 100)) and len(numbers) > 3


def test_a_full_refresh_is_done_once_and_what_it_did_not_fill_is_filled_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = Spark(monkeypatch, failed, lambda: good(silver_a="COMPLETED"))
    assert run(Rest(tmp_path), once=True, selection=Selection(full_refresh=("silver_a",))).go().ok
    assert spark.selections == [Selection(full_refresh=("silver_a",)), Selection(refresh=("silver_a",))]


def test_an_outage_ends_a_run_with_once_and_is_waited_for_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> Update:
        raise StoreDown(path="/t", detail="gone")

    Spark(monkeypatch, away)
    with pytest.raises(StoreDown):
        run(Rest(tmp_path), once=True).go()

    def last() -> Update:
        going.stop()
        return good()

    told: list[dict[str, Any]] = []
    spark = Spark(monkeypatch, away, away, last)
    going = Runner(Rest(tmp_path).config, tmp_path, Options(every_sec=0), told.append)
    assert going.go().ok
    assert [said["kind"] for said in told] == ["error", "error", "update", "run"]
    assert spark.starts == 3


def test_definitions_that_break_end_a_run_with_once_and_are_read_again_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Update:
        raise PySparkValueError("no such column\n\nJVM stacktrace:\nlong")

    Spark(monkeypatch, broken)
    with pytest.raises(UpdateFailed) as caught:
        run(Rest(tmp_path), once=True).go()
    assert caught.value.parameters["detail"] == "no such column"

    def mended() -> Update:
        going.stop()
        return good()

    monkeypatch.setattr(runner, "FAILURES_IN_A_ROW", 2)
    Spark(monkeypatch, broken, good, broken, broken, mended)
    going = Runner(Rest(tmp_path).config, tmp_path, Options(every_sec=0))
    assert going.go().updates == 2, "what works in between ends the row of failures"


def test_too_many_bad_rows_end_a_run_after_they_are_in_the_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = Rest(tmp_path, quarantine={"max_ratio": 0.01, "min_rows": 1})

    def update() -> Update:
        rest.take(rest.send(1))
        return good()

    Spark(monkeypatch, update)
    with pytest.raises(QuarantineLimit):
        run(rest, once=True).go()
    assert rest.books().ledger.newest


def test_rows_of_unknown_envelopes_are_tried_again_only_when_an_envelope_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = Rest(tmp_path)
    records = [r for r in rest.send(1) if r.fault is None]
    known = rest.known()
    hidden = replace(known, reader=replace(known.reader, schemas={}))
    tries: list[int] = []

    def tried(*_: Any, **__: Any) -> ReplayReport:
        tries.append(len(tries))
        return ReplayReport(left={"": len(records)})

    def update(seen: KnownRoutes, *, last: bool = False) -> Callable[[], Update]:
        def made() -> Update:
            if seen is hidden and not tries:
                rest.take(records, hidden)
            if last:
                going.stop()
            found = good()
            found.defined = Defined(seen, {}, {})
            return found

        return made

    monkeypatch.setattr(runner, "replay", tried)
    updates = [update(hidden), update(hidden), update(hidden), update(known), update(known, last=True)]
    Spark(monkeypatch, *updates)
    going = Runner(rest.config, tmp_path, Options(every_sec=0))
    going.go()
    assert len(tries) == 2, "after the first update, and after the one that knew an envelope more"


def test_a_pipeline_keeps_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Rest(tmp_path)
    with pytest.raises(BadInput, match="pipeline run"):
        run_fanout(rest.config, once=True)
    Spark(monkeypatch, good)
    assert run(rest, once=True).go().ok
    with pytest.raises(LayoutChanged):
        claim_layout(rest.config.model_copy(update={"layout": "fanout"}), Store())
