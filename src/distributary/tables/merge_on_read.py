"""Merge on read: rows that a merge replaces are marked as deleted, in deletion vectors, and their files stay.

Per file, by what costs less to write in the long run: a file of which few rows go gets a vector, a tiny one or one
with many deleted rows is written anew without them. New versions and new rows go to small files; where four of about
one size have come together they become one, so that their number grows with the logarithm of what was written.

Whoever reads the table needs Delta's feature `deletionVectors` (docs/merge-on-read.md): the table gets it with its
first vector, in the same commit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.changes.sequence import Bools
from distributary.tables.commits import RemovedFile
from distributary.tables.log_adds import Add, logged_adds
from distributary.tables.merge_files import LiveFile, Needs, Reader, Unit
from distributary.tables.rewrite import SMALL_BYTES
from distributary.tables.roaring import Rows
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.vectors import FEATURE, PROPERTY, Vector, read_vector, write_vectors

TINY_BYTES = 64 << 10
"""Files up to that are written anew: a vector and two lines of the log are hardly less."""
ALIKE = 4
"""So many files of about one size become one; sizes are alike within this factor."""
LEAST_SHARE, MORE_SHARE = 0.2, 0.1
"""A file is written anew once 20 to 30 % of its rows are deleted: each at another share, so that they take turns."""

_TIGHT, _WIDE = '"tightBounds":true}', '"tightBounds":false}'
"""As Spark ends its statistics."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A file that stays, with the vector of its deleted rows, as the commit adds it again."""

    add: Add
    vector: Vector
    rows: int
    """Of the file itself, deleted ones too."""

    def as_log(self) -> dict[str, Any]:
        stats = wide_stats(self.add.get("stats"), self.rows)
        return {**self.add, "dataChange": True, "stats": stats, "deletionVector": self.vector.as_log()}


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What a merge does to the files that it touches. `txns`: each of one file, which stays; `units`: written anew."""

    txns: list[Unit]
    units: list[Unit]


class OnRead:
    """A table as a merge on read found it."""

    def __init__(self, table: Snapshot) -> None:
        self._table = table
        self.has_feature = FEATURE in table.reader_features

    @cached_property
    def adds(self) -> Mapping[str, Add] | None:
        """None: the log is of a form that only Spark reads. Raises TableFault, OSError."""
        return logged_adds(self._table.uri, self._table.store, self._table.version)

    @cached_property
    def vectors(self) -> Mapping[str, Vector]:
        """The vectors that the table's files have, by path. Raises TableFault, OSError."""
        adds = (self.adds or {}) if self.has_feature else {}
        logged_vectors = ((path, add.get("deletionVector")) for path, add in adds.items())
        return {path: Vector.of(logged) for path, logged in logged_vectors if logged is not None}

    def why_spark(self) -> str | None:
        """Why the vectors that are there can't be read here, in words. Raises TableFault, OSError."""
        if not self.has_feature:
            return None
        if self.adds is None:
            return "deletion vectors, and a checkpoint of the form V2"
        if any(vector.is_elsewhere for vector in self.vectors.values()):
            return "deletion vectors outside its folder, as in a clone"
        return None

    @cached_property
    def can_mark(self) -> bool:
        """May the table get (more) vectors? Not where its own property says no. Raises TableFault, OSError."""
        if self._table.properties.get(PROPERTY, "true").lower() != "true":
            return False
        return self.adds is not None and (self.has_feature or self._protocol() is not None)

    def reader(self, schema: pa.Schema) -> VectorReader:
        return VectorReader(self._table.uri, self._table.store, schema, self.vectors)

    def plan(self, units: Sequence[Unit], files: Sequence[LiveFile], *, grows: bool) -> MergePlan:
        """`units`: of one file each; `files`: all live ones; `grows`: does the table get rows? Raises as `adds`."""
        marked = {unit.files[0].path: unit for unit in units if is_for_marks(unit, self.vectors) and self.can_mark}
        anew = {unit.files[0].path: unit for unit in units if unit.files[0].path not in marked}
        if grows or marked:
            for file in _alike(files):
                unit = marked.pop(file.path, None) or Unit((file,), (None,), (None,))
                anew.setdefault(file.path, unit)
        small = [unit for unit in anew.values() if unit.files[0].size < SMALL_BYTES]
        large = [unit for unit in anew.values() if unit.files[0].size >= SMALL_BYTES]
        return MergePlan(list(marked.values()), [Unit.joined(small), *large] if small else large)

    def marked(self, txns: Sequence[Unit], reader: VectorReader) -> list[Marked]:
        """Write the vectors. Raises TableFault, OSError."""
        adds = self.adds
        assert adds is not None
        vectors = write_vectors(self._table.uri, self._table.store, [reader.deleted(unit) for unit in txns])
        files = [unit.files[0] for unit in txns]
        rows = [reader.rows(unit) for unit in txns]
        new_vectors = zip(files, vectors, rows, strict=True)
        return [Marked(adds[file.path], vector, count) for file, vector, count in new_vectors]

    def places(self, files: Sequence[LiveFile]) -> list[RemovedFile]:
        """The files as a commit removes them."""
        return [place_of(file.path, file.size, self.vectors.get(file.path)) for file in files]

    def upgrade(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The metadata and the protocol that the table gets with its first vector; None for what stays."""
        if self.has_feature and self._table.properties.get(PROPERTY) is not None:
            return None, None
        metadata = self._table.metadata_action(self._table.schema)
        metadata["schemaString"] = self._table.schema_json
        metadata["configuration"] |= {PROPERTY: "true"}
        return metadata, None if self.has_feature else self._protocol()

    def _protocol(self) -> dict[str, Any] | None:
        """The table's protocol with the feature; None where its versions stand for features unsaid that it may not
        need. Delta protocol, "Valid Feature Names in Table Features"."""
        reader, writer = self._table.protocol_versions
        if writer not in (1, 2, 7) or reader not in (1, 3):
            return None
        features = {7: self._table.writer_features, 2: {"appendOnly", "invariants"}}.get(writer, set())
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": sorted(self._table.reader_features | {FEATURE}),
            "writerFeatures": sorted(features | {FEATURE}),
        }


def place_of(path: str, size: int, vector: Vector | None) -> RemovedFile:
    return (path, size) if vector is None else (path, size, {}, vector.as_log())


def is_for_marks(unit: Unit, vectors: Mapping[str, Vector]) -> bool:
    """Is a vector cheaper in the long run than to write the unit's one file anew?"""
    file, drop = unit.files[0], unit.drop[0]
    assert drop is not None
    dead = vectors[file.path].rows if file.path in vectors else 0
    share = LEAST_SHARE + MORE_SHARE * (zlib.crc32(file.path.encode()) % 100) / 100
    return file.size > TINY_BYTES and (int(drop.sum()) + dead) < share * (len(drop) + dead)


def _alike(files: Sequence[LiveFile]) -> Iterator[LiveFile]:
    """Small files of which there are many of one size."""
    sizes: dict[int, list[LiveFile]] = {}
    for file in files:
        if file.size < SMALL_BYTES:
            sizes.setdefault(_magnitude(file.size), []).append(file)
    return (file for alike in sizes.values() if len(alike) >= ALIKE for file in alike)


def _magnitude(size: int) -> int:
    magnitude = 0
    while size > TINY_BYTES:
        size, magnitude = size // ALIKE, magnitude + 1
    return magnitude


def wide_stats(text: str | None, rows: int) -> str:
    """Statistics of a file of `rows` rows of which some are deleted: bounds may be wider than what is left (Delta
    protocol, "Per-file Statistics": tightBounds). As text, for its numbers must stay as they are."""
    stats = json.loads(text or "{}")
    if text is not None and "numRecords" in stats:
        if stats.get("tightBounds") is False:
            return text
        if "tightBounds" not in stats:
            return '{"tightBounds": false, ' + text.strip()[1:]
        if text.endswith(_TIGHT):
            return text.removesuffix(_TIGHT) + _WIDE
    return json.dumps({"numRecords": rows, "tightBounds": False})


class VectorReader(Reader):
    """As `Reader`, without the rows that are deleted: numbers of rows count those that are left."""

    def __init__(self, uri: str, store: Store, schema: pa.Schema, vectors: Mapping[str, Vector]) -> None:
        super().__init__(uri, store, schema)
        self._place = uri, store
        self._vectors = vectors
        self._dead: dict[str, Rows] = {}

    def part(self, file: LiveFile, needs: Needs) -> pa.Table:
        if file.path not in self._vectors:
            return super().part(file, needs)
        # Without its number of rows it is not kept as a whole, with the deleted ones.
        all_rows = super().part(replace(file, rows=-1), needs)
        return all_rows.filter(pa.array(self._kept(file, 0, all_rows.num_rows)))

    def pieces(self, file: LiveFile) -> Iterator[pa.Table]:
        begin = 0
        for piece in super().pieces(file):
            if file.path not in self._vectors:
                yield piece
                continue
            yield piece.filter(pa.array(self._kept(file, begin, piece.num_rows)))
            begin += piece.num_rows

    def deleted(self, unit: Unit) -> Rows:
        """All deleted rows of the unit's file, by their places in it, once those that it drops are deleted too."""
        file, drop = unit.files[0], unit.drop[0]
        assert drop is not None
        is_live = self._kept(file, 0, self.rows(unit))
        is_live[np.flatnonzero(is_live)[drop]] = False
        return np.flatnonzero(~is_live).astype(np.uint64)

    def rows(self, unit: Unit) -> int:
        """Rows of the unit's file, deleted ones too."""
        drop = unit.drop[0]
        assert drop is not None
        return len(drop) + len(self._dead_of(unit.files[0]))

    def _kept(self, file: LiveFile, begin: int, rows: int) -> Bools:
        dead = self._dead_of(file).astype(np.int64) - begin
        is_live = np.ones(rows, bool)
        is_live[dead[(dead >= 0) & (dead < rows)]] = False
        return is_live

    def _dead_of(self, file: LiveFile) -> Rows:
        vector = self._vectors.get(file.path)
        if vector is None:
            return np.empty(0, np.uint64)
        if file.path not in self._dead:
            self._dead[file.path] = read_vector(*self._place, vector)
        return self._dead[file.path]
