"""A declarative pipeline without Spark: the tasks' own functions, bronze and silver written by delta-rs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from distributary.config import Pipeline
from distributary.declarative.bronze_counts import Bronze
from distributary.declarative.datasets import Datasets, storage
from distributary.declarative.judge import VERDICT_SCHEMA, decode_rows, judge_values
from distributary.declarative.known_routes import KnownRoutes, discover
from distributary.declarative.update_ledger import Books
from distributary.engine.messages.task_spec import ORIGIN
from distributary.engine.schemas import Schemas
from distributary.schemas.registry import Registry, open_registry
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan, Record
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games

PLAN = Plan(
    games=2, versions=2, records=30, faults=Faults(corrupt=3, unknown_id=2, empty_name=2, tombstones=2, bad_envelope=1)
)
_EXTRA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("replay_of", pa.string()),
        ("bronze_at", pa.timestamp("us", "UTC")),
    ]
)


class Rest:
    """A declarative pipeline at rest: `take` does what an update does, with the tasks' own functions."""

    def __init__(self, root: Path, **keys: Any) -> None:
        given: dict[str, Any] = {
            "pipeline": "games",
            "layout": "declarative",
            "source": {"type": "delta", "path": str(root / "source")},
            "registry": {"path": str(root / "registry")},
            **keys,
            "tables": {"root": str(root / "lake"), **keys.get("tables", {})},
        }
        self.config = Pipeline.model_validate(given)
        self.datasets = Datasets.of(self.config)
        assert self.config.registry is not None
        self.registry: Registry = open_registry(self.config.registry)
        self.games = Games(PLAN, self.registry)
        self.sent: list[Record] = []

    def known(self) -> KnownRoutes:
        return discover(self.config, Schemas(self.registry))

    def send(self, version: int, **more: Any) -> list[Record]:
        records = list(self.games.records(version, **more))
        write_delta(str(self.config.source.path), records)  # type: ignore[union-attr]
        self.sent += records
        return records

    def take(self, records: Sequence[Record], known: KnownRoutes | None = None) -> None:
        """Records to bronze, and what is new there to silver."""
        known = known or self.known()
        verdicts = pa.Table.from_struct_array(judge_values(pa.array([r.value for r in records], pa.binary()), known))
        rows = len(records)
        extra = {f.name: pa.nulls(rows, f.type) for f in _EXTRA}
        extra["bronze_at"] = pa.array([datetime.now(UTC)] * rows, pa.timestamp("us", "UTC"))
        table = pa.table([*verdicts.columns, *extra.values()], schema=pa.schema([*VERDICT_SCHEMA, *_EXTRA]))
        uri = self.datasets.uri(self.datasets.bronze)
        write_deltalake(
            uri, table, mode="append", partition_by=["route"], description=Owner(self.config.pipeline, "").text()
        )
        self.read(self.datasets.bronze, DeltaTable(str(self.config.source.path)).version() + 1)  # type: ignore[union-attr]
        self.silver(verdicts, known)

    def silver(self, verdicts: pa.Table, known: KnownRoutes) -> None:
        version = DeltaTable(self.datasets.uri(self.datasets.bronze)).version() + 1
        for route in known.routes.values():
            mine = verdicts.filter(pc.equal(verdicts.column("route"), route.route))
            good = mine.filter(pc.is_null(mine.column("reason"))).combine_chunks()
            name = self.datasets.silver(route.route)
            if good.num_rows:
                ids, messages, payloads = (good.column(n).chunk(0) for n in ("schema_id", "message", "payload"))
                rows = pa.Table.from_struct_array(decode_rows(ids, messages, payloads, route))
                origin = pa.StructArray.from_arrays([good.column("schema_id").chunk(0)], ["schema_id"])
                rows = rows.append_column(ORIGIN, origin)
                write_deltalake(
                    self.datasets.uri(name), rows, mode="append", schema_mode="merge",
                    description=Owner(self.config.pipeline, route.route).text(),
                )  # fmt: skip
            self.read(name, version)

    def read(self, name: str, version: int) -> None:
        """The checkpoint of a flow that has read all commits before `version`."""
        folder = Path(storage(self.config), "_checkpoints", "spark_catalog", self.datasets.database, name, name, "0")
        read = str(self.config.source.path) if name == self.datasets.bronze else self.bronze.uri  # type: ignore[union-attr]
        offset = json.dumps({"reservoirId": DeltaTable(read).metadata().id, "reservoirVersion": version, "index": -1})
        for part, text in (("offsets", f"v1\n{{}}\n{offset}"), ("commits", "v1")):
            (folder / part).mkdir(parents=True, exist_ok=True)
            (folder / part / "0").write_text(text)

    def books(self, states: dict[str, str] | None = None, reasons: dict[str, str] | None = None) -> Books:
        """Settled after an update that left flows in `states`."""
        books = Books(self.config)
        books.settle(states or {}, reasons or {})
        return books

    @property
    def bronze(self) -> Bronze:
        return Bronze.of(self.datasets, Store())

    def silver_uri(self, game: str) -> str:
        return self.datasets.uri(self.datasets.silver(game))
