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
class Part:
    """Files with rows of one route, for the table at `uri`. `schema`: their columns, as an Arrow IPC message."""

    route: str
    uri: str
    rows: int
    files: tuple[DataFile, ...]
    schema: bytes

    @classmethod
    def of(cls, route: str, uri: str, rows: pa.Table, file: DataFile) -> Part:
        return cls(route, uri, rows.num_rows, (file,), rows.schema.serialize().to_pybytes())

    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def joined(self, other: Part) -> Part | None:
        """As one; None where a column of one name has two types, by which the files fit no one table."""
        mine, theirs = self.columns(), other.columns()
        if any(mine.field(f.name).type != f.type for f in theirs if f.name in mine.names):
            return None
        columns = evolve(mine, [theirs], Policy()).schema.serialize().to_pybytes()
        return replace(self, rows=self.rows + other.rows, files=self.files + other.files, schema=columns)

    def to_json(self) -> dict[str, Any]:
        files = [file.to_json() for file in self.files]
        schema = base64.b64encode(self.schema).decode()
        return {"route": self.route, "uri": self.uri, "rows": self.rows, "files": files, "schema": schema}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Part:
        files = tuple(DataFile(**file) for file in said["files"])
        return cls(said["route"], said["uri"], said["rows"], files, base64.b64decode(said["schema"]))


@dataclass
class Taken:
    """What a task has made of its rows, or all tasks."""

    parts: list[Part] = field(default_factory=list)
    quarantine: list[DataFile] = field(default_factory=list)

    def by_route(self) -> dict[str, list[Part]]:
        """The parts of each route, joined as far as they go together."""
        found: dict[str, list[Part]] = defaultdict(list)
        for part in self.parts:
            mine = found[part.route]
            for at, other in enumerate(mine):
                if (whole := other.joined(part)) is not None:
                    mine[at] = whole
                    break
            else:
                mine.append(part)
        return dict(found)

    def names(self) -> set[str]:
        """The names of all files."""
        return {file.path for file in [*self.quarantine, *(f for part in self.parts for f in part.files)]}

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": [part.to_json() for parts in self.by_route().values() for part in parts],
            "quarantine": [file.to_json() for file in self.quarantine],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Taken:
        return cls([Part.from_json(p) for p in said["parts"]], [DataFile(**file) for file in said["quarantine"]])


def joined(tasks: Iterable[Taken]) -> Taken:
    """What all tasks have written."""
    every = list(tasks)
    return Taken([part for task in every for part in task.parts], [file for task in every for file in task.quarantine])


def discard(taken: Taken, options: SinkOptions) -> None:
    """Remove files that no commit will take in; what cannot be removed is an orphan, which vacuum takes."""
    places = [(part.uri, file) for part in taken.parts for file in part.files]
    for folder, file in [*places, *((options.quarantine, file) for file in taken.quarantine)]:
        try:
            options.store.delete(folder, file.path)
        except OSError:
            return


@contextmanager
def removed_on_failure(taken: Taken, options: SinkOptions) -> Iterator[None]:
    """What a task has written goes again where the task fails."""
    try:
        yield
    except BaseException:
        discard(taken, options)
        raise
