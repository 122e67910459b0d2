"""A task's messages -> files of their routes' tables: read as a pipeline file says, by the code of its own batches.

There is no driver between the two halves of a batch here: a task asks the registry itself (what was asked once is kept
on its disk), and what the first attempt has made of a record is what its batch commits (`committing`).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from distributary.config import Pipeline
from distributary.config.debezium import decoded_format
from distributary.engine.apart import limited
from distributary.engine.messages.chunks import GONE, Groups, asked_for, read_records, read_rejected
from distributary.engine.messages.decode import Decoded, all_rejected, decode, fit
from distributary.engine.messages.demux import demux
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.pieces import Chunks, cut_pieces
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.outcomes import Outcome
from distributary.engine.schemas import Schemas, schemas_of
from distributary.engine.windows import windows
from distributary.errors import BadInput
from distributary.sink import by_routes
from distributary.sink.sink_options import SinkOptions
from distributary.sink.written import RouteFiles, WrittenFiles, removed_on_failure
from distributary.state.journal import Refusals
from distributary.tables.engines import why_spark
from distributary.tables.quarantine import write_rejected
from distributary.tables.snapshot import columns_of


@dataclass(frozen=True)
class MessageRows:
    """Takes rows as the source of a pipeline has them. Ships to tasks."""

    config: Pipeline

    def __post_init__(self) -> None:
        """Raises BadInput: the pipeline writes other than a row of a table per message."""
        config = self.config
        events = config.holds_changes or config.envelope.is_debezium or config.tables.has_keys
        if events or not config.is_fanout or config.share is not None:
            raise BadInput(
                detail=f"pipeline {config.pipeline} is not one that a sink can write: it takes layout fanout, each "
                "message a row of its table, without tables.keys and without Debezium"
            )

    @property
    def options(self) -> SinkOptions:
        """At the end of a batch a message's bytes are gone, and `replay` needs them: nothing is parked there for a
        fault that may go."""
        config = self.config
        return SinkOptions("", config.pipeline, config.tables, config.state_root, parks=False)

    @property
    def _texts(self) -> tuple[str, ...]:
        """Columns beside the message that are read as text."""
        envelope = self.config.envelope
        return ("topic", envelope.columns[0]) if envelope.format == "columns" else ("topic",)

    def check(self, columns: Iterable[str]) -> None:
        """Raises BadInput: the rows have not the columns that the pipeline reads."""
        envelope = self.config.envelope
        needed = {*envelope.columns} if envelope.format == "columns" else {"value"}
        if missing := sorted(needed - self.config.optional_columns - set(columns)):
            raise BadInput(
                detail=f"the rows have no column {missing[0]!r}, which pipeline {self.config.pipeline} reads"
            )

    def take(self, batches: Iterable[pa.RecordBatch], stream: str, batch: int, task: str) -> WrittenFiles:
        """Read, decode and write them. Raises RegistryDown, RegistryDenied, StoreDown."""
        work = _Task(self, stream, batch, task)
        with removed_on_failure(work.taken, self.options):
            for window in windows(batches, by_routes.HELD_BYTES):
                work.write(with_sound_texts(self._with_optional(window), self._texts))
            work.write_rejected()
        return work.taken

    def _with_optional(self, window: pa.Table) -> pa.Table:
        """With a schema id of null where the rows may lack it, and do."""
        for name in self.config.optional_columns - set(window.column_names):
            window = window.append_column(name, pa.nulls(window.num_rows, pa.int32()))
        return window


def with_sound_texts(rows: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    """Rows whose texts in `columns` all are UTF-8, which Spark does not ask of them: any other is null, as if the
    source had not said it, and the message itself is kept as it is."""
    for at, field in enumerate(rows.schema):
        if field.name not in columns or not pa.types.is_string(field.type):
            continue
        try:
            rows.column(at).validate(full=True)
        except pa.ArrowInvalid:
            texts = rows.column(at).cast(pa.binary()).to_pylist()
            sound = [text if text is None else text.decode(errors="ignore") for text in texts]
            same = [
                None if text is None or text.encode() != as_given else text
                for text, as_given in zip(sound, texts, strict=True)
            ]
            rows = rows.set_column(at, field, pa.array(same, field.type))
    return rows


class _Task:
    def __init__(self, rows: MessageRows, stream: str, batch: int, task: str) -> None:
        self.options = rows.options
        self.part = task
        self.taken = WrittenFiles()
        self.rejected: list[pa.Table] = []
        self.schemas, self.envelopes = _opened(pickle.dumps(rows.config))
        self.spec = _spec(rows.config, self.options, stream, batch)

    def write(self, window: pa.Table) -> None:
        routes: dict[str, Chunks] = {}
        for chunk in self._cut(window):
            if chunk["kind"] == "bad":
                self.rejected.append(pa.Table.from_batches([read_rejected(chunk["blob"])]))
            elif chunk["kind"] == "tombstones":
                self.taken.tombstones += chunk["rows"]
            elif chunk["kind"] == "excluded":
                self.taken.excluded += chunk["rows"]
            elif chunk["kind"] == "rows":
                groups: Groups = json.loads(chunk["groups"])
                routes.setdefault(chunk["route"], []).append((groups, read_records(chunk["blob"])))
        writers = {group[0] for chunks in routes.values() for groups, _ in chunks for group in groups}
        compiled, refused = self.schemas.resolve(writers - {GONE[0]}, self.spec.refused)
        self.spec = replace(self.spec, refused={**self.spec.refused, **refused})
        for route, chunks in sorted(routes.items()):
            for piece in cut_pieces(chunks, compiled, raw_nested_indexes=self.spec.raw_nested_indexes):
                with limited(self.spec.read_sec):
                    decoded = decode(route, piece, self.spec, compiled)
                self._deliver(route, decoded)

    def write_rejected(self) -> None:
        if self.rejected:
            options, spec = self.options, self.spec
            file = write_rejected(options.quarantine, self.rejected, spec.stream, spec.batch, self.part, options.store)
            self.taken.quarantine.append(file)

    def _cut(self, window: pa.Table) -> list[dict[str, Any]]:
        """Chunks of the rows, once the envelopes' schemas are known."""
        refused: Refusals = {}
        while True:
            reader = self.envelopes.batch()
            reader = replace(reader, refused={**reader.refused, **refused})
            chunks = list(_chunks(demux(window.to_batches(), reader, 0)))
            unknown = asked_for(chunks)
            if not unknown:
                return chunks
            refused = {**refused, **self.envelopes.learn(unknown, refused)}

    def _deliver(self, route: str, decoded: Decoded) -> None:
        spec = self.spec
        outcome = Outcome(route, spec.table(route), decoded.rows_in)
        try:
            self._write(route, decoded)
        except BaseException as e:
            failed = outcome.failed(e)
            for fault in failed.faults:
                fault.own(outcome.table)
            self.rejected += all_rejected(failed, decoded, spec)[1]

    def _write(self, route: str, decoded: Decoded) -> None:
        spec = self.spec
        if decoded.broken is not None:
            raise decoded.broken
        target = spec.target(route)
        table = target.open()
        fitted = fit(route, decoded, columns_of(table), spec, table)
        if (why := why_spark(table, spec.tables, route, fitted.evolution)) is not None:
            raise ValueError(f"only Spark's own writer may append to it ({why})")
        if fitted.rows:
            self.taken.parts.append(RouteFiles.of(route, target.uri, fitted.table, target.write(fitted.table)))
        self.rejected += [*decoded.rejected, *fitted.rejected]


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("kind", "route", "groups", "rows")]
        blobs = batch.column("blob")
        for at, (kind, route, groups, rows) in enumerate(zip(*columns, strict=True)):
            yield {"kind": kind, "route": route, "groups": groups, "rows": rows, "blob": blobs[at].as_buffer()}


@lru_cache(maxsize=4)
def _opened(pickled: bytes) -> tuple[Schemas, Envelopes]:
    """Of a pipeline: what is kept from task to task of one worker."""
    config: Pipeline = pickle.loads(pickled)
    schemas = schemas_of(config)
    return schemas, Envelopes(config, schemas)


def _spec(config: Pipeline, options: SinkOptions, stream: str, batch: int) -> MessageSpec:
    return MessageSpec(
        pipeline=config.pipeline,
        stream=stream,
        batch=batch,
        tables=config.tables,
        store=options.store,
        quarantine=options.quarantine,
        payload_format=decoded_format(config),
        payload_framed=config.payload.is_framed,
        raw_nested_indexes=config.payload.raw_nested_indexes,
        null_out_of_range=config.payload.out_of_range == "null",
        read_sec=config.quarantine.read_sec,
        record_key=config.source.record_key,
    )
