"""What goes, in which order, and what stays and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from distributary.config import StateFolder
from distributary.errors import CheckpointDamaged
from distributary.repair.clean.inventory import CleaningBooks
from distributary.repair.clean.named import names_of, state_names_of
from distributary.repair.clean.proof import UNREADABLE, why_keep
from distributary.running.bronze.bronze_table import hop_1_checkpoint
from distributary.running.catalog import CatalogEntry, last_part
from distributary.state.checkpoint import stream_id
from distributary.state.streams import read_streams
from distributary.tables.snapshot import Owner
from distributary.tables.store import join, local_path

_LAST = (
    *(StateFolder.ledger, StateFolder.streams, StateFolder.layout, StateFolder.format, StateFolder.clean),
    StateFolder.division_lock,
    *(StateFolder.replay_lock, StateFolder.supervisor_lock, StateFolder.hop_1_lock, StateFolder.run_lock),
)
LAST_STATE_ENTRIES = tuple(place.name for place in _LAST)
"""What says whose the state is, and who is at it: it goes last, in this order."""
STATE_ENTRIES = tuple(place.name for place in StateFolder.places())
_HOP_1_ENTRIES = tuple(place.name for place in (StateFolder.hop_1, StateFolder.hop_1_lock, StateFolder.schemas))
_CHECKPOINT_ENTRIES = ("offsets", "commits", "sources", "state", ".metadata.crc", "metadata")
_SHOWN = 5


@dataclass(frozen=True)
class RemovalTarget:
    """Something that goes. `entries`: only these names in the folder `path`; None: the whole folder."""

    kind: Literal["table", "checkpoint", "state"]
    path: str
    route: str | None = None
    entries: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RemainingPath:
    """Something that stays, and why."""

    path: str
    reason: str


@dataclass
class CleaningDraft:
    remove: list[RemovalTarget] = field(default_factory=list)
    kept: list[RemainingPath] = field(default_factory=list)
    catalog: list[CatalogEntry] = field(default_factory=list)


def is_one_of(name: str, entries: Collection[str]) -> bool:
    """Also what a process left half written under one of these names (`Store.put_whole`)."""
    draft = name[1 : -len(".tmp")] if name.endswith(".tmp") else ""
    return name in entries or draft in entries or draft.rpartition(".")[0] in entries


def planned(books: CleaningBooks, hop_2: bool = False) -> CleaningDraft:
    """`hop_2`: without what hop 1 made. Raises OSError."""
    root = books.config.state_root
    if books.owner is not None and books.owner != Owner(books.config.pipeline, ""):
        return CleaningDraft(kept=[RemainingPath(root, f"its ledger belongs to pipeline {books.owner.pipeline}")])
    plan = CleaningDraft()
    tables = books.tables()
    for path, route in tables:
        if hop_2 and path == books.config.bronze_path:
            plan.kept.append(RemainingPath(path, "hop 2 begins anew from it"))
        elif reason := why_keep(books, path, route):
            plan.kept.append(RemainingPath(path, reason))
        elif books.names(path):
            plan.remove.append(RemovalTarget("table", path, route))
    plan.catalog += names_of(books, {target.path for target in plan.remove})
    unread = [stay_entry for stay_entry in plan.kept if stay_entry.reason.startswith(UNREADABLE)]
    stay = {stay_entry.path for stay_entry in plan.kept}
    flows = _flows(books, (last_part(path) for path, _ in tables if path not in stay))
    for target, reason in (*_checkpoints(books, hop_2), *flows, *_state(books, hop_2)):
        if unread:
            reason = f"it says whose {unread[0].path} is; clean again once that can be read"
        if reason:
            plan.kept.append(RemainingPath(target.path, reason))
        else:
            plan.remove.append(target)
    plan.catalog += state_names_of(books, {t.path for t in plan.remove if t.kind != "checkpoint"})
    plan.kept += [*_others(books, plan), *_logs(books)]
    return plan


def _checkpoints(books: CleaningBooks, hop_2: bool) -> Iterator[tuple[RemovalTarget, str | None]]:
    """Those of their own place: one below the state goes with the state."""
    if books.config.checkpoint is None:
        return
    paths = [stream.checkpoint_path for stream in reversed(books.parts)]
    for path in paths if hop_2 else [*paths, hop_1_checkpoint(books.config)]:
        try:
            owner = stream_id(path, books.store)
        except CheckpointDamaged as e:
            yield RemovalTarget("checkpoint", path, entries=_CHECKPOINT_ENTRIES), f"nobody can say whose it is: {e}"
            continue
        if owner is not None:
            reason = (
                None if owner in books.streams else f"it belongs to stream {owner}, which this pipeline does not know"
            )
            yield RemovalTarget("checkpoint", path, entries=_CHECKPOINT_ENTRIES), reason


def _flows(books: CleaningBooks, tables: Iterable[str]) -> Iterator[tuple[RemovalTarget, str | None]]:
    """Those of a declarative pipeline's own place. Nothing in them says whose they are: they go with their tables."""
    if books.config.checkpoint is None or not books.config.is_declarative:
        return
    from distributary.declarative.datasets import Datasets, flow_checkpoints, storage
    from distributary.declarative.silver_sink import silver_flow

    place, names = storage(books.config), Datasets.of(books.config)
    paths = [flow_checkpoints(place, names, table) for table in tables]
    if paths and (flow := silver_flow(books.config)) is not None:
        paths.append(join(place, "_checkpoints", flow))
    for path in paths:
        if books.names(path):
            yield RemovalTarget("checkpoint", path), None


