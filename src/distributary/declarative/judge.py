"""What Spark's tasks do for bronze: read each record's envelope, and decide whether its silver table can take it.

The verdict is stored with the record, in the same commit: silver takes what was called good, the quarantine shows the
rest, and neither decides anything again. So a row is in one of them whenever either is refreshed, and with whatever
schemas are known by then.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.declarative.known_routes import KnownRoutes, Route
from distributary.engine.messages.chunks import Cut, WriterSchema, one_array
from distributary.engine.messages.demux import split_payloads, split_values
from distributary.engine.messages.record_keys import as_objects
from distributary.engine.messages.task_spec import killing
from distributary.errors import DistributaryError, ExpectationBroken, Reason, SchemaBroken
from distributary.errors.border import by_halves
from distributary.schemas.formats import FORMATS
from distributary.schemas.json.inferred import columns_of, own_shapes
from distributary.tables.conform import conform
from distributary.tables.quarantine import ORIGIN_FIELDS

WITHOUT_SCHEMA = ("json_bare", "bytes", "text")
NAMED_COLUMNS = 5
"""Columns of a record that a detail names."""
VERDICT_SCHEMA = pa.schema(
    [
        ("route", pa.string()),
        ("schema_id", pa.int32()),
        ("message", pa.string()),
        ("payload", pa.binary()),
        ("envelope_schema_id", pa.int32()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("level", pa.string()),
        ("id", pa.string()),
        ("warnings", pa.list_(pa.string())),
        ("record_key", pa.binary()),
    ]
)
"""What is found out about a record. Good: `reason` is null, `payload` is the message's body. Set aside: `payload` is
the `level` (whole envelope, or payload with its header) as it came, and `id` names the row. A tombstone has neither.
`warnings`: expectations that a good row breaks. `record_key`: the record's key, where the pipeline file makes columns
of it; one with a schema as a text of JSON, so that silver needs no schemas of keys."""


def judge_values(values: pa.Array, known_routes: KnownRoutes, keys: pa.Array | None = None) -> pa.StructArray:
    """Framed or bare envelopes -> a verdict each (`VERDICT_SCHEMA`), in the same order. `keys`: of the same records."""
    verdicts = Verdicts(known_routes, keys)
    verdicts.take_values(values)
    if verdicts.missing:
        text = "the envelope's schema id {} was not known when the update began"
        refused = {i: (Reason.UNKNOWN_SCHEMA_ID, text.format(i)) for i in verdicts.missing}
        reader = replace(known_routes.reader, refused={**known_routes.reader.refused, **refused})
        verdicts = Verdicts(replace(known_routes, reader=reader), keys)
        verdicts.take_values(values)
    return verdicts.verdicts(len(values))


def judge_columns(
    route: pa.Array, schema_id: pa.Array, payload: pa.Array, known_routes: KnownRoutes, keys: pa.Array | None = None
) -> pa.StructArray:
    """As `judge_values`, where the source has the envelope's columns."""
    verdicts = Verdicts(known_routes, keys)
    verdicts.take_columns(route, schema_id, payload)
    return verdicts.verdicts(len(route))


def _places(rows: int) -> pa.Table:
    """An origin whose offset is the row's number: the splitters reorder rows, and this is how each is found again."""
    columns = [pa.array(np.arange(rows)) if f.name == "offset" else pa.nulls(rows, f.type) for f in ORIGIN_FIELDS]
    return pa.table(columns, schema=pa.schema(ORIGIN_FIELDS))


