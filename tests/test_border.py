"""One bad record, schema, table or file never stops the others: every type of exception there is, at every step.

A decoder, a table and a file reader raise whatever Python and the libraries below can raise. Nothing may escape, the
other rows must be written once, and each row must be accounted for.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JNetworkError

from distributary.changes.any_files import first_table, read_file
from distributary.config import Tables
from distributary.engine.attempts import RouteFault, end_attempt
from distributary.engine.changes import deliver as cdc_deliver
from distributary.engine.changes import log_append as cdc_log
from distributary.engine.changes import merging, read, routing
from distributary.engine.changes.fitting import FilePart, RouteEvents
from distributary.engine.changes.micro_batch import Changes
from distributary.engine.changes.task_spec import ChangeSpec, WorkFile
from distributary.engine.decisions import Decision
from distributary.engine.messages import attempt as attempt_module
from distributary.engine.messages import decode as decode_module
from distributary.engine.messages import deliver as deliver_module
from distributary.engine.messages import wide_attempt as wide_module
from distributary.engine.messages.attempt import Attempt
from distributary.engine.messages.chunks import RECORD_SCHEMA
from distributary.engine.messages.decode import decode, fit
from distributary.engine.messages.deliver import deliver_route
from distributary.engine.messages.task_spec import ORIGIN_TYPE, MessageSpec
from distributary.engine.messages.wide_attempt import WideAttempt
from distributary.engine.messages.wide_commit import commit_wide
from distributary.engine.outcomes import Append, Outcome
from distributary.errors import FileBroken, Outage, Reason, StoreDown
from distributary.errors.border import by_halves, contained, forget_locals, in_words
from distributary.schemas.formats import decoder_for
from distributary.schemas.registry.compile import compile_text
from distributary.schemas.row_sql import RowSql
from distributary.tables.datafile import DataFile
from distributary.tables.faults import CommitConflict
from distributary.tables.outage import is_store_fault
from distributary.tables.quarantine import count_reasons
from distributary.tables.spark_engine import SparkEngineError, spark_ended
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.deadly import AtHome
from tests.exceptions import PROCESS, all_types, instance
from tests.scenarios import message
from tests.shop import change, mysql_table
from tests.sparkless import Here, Sparkless

TEXT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
SCHEMAS = {1: compile_text(TEXT, id=1)}
TYPES = all_types()
ERRORS: Mapping[str, BaseException] = {f"r{n}": instance(kind) or OSError() for n, kind in enumerate(TYPES)}
"""A route per type."""


def made(route: str) -> BaseException:
    """The route's error, never raised before."""
    return instance(type(ERRORS[route])) or OSError()


@pytest.fixture
def spec(tmp_path: Path) -> MessageSpec:
    return MessageSpec(
        pipeline="games",
        stream="stream-1",
        batch=0,
        tables=Tables(root=str(tmp_path / "lake")),
        store=Store(),
        quarantine=str(tmp_path / "lake" / "quarantine"),
        payload_framed=True,
        raw_nested_indexes=False,
    )


def some(nth: int) -> dict[str, BaseException]:
    """Every n-th, for the steps before which files are written."""
    return dict(list(ERRORS.items())[::nth])


def records(*users: str) -> list[tuple[list[list[Any]], pa.RecordBatch]]:
    """One chunk of a route's records, in the order given."""
    rows = [
        {"payload": message(TEXT, "event", user=user), "topic": "t", "partition": 0, "offset": at}
        for at, user in enumerate(users)
    ]
    return [([[1, "0", len(users)]], pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA))]


def put(spec: MessageSpec, route: str, *users: str) -> tuple[Outcome, list[pa.Table]]:
    return deliver_route(route, decode(route, records(*users), spec, SCHEMAS), spec)


def names_of(errors: Iterable[BaseException]) -> list[str]:
    return [type(error).__name__ for error in errors]


