"""Removes what a pipeline made and nothing else: its tables, checkpoint and state, together.

A name is never enough. A table goes only if it says itself that this pipeline made it for this route, and its log holds
no batch of a stream that this pipeline does not know; it is asked again right before it goes. Tables go first and the
ledger last, so an interrupted clean-up can be repeated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError

from distributary.config import Pipeline
from distributary.errors import StoreUnreadable
from distributary.names import quoted
from distributary.state.checkpoint import TOPICS_FILE, stream_id
from distributary.state.ledger import Entry, Ledger, is_batch, totals
from distributary.state.lock import only_run
from distributary.tables import append
from distributary.tables.append import Owner
from distributary.tables.files import filesystem
from distributary.tables.store import Store, join, local_path

INTENT_FILE = "clean.json"
"""In the state folder while a clean-up is under way: the tables that were found to be ours when it began."""

_STATE_ENTRIES = ("checkpoint", "plans", "quarantine", TOPICS_FILE)
_LAST_STATE_ENTRIES = ("ledger", INTENT_FILE, "replay.lock", "run.lock")
_CHECKPOINT_ENTRIES = ("offsets", "commits", "sources", "state", ".metadata.crc", "metadata")
_SHOWN = 5


@dataclass(frozen=True)
class Target:
    """Something that goes. `entries`: only these names in the folder `path`; None: the whole folder."""

    kind: Literal["table", "checkpoint", "state"]
    path: str
    route: str | None = None
    entries: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Kept:
    """Something that stays, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class CatalogEntry:
    """A table by name (quoted for Spark SQL), to be dropped only while its location is `path`."""

    name: str
    path: str


@dataclass(frozen=True)
class CleanPlan:
    """What would be removed, in this order, and what stays. `catalog` is for the caller to drop: it takes Spark."""

    pipeline: str
    remove: tuple[Target, ...]
    kept: tuple[Kept, ...]
    catalog: tuple[CatalogEntry, ...]
    config: Pipeline = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "remove": [asdict(target) for target in self.remove],
            "kept": [asdict(kept) for kept in self.kept],
            "catalog": [asdict(entry) for entry in self.catalog],
        }


def clean(config: Pipeline) -> CleanPlan:
    """Say what would be removed; touches nothing. Raises AlreadyRunning, StoreUnreadable."""
    with _at_rest(config, make=False):
        return _Cleaner(config).plan()


def apply(plan: CleanPlan) -> CleanPlan:
    """Remove it. Returns what was removed and what stayed: a table that is not ours any more stays too.

    Raises AlreadyRunning, StoreUnreadable, OSError (something could not be deleted; repeat it).
    """
    with _at_rest(plan.config, make=bool(plan.remove)):
        return _Cleaner(plan.config).apply(plan)


@contextmanager
def _at_rest(config: Pipeline, *, make: bool) -> Iterator[None]:
    """Neither a run nor a replay is on while this lasts. `make`: make lock files too, not only ask those there are."""
    folder = local_path(config.state_root)
    with ExitStack() as held:
        for name in ("run", "replay"):
            if folder is not None and ((folder / f"{name}.lock").exists() or (make and folder.is_dir())):
                held.enter_context(only_run(config.state_root, config.pipeline, name))
        yield


