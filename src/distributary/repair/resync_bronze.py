"""A route's table built anew from bronze, and put in the old one's place in one commit, while all streams run on.

What the route's stream has finished, by its ledger, is a position in bronze: all rows of the route before it are
decoded again. The good ones take the place of the table's files as they were at that position (what is appended
meanwhile stays), the bad ones that of the route's rows in the quarantine. Then the ledger is told the difference.

    rows before the position -> decoded anew -> data files, unseen
    -> rows of the quarantine that are good now: claimed -> intent -> THE COMMIT -> quarantine, ledger -> [intent gone]

A rebuild that dies before its commit has changed nothing. One that dies after it is completed by the next rebuild of
the route; what it had claimed, by any replay too.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.config import Pipeline
from distributary.engine.messages.deliver import open_own
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.replay import Replay
from distributary.engine.schemas import schemas_of
from distributary.errors import BadInput, StoreDown
from distributary.names import table_name
from distributary.repair.rebuilding import RebuiltRows, add_returned, build
from distributary.running.bronze.bronze_table import open_bronze, route_keys
from distributary.running.stream import session_of
from distributary.schemas.row_sql import check_sql
from distributary.sources.bronze import bronze_rows, bronze_source
from distributary.sources.bronze_rows import KEY
from distributary.sources.unread import AlreadyRead, Unknown, already_read
from distributary.state.checkpoint import last_committed, read_offsets, stream_id
from distributary.state.cleaning import at_work
from distributary.state.divisions import all_entries, current_parts, parts
from distributary.state.ledger import RESYNC, Entry, Ledger, is_batch, quarantine_files, totals
from distributary.tables.datafile import DataFile
from distributary.tables.engines import spark_needed
from distributary.tables.faults import CommitConflict, writing
from distributary.tables.files import read_file
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, quarantine_uri, write_rejected
from distributary.tables.snapshot import ROWS_KEY, Owner, Snapshot, Txn
from distributary.tables.store import Store, engine_uri
from distributary.tables.table import Table

"""In the state folder: what a rebuild that has begun its commit still has to do, by route key."""
ATTEMPTS = 5
_ANEW = "stop hop 2, delete the table's folder, and rebuild it: it is made anew"
_SAME = ("topic", "partition", "offset", "timestamp", "value")
"""What tells rows kept aside apart."""


@dataclass(frozen=True)
class BronzeRebuilt:
    """What a rebuild did. `rows`: in the table from bronze now; `quarantined`: kept aside now; `returned`: out of the
    quarantine into the table; `newly_bad`: out of the table into the quarantine."""

    route: str
    table: str
    rows: int
    quarantined: int
    returned: int
    newly_bad: int


@dataclass(frozen=True)
class _Moment:
    """What the ledgers say at one moment. `before`: the route's entries added up. `finished`: the newest batch of each
    stream. `stream`, `batch`: of the one that writes the route now. `details`: of its batch."""

    before: Entry
    finished: Mapping[str, int]
    stream: str
    batch: int
    details: Mapping[str, Any]


def rebuild(config: Pipeline, route: str) -> BronzeRebuilt:
    """Rebuild the table of `route` from bronze.

    Raises BadInput (no such rows, a table that delta-rs may not write), AlreadyRunning (a replay), CleanUnfinished,
    Outage.
    """
    check_sql(config.tables)
    if config.bronze_table is None:
        raise BadInput(detail=f"layout {config.layout} keeps no bronze table to rebuild from; only two_hop does")
    store = Store.of(config.tables)
    with writing(config.tables.root):
        bronze = open_bronze(config, store)
        if bronze is None or table_name(route) not in route_keys(bronze):
            raise BadInput(detail=f"bronze at {config.bronze_path} has no rows of route {route!r}")
        mine, others = _parts(config, route, store)
        with ExitStack() as locks:
            for stream in (mine, *others):
                locks.enter_context(at_work(stream, store, "replay"))
            return _Resync(config, mine, others, route, store).run()


def _parts(config: Pipeline, route: str, store: Store) -> tuple[Pipeline, list[Pipeline]]:
    """The stream that writes the route now, and those that have ever kept rows aside."""
    mine = next(p for p in current_parts(config, store) if p.share is None or p.share.owns(route))
    with_quarantine = (p for p in parts(config, store) if Table(quarantine_uri(p.state_root), store).open() is not None)
    return mine, [stream for stream in with_quarantine if stream.state_root != mine.state_root]


class _Resync:
    def __init__(self, config: Pipeline, mine: Pipeline, others: Sequence[Pipeline], route: str, store: Store) -> None:
        self.config, self.mine, self.route, self.store = config, mine, route, store
        self.key = table_name(route)
        self.spark = session_of(config)
        self.replay, *self.former = [self._replay(stream) for stream in (mine, *others)]
        self.fanout = self.replay.fanout
        self.uri = self.fanout.spec("", 0, {}, {}, [route]).table(route)
        self.table = Table.of_route(self.uri, store, Owner(config.pipeline, route), config.tables)

    def _replay(self, stream: Pipeline) -> Replay:
        fanout = Fanout(self.spark, stream, schemas_of(stream), self.store)
        ledger = Ledger(stream.state_root, stream.pipeline, self.store)
        fanout.names.remember_ledger(ledger)  # a table that is gone is made anew where a run beside this one writes it
        return Replay(stream, ledger, fanout)

    def run(self) -> BronzeRebuilt:
        for _ in range(ATTEMPTS):
            self._complete()
            self._finish_replays()
            try:
                return self._attempt()
            except CommitConflict as e:
                conflict = e
        raise StoreDown(path=self.uri, detail=f"it was changed {ATTEMPTS} times meanwhile: {conflict}")

    def _finish_replays(self) -> None:
        """First what replays that died had claimed, and all that former streams of the route had kept aside: what stays
        there is bad, and need not be told apart from what this stream kept."""
        failed = dict(self.replay.finish_claimed().failed)
        for replay in self.former:
            failed |= replay.run(self.route).failed
        if self.route in failed:
            raise BadInput(detail=f"{self.route}: a replay of it is not finished, and fails: {failed[self.route]}")

    # -- one attempt ---------------------------------------------------------------------------------------

    def _attempt(self) -> BronzeRebuilt:
        now = self._moment()
        table = self._settled(now)
        spec = self.fanout.spec(f"{RESYNC}{uuid.uuid4()}", 0, {}, {}, [self.route])
        rows = bronze_rows(self.spark, self.config, self.key, self._read(now))
        built = build(self.fanout, rows, self.route, table, spec)
        for replay in (self.replay, *self.former):
            add_returned(built, replay, self.route, table, spec)
        self._check(now, built, table)
        good, bad = self._compare(now, built)
        txn, count = (spec.txn, built.rows) if good is None else self.replay.claim(self.route, good)
        returned, newly_bad = (0 if changed is None else changed.num_rows for changed in (good, bad))
        aside = [] if bad is None else [self._write_rejected(bad, spec.stream)]
        entries = self._entries(now.before, built, returned, spec.stream, table is None)
        self._intend(txn, spec.stream, entries, aside)
        self._commit(table, built, txn, count)
        if good is not None and (failed := self.replay.settle(txn, good).failed):
            raise BadInput(detail=f"{self.route}: rebuilt, but the ledger does not have all of it yet: {failed}")
        self._complete()
        return BronzeRebuilt(self.route, self.uri, built.rows, built.kept, returned, newly_bad)

    def _moment(self) -> _Moment:
        """Raises BadInput when the route's stream has not finished a batch."""
        entries = all_entries(self.config, self.store)
        finished: dict[str, int] = {}
        stream = stream_id(self.mine.checkpoint_path, self.store) or ""
        details: dict[str, Any] = {}
        for entry in entries:
            if entry.route is None and is_batch(entry.stream):
                finished[entry.stream] = max(entry.batch, finished.get(entry.stream, -1))
                if entry.stream == stream and entry.batch == finished[stream]:
                    details = json.loads(entry.details or "{}")
        if stream not in finished:
            # After a hand-over its checkpoint says where the streams before it ended.
            begun = last_committed(self.mine.checkpoint_path, self.store)
            if begun is None:
                raise BadInput(detail=f"{self.route}: hop 2 has finished no batch of it yet; nothing is to be rebuilt")
            finished[stream] = begun
        before = totals(entries).get(self.route, Entry("", 0, self.route))
        return _Moment(before, finished, stream, finished[stream], details)

    def _read(self, now: _Moment) -> AlreadyRead:
        """Which rows of bronze came before. Raises BadInput where that cannot be told."""
        bronze = open_bronze(self.config, self.store)
        offsets = read_offsets(self.mine.checkpoint_path, self.store, now.batch)
        try:
            if bronze is None or not offsets:
                raise Unknown(f"the checkpoint {self.mine.checkpoint_path} does not have batch {now.batch}")
            return already_read(bronze_source(self.config), bronze, offsets[0], self.store, (KEY, self.key))
        except Unknown as e:
            raise BadInput(detail=f"{self.route}: it cannot be told which rows its table holds: {e}") from e

    def _check(self, now: _Moment, built: RebuiltRows, table: Snapshot | None) -> None:
        """Raises BadInput for rows that the stream has never taken (it began later in bronze), and for types that only
        Spark can change."""
        if table is not None and built.evolution is not None and (why := built.evolution.widening) is not None:
            raise BadInput(detail=f"only Spark may write {self.uri} ({why}); {_ANEW}")
        if (never_taken := built.rows_in - now.before.rows_in) > 0:
            detail = f"bronze has {never_taken:,} rows of it that hop 2 has never taken"
            raise BadInput(detail=f"{self.route}: {detail}; give bronze.starting_version as it was at its first run")

    def _settled(self, now: _Moment) -> Snapshot | None:
        """The table without what is not finished; None where there is none. Raises BadInput, TableCollision."""
        spec = self.fanout.spec("", 0, {}, {}, [self.route])
        table = open_own(self.route, spec)
        if table is None:
            if self.table.partitioned_by or self.table.clustered_by:
                raise BadInput(
                    detail=f"only Spark can make {self.uri}, which is to be partitioned or clustered; {_ANEW}"
                )
            return None
        self._check_writable(table)
        while any(table.newest(stream) > batch for stream, batch in now.finished.items()):
            table = table.at(table.version - 1)
        return table

    def _check_writable(self, table: Snapshot) -> None:
        """A rebuild commits by itself, also to a table of engine `spark`. Raises BadInput where it must not."""
        if (why := spark_needed(table)) is not None:
            raise BadInput(detail=f"only Spark may write {self.uri} ({why}); {_ANEW}")
        if self.config.tables.for_route(self.route)[0] == "spark" and engine_uri(self.uri).startswith("s3://"):
            why = "tables.engine is spark, and on S3 a table must keep to one kind of writer"
            raise BadInput(detail=f"only Spark may write {self.uri} ({why}); {_ANEW}")
        if "deletionVectors" in table.reader_features and table.deletion_vectors().num_rows:
            purge = f"REORG TABLE delta.`{self.uri}` APPLY (PURGE)"
            raise BadInput(detail=f"{self.uri} has deletion vectors; take them out by Spark first: {purge}")

    # -- rows kept aside -----------------------------------------------------------------------------------

    def _compare(self, now: _Moment, built: RebuiltRows) -> tuple[pa.Table | None, pa.Table | None]:
        """(rows kept aside until now that are good, rows that are bad for the first time); None for none. Of what was
        kept aside by a later batch nothing is said: it stays."""
        quarantine, columns = self.fanout.quarantine, REJECTED_SCHEMA.names
        # The run may be between its decision and this, its last step; anyone may do it.
        if files := quarantine_files(now.details):
            commit_quarantine(quarantine, self.config.pipeline, files, now.stream, now.batch, self.store)
        pieces = [piece for file in built.bad for piece in read_file(quarantine, file.path, columns, self.store)]
        bad = pa.concat_tables(pieces, promote_options="permissive") if pieces else None
        for file in built.bad:
            self.store.delete(quarantine, file.path)  # what is new of it is written apart
        quarantined = self.replay.kept(self.route)
        if quarantined is not None:
            later = pc.and_(
                pc.equal(quarantined.column("stream"), now.stream), pc.greater(quarantined.column("batch"), now.batch)
            )
            quarantined = quarantined.filter(pc.invert(later))
        former = [replay.kept(self.route) for replay in self.former]
        kept_counts, bad_counts = _counted(quarantined), _counted(bad)
        elsewhere = sum((_counted(rows) for rows in former), Counter())
        return _some(quarantined, kept_counts - bad_counts), _some(bad, bad_counts - kept_counts - elsewhere)

    def _write_rejected(self, bad: pa.Table, stream: str) -> DataFile:
        return write_rejected(self.fanout.quarantine, [bad], stream, 0, self.key[:40], self.store)

    # -- the end of it -------------------------------------------------------------------------------------

    def _entries(self, before: Entry, built: RebuiltRows, returned: int, stream: str, created: bool) -> list[Entry]:
        """What the ledger has to learn beside what the replay's entry says: `returned` rows out of the quarantine."""
        ids, reasons = Counter(built.schema_ids), Counter(built.reasons)
        ids.subtract(before.schema_ids)
        reasons.subtract(before.reasons)
        entry = Entry(
            stream,
            0,
            self.route,
            table=self.uri,
            state="written",
            rows_in=built.rows_in - before.rows_in,
            rows_written=built.rows - before.rows_written - returned,
            rows_quarantined=built.kept - before.rows_quarantined + returned,
            tombstones=built.tombstones - before.tombstones,
            schema_ids={i: n for i, n in ids.items() if n},
            reasons={reason: n for reason, n in reasons.items() if n},
            decoders=built.decoders,
            created=created,
            batches=0,
        )
        return [entry, Entry(stream, 0, None, batches=0)]

    def _intend(self, txn: Txn, stream: str, entries: Sequence[Entry], aside: Sequence[DataFile]) -> None:
        intent = {"app": txn.app_id, "batch": txn.version, "stream": stream}
        intent |= {"entries": [asdict(e) for e in entries], "aside": [f.to_json() for f in aside]}
        self.store.put_whole(self.mine.state_folder.resync, f"{self.key}.json", json.dumps(intent).encode())

    def _commit(self, table: Snapshot | None, built: RebuiltRows, txn: Txn, rows: int) -> None:
        """Raises CommitConflict."""
        evolution = built.evolution
        if table is None:
            if built.files and evolution is not None:
                self.table.commit(None, evolution, built.files, txn, about={ROWS_KEY: str(rows)})
            return
        old = table.sizes()
        if evolution is not None and evolution.changed:
            (self.table.open() or table).add_columns(evolution.schema)
        columns = None if evolution is None else evolution.schema
        self.table.replace_files(old, built.files, txn, rows, columns)

    def _complete(self) -> None:
        """Do what is left of a rebuild of this route whose commit is in; forget one whose commit never came."""
        folder, name = self.mine.state_folder.resync, f"{self.key}.json"
        body = self.store.get(folder, name)
        if body is None:
            return
        intent = json.loads(body)
        table = self.table.open()
        if table is not None and table.has(Txn(intent["app"], intent["batch"])):
            by_id = ("schema_ids", "decoders")
            entries = [Entry(**e | {name: _by_id(e[name]) for name in by_id}) for e in intent["entries"]]
            ledger = Ledger(self.mine.state_root, self.mine.pipeline, self.store)
            ledger.record(intent["stream"], 0, entries, {"rebuilt": self.route})
            if files := [DataFile(**f) for f in intent["aside"]]:
                uri, stream = self.fanout.quarantine, intent["stream"]
                commit_quarantine(uri, self.mine.pipeline, files, stream, 0, self.store)
        self.store.delete(folder, name)


def _by_id(by_text: Mapping[str, Any]) -> dict[int, Any]:
    """JSON's keys are text."""
    return {int(schema_id): value for schema_id, value in by_text.items()}


def _keys(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    yield from zip(*(rows.column(name).to_pylist() for name in _SAME), strict=True)


def _counted(rows: pa.Table | None) -> Counter[tuple[Any, ...]]:
    return Counter() if rows is None else Counter(_keys(rows))


def _some(rows: pa.Table | None, counts: Counter[tuple[Any, ...]]) -> pa.Table | None:
    """So many of the rows with each key as `counts` says; None for none."""
    if rows is None or not counts:
        return None
    still_wanted, rows_taken = Counter(counts), []
    for row, key in enumerate(_keys(rows)):
        if still_wanted[key] > 0:
            still_wanted[key] -= 1
            rows_taken.append(row)
    return rows.take(pa.array(rows_taken, pa.int64()))
