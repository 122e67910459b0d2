"""Files of a task to events by route. One file's fault is that file's own: the others go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.any_files import read_file
from distributary.changes.model import BadEvent, Events, FileEvents, Reading, known_one
from distributary.changes.truncates import truncates_apart
from distributary.engine.apart import detail_of, limited
from distributary.engine.changes.fitting import FilePart, RouteEvents, select
from distributary.engine.changes.log_rows import files_of
from distributary.engine.changes.rejected_events import rejected_bad, rejected_file
from distributary.engine.changes.task_spec import ORIGIN, ChangeSpec, FileReport, WorkFile
from distributary.errors import FileBroken, Outage, Reason
from distributary.errors.border import contained
from distributary.sources.bodies import Options, open_body, schema_text
from distributary.tables.files import TableFiles
from distributary.tables.outage import own_fault
from distributary.tables.quarantine import count_reasons
from distributary.tables.table import Table

JSON_NAMES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


@dataclass
class ReadFiles:
    """What a task's files hold. `again`: file -> events of it that are in the quarantine already."""

    routes: dict[str, RouteEvents] = field(default_factory=dict)
    rejected: list[pa.Table] = field(default_factory=list)
    seen: list[FileReport] = field(default_factory=list)
    again: dict[str, frozenset[int]] = field(default_factory=dict)


def read_files(files: Iterable[WorkFile], owned: frozenset[str] | None, spec: ChangeSpec) -> ReadFiles:
    """Read files; keep the events of the routes `owned` (None: of all). Raises SourceDown."""
    result = ReadFiles()
    for file in files:
        _read(file, owned, spec, result)
    return result


def _read(file: WorkFile, owned: frozenset[str] | None, spec: ChangeSpec, result: ReadFiles) -> None:
    started = time.monotonic()
    if file.path in spec.killed:
        detail = detail_of(spec.killed[file.path])
        result.rejected += _whole(file, Reason.KILLED_READER, detail, result)
        return
    try:
        with limited(spec.read_sec):
            events, changed = load(file, spec)
    except FileNotFoundError as e:
        result.rejected += _whole(file, Reason.FILE_GONE, str(e), result)
        return
    except FileBroken as e:
        result.rejected += _whole(file, Reason.FILE_BROKEN, str(e.parameters["detail"]), result)
        return
    if file.only is not None:
        result.again[file.path] = frozenset(file.only)
    of_file = _take(events, file, owned, spec, result, changed=changed)
    rejected = [rejected_bad(file.path, of_file.bad)] if of_file.bad else []
    result.rejected += rejected
    result.seen.append(
        FileReport(
            file.path,
            file.attempt,
            foreign=dict(of_file.foreign),
            routes=tuple(dict.fromkeys(of_file.routes)),
            unknown_fields=tuple(events.unknown_fields),
            beyond=events.beyond,
            nameless=count_reasons(rejected),
            still=tuple(e.row for e in events.bad if e.row in file.aside),
            seconds=time.monotonic() - started,
        )
    )


@dataclass
class _TakenEvents:
    """What became of one file's events beside those that the task holds now. `routes`: of all that are wanted;
    `foreign`: how many of these belong to other tasks; `bad`: those for the quarantine."""

    bad: list[BadEvent]
    routes: list[str] = field(default_factory=list)
    foreign: Counter[str] = field(default_factory=Counter)


