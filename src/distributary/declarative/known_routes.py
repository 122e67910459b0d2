"""What is known when an update begins: the routes, who writes each, its silver columns, and the envelopes.

Read anew by every update. A record is good only if its route knows its writer: else a silver table of this very update
might lack its columns. What is not known is set aside, and comes back once it is (`replay`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from distributary.config import DeclarativeFolder, Pipeline
from distributary.config.source_keys import RecordKey
from distributary.declarative.datasets import Datasets, state_folder
from distributary.engine.messages.chunks import WriterSchema
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.opening import EnvelopeReader, reading
from distributary.engine.messages.record_keys import beside, key_fields, read_keys
from distributary.engine.messages.task_spec import ORIGIN, payload_columns
from distributary.engine.schemas import LOOKUPS, Schemas
from distributary.errors import (
    DistributaryError,
    EnvironmentFault,
    Reason,
    SchemaBroken,
    SchemaNotFound,
    StoreUnreadable,
)
from distributary.errors.border import contained
from distributary.schemas.decoding import BadIndex, Decoder
from distributary.schemas.formats import decoder_for
from distributary.schemas.json.inferred import covers, united
from distributary.schemas.registry.compile import CompiledSchema
from distributary.schemas.row_sql import RowSql
from distributary.tables.engines import policy_of
from distributary.tables.evolve import Slot, evolve
from distributary.tables.outage import own_fault
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store
from distributary.tables.table import Table

WRITERS_PROPERTY = "distributary.writers"
"""Table property of a silver table: the writers that its columns were made for, so that none is ever forgotten."""
ROUTE_PROPERTY = "distributary.route"
"""Writers that no subject names, found by replays: route -> [[schema id, message] ...]."""


@dataclass(frozen=True)
class Route:
    """One route. `columns`: of its silver table, without the origin. `slots`: each writer's way into them.

    `broken`: schema ids that no decoder can be made for, and why. `before`: the table's columns now; None where there
    is no table. Pickles, and ships to tasks.
    """

    route: str
    columns: pa.Schema
    slots: Mapping[WriterSchema, tuple[Slot, ...]]
    schemas: Mapping[int, CompiledSchema]
    broken: Mapping[int, str] = field(default_factory=dict)
    before: pa.Schema | None = None
    payload_format: str = "protobuf"
    raw_nested_indexes: bool = False
    null_out_of_range: bool = False
    sql: RowSql = field(default_factory=RowSql)
    record_key: RecordKey | None = None

    def reader_of(self, writer: WriterSchema) -> WriterSchema | None:
        """By whose columns the records of `writer` are read: its own, or of JSON without a schema those of a shape that
        covers them. None: its columns are not known."""
        if writer in self.slots or self.payload_format != "json_bare":
            return writer if writer in self.slots else None
        return next((other for other in sorted(self.slots) if covers(other[1], writer[1])), None)

    def with_keys(self, rows: pa.RecordBatch, keys: pa.Array | None) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Rows with the columns that their records' keys are; and why some cannot be read, by place."""
        fields = _key_fields(rows.schema, self.record_key)
        if self.record_key is None or keys is None or not len(fields):
            return rows, {}
        read, bad = read_keys(keys.cast(pa.binary()), self.record_key, is_keyed=False)
        columns = [*rows.columns, *(read.column(f.name) for f in fields)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*rows.schema, *fields])), bad

    def decoder(self, writer: WriterSchema) -> Decoder:
        return decoder_for(
            self.schemas[writer[0]],
            writer[1],
            format=self.payload_format,
            raw_nested_indexes=self.raw_nested_indexes,
            null_out_of_range=self.null_out_of_range,
        )


def _key_fields(columns: pa.Schema, record_key: RecordKey | None) -> pa.Schema:
    """The columns that records' keys are, beside those of the messages."""
    return beside(columns, key_fields(record_key, is_keyed=False))


