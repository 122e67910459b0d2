"""Columns of MySQL and MariaDB, as their binlog and their catalog tell of them, and their values.

One rule per type for both ways in, so that a row of a backfill equals the row of an event.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from pymysqlreplication.constants import FIELD_TYPE

from distributary_simulate.changes.unified import (
    DOUBLE,
    FLOAT,
    INTEGER,
    JSON,
    LONG,
    NUMBER,
    STRING,
    TIME_INTERVAL,
    TIMESTAMP,
    UNSUPPORTED,
    Unified,
    decimal,
)

_EPOCH: Final = datetime(1970, 1, 1)
_EMPTY_SET: Final = "empty set"
# What a table map calls a type; text and binary types differ by their character set only.
_TYPES: Final = {
    FIELD_TYPE.TINY: "tinyint",
    FIELD_TYPE.SHORT: "smallint",
    FIELD_TYPE.INT24: "mediumint",
    FIELD_TYPE.LONG: "int",
    FIELD_TYPE.LONGLONG: "bigint",
    FIELD_TYPE.YEAR: "year",
    FIELD_TYPE.FLOAT: "float",
    FIELD_TYPE.DOUBLE: "double",
    FIELD_TYPE.NEWDECIMAL: "decimal",
    FIELD_TYPE.DATE: "date",
    FIELD_TYPE.NEWDATE: "date",
    FIELD_TYPE.DATETIME: "datetime",
    FIELD_TYPE.DATETIME2: "datetime",
    FIELD_TYPE.TIMESTAMP: "timestamp",
    FIELD_TYPE.TIMESTAMP2: "timestamp",
    FIELD_TYPE.TIME: "time",
    FIELD_TYPE.TIME2: "time",
    FIELD_TYPE.BIT: "bit",
    FIELD_TYPE.ENUM: "enum",
    FIELD_TYPE.SET: "set",
    FIELD_TYPE.JSON: "json",
    FIELD_TYPE.GEOMETRY: "geometry",
    FIELD_TYPE.VARCHAR: "varchar",
    FIELD_TYPE.VAR_STRING: "varchar",
    FIELD_TYPE.STRING: "char",
    FIELD_TYPE.BLOB: "text",
}
_BINARY: Final = {"varchar": "varbinary", "char": "binary", "text": "blob"}
_CATALOG: Final = {
    "tinytext": "text",
    "mediumtext": "text",
    "longtext": "text",
    "tinyblob": "blob",
    "mediumblob": "blob",
    "longblob": "blob",
    "point": "geometry",
    "polygon": "geometry",
    "linestring": "geometry",
}
_UNIFIED: Final = {
    "tinyint": INTEGER,
    "smallint": INTEGER,
    "mediumint": INTEGER,
    "int": INTEGER,
    "bigint": LONG,
    "year": INTEGER,
    "float": FLOAT,
    "double": DOUBLE,
    # A DATE comes as midnight in every public file, although the documentation maps it to DATE.
    "date": TIMESTAMP,
    "datetime": TIMESTAMP,
    "timestamp": TIMESTAMP,
    "time": TIME_INTERVAL,
    "bit": LONG,
    "json": JSON,
    "geometry": UNSUPPORTED,
}


@dataclass(frozen=True)
class MySqlColumn:
    """type: as the catalog spells it, but text for all sizes of text, and so on. length: of BINARY, in bytes.
    members: of SET, in their order."""

    name: str
    type: str
    is_unsigned: bool = False
    precision: int = 0
    scale: int = 0
    length: int = 0
    members: tuple[str, ...] = ()

    @classmethod
    def of_table_map(cls, column: Any) -> MySqlColumn:
        """From a column of pymysqlreplication's table map."""
        kind = _TYPES[column.type]
        if column.character_set_name == "binary":
            kind = _BINARY.get(kind, kind)
        return cls(
            column.name,
            kind,
            bool(column.unsigned),
            getattr(column, "precision", 0),
            getattr(column, "decimals", 0),
            getattr(column, "max_length", 0),
            tuple(column.set_values or ()),
        )

    @classmethod
    def of_catalog(cls, row: Mapping[str, Any]) -> MySqlColumn:
        """From a row of information_schema.columns, its column names in lower case."""
        kind, full = str(row["data_type"]).lower(), str(row["column_type"])
        return cls(
            row["column_name"],
            _CATALOG.get(kind, kind),
            "unsigned" in full,
            row["numeric_precision"] or 0,
            row["numeric_scale"] or 0,
            row["character_octet_length"] or 0,
        )

    @property
    def unified(self) -> Unified:
        if self.type == "decimal":
            return decimal(self.precision, self.scale)
        if self.is_unsigned and self.type in ("int", "bigint"):
            return LONG if self.type == "int" else NUMBER
        return _UNIFIED.get(self.type, STRING)

    @property
    def select(self) -> str:
        """What to select for the column: a FLOAT by itself comes with six digits only."""
        quoted = "`" + self.name.replace("`", "``") + "`"
        return f"{quoted} + 0e0" if self.type == "float" else quoted

    def value(self, value: Any, none_source: str = "") -> Any:
        """The plain value of what the driver or the decoder gives. none_source: the decoder's reason for a None.

        Traps of the decoder: a SET is a Python set, and None where it is empty; BINARY lacks its trailing zeros; an
        empty binary value is a text; BIT is a text of 0 and 1; the year 0 is 1900; a TIMESTAMP of zeros is the epoch;
        other zero dates are None.
        """
        if value is None:
            return "" if none_source == _EMPTY_SET else None
        return _VALUES.get(self.type, _same)(self, value)


def _same(column: MySqlColumn, value: Any) -> Any:
    return str(value) if column.unified is NUMBER else value


def _single(column: MySqlColumn, value: float) -> float:
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


def _hex(column: MySqlColumn, value: bytes | str) -> str:
    body = value.encode("latin-1") if isinstance(value, str) else value
    return (body.ljust(column.length, b"\x00") if column.type == "binary" else body).hex()


def _instant(column: MySqlColumn, value: datetime | date | str) -> int | None:
    if isinstance(value, str):
        return None  # The driver leaves a date that does not exist as text: 0000-00-00.
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    if column.type == "timestamp" and moment == _EPOCH:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _bits(column: MySqlColumn, value: str | bytes) -> int:
    return int(value, 2) if isinstance(value, str) else int.from_bytes(value)


def _members(column: MySqlColumn, value: set[str] | str) -> str:
    return value if isinstance(value, str) else ",".join(member for member in column.members if member in value)


def _json(column: MySqlColumn, value: Any) -> str:
    """MySQL's binary JSON comes decoded; as text it stands as it is."""
    return value if isinstance(value, str) else json.dumps(_text_keys(value), ensure_ascii=False)


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text_keys(key): _text_keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_text_keys(inner) for inner in value]
    return value.decode() if isinstance(value, bytes) else float(value) if isinstance(value, Decimal) else value


_VALUES: Final[dict[str, Callable[[MySqlColumn, Any], Any]]] = {
    "float": _single,
    "binary": _hex,
    "varbinary": _hex,
    "blob": _hex,
    "date": _instant,
    "datetime": _instant,
    "timestamp": _instant,
    "time": lambda column, value: value // timedelta(microseconds=1),
    "year": lambda column, value: 0 if value == 1900 else value,
    "bit": _bits,
    "set": _members,
    "json": _json,
    "geometry": lambda column, value: None,
}
