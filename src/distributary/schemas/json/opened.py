"""Envelopes of JSON: an object that says the route and has the payload in one of its fields.

What is looked for stands at paths. Only the objects on the way are cut into their tokens, so that a payload that is an
object keeps every byte of how it was written.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from distributary.errors import Reason
from distributary.names import shown
from distributary.schemas.decoding import Rejected
from distributary.schemas.json.alone import PERHAPS, UNREADABLE, Object, cut_object, words
from distributary.schemas.json.decoder import no_text, too_deep
from distributary.schemas.json.nodes import BIGINT, Scalar
from distributary.schemas.json.values import ABSENT, values

Path = tuple[str, ...]
_WORD: Final = Scalar("word")
_QUOTE: Final = b'"'
_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class Opened:
    """What was read of some envelopes. `route` string, `schema_id` int32, `payload` binary (null: it says `null`) of
    those at `positions`; `rejected`: the others."""

    route: pa.Array
    schema_id: pa.Array
    payload: pa.Array
    positions: pa.Array
    rejected: list[Rejected]


@dataclass(frozen=True, slots=True)
class JsonEnvelope:
    """Where things stand in an envelope. `is_binary`: the payload is bytes, which JSON holds as a text in base64; else
    a text is the payload, and of any other value its JSON."""

    route: Path
    schema_id: Path
    payload: Path
    is_binary: bool

    def open(self, bodies: pa.BinaryArray) -> Opened:
        """Open envelopes without header; there are no nulls. Raises nothing on account of one."""
        deep, unreadable = too_deep(values_read := bodies.to_pylist()), no_text(bodies)
        routes, ids, payloads = [], [], []
        positions: list[int] = []
        rejected: list[Rejected] = []
        for position, body in enumerate(values_read):
            try:
                if unreadable[position]:
                    raise _Wrong("it is not UTF-8")
                if deep[position]:
                    raise _Wrong("it is nested too deep")
                envelope = cut_object(body, is_whole=False)
                payload = self._payload(envelope)
            except UNREADABLE as error:
                rejected.append(_bad(position, words(error)))
            except _Wrong as error:
                rejected.append(_bad(position, str(error)))
            else:
                payloads.append(payload)
                routes.append(_at(envelope, self.route))
                ids.append(_at(envelope, self.schema_id))
                positions.append(position)
        numbers = _integers(ids)
        return Opened(
            values(_WORD, routes)[0],
            numbers,
            pa.array(payloads, pa.binary()),
            pa.array(positions, pa.int64()),
            rejected,
        )

    def _payload(self, envelope: Object) -> bytes | None:
        """Raises _Wrong: there is none."""
        token = bytes(_at(envelope, self.payload)).strip()
        name = ".".join(self.payload)
        if not token:
            raise _Wrong(f"the envelope has no field {name!r}; it has: {shown(', '.join(envelope)[:200])}")
        if token == _NULL:
            return None
        text = msgspec.json.decode(token, type=str).encode() if token[:1] == _QUOTE else None
        if not self.is_binary:
            return token if text is None else text
        if text is None:
            raise _Wrong(f"the field {name!r} is no text, in which bytes stand as base64")
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise _Wrong(f"the field {name!r} is no base64: {error}") from None


class _Wrong(ValueError):
    pass


def _bad(position: int, why: str) -> Rejected:
    return Rejected(position, Reason.CORRUPT_ENVELOPE, why)


def _at(document: Object, path: Path) -> msgspec.Raw:
    """The token at a path; `ABSENT` where there is none."""
    *steps, leaf = path
    for name in steps:
        try:
            document = PERHAPS.decode(document.get(name, b"null")) or {}
        except UNREADABLE:  # no object
            return ABSENT
    return document.get(leaf, ABSENT)


def _integers(tokens: Sequence[msgspec.Raw]) -> pa.Array:
    """Whole numbers as schema ids; null for what could be none."""
    integers, misfits = values(BIGINT, tokens)
    numbers = np.asarray(integers.fill_null(-1))
    fits = (numbers >= 0) & (numbers < 2**31)
    if misfits is not None:
        fits &= ~misfits
    return pa.array(np.where(fits, numbers, 0), pa.int32(), mask=~fits)
