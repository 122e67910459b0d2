"""A route's records to columns, each by its own writer schema, fitted into the table's schema; bad rows apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.engine.messages.chunks import GONE, KEY, Groups, WriterSchema
from distributary.engine.messages.record_keys import beside, key_fields, read_keys
from distributary.engine.messages.rejected import Refused, refused_rows, rejected_rows
from distributary.engine.messages.stored_changes import ChangeDecoder, ids_of
from distributary.engine.messages.task_spec import ORIGIN, WRITTEN_AT, MessageSpec, killing, payload_columns
from distributary.engine.outcomes import Outcome
from distributary.errors import BadInput, DistributaryError, ExpectationBroken, Reason, SchemaBroken
from distributary.errors.border import by_halves, contained
from distributary.schemas.decoding import BadIndex, CompiledSchema, Decoder
from distributary.schemas.formats import decoder_for
from distributary.tables.conform import by_cause, conform
from distributary.tables.evolve import Evolution, Slot
from distributary.tables.quarantine import count_reasons
from distributary.tables.snapshot import Snapshot


@dataclass
class Decoded:
    """A route's records by writer, in ascending order of schema id; those that do not decode are in `rejected`."""

    rows_in: int = 0
    writers: list[WriterSchema] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    origins: list[pa.RecordBatch] = field(default_factory=list)
    rejected: list[pa.Table] = field(default_factory=list)
    decoders: dict[int, str] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    broken: DistributaryError | None = None
    """Why these rows must not be written, where an expectation or the configuration says so."""

    @property
    def nbytes(self) -> int:
        """Of the columns that were decoded."""
        return sum(batch.nbytes for batch in self.batches)

    def add(self, other: Decoded) -> None:
        """Take what was made of other records of the route."""
        self.rows_in += other.rows_in
        self.writers += other.writers
        self.batches += other.batches
        self.origins += other.origins
        self.rejected += other.rejected
        self.decoders |= other.decoders
        self.warnings.update(other.warnings)
        self.broken = self.broken or other.broken


def decode(
    route: str,
    chunks: Sequence[tuple[Groups, pa.RecordBatch]],
    spec: MessageSpec,
    schemas: Mapping[int, CompiledSchema],
) -> Decoded:
    """Decode each record by its own writer schema (cases E1, E3: never by "latest").

    Whatever a schema or a record does to its decoder, only its own rows are rejected.
    """
    by_writer: dict[WriterSchema, list[pa.RecordBatch]] = {}
    for groups, records in chunks:
        begin = 0
        for schema_id, message, rows in groups:
            by_writer.setdefault((schema_id, message), []).append(records.slice(begin, rows))
            begin += rows
    decoded, refused = Decoded(), []
    for writer in sorted(by_writer):
        decoder = None if _is_gone(route, writer, spec) else _decoder(route, writer, spec, schemas)
        for records in _joined(by_writer[writer]):
            if isinstance(decoder, tuple):
                refused.append(Refused(writer, records, *decoder))
            elif decoder is None:
                decoded.add(_without_values(route, writer, records, spec))
            else:
                for of_writer in _of_writer(route, writer, records, decoder, spec):
                    decoded.add(of_writer)
    if refused:
        rows = refused_rows(route, refused, spec)
        decoded.add(Decoded(rows.num_rows, rejected=[rows]))
    return decoded


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch of all, which decodes faster; as they are where they are too much for one."""
    try:
        return batches if len(batches) == 1 else [pa.concat_batches(batches)]
    except BaseException as e:
        contained(e)
        return batches


def _is_gone(route: str, writer: WriterSchema, spec: MessageSpec) -> bool:
    return writer == GONE and spec.decision(route).append != "refused"


def _without_values(route: str, writer: WriterSchema, records: pa.RecordBatch, spec: MessageSpec) -> Decoded:
    """Records that say that the row of their key is gone: rows of no column but the key's."""
    none = pa.RecordBatch.from_pylist([], pa.schema([]))
    decoded = Decoded(records.num_rows)
    rows, good = _with_keys(route, writer, none, records, spec, decoded)
    decoded.add(Decoded(0, [writer], [rows], [good]))
    return decoded


