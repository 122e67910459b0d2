"""The fields of a message in JSON, behind the schema that it may bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

Fields = dict[str, msgspec.Raw]

FIELDS: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)
PERHAPS: msgspec.json.Decoder[Fields | None] = msgspec.json.Decoder(Fields | None)
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def opened(body: bytes | None) -> tuple[bytes, Fields]:
    """The schema that the message brings, b"" for none, and its fields."""
    if not body or body == b"null":
        return b"", {}
    if not body.isascii():
        body.decode()
    fields = FIELDS.decode(body)
    if fields.keys() == {"schema", "payload"} and bytes(fields["schema"])[:1] in (b"{", b"n"):
        schema = bytes(fields["schema"])
        return b"" if schema == b"null" else schema, PERHAPS.decode(fields["payload"]) or {}
    return b"", fields


def as_spelled(names: Sequence[str], row: Iterable[str]) -> list[str]:
    """Columns by the names that a row has for them, which may differ in case: Maxwell's record keys are in small
    letters, and a pipeline file may name keys in any."""
    columns = {name: name for name in row}
    folded = {name.lower(): name for name in columns}
    return [columns.get(name) or folded.get(name.lower(), name) for name in names]


class MessageOpener:
    """Opens one message after the other: the next one mostly has the schema of the last, to the byte."""

    def __init__(self) -> None:
        self._prefix, self._schema = b"", b""

    def cut(self, body: bytes) -> tuple[bytes, bytes]:
        """The schema that a message brings, b"" for none, and the rest as bytes. Raises what `UNDECODABLE` names.

        The rest is not read: what is more than one value, or none, is for its reader to find.
        """
        if not body.isascii():
            body.decode()
        if self._prefix and body.startswith(self._prefix) and body.endswith(b"}"):
            return self._schema, body[len(self._prefix) : -1]
        if not body.startswith(b'{"schema":{'):
            return b"", body
        fields = FIELDS.decode(body)
        if fields.keys() != {"schema", "payload"}:
            return b"", body
        self._schema = bytes(fields["schema"])
        self._prefix = b'{"schema":' + self._schema + b',"payload":'
        return self._schema, bytes(fields["payload"])
