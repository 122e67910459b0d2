"""What a schema that nobody has written with yet would change in which tables: a check for the producers' own CI.

By the run's own rules: the payload format's columns, `tables.evolution`, each table as it is open. Reads the registry,
the ledger and the tables' logs; takes no Spark, looks at no record, writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.audit.plan_report import TablePlan
from distributary.changes.model import CHANGE
from distributary.config import Pipeline
from distributary.engine.messages.decode import incoming_schema
from distributary.engine.messages.task_spec import ORIGIN, MessageSpec
from distributary.engine.schemas import registry_of, schemas_of
from distributary.errors import BadInput, Exit
from distributary.running.named_tables import with_session
from distributary.schemas.decoding import CompiledSchema, Decoder
from distributary.schemas.formats import BadIndex, compile_payload, decoder_for
from distributary.schemas.json.nodes import VALUE
from distributary.schemas.registry.compiler import Compiler, Limits
from distributary.state.divisions import current_parts
from distributary.state.ledger import Entry, read_entries, totals
from distributary.tables.engines import why_spark
from distributary.tables.evolve import Slot
from distributary.tables.faults import reading
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.store import Store

OURS = (ORIGIN, CHANGE, DELETED, DELETED_AT)
"""Columns that no schema brings."""
FILE_ID = 2**31 - 1
"""The schema id that the file stands for: it would be the newest."""


@dataclass(frozen=True)
class TableChange:
    """What would become of one table. Columns by path, types as Spark SQL spells them.

    `refused`: columns whose values would be quarantined, and why. `risky`: those of which only values that the table's
    type holds would be written. `unfilled`: columns of the table that the schema does not have; their rows stay.
    """

    route: str
    table: str
    new_columns: Mapping[str, str] = field(default_factory=dict)
    type_changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    risky: tuple[str, ...] = ()
    unfilled: tuple[str, ...] = ()
    why_spark: str | None = None


@dataclass(frozen=True)
class Foresight:
    """`message`: the full name of the schema's message. `tables`: those whose newest rows are of this message, or the
    routes that were asked for. `new_table`: the columns of a table that a new route would get. `notes`: what could not
    be found out."""

    pipeline: str
    schema: str
    message: str
    tables: tuple[TableChange, ...]
    new_table: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> Exit:
        """ATTENTION where rows by this schema would be quarantined, or may be."""
        return Exit.ATTENTION if any(table.refused or table.risky for table in self.tables) else Exit.OK

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def foresee(
    config: Pipeline,
    *,
    file: Path | None = None,
    subject: str | None = None,
    message: str | None = None,
    routes: Collection[str] = (),
) -> Foresight:
    """What the schema in `file`, or the newest one of `subject`, would change. `message`: which of its messages, by its
    full name; without it, the first. `routes`: which tables; without them, those that have rows of this message.

    Raises BadInput, ConfigError (the file), SchemaBroken, SchemaNotFound, RegistryDown, StoreUnreadable.
    """
    if config.holds_changes or not config.payload.has_schema:
        raise BadInput(detail="plan --schema and --subject are for messages whose payload has a schema")
    if config.envelope.is_debezium:
        detail = "plan --schema and --subject: a change of Debezium has its row inside, beside what was done to it. "
        raise BadInput(detail=f"{detail}plan alone reads the messages that wait, and says what their columns would be")
    compiled, name = _compiled(config, file, subject)
    decoder = _decoder(config, compiled, message)
    with_session(config)
    store = Store.of(config.tables)
    with reading(config.state_root):
        sums = _routes(config, store)
    notes: list[str] = []
    chosen = sorted(routes)
    if not routes and config.payload.format == "json" and decoder.full_name == VALUE:
        notes.append("the schema has no title, by which its tables are found: name them with --route")
    elif not routes:
        chosen = _of_message(config, decoder.full_name, sums, notes)
    spec = _spec(config, store, sums)
    incoming = {route: _incoming(route, decoder, spec) for route in {*chosen, ""}}
    with reading(config.tables.root):
        tables = tuple(_change(route, incoming[route], spec) for route in chosen)
    new = TablePlan("", "", new=True)
    new.add_changes(None, pa.schema([f for f in incoming[""] if f.name != ORIGIN]))
    return Foresight(config.pipeline, name, decoder.full_name, tables, new.new_columns, tuple(notes))


def _compiled(config: Pipeline, file: Path | None, subject: str | None) -> tuple[CompiledSchema, str]:
    """The schema, and what it is called. Raises as `foresee`."""
    assert config.registry is not None
    if (file is None) == (subject is None):
        raise BadInput(detail="give --schema FILE or --subject NAME")
    if file is not None:
        if not file.is_file():
            raise BadInput(detail=f"--schema {file}: there is no such file")
        texts = {**config.registry.texts, FILE_ID: str(file)}
        config = config.model_copy(update={"registry": config.registry.model_copy(update={"texts": texts})})
    registry = registry_of(config)
    schema = registry.get(FILE_ID) if subject is None else registry.latest(subject).schema
    assert config.registry is not None
    name = str(file) if subject is None else f"{subject}, schema id {schema.id}"
    return compile_payload(schema, registry, Compiler(Limits.of(config.registry))), name


def _decoder(config: Pipeline, compiled: CompiledSchema, message: str | None) -> Decoder:
    """Raises BadInput: there is no such message; SchemaBroken."""
    try:
        return decoder_for(
            compiled,
            message or "0",
            format=config.payload.format,
            raw_nested_indexes=config.payload.raw_nested_indexes,
            null_out_of_range=config.payload.out_of_range == "null",
        )
    except BadIndex as e:
        raise BadInput(detail=f"--message {message}: {e}") from e


def _routes(config: Pipeline, store: Store) -> dict[str, Entry]:
    """What the ledgers of the pipeline's streams know of each route. Raises OSError, TableFault."""
    entries = [entry for stream in current_parts(config, store) for entry in read_entries(stream.state_root, store)]
    return {route: entry for route, entry in totals(entries).items() if route is not None}