def _of_writer(
    route: str, writer: WriterSchema, records: pa.RecordBatch, decoder: Decoder | ChangeDecoder, spec: MessageSpec
) -> Iterator[Decoded]:
    def work(begin: int, end: int) -> Decoded:
        return _decode_writer(route, writer, records.slice(begin, end - begin), decoder, spec)

    def alone(begin: int, end: int, why: str) -> Decoded:
        positions = np.arange(begin, end)
        rows = rejected_rows(route, writer, records, positions, Reason.DECODER_FAILED, why, spec)
        return Decoded(end - begin, rejected=[rows])

    return by_halves(0, records.num_rows, work, alone)


def _decode_writer(
    route: str, writer: WriterSchema, records: pa.RecordBatch, decoder: Decoder | ChangeDecoder, spec: MessageSpec
) -> Decoded:
    decoded = Decoded(records.num_rows)

    def reject(positions: Any, reason: Any, detail: Any) -> None:
        decoded.rejected.append(rejected_rows(route, writer, records, positions, reason, detail, spec))

    if killers := killing(records.column("payload"), spec.killed):
        reject(list(killers), [Reason.KILLED_READER] * len(killers), list(killers.values()))
        records = records.take(pa.array(np.setdiff1d(np.arange(records.num_rows), list(killers))))
    split = decoder.decode(records if isinstance(decoder, ChangeDecoder) else records.column("payload"))
    if split.rejected:
        rejected_at, reasons, details = zip(*((r.position, r.reason, r.detail) for r in split.rejected), strict=True)
        reject(rejected_at, reasons, details)
    decoded.warnings.update(split.warnings)
    good = records if split.positions is None else records.take(split.positions)
    rows, good = _with_keys(route, writer, split.rows, good, spec, decoded)
    try:
        rows, good = _checked(route, writer, rows, good, spec, decoded)
    except DistributaryError as e:  # of the configuration: no row is at fault
        decoded.broken = e
    decoded.decoders[writer[0]] = decoder.engine
    decoded.writers.append(writer)
    decoded.batches.append(rows)
    decoded.origins.append(good)
    return decoded


def _decoder(
    route: str, writer: WriterSchema, spec: MessageSpec, schemas: Mapping[int, CompiledSchema]
) -> Decoder | ChangeDecoder | tuple[Reason, str]:
    """What decodes a writer's payloads; else why all of them are set aside, and the detail."""
    schema_id, message = writer
    decision = spec.decision(route)
    if decision.append == "refused":
        return Reason.TOO_MANY_ROUTES, decision.why
    for needed_id in sorted(ids_of([writer])):
        if needed_id in spec.refused:
            return spec.refused[needed_id]
    try:
        if spec.has_key_schemas:
            return ChangeDecoder(writer, schemas, spec.payload_format, null_out_of_range=spec.null_out_of_range)
        return decoder_for(
            schemas[schema_id],
            message,
            format=spec.payload_format,
            raw_nested_indexes=spec.raw_nested_indexes,
            null_out_of_range=spec.null_out_of_range,
        )
    except BadIndex as e:
        return Reason.BAD_INDEX, str(e)
    except BaseException as e:
        why = contained(e)
        return Reason.BROKEN_SCHEMA, str(e) if isinstance(e, SchemaBroken) else why


def _key_fields(route: str, columns: pa.Schema, spec: MessageSpec) -> pa.Schema:
    """The columns that the records' keys are, beside those of the messages."""
    return beside(columns, key_fields(spec.record_key, bool(spec.tables.keys_of(route))))


