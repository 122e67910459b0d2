"""Imports that a registry or protoc resolves by itself, so that schemas name them without a reference."""

from __future__ import annotations

from importlib import resources
from typing import Final

WELL_KNOWN: Final = str(resources.files("grpc_tools") / "_proto")
"""Folder of `google/protobuf/*.proto`."""

_CONFLUENT: Final = {
    "confluent/meta.proto": """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
}


def built_in(name: str) -> str | None:
    """Text of an import that Confluent's registry knows without a reference (`google/type/*`, `confluent/*`)."""
    if name.startswith("google/type/") and name.count("/") == 2:
        file = resources.files("google.type") / name.rpartition("/")[2]
        return file.read_text() if file.is_file() else None
    return _CONFLUENT.get(name)