def _of_message(config: Pipeline, name: str, sums: Mapping[str, Entry], notes: list[str]) -> list[str]:
    """Routes whose newest schema is of the message `name`."""
    newest = {route: max(entry.schema_ids) for route, entry in sums.items() if entry.schema_ids}
    schemas, refused = schemas_of(config, keep=False).resolve(set(newest.values()), {})
    names: dict[int, str] = {}
    for schema_id, compiled in schemas.items():
        try:
            names[schema_id] = _decoder(config, compiled, None).full_name
        except Exception as e:  # one broken schema of another route hides nothing else
            notes.append(f"schema id {schema_id} was passed over: {e}")
    notes += [f"schema id {schema_id} was passed over: {why}" for schema_id, (_, why) in sorted(refused.items())]
    return sorted(route for route, schema_id in newest.items() if names.get(schema_id) == name)


def _spec(config: Pipeline, store: Store, sums: Mapping[str, Entry]) -> MessageSpec:
    """As a batch has them, but for what only its records say."""
    folders = {route: entry.table.rsplit("/", 1)[-1] for route, entry in sums.items() if entry.table}
    return MessageSpec(
        pipeline=config.pipeline,
        stream="",
        batch=0,
        tables=config.tables,
        store=store,
        quarantine="",
        payload_format=config.payload.format,
        payload_framed=config.payload.is_framed,
        raw_nested_indexes=config.payload.raw_nested_indexes,
        names={} if config.shared_table is not None else folders,
        wide=config.shared_table,
    )


def _incoming(route: str, decoder: Decoder, spec: MessageSpec) -> pa.Schema:
    return incoming_schema(spec.row_sql(route).columns(decoder.columns), spec)


def _change(route: str, incoming: pa.Schema, spec: MessageSpec) -> TableChange:
    table = spec.target(route).open()
    before = spec.columns(route, table)
    evolution = spec.evolve(route, table, before, [incoming])
    table_plan = TablePlan(route, spec.table(route), before is None)
    table_plan.add_changes(before, evolution.schema)
    slots = evolution.slots[0]
    filled = {slot.target for slot in slots}
    return TableChange(
        route,
        table_plan.table,
        {path: kind for path, kind in table_plan.new_columns.items() if path.split(".")[0] not in OURS},
        table_plan.type_changes,
        dict(_refused(slots, "")),
        tuple(_risky(slots, "")),
        tuple(f.name for f in before or () if f.name not in {*filled, *OURS} and "__" not in f.name),
        why_spark(table, spec.tables, route, evolution) if spec.wide is None else None,
    )


def _refused(slots: Sequence[Slot], path: str) -> Iterator[tuple[str, str]]:
    for slot in slots:
        if slot.reject is not None:
            yield f"{path}{slot.source}", slot.reject.value
        yield from _refused(slot.children, f"{path}{slot.source}.")


def _risky(slots: Sequence[Slot], path: str) -> Iterator[str]:
    for slot in slots:
        if slot.fit:
            yield f"{path}{slot.source}"
        yield from _risky(slot.children, f"{path}{slot.source}.")