def _with_keys(
    route: str, writer: WriterSchema, rows: pa.RecordBatch, records: pa.RecordBatch, spec: MessageSpec, decoded: Decoded
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows with the columns of their records' keys, and the records; those with other keys are set aside."""
    fields = _key_fields(route, rows.schema, spec)
    if spec.record_key is None or not len(fields):
        return rows, records
    read, bad = read_keys(records.column(KEY), spec.record_key, bool(spec.tables.keys_of(route)))
    columns = [*rows.columns, *(read.column(f.name) for f in fields)]
    rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*rows.schema, *fields]))
    if not bad:
        return rows, records
    at = sorted(bad)
    details = [bad[n] for n in at]
    decoded.rejected.append(rejected_rows(route, writer, records, at, Reason.CORRUPT_KEY, details, spec))
    keep = np.ones(len(records), dtype=bool)
    keep[at] = False
    return rows.filter(pa.array(keep)), records.filter(pa.array(keep))


def _checked(
    route: str, writer: WriterSchema, rows: pa.RecordBatch, records: pa.RecordBatch, spec: MessageSpec, decoded: Decoded
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows and records that are written, with the columns that are written; the others are set aside."""
    row_sql = spec.row_sql(route)
    if row_sql.is_plain:
        return rows, records
    checked = row_sql.apply(rows)
    decoded.warnings.update(checked.warnings)
    for name, count in checked.failures.items():
        decoded.broken = decoded.broken or ExpectationBroken(route=route, name=name, rows=count)
    if not checked.dropped:
        return checked.rows, records
    positions = sorted(checked.dropped)
    details = [checked.dropped[n] for n in positions]
    decoded.rejected.append(rejected_rows(route, writer, records, positions, Reason.EXPECTATION_FAILED, details, spec))
    keep = np.ones(rows.num_rows, dtype=bool)
    keep[positions] = False
    return checked.rows.filter(pa.array(keep)), records.filter(pa.array(keep))


def incoming_schema(columns: pa.Schema, spec: MessageSpec) -> pa.Schema:
    """The columns that a writer schema's rows bring to a table, with the column that says where they came from."""
    extra = [pa.field(ORIGIN, spec.origin_type)] if spec.tables.origin else []
    return pa.schema([*payload_columns(columns), *extra])


def all_rejected(outcome: Outcome, decoded: Decoded, spec: MessageSpec) -> tuple[Outcome, list[pa.Table]]:
    """Of a table that cannot be written (`outcome` says why): all its records, for the quarantine."""
    route, why = outcome.route, str(outcome.error)
    bad = list(decoded.rejected)
    for writer, origin in zip(decoded.writers, decoded.origins, strict=True):
        every = np.arange(origin.num_rows)
        bad.append(rejected_rows(route, writer, origin, every, Reason.TABLE_PARKED, why, spec))
    return replace(outcome, reasons=count_reasons(bad)), bad


def incoming_schemas(
    route: str, writers: Iterable[WriterSchema], schemas: Mapping[int, CompiledSchema], spec: MessageSpec
) -> list[pa.Schema]:
    """What the writers of a route bring, in ascending order of schema id; the others bring nothing."""
    incoming = []
    for schema_id, message in sorted(writers):
        if schema_id in schemas:
            try:
                decoder = decoder_for(
                    schemas[schema_id],
                    message,
                    format=spec.payload_format,
                    raw_nested_indexes=spec.raw_nested_indexes,
                )
            except BaseException as e:
                contained(e)  # its rows are rejected, and say why
                continue
            columns = pa.schema([*decoder.columns, *_key_fields(route, decoder.columns, spec)])
            incoming.append(incoming_schema(spec.row_sql(route).columns(columns), spec))
    return incoming


# -- fit ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """A route's good rows in its table's schema."""

    table: pa.Table
    evolution: Evolution
    rejected: list[pa.Table]
    schema_ids: dict[int, int]

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)