def _take(
    events: FileEvents,
    file: WorkFile,
    owned: frozenset[str] | None,
    spec: ChangeSpec,
    result: ReadFiles,
    *,
    changed: bool,
) -> _TakenEvents:
    """Put the wanted events of one file beside those of the files before it."""
    again = file.only is not None
    of_file = _TakenEvents(
        [] if again or file.routes is not None else [e for e in events.bad if e.row not in file.aside]
    )
    for table_events in (some for item in events.events for some in truncates_apart(item)):
        route = table_events.table.route
        if file.routes is not None and route not in file.routes:
            continue
        try:
            chosen = _wanted(table_events, file, spec)
        except BaseException as e:
            of_file.bad += _undecided(table_events, own_fault(e, file.path))
            continue
        if chosen is None:
            continue
        of_file.routes.append(route)
        if owned is not None and route not in owned:
            of_file.foreign[route] += chosen.rows.num_rows
            continue
        route_events = result.routes.setdefault(route, RouteEvents(table_events.table))
        route_events.source = known_one(route_events.source, table_events.table)
        route_events.parts.append(FilePart(chosen, file.path, again, changed))
    return of_file


def _undecided(events: Events, why: str) -> list[BadEvent]:
    """Events of which nobody can say whether the log has them. The file comes again whole for them (`narrowed`)."""
    detail = f"the log of {events.table.route}, which may hold this event, cannot be read: {why}"
    return [BadEvent(row, Reason.FILE_BROKEN, detail, b"") for row in events.numbers.to_pylist()]


def _wanted(events: Events, file: WorkFile, spec: ChangeSpec) -> Events | None:
    """What is to be delivered of a file's events: all, those asked for, or those that are not in the log yet."""
    if file.only is not None:
        return select(events, file.only)
    uri = spec.named.log(events.table)
    if not file.before or uri is None:
        return events
    in_log = logged(uri, file, spec)
    return select(events, [n for n in events.numbers.to_pylist() if n not in in_log]) if in_log else events


def logged(uri: str, file: WorkFile, spec: ChangeSpec) -> set[int]:
    """Numbers of a file's events that are in a log table, by batches that have taken it before."""
    table = Table(uri, spec.store).open()
    if table is None:
        return set()
    files = TableFiles(table)
    paths = [f"{ORIGIN}.file", f"{ORIGIN}.row"]
    numbers: set[int] = set()
    for name in files_of(table, min(file.before)):
        for piece in files.read(name, paths):
            mine = piece.filter(pc.fill_null(pc.equal(piece.column(paths[0]), file.path), False))
            numbers.update(mine.column(paths[1]).to_pylist())
    return numbers


def load(file: WorkFile, spec: ChangeSpec) -> tuple[FileEvents, bool]:
    """All events of one file, and whether it has changed since it was found.

    Raises FileNotFoundError, FileBroken, SourceDown.
    """
    path = file.path
    try:
        body = open_body(path, spec.source_options)
    except (FileNotFoundError, Outage):
        raise
    except BaseException as e:
        raise FileBroken(path=path, detail=contained(e)) from e
    changed = body.size != file.size
    if file.only is not None and changed:
        # It is another file by now, and comes as such: the numbers of its events mean nothing any more.
        return FileEvents([], []), changed
    try:
        return events_of(body, path, spec.source_options, spec.reading), changed
    except (FileBroken, Outage):
        raise
    except BaseException as e:
        # Whatever a file does to its reader, the batch must not fail for it again and again.
        raise FileBroken(path=path, detail=contained(e)) from e


def events_of(body: pa.Buffer, path: str, options: Options, reading: Reading) -> FileEvents:
    """All events of a file's `body`, with the schema that lies beside it. Raises FileBroken, SourceDown, OSError."""
    has_schema = reading.written_by == "datastream" and path.endswith(JSON_NAMES)
    return read_file(body, path, reading, schema_text(path, options) if has_schema else None)


def _whole(file: WorkFile, reason: Reason, detail: str, result: ReadFiles) -> list[pa.Table]:
    # Its row stays in the quarantine from one attempt to the next.
    nameless = {} if file.kept else {reason.value: 1}
    is_gone = reason == Reason.FILE_GONE
    result.seen.append(FileReport(file.path, file.attempt, broken=detail, gone=is_gone, nameless=nameless))
    return [] if file.kept else [rejected_file(file.path, reason, detail)]
