"""Comments of a schema's fields, which become those of columns.

protoc knows a comment by the path of what it stands at (descriptor.proto, `SourceCodeInfo.Location`): 4 is a file's
messages, 3 a message's, 2 its fields. What stands above a field counts, else what stands behind it in its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from distributary.schemas.comment_text import one_line

_MESSAGES, _NESTED, _FIELDS = 4, 3, 2


def keep_comments(file: FileDescriptorProto, source: FileDescriptorProto) -> None:
    """Give `file` the comments of fields in `source`, which is the same file with all that protoc says of its text."""
    file.ClearField("source_code_info")
    for location in source.source_code_info.location:
        text = one_line(location.leading_comments) or one_line(location.trailing_comments)
        if text is not None and _is_field(location.path):
            file.source_code_info.location.add(path=location.path, leading_comments=text)


def comments_of(descriptor_set: bytes) -> dict[str, str]:
    """Full name of a field -> its comment. `descriptor_set`: a serialised `FileDescriptorSet`."""
    comments = {}
    for file in FileDescriptorSet.FromString(descriptor_set).file:
        for location in file.source_code_info.location:
            name = ".".join(filter(None, [file.package, *_names(file.message_type, location.path)]))
            comments[name] = location.leading_comments
    return comments


def _is_field(path: Sequence[int]) -> bool:
    """Is it `4, message, (3, nested message)*, 2, field`?"""
    kinds = list(path[::2])
    nested = len(kinds) - 2
    return len(path) >= 4 and len(path) % 2 == 0 and kinds == [_MESSAGES, *[_NESTED] * nested, _FIELDS]


def _names(messages: Sequence[DescriptorProto], path: Sequence[int]) -> Iterator[str]:
    message = messages[path[1]]
    yield message.name
    if path[2] == _FIELDS:
        yield message.field[path[3]].name
    else:
        yield from _names(message.nested_type, path[2:])