class _Cleaner:
    def __init__(self, config: Pipeline) -> None:
        self.config = config
        self.store = Store.of(config.tables)
        try:
            self.intent = json.loads(self.store.get(config.state_root, INTENT_FILE) or b"{}")
            self.state_owner = self._ledger_owner()
            self.entries = self._entries()
            self.streams = self._streams()
        except (OSError, DeltaError) as e:
            raise StoreUnreadable(path=config.state_root, detail=f"{type(e).__name__}: {e}") from e

    # -- what is ours --------------------------------------------------------------------------------------

    def _ledger_owner(self) -> Owner | None:
        if self.intent:
            return Owner(self.intent["pipeline"], "")
        table = append.open_table(join(self.config.state_root, "ledger"), self.store)
        return None if table is None else Owner.of(table)

    def _entries(self) -> list[Entry]:
        try:
            return Ledger(self.config.state_root, self.config.pipeline, self.store).entries()
        except DeltaError:
            if self.intent:  # a clean-up died while it removed the ledger itself
                return []
            raise

    def _streams(self) -> set[str]:
        """Ids of this pipeline's streams, also of one that died in its first batch."""
        known = {e.stream for e in self.entries if is_batch(e.stream)}
        known |= set(self._names(join(self.config.state_root, "plans")))
        if self.config.checkpoint is None and (own := stream_id(self.config.checkpoint_path, self.store)):
            known.add(own)
        return known

    def _names(self, folder: str) -> list[str]:
        found = filesystem(folder, self.store).get_file_info(pafs.FileSelector("", allow_not_found=True))
        return sorted(str(f.base_name) for f in found)

    # -- the plan ------------------------------------------------------------------------------------------

    def plan(self) -> CleanPlan:
        config, foreign = self.config, self._foreign_state()
        if foreign:
            return CleanPlan(config.pipeline, (), (Kept(config.state_root, foreign),), (), config)
        remove, kept = self._tables()
        catalog = [self._catalog(t.path) for t in remove] if config.tables.database else []
        for target, reason in (self._checkpoint(), self._state()):
            if reason and target:
                kept.append(Kept(target.path, reason))
            elif target:
                remove.append(target)
        kept += self._others(remove, kept)
        return CleanPlan(config.pipeline, tuple(remove), tuple(kept), tuple(catalog), config)

    def _foreign_state(self) -> str | None:
        if self.state_owner is None or self.state_owner == Owner(self.config.pipeline, ""):
            return None
        return f"its ledger belongs to pipeline {self.state_owner.pipeline}"

    def _tables(self) -> tuple[list[Target], list[Kept]]:
        remove: list[Target] = []
        kept: list[Kept] = []
        for path, route in self._candidates():
            reason = self.why_keep(path, route)
            if reason:
                kept.append(Kept(path, reason))
            elif self._names(path):
                remove.append(Target("table", path, route))
        return remove, kept

    def _candidates(self) -> list[tuple[str, str | None]]:
        """Tables in the ledger, tables that an interrupted clean-up had begun to remove, and tables below the root that
        name this pipeline: a first batch that died has made tables without having come to the ledger."""
        found: dict[str, str | None] = {t["path"]: t["route"] for t in self.intent.get("tables", ())}
        found |= {e.table: e.route for e in totals(self.entries).values() if e.table and e.route is not None}
        root = self.config.tables.root
        for name in self._names(root):
            path = join(root, name)
            if path not in found and (owner := self._owner(path)) and owner.pipeline == self.config.pipeline:
                found[path] = owner.route
        return sorted(found.items())

    def _owner(self, path: str) -> Owner | None:
        try:
            table = append.open_table(path, self.store)
        except (DeltaError, OSError):
            return None
        return None if table is None else Owner.of(table)

    def why_keep(self, path: str, route: str | None) -> str | None:
        """Why the table at `path` must stay; None when it is ours (or half removed, or not there)."""
        local = local_path(path)
        if local is not None and local.is_symlink():
            return "it is a symbolic link"
        try:
            table = append.open_table(path, self.store)
            if table is None:
                begun = path in {t["path"] for t in self.intent.get("tables", ())}
                return None if begun or not self._names(path) else "it is not a table"
            owner = Owner.of(table)
            marks = append.history_marks(table)
        except (DeltaError, OSError) as e:
            return f"it cannot be read: {e}"
        if owner is None:
            return "it was not made by distributary; the rows that this pipeline added stay in it"
        if owner != Owner(self.config.pipeline, route or ""):
            return f"it belongs to pipeline {owner.pipeline}, route {owner.route!r}"
        return self._not_proven(path, {app for app, _ in marks}) or self._inside(path)

    def _not_proven(self, path: str, apps: set[str]) -> str | None:
        others = sorted(app for app in apps if app not in self.streams and not app.startswith("replay-"))
        if others:
            return f"stream {others[0]} has written to it, which this pipeline does not know"
        made = {e.table for e in totals(self.entries).values() if e.created}
        made |= {t["path"] for t in self.intent.get("tables", ())}
        if path not in made and not apps & self.streams:
            return "the ledger does not say that this pipeline made it"
        return None

    def _inside(self, path: str) -> str | None:
        found = filesystem(path, self.store).get_file_info(pafs.FileSelector("", recursive=True))
        parts = [f.path.split("/") for f in found]
        nested = next((p for p in parts if "_distributary" in p or "_delta_log" in p[1:]), None)
        return None if nested is None else f"something else lies in it: {'/'.join(nested)}"

    def _catalog(self, path: str) -> CatalogEntry:
        names = [*str(self.config.tables.database).split("."), path.rsplit("/", 1)[-1]]
        return CatalogEntry(".".join(quoted(name) for name in names), path)

    def _checkpoint(self) -> tuple[Target | None, str | None]:
        """A checkpoint of its own place; one below the state goes with the state."""
        path = self.config.checkpoint_path
        own = stream_id(path, self.store)
        if own is None or path == join(self.config.state_root, "checkpoint"):
            return None, None
        reason = None if own in self.streams else f"it belongs to stream {own}, which this pipeline does not know"
        return Target("checkpoint", path, entries=_CHECKPOINT_ENTRIES), reason

    def _state(self) -> tuple[Target | None, str | None]:
        path = self.config.state_root
        if not self._names(path):
            return None, None
        if self.config.state is None:
            return Target("state", path), None
        reason = None if self.state_owner else "it holds no ledger of this pipeline"
        return Target("state", path, entries=(*_STATE_ENTRIES, *_LAST_STATE_ENTRIES)), reason

    def _others(self, remove: Sequence[Target], kept: Sequence[Kept]) -> list[Kept]:
        """Folders that stay because they also hold what is not ours."""
        if not remove:
            return []
        ours = {t.path for t in remove} | {k.path for k in kept} | {join(self.config.tables.root, "_distributary")}
        found = []
        for path in sorted({self.config.tables.root} | {t.path for t in remove if t.entries is not None}):
            known = next((t.entries for t in remove if t.path == path and t.entries), ())
            rest = [n for n in self._names(path) if n not in known and join(path, n) not in ours]
            if rest:
                more = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
                found.append(Kept(path, f"it also holds {', '.join(rest[:_SHOWN])}{more}"))
        return found

    # -- doing it ------------------------------------------------------------------------------------------

    def apply(self, plan: CleanPlan) -> CleanPlan:
        removed: list[Target] = []
        kept = list(plan.kept)
        if any(t.kind == "state" for t in plan.remove):
            tables = [{"path": t.path, "route": t.route} for t in plan.remove if t.kind == "table"]
            intent = {"pipeline": plan.pipeline, "tables": [*self.intent.get("tables", ()), *tables]}
            self.store.put_whole(self.config.state_root, INTENT_FILE, json.dumps(intent).encode())
        for target in plan.remove:
            reason = self.why_keep(target.path, target.route) if target.kind == "table" else None
            if reason:
                kept.append(Kept(target.path, reason))
                continue
            self._remove(target)
            removed.append(target)
        return replace(plan, remove=tuple(removed), kept=tuple(kept))

    def _remove(self, target: Target) -> None:
        names = self._names(target.path)
        if target.entries is not None:
            names = [n for n in names if n in target.entries]
        if target.kind == "state":
            names.sort(key=lambda n: _LAST_STATE_ENTRIES.index(n) if n in _LAST_STATE_ENTRIES else -1)
        for name in names:
            self._delete(target.path, name)
        _remove_if_empty(target.path)
        if target.kind == "state" and self.config.state is None:
            _remove_if_empty(target.path.rsplit("/", 1)[0])

    def _delete(self, folder: str, name: str) -> None:
        """Delete an entry with all below it. Raises OSError."""
        local = local_path(folder)
        if local is not None:
            entry = local / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
            return
        system = filesystem(folder, self.store)
        if system.get_file_info(name).type == pafs.FileType.Directory:
            system.delete_dir(name)
        else:
            system.delete_file(name)


def _remove_if_empty(path: str) -> None:
    """Object stores have no empty folders."""
    folder = local_path(path)
    if folder is not None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