class Verdicts(Cut):
    """Takes what the splitters find, as verdicts instead of chunks."""

    def __init__(self, known_routes: KnownRoutes, keys: pa.Array | None = None) -> None:
        super().__init__(0, 0)
        self.known_routes = known_routes
        self.keys = keys
        reader = known_routes.reader
        if keys is not None and reader.record_key is not None:
            # One whose schema is not known stays as it is, and is no key that can be read.
            self.keys = as_objects(keys.cast(pa.binary()), reader.record_key, reader.schemas, {}, lambda _: None)
        self.missing: set[int] = set()
        self._parts: list[pa.Table] = []
        self._at: list[np.ndarray] = []

    def take_values(self, values: pa.Array) -> None:
        """Framed or bare envelopes."""
        split_values(values.cast(pa.binary()), _places(len(values)), self.known_routes.reader, self)

    def take_columns(self, route: pa.Array, schema_id: pa.Array, payload: pa.Array) -> None:
        """The envelope's columns."""
        columns = (route.cast(pa.string()), schema_id.cast(pa.int32()), payload.cast(pa.binary()))
        split_payloads(*columns, _places(len(route)), self.known_routes.reader, self)

    def tombstones(self, route: str | None, rows: int) -> None:
        """They have no place of their own: they are what is left over at the end."""

    def unknown(self, schema_id: int) -> None:
        self.missing.add(schema_id)

    def bad(self, rows: pa.Table) -> None:
        names = ("route", "schema_id", "envelope_schema_id", "reason", "detail", "level")
        self._keep(rows.column("offset"), {**{n: rows.column(n) for n in names}, "payload": rows.column("value")})

    def rows(self, route: pa.Array, schema_id: pa.Array, index: pa.Array, body: pa.Array, origin: pa.Table) -> None:
        records = pa.table(
            {
                "route": route,
                "schema_id": schema_id,
                "message": index,
                "payload": body,
                "envelope_schema_id": origin.column("envelope_schema_id"),
                "at": origin.column("offset"),
            }
        )
        keys = ["route", "schema_id", "message"]
        groups = records.select(keys).group_by(keys).aggregate([]).to_pylist()
        for group in groups:
            of_group = records
            if len(groups) > 1:
                same = [pc.equal(records.column(k), group[k]) for k in keys]
                of_group = records.filter(pc.and_(pc.and_(same[0], same[1]), same[2]))
            name = group["route"]
            for writer, some in self._of_writers(name, (group["schema_id"], group["message"]), of_group):
                self.judge(name, writer, some)

    def _of_writers(
        self, name: str, writer: WriterSchema, records: pa.Table
    ) -> Iterator[tuple[WriterSchema, pa.Table]]:
        """The records of one writer. Where a shape that they share is not known, each by the shape of its own: one
        record's new column sets no other record aside."""
        route, declared = self.known_routes.routes.get(name), self.known_routes.reader.infers
        if declared is None or route is None or route.reader_of(writer) is not None:
            yield writer, records
            return
        shapes = pa.array(own_shapes(one_array(records.column("payload")), declared), pa.string())
        for shape in shapes.unique().to_pylist():
            yield (writer[0], shape), records.filter(pc.equal(shapes, shape))

    def judge(self, name: str, writer: WriterSchema, records: pa.Table) -> None:
        """The records of one writer of one route."""
        route = self.known_routes.routes.get(name)
        known_writer = None if route is None else route.reader_of(writer)
        if route is None or known_writer is None:
            format = self.known_routes.reader.payload_format
            records = _written_by(writer, records)
            self._refuse(records, *(self.known_routes.why_without(name) or why_not(route, name, writer, format)))
            return
        records = self._without_killers(records)
        records = _written_by(known_writer, records)
        keys = None if self.keys is None else self.keys.take(one_array(records.column("at")))
        verdict = try_records(route, known_writer, one_array(records.column("payload")), keys)
        faults = verdict.faults
        if verdict.warned:
            warnings = [verdict.warned.get(n) for n in range(records.num_rows)]
            records = records.append_column("warnings", pa.array(warnings, pa.list_(pa.string())))
        if faults:
            positions = pa.array(sorted(faults))
            reasons, details = zip(*(faults[n] for n in positions.to_pylist()), strict=True)
            self._refuse(records.take(positions), pa.array(map(str, reasons)), pa.array(details))
            keep = np.ones(records.num_rows, dtype=bool)
            keep[list(faults)] = False
            records = records.filter(pa.array(keep))
        good = [n for n in records.column_names if n != "at"]
        self._keep(records.column("at"), {n: records.column(n) for n in good})

    def _without_killers(self, records: pa.Table) -> pa.Table:
        """The records but for those that are known to end their reader, which are set aside."""
        killers = killing(records.column("payload"), self.known_routes.killed)
        if not killers:
            return records
        positions = pa.array(list(killers))
        self._refuse(
            records.take(positions), pa.repeat(Reason.KILLED_READER.value, len(positions)), pa.array(killers.values())
        )
        keep = np.ones(records.num_rows, dtype=bool)
        keep[list(killers)] = False
        return records.filter(pa.array(keep))

    def _refuse(self, records: pa.Table, reason: Reason | pa.Array, detail: str | pa.Array) -> None:
        """Set records aside whose header has been read: it goes back in front of them."""
        rows = records.num_rows
        known_columns = {n: records.column(n) for n in ("route", "schema_id", "message", "envelope_schema_id")}
        self._keep(
            records.column("at"),
            {
                **known_columns,
                "payload": self._with_header(records),
                "reason": pa.repeat(reason.value, rows) if isinstance(reason, Reason) else reason,
                "detail": pa.repeat(detail, rows) if isinstance(detail, str) else detail,
                "level": pa.repeat("payload", rows),
            },
        )

    def _with_header(self, records: pa.Table) -> pa.Array:
        payload = one_array(records.column("payload"))
        if not self.known_routes.reader.payload_framed or not len(payload):
            return payload
        schema_id, message = (records.column(n)[0].as_py() for n in ("schema_id", "message"))
        return FORMATS[self.known_routes.reader.payload_format].frame_all(schema_id, message, payload)

    def _keep(self, places: pa.ChunkedArray, columns: dict[str, Any]) -> None:
        rows = len(places)
        if "reason" in columns:
            txn = uuid.uuid4().hex[:20]
            columns["id"] = pa.array([f"{txn}-{n}" for n in range(rows)], pa.string())
        arrays = [columns[f.name] if f.name in columns else pa.nulls(rows, f.type) for f in VERDICT_SCHEMA]
        self._parts.append(pa.table(arrays, schema=VERDICT_SCHEMA))
        self._at.append(np.asarray(places))

    def verdicts(self, count: int) -> pa.StructArray:
        """A verdict for each of `count` records, in their order."""
        table = pa.concat_tables([*self._parts, VERDICT_SCHEMA.empty_table()]).combine_chunks()
        order = np.full(count, -1, np.int64)
        if self._at:
            places = np.concatenate(self._at)
            order[places] = np.arange(len(places))
        picked = table.take(pa.array(order, mask=order < 0))
        if self.keys is not None:
            picked = picked.set_column(picked.schema.get_field_index("record_key"), "record_key", self.keys)
        return pa.StructArray.from_arrays([one_array(c) for c in picked.columns], fields=list(VERDICT_SCHEMA))


