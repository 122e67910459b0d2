"""What each kind of source says of itself, and the keys of a record's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from distributary.config.base import Model, fault
from distributary.config.column_types import check_columns
from distributary.config.quantities import ColumnType, Text


class RecordKey(Model):
    column: Text | None = Field(
        default=None,
        description="The column that the record's key, as text, is. A message's own field goes first.",
    )
    type: ColumnType | None = Field(
        default=None,
        description="The column's type, as `bigint`. Without it that of the messages' field of this name; else text.",
    )
    format: Literal["text", "json", "avro", "protobuf"] = Field(
        default="text",
        description="What the key is. `text`: one column. `json`, `avro`, `protobuf`: a record, of which `columns` are "
        "columns; of the latter two by the schema of its writer, which the key's header names.",
    )
    columns: dict[Text, Text] = Field(
        default={},
        description="Fields of a key that is a record, by their paths, and their types, as `payload.columns` has them.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.format == "text":
            if self.column is None:
                raise fault("column", "give the column that the key is; or its format and columns")
            if self.columns:
                raise fault("columns", "a text has no fields: give format json, avro or protobuf")
            return self
        if self.column is not None or self.type is not None:
            raise fault("column", f"a key of format {self.format} is a record: give columns")
        if not self.columns:
            raise fault("columns", "give the fields that are columns, as in {player_id: bigint}")
        check_columns(self.columns)
        return self

    @property
    def names(self) -> list[str]:
        """The columns that the key is."""
        if self.column is not None:
            return [self.column]
        return list(dict.fromkeys(path.partition(".")[0] for path in self.columns))

    @property
    def has_schema(self) -> bool:
        """Does a registry have the schema of its writer?"""
        return self.format in ("avro", "protobuf")


class SourceKeys(Model):
    """What others ask of a source, so that they need not know which one it is."""

    has_offsets: ClassVar[bool] = False
    """Has each record a topic, a partition and an offset, by which it is found again, and a key and headers?"""
    has_columns: ClassVar[bool] = False
    """Has each record columns, as `envelope.format: columns` needs them?"""
    is_given: ClassVar[bool] = False
    """Are its rows a DataFrame of the user's own, which Spark's sink is given, so that nobody here can read them?"""
    reads_files: ClassVar[bool] = False
    """Is a batch some files, given out by the file ledger, so that it comes again as it was?"""

    @property
    def needs_library(self) -> bool:
        """Does reading it take a library that may not be installed?"""
        return False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name; empty where there are none, or where they are found by a pattern."""
        return ()

    @property
    def address(self) -> str | None:
        """Address of the Delta table that it is; None where it is none, or where only the catalog knows it."""
        return None

    @property
    def of_kafka(self) -> tuple[str | None, Mapping[str, str]]:
        """The expression by which topics are found, and settings of the clients; of Kafka alone."""
        return None, {}

    @property
    def with_headers(self) -> bool:
        """Are the records' headers read?"""
        return False

    @property
    def record_key(self) -> RecordKey | None:
        """The column that a record's key is, where it is one."""
        return None