@dataclass(frozen=True)
class KnownRoutes:
    """What an update knows. `reader`: how envelopes are read, with all the envelope schemas there are. `failed`: routes
    that are left out, and why: their tables cannot be read. `beyond`: new ones that are too many for one update.
    `killed`: payloads that end their reader, as fingerprints, and how."""

    reader: EnvelopeReader
    routes: Mapping[str, Route]
    failed: Mapping[str, str] = field(default_factory=dict)
    beyond: Mapping[str, str] = field(default_factory=dict)
    killed: Mapping[str, str] = field(default_factory=dict)

    def why_without(self, route: str) -> tuple[Reason, str] | None:
        """Why the records of a route are set aside that has no table in this update; None where it is not known."""
        if (why := self.failed.get(route)) is not None:
            return Reason.TABLE_PARKED, why
        if (why := self.beyond.get(route)) is not None:
            return Reason.TOO_MANY_ROUTES, why
        return None


Writers = Mapping[str, Iterable[WriterSchema]]
"""Writers by route."""


def discover(config: Pipeline, schemas: Schemas, more_writers: Writers | None = None) -> KnownRoutes:
    """Ask the registry of `schemas` and the tables. `more_writers`: writers that neither names.

    Raises RegistryDown, RegistryDenied, StoreUnreadable, TableCollision, SqlInvalid.
    """
    return _Discovery(config, schemas).known(more_writers or {})