def users_in(spec: MessageSpec, route: str) -> list[str]:
    found: list[str] = DeltaTable(spec.table(route)).to_pyarrow_table().column("user").to_pylist()
    return sorted(found)


def adds_up(outcome: Outcome, bad: Sequence[pa.Table]) -> bool:
    kept = sum(rows.num_rows for rows in bad)
    return bool(outcome.rows_in == outcome.rows_written + kept and kept == sum(outcome.reasons.values()))


def raising(find: Callable[..., str | None], whole: Callable[..., Any]) -> Callable[..., Any]:
    """`whole`, which raises the error of the route that `find` names."""

    def step(*args: Any, **kwargs: Any) -> Any:
        route = find(*args, **kwargs)
        if route is not None:
            raise made(route)
        return whole(*args, **kwargs)

    return step


def said_of(error: BaseException) -> tuple[str, ...]:
    """How the words for an error may begin. Python makes a RuntimeError of a StopIteration that leaves a generator
    (PEP 479)."""
    return (type(error).__name__, *(["RuntimeError"] if isinstance(error, StopIteration) else []))


def nowhere(*_: Any, **__: Any) -> None:
    return None


def route_in(*values: Any, **_: Any) -> str | None:
    """The faulty route that the arguments speak of."""
    for value in values:
        if isinstance(value, str) and (found := re.search(r"(?:^|/)(r\d+)(?:$|/|_log$)", value)):
            return found[1]
        table = getattr(value, "uri", None)
        if table is not None and (found := re.search(r"/(r\d+)/?$", table)):
            return found[1]
    return None


# -- the rule ----------------------------------------------------------------------------------------------


def test_there_are_many_kinds_of_exceptions_and_panics_are_among_them() -> None:
    names = {kind.__name__ for kind in TYPES}
    assert len(TYPES) > 300
    assert {"RecursionError", "OverflowError", "MemoryError", "PanicException", "ArrowInvalid", "DeltaError"} <= names


@pytest.mark.parametrize("kind", PROCESS)
def test_what_is_meant_for_the_process_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        contained(kind())


def test_an_error_that_cannot_say_what_it_means_is_contained_all_the_same() -> None:
    class Mute(BaseException):
        def __str__(self) -> str:
            raise RecursionError

    assert in_words(Mute()).startswith("Mute")
    assert len(in_words(ValueError("x" * 10_000_000))) < 5_000
    assert pa.array([in_words(ValueError("\ud800"))], pa.string())


def test_halving_finds_exactly_the_rows_that_fail() -> None:
    def work(begin: int, end: int) -> list[int]:
        if {3, 700} & set(range(begin, end)):
            raise OverflowError
        return list(range(begin, end))

    def alone(begin: int, end: int, _: str) -> list[int]:
        bad.extend(range(begin, end))
        return []

    bad: list[int] = []
    good = [n for part in by_halves(0, 1000, work, alone) for n in part]
    assert (bad, good) == ([3, 700], [n for n in range(1000) if n not in (3, 700)])


def test_what_fails_without_rows_is_not_tried_row_by_row() -> None:
    tried: list[int] = []

    def work(begin: int, end: int) -> list[int]:
        tried.append(end - begin)
        raise MemoryError

    assert list(by_halves(0, 60_000, work, lambda b, e, _: [b, e])) == [[0, 60_000]]
    assert len(tried) == 2


# -- a payload ---------------------------------------------------------------------------------------------


class _Poisoned:
    """A decoder that raises the error which a payload names."""

    def __init__(self, whole: Any) -> None:
        self.whole, self.columns, self.engine = whole, whole.columns, whole.engine

    def decode(self, payloads: pa.BinaryArray) -> Any:
        for payload in payloads.to_pylist():
            if found := re.search(rb"poison (r\d+)", payload):
                raise made(found[1].decode())
        return self.whole.decode(payloads)


