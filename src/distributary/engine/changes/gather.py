"""Events out of many files, a piece at a time, in bounded memory: only a share of the keys, only the newest of each.

Files are read from the store once, however many shares there are: where it is more than one, rows go through files on
the local disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from distributary.changes.reduce import partly
from distributary.changes.sequence import OrderSettings
from distributary.engine.changes.key_shares import KeyShares
from distributary.scratch import Scratch

LEAST_ROWS = 1 << 18
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class ShareRows:
    """The rows of one share. `is_last`: those behind it have none."""

    number: int
    pieces: Iterator[pa.Table]
    is_last: bool


def by_share(pieces: Iterable[pa.Table], shares: KeyShares) -> Iterator[ShareRows]:
    """The pieces' rows, share by share; each to be read before the next. Raises OSError for a full disk."""
    if shares.count == 1:
        yield ShareRows(0, iter(pieces), True)
        return
    with Scratch("shares") as folder:
        written, last = _spill(pieces, shares, folder)
        for number, paths in enumerate(written):
            yield ShareRows(number, _read(paths), number >= last)


def _spill(pieces: Iterable[pa.Table], shares: KeyShares, folder: Path) -> tuple[list[list[Path]], int]:
    """The files of each share, and the last share that has a row."""
    written: list[list[Path]] = [[] for _ in range(shares.count)]
    last = 0
    schema: pa.Schema | None = None
    with ExitStack() as files:
        writers: list[pa.ipc.RecordBatchStreamWriter] = []
        for piece in pieces:
            if schema is None or piece.schema != schema:
                # A file has one schema. Those of a log's files change seldom.
                files.close()
                schema, writers = piece.schema, []
                for number, paths in enumerate(written):
                    paths.append(folder / f"{number}-{len(paths)}")
                    sink = files.enter_context(pa.OSFile(str(paths[-1]), "wb"))
                    writers.append(files.enter_context(pa.ipc.new_stream(sink, schema, options=_PACKED)))
            of_row = shares.numbers(piece)
            for number in np.unique(of_row).tolist():
                writers[number].write_table(piece.filter(pa.array(of_row == number)))
                last = max(last, number)
    return written, last


def _read(paths: Sequence[Path]) -> Iterator[pa.Table]:
    for path in paths:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])
        path.unlink()


class Gathered:
    """What is left of the pieces it was given. `keeps_all`: all of it, since an older event may say what the newest of
    its key does not; else what may still count of each key (`changes.reduce.partly`)."""

    def __init__(self, keys: Sequence[str], order: OrderSettings, *, keeps_all: bool) -> None:
        self._keys, self._order, self._keeps_all = tuple(keys), order, keeps_all
        self._held: list[pa.Table] = []
        self._reduced = self._rows = 0

    def add(self, piece: pa.Table) -> None:
        if not piece.num_rows:
            return
        self._held.append(piece)
        self._rows += piece.num_rows
        if not self._keeps_all and self._rows > max(LEAST_ROWS, 2 * self._reduced):
            self._reduce()

    def rows(self) -> pa.Table | None:
        """None where no piece had a row."""
        if not self._held:
            return None
        if not self._keeps_all:
            self._reduce()
        return _joined(self._held)

    def _reduce(self) -> None:
        rows = partly(_joined(self._held), self._keys, self._order)
        self._held, self._reduced, self._rows = [rows], rows.num_rows, rows.num_rows


def _joined(pieces: list[pa.Table]) -> pa.Table:
    return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces, promote_options="permissive")
