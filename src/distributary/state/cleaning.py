"""A clean-up that was begun: which tables and streams it takes for the pipeline's own, while the rest goes.

While this is there nothing writes (`at_work`): tables may be gone already, and their rows would be missed for ever.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from distributary.config import Pipeline, StateFolder
from distributary.errors import CleanUnfinished
from distributary.state.lock import only_run
from distributary.state.state_format import check_format, claim_format
from distributary.state.table_places import check_tables_stay
from distributary.tables.faults import reading
from distributary.tables.store import Store


@dataclass(frozen=True)
class CleaningIntent:
    """`tables`: path -> route. All empty where no clean-up was begun (`pipeline` None)."""

    pipeline: str | None = None
    tables: Mapping[str, str | None] = field(default_factory=dict)
    streams: frozenset[str] = frozenset()


def begun(config: Pipeline, store: Store) -> CleaningIntent:
    """Raises OSError."""
    body = store.get(config.state_root, StateFolder.clean.name)
    if body is None:
        return CleaningIntent()
    content = json.loads(body)
    tables = {table["path"]: table["route"] for table in content["tables"]}
    return CleaningIntent(content["pipeline"], tables, frozenset(content.get("streams", ())))


def begin(config: Pipeline, tables: Mapping[str, str | None], streams: Collection[str], store: Store) -> None:
    """Raises OSError."""
    content = {
        "pipeline": config.pipeline,
        "tables": [{"path": path, "route": route} for path, route in tables.items()],
        "streams": sorted(streams),
    }
    store.put_whole(config.state_root, StateFolder.clean.name, json.dumps(content).encode())


def check_not_begun(config: Pipeline, store: Store) -> None:
    """Of the whole pipeline, also for one of its streams: neither a clean-up nor a newer release has had its state.

    Raises CleanUnfinished, StateNewer, StoreUnreadable.
    """
    with reading(config.whole_state):
        begun = store.get(config.whole_state, StateFolder.clean.name) is not None
    if begun:
        raise CleanUnfinished(pipeline=config.pipeline)
    check_format(config, store)


@contextmanager
def at_work(config: Pipeline, store: Store, name: str = "run") -> Iterator[None]:
    """Hold the lock `name`, as whoever writes this pipeline's tables must: a clean-up holds it too, so none begins
    meanwhile. Raises AlreadyRunning, CleanUnfinished, TablesMoved, StateNewer, StoreDown, StoreUnfit,
    StoreUnreadable."""
    with only_run(config.state_root, config.pipeline, name):
        check_not_begun(config, store)
        with reading(config.state_root):
            check_tables_stay(config, store)
        claim_format(config, store)
        yield
