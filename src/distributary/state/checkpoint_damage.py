"""Can Spark go on from what lies in a checkpoint? Asked before each start, since Spark itself says it by a stack.

    metadata     the stream's id
    offsets/<n>  where batch n ends, written before it begins; Spark reads the newest and the one before it
    commits/<n>  that batch n is done; Spark reads the newest

(Spark's MicroBatchExecution.populateStartOffsets, OffsetSeqLog and CommitLog.) Some files can be told from the others,
or are of no account; then the error says how to put them right. It is not done here: a damaged disk is for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributary.errors import CheckpointDamaged
from distributary.tables.files import names_in
from distributary.tables.store import Store, join

_RESTORE = (
    "Restore it from a backup, or remove tables and state together with: distributary clean FILE --yes (of two hops, "
    "--hop 2 leaves bronze)"
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder."""

    folder: str
    store: Store

    def stream_id(self) -> str | None:
        """The streaming query's id; None for no checkpoint. Raises CheckpointDamaged, OSError."""
        body = self.store.get(self.folder, "metadata")
        try:
            return None if body is None else str(json.loads(body)["id"])
        except (ValueError, LookupError, TypeError) as e:
            raise self.damaged("metadata", _said(body, e)) from e

    def offsets(self, batch: int) -> list[dict[str, Any]] | None:
        """The source offsets at the end of `batch`, one per source; None when the checkpoint does not have it.

        Raises CheckpointDamaged, OSError.
        """
        body = self.store.get(join(self.folder, "offsets"), str(batch))
        try:
            return None if body is None else _offsets(body)
        except (ValueError, LookupError) as e:
            raise self.damaged(f"offsets/{batch}", _said(body, e)) from e

    def check(self, finished: int, stream: str | None, begun: Callable[[int], bool]) -> None:
        """`finished`: the newest batch that is decided, of `stream`, where one is known; `begun`: may a table have rows
        of a batch that is not?

        Raises CheckpointDamaged, OSError.
        """
        planned, committed = self._newest("offsets"), self._newest("commits")
        self._check_id(stream, planned)
        if planned is None:
            return
        for folder, batch in (("offsets", planned), ("offsets", planned - 1), ("commits", committed)):
            self._check_sum(folder, f".{batch}.crc")
        self._check_planned(planned, finished, begun)
        if planned > 0:
            self._check_before(planned, committed)
        if committed is not None:
            self._check_done(committed, finished)

    def damaged(self, file: str, damage: str, remedy: str = _RESTORE) -> CheckpointDamaged:
        return CheckpointDamaged(file=join(self.folder, file), found=damage, remedy=remedy)

    def _newest(self, folder: str) -> int | None:
        names = names_in(join(self.folder, folder), self.store)
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _check_id(self, stream: str | None, planned: int | None) -> None:
        try:
            stream_found, why = self.stream_id(), "is not there, though offsets are"
        except CheckpointDamaged as e:
            stream_found, why = None, str(e.parameters["found"])
            if stream is None:
                raise
        if stream_found is None and planned is not None and stream is not None:
            text = json.dumps({"id": stream})
            raise self.damaged("metadata", why, f"Write this into it: {text}{_checksum('.metadata.crc')}")

    def _check_sum(self, folder: str, file: str) -> None:
        """Hadoop keeps a checksum beside each file of this machine. Whether it fits is found by Spark, and told by
        `wrong_sum`; one without a sensible head stops Spark by an error of arithmetic."""
        body = self.store.get(join(self.folder, folder), file)
        if body is not None and (body[:4] != b"crc\0" or not any(body[4:8])):
            raise self.damaged(f"{folder}/{file}", "is no checksum", "Remove it")

    def _check_planned(self, batch: int, finished: int, begun: Callable[[int], bool]) -> None:
        try:
            self.offsets(batch)
        except CheckpointDamaged as e:
            if batch <= finished or begun(batch):
                raise
            remedy = f"Remove it{_checksum(f'offsets/.{batch}.crc')}: no table has a row of batch {batch} yet"
            raise self.damaged(f"offsets/{batch}", str(e.parameters["found"]), remedy) from e

    def _check_before(self, planned: int, committed: int | None) -> None:
        """Of the newest batch but one Spark needs where it ended, unless the newest one is done as well."""
        batch = planned - 1
        try:
            if self.offsets(batch) is not None:
                return
            fault = f"is not there, though offsets/{planned} is"
        except CheckpointDamaged as e:
            fault = str(e.parameters["found"])
        remedy = _RESTORE
        if committed is not None and committed >= planned:
            remedy = (
                f"Copy offsets/{planned} over it{_checksum(f'offsets/.{batch}.crc')}: batch {planned} is done, so that "
                "this file need only be there"
            )
        raise self.damaged(f"offsets/{batch}", fault, remedy)

    def _check_done(self, batch: int, finished: int) -> None:
        body = self.store.get(join(self.folder, "commits"), str(batch)) or b""
        try:
            version, *rest = body.decode().splitlines()
            _check_version(version)
            if rest:
                json.loads(rest[0])
        except ValueError as e:
            again = f"batch {batch} is decided, and is passed over when Spark gives it again"
            remedy = f"Remove it{_checksum(f'commits/.{batch}.crc')}: {again}" if batch <= finished else _RESTORE
            raise self.damaged(f"commits/{batch}", _said(body, e), remedy) from e


def wrong_sum(text: str) -> CheckpointDamaged | None:
    """What an error of Spark's says of a file that is not what its checksum says; None for another error."""
    if (match := re.search(r"Checksum error: (?:file:)?(\S+) at", text)) is None:
        return None
    folder, name = match[1].rsplit("/", 1)
    remedy = f"If the file is right, remove the checksum {folder}/.{name}.crc; else restore it from a backup"
    return CheckpointDamaged(file=match[1], found="is not what its checksum says", remedy=remedy)


def _offsets(body: bytes) -> list[dict[str, Any]]:
    version, metadata, *lines = body.decode().splitlines()
    _check_version(version)
    json.loads(metadata)
    offsets = [json.loads(line) for line in lines if line and line != "-"]
    if not lines or not all(isinstance(offset, dict) for offset in offsets):
        raise ValueError("it has no offsets")
    return offsets


def _check_version(line: str) -> None:
    if not line.startswith("v"):
        raise ValueError("it does not begin with a version")


def _said(body: bytes | None, error: Exception) -> str:
    if not body:
        return "is empty"
    return f"is damaged ({str(error).splitlines()[0][:100]})"


def _checksum(file: str) -> str:
    """On this machine's files Hadoop keeps a checksum beside each file."""
    return f" (and remove {file}, where it is)"