class _Discovery:
    def __init__(self, config: Pipeline, schemas: Schemas) -> None:
        self.config = config
        self.registry = schemas.registry
        self.schemas = schemas
        self.store = Store.of(config.tables)
        self.managed = config.tables.managed
        self.datasets = Datasets.of(config)
        self.message = config.payload.message or "0"
        self.most_tables = config.tables.max_new_tables

    def known(self, more_writers: Writers) -> KnownRoutes:
        self._check_bronze()
        reader = Envelopes(self.config, self.schemas).begin()
        subjects = self.registry.subjects()
        named = self._routes_by_subject(subjects)
        found_envelopes = self._envelope_subjects(subjects, reader)
        if reader.opens and reader.framed:
            reader = replace(reader, schemas=self._all_versions(found_envelopes))
        reader = replace(reader, schemas={**reader.schemas, **self._other_schemas(subjects, reader)})
        writers = {r: set(ids) for r, ids in read_writers(self.config, self.store).items()}
        for route, route_writers in more_writers.items():
            writers.setdefault(route, set()).update(route_writers)
        for route, subject in named.items():
            if subject not in found_envelopes:
                writers.setdefault(route, set())
        with ThreadPoolExecutor(LOOKUPS) as pool:
            routes = list(pool.map(lambda r: self._route_or_why(r, named.get(r), writers[r]), sorted(writers)))
        failed = {name: why for name, why in zip(sorted(writers), routes, strict=True) if isinstance(why, str)}
        found_routes = {r.route: r for r in routes if isinstance(r, Route)}
        beyond = self._beyond(found_routes)
        return KnownRoutes(reader, {n: r for n, r in found_routes.items() if n not in beyond}, failed, beyond)

    def _beyond(self, routes: Mapping[str, Route]) -> dict[str, str]:
        """New routes for which this update makes no table, and why: a table each, before a record has come, is what
        whoever may register a subject could have made without end. The next update makes as many again."""
        new, most = sorted(name for name, route in routes.items() if route.before is None), self.most_tables
        why = f"the update knows {len(new):,} routes without a table; tables.max_new_tables allows {most:,}"
        return dict.fromkeys(new[most:], why)

    # -- subjects ------------------------------------------------------------------------------------------

    def _routes_by_subject(self, subjects: Iterable[str]) -> dict[str, str]:
        template = self.config.declarative.subject
        if template is None:
            return {}
        before, after = map(re.escape, template.split("{route}"))
        matches = ((re.fullmatch(f"{before}(.+){after}", s, re.DOTALL), s) for s in subjects)
        return {match[1]: subject for match, subject in matches if match is not None}

    def _envelope_subjects(self, subjects: Iterable[str], reader: EnvelopeReader) -> set[str]:
        """Subjects of what is opened: the one that the pipeline names, those of its topics where messages say their
        route themselves, else those whose newest schema has what it takes."""
        named = self.config.envelope_subject
        if named is not None:
            return {named}
        if not reader.opens or reader.format == "json":
            return set()
        source = self.config.source
        if reader.by_message is not None and source.topics:
            return {f"{topic}-value" for topic in source.topics} & set(subjects)
        with ThreadPoolExecutor(LOOKUPS) as pool:
            all_subjects = list(subjects)
            are_envelopes = pool.map(partial(self._is_envelope, reader=reader), all_subjects)
            return {s for s, is_one in zip(all_subjects, are_envelopes, strict=True) if is_one}

    def _key_subjects(self, subjects: Iterable[str]) -> set[str]:
        """Subjects of the records' keys, where these have schemas: by the topics' names."""
        source = self.config.source
        if source.record_key is None or not source.record_key.has_schema:
            return set()
        if source.topics:
            return {f"{topic}-key" for topic in source.topics} & set(subjects)
        return {subject for subject in subjects if subject.endswith("-key")}

    def _other_schemas(self, subjects: Iterable[str], reader: EnvelopeReader) -> dict[int, CompiledSchema]:
        """What else is opened: keys, and messages without a schema that say their route."""
        plain = (
            {} if reader.by_message is None else self.schemas.resolve(() if self.config.payload.has_schema else (0,))[0]
        )
        return plain | self._all_versions(self._key_subjects(subjects))

    def _is_envelope(self, subject: str, reader: EnvelopeReader) -> bool:
        try:
            newest = self.registry.latest(subject).schema
            compiled, _ = self.schemas.resolve([newest.id])
            reading(replace(reader, schemas=compiled), newest.id, reader.message or "0")
        except EnvironmentFault:
            raise
        except BaseException as e:  # whatever is registered under other subjects
            contained(e)
            return False
        return True

    def _all_versions(self, subjects: Iterable[str]) -> dict[int, CompiledSchema]:
        ids = {i for subject in subjects for i in self._ids(subject)}
        return self.schemas.resolve(ids, every=True)[0]

    def _ids(self, subject: str) -> list[int]:
        try:
            return [self.registry.version(subject, v).schema.id for v in self.registry.versions(subject)]
        except SchemaNotFound:
            return []

    # -- one route -----------------------------------------------------------------------------------------

    def _route_or_why(self, route: str, subject: str | None, writers: Iterable[WriterSchema]) -> Route | str | None:
        """As `_route`; in words what is wrong with the route alone. Raises what concerns all: the store, the registry,
        the pipeline file."""
        try:
            return self._route(route, subject, writers)
        except DistributaryError:
            raise
        except BaseException as e:
            return own_fault(e, self.datasets.uri(self.datasets.silver(route)), StoreUnreadable)

    def _route(self, route: str, subject: str | None, writers: Iterable[WriterSchema]) -> Route | None:
        """None for a route without any schema that can be decoded."""
        owner = Owner(self.config.pipeline, route)
        # A definition of Lakeflow's may not ask for a table, and needs no more than the registry says.
        target = Table(self.datasets.uri(self.datasets.silver(route)), self.store, owner)
        table = None if self.managed else target.open()
        all_writers = set(writers)
        before = None
        if table is not None:
            all_writers |= parse_writers(table.properties.get(WRITERS_PROPERTY, ""))
            schema = table.schema
            before = pa.schema([f for f in schema if f.name != ORIGIN]) if schema.names else None
        all_writers |= {(i, self.message) for i in (self._ids(subject) if subject is not None else ())}
        if self.config.payload.is_inferred and all_writers:
            all_writers = {(0, shape) for shape in united(message for _, message in all_writers)}
        compiled, refused = self.schemas.resolve({i for i, _ in all_writers}, every=True)
        broken = {i: detail for i, (_, detail) in refused.items()}
        incoming: dict[WriterSchema, pa.Schema] = {}
        sql = RowSql.of(self.config.tables, route)
        form, raw = self.config.payload.encoding, self.config.payload.raw_nested_indexes
        record_key = self.config.source.record_key
        for schema_id, message in sorted(all_writers - {(i, m) for i, m in all_writers if i in broken}):
            try:
                decoder = decoder_for(compiled[schema_id], message, format=form, raw_nested_indexes=raw)
            except BaseException as e:
                why = contained(e)
                broken[schema_id] = str(e) if isinstance(e, (BadIndex, SchemaBroken)) else why
                continue
            columns = pa.schema([*decoder.columns, *_key_fields(decoder.columns, record_key)])
            incoming[schema_id, message] = payload_columns(sql.columns(columns))
        if not incoming:
            return None
        # Spark adds columns to a streaming table by itself, but never changes a column's type.
        policy = replace(policy_of(self.config.tables, route), can_widen=False)
        evolution = evolve(before, list(incoming.values()), policy)
        slots = dict(zip(incoming, evolution.slots, strict=True))
        columns = evolution.schema
        if self.config.tables.row_settings_of(route)[2] is not None:
            # The user's function makes columns of its own: those it must not find there already.
            filled = {slot.target for ways in slots.values() for slot in ways}
            columns = pa.schema([f for f in columns if f.name in filled])
        null = self.config.payload.out_of_range == "null"
        return Route(route, columns, slots, compiled, broken, before, form, raw, null, sql, record_key)

    def _check_bronze(self) -> None:
        """Raises TableCollision where bronze is another pipeline's; that of Lakeflow's is looked after there."""
        if self.managed:
            return
        uri = self.datasets.uri(self.datasets.bronze)
        try:
            Table(uri, self.store, Owner(self.config.pipeline, "")).open()
        except DistributaryError:
            raise
        except BaseException as e:
            raise StoreUnreadable(path=uri, detail=contained(e)) from e


