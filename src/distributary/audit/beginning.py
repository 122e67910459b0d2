"""A first pipeline file: what a person knows of a source, and what its newest records say of the rest.

Each set of lines that might fit is tried on the records by the code of `inspect`, and the one that reads most is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import yaml

from distributary.audit.inspection import Inspection, in_yaml, inspect, json_lines
from distributary.config import DeltaSource, Pipeline, load_document
from distributary.errors import BadInput
from distributary.names import shown
from distributary.sources.delta_batch import store_of_source
from distributary.sources.discovery import look
from distributary.sources.file_ledger import FileLedger
from distributary.tables.faults import reading
from distributary.tables.snapshot import columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table

LOOKED_AT = 20
"""Records that are tried."""
NAMED_ROUTES = 5

Lines = Mapping[str, Any]
"""Keys of the pipeline file: `envelope`, `payload`."""
WRAPPED: Lines = {
    "envelope": {"format": "protobuf", "route": "game_name", "schema_id": "schema_id", "payload": "payload"}
}
BY_TOPIC: Lines = {"envelope": "none"}


@dataclass(frozen=True)
class Beginning:
    """A pipeline file in the making. `document`: what was given. `lines`: what reads the records best; `others`: lines
    that read some too. `notes`: what was seen, a line each."""

    document: Mapping[str, Any]
    lines: Lines = field(default_factory=dict)
    others: tuple[Lines, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The file, with comments. It is valid: `load_document` has taken it."""
        return _text(self)


@dataclass(frozen=True)
class _Trial:
    """How many records `lines` read, and their routes."""

    lines: Lines
    read: int
    routes: Counter[str]
    found: Inspection


def begin(document: Mapping[str, Any]) -> Beginning:
    """What the file of `document` (pipeline, source, registry, tables) needs besides, by its newest records.

    Raises ConfigError, SecretMissing, SourceDown, SourceMissing, StoreUnreadable, RegistryDown, RegistryDenied.
    """
    if document["source"]["type"] == "datastream":
        return _change_files(document)
    first = _starters(document)
    tried: list[_Trial] = []
    waiting: list[Lines] = list(first)
    wrong: BadInput | None = None
    while waiting:
        lines = waiting.pop(0)
        try:
            trial = _try(document, lines)
        except BadInput as e:
            # These lines do not go with the rest of the file, or want a column that is not there.
            wrong = wrong or e
            continue
        tried.append(trial)
        tried_lines = [candidate.lines for candidate in tried] + waiting
        waiting += [proposal for proposal in _proposed(trial.found) if proposal not in tried_lines]
    if not tried:
        # What was given is wrong already.
        assert wrong is not None
        raise wrong
    if "registry" not in document:
        trials = []
        for lines in _as_json(tried):
            with suppress(BadInput):  # a field may have a name that no file can say
                trials.append(_try(document, lines))
        tried = trials + tried
    # Notices beside changes (begin, commit, DDL) are texts, but no rows.
    best = max(tried, key=lambda candidate: (bool(candidate.read) and _is_of_changes(candidate.lines), candidate.read))
    record_count = len(best.found.records)
    others = tuple(candidate.lines for candidate in tried if candidate is not best and candidate.read)
    return Beginning(document, best.lines, others, tuple(_said(best, record_count)))


def without_looking(document: Mapping[str, Any]) -> Beginning:
    """The file with the lines that are most likely. Raises ConfigError, SecretMissing."""
    if document["source"]["type"] == "datastream":
        load_document(document)
        return Beginning(document)
    lines = WRAPPED if "registry" in document else {**BY_TOPIC, "payload": {"format": "bytes"}}
    load_document({**document, **lines})
    return Beginning(document, lines, notes=("no record was looked at: distributary inspect FILE shows some",))


