"""Object stores of three kinds that are busy, deaf or wrong, below what writes tables: nothing lost, nothing doubled.

Without Spark; `make faults` has whole pipelines over one of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.errors import StoreDown
from distributary.tables import object_stores
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.files import names_in
from distributary.tables.merge import MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import MergeRules
from distributary.tables.merge_tip import MergeTip
from distributary.tables.outage import own_fault
from distributary.tables.put_once import exists, put_once, read
from distributary.tables.snapshot import Owner, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip, append_on_tip
from tests.events import Event, table_of
from tests.extent import either
from tests.faults.proxy import WELL, Fault, Proxy, Rule
from tests.object_stores import STORES, bucket_of
from tests.services import azure, gcs_writes
from tests.services.gcs_writes import GcsWrites
from tests.services.stores import S3

pytestmark = pytest.mark.services

SLOW_DOWN = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>slow</Message></Error>'
THERE = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>BlobAlreadyExists</Code><Message>there</Message></Error>'
DENIED = THERE.replace(b"BlobAlreadyExists", b"AuthenticationFailed").replace(b"<?xml", b"\xef\xbb\xbf<?xml")
"""Azure's texts begin with a byte order mark."""
COMMITS = {
    "its answer is lost": Fault.unanswered(),
    "500 though it was made": Fault(forward=True, status=500, body=b"internal"),
    "503": Fault.answer(503, SLOW_DOWN),
    "429": Fault.answer(429, SLOW_DOWN),
    "the connection drops": Fault.dropped(),
    "the answer ends half way": Fault.half(),
    "412 that nobody made": Fault.answer(412, THERE),
    "409 that nobody made": Fault.answer(409, THERE),
}
"""What happens once to each commit; a long run tries all of them."""
OFTEN = ("its answer is lost", "503", "the answer ends half way", "412 that nobody made")
"""Examples of the hypothesis profile `long`."""
WHOLE = {
    "503": Fault.answer(503, SLOW_DOWN),
    "500": Fault.answer(500, b"internal"),
    "the connection drops": Fault.dropped(),
    "401": Fault.answer(401, b""),
    # Azure's texts begin with a byte order mark.
    "403 for who asks": Fault.answer(
        403, b"\xef\xbb\xbf" + THERE.replace(b"BlobAlreadyExists", b"AuthenticationFailed")
    ),
}
"""What happens to all requests."""
RETRIES = {"max_retries": "1", "retry_timeout": "5s", "backoff_config.init_backoff": "10ms"}
BATCHES = 3
ATTEMPTS = 6


class Behind:
    """A bucket of a store behind a proxy. `store`: as seen through it."""

    def __init__(self, request: pytest.FixtureRequest, proxy: Callable[[str], Proxy]) -> None:
        bucket, server = bucket_of(request)
        self.url, self.straight = bucket.url, Store(dict(server.options))
        self.proxy = proxy(server.url if isinstance(server, GcsWrites) else server.endpoint)
        if isinstance(server, GcsWrites):
            options = gcs_writes.options_through(self.proxy.endpoint, server.store)
        elif isinstance(server, S3):
            options = {**server.options, "aws_endpoint_url": self.proxy.endpoint}
        else:
            options = azure.options_through(self.proxy.endpoint)
        self.store = Store({**options, **RETRIES, "timeout": "10s"})


@pytest.fixture(params=STORES)
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
    backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=10), "base": 2}
    retry = {"max_retries": 1, "retry_timeout": timedelta(seconds=5), "backoff": backoff}
    monkeypatch.setattr(object_stores, "_RETRY", retry)
    with_proxies: list[Proxy] = []

    def proxy(target: str) -> Proxy:
        with_proxies.append(Proxy(target).__enter__())
        return with_proxies[-1]

    yield Behind(request, proxy)
    for one in with_proxies:
        one.__exit__(None, None, None)


def attempted(work: Callable[[], None]) -> None:
    """As a batch is: again, until it is through."""
    for attempt in range(ATTEMPTS):
        try:
            work()
            return
        except (CommitConflict, OSError):
            if attempt == ATTEMPTS - 1:
                raise


def rows_of(batch: int) -> pa.Table:
    return pa.table({"n": pa.array([2 * batch, 2 * batch + 1], pa.int64())})


class Appends:
    """A stream that appends: on its tip, else by opening the table."""

    def __init__(self, uri: str, store: Store) -> None:
        self.table = Table(uri, store, Owner("games", "a"))
        self.tip: Tip | None = None

    def take(self, batch: int) -> None:
        rows, txn, tip = rows_of(batch), Txn("s", batch), self.tip
        self.tip = None
        file = self.table.write(rows)
        if tip is not None and append_on_tip(self.table.uri, tip, [file], txn, self.table.store):
            self.tip = tip.after(txn)
            return
        found = self.table.open()
        if found is not None and found.has(txn):
            return
        evolution = evolve(columns_of(found), [rows.schema], Policy())
        version = self.table.commit(found, evolution, [file], txn)
        self.tip = None if version is None else Tip.of(version, evolution.schema, txn)


