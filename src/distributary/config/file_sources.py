"""Keys of `source` where it is files of changes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from distributary.config.addresses import Address
from distributary.config.quantities import BatchSize, ColumnType, Duration, Size, Time
from distributary.config.source_keys import SourceKeys


class ChangeFilesSource(SourceKeys):
    """What files of changes have in common, whoever wrote them."""

    reads_files = True
    written_by: ClassVar[Literal["datastream", "debezium", "dms"]]

    type: str
    path: Address = Field(
        description="Where the files are: a folder, `gs://bucket/prefix` or `s3a://bucket/prefix`. Folders of new "
        "tables and late files in old folders are found while it runs."
    )
    format: Literal["auto", "avro", "json", "parquet"] = Field(
        default="auto", description="What the files are; `auto` tells by their name and first bytes."
    )
    kind: Literal["auto", "mysql", "oracle", "postgresql", "sqlserver", "mongodb", "generic"] = Field(
        default="auto",
        description="The database they come from, which decides the order of events; `auto`: each event says.",
    )
    stray_files: Literal["ignore", "read"] = Field(
        default="ignore",
        description="Files that are none of Datastream's by their place: not straight in a folder "
        "`[table]/yyyy/mm/dd/hh/mm`, below a folder that begins with `_`, or with another ending than .avro, .json, "
        ".jsonl, .parquet (also with .gz). `ignore`: they are left alone and told of; `read`: they are read as well, "
        "which a folder of loose files needs.",
    )
    start_date: Time | None = Field(
        default=None, description="Leave out files in folders of an earlier time than this (source time, UTC)."
    )
    max_files_per_batch: int = Field(default=1000, ge=1, description="The most files in one batch, of all tables.")
    max_bytes_per_batch: BatchSize = Field(
        default=256 * 2**20, description="About the most bytes of files in one batch: a backlog is cut by this."
    )
    max_unpacked_bytes: Size = Field(
        default=512 * 2**20,
        description="The most bytes of one file that is packed (gzip, avro's codecs, Parquet) once it is unpacked. A "
        "larger one is set aside, lest a small file fill the machine.",
    )
    columns: dict[str, ColumnType] = Field(
        default={},
        description="Columns that get another type than their file says, by route and column or for all routes: "
        "`{shop.orders.born: date, '*.flag': boolean}`.",
    )
    json_bytes: Literal["base64", "hex"] = Field(
        default="base64", description="How JSON files write BYTES. Datastream's documents do not say."
    )
    text_bytes: Literal["base64", "hex"] = Field(
        default="hex",
        description="How binary columns that a source writes as text are written (MySQL: hex), where `columns` asks "
        "for binary.",
    )
    json_numbers: ColumnType = Field(
        default="string",
        description="Type of JSON numbers with a fraction, where no `.schema` file says better; `string` loses none.",
    )
    out_of_range: Literal["null", "reject"] = Field(
        default="null",
        description="Times that no Delta reader can hold (PostgreSQL's infinity): null, or the event is quarantined.",
    )
    wide_decimals: Literal["string", "decimal"] = Field(
        default="string",
        description="Decimals of more than 38 digits: as text, or decimal(38) where the values fit.",
    )
    epochs: list[Time] = Field(
        default=[],
        description="Times (of the source) since which logs count anew, because the server was replaced: later events "
        "beat all earlier ones. Also per route.",
    )
    restart_margin: Duration = Field(
        default=7200.0,
        description="A change that is later than another one of its row by more than that, but stands before it in the "
        "source's log: the log has begun anew, and the merge waits for `epochs`. More than clocks are wrong by, and "
        "than a statement runs.",
    )
    storage_options: dict[str, SecretStr] = Field(
        default={},
        description="Settings and credentials of the store that holds the files, as delta-rs names them; without it "
        "`tables.storage_options`.",
    )

    @field_validator("columns")
    @classmethod
    def _of_a_route(cls, columns: dict[str, str]) -> dict[str, str]:
        if wrong := next((name for name in columns if "." not in name.strip(".")), None):
            raise ValueError(f"allowed: route and column, as shop.orders.born or '*.flag', not {wrong!r}")
        return columns

    @property
    def csv(self) -> tuple[str, str]:
        """What stands for null in CSV files, and what between values."""
        return "NULL", ","


class DatastreamSource(ChangeFilesSource):
    written_by = "datastream"

    type: Literal["datastream"] = Field(
        description="Files of change events, as Google Datastream writes them. See docs/datastream.md."
    )


class DebeziumFilesSource(ChangeFilesSource):
    written_by = "debezium"

    type: Literal["debezium_files"] = Field(
        description="Files of Debezium's messages in JSON, a message a line. See docs/debezium.md."
    )
    format: Literal["json"] = Field(default="json", description="What the files are.")
    stray_files: Literal["ignore", "read"] = Field(
        default="read",
        description="Files that do not lie straight in a folder `[table]/yyyy/mm/dd/hh/mm`, lie below a folder that "
        "begins with `_`, or have another ending than .json, .jsonl (also with .gz): as for Datastream's files.",
    )
    json_numbers: ColumnType = Field(
        default="double", description="Type of numbers with a fraction, where no schema in the message says better."
    )


class DmsFilesSource(ChangeFilesSource):
    written_by = "dms"

    type: Literal["dms_files"] = Field(
        description="Files of AWS DMS (target Amazon S3), CSV or Parquet. See docs/dms.md."
    )
    stray_files: Literal["ignore", "read"] = Field(
        default="read",
        description="Files that do not lie straight in a folder `[table]/yyyy/mm/dd/hh/mm`: as for Datastream's files.",
    )
    csv_null: str = Field(
        default="NULL", description="What stands for null in CSV files, without quotes: `CsvNullValue` of DMS."
    )
    csv_delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="What stands between values in CSV files: `CsvDelimiter`."
    )

    @property
    def csv(self) -> tuple[str, str]:
        return self.csv_null, self.csv_delimiter
