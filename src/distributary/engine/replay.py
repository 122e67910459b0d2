"""Bring quarantined rows into their tables, exactly once, after the cause is gone.

    open -> [decode: which rows are good now?] -> claimed by replay n -> written under the transaction (replay, n)
         -> ledger -> replayed

A replay is of one route. What it claims is fixed before anything is written, so a replay that dies is finished by the
next one, not repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.config import Pipeline
from distributary.engine.apart import Apart, WorkerDied
from distributary.engine.changes.concluding import conclude
from distributary.engine.changes.ledger_fields import ledger_fields
from distributary.engine.committed import already_there, in_log, unsure_rows
from distributary.engine.messages.admission import refused_routes
from distributary.engine.messages.chunks import GONE, KEY, Cut, Groups, by_value, one_array, read_records
from distributary.engine.messages.decode import Decoded, decode
from distributary.engine.messages.deliver import deliver_route
from distributary.engine.messages.demux import split_payloads, split_values
from distributary.engine.messages.killers import find_envelope_killers, packed
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.pieces import Chunks
from distributary.engine.messages.record_keys import as_objects
from distributary.engine.messages.stored_changes import ids_of
from distributary.engine.messages.task_spec import MessageSpec, killing
from distributary.engine.messages.trial import count_good
from distributary.engine.outcomes import Fault, Outcome
from distributary.errors import EnvironmentFault, Reason
from distributary.schemas.registry.compile import CompiledSchema
from distributary.state.ledger import Entry, Ledger, replay_stream
from distributary.state.provenance import refuse_newer
from distributary.tables.faults import writing
from distributary.tables.outage import own_fault
from distributary.tables.quarantine import ORIGIN_FIELDS, replay_app, update_rows, with_all_columns
from distributary.tables.snapshot import Snapshot, Txn
from distributary.tables.table import Table


@dataclass
class ReplayReport:
    """By route: `rows` brought into their tables, `left` still kept aside (under "": whose envelope cannot be read), of
    which `killed` end the process that reads them, `failed` tables and why. `coming`: routes whose rows the next
    batches of the stream bring once more. `unsure`: rows that stay aside, since nobody can say if their table has them.
    """

    rows: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)
    killed: dict[str, int] = field(default_factory=dict)
    unsure: dict[str, int] = field(default_factory=dict)


class Replay:
    """Replays of one pipeline. Only one process may replay at a time (lock `replay`)."""

    def __init__(self, config: Pipeline, ledger: Ledger, fanout: Fanout) -> None:
        self.config = config
        self.ledger = ledger
        self.fanout = fanout
        self._apart = Apart(config.quarantine.read_sec)
        """Where rows are read first: each may end the process that does it."""

    def run(self, route: str | None = None, reasons: Collection[Reason] | None = None) -> ReplayReport:
        """Replay what can be decoded now, of one route or of all; first what an earlier replay had claimed.

        Raises Outage (registry, store): what was claimed stays claimed, run it again; StateOld.
        """
        report = self.finish_claimed()
        with self._apart, writing(self.fanout.quarantine):  # its process goes: another replay may never come
            opened, total = self._open(route, reasons, report)
            self._refuse_old(opened)
            if route is None and (nameless := total - sum(rows.num_rows for rows in opened.values())):
                report.left[""] = nameless
            counts = {name: rows.num_rows for name, rows in opened.items()}
            refused = refused_routes(counts, self.fanout.tips, self._spec(0, {}, counts))
            report.left |= {name: counts[name] for name in refused}
            for name, rows in sorted(opened.items()):
                if name in refused:
                    continue
                for to_finish in self._ready(name, rows, report):
                    self._finish(self._claim(to_finish), to_finish, report)
        return report

    def finish_claimed(self) -> ReplayReport:
        """Finish what a replay that died had claimed. Raises Outage, StateOld."""
        report = ReplayReport()
        with writing(self.fanout.quarantine):
            self._refuse_old(self._routes("state <> 'replayed'"))
            for number, rows in self._claimed().items():
                self._finish(number, rows, report)
        return report

    def routes(self, reason: Reason) -> set[str]:
        """Routes of the rows that are kept aside for `reason`. Raises TableFault, OSError."""
        return self._routes(f"state = 'open' AND reason = '{reason.value}'")

    def _routes(self, condition: str) -> set[str]:
        rows = self._query(f"SELECT DISTINCT route FROM t WHERE {condition}")
        return set() if rows is None else {r for r in rows.column("route").to_pylist() if r}

    def _refuse_old(self, routes: Collection[str]) -> None:
        """Of all routes that wait, whichever is to be replayed: the next number would hide it. Raises StateOld."""
        spec = self._spec(0, {}, routes)
        refuse_newer(self.config, map(spec.table, routes), spec.stream, self._newest(), spec.store)

    # -- for a rebuild (`resync_bronze`): its commit stands for a replay's ---------------------------------

    def kept(self, route: str) -> pa.Table | None:
        """The open rows of a route, by its name. Raises TableFault, OSError."""
        rows = self._rows("state = 'open' AND level = 'payload'")
        return None if rows is None else rows.filter(pc.equal(rows.column("route"), route))

    def from_envelopes(self, route: str) -> pa.Table | None:
        """Rows that could not be read at all when they came, and that a replay has brought into the route's table."""
        rows = self._rows("state = 'replayed' AND level = 'envelope'")
        if rows is None or route not in self._chunks(None, rows):
            return None
        mine = [row for row in range(rows.num_rows) if route in self._chunks(None, rows.slice(row, 1))]
        return rows.take(pa.array(mine, pa.int64()))

    def decode(self, route: str, rows: pa.Table) -> tuple[Decoded, MessageSpec]:
        """Rows of the quarantine, read anew from their bytes."""
        return self._decode(route, rows, number=0)

    def claim(self, route: str, rows: pa.Table) -> tuple[Txn, int]:
        """Claim rows for a commit under this transaction; it is to say that it wrote so many of them. Until `settle`,
        any replay finishes it: by that commit or, where it never came, by one of its own."""
        is_written = already_there(rows, route, self._spec(0, {}, [route]))
        number = self._claim(rows)
        spec = self._spec(number, {}, [route])
        return spec.txn, rows.num_rows - pc.sum(is_written).as_py()

    def settle(self, txn: Txn, rows: pa.Table) -> ReplayReport:
        """Enter into the ledger what was claimed and has been written."""
        report = ReplayReport()
        self._finish(txn.version, rows, report)
        return report

    # -- the quarantine's rows -----------------------------------------------------------------------------

    def _table(self) -> Snapshot | None:
        return Table(self.fanout.quarantine, self.fanout.store).open()

    def _rows(self, condition: str) -> pa.Table | None:
        """Rows of the quarantine for which the SQL condition `condition` holds; None where there is no quarantine.

        By delta-rs's own engine: files that its MERGE wrote have columns of string_view, on which pyarrow 26 cannot
        filter.
        """
        rows = self._query(f"SELECT * FROM t WHERE {condition}")
        return None if rows is None else with_all_columns(rows)

    def _query(self, sql: str) -> pa.Table | None:
        table = self._table()
        return None if table is None else table.query(sql)

    def _claimed(self) -> dict[int, pa.Table]:
        rows = self._rows("state = 'claimed'")
        if rows is None:
            return {}
        numbers = sorted(pc.unique(rows.column("replay")).to_pylist())
        return {n: rows.filter(pc.equal(rows.column("replay"), n)) for n in numbers}

    def _open(
        self, route: str | None, reasons: Collection[Reason] | None, report: ReplayReport
    ) -> tuple[dict[str, pa.Table], int]:
        """Open rows by the route they would go to, and how many are open. An envelope that still cannot be read has no
        route and stays."""
        condition = "state = 'open'"
        if reasons is not None:
            condition += f" AND reason IN ({', '.join(repr(r.value) for r in reasons)})"
        else:
            # Each would be tried in a process of its own, only to end it again.
            condition += f" AND reason <> '{Reason.KILLED_READER}'"
        rows = self._rows(condition)
        if rows is None:
            return {}, 0
        parts_of: dict[str, list[pa.Table]] = {}
        payloads = rows.filter(pc.and_(pc.equal(rows.column("level"), "payload"), pc.is_valid(rows.column("route"))))
        for name, rows_of_route in by_value(payloads, "route"):
            if name is not None and route in (None, name):
                parts_of.setdefault(name, []).append(rows_of_route)
        envelopes = self._readable(rows.filter(pc.equal(rows.column("level"), "envelope")), report)
        for row in range(envelopes.num_rows):
            envelope = envelopes.slice(row, 1)
            for name in self._chunks(None, envelope):
                if route in (None, name):
                    parts_of.setdefault(name, []).append(envelope)
        return {name: pa.concat_tables(parts) for name, parts in parts_of.items()}, rows.num_rows

    def _readable(self, envelopes: pa.Table, report: ReplayReport) -> pa.Table:
        """Those that do not end the process which opens them."""
        if not envelopes.num_rows:
            return envelopes
        values = one_array(envelopes.column("value"))
        killers = killing(values, find_envelope_killers(values, self._reader(envelopes), self._apart))
        if killers:
            report.killed[""] = len(killers)
        return envelopes.filter(pa.array([row not in killers for row in range(len(values))]))

    def _ready(self, route: str, rows: pa.Table, report: ReplayReport) -> list[pa.Table]:
        """The rows of a route that can be written now: those whose merge failed apart from the others. None, and why,
        where its tables or schemas let nobody say."""
        try:
            good = self._good(route, rows, report)
            unsure = unsure_rows(good, route, spec := self._spec(0, {}, [route]))
            sure = good.filter(pc.invert(unsure))
            logged = in_log(sure, route, spec)
        except BaseException as e:
            report.failed[route] = self._fault(route, e)
            report.left[route] = rows.num_rows
            return []
        if bad := rows.num_rows - good.num_rows:
            report.left[route] = bad
        if count := unsure.true_count:
            report.unsure[route] = report.unsure.get(route, 0) + count
        return [ready for ready in (sure.filter(logged), sure.filter(pc.invert(logged))) if ready.num_rows]

    def _fault(self, route: str, error: BaseException) -> str:
        """What is wrong with one route, in words. Raises what is wrong with all of them: EnvironmentFault."""
        if isinstance(error, EnvironmentFault):
            raise error
        return own_fault(error, self._spec(0, {}, [route]).table(route))

    def _good(self, route: str, rows: pa.Table, report: ReplayReport) -> pa.Table:
        """The rows that would be written now. Whole groups first, halves where a group holds a bad row."""
        good = self._count_good(route, rows)
        if good == rows.num_rows:
            return rows
        if good is None and rows.num_rows == 1:
            report.killed[route] = report.killed.get(route, 0) + 1
        if good == 0 or rows.num_rows == 1:
            return rows.slice(0, 0)
        half = rows.num_rows // 2
        halves = (rows.slice(0, half), rows.slice(half))
        return pa.concat_tables([self._good(route, piece, report) for piece in halves])

    def _count_good(self, route: str, rows: pa.Table) -> int | None:
        """How many rows would be written now; None where they end the process that tries it."""
        chunks, compiled, spec = self._cut(route, rows, number=0)
        columns = spec.columns(route, Table(spec.table(route), self.fanout.store).open())
        work = partial(count_good, route=route, spec=spec, schemas=compiled, columns=columns)
        [answer] = self._apart.each(work, [packed(chunks)])
        if isinstance(answer, WorkerDied):
            return None
        if answer.error is not None:
            raise answer.error
        return answer.result

    # -- one replay ----------------------------------------------------------------------------------------

    def _claim(self, rows: pa.Table) -> int:
        self._mark(rows, "claimed", number := 1 + self._newest())
        return number

    def _newest(self) -> int:
        newest = self._query("SELECT max(replay) AS number FROM t")
        return 0 if newest is None else int(newest.column("number")[0].as_py() or 0)

    def _finish(self, number: int, rows: pa.Table, report: ReplayReport) -> None:
        """Write what replay `number` claimed, enter it into the ledger, and let the rows go."""
        route = self._route_of(rows)
        try:
            if count := unsure_rows(rows, route, self._spec(number, {}, [route]), is_claimed=True).true_count:
                report.unsure[route] = report.unsure.get(route, 0) + count
                return
            rest = rows.filter(pc.invert(already_there(rows, route, self._spec(0, {}, [route]))))
            decoded, spec = self._decode(route, rest, number)
            if rest.num_rows and pc.all(in_log(rest, route, spec)).as_py():
                spec = spec.only_merging()
            outcome = self._write(route, decoded, spec)
        except BaseException as e:
            report.failed[route] = self._fault(route, e)
            return
        if outcome.state == "failed" or outcome.rows_written != rest.num_rows:
            report.failed[route] = outcome.error or f"{rest.num_rows - outcome.rows_written} rows no longer decode"
            return
        self._record(number, route, rows, outcome)
        self._mark(rows, "replayed", number)
        report.rows[route] = report.rows.get(route, 0) + rows.num_rows

    def _route_of(self, rows: pa.Table) -> str:
        payload = rows.filter(pc.equal(rows.column("level"), "payload"))
        if payload.num_rows:
            return str(payload.column("route")[0].as_py())
        return next(iter(self._chunks(None, rows.slice(0, 1))))

    def _write(self, route: str, decoded: Decoded, spec: MessageSpec) -> Outcome:
        outcome, _ = deliver_route(route, decoded, spec)
        try:
            if outcome.merge is not None:
                return conclude({route: [outcome]}, self.fanout.merging, spec.for_changes())[route]
            if outcome.state != "spark":
                return outcome
            return self.fanout.write_decoded(route, decoded, spec)
        except BaseException as e:
            return replace(outcome, fault=Fault(self._fault(route, e)))

    def _record(self, number: int, route: str, rows: pa.Table, outcome: Outcome) -> None:
        count = rows.num_rows
        nameless = rows.filter(pc.equal(rows.column("level"), "envelope"))
        named = Counter(rows.filter(pc.equal(rows.column("level"), "payload")).column("reason").to_pylist())
        stream = replay_stream(number)
        entry = Entry(
            stream,
            number,
            route,
            table=outcome.table,
            engine="spark" if route in self.fanout.on_spark else "task",
            state="written",
            rows_in=nameless.num_rows,
            rows_written=count,
            rows_quarantined=nameless.num_rows - count,
            schema_ids=dict(Counter(self._ids(rows))),
            reasons={reason: -n for reason, n in named.items()},
            created=outcome.append.created,
            evolved=outcome.append.evolved,
            widened=outcome.widened,
            **({} if outcome.merge is None else ledger_fields(outcome)),
        )
        nameless_entry = Entry(stream, number, None, rows_in=-nameless.num_rows, rows_quarantined=-nameless.num_rows)
        self.ledger.record(stream, number, [entry, nameless_entry], {"replayed": count})

    def _ids(self, rows: pa.Table) -> Iterator[int]:
        for groups, _ in chain.from_iterable(self._chunks(None, rows).values()):
            for schema_id, _, count in groups:
                yield from [schema_id] * count if schema_id != GONE[0] else []

    def _mark(self, rows: pa.Table, state: str, number: int) -> None:
        """Set state and replay number of `rows`. A run that commits at the same moment makes this try again."""
        values = {"state": f"'{state}'", "replay": str(number)}
        update_rows(self.fanout.quarantine, self.fanout.store, rows.column("id").to_pylist(), values)

    # -- decoding ------------------------------------------------------------------------------------------

    def _decode(self, route: str, rows: pa.Table, number: int) -> tuple[Decoded, MessageSpec]:
        chunks, compiled, spec = self._cut(route, rows, number)
        return decode(route, chunks, spec, compiled), spec

    def _cut(self, route: str, rows: pa.Table, number: int) -> tuple[Chunks, Mapping[int, CompiledSchema], MessageSpec]:
        """All that it takes to decode rows of the quarantine anew from their bytes."""
        chunks = self._chunks(route, rows).get(route, [])
        ids = ids_of((group[0], group[1]) for groups, _ in chunks for group in groups)
        compiled, refused = self.fanout.schemas.resolve(ids, every=True)
        # A person may ask for rows that ended a reader: if they still do is tried apart.
        return chunks, compiled, replace(self._spec(number, refused, [route]), killed={})

    def _spec(self, number: int, refused: Any, routes: Iterable[str]) -> MessageSpec:
        table = self._table()
        stream = "replay" if table is None else replay_app(table)
        # They come without tips: a replay that died may have committed already, which only an opened table shows.
        return self.fanout.spec(stream, number, refused, {}, routes)

    def _chunks(self, route: str | None, rows: pa.Table) -> dict[str, list[tuple[Groups, pa.RecordBatch]]]:
        """The rows as chunks by route, read anew from their bytes; those that cannot be read are left out."""
        reader = self._reader(rows)
        cut = Cut(0, 0)
        origin = rows.select([*(f.name for f in ORIGIN_FIELDS), *([KEY] if reader.needs_key else ())]).combine_chunks()
        at_payload = pc.equal(rows.column("level"), "payload")
        payloads, envelopes = rows.filter(at_payload), rows.filter(pc.invert(at_payload))
        if payloads.num_rows:
            columns = ("route", "envelope_schema_id", "value")
            route_names, wrapped_ids, values = (one_array(payloads.column(name)) for name in columns)
            split_payloads(route_names, wrapped_ids, values, origin.filter(at_payload), reader, cut)
        if envelopes.num_rows:
            split_values(one_array(envelopes.column("value")), origin.filter(pc.invert(at_payload)), reader, cut)
        chunks_of: dict[str, list[tuple[Groups, pa.RecordBatch]]] = {}
        for name, groups, blob in cut.routes():
            chunks_of.setdefault(name, []).append((groups, read_records(blob)))
        return chunks_of

    def _reader(self, rows: pa.Table) -> EnvelopeReader:
        """A reader that knows the schemas of envelopes and keys of `rows`."""
        reader = self.fanout.envelopes.begin()
        cut = Cut(0, 0)
        if reader.record_key is not None:
            as_objects(one_array(rows.column(KEY)), reader.record_key, {}, {}, cut.unknown)
        if reader.format != "columns" and reader.opens and reader.framed:
            envelopes = rows.filter(pc.equal(rows.column("level"), "envelope"))
            origin = envelopes.select([f.name for f in ORIGIN_FIELDS]).combine_chunks()
            # Without schemas none is opened, which might end this process: only their headers are read.
            split_values(one_array(envelopes.column("value")), origin, replace(reader, schemas={}), cut)
        if unknown := cut.unknown_ids():
            refused = self.fanout.envelopes.learn(unknown, {})
            reader = replace(reader, schemas=self.fanout.envelopes.known(), refused=refused)
        return reader
