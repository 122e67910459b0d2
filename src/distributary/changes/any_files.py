"""A file of changes, whoever wrote it: Datastream's own form, or one that is a mapping to it."""

from __future__ import annotations

import pyarrow as pa

from distributary.changes import dms_files, file_events
from distributary.changes.debezium import json_lines
from distributary.changes.model import FileEvents, Reading, SourceTable


def read_file(body: pa.Buffer, path: str, reading: Reading, schema_text: str | None) -> FileEvents:
    """All events of a file, as `file_events.read_events` has them. Raises FileBroken."""
    match reading.written_by:
        case "debezium":
            return json_lines.read_lines(body, path, reading)
        case "dms":
            return dms_files.read_dms(body, path, reading)
    return file_events.read_events(body, path, reading, schema_text)


def first_table(body: pa.Buffer, path: str, reading: Reading) -> SourceTable | None:
    """Whose the first event of a file is, as `file_events.peek` has it. Raises FileBroken."""
    match reading.written_by:
        case "debezium":
            return json_lines.first_table(body, path, reading)
        case "dms":
            return dms_files.table_of(path)
    return file_events.peek(body, path, reading)