def _written_by(writer: WriterSchema, records: pa.Table) -> pa.Table:
    place = records.schema.get_field_index("message")
    return records.set_column(place, "message", pa.repeat(writer[1], records.num_rows))


def why_not(route: Route | None, name: str, writer: WriterSchema, format: str) -> tuple[Reason, str]:
    """Why the records of this writer are set aside. `format`: of payloads."""
    schema_id, message = writer
    if route is not None and schema_id in route.broken:
        return Reason.BROKEN_SCHEMA, route.broken[schema_id]
    if format in WITHOUT_SCHEMA:
        known_columns = {column for _, shape in (() if route is None else route.slots) for column in columns_of(shape)}
        new = [column for column in columns_of(message) if column not in known_columns]
        more = f" and {len(new) - NAMED_COLUMNS:,} more" if len(new) > NAMED_COLUMNS else ""
        what = f"the route {name!r}" if route is None else f"{', '.join(new[:NAMED_COLUMNS])}{more} of {name!r}"
        return Reason.UNKNOWN_SCHEMA_ID, f"{what} was not known when the update began; the next one takes it in"
    path = "" if message == "0" else f", message {message},"
    return Reason.UNKNOWN_SCHEMA_ID, f"schema id {schema_id}{path} was not known of {name!r} when the update began"


@dataclass(frozen=True)
class Verdict:
    """Of the records of one writer, by position: why each cannot enter its silver table, and which expectations each
    breaks that enters."""

    faults: Mapping[int, tuple[Reason, str]]
    warned: Mapping[int, tuple[str, ...]]


def try_records(route: Route, writer: WriterSchema, payloads: pa.Array, keys: pa.Array | None = None) -> Verdict:
    """Do all that silver will do with these records, and say what came of it. Whatever one does to its decoder, only it
    is set aside. `keys`: of the same records. Raises what is wrong with the configuration."""
    wrong: list[DistributaryError] = []

    def work(begin: int, end: int) -> Verdict:
        try:
            some = slice(begin, end)
            return _tried(route, writer, payloads[some], begin, None if keys is None else keys[some])
        except SchemaBroken:
            raise
        except DistributaryError as e:
            wrong.append(e)
            return Verdict({}, {})

    def alone(begin: int, end: int, why: str) -> Verdict:
        return Verdict(dict.fromkeys(range(begin, end), (Reason.DECODER_FAILED, why)), {})

    faults: dict[int, tuple[Reason, str]] = {}
    warned: dict[int, tuple[str, ...]] = {}
    for verdict in by_halves(0, len(payloads), work, alone):
        faults |= verdict.faults
        warned |= verdict.warned
    if wrong:
        raise wrong[0]
    return Verdict(faults, warned)


