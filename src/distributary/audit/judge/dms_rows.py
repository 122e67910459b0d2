"""Files of AWS DMS read plainly, a row at a time, as the events of change files that say the same (docs/dms.md). None
of the product's readers."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from distributary.audit.judge.raw_files import RawEvent, parquet_rows, unzipped
from distributary.errors.border import contained

_TYPES = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}


def dms_events(
    body: pa.Buffer, path: str, faults: list[str], *, null: str = "NULL", delimiter: str = ","
) -> Iterator[RawEvent]:
    """As `raw_files.raw_events`. `null`, `delimiter`: of CSV."""
    try:
        data = unzipped(body, faults)
        *folders, name = path.split("/")
        while re.fullmatch("[0-9-]+", folders[-1]):
            del folders[-1]
        whose = {"schema": folders[-2], "table": folders[-1]}
        top = {"read_method": "dms-backfill"} if name.startswith("LOAD") else _when(name)
        rows = parquet_rows(data, faults) if data.startswith(b"PAR1") else _csv_rows(data.decode(), null, delimiter)
        for row, values in rows:
            yield _event(row, values, top, whose)
    except GeneratorExit:
        raise
    except BaseException as e:  # whatever a file does to its reader is that file's own fault
        faults.append(contained(e))


def _when(name: str) -> Mapping[str, Any]:
    day, _, rest = name.partition("-")
    digits = rest.partition(".")[0]
    seconds = calendar.timegm(time.strptime(f"{day}{digits[:6]}", "%Y%m%d%H%M%S"))
    return {
        "read_method": "dms",
        "source_timestamp": 1000 * seconds + int(digits[6:9]),
        "read_timestamp": int(digits[9:] or 0) or None,
    }


def _event(row: int, values: Mapping[str, Any], top: Mapping[str, Any], whose: Mapping[str, Any]) -> RawEvent:
    payload = dict(values)
    op = payload.pop("Op", None)
    op = op.decode(errors="replace") if isinstance(op, bytes) else op
    is_load = top["read_method"] != "dms"
    change = "READ" if is_load else "INSERT" if "Op" not in values else _TYPES.get(op, "none" if op is None else op)
    return RawEvent(row, {**top, "uuid": f"{row:032x}"}, {**whose, "change_type": change}, payload)


def _csv_rows(text: str, null: str, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    records = _records(text.removeprefix("\ufeff"), delimiter)
    names = [str(field) for field, _ in next(records, [])]
    for row, record in enumerate(records):
        values = (None if field == null and not quoted else field for field, quoted in record)
        yield row, dict(zip(names, values, strict=True))


def _records(text: str, delimiter: str) -> Iterator[list[tuple[str, bool]]]:
    """The fields of each line, and whether they stood in quotes."""
    field = rf'(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^{re.escape(delimiter)}\r\n]*))'
    token = re.compile(rf"{field}(?P<end>{re.escape(delimiter)}|\r?\n|\Z)")
    record: list[tuple[str, bool]] = []
    place = 0
    while place < len(text):
        match = token.match(text, place)
        if match is None:
            raise ValueError(f"it is no CSV at character {place}")
        quoted = match["quoted"]
        record.append((match["plain"], False) if quoted is None else (quoted.replace('""', '"'), True))
        place = match.end()
        if match["end"] != delimiter:
            if record != [("", False)]:
                yield record
            record = []
