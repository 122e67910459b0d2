"""Does this state know the tables that it is to write? Asked at a start that has no ledger yet.

Ledger and checkpoint may both be gone: the state folder was lost or emptied, or `state` names another one. Then the
stream would begin at the beginning, and every row would be in the tables twice. The tables know better: their commits
carry the ids of the streams that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.config import Pipeline
from distributary.errors import StateLost
from distributary.names import route_of
from distributary.state.checkpoint import HANDED_OVER, readable_stream_id
from distributary.state.ledger import MERGE, RESYNC, Ledger, is_batch
from distributary.tables.append import Owner, history_marks, open_table
from distributary.tables.files import names_in
from distributary.tables.store import Store, join

_OWN_WORK = ("replay-", "reconcile-", RESYNC, RESYNC.rstrip("-"), MERGE)
"""Marks of a pipeline's own work beside its streams begin so."""


def check_tables(config: Pipeline, ledger: Ledger, store: Store) -> None:
    """Raises StateLost where a table of this pipeline has rows of a stream that is unknown here; OSError."""
    if config.new_state == "continue" or any(map(is_batch, ledger.finished)):
        return
    if store.get(config.state_root, HANDED_OVER) is not None:
        return  # its tables were written by the streams before it
    # A first batch that died has written tables without having come to the ledger.
    known = {readable_stream_id(config.checkpoint_path, store), *names_in(join(config.state_root, "plans"), store)}
    for uri, table in _own_tables(config, store):
        apps = {app.split("+", 1)[0] for app, _ in history_marks(table)}
        for app in sorted(apps):
            if app not in known and not app.startswith(_OWN_WORK):
                raise StateLost(pipeline=config.pipeline, state=config.state_root, table=uri, stream=app)


def _own_tables(config: Pipeline, store: Store) -> Iterator[tuple[str, DeltaTable]]:
    root = config.tables.root
    for name in names_in(root, store):
        try:
            table = open_table(join(root, name), store)
        except (DeltaError, OSError):
            continue  # it is its route's fault, if it is one of ours
        owner = None if table is None else Owner.of(table)
        if table is not None and owner is not None and owner.pipeline == config.pipeline and _is_ours(config, owner):
            yield join(root, name), table


def _is_ours(config: Pipeline, owner: Owner) -> bool:
    """Does the stream of `config` write this table, and no other stream of the pipeline?"""
    if config.route_key is not None:
        return owner.route == route_of(config.route_key)
    return config.share is None or (owner.route != "" and config.share.owns(owner.route))