def _change_files(document: Mapping[str, Any]) -> Beginning:
    config = load_document(document)
    ledger = FileLedger(config.state_root, config.pipeline, Store.of(config.tables))
    files = look(config, ledger, full=False).files
    folders = sorted({ref.path.removeprefix(config.change_files.path).lstrip("/").split("/")[0] for ref in files})
    named = ", ".join(shown(name) for name in folders[:NAMED_ROUTES])
    hidden = f" and {len(folders) - NAMED_ROUTES} more" if len(folders) > NAMED_ROUTES else ""
    note = f"{len(files):,} files were found, below: {named}{hidden}" if files else "no file was found yet"
    return Beginning(document, notes=(note,))


# -- what might fit ----------------------------------------------------------------------------------------


def _starters(document: Mapping[str, Any]) -> list[Lines]:
    """Lines to begin with; what the records propose comes after them."""
    if document["source"]["type"] == "delta":
        columns = _columns(document)
        if columns is not None and "value" not in columns.names:
            return _by_columns(columns, "registry" in document)
    if "registry" in document:
        return [WRAPPED]
    constant = {"format": "none", "route": {"constant": document["pipeline"]}}
    alone: Any = BY_TOPIC["envelope"] if document["source"]["type"] == "kafka" else constant
    # Text is tried first: what is no text is refused by it, and read as bytes.
    return [{"envelope": alone, "payload": {"format": kind}} for kind in ("text", "bytes")]


def _columns(document: Mapping[str, Any]) -> pa.Schema | None:
    """Of a Delta source, where it can be opened; else the look at its records says why not."""
    config = load_document({**document, "envelope": "none", "payload": {"format": "bytes"}})
    assert isinstance(config.source, DeltaSource)
    with reading(config.source.path):
        return columns_of(Table(config.source.path, store_of_source(config.source, config.tables) or Store()).open())


def _by_columns(columns: pa.Schema, has_registry: bool) -> list[Lines]:
    """A table with a column each for route, schema id and payload, or with one column of payloads."""
    named = {
        "payload": [f.name for f in columns if pa.types.is_binary(f.type) or pa.types.is_large_binary(f.type)],
        "route": [f.name for f in columns if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)],
        "schema_id": [f.name for f in columns if pa.types.is_integer(f.type) and "id" in f.name.lower()],
    }
    if not named["payload"] or not named["route"]:
        needed = "a binary column of payloads and a text column that says the route"
        raise BadInput(
            detail=f"the Delta table has no column `value`, and not both {needed}: {', '.join(columns.names)}"
        )
    columns_found = {key: names[0] for key, names in named.items() if names}
    payload = {} if has_registry else {"payload": {"format": "bytes"}}
    return [
        {"envelope": {"format": "columns", **columns_found, "route": route}, **payload}
        for route in named["route"][:NAMED_ROUTES]
    ]


def _as_json(tried: Sequence[_Trial]) -> list[Lines]:
    """Lines for records that can be read as texts, and say more as JSON: all in one table first."""
    for trial in tried:
        if ways := list(_together(json_lines(trial.found.records))):
            # Of changes each source table is one; of all else each topic is a table first.
            return ways if _is_of_changes(ways[0]) else [{**ways[0], "envelope": trial.lines["envelope"]}, *ways[1:]]
    return []


def _is_of_changes(lines: Lines) -> bool:
    """Do the lines read changes of a database's rows, which are named by a word?"""
    return isinstance(lines["envelope"], str) and lines["envelope"] != "none"


def _proposed(inspection: Inspection) -> Iterator[Lines]:
    """The lines that `inspect` proposes."""
    return _together(inspection.proposal)


def _together(lines: Sequence[str]) -> Iterator[Lines]:
    """Of one key, each line is another way; of two keys, they go together."""
    parsed: list[dict[str, Any]] = [yaml.safe_load(line) for line in lines]
    envelopes = [parsed_line for parsed_line in parsed if "envelope" in parsed_line]
    rest = {key: value for parsed_line in parsed if "envelope" not in parsed_line for key, value in parsed_line.items()}
    yield from ({**rest, **parsed_line} for parsed_line in envelopes)