def fit(
    route: str, decoded: Decoded, schema: pa.Schema | None, spec: MessageSpec, table: Snapshot | None = None
) -> Fitted:
    """Unify the decoded batches with the table's schema (None: no table yet); keep aside what may not enter. `table`:
    as it is open, where its columns may get wider types for them."""
    every = zip(decoded.writers, decoded.batches, decoded.origins, strict=True)
    entering = [(writer, batch, origin) for writer, batch, origin in every if batch.num_rows]
    rejected: list[pa.Table] = []
    while True:
        incoming = [incoming_schema(batch.schema, spec) for _, batch, _ in entering]
        evolution = spec.evolve(route, table, schema, incoming)
        fitted: list[pa.Table] = []
        refused: list[list[pa.Table]] = []
        for (writer, batch, origin), slots in zip(entering, evolution.slots, strict=True):
            fitting_rows, bad = _conformed(route, writer, batch, origin, slots, evolution.schema, spec)
            fitted.append(fitting_rows)
            refused.append(bad)
        still_entering = [
            decoded_batch for decoded_batch, fitting_rows in zip(entering, fitted, strict=True) if fitting_rows.num_rows
        ]
        if len(still_entering) == len(entering):
            break
        # A schema of which no row may enter has no say in the table's columns.
        rejected += [
            bad
            for fitting_rows, tables in zip(fitted, refused, strict=True)
            if not fitting_rows.num_rows
            for bad in tables
        ]
        entering = still_entering
    rejected += [bad for tables in refused for bad in tables]
    counts: Counter[int] = Counter()
    for (writer, _, _), fitting_rows in zip(entering, fitted, strict=True):
        counts[writer[0]] += fitting_rows.num_rows
    rows = pa.concat_tables(fitted) if fitted else evolution.schema.empty_table()
    return Fitted(rows, evolution, rejected, dict(counts))


def fit_decided(route: str, decoded: Decoded, schema: pa.Schema | None, spec: MessageSpec) -> Fitted:
    """As `fit`, into columns upon which the driver has decided for all tasks. Raises BadInput for rows that would need
    others."""
    fitted = fit(route, decoded, schema, spec)
    if fitted.rows and fitted.table.schema != schema:
        raise BadInput(detail=f"{route}: rows need other columns than were decided upon: {fitted.evolution.schema}")
    return fitted


def _conformed(
    route: str,
    writer: WriterSchema,
    batch: pa.RecordBatch,
    origin: pa.RecordBatch,
    slots: Sequence[Slot],
    schema: pa.Schema,
    spec: MessageSpec,
) -> tuple[pa.Table, list[pa.Table]]:
    """One writer's rows in the columns of `schema`, and those of them that may not enter."""
    if spec.tables.origin:
        batch = batch.append_column(ORIGIN, _origin(origin, writer[0], spec))
    conformed = conform(batch, slots, schema)
    rejected = conformed.rejected
    if not len(schema):  # none of the first schema's columns could be added: there is no table to hold a row
        rejected = dict.fromkeys(range(batch.num_rows), (Reason.TOO_MANY_COLUMNS, ORIGIN)) | rejected
    bad = (
        rejected_rows(route, writer, origin, positions, reason, f"column {column!r}", spec)
        for (reason, column), positions in by_cause(rejected).items()
    )
    return conformed.entering(schema), list(bad)


def _origin(records: pa.RecordBatch, schema_id: int, spec: MessageSpec) -> pa.Array:
    rows = records.num_rows
    filled = {
        "schema_id": pa.repeat(pa.scalar(schema_id, pa.int32()), rows),
        "batch": pa.repeat(pa.scalar(spec.batch, pa.int64()), rows),
    }
    if spec.tables.written_at:
        filled[WRITTEN_AT.name] = pa.repeat(pa.scalar(datetime.now(UTC), WRITTEN_AT.type), rows)
    fields = list(spec.origin_type)
    columns = [filled[f.name] if f.name in filled else records.column(f.name) for f in fields]
    return pa.StructArray.from_arrays(columns, fields=fields)
