"""Whose is a table? Why one must stay, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow.fs as pafs

from distributary.config import HopFolder
from distributary.repair.clean.inventory import CleaningBooks
from distributary.running.bronze.bronze_table import has_rows, hop_1_state
from distributary.state.ledger import EMPTIED, MERGE, RESYNC
from distributary.tables.by_name import is_named
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import engine_uri, filesystem, local_path
from distributary.tables.table import Table
from distributary.tables.tombstones import FOLDER, PROPERTY

UNREADABLE = "it cannot be read"
_OWN_WORK = ("replay-", "reconcile-", RESYNC, RESYNC.rstrip("-"), MERGE, EMPTIED)
"""Marks of a pipeline's own work beside its streams begin so."""


def why_keep(books: CleaningBooks, path: str, route: str | None) -> str | None:
    """Why the table at `path` must stay; None when it is ours (or half removed, or not there)."""
    local = local_path(path)
    if local is not None and local.is_symlink():
        return "it is a symbolic link"
    if not any(_place(path).startswith(f"{_place(ours)}/") for ours in (books.config.tables.root, *_apart(books))):
        # The ledger of a lake that was copied names the tables of the lake that it was copied from.
        return f"it is not below tables.root ({books.config.tables.root}): clean it with the file that made it"
    try:
        table = Table(path, books.store).open()
        if table is None:
            return None if path in books.intent.tables or not books.names(path) else "it is not a table"
        owner = table.owner
        if owner is None:
            return "it was not made by distributary; the rows that this pipeline added stay in it"
        if owner != Owner(books.config.pipeline, route or ""):
            return f"it belongs to pipeline {owner.pipeline}, route {owner.route!r}"
        own = (FOLDER,) if PROPERTY in table.properties else ()
        return _not_proven(books, path, table) or _inside(books, path, own)
    except OSError as e:
        return f"{UNREADABLE}: {e}"


def _place(uri: str) -> str:
    local = local_path(uri)
    return engine_uri(uri).rstrip("/") if local is None else str(local.absolute())


def _apart(books: CleaningBooks) -> Iterator[str]:
    if books.config.bronze_table is not None:
        yield books.config.bronze_table.rsplit("/", 1)[0]


def _not_proven(books: CleaningBooks, path: str, table: Snapshot) -> str | None:
    # A second pass over a batch of change files marks its commits with the stream and a number.
    apps = {app.split("+", 1)[0] for app, _ in table.txns()}
    others = sorted(app for app in apps if app not in books.streams and not app.startswith(_OWN_WORK))
    if others:
        return f"stream {others[0]} has written to it, which this pipeline does not know"
    if path in books.made or apps & books.streams or table.id in books.streams or books.bronze_is_ours:
        return None
    if path == books.config.bronze_path and _is_filled_by_us(books, table):
        return None
    return "the ledger does not say that this pipeline made it"


def _is_filled_by_us(books: CleaningBooks, table: Snapshot) -> bool:
    """Bronze is written by Spark's own sink, whose only transaction is the id of hop 1's stream."""
    if books.hop_1 is not None:
        return table.newest(books.hop_1) >= 0 or not has_rows(table)
    # Hop 1 was reset: it had been let in to this table before.
    return books.store.get(hop_1_state(books.config), HopFolder.envelopes.name) is not None


def _inside(books: CleaningBooks, path: str, own: Collection[str]) -> str | None:
    """`own`: tables in its folder that go with it."""
    if is_named(path):
        return None
    infos = filesystem(path, books.store).get_file_info(pafs.FileSelector("", recursive=True))
    paths = [f.path.split("/") for f in infos]
    nested = next((p for p in paths if "_distributary" in p or "_delta_log" in p[1 + (p[0] in own) :]), None)
    return None if nested is None else f"something else lies in it: {'/'.join(nested)}"
