"""Why one row is kept aside."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Why one row is in the quarantine. The ids are stable: they are stored with the row.

    `cause`: what was found, a sentence. `remedy`: what a person does about it; `replay` then brings the rows in.
    """

    cause: str
    remedy: str

    def __new__(cls, value: str, cause: str = "", remedy: str = "") -> Self:
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.cause, reason.remedy = cause, remedy
        return reason

    @classmethod
    def known(cls, value: str) -> Reason | None:
        """The reason of this id; None for one of another version."""
        return cls(value) if value in cls.__members__ else None

    CORRUPT_ENVELOPE = (
        "CORRUPT_ENVELOPE",
        "The outer message cannot be decoded by its schema, or has not the fields that `envelope` names.",
        "Compare `envelope` in the pipeline file with what the topic holds. Bytes that are damaged stay here.",
    )
    NO_ROUTE = (
        "NO_ROUTE",
        "The record does not say which table it is for: its route is empty or not set.",
        "Let the producer set the field, key or header that `envelope.route` names, or name the one that says it.",
    )
    ROUTE_TOO_LONG = (
        "ROUTE_TOO_LONG",
        "The route is longer than `envelope.max_route_length`.",
        "Raise `envelope.max_route_length` if such names are meant; else the record is garbage.",
    )
    NO_SCHEMA_ID = (
        "NO_SCHEMA_ID",
        "The payload has no header (`payload.framing: none`), and its envelope gives no schema id.",
        "Let the producer set the field that `envelope.schema_id` names, or set `payload.framing`.",
    )
    TOO_SHORT = (
        "TOO_SHORT",
        "The message is shorter than a header of the registry's wire format (5 bytes).",
        "Set `framing: none` if the messages have no header; else the record is garbage.",
    )
    BAD_MAGIC = (
        "BAD_MAGIC",
        "The message does not begin with the zero byte of the registry's wire format.",
        "Set `framing: none` if the messages have no header; else a producer writes without the registry's serializer.",
    )
    BAD_INDEX = (
        "BAD_INDEX",
        "The header, or an Any, names a message that the schema does not have.",
        "Have the producer's serializer checked; `payload.legacy_varints` reads what old Confluent clients wrote. The "
        "type of an Any must be imported by the schema that wrote the record.",
    )
    UNKNOWN_SCHEMA_ID = (
        "UNKNOWN_SCHEMA_ID",
        "The registry does not have the schema id.",
        "Register the schema, or see whether `registry.url` is the registry that the producer writes to.",
    )
    BROKEN_SCHEMA = (
        "BROKEN_SCHEMA",
        "The schema does not compile, is of another format, or needs more memory or time than is allowed.",
        "Put a text that compiles in its place with `registry.texts`, raise the limit that the detail names, or set "
        "`payload.format`.",
    )
    CORRUPT_PAYLOAD = (
        "CORRUPT_PAYLOAD",
        "The payload cannot be read by the schema that wrote it; where there is none (JSON without a schema, text), as "
        "`payload` in the pipeline file says.",
        "Look at detail and sample. A wrong schema id, or a value of another type, is the producer's fault; of JSON "
        "without a schema, correct `payload.columns` if the value is right. Bytes that are damaged stay here.",
    )
    KILLED_READER = (
        "KILLED_READER",
        "Two processes ended (a crash, all memory, or more time than `quarantine.read_sec`) when they read it.",
        "Upgrade, or raise `quarantine.read_sec`; `replay --reason KILLED_READER` tries such records again, apart.",
    )
    DECODER_FAILED = (
        "DECODER_FAILED",
        "The decoder failed in a way that it does not explain.",
        "Please report it with the detail and the sample. A later version may read it.",
    )
    SCHEMA_MISMATCH = (
        "SCHEMA_MISMATCH",
        "A field of the payload has another wire type than its schema gives it: another schema wrote it.",
        "Have the schema id checked that the producer writes.",
    )
    NEW_COLUMN = (
        "NEW_COLUMN",
        "The record has a value for a column that the table does not have (`evolution.new_column: quarantine`).",
        "Add the column, or set `new_column: add`.",
    )
    TYPE_CONFLICT = (
        "TYPE_CONFLICT",
        "A value's type does not fit the column, which may not change (`evolution.type_change: quarantine`).",
        "Set `evolution.type_change: widen` or `new_column` for this table, or fix the producer.",
    )
    FROZEN_COLUMN = (
        "FROZEN_COLUMN",
        "The record has a value for a column that the table does not have, and its columns are frozen.",
        "Set `evolution.new_column: add` for this table while the column is added.",
    )
    TOO_MANY_COLUMNS = (
        "TOO_MANY_COLUMNS",
        "The record's schema would bring the table over `evolution.max_columns`.",
        "Raise the limit if so many columns are meant.",
    )
    TOO_MANY_ROUTES = (
        "TOO_MANY_ROUTES",
        "The batch had more new routes than `tables.max_new_tables`.",
        "`replay` makes up to as many tables each time; raise the limit if so many are meant.",
    )
    TOO_MANY_SCHEMA_IDS = (
        "TOO_MANY_SCHEMA_IDS",
        "The batch had more unknown schema ids than `registry.max_unknown_ids`; this one was not asked for.",
        "`replay` asks for each of them.",
    )
    VALUE_OUT_OF_RANGE = (
        "VALUE_OUT_OF_RANGE",
        "A value is outside of what its column can hold.",
        "`payload.out_of_range: null` (of change files `source.out_of_range`) writes null in its place.",
    )
    EXPECTATION_FAILED = (
        "EXPECTATION_FAILED",
        "An expectation with `otherwise: drop` does not hold for the row.",
        "Change the expectation, or leave the row here: that is what it asks for.",
    )
    TABLE_PARKED = (
        "TABLE_PARKED",
        "The table could not be written; `status` says why.",
        "Fix the table: the rows come in by themselves, with its first write that succeeds.",
    )
    # change files
    FILE_BROKEN = (
        "FILE_BROKEN",
        "The file cannot be read from some point on, or holds no change events.",
        "Put a whole copy of the file in its place, or take it out of the folder.",
    )
    FILE_GONE = (
        "FILE_GONE",
        "The file was listed and is not there any more.",
        "Put it back under the same name. It should not be removed before `status` counts it as read.",
    )
    CORRUPT_EVENT = (
        "CORRUPT_EVENT",
        "The event cannot be read; others of its file can.",
        "Put a whole copy of the file in its place.",
    )
    NO_SOURCE_TABLE = (
        "NO_SOURCE_TABLE",
        "The event does not say which table of the source it is of.",
        "Take files out of the folder that Datastream did not write.",
    )
    UNKNOWN_CHANGE_TYPE = (
        "UNKNOWN_CHANGE_TYPE",
        "The event's kind is none that Datastream documents.",
        "Please report it with the sample. A later version may read it.",
    )
    TRUNCATED = (
        "TRUNCATED",
        "The source's table was emptied by TRUNCATE, and nobody can say yet which rows that deletes: no row of the "
        "table has come before it, or changes are told apart by offset (`order: offset`, `flattened`), by which it "
        "has no place among them.",
        "`distributary replay` follows it once there are rows. With `order: offset`, delete the rows from the merged "
        "table: `datastream_metadata` says of when a row is.",
    )
    NO_ROW_IMAGE = (
        "NO_ROW_IMAGE",
        "The change does not hold the row as it is afterwards.",
        "Let the source give whole rows: MongoDB `capture.mode: change_streams_update_full`, MySQL `binlog_row_image = "
        "FULL`. A new snapshot brings the row.",
    )
    NO_KEY_VALUE = (
        "NO_KEY_VALUE",
        "The event, or the message, has no value in the columns of its table's key.",
        "Name columns that are always there with `tables.routes.<table>.keys`, of messages also `tables.keys`.",
    )
    CORRUPT_KEY = (
        "CORRUPT_KEY",
        "The record's key is not what `source.key` says: no text or number of that type, no record of those fields.",
        "Correct `source.key`, then replay; or let the producer write such keys.",
    )
    OTHER_KEY = (
        "OTHER_KEY",
        "The record's key has other fields than those by which the rows of its merged table are told apart.",
        "Where the source's table has got another key, name it with `tables.routes.<table>.keys` and make the merged "
        "table anew; else some other producer writes to the topic.",
    )
    BAD_POSITION = (
        "BAD_POSITION",
        "The event's place in the source's log cannot be read, so nobody can say which event is newer. Of messages "
        "with keys: it has no value, or NaN, in the column that `tables.newest_by` names, or no offset.",
        "Of messages, name a column that always has a value. Of a database, please report it with the sample; "
        "`reconcile` or a new backfill corrects the merged table.",
    )
    LATE_EVENT = (
        "LATE_EVENT",
        "The event is older than the tombstones that are kept, and its row is not in the table.",
        "Keep tombstones longer (`tables.tombstone_retention`); `resync` judges it by the whole log.",
    )
    ROW_NOT_FOUND = (
        "ROW_NOT_FOUND",
        "A delete names a row by its row id, and no event of that row was seen.",
        "It is tried again with each batch; after a backfill it comes in, or `reconcile` corrects the table.",
    )
