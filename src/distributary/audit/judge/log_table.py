"""Is a log table what its files say: every event once, as it came? Read once, and what its merged table is to be judged
by is handed on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.audit.judge.change_events import Meta, of_row
from distributary.audit.judge.likeness import Names, same, unlike
from distributary.audit.judge.merged import RECONCILED
from distributary.audit.judge.plain_values import plain, spelled
from distributary.audit.judge.source_files import SourceFiles
from distributary.engine.changes.seen_events import SeenEvents
from distributary.tables.files import TableFiles

METADATA, ORIGIN = "datastream_metadata", "_origin"
OURS = (METADATA, ORIGIN, "_deleted", "_deleted_at")
AT_ONCE = 4_096
_ORIGIN = ("file", "row", "batch", "key", "key_columns")


@dataclass(frozen=True)
class LogRow:
    """`batch` None: of no batch of ours. `key`: as the log spells it, of the columns `key_columns`."""

    file: str | None
    row: int | None
    batch: int | None
    meta: Meta
    values: Mapping[str, Any]
    key: Sequence[str | None] | None = None
    key_columns: Sequence[str] = ()


@dataclass
class LogCount:
    """A log table as counted. `seen_events`: which events of which files are there."""

    rows: int = 0
    pending: int = 0
    foreign: int = 0
    seen_events: SeenEvents = field(default_factory=SeenEvents)
    wrong: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def payload_names(files: TableFiles, *, flat: bool) -> Names:
    """The payload's columns of a table. `flat`: some metadata has columns of its own."""
    schema = {name: kind for name, kind in files.columns.items() if name not in OURS}
    names = [n for n in schema if not (flat and n.startswith(f"{METADATA}_") and not n.endswith("__field"))]
    return Names(names, [n for n in names if schema[n] in ("timestamp", "timestamp_ntz", "date")])


def pieces(files: TableFiles, problems: list[str]) -> Iterator[pa.Table]:
    """All rows of a table; a data file that cannot be read is a problem, and the others go on."""
    for name in files.names:
        try:
            yield from files.read_whole(name)
        except FileNotFoundError:
            problems.append(f"data file {name} is not there")
        except (OSError, pa.ArrowException) as e:
            problems.append(f"data file {name} cannot be read: {e}")


def log_rows(piece: pa.Table, names: Names) -> Iterator[LogRow]:
    """The rows of a log table as plain values, those of one file one behind the other."""
    origin = piece.column(ORIGIN).combine_chunks()
    if pa.types.is_null(origin.type):
        return
    places = pa.table({n: _field(origin, n) for n in _ORIGIN})
    order = pc.sort_indices(places, [("file", "ascending"), ("row", "ascending")])
    for begin in range(0, len(order), AT_ONCE):
        some = order.slice(begin, AT_ONCE)
        rows, place = piece.take(some), places.take(some)
        columns = [plain(rows.column(name)) for name in names.columns]
        metas = plain(rows.column(METADATA))
        origins = zip(*(plain(place.column(n)) for n in _ORIGIN), strict=True)
        values = zip(*columns, strict=True) if columns else iter(() for _ in metas)
        for (file, row, batch, key, key_columns), meta, of_payload in zip(origins, metas, values, strict=True):
            row_values = dict(zip(names.columns, of_payload, strict=True))
            yield LogRow(file, row, batch, of_row(meta or {}), row_values, _list(key), _list(key_columns) or ())


def _field(origin: pa.Array, name: str) -> pa.Array:
    """A log that was begun before it had keys lacks them."""
    if origin.type.get_field_index(name) < 0:
        return pa.nulls(len(origin), pa.string())
    return pc.struct_field(origin, name)


def _list(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def counted(piece: pa.Table, newest: int, log: LogCount) -> pa.Table:
    """Count a piece's rows; those of finished batches and of `reconcile`, and those of batches behind `newest`, which
    are pending."""
    origin = piece.column(ORIGIN).combine_chunks()
    batch = pa.nulls(piece.num_rows, pa.int64()) if pa.types.is_null(origin.type) else pc.struct_field(origin, "batch")
    if pa.types.is_null(batch.type):
        log.foreign += piece.num_rows
        return piece.slice(0, 0)
    file, row = (pc.struct_field(origin, name) for name in ("file", "row"))
    log.foreign += batch.null_count
    log.pending += pc.sum(pc.greater(batch, newest)).as_py() or 0
    ours = pc.fill_null(pc.less_equal(batch, newest), False)
    log.rows += pc.sum(ours).as_py() or 0
    log.seen_events.add(pa.chunked_array([file.filter(ours)]), pa.chunked_array([row.filter(ours)]))
    by_reconcile = pc.and_(pc.is_null(batch), pc.fill_null(pc.starts_with(file.cast(pa.string()), RECONCILED), False))
    return piece.filter(pc.or_(pc.is_valid(batch), by_reconcile))


def hold_against_files(
    rows: Iterator[LogRow], route: str, sources: SourceFiles, names: Names, log: LogCount
) -> Iterator[LogRow]:
    """The rows as they are; what their files say otherwise is entered into `log.wrong`."""
    path, source = None, None
    for log_row in rows:
        if log_row.file != path:
            path = log_row.file
            source = None if path is None else sources.open(path)
        if source is not None:
            event = source.events.get(log_row.row if log_row.row is not None else -1)
            if source.again and (event is None or event[0].identity != log_row.meta.identity):
                pass
            elif event is None:
                log.wrong["events are in the log that are not in their file"] += source.whole
            elif event[0].route != route:
                log.wrong[f"events of {event[0].route} are in this log"] += 1
            elif event[0].identity != log_row.meta.identity:
                log.wrong["events in the log have other metadata than in their file"] += 1
            elif not _same_key(event[1].payload, log_row):
                log.wrong["events in the log have another key than in their file"] += 1
            elif (name := unlike(event[1].payload, log_row.values, names)) is not None:
                log.wrong[f"events in the log have another {name} than in their file"] += 1
        yield log_row


def _same_key(event_values: Mapping[str, Any], row: LogRow) -> bool:
    """Is the key that the log spells the one that the event names?"""
    if row.key is None:
        return True
    values = [_named(event_values, column) for column in row.key_columns]
    return len(values) == len(row.key) and all(map(_means, values, row.key))


def _named(values: Mapping[str, Any], name: str) -> Any:
    """The value of a field: of this very name, else of one that differs in case only."""
    if name in values:
        return values[name]
    return next((value for other, value in values.items() if other.lower() == name.lower()), None)


def _means(value: Any, text: str | None) -> bool:
    if value is None or text is None:
        return value is text
    return spelled(value) == text or same(value, text)


def missing_events(
    route: str, sources: SourceFiles, log: LogCount, aside: Mapping[str, set[int]], skip: Callable[[str], bool]
) -> list[str]:
    """Events of files that are neither in the log nor kept aside, and those that are in both."""
    wrong = []
    for path in sorted(sources.rows):
        numbers = sources.rows[path].get(route)
        if numbers is None or skip(path):
            continue
        absent = set(log.seen_events.missing(path, numbers).tolist())
        quarantined = aside.get(path, set())
        lost, both = len(absent - quarantined), len(set(numbers.tolist()) & quarantined - absent)
        if lost:
            wrong.append(f"{path} has {len(numbers)} events, {lost} are neither in the log nor quarantined")
        if both:
            wrong.append(f"{path}: {both} events are in the log and quarantined too")
    return first_of(wrong)


def first_of(texts: Sequence[str], most: int = 5) -> list[str]:
    return [*texts[:most], *([f"and {len(texts) - most} files more"] if len(texts) > most else [])]