def test_a_payload_that_breaks_its_decoder_is_set_aside_alone(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = decoder_for
    monkeypatch.setattr(decode_module, "decoder_for", lambda *a, **k: _Poisoned(whole(*a, **k)))
    poison = [f"poison {route}" for route in ERRORS]
    users = [user for n, one in enumerate(poison) for user in (f"good {n}", one)]
    outcome, bad = put(spec, "a", *users)
    assert adds_up(outcome, bad)
    assert outcome.reasons == {Reason.DECODER_FAILED: len(poison)}
    rows = pa.concat_tables(bad).sort_by("offset")
    assert rows.column("offset").to_pylist() == list(range(1, 2 * len(poison), 2))
    assert [d.split(":")[0] for d in rows.column("detail").to_pylist()] == names_of(ERRORS.values())
    assert users_in(spec, "a") == sorted(f"good {n}" for n in range(len(poison)))


def test_a_schema_that_breaks_its_decoder_sets_only_its_own_rows_aside(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = decoder_for

    def broken(schema: Any, message: str = "0", **more: Any) -> Any:
        if schema.id >= 100:
            raise made(f"r{schema.id - 100}")
        return whole(schema, message, **more)

    monkeypatch.setattr(decode_module, "decoder_for", broken)
    schemas = SCHEMAS | {100 + n: replace(SCHEMAS[1], id=100 + n) for n in range(len(TYPES))}
    [(_, chunk)] = records("good", *ERRORS)
    decoded = decode("a", [([[1, "0", 1], *([i, "0", 1] for i in sorted(schemas) if i != 1)], chunk)], spec, schemas)
    outcome, bad = deliver_route("a", decoded, spec)
    assert adds_up(outcome, bad)
    assert outcome.reasons == {Reason.BROKEN_SCHEMA: len(TYPES)}
    assert users_in(spec, "a") == ["good"]
    writers = {(schema_id, "0") for schema_id in schemas}
    assert len(decode_module.incoming_schemas("a", writers, schemas, spec)) == 1


def test_an_expectation_that_breaks_on_a_row_sets_this_row_aside(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plain:
        is_plain = False

        def apply(self, rows: pa.RecordBatch) -> Any:
            for user in rows.column("user").to_pylist():
                if user.startswith("r"):
                    raise made(user)
            return SimpleNamespace(rows=rows, warnings={}, failures={}, dropped={})

    monkeypatch.setattr(RowSql, "of", lambda *_: Plain())
    foreign = [r for r, e in ERRORS.items() if not type(e).__module__.startswith("distributary")]
    outcome, bad = put(spec, "a", "good", *foreign, "too")
    assert adds_up(outcome, bad)
    assert outcome.reasons == {Reason.DECODER_FAILED: len(foreign)}
    assert users_in(spec, "a") == ["good", "too"]


# -- a table -----------------------------------------------------------------------------------------------

STEPS: tuple[tuple[Any, str], ...] = (
    (deliver_module, "fit"),
    (deliver_module, "why_spark"),
    (MessageSpec, "writing"),
    (Table, "commit"),
    (Table, "open"),
    (MessageSpec, "table"),
)


@pytest.mark.parametrize(("target", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_table_that_fails_at_any_step_is_parked_alone(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch, target: Any, name: str
) -> None:
    find: Callable[..., str | None] = route_in
    if name == "table":
        # Even its name: the driver asks for it too, when it says what failed.
        find = nowhere
    monkeypatch.setattr(target, name, raising(find, getattr(target, name)))
    if name == "table":
        monkeypatch.setattr(deliver_module, "fit", raising(route_in, fit))
    outages: set[str] = set()
    decoded = decode("a", records("x", "y"), spec, SCHEMAS)
    tried = ERRORS if name != "commit" else some(10)
    for number, (route, error) in enumerate(tried.items()):
        if number % 50 == 0:
            outcome, bad = deliver_route(f"good{number}", decoded, spec)
            assert (outcome.state, outcome.rows_written, bad) == ("written", 2, [])
            assert users_in(spec, f"good{number}") == ["x", "y"]
        outcome, bad = deliver_route(route, decoded, spec)
        assert adds_up(outcome, bad), error
        assert (outcome.state, outcome.rows_written) == ("failed", 0), error
        assert outcome.reasons == {Reason.TABLE_PARKED: 2}
        assert str(outcome.error).startswith(said_of(error))
        assert outcome.fault is not None
        assert outcome.fault.of_store == is_store_fault(error)
        if outcome.fault.of_store:
            outages.add(type(error).__name__)
        assert not DeltaTable.is_deltatable(spec.table(route))
    away = [e for e in tried.values() if isinstance(e, (Outage, ConnectionError, TimeoutError))]
    assert outages == set(names_of(away))


def test_a_shared_table_that_fails_is_the_driver_s_to_park(spec: MessageSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    unused: Any = None
    monkeypatch.setattr(attempt_module, "open_own", raising(route_in, deliver_module.open_own))
    monkeypatch.setattr(Attempt, "_commit", raising(lambda _, route, *__: route_in(route), Attempt._commit))
    for route, error in ERRORS.items():
        writers = {route: {(1, "0")}}
        made = Attempt(spark, Store(), unused, set(), unused, unused, writers, spec, SCHEMAS)
        kind: type[BaseException] = StoreDown if is_store_fault(error) else RouteFault
        if spark_ended(error):
            kind = type(error)  # no table can be blamed for that
        with pytest.raises(kind):
            made._prepare_shared([route])
        made.spec = spec.deciding({route: Decision("files")})
        file = DataFile("part-0.parquet", 1, 2, "{}", 0)
        outcome = Outcome(route, spec.table(route), rows_in=2, append=Append("files", 2, files=(file,)))
        done: Any = SimpleNamespace(outcomes={route: outcome})
        with pytest.raises(kind):
            made._commit_shared(done)
        with pytest.raises(kind):
            made._spark_write(route)


def test_an_error_of_a_spark_that_is_gone_leaves_an_attempt_with_its_cause() -> None:
    gone = Py4JNetworkError("no answer")
    try:
        raise SparkEngineError("refused") from gone
    except SparkEngineError as e:
        error = e
    with pytest.raises(SparkEngineError) as caught:
        try:
            raise error
        except SparkEngineError as e:
            end_attempt(e, "a", "/lake/a")
    assert caught.value.__cause__ is gone
    with pytest.raises(RouteFault):
        end_attempt(SparkEngineError("refused"), "a", "/lake/a")


def test_all_tables_failing_below_is_the_store_s_fault_and_above_it_their_own() -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    unused: Any = None
    spec: Any = SimpleNamespace(decision=lambda _: Decision())
    made = Attempt(spark, Store(), unused, set(), unused, unused, {}, spec, {})
    for error in (PermissionError(13, "denied"), RecursionError("deep")):
        outcomes = {}
        for route in ("a", "b"):
            outcomes[route] = Outcome(route, f"/lake/{route}", rows_in=2, reasons={"x": 2}).failed(error)
        done: Any = SimpleNamespace(outcomes=outcomes)
        if isinstance(error, OSError):
            with pytest.raises(StoreDown):
                made._check(done)
        else:
            made._check(done)


# -- the one table of layout wide --------------------------------------------------------------------------


def wide_attempt(spec: MessageSpec, *routes: str) -> tuple[WideAttempt, Any]:
    """All tasks have written a file of each route; the commit is to come."""
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    unused: Any = None
    spec = replace(spec, wide=spec.tables.root)
    attempt = WideAttempt(spark, Store(), unused, set(), unused, unused, {r: {(1, "0")} for r in routes}, spec, SCHEMAS)
    attempt._open()
    attempt._prepare_shared(routes)
    rows = pa.table({"user": ["x"], "score": pa.array([1], pa.int32())})
    done: dict[str, Outcome] = {}
    for route in routes:
        origin = pa.nulls(1, ORIGIN_TYPE)
        file = attempt.spec.write(route, rows.append_column("_origin", origin))
        done[route] = Outcome(route, spec.table(route), rows_in=1, append=Append("files", 1, files=(file,)))
    return attempt, SimpleNamespace(outcomes=done)


def test_one_route_s_columns_that_the_shared_commit_cannot_take_park_that_route(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = commit_wide

    def commit(table: Any, spec: Any, columns: Mapping[str, pa.Schema], *more: Any) -> None:
        if found := [route for route in columns if route.startswith("r")]:
            raise made(found[0])
        whole(table, spec, columns, *more)

    monkeypatch.setattr(wide_module, "commit_wide", commit)
    for route, error in some(10).items():
        attempt, done = wide_attempt(spec, "a", route, "z")
        if isinstance(error, CommitConflict) or is_store_fault(error):
            continue
        with pytest.raises(RouteFault) as caught:
            attempt._commit_shared(done)
        assert (caught.value.route, caught.value.why.split(":")[0]) == (route, type(error).__name__)
    attempt, done = wide_attempt(spec, "a", "z")
    attempt._commit_shared(done)
    assert [o.state for o in done.outcomes.values()] == ["written", "written"]


def test_a_shared_commit_that_came_in_before_it_failed_is_nobody_s_fault(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(*args: Any) -> None:
        commit_wide(*args)
        raise made("r0")

    monkeypatch.setattr(wide_module, "commit_wide", commit)
    attempt, done = wide_attempt(spec, "a", "z")
    with pytest.raises(CommitConflict):
        attempt._commit_shared(done)
    attempt, _ = wide_attempt(spec, "a", "z")
    assert attempt._taken == {"a": 1, "z": 1}


def test_a_shared_commit_that_fails_for_no_route_s_columns_fails_the_batch(
    spec: MessageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, done = wide_attempt(spec, "a", "z")
    attempt._commit_shared(done)
    monkeypatch.setattr(wide_module, "commit_wide", raising(lambda *_: "r0", commit_wide))
    attempt, done = wide_attempt(replace(spec, batch=1), "a", "z")
    with pytest.raises(StoreDown):
        attempt._commit_shared(done)
    monkeypatch.setattr(wide_module, "open_own", raising(lambda *_: "r0", deliver_module.open_own))
    with pytest.raises(StoreDown):
        wide_attempt(replace(spec, batch=1), "a", "z")


# -- a file ------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Sparkless]:
    yield Sparkless(tmp_path, tables={"retry_after": "1 hour"})


def send(shop: Sparkless, routes: Sequence[str]) -> None:
    for route in routes:
        table = mysql_table(route)
        shop.send(*(change(table, "INSERT", {"id": n, "status": "new"}, 100 + n) for n in range(2)))


CONTAINED = {r: e for r, e in ERRORS.items() if not is_store_fault(e) and not isinstance(e, FileBroken)}


def test_a_file_that_breaks_its_reader_is_set_aside_alone(shop: Sparkless, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the driver looks for what a file may hold."""
    paths = [shop.garbage(f"shop_bad/2026/01/01/00/00/{route}.avro") for route in CONTAINED]

    def named(_: Any, path: str, *__: Any) -> str | None:
        name = Path(path).stem
        return name if name in CONTAINED else None

    monkeypatch.setattr(read, "read_file", raising(named, read_file))
    monkeypatch.setattr(routing, "first_table", raising(named, first_table))
    monkeypatch.setattr(routing, "Apart", AtHome)
    send(shop, ["orders", "users"])
    shop.run()
    assert shop.reasons() == {Reason.FILE_BROKEN: len(paths)}
    details = Counter(row["detail"].split(":")[0] for row in shop.quarantined())
    assert details == Counter(type(error).__name__ for error in CONTAINED.values() if error is not None)
    for route in ("orders", "users"):
        assert shop.living(f"shop_{route}") == [(0, "new"), (1, "new")]
        assert len(shop.log(f"shop_{route}_log")) == 2
    shop.check()


def one_event(shop: Sparkless) -> tuple[FilePart, ChangeSpec]:
    """An event as a task holds it, and a batch's orders."""
    [path] = shop.send(change(mysql_table("orders"), "INSERT", {"id": 1, "status": "new"}, 100))
    changes = Changes(Here(), shop.config, Store())  # type: ignore[arg-type]
    spec = changes.spec("stream", 0, {})
    found, _ = read.load(WorkFile(str(path), path.stat().st_size, 0), spec)
    return FilePart(found.events[0], str(path)), spec


CHANGE_STEPS: tuple[tuple[Any, str, str], ...] = (
    (cdc_deliver, "newest_ms", "failed"),
    (cdc_log, "fit", "failed"),
    (cdc_log, "writing_data_file", "failed"),
    (Table, "commit", "failed"),
    (Table, "open", "failed"),
    (merging, "reduce_rows", "parked"),
    (merging, "merge_rows", "parked"),
)


@pytest.mark.parametrize(("target", "name", "state"), CHANGE_STEPS, ids=[name for _, name, _ in CHANGE_STEPS])
def test_a_table_of_change_files_that_fails_at_any_step_is_parked_alone(
    shop: Sparkless, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, state: str
) -> None:
    """A merged table that fails leaves its log as it is: whole."""
    part, spec = one_event(shop)
    whole = getattr(target, name)
    writes = state == "parked" or name == "commit"
    for number, route in enumerate(some(10) if writes else ERRORS):
        source = replace(part.events.table, table=route)
        events = RouteEvents(source, [replace(part, events=replace(part.events, table=source))])
        monkeypatch.setattr(target, name, raising(lambda *_, route=route, **__: route, whole))
        outcome, bad = cdc_deliver.deliver_route(events, spec)
        outcome = replace(outcome, reasons=count_reasons(bad))
        assert outcome.merge is not None
        assert adds_up(outcome, bad)
        if state == "failed":
            assert (outcome.state, outcome.reasons) == ("failed", {Reason.TABLE_PARKED: 1})
            assert str(outcome.error).startswith(said_of(ERRORS[route]))
        else:
            assert (outcome.state, outcome.merge.state, outcome.rows_written) == ("written", "parked", 1)
            assert str(outcome.merge.error).startswith(type(ERRORS[route]).__name__)
        assert [fault.of_store for fault in outcome.faults] == [is_store_fault(ERRORS[route])]
        if number % 50 == 0:
            monkeypatch.setattr(target, name, whole)
            source = replace(source, table=f"good{number}")
            good = RouteEvents(source, [replace(part, events=replace(part.events, table=source))])
            outcome, bad = cdc_deliver.deliver_route(good, spec)
            assert outcome.merge is not None
            assert (outcome.state, outcome.merge.state, outcome.merge.upserts, bad) == ("written", "merged", 1, [])


class Rows:
    """What a weak reference can be made to."""


def test_an_error_that_somebody_keeps_holds_none_of_what_its_frames_and_causes_held() -> None:
    held: list[weakref.ref[Rows]] = []

    def asks() -> None:
        rows = Rows()
        held.append(weakref.ref(rows))
        raise OSError("refused")

    def looks() -> None:
        rows = Rows()
        held.append(weakref.ref(rows))
        try:
            asks()
        except OSError as e:
            raise ValueError("no answer") from e

    with pytest.raises(ValueError, match="no answer") as kept:
        looks()
    assert [ref() is not None for ref in held] == [True, True]
    forget_locals(kept.value)
    assert [ref() for ref in held] == [None, None]
    assert str(kept.value.__cause__) == "refused", "what it says stays"


def test_errors_that_led_to_each_other_in_a_circle_are_forgotten_once() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    forget_locals(first)
