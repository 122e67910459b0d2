"""Deletion vectors: which rows of a data file are deleted, in a small file beside it or in the log itself.

By the Delta protocol ("Deletion Vectors"): a descriptor in the file's `add` action, and files that begin with their
version and hold vectors as size (big-endian), Roaring array, checksum (CRC-32, big-endian). A file and its vector
together are what a commit adds or removes: a `remove` names both.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributary.tables.roaring import Rows, decoded, encoded
from distributary.tables.store import Store, filesystem

FEATURE = "deletionVectors"
PROPERTY = "delta.enableDeletionVectors"

_VERSION = b"\x01"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_NAME = 20
"""Characters of a uuid in Z85."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A descriptor. `storage`: `u`, a file of the table's folder; `i`, the log itself; `p`, a file anywhere. `place`:
    the protocol's pathOrInlineDv. `offset`, `size`: in bytes, without size and checksum; `rows`: how many are deleted.
    """

    storage: str
    place: str
    offset: int | None
    size: int
    rows: int

    @classmethod
    def of(cls, logged: Mapping[str, Any]) -> Vector:
        """As the log has it."""
        offset = logged.get("offset")
        return cls(
            str(logged["storageType"]),
            str(logged["pathOrInlineDv"]),
            None if offset is None else int(offset),
            int(logged["sizeInBytes"]),
            int(logged["cardinality"]),
        )

    def as_log(self) -> dict[str, Any]:
        descriptor: dict[str, Any] = {"storageType": self.storage, "pathOrInlineDv": self.place}
        if self.offset is not None:
            descriptor["offset"] = self.offset
        return {**descriptor, "sizeInBytes": self.size, "cardinality": self.rows}

    @property
    def is_elsewhere(self) -> bool:
        """In a file that may lie outside the table's folder, as in a clone."""
        return self.storage not in ("u", "i")

    def path(self) -> str:
        """The vector's file, relative to the table; of storage `u`."""
        prefix, name = self.place[:-_NAME], self.place[-_NAME:]
        number = uuid.UUID(bytes=_from_z85(name))
        file = f"deletion_vector_{number}.bin"
        return f"{prefix}/{file}" if prefix else file


def read_vector(uri: str, store: Store, vector: Vector) -> Rows:
    """The deleted rows' numbers. Raises OSError, also for a vector that is damaged."""
    try:
        if vector.storage == "i":
            return decoded(_from_z85(vector.place)[: vector.size])
        with filesystem(uri, store).open_input_file(vector.path()) as file:
            framed = file.read_at(vector.size + 8, vector.offset or 0)
        return decoded(_unframed(framed, vector.size))
    except ValueError as e:
        raise OSError(f"{uri}: the deletion vector {vector.place} cannot be read: {e}") from e


def write_vectors(uri: str, store: Store, rows_of_files: Sequence[Rows]) -> list[Vector]:
    """One file with all of them; their descriptors, in the same order. Nothing refers to it before its commit.

    Raises OSError.
    """
    if not rows_of_files:
        return []
    number = uuid.uuid4()
    place = base64.b85encode(number.bytes).translate(_TO_Z85).decode()
    body, vectors = bytearray(_VERSION), []
    for rows in rows_of_files:
        array = encoded(rows)
        vectors.append(Vector("u", place, len(body), len(array), len(rows)))
        body += struct.pack(">I", len(array)) + array + struct.pack(">I", zlib.crc32(array))
    store.put(uri, vectors[0].path(), bytes(body))
    return vectors


def _unframed(framed: bytes, size: int) -> bytes:
    """Raises ValueError."""
    if len(framed) < size + 8:
        raise ValueError("its file ends too early")
    (framed_size,) = struct.unpack_from(">I", framed)
    array = framed[4 : 4 + size]
    (checksum,) = struct.unpack_from(">I", framed, 4 + size)
    if framed_size != size:
        raise ValueError(f"its file says {framed_size} bytes, the log {size}")
    if zlib.crc32(array) != checksum:
        raise ValueError("its checksum is wrong")
    return array


def _from_z85(text: str) -> bytes:
    """Raises ValueError."""
    return base64.b85decode(text.encode().translate(_FROM_Z85))
