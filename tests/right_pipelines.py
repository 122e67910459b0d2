"""Random pipelines of change files whose tables are right: any database, settings, and what people do between runs."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import fastavro
from deltalake import DeltaTable

from distributary.errors import BadInput
from distributary.repair.reconcile import Reconcile
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain
from distributary.state.ledger import read_entries, totals
from distributary.tables.store import Store
from distributary_simulate.change_files.stream import write_history
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from tests.histories.engine import KINDS, Engine
from tests.histories.files import write
from tests.sparkless import Sparkless

ROUTES = {"mysql": "db.t", "postgresql": "s.t", "sqlserver": "db.s.t", "oracle": "db.s.t", "mongodb": "db.t"}
Deliveries = Iterator[None]


def right_pipeline(root: Path, seed: str) -> tuple[Sparkless, list[Any]]:
    """A pipeline that has run, and what was done to it."""
    dice = Random(seed)
    source, tables = _settings(dice)
    if dice.random() < 0.75:
        engine = Engine(dice.choice(KINDS), dice)
        engine.live(dice.choice((3, 8, 20, 60)))
        own = _of_route(dice, engine)
        tables["routes"] = {ROUTES[engine.kind]: own} if own else {}
    else:
        engine = None
    maintenance = {"min_files": 1, "vacuum_after": "0 seconds"}
    shop = Sparkless(root, source=source, tables=tables, maintenance=maintenance)
    done: list[Any] = [engine.kind if engine else "all", source, tables]
    for _ in _delivered(shop, engine, dice) if engine else _all_types(shop, dice):
        shop.run()
        for _ in range(dice.choice((0, 0, 1, 2))):
            act = dice.choice(ACTS)
            done.append(act.__name__)
            act(shop, dice)
    shop.run()
    return shop, done


def _settings(dice: Random) -> tuple[dict[str, Any], dict[str, Any]]:
    source = {
        "max_files_per_batch": dice.choice((1, 2, 5, 1000)),
        "wide_decimals": dice.choice(("string", "decimal")),
        "out_of_range": dice.choice(("null", "reject")),
        "json_numbers": dice.choice(("string", "decimal(18,4)", "double")),
    }
    evolution: dict[str, Any] = {
        "new_column": dice.choice(("add", "add", "add", "quarantine", "freeze")),
        "type_change": dice.choice(("widen", "widen", "new_column", "quarantine", "freeze")),
    }
    if dice.random() < 0.1:
        evolution["max_columns"] = dice.choice((4, 40))
    if dice.random() < 0.2:
        evolution["rewrite_up_to"] = 1
    tables: dict[str, Any] = {
        "metadata_columns": dice.random() < 0.2,
        "deleted_values": dice.choice(("keep", "null")),
        "dropped_columns": dice.choice(("keep", "null")),
        "tombstone_retention": "3 days",
        "evolution": evolution,
    }
    which = dice.random()
    tables |= {"log": None} if which < 0.2 else {"merged": None} if which < 0.3 else {}
    if which > 0.7:
        tables["merge_every"] = "1 hour"
    return source, tables


def _of_route(dice: Random, engine: Engine) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if engine.kind == "postgresql" and dice.random() < 0.4:
        own["toast_columns"] = ["v"]
    if engine.log and dice.random() < 0.25:
        own["repair_backfills"] = [_time(dice.choice(engine.log).time_ms)]
    if engine.epochs:
        own["epochs"] = [_time(ms) for ms in engine.epochs]
    if dice.random() < 0.1:
        own["keys"] = ["_id"] if engine.kind == "mongodb" else dice.choice((["id"], ["ID"], ["id", "v"]))
    return own


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# -- files ------------------------------------------------------------------------------------------------------------


def _delivered(shop: Sparkless, engine: Engine, dice: Random) -> Deliveries:
    files = write(engine, dice)
    size = max(1, -(-len(files) // dice.randint(1, 3)))
    for start in range(0, len(files), size):
        for file in files[start : start + size]:
            path = shop.garbage(file.name, file.body)
            if file.schema:
                path.with_name(f"{path.name.split('.json')[0]}.schema").write_text(file.schema)
        yield


def _all_types(shop: Sparkless, dice: Random) -> Deliveries:
    """Tables of every database and type, whose columns change."""
    form: Any = dice.choice(("avro", "jsonl", "jsonl.gz", "parquet"))
    changes, single = dice.choice((0, 5, 15)), dice.random() < 0.2
    plan = HistoryPlan(seed=dice.randrange(10**6), schema_changes=changes, initial_rows=5, single_key_updates=single)
    history = History(plan)
    files = FilesPlan(shop.files, format=form, schema_files=form.startswith("json") and dice.random() < 0.6, seed=None)
    for _ in range(dice.randint(1, 2)):
        write_history(history, ChangeFiles(files), 100)
        yield


def _one_of(shop: Sparkless, dice: Random) -> Path:
    """A file of events that can be read in full."""
    files = (p for p in shop.files.rglob("*") if p.is_file() and p.suffix != ".schema")
    return dice.choice(sorted(p for p in files if p.stem != "broken" and p.name[0] != "x"))


# -- what people do ---------------------------------------------------------------------------------------------------


def run_again(shop: Sparkless, _: Random) -> None:
    shop.run()


def replay(shop: Sparkless, _: Random) -> None:
    shop.replay()


def look_after(shop: Sparkless, _: Random) -> None:
    assert not [done.skipped for done in maintain(shop.config) if done.skipped not in (None, "there is no such table")]


def resync(shop: Sparkless, _: Random) -> None:
    for route in _routes(shop):
        try:
            rebuild(shop.config, route, known_route(shop.config, route))
        except BadInput:
            continue  # it has no log, no merged table or no key


def reconcile(shop: Sparkless, _: Random) -> None:
    for route in _routes(shop):
        try:
            known = known_route(shop.config, route)
            found = Reconcile(shop.config, route, known.source, known.keys)
            found.plan()
            found.apply()
        except BadInput:
            continue
    shop.run()


def _routes(shop: Sparkless) -> list[str]:
    return [r for r in totals(read_entries(shop.config.state_root, Store())) if r is not None]


def garbage(shop: Sparkless, _: Random) -> None:
    shop.garbage()
    shop.run()


def optimize(shop: Sparkless, _: Random) -> None:
    """By a job of somebody else's."""
    for log in (shop.root / "lake").glob("[!._]*/_delta_log"):
        table = DeltaTable(str(log.parent))
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def lose_a_file(shop: Sparkless, dice: Random) -> None:
    _one_of(shop, dice).unlink()