# -- writers, written down ---------------------------------------------------------------------------------


def write_down(writers: Iterable[WriterSchema]) -> str:
    """Writers as a table property: `5 7 9:0.1`. In a shape no name has a blank (`schemas.json.inferred`)."""
    return " ".join(str(i) if message == "0" else f"{i}:{message.replace(' ', '')}" for i, message in sorted(writers))


def parse_writers(text: str) -> set[WriterSchema]:
    pairs = (word.partition(":") for word in text.split())
    return {(int(schema_id), _message(text)) for schema_id, _, text in pairs}


def _message(text: str) -> str:
    return json.dumps(json.loads(text)) if text.startswith("[") else text or "0"


def read_writers(config: Pipeline, store: Store) -> dict[str, set[WriterSchema]]:
    """Writers by route that replays have found. Raises OSError."""
    body = store.get(state_folder(config), DeclarativeFolder.writers.name)
    content = json.loads(body or b"{}")
    return {route: {(int(i), str(m)) for i, m in pairs} for route, pairs in content.items()}


def add_writers(config: Pipeline, store: Store, more_writers: Writers) -> None:
    """Remember writers for good. Only under the pipeline's lock. Raises OSError."""
    all_writers = read_writers(config, store)
    for route, writers in more_writers.items():
        all_writers.setdefault(route, set()).update(writers)
        if config.payload.is_inferred:  # not one more with each new column
            all_writers[route] = {(0, shape) for shape in united(message for _, message in all_writers[route])}
    body = json.dumps({route: sorted(pairs) for route, pairs in sorted(all_writers.items())}, ensure_ascii=False)
    store.put_whole(state_folder(config), DeclarativeFolder.writers.name, body.encode())
