"""A pipeline's tables, quarantine, ledger and checkpoint, made by the product's own writers, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from distributary.config import Pipeline
from distributary.engine.messages.task_spec import ORIGIN, ORIGIN_TYPE
from distributary.errors import Reason
from distributary.names import table_name
from distributary.state.ledger import Entry, Ledger
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, write_rejected
from distributary.tables.snapshot import Owner, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table

STREAM = "0b5a3c2e-stream"
KAFKA = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "events"}
Rows = Mapping[str, Mapping[int, int]]
"""Route -> schema id -> rows."""


class Lake:
    """One pipeline at rest. `batch` does what a run does, in the same order; each of its steps can be left out."""

    def __init__(self, root: Path, name: str = "games", source: Mapping[str, Any] = KAFKA, **keys: Any) -> None:
        tables = {"root": str(root), **keys.pop("tables", {})}
        self.config = Pipeline.model_validate(
            {"pipeline": name, "source": source, "registry": {"path": str(root / "r")}, "tables": tables, **keys}
        )
        self.store = Store()
        self.stream = f"{STREAM}-{name}"
        self.ledger = Ledger(self.config.state_root, name, self.store)
        self.quarantine = f"{self.config.state_root}/quarantine"
        self.offset = 0

    def table(self, route: str) -> str:
        return f"{self.config.tables.root}/{table_name(route, self.config.tables.name)}"

    def begin(self) -> None:
        """The checkpoint, as Spark makes it."""
        checkpoint = Path(self.config.checkpoint_path)
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": self.stream}))

    def commit_offsets(self, batch: int, offsets: Mapping[str, Any]) -> None:
        """What Spark leaves of a batch; `offsets`: of the one source."""
        self.begin()
        checkpoint = Path(self.config.checkpoint_path)
        (checkpoint / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps(offsets))
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def batch(
        self,
        number: int,
        rows: Rows,
        *,
        bad: Mapping[str | None, int] | None = None,
        parked: Mapping[str, int] | None = None,
        tombstones: int = 0,
        finished: bool = True,
        quarantined: bool = True,
        newest: int | None = None,
    ) -> None:
        """`bad`: payloads of a route that do not decode; None: envelopes that cannot be read."""
        bad, parked = dict(bad or {}), dict(parked or {})
        entries = [self._write(number, route, ids, bad.get(route, 0), newest) for route, ids in rows.items()]
        entries += [_parked(self.stream, number, r, self.table(r), n) for r, n in parked.items()]
        nameless = bad.get(None, 0)
        own = Entry(self.stream, number, None, rows_in=nameless, rows_quarantined=nameless, tombstones=tombstones)
        kept = [rejected(route, Reason.CORRUPT_PAYLOAD, n) for route, n in bad.items() if n]
        kept += [rejected(route, Reason.TABLE_PARKED, n) for route, n in parked.items()]
        files = self.write_quarantine(number, kept) if kept else []
        if finished:
            details = {"quarantine": [f.to_json() for f in files]}
            self.ledger.record(self.stream, number, [*entries, own], details)
        if finished and quarantined and files:
            commit_quarantine(self.quarantine, self.config.pipeline, files, self.stream, number, self.store)

    def write_quarantine(self, number: int, kept: list[pa.Table]) -> list[DataFile]:
        return [write_rejected(self.quarantine, kept, self.stream, number, "0", self.store)]

    def _write(self, number: int, route: str, ids: Mapping[int, int], bad: int, newest: int | None) -> Entry:
        uri = self.table(route)
        created = Table(uri, self.store).open() is None
        self.append(route, self.rows(number, ids), Txn(self.stream, number))
        good = sum(ids.values())
        return Entry(
            self.stream,
            number,
            route,
            table=uri,
            state="written",
            rows_in=good + bad,
            rows_written=good,
            rows_quarantined=bad,
            schema_ids=ids,
            reasons={Reason.CORRUPT_PAYLOAD: bad} if bad else {},
            newest=newest or int(time.time() * 1e6),
            created=created,
        )

    def rows(self, number: int, ids: Mapping[int, int]) -> pa.Table:
        """New rows of batch `number`, with offsets that follow the ones before."""
        found = [schema_id for schema_id, count in ids.items() for _ in range(count)]
        first, self.offset = self.offset, self.offset + len(found)
        values: dict[str, Any] = {"user": pa.array([f"user {n}" for n in range(len(found))])}
        if self.config.tables.origin:
            origins = [
                {"partition": n % 2, "offset": first + n, "timestamp": 1000 + n, "schema_id": i, "batch": number}
                for n, i in enumerate(found)
            ]
            values[ORIGIN] = pa.array(origins, ORIGIN_TYPE)
        return pa.table(values)

    def append(self, route: str, rows: pa.Table, txn: Txn) -> None:
        uri = self.table(route)
        table = Table(uri, self.store).open()
        found = columns_of(table)
        evolution = evolve(found, [rows.schema], Policy())
        files = [write_data_file(uri, rows, self.store)]
        Table(uri, self.store, Owner(self.config.pipeline, route)).commit(table, evolution, files, txn)


def _parked(stream: str, number: int, route: str, table: str, rows: int) -> Entry:
    return Entry(
        stream, number, route, table=table, state="parked", rows_in=rows, rows_quarantined=rows,
        reasons={Reason.TABLE_PARKED: rows}, error="OSError: disk <on> fire", failures=2,
        retry_at=int((time.time() + 60) * 1e6),
    )  # fmt: skip


def rejected(route: str | None, reason: Reason, rows: int) -> pa.Table:
    """Rows for the quarantine."""
    one = {"route": route, "reason": reason.value, "level": "payload" if route else "envelope", "value": b"?"}
    return pa.Table.from_pylist([one] * rows, schema=REJECTED_SCHEMA)
