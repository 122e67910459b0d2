"""What tasks of Spark's sink have written, and no table has yet: plain values, which go to the commit through Spark."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from distributary.sink.sink_options import SinkOptions
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy, evolve


@dataclass(frozen=True)
class RouteFiles:
    """Files with rows of one route, for the table at `uri`. `schema`: their columns, as an Arrow IPC message."""

    route: str
    uri: str
    rows: int
    files: tuple[DataFile, ...]
    schema: bytes

    @classmethod
    def of(cls, route: str, uri: str, rows: pa.Table, file: DataFile) -> RouteFiles:
        return cls(route, uri, rows.num_rows, (file,), rows.schema.serialize().to_pybytes())

    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def joined(self, other: RouteFiles) -> RouteFiles | None:
        """As one; None where a column has two types, or is named in two cases: the files fit no one table."""
        mine, theirs = self.columns(), other.columns()
        if any(mine.field(f.name).type != f.type for f in theirs if f.name in mine.names):
            return None
        both = evolve(mine, [theirs], Policy()).schema
        # `note` beside `Note` is the same column: a file that has it by the other name would be read as null.
        if any(field.name not in both.names for field in theirs):
            return None
        columns = both.serialize().to_pybytes()
        return replace(self, rows=self.rows + other.rows, files=self.files + other.files, schema=columns)

    def to_json(self) -> dict[str, Any]:
        files = [file.to_json() for file in self.files]
        schema = base64.b64encode(self.schema).decode()
        return {"route": self.route, "uri": self.uri, "rows": self.rows, "files": files, "schema": schema}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RouteFiles:
        files = tuple(DataFile(**file) for file in content["files"])
        return cls(content["route"], content["uri"], content["rows"], files, base64.b64decode(content["schema"]))


@dataclass
class WrittenFiles:
    """What a task has made of its rows, or all tasks. `tombstones`, `excluded`: records that are in no file, as the
    ledger counts them."""

    parts: list[RouteFiles] = field(default_factory=list)
    quarantine: list[DataFile] = field(default_factory=list)
    tombstones: int = 0
    excluded: int = 0

    def by_route(self) -> dict[str, list[RouteFiles]]:
        """The parts of each route, joined as far as they go together."""
        files_of: dict[str, list[RouteFiles]] = defaultdict(list)
        for route_files in self.parts:
            mine = files_of[route_files.route]
            for at, other in enumerate(mine):
                if (combined := other.joined(route_files)) is not None:
                    mine[at] = combined
                    break
            else:
                mine.append(route_files)
        return dict(files_of)

    def names(self) -> set[str]:
        """The names of all files."""
        return {file.path for file in [*self.quarantine, *(f for route_files in self.parts for f in route_files.files)]}

    def without(self, names: set[str]) -> WrittenFiles:
        """All files but those of these names."""
        parts = [replace(p, files=tuple(file for file in p.files if file.path not in names)) for p in self.parts]
        return replace(self, parts=parts, quarantine=[file for file in self.quarantine if file.path not in names])

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": [route_files.to_json() for parts in self.by_route().values() for route_files in parts],
            "quarantine": [file.to_json() for file in self.quarantine],
            "tombstones": self.tombstones,
            "excluded": self.excluded,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> WrittenFiles:
        return cls(
            [RouteFiles.from_json(p) for p in content["parts"]],
            [DataFile(**file) for file in content["quarantine"]],
            content.get("tombstones", 0),  # an earlier version did not count them
            content.get("excluded", 0),
        )


def joined(tasks: Iterable[WrittenFiles]) -> WrittenFiles:
    """What all tasks have written."""
    every = list(tasks)
    return WrittenFiles(
        [route_files for task in every for route_files in task.parts],
        [file for task in every for file in task.quarantine],
        sum(task.tombstones for task in every),
        sum(task.excluded for task in every),
    )


def discard(written: WrittenFiles, options: SinkOptions) -> None:
    """Remove files that no commit will take in; what cannot be removed is an orphan, which vacuum takes."""
    places = [(route_files.uri, file) for route_files in written.parts for file in route_files.files]
    for folder, file in [*places, *((options.quarantine, file) for file in written.quarantine)]:
        try:
            options.store.delete(folder, file.path)
        except OSError:
            return


@contextmanager
def removed_on_failure(written: WrittenFiles, options: SinkOptions) -> Iterator[None]:
    """What a task has written goes again where the task fails."""
    try:
        yield
    except BaseException:
        discard(written, options)
        raise
