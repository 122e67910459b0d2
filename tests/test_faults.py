"""A few of the scenarios of `make faults`; that its judge sees what is wrong, and its proxy does what it says."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Owner, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table, retried
from distributary.tables.tip import Tip, append_on_tip
from tests.faults import logs, others
from tests.faults.__main__ import SCENARIOS, run
from tests.faults.growth import is_flat
from tests.faults.pipelines import Piped, Place, Seen
from tests.faults.proxy import WELL, Fault, Proxy, Rule
from tests.services.stores import S3


def none() -> Any:
    raise AssertionError("this scenario needs no server")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", ["log of a table: newest commit empty", "table dropped by another"])
def test_a_neighbour_s_fault_loses_and_doubles_nothing(tmp_path: Path, name: str) -> None:
    found = run({**logs.SCENARIOS, **others.SCENARIOS}[name], Place(tmp_path / "p", none, none, none))
    assert (found.lost, found.doubled, found.hung, found.wrong) == (0, 0, 0, [])
    assert found.rows > 90


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_store_that_is_away_between_two_batches_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributary.engine.replay import Replay

    def away(*_: object) -> set[str]:
        monkeypatch.undo()
        raise OSError("Generic S3 error: Error performing GET http://h/x in 1s - HTTP error")

    piped, seen = Piped(tmp_path / "p"), Seen()
    piped.feed()
    monkeypatch.setattr(Replay, "routes", away)
    with piped.going() as going:
        assert going.wait_right()
        piped.feed()
        assert going.wait_right()
    piped.compare(seen)
    assert (seen.lost, seen.doubled, going.errors) == (0, 0, [])


# -- the judge ---------------------------------------------------------------------------------------------


class Unread(Piped):
    """Tables with what the test puts there."""

    found: dict[str, list[dict[str, Any]]]

    def rows(self, game: str) -> list[dict[str, Any]]:
        return self.found[game]

    def quarantine(self) -> list[Any]:
        return [None] * self.producer.truth.bad


def test_the_judge_counts_rows_that_are_missing_and_rows_that_are_too_many(tmp_path: Path) -> None:
    piped = Unread(tmp_path / "p")
    piped.feed(200)
    truth = piped.producer.truth
    piped.found = {
        game: [{**dict.fromkeys(truth.columns(game)), **row} for row in rows] for game, rows in truth.rows.items()
    }
    seen = Seen()
    piped.compare(seen)
    assert (seen.rows, seen.lost, seen.doubled) == (truth.good + truth.bad, 0, 0)
    game = next(iter(piped.found))
    piped.found[game] = [*piped.found[game][2:], piped.found[game][-1]]
    piped.compare(seen)
    assert (seen.lost, seen.doubled) == (2, 1)


def test_a_scenario_that_raises_is_wrong_and_no_name_comes_twice(tmp_path: Path) -> None:
    def raising(place: Place) -> Seen:
        raise KeyError("x")

    assert run(raising, Place(tmp_path, none, none, none)).wrong == ["KeyError: 'x'"]
    assert len(SCENARIOS) > 45


def test_growth_is_seen() -> None:
    flat = {"python": 200, "jvm": 700, "workers": 500, "descriptors": 400, "threads": 300, "processes": 7}
    flat |= {"files_checkpoint": 400, "files_plans": 100, "files_temporary": 1}
    samples = [{"batch": n, "seconds_a_batch": 1.0, **flat} for n in range(9)]
    good: dict[str, Any] = {"lost": 0, "doubled": 0, "exit": 0, "samples": samples}
    assert is_flat(good)
    for name in flat:
        assert not is_flat({**good, "samples": [{**one, name: one[name] * 2**n} for n, one in enumerate(samples)]})
    assert not is_flat({**good, "lost": 1})
    assert not is_flat({**good, "samples": samples[:2]})


# -- the proxy, and a commit through it --------------------------------------------------------------------


@pytest.fixture(scope="module")
def front(s3: S3) -> Iterator[Proxy]:
    with Proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.mark.services
def test_the_proxy_does_to_requests_what_it_is_told(s3: S3, front: Proxy) -> None:
    bucket = s3.bucket()
    bucket.put("a", b"whole")
    place = f"{front.endpoint}/{bucket.name}/a"

    def get() -> bytes:
        request = urllib.request.Request(place, headers=s3._headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    front.rule = WELL
    assert get() == b"whole"
    front.rule = Rule(Fault.answer(503, b"no"), "GET", first=1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        get()
    caught.value.close()
    assert (get(), front.hits) == (b"whole", 1)
    for fault in (Fault.dropped(), Fault.unanswered(), Fault.half()):
        front.rule = Rule(fault)
        with pytest.raises(Exception):  # noqa: B017  each kind of client error is one
            get()


@pytest.mark.services
@pytest.mark.parametrize(
    "fault",
    [Fault.unanswered(), Fault(forward=True, status=500, body=b"internal"), Fault.answer(412, b""), Fault.dropped()],
    ids=["answer lost", "500 though made", "412 though not", "dropped"],
)
def test_a_commit_whose_answer_says_nothing_or_lies_is_there_once(s3: S3, front: Proxy, fault: Fault) -> None:
    """The first, one that opens the table, and one that does not."""
    bucket = s3.bucket()
    store, uri = Store({**bucket.options, "aws_endpoint_url": front.endpoint}), f"{bucket.url}/lake/t"
    front.rule = Rule(fault, r"^PUT .*_delta_log/.*\.json", once=True)
    tip = None
    for batch in range(4):
        tip = retried(lambda batch=batch, tip=tip: taken(uri, store, batch, tip))  # type: ignore[misc]
    front.rule = WELL
    table = Table(uri, store).open()
    assert table is not None
    assert sorted(table.delta.to_pyarrow_table().column("x").to_pylist()) == [0, 1, 2, 3]


def taken(uri: str, store: Store, batch: int, tip: Tip | None) -> Tip | None:
    """As a task takes a batch: on the tip, else with the table open; again where another writer seems to be first."""
    rows, txn = pa.table({"x": [batch]}), Txn("s", batch)
    files = [write_data_file(uri, rows, store)]
    if tip is not None and append_on_tip(uri, tip, files, txn, store):
        return Tip.of(tip.version + 1, rows.schema, txn)
    try:
        table = Table(uri, store).open()
        if table is not None and table.newest("s") >= batch:
            return Tip.of(int(table.version), rows.schema, txn)
        evolution = evolve(columns_of(table), [rows.schema], Policy())
        version = Table(uri, store, Owner("p", "r")).commit(table, evolution, files, txn)
        return None if version is None else Tip.of(version, rows.schema, txn)
    except OSError as e:
        raise CommitConflict(str(e)) from e