def _try(document: Mapping[str, Any], lines: Lines) -> _Trial:
    """Raises BadInput where the lines do not go with the rest, and as `begin`."""
    config: Pipeline = load_document({**document, **lines})
    inspection = inspect(config, LOOKED_AT)
    routes = Counter(
        record.route for record in inspection.records if record.route is not None and record.reason is None
    )
    # A route alone is not enough: its payload must be one that can be read.
    broken = sum(record.payload is not None and record.payload.problem is not None for record in inspection.records)
    return _Trial(lines, max(0, routes.total() - broken), routes, inspection)


def _said(best: _Trial, record_count: int) -> Iterator[str]:
    if not record_count:
        yield "the source holds no record yet: look again once it does (distributary inspect FILE)"
        return
    yield f"{best.read} of the {record_count} newest records are read by these lines"
    if best.routes:
        named = ", ".join(shown(route) for route, _ in best.routes.most_common(NAMED_ROUTES))
        hidden = f" and {len(best.routes) - NAMED_ROUTES} more" if len(best.routes) > NAMED_ROUTES else ""
        yield f"their routes: {named}{hidden}"
    if best.read < record_count:
        yield "why the others are not: distributary inspect FILE"


# -- the file ----------------------------------------------------------------------------------------------


def _text(beginning: Beginning) -> str:
    document = beginning.document
    blocks = [
        "# Made by `distributary init`. Every key, with what is allowed: docs/configuration.md",
        f"pipeline: {_flow(document['pipeline'])}",
        _block("source", document["source"], _SOURCE_NOTES[document["source"]["type"]]),
    ]
    if "registry" in document:
        blocks.append(_block("registry", document["registry"], ()))
    blocks += ["", *(f"# {note}" for note in beginning.notes)]
    blocks += [f"{key}: {_flow(value)}" for key, value in beginning.lines.items()]
    blocks += [_instead(beginning.lines, other) for other in beginning.others]
    blocks += ["", _block("tables", document["tables"], _TABLE_NOTES[document["source"]["type"] == "datastream"])]
    other_keys = {key: value for key, value in document.items() if key not in _OWN}
    other_keys.setdefault("trigger", {"every": "10 seconds"})
    blocks += [f"{key}: {_flow(value)}" for key, value in other_keys.items()]
    if "metrics" not in other_keys:
        blocks.append("# metrics: {port: 9464}   # /metrics, /healthz, /readyz: docs/monitoring.md")
    return "\n".join(blocks) + "\n"


_OWN = ("pipeline", "source", "registry", "tables", "envelope", "payload")
_SOURCE_NOTES: Mapping[str, Sequence[str]] = {
    "kafka": ("# starting_offsets: latest   # the first run begins at the earliest record",),
    "delta": (),
    "datastream": (),
}
_TABLE_NOTES: Mapping[bool, Sequence[str]] = {
    False: (
        '# name: "silver_{route|snake}"   # what tables are called: docs/routes.md',
        "# evolution: {new_column: add, type_change: widen}   # what a new schema version may change",
    ),
    True: (
        '# log: "{database}_{table}_log"   # all events; merged: the newest row of each key',
        '# merged: "{database}_{table}"',
    ),
}


def _instead(lines: Lines, other: Lines) -> str:
    """What of `other` is not in `lines` already: comments, each of them a line that replaces the one of its key."""
    other_lines = [f"{key}: {_flow(value)}" for key, value in other.items() if lines.get(key) != value]
    other_lines += [f"# without {key}" for key in lines if key not in other]
    return "# or: " + "\n#     ".join(other_lines)


def _block(key: str, values: Mapping[str, Any], notes: Sequence[str]) -> str:
    return "\n".join([f"{key}:", *(f"  {name}: {_flow(value)}" for name, value in values.items()), *_indented(notes)])


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _flow(value: Any) -> str:
    """A value on one line, as YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    return in_yaml(value)