def _tried(route: Route, writer: WriterSchema, payloads: pa.Array, first: int, keys: pa.Array | None) -> Verdict:
    """`first`: the position of the first of these records."""
    split = route.decoder(writer).decode(payloads)
    faults = {first + r.position: (r.reason, r.detail) for r in split.rejected}
    decoded = np.arange(split.rows.num_rows) if split.positions is None else np.asarray(split.positions)
    rows, bad = route.with_keys(split.rows, None if keys is None else keys.take(pa.array(decoded)))
    if bad:
        faults |= {first + int(decoded[at]): (Reason.CORRUPT_KEY, why) for at, why in bad.items()}
        keep = np.setdiff1d(np.arange(len(decoded)), list(bad))
        rows, decoded = rows.take(pa.array(keep)), decoded[keep]
    places = first + decoded
    checked = route.sql.apply(rows)
    fitted = conform(checked.rows, route.slots[writer], route.columns)
    for row, (reason, column) in fitted.rejected.items():
        faults[int(places[row])] = reason, f"column {column!r}"
    for row, name in checked.dropped.items():
        faults[int(places[row])] = Reason.EXPECTATION_FAILED, name
    warned = {int(places[row]): names for row, names in checked.warned.items()}
    return Verdict(faults, {position: names for position, names in warned.items() if position not in faults})


def decode_rows(
    schema_id: pa.Array, message: pa.Array, payload: pa.Array, route: Route, keys: pa.Array | None = None
) -> pa.StructArray:
    """Good records of one route -> its silver columns, in the same order. `keys`: of these records, as bronze has them.

    Raises ExpectationBroken where an expectation says fail, and ValueError where a record does not decode that bronze
    has called good: this table stops, nothing is lost.
    """
    rows = len(payload)
    writers = pa.table({"id": schema_id, "message": message}).group_by(["id", "message"]).aggregate([]).to_pylist()
    tables: list[pa.Table] = []
    places_of: list[np.ndarray] = []
    for pair in writers:
        writer = (pair["id"], pair["message"])
        known_writer = route.reader_of(writer)
        if known_writer is None:
            raise ValueError(
                f"{route.route}: {why_not(route, route.route, writer, route.payload_format)[1]}; start the update again"
            )
        mask = np.asarray(pc.and_(pc.equal(schema_id, writer[0]), pc.equal(message, writer[1])))
        places = np.flatnonzero(mask)
        body = payload if len(places) == rows else payload.take(pa.array(places))
        split = route.decoder(known_writer).decode(body.cast(pa.binary()))
        decoded = places if split.positions is None else places[np.asarray(split.positions)]
        with_keys, bad = route.with_keys(split.rows, None if keys is None else keys.take(pa.array(decoded)))
        # Which rows are dropped, bronze has decided, and for good.
        checked = route.sql.apply(with_keys)
        for name, count in checked.failures.items():
            raise ExpectationBroken(route=route.route, name=name, rows=count)
        fitted = conform(checked.rows, route.slots[known_writer], route.columns)
        if wrong := [*(record.detail for record in split.rejected), *bad.values(), *fitted.rejected.values()]:
            raise ValueError(
                f"{route.route}: a record of schema id {writer[0]} that bronze has called good does not fit its table "
                f"({wrong[0]}). If tables.evolution was changed, change it back, or refresh bronze in full"
            )
        tables.append(pa.table(fitted.columns, schema=route.columns))
        places_of.append(places)
    table = pa.concat_tables([*tables, route.columns.empty_table()]).combine_chunks()
    if len(tables) > 1:
        order = np.empty(rows, np.int64)
        order[np.concatenate(places_of)] = np.arange(rows)
        table = table.take(pa.array(order))
    return pa.StructArray.from_arrays([one_array(c) for c in table.columns], fields=list(route.columns))