class Merges:
    """A stream of changes: each batch changes one row and adds one."""

    def __init__(self, uri: str, store: Store) -> None:
        self.table = Table(uri, store, Owner("shop", "orders", ("id",)))
        self.tip: MergeTip | None = None

    def take(self, batch: int) -> None:
        events = [Event({"id": 0, "n": batch}, 2 * batch + 1), Event({"id": batch + 1, "n": batch}, 2 * batch + 2)]
        reduced = reduce_rows(table_of(events, {"id": pa.int64(), "n": pa.int64()}), ["id"], OrderSettings())
        txn, tip, policy = Txn("s", batch), self.tip, Policy(can_widen=False)
        self.tip = None
        if tip is not None:
            merged = merge_on_tip(MergeTarget(self.table, None, policy), tip, reduced, ["id"], MergeRules(), txn)
            if merged is not None:
                self.tip = merged.tip
                return
        found = self.table.open()
        if found is not None and found.has(txn):
            return
        self.tip = merge_rows(MergeTarget(self.table, found, policy), reduced, ["id"], MergeRules(), txn).tip


def test_a_commit_that_fails_once_and_may_have_been_made_is_made_once(behind: Behind) -> None:
    for number, name in enumerate(either(OFTEN, COMMITS)):
        appends, merges = f"{behind.url}/lake/a{number}", f"{behind.url}/lake/m{number}"
        streams: tuple[Appends | Merges, ...] = (Appends(appends, behind.store), Merges(merges, behind.store))
        behind.proxy.rule, before = Rule(COMMITS[name], r"^PUT .*_delta_log/.*\.json", once=True), behind.proxy.hits
        for batch in range(BATCHES):
            for stream in streams:
                attempted(partial(stream.take, batch))
        assert behind.proxy.hits - before >= 2 * BATCHES, name
        found = DeltaTable(appends, storage_options=dict(behind.straight.options)).to_pyarrow_table()
        assert sorted(found.column("n").to_pylist()) == list(range(2 * BATCHES)), name
        rows = Table(merges, behind.straight).open()
        assert rows is not None
        kept = rows.dataset().to_table(columns=["id", "n"]).to_pylist()
        expected = {0: BATCHES - 1, **{batch + 1: batch for batch in range(BATCHES)}}
        assert sorted((row["id"], row["n"]) for row in kept) == sorted(expected.items()), name


def test_what_all_requests_meet_is_the_store_s_fault_and_over_when_it_is(behind: Behind, tmp_path: Path) -> None:
    uri, store = f"{behind.url}/lake/t", behind.store
    appends = Appends(uri, store)
    appends.take(0)
    doing: dict[str, Callable[[], object]] = {
        "put once": lambda: put_once(uri, store, "_delta_log", "7.json", b"x"),
        "read": lambda: read(uri, store, "_delta_log", f"{0:020d}.json"),
        "look": lambda: exists(uri, store, "_delta_log", f"{0:020d}.json"),
        "get": lambda: store.get(f"{uri}/_delta_log", f"{0:020d}.json"),
        "put": lambda: store.put(uri, "other", b"x"),
        "list": lambda: names_in(uri, store),
        "open": lambda: Table(uri, store).open(),
        "batch": lambda: Appends(uri, store).take(1),
    }
    for fault, what in WHOLE.items():
        behind.proxy.rule = Rule(what)
        for name, do in doing.items():
            if fault == "403 for who asks" and name in ("look", "get"):
                continue  # they begin with HEAD, whose answers have no text
            with pytest.raises(StoreDown):
                try:
                    do()
                except OSError as e:
                    own_fault(e, uri)
                pytest.fail(f"{name} with {fault}: nothing was said, or it was called the table's own fault")
        behind.proxy.rule = WELL
    appends.take(1)
    assert DeltaTable(uri, storage_options=dict(behind.straight.options)).to_pyarrow_table().num_rows == 4


def test_a_read_whose_answer_ends_half_way_comes_late_or_not_at_all_is_whole_or_an_error(behind: Behind) -> None:
    uri, store, body = f"{behind.url}/lake", behind.store, bytes(range(256)) * 64
    store.put(f"{uri}/t", "name", body)
    for fault in (Fault.half(), Fault.slow(1), Fault.dropped()):
        for get in (partial(read, uri, store, "t", "name"), partial(store.get, f"{uri}/t", "name")):
            behind.proxy.rule = Rule(fault, "^GET ", first=1)
            with contextlib.suppress(OSError):
                assert get() == body
    behind.proxy.rule = WELL
    assert store.get(f"{uri}/t", "name") == body
