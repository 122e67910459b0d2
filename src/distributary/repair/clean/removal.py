"""Taking folders away, whole or by the names that are ours."""

from __future__ import annotations

from collections.abc import Collection

from distributary.config import Pipeline
from distributary.repair.clean.clean_plan import LAST_STATE_ENTRIES, RemovalTarget, is_one_of
from distributary.tables.by_name import is_named
from distributary.tables.files import delete_entry, names_in
from distributary.tables.store import Store, join, local_path


def remove(target: RemovalTarget, config: Pipeline, store: Store) -> None:
    """Remove a target, and the folders above it that are empty then and were made for it. Raises OSError."""
    if is_named(target.path):
        folder, _, name = target.path.rpartition("/")
        delete_entry(folder, name, store)
        return
    names = names_in(target.path, store)
    if target.entries is not None:
        names = [name for name in names if is_one_of(name, target.entries)]
    if target.kind == "state":
        names.sort(key=lambda n: LAST_STATE_ENTRIES.index(n) if n in LAST_STATE_ENTRIES else -1)
    for name in names:
        delete_entry(target.path, name, store)
    _remove_if_empty(target.path)
    _remove_empty_above(target.path, {join(config.tables.root, n) for n in ("_distributary", "_bronze")})
    if config.checkpoint is not None and target.path.startswith(f"{config.checkpoint.rstrip('/')}/"):
        _remove_empty_between(target.path, config.checkpoint.rstrip("/"))


def _remove_empty_above(path: str, our_folders: Collection[str]) -> None:
    above = path.rsplit("/", 1)[0]
    if above in our_folders:
        _remove_if_empty(above)


def _remove_empty_between(path: str, top: str) -> None:
    """`shares/1/c1` below a checkpoint of its own place."""
    while (path := path.rsplit("/", 1)[0]) and path.startswith(f"{top}/"):
        _remove_if_empty(path)
    _remove_if_empty(top)


def _remove_if_empty(path: str) -> None:
    """Object stores have no empty folders."""
    folder = local_path(path)
    if folder is not None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
