"""Where in a protobuf message a route may stand, besides its own texts: what a first pipeline file is to try."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["NO_ROUTES", "MessageRoutes", "routes_in"]

_ANY = "google.protobuf.Any"
_OF_GOOGLE = "google.protobuf."


class MessageRoutes(NamedTuple):
    """Names of oneofs whose members are messages, of fields that are an Any, and paths of texts and enums one step
    down."""

    oneofs: tuple[str, ...] = ()
    anys: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()


NO_ROUTES = MessageRoutes()


def routes_in(descriptor: Any) -> MessageRoutes:
    """`descriptor`: of the message, by the official library."""
    oneofs = [
        oneof.name
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1 and any(member.message_type is not None for member in oneof.fields)
    ]
    messages = [
        field
        for field in descriptor.fields
        if field.message_type is not None and not field.is_repeated and field.containing_oneof is None
    ]
    anys = [field.name for field in messages if field.message_type.full_name == _ANY]
    inner = [
        f"{field.name}.{child.name}"
        for field in messages
        if not field.message_type.full_name.startswith(_OF_GOOGLE)
        for child in field.message_type.fields
        if child.type in (child.TYPE_STRING, child.TYPE_ENUM) and not child.is_repeated
    ]
    enums = [field.name for field in descriptor.fields if field.type == field.TYPE_ENUM and not field.is_repeated]
    return MessageRoutes(tuple(oneofs), tuple(anys), (*enums, *inner))
