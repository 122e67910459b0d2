"""How many records of a route would be written now. Tried apart: each may end the process that does it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from distributary.engine.messages.decode import Decoded, decode, fit
from distributary.engine.messages.deliver_events import fit_events, maker_of
from distributary.engine.messages.events import route_events
from distributary.engine.messages.killers import Packed, unpacked
from distributary.engine.messages.task_spec import MessageSpec
from distributary.schemas.registry.compile import CompiledSchema


def count_good(
    chunks: Packed, route: str, spec: MessageSpec, schemas: Mapping[int, CompiledSchema], columns: pa.Schema | None
) -> int:
    """How many would enter a table of these columns (None: there is none yet)."""
    decoded = decode(route, unpacked(chunks), spec, schemas)
    if decoded.broken is not None:
        return 0
    if spec.has_events(route):
        return _count_events(route, decoded, columns, spec)
    return fit(route, decoded, columns, spec).rows


def _count_events(route: str, decoded: Decoded, columns: pa.Schema | None, spec: MessageSpec) -> int:
    events, _ = route_events(route, decoded, spec, maker_of(spec))
    if not events.rows:
        return 0
    return int(fit_events(events, columns, spec).table.num_rows)
