"""What the ledger keeps of a route of change events beside its counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributary.changes.model import Kind, SourceTable
from distributary.engine.outcomes import Outcome, SourceEvents
from distributary.state.ledger import Entry


@dataclass(frozen=True)
class MergeBacklog:
    """A route whose log has rows that are not in its merged table yet. `brought`: the columns that events of each
    schema key speak of, where the settings ask for it (`dropped_columns: keep`). `anew`: all of the log is to be
    merged, since the source's log has begun anew."""

    source: SourceTable
    keys: tuple[str, ...]
    brought: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anew: bool = False


def about(entry: Entry) -> MergeBacklog | None:
    """Source table and keys of a route, as its ledger entry has them."""
    if entry.about is None:
        return None
    fields = json.loads(entry.about)
    kind, database, schema, table = fields["source"]
    brought = {key: tuple(names) for key, names in fields.get("brought", {}).items()}
    return MergeBacklog(
        SourceTable(Kind(kind), database, schema, table), tuple(fields["keys"]), brought, fields.get("anew", False)
    )


def ledger_fields(outcome: Outcome) -> dict[str, Any]:
    """What the ledger keeps of a route of change events beside its counts; `about` reads it again."""
    merge, events = outcome.merge, outcome.events
    assert merge is not None
    return {
        "merged": merge.table if merge.state != "append_only" else None,
        "merge_state": merge.state,
        "about": None if events is None else _about(events, anew=merge.anew),
        "upserts": merge.upserts,
        "deletes": merge.deletes,
        "stale": merge.stale,
    }


def _about(events: SourceEvents, *, anew: bool) -> str:
    source = events.source
    fields = {"source": [source.kind, source.database, source.schema, source.table], "keys": events.keys}
    optional = ({"brought": events.brought} if events.keeps else {}) | ({"anew": True} if anew else {})
    return json.dumps(fields | optional)
