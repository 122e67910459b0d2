"""Records that end the process which reads them, in a layout whose batches are Spark's own.

A worker that dies fails its flow. In the next update the tasks are careful: they try their records in a process apart
first, and bronze sets those aside that end it, by its verdict like any other. No journal is needed: the verdict is
committed with the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from distributary.declarative.judge import Verdicts, decode_rows, judge_columns, judge_values, try_records
from distributary.declarative.known_routes import KnownRoutes, Route
from distributary.engine.apart import Apart, killers, limited
from distributary.engine.messages.chunks import WriterSchema, one_array
from distributary.engine.messages.killers import find_envelope_killers
from distributary.engine.messages.task_spec import fingerprint


def judge_in_task(*columns: pa.Array, known_routes: KnownRoutes, careful: bool) -> pa.StructArray:
    """Envelopes, or the three columns of one -> a verdict each (`judge`). What never ends dies. Raises OSError.

    The last column is the records' keys, where these are columns."""
    keys = None
    if known_routes.reader.record_key is not None:
        *columns, keys = columns  # type: ignore[assignment]
    if careful:
        known_routes = without_killers(*columns, known_routes=known_routes, apart=_apart(known_routes.reader.read_sec))
    judge: Callable[..., pa.StructArray] = judge_values if len(columns) == 1 else judge_columns
    with limited(known_routes.reader.read_sec):
        return judge(*columns, known_routes, keys)


def decode_in_task(
    schema_id: pa.Array,
    message: pa.Array,
    payload: pa.Array,
    keys: pa.Array | None = None,
    *,
    route: Route,
    read_sec: float,
    careful: bool,
) -> pa.StructArray:
    """`decode_rows`, in a task. `careful`: raises ValueError too where a record ends its reader that bronze, by another
    version of the software, has called good."""
    if careful:
        _refuse_killers(schema_id, message, payload, route, _apart(read_sec))
    with limited(read_sec):
        return decode_rows(schema_id, message, payload, route, keys)


def without_killers(*columns: pa.Array, known_routes: KnownRoutes, apart: Apart) -> KnownRoutes:
    """`known_routes`, by which those of these records are set aside that end the process which judges them. Raises
    OSError."""
    if len(columns) == 1:
        values = columns[0].cast(pa.binary()).drop_null()
        killed = {**known_routes.reader.killed, **find_envelope_killers(values, known_routes.reader, apart)}
        known_routes = replace(known_routes, reader=replace(known_routes.reader, killed=killed))
    trials = _Trials(known_routes, apart)
    trials.take_values(*columns) if len(columns) == 1 else trials.take_columns(*columns)
    return replace(known_routes, killed={**known_routes.killed, **trials.killed})


class _Trials(Verdicts):
    """Tries payloads apart in place of judging them. `killed`: fingerprint -> how."""

    def __init__(self, known_routes: KnownRoutes, apart: Apart) -> None:
        super().__init__(known_routes)
        self.apart = apart
        self.killed: dict[str, str] = {}

    def judge(self, name: str, writer: WriterSchema, records: pa.Table) -> None:
        route = self.known_routes.routes.get(name)
        known_writer = None if route is None else route.reader_of(writer)
        if route is not None and known_writer is not None:
            payloads = one_array(records.column("payload"))
            for position, how in _killers(route, known_writer, payloads, self.apart).items():
                self.killed[fingerprint(payloads[position].as_py())] = how


def _refuse_killers(schema_id: pa.Array, message: pa.Array, payload: pa.Array, route: Route, apart: Apart) -> None:
    rows = pa.table({"id": schema_id, "message": message, "payload": payload.cast(pa.binary())})
    for pair in rows.select(["id", "message"]).group_by(["id", "message"]).aggregate([]).to_pylist():
        writer = (pair["id"], pair["message"])
        mine = rows.filter((pc.field("id") == writer[0]) & (pc.field("message") == writer[1]))
        known_writer = route.reader_of(writer)
        if known_writer and (dead := _killers(route, known_writer, one_array(mine.column("payload")), apart)):
            ways = ", ".join(sorted(Counter(dead.values())))
            raise ValueError(
                f"{route.route}: {len(dead)} records of schema id {writer[0]} that bronze has called good end the "
                f"process that reads them ({ways}). Go back to the version before this one, or refresh bronze in full"
            )


def _killers(route: Route, writer: WriterSchema, payloads: pa.Array, apart: Apart) -> dict[int, str]:
    work = partial(_try, route=route, writer=writer)
    return killers(work, lambda begin, end: payloads.slice(begin, end - begin).to_pylist(), len(payloads), apart)


def _try(payloads: list[bytes], route: Route, writer: WriterSchema) -> None:
    """All that judging does to payloads by code that is not ours; silver does the same to those that are good."""
    try_records(route, writer, pa.array(payloads, pa.binary()))


@lru_cache(maxsize=1)
def _apart(read_sec: float) -> Apart:
    """One process for all tasks of a worker; it ends with it."""
    return Apart(read_sec)