def touch(shop: Sparkless, dice: Random) -> None:
    """Copied over itself: the same bytes, another time."""
    os.utime(_one_of(shop, dice), (1, 1))
    shop.run()


def copy(shop: Sparkless, dice: Random) -> None:
    file = _one_of(shop, dice)
    file.with_name(f"y{dice.randrange(999)}{file.name}").write_bytes(file.read_bytes())
    shop.run()


def cut(shop: Sparkless, dice: Random) -> None:
    """A damaged copy, mended later or never."""
    file = _one_of(shop, dice)
    damaged = file.with_name(f"x{file.name}")
    damaged.write_bytes(file.read_bytes()[: -dice.randint(1, 40)])
    shop.run()
    if dice.random() < 0.5:
        damaged.write_bytes(file.read_bytes())
        shop.run()


def grow(shop: Sparkless, dice: Random) -> None:
    """An upload that goes on after its first half was read."""
    file = _one_of(shop, dice)
    whole, grown = file.read_bytes(), file.with_name(f"z{file.name}")
    # fastavro gives no times of 24 hours and more.
    if file.suffix == ".avro" and b"time-mi" not in whole:
        reader = fastavro.reader(io.BytesIO(whole))
        events, half = list(reader), io.BytesIO()
        fastavro.writer(half, reader.writer_schema or {}, events[: -(-len(events) // 2)])
        grown.write_bytes(half.getvalue())
    elif file.suffix == ".jsonl":
        lines = whole.splitlines(True)
        grown.write_bytes(b"".join(lines[: -(-len(lines) // 2)]))
    shop.run()
    grown.write_bytes(whole)
    shop.run()


ACTS: tuple[Callable[[Sparkless, Random], None], ...] = (
    run_again, replay, look_after, resync, reconcile, garbage, optimize, lose_a_file, touch, copy, cut, grow,
)  # fmt: skip
