"""The rules that both engines share: outcomes of several tasks as one, replays, attempts, the limit of new tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from distributary.changes.model import Kind, SourceTable
from distributary.engine.appending import ReplayCheck
from distributary.engine.attempts import Again, RouteFault, attempted, killers_after
from distributary.engine.decisions import Decision, TaskSpec, too_many
from distributary.engine.outcomes import Append, Fault, Merge, Outcome, SourceEvents, check_counts, join_into
from distributary.errors import ReplayMismatch
from distributary.tables.datafile import DataFile
from distributary.tables.faults import CommitConflict
from distributary.tables.store import Store
from distributary.tables.table import COMMIT_ATTEMPTS

DIED = PySparkException(message="Python worker exited unexpectedly (crashed)")


@pytest.fixture
def spec() -> TaskSpec:
    return TaskSpec(pipeline="games", stream="s", batch=3, store=Store(), quarantine="/lake/quarantine")


def part(number: int) -> Outcome:
    """What one of several tasks did with route `a`."""
    file = DataFile(f"part-{number}.parquet", 1, number, "{}", 0)
    columns = pa.schema([("id", pa.int64()), (f"c{number}", pa.string())]).serialize().to_pybytes()
    return Outcome(
        "a",
        "/lake/a",
        rows_in=number + 1,
        append=Append("files", number, files=(file,), schema=columns),
        merge=Merge("/lake/m", "rows", upserts=number, seconds={"merge": 0.5}),
        events=SourceEvents(SourceTable(Kind.MYSQL, "shop", "", "a"), newest_ms=number, again={"f": (number,)}),
        reasons={"BAD": 1},
        schema_ids={7: number},
    )


def test_the_outcomes_of_several_tasks_are_one_in_which_every_row_counts_once() -> None:
    for order in permutations([part(1), part(2), part(4)]):
        found: dict[str, Outcome] = {}
        for one in order:
            join_into(found, one)
        whole = found["a"]
        check_counts([whole])
        assert (whole.rows_in, whole.rows_written, whole.reasons, whole.schema_ids) == (10, 7, {"BAD": 3}, {7: 7})
        assert {file.path for file in whole.append.files} == {f"part-{n}.parquet" for n in (1, 2, 4)}
        assert set(whole.append.columns().names) == {"id", "c1", "c2", "c4"}
        assert whole.merge is not None and whole.events is not None
        assert (whole.merge.upserts, whole.merge.seconds, whole.merge.state) == (7, {"merge": 1.5}, "rows")
        assert (whole.events.newest_ms, sorted(whole.events.again["f"])) == (4, [1, 2, 4])


def test_one_task_that_failed_makes_the_whole_route_fail_in_any_order() -> None:
    for order in permutations([part(1), replace(part(2), fault=Fault("OSError: broken"), append=Append())]):
        found: dict[str, Outcome] = {}
        for one in order:
            join_into(found, one)
        assert (found["a"].state, found["a"].error) == ("failed", "OSError: broken")


def test_of_two_merges_the_state_that_leaves_more_to_do_counts() -> None:
    parked = Merge("/lake/m", fault=None).parked(ValueError("odd"))
    for one, other in permutations([Merge("/lake/m", "merged", upserts=2), parked]):
        assert (one.joined(other).state, one.joined(other).error) == ("parked", "ValueError: odd")
        assert one.joined(other).upserts == 2
    assert Merge("/lake/m", "rows").joined(Merge("/lake/m", "merged", deletes=1)).state == "merged"


def test_a_row_that_is_unaccounted_for_ends_the_batch() -> None:
    with pytest.raises(AssertionError):
        check_counts([replace(part(1), rows_in=5)])


@pytest.mark.parametrize(
    ("replay", "committed", "taken"),
    [
        (ReplayCheck(3), 5, 5),
        (ReplayCheck(3), None, 5),
        (ReplayCheck(3), 4, None),
        (ReplayCheck(3), 6, None),
        (ReplayCheck(3, more=True), 6, 6),
        (ReplayCheck(3, more=True), 4, None),
        (ReplayCheck(3, fewer=True, more=True), 4, 4),
    ],
)
def test_a_replay_counts_by_the_commit_and_stops_where_a_row_would_be_lost_or_doubled(
    replay: ReplayCheck, committed: int | None, taken: int | None
) -> None:
    if taken is not None:
        assert replay.rows(committed, 5, "/lake/a") == taken
        return
    with pytest.raises(ReplayMismatch) as caught:
        replay.rows(committed, 5, "/lake/a")
    assert caught.value.parameters["table"] == "/lake/a"


def test_an_attempt_is_made_again_without_what_failed_and_with_the_columns_that_were_settled(
    spec: TaskSpec,
) -> None:
    columns = pa.schema([("id", pa.string())])
    ends: list[Exception] = [RouteFault("a", "odd"), Again({}, {"b": columns}), CommitConflict("first"), DIED]
    seen: list[TaskSpec] = []

    def attempt(spec: TaskSpec) -> str:
        seen.append(spec)
        if ends:
            raise ends.pop(0)
        return "done"

    begun = spec.deciding({"a": Decision(merge="later")})
    assert attempted(begun, attempt, lambda *_: {"record": "SIGSEGV"}) == "done"
    assert len(seen) == 5
    assert seen[-1].decisions == {
        "a": Decision("parked", "later", why="odd"),
        "b": Decision(schema=columns),
    }
    assert seen[-1].killed == {"record": "SIGSEGV"}


def test_a_batch_gives_up_where_others_are_first_each_time(spec: TaskSpec) -> None:
    tries: list[TaskSpec] = []

    def attempt(spec: TaskSpec) -> None:
        tries.append(spec)
        raise CommitConflict("first")

    with pytest.raises(CommitConflict):
        attempted(spec, attempt, lambda *_: {})
    assert len(tries) == COMMIT_ATTEMPTS


def test_an_error_of_a_job_is_raised_unless_a_search_finds_what_ended_its_worker() -> None:
    assert killers_after(DIED, {"a": "SIGSEGV"}, lambda: {"b": "SIGABRT"}) == {"a": "SIGSEGV", "b": "SIGABRT"}
    other = PySparkException(message="no such column")
    for error, found in ((DIED, {}), (DIED, {"a": "SIGSEGV"}), (other, {"b": "SIGABRT"})):
        with pytest.raises(PySparkException) as caught:
            killers_after(error, {"a": "SIGSEGV"}, lambda found=found: found)  # type: ignore[misc]
        assert caught.value is error


def test_routes_beyond_the_limit_of_new_tables_get_none_and_hear_why() -> None:
    assert too_many(["a", "b"], 2, "new routes") == {}
    found = too_many(["a", "b", "c"], 2, "new routes")
    assert list(found) == ["c"] and "3 new routes" in found["c"]
    assert list(too_many(["a", "b"], 3, "new routes", already_new=2)) == ["b"]