def _state(books: CleaningBooks, hop_2: bool) -> Iterator[tuple[RemovalTarget, str | None]]:
    path = books.config.state_root
    if not books.has_state:
        return
    if hop_2:
        entries = tuple(name for name in STATE_ENTRIES if name not in _HOP_1_ENTRIES)
        yield (
            RemovalTarget("state", path, entries=entries),
            None if books.owner else "it holds no ledger of this pipeline",
        )
        return
    if books.config.state is None:
        yield RemovalTarget("state", path), None
        return
    reason = None if books.owner else "it holds no ledger of this pipeline"
    yield RemovalTarget("state", path, entries=STATE_ENTRIES), reason


def _others(books: CleaningBooks, plan: CleaningDraft) -> Iterator[RemainingPath]:
    """Folders that stay because they also hold what is not ours."""
    if not plan.remove:
        return
    root = books.config.tables.root
    entries_of = {target.path: target.entries for target in plan.remove}
    ours = entries_of.keys() | {entry.path for entry in plan.kept} | {join(root, "_distributary")}
    for path in sorted({root} | {path for path, entries in entries_of.items() if entries is not None}):
        entries = entries_of.get(path) or ()
        names = (name for name in books.names(path) if not is_one_of(name, entries))
        rest = [name for name in names if not _is_ours(books, join(path, name), ours)]
        if rest:
            hidden = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
            yield RemainingPath(path, f"it also holds {', '.join(rest[:_SHOWN])}{hidden}")


def _is_ours(books: CleaningBooks, path: str, ours: Collection[str]) -> bool:
    """It is ours, or holds only what is: the folder of bronze tables, of the checkpoints of shares."""
    if path in ours:
        return True
    if not any(our_path.startswith(f"{path}/") for our_path in ours):
        return False
    return all(_is_ours(books, join(path, name), ours) for name in books.names(path))


def _logs(books: CleaningBooks) -> Iterator[RemainingPath]:
    """Where `workflow local` wrote its logs, if on this machine."""
    config = books.config
    folders = {
        str(Path(r.log).parent) for r in read_streams(config.state_root, books.store) if r.log not in (None, "-")
    }
    for folder in sorted(folders):
        if Path(folder).is_dir() and local_path(config.state_root) is not None:
            yield RemainingPath(folder, "logs of its streams; delete them yourself")
