"""Writes changes as a Datastream stream does: files of events in a folder per table and minute."""

from __future__ import annotations

import os
import random
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from distributary.changes.model import Kind
from distributary_simulate.change_files.events import Event, EventSchema, Layout, event_schema
from distributary_simulate.change_files.faults import Faults, FaultyWay
from distributary_simulate.change_files.files import EventFile, Extra, Format, file_name, minute_folder
from distributary_simulate.changes.model import Change, Table

STREAM: Final = "projects/477446135160/locations/us-central1/streams/simulated"
BATCH_EVENTS: Final = 256
"""A read batch numbers its events in eight binary digits."""
_BATCH_MS: Final = 2_000
_FIRST_GUESS_BYTES: Final = 400
# How long after a change its event is read: only archived redo logs are read from Oracle.
_LATENCY_MS: Final = {Kind.ORACLE: 1_800_000}
_USUAL_LATENCY_MS: Final = 3_000


@dataclass(frozen=True)
class FilesPlan:
    """How to write.

    format: avro, jsonl, jsonl.gz or parquet; parquet has the shape of avro, as if somebody had converted the files.
    rotate_bytes, rotate_ms: a file ends at about this size, or this long after its first event.
    schema_files: beside each data file its avro schema, as `<same name>.schema`.
    seed: the same seed and changes give the same files; None: names that no other run has given, for a folder that
        several runs write to.
    placeholders: beside each minute's folder an empty one for the minute after, as bucket browsers leave behind.
    """

    root: Path
    format: Format = "avro"
    layout: Layout = Layout.Y2025
    rotate_bytes: int = 50_000_000
    rotate_ms: int = 60_000
    schema_files: bool = False
    placeholders: bool = False
    stream_name: str = STREAM
    seed: int | None = None
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """path: below the root. events: 0 where it can't be read. extra: which fault added the file; empty: none."""

    path: str
    route: str
    events: int
    bytes: int
    extra: Extra


class ChangeFiles:
    """Takes changes in the order of their sources; `written` lists what landed, in order.

    A file is written beside the tree and renamed into it, so a reader never meets half of one.
    """

    def __init__(self, plan: FilesPlan) -> None:
        if plan.seed is None:
            plan = replace(plan, seed=secrets.randbits(64))
        self.plan = plan
        self.written: list[WrittenFile] = []
        self._way = FaultyWay(plan.faults, f"{plan.seed}")
        self._batches = _ReadBatches(plan)
        self._open: dict[tuple[str, str, str], _Open] = {}
        self._schemas: dict[int, tuple[Table, EventSchema]] = {}
        self._bytes_per_event: dict[str, float] = {}
        self._worker = random.Random(f"{plan.seed} worker").randrange(10)
        self._aside = plan.root.parent / f".{plan.root.name}.writing"
        for folder in (plan.root, self._aside):
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, change: Change) -> None:
        """Files that this change completes are written before it returns."""
        change = self._way.skewed(change)
        schema = self._schema(change)
        event = self._batches.event(change)
        folder = minute_folder(change.table.object, change.position.source_ms)
        key = (folder, schema.key, change.read_method)
        self.tick(change.seen_ms)
        file = self._open.setdefault(key, _Open(schema, change.seen_ms))
        file.events.append(event)
        if len(file.events) * self._bytes_per_event.get(schema.key, _FIRST_GUESS_BYTES) >= self.plan.rotate_bytes:
            self._complete(key)

    def tick(self, now_ms: int) -> None:
        """Time has passed: write the files that are old enough."""
        for key in [key for key, file in self._open.items() if now_ms - file.since_ms >= self.plan.rotate_ms]:
            self._complete(key)

    def flush(self) -> None:
        """Write all open files, whatever their age; late ones stay late."""
        for key in list(self._open):
            self._complete(key)

    def close(self) -> None:
        """Write everything, late files included."""
        self.flush()
        for file in self._way.finish():
            self._write(file)
        self._aside.rmdir()

    def _schema(self, change: Change) -> EventSchema:
        # By identity: to hash a table's columns for every change costs more than to write it.
        cached = self._schemas.get(id(change.table))
        if cached is None or cached[0] is not change.table:
            layout = self._way.layout(change, self.plan.layout)
            cached = change.table, event_schema(change.table, layout, self.plan.stream_name)
            self._schemas[id(change.table)] = cached
        return cached[1]

    def _complete(self, key: tuple[str, str, str]) -> None:
        folder, _, read_method = key
        opened = self._open.pop(key)
        for file in self._way.put(EventFile(opened.schema, folder, tuple(opened.events), read_method)):
            self._write(file)

    def _write(self, file: EventFile) -> None:
        plan, body = self.plan, file.encoded(self.plan.format)
        if file.can_be_read:
            self._bytes_per_event[file.schema.key] = len(body) / len(file.events)
        name = file_name(file, self._worker, len(self.written), plan.format)
        if plan.schema_files:
            # First: a reader that finds the data finds its schema.
            self._land(file.folder, name.removesuffix(plan.format) + "schema", file.schema.text.encode())
        self._land(file.folder, name, body)
        if plan.placeholders:
            minute_ms = 60_000 + (file.events[0].change.position.source_ms if file.events else 0)
            (plan.root / minute_folder(file.schema.table.object, minute_ms)).mkdir(parents=True, exist_ok=True)
        events = len(file.events) if file.can_be_read else 0
        path, route = f"{file.folder}/{name}", file.schema.table.route
        self.written.append(WrittenFile(path, route, events, len(body), file.extra))

    def _land(self, folder: str, name: str, body: bytes) -> None:
        aside, target = self._aside / name, self.plan.root / folder
        aside.write_bytes(body)
        target.mkdir(parents=True, exist_ok=True)
        os.rename(aside, target / name)


@dataclass
class _Open:
    schema: EventSchema
    since_ms: int
    events: list[Event] = field(default_factory=list)


class _ReadBatches:
    """Numbers events: 24 random hex digits per batch, then eight binary digits; one time per batch, always rising.

    A reader breaks ties by (time, number), so a later event must never come before an earlier one.
    """

    def __init__(self, plan: FilesPlan) -> None:
        self._choices = random.Random(f"{plan.seed} uuids")
        self._one_backfill_uuid = plan.faults.one_backfill_uuid
        self._batches: dict[tuple[Kind, str, str], _Batch] = {}

    def event(self, change: Change) -> Event:
        table = change.table
        key = (table.kind, table.database, change.read_method)
        batch = self._batches.get(key)
        single = self._one_backfill_uuid and change.is_backfill
        if batch is None or (not single and batch.is_over(change.seen_ms)):
            read_ms = change.seen_ms + _LATENCY_MS.get(table.kind, _USUAL_LATENCY_MS) + self._choices.randrange(1000)
            read_ms = max(read_ms, batch.read_ms + 1 if batch else 0)
            batch = self._batches[key] = _Batch(f"{self._choices.getrandbits(96):024x}", change.seen_ms, read_ms)
        return Event(change, batch.uuid(0 if single else None), batch.read_ms)


@dataclass
class _Batch:
    prefix: str
    since_ms: int
    read_ms: int
    count: int = 0

    def is_over(self, now_ms: int) -> bool:
        return self.count >= BATCH_EVENTS or now_ms - self.since_ms >= _BATCH_MS

    def uuid(self, number: int | None) -> str:
        if number is None:
            number, self.count = self.count, self.count + 1
        digits = f"{self.prefix}{number:08b}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
