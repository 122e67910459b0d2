"""Many games in one stream: registers their schemas and makes framed records, the same for the same plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from distributary.schemas.header import frame as plain_frame
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import Registry, SchemaVersion
from distributary_simulate.errors import SimulationInvalid
from distributary_simulate.games.bulk import BLOCK_ROWS, Series, blocks, models_for
from distributary_simulate.games.encodings import COMPATIBILITY, KIND, schema_text
from distributary_simulate.games.events import EventMaker, message_class
from distributary_simulate.games.manifest import Manifest
from distributary_simulate.games.records import UNKNOWN_ID, Envelope, Fault, Plan, Record
from distributary_simulate.games.schemas import WRAPPER_TEXT, game_names, game_subject, wrapper_subject


class Games:
    """The producer of a plan.

    Every byte follows from the plan and the ids that the registry gives out. `manifest` is told each subject that this
    producer created; a subject that was there before is used, but stays its owner's.

    Raises, from every method that registers: SchemaIncompatible, RegistryDown, RegistryDenied.
    """

    def __init__(self, plan: Plan, registry: Registry, *, manifest: Manifest | None = None) -> None:
        self.plan = plan
        self.names = game_names(plan.games)
        self.manifest = manifest if manifest is not None else Manifest()
        self._registry = registry
        self._position = {game: position for position, game in enumerate(self.names)}
        self._faults = plan.fault_positions()
        self._found: set[str] | None = None
        self._registered: dict[tuple[str, int], SchemaVersion] = {}
        self._makers: dict[tuple[str, int], EventMaker] = {}
        self._wrapper_id: int | None = None
        self._wrapper: Any = message_class(WRAPPER_TEXT, "wrapper")

    # -- schemas ---------------------------------------------------------------------------------------------

    def register(self, version: int, games: Sequence[str] | None = None) -> dict[str, SchemaVersion]:
        """Register this version of the games (default: all), and the outer message the first time.

        Returns game -> its registered version. Subjects are `<game>-value` and `<topic>-value`. Calling it again
        changes nothing.
        """
        try:
            self._register_wrapper()
            return {game: self._register_game(game, version) for game in self._chosen(games)}
        finally:
            self.manifest.save()

    def _register_wrapper(self) -> int:
        if self._wrapper_id is None:
            self._wrapper_id = self._register(wrapper_subject(self.plan.topic), WRAPPER_TEXT).schema.id
        return self._wrapper_id

    def _register_game(self, game: str, version: int) -> SchemaVersion:
        registered = self._registered.get((game, version))
        if registered is None:
            form = self.plan.form
            text = schema_text(form, game, version)
            registered = self._register(game_subject(game), text, KIND[form], COMPATIBILITY[form])
            self._registered[game, version] = registered
        return registered

    def _register(self, subject: str, text: str, kind: str = "PROTOBUF", level: str = "FULL") -> SchemaVersion:
        if self._found is None:
            self._found = set(self._registry.subjects())
        ours = self.manifest.has_subject(self._registry.name, subject)
        if subject not in self._found:
            self._registry.set_compatibility(subject, level)
            ours = True
        registered = self._registry.register(subject, text, kind=kind)
        if ours:
            self.manifest.add_subject(self._registry.name, subject, registered.schema.id)
        self._found.add(subject)
        return registered

    def _chosen(self, games: Sequence[str] | None) -> Sequence[str]:
        for game in games or ():
            if game not in self._position:
                raise SimulationInvalid(what=f"game {game!r}", detail=f"not one of {', '.join(self.names[:20])}")
        return self.names if games is None else games

    # -- records ---------------------------------------------------------------------------------------------

    def records(
        self, version: int, games: Sequence[str] | None = None, records: int | None = None, *, start: int = 0
    ) -> Iterator[Record]:
        """Positions `start` to `start + records` (default: the plan's) of this version, the games taking turns.

        Registers what is missing. Faults stand at their positions within the plan; positions beyond it ("send
        more") have none.
        """
        count = self.plan.records if records is None else records
        self.register(version, games)
        for position in range(start, start + count):
            for game in self._chosen(games):
                yield self.record(game, version, position)

    def record(self, game: str, version: int, position: int, *, instant_us: int | None = None) -> Record:
        """One record, with its fault if it has one. The version must be registered.

        instant_us: replaces the event's own instant, microseconds since 1970 UTC.
        """
        maker = self._maker(game, version)
        made_of = self._registered[game, version].schema.id
        fault = self._fault_at(game, version, position)
        envelope = self._envelope(maker, made_of, position, fault, instant_us)
        instant = maker.instant_us(position) if instant_us is None else instant_us
        key = maker.user(position).encode()
        value = self._value(envelope, fault, maker.bits(position))
        if fault == "tombstones":
            envelope = Envelope(game, made_of, None)
        elif fault == "bad_envelope":
            envelope = Envelope(None, None, None)
        return Record(key, value, game, made_of, version, fault, instant, envelope)

    def _maker(self, game: str, version: int) -> EventMaker:
        maker = self._makers.get((game, version))
        if maker is None:
            maker = self._makers[game, version] = EventMaker(game, version, self.plan.seed, self.plan.form)
        return maker

    def _fault_at(self, game: str, version: int, position: int) -> Fault | None:
        if not self._faults or position >= self.plan.records or version > self.plan.versions:
            return None
        before = (version - 1) * self.plan.games + self._position[game]
        return self._faults.get(before * self.plan.records + position)

    def _envelope(
        self, maker: EventMaker, schema_id: int, position: int, fault: Fault | None, instant_us: int | None
    ) -> Envelope:
        body = maker.payload(position, instant_us)
        bits = maker.bits(position)
        name: str | None = maker.game
        named = schema_id
        if fault == "corrupt":
            body = _corrupt(body, bits)
        elif fault == "unknown_id":
            schema_id = named = UNKNOWN_ID
        elif fault == "empty_name":
            name = "" if bits & 1 else None
        elif fault == "id_mismatch":
            named = schema_id + 1
        header = frame if self.plan.form == "protobuf" else plain_frame
        return Envelope(name, named, header(schema_id, body))

    def _value(self, envelope: Envelope, fault: Fault | None, bits: int) -> bytes | None:
        if fault == "tombstones":
            return None
        if fault == "bad_envelope":
            body = _garbage(bits)
        else:
            body = self._wrapper(**envelope._asdict()).SerializeToString(deterministic=True)
        return frame(self._register_wrapper(), body) if self.plan.framed else body

    # -- many at once ----------------------------------------------------------------------------------------

    def envelope_blocks(
        self,
        version: int,
        rows: int | Mapping[str, int],
        *,
        start: int = 0,
        columns: bool = False,
        block_rows: int = BLOCK_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Many good records quickly: `rows` of every game, or as many as the mapping says for its games.

        Rows of `VALUE_SCHEMA` (or `COLUMNS_SCHEMA` if `columns`) in blocks of about `block_rows`, games shuffled.
        Values repeat, but each (game, event_timestamp) comes once; give the next call the next `start`.
        """
        if self.plan.form != "protobuf":
            raise SimulationInvalid(what="format", detail=f"many at once are protobuf, not {self.plan.form}")
        rows_of = dict.fromkeys(self.names, rows) if isinstance(rows, int) else dict(rows)
        self.register(version, list(rows_of))
        series = [self._series(game, version, count, start) for game, count in rows_of.items() if count > 0]
        return blocks(series, seed=self.plan.seed, columns=columns, block_rows=block_rows)

    def envelopes_table(
        self, version: int, rows: int | Mapping[str, int], *, start: int = 0, columns: bool = False
    ) -> pa.Table:
        """`envelope_blocks` as one table, a chunk per block."""
        batches = list(self.envelope_blocks(version, rows, start=start, columns=columns))
        return pa.Table.from_batches(batches)

    def _series(self, game: str, version: int, rows: int, start: int) -> Series:
        # Models stand beyond the plan, where no fault can fall on them.
        models = [self.record(game, version, self.plan.records + i) for i in range(models_for(rows))]
        return Series(models, rows, start)


def _corrupt(body: bytes, bits: int) -> bytes:
    """Bytes that no decoder may accept: one byte short of the last field, or garbage."""
    return body[:-1] if bits & 1 else _garbage(bits)


def _garbage(bits: int) -> bytes:
    """Starts with a tag of wire type 7, which does not exist, so it can never be taken for a message by chance."""
    return b"\x0f" + bits.to_bytes(8, "little")
