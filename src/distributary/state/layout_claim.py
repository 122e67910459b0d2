"""Which layout a pipeline's streams follow. Another one would have streams of its own, which begin at the beginning:
every row would be written twice. So a change is refused."""

from __future__ import annotations

import json

from distributary.config import Pipeline, StateFolder
from distributary.errors import LayoutChanged
from distributary.state.divisions import has_run
from distributary.tables.store import Store


def kept_layout(config: Pipeline, store: Store) -> str | None:
    """The layout that these streams follow; None where it was never written down. Raises OSError."""
    body = store.get(config.state_root, StateFolder.layout.name)
    return None if body is None else str(json.loads(body)["layout"])


def check_layout(config: Pipeline, store: Store) -> str | None:
    """The layout that these streams follow, by what is written down or by their runs. Raises LayoutChanged, OSError."""
    wanted_layout = _streams_of(config)
    claimed = kept_layout(config, store)
    if claimed is None and wanted_layout != "fanout":
        claimed = "fanout" if has_run(config, store) else None
    if claimed not in (None, wanted_layout):
        raise LayoutChanged(pipeline=config.pipeline, found=claimed, wanted=wanted_layout)
    return claimed


def claim_layout(config: Pipeline, store: Store) -> None:
    """Before a run. Raises LayoutChanged, OSError."""
    wanted_layout = _streams_of(config)
    if check_layout(config, store) is None and wanted_layout != "fanout":
        store.put_whole(config.state_root, StateFolder.layout.name, json.dumps({"layout": wanted_layout}).encode())


def _streams_of(config: Pipeline) -> str:
    """The layout, as far as it says which streams there are."""
    one_flow = config.is_declarative and config.declarative.silver_as == "sink"
    return f"{config.layout} silver_as:sink" if one_flow else config.layout
