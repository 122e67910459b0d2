"""The metadata of events in one form, whatever their layout, format and source.

Fields are read by name and each is optional: layouts of 2020, March 2021 (no primary_keys, sort_keys last), June 2021
(no sort_keys) and today's are all in use, GTID streams have names of their own (DataflowTemplates#3554), and JSON
writes times in four ways.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import Node
from distributary.changes import casts
from distributary.changes.model import DEBEZIUM, METADATA_TYPE, SOURCE_TYPE, Kind, SourceTable
from distributary.errors import Reason

Mask = npt.NDArray[np.bool_]

TOP = frozenset(METADATA_TYPE.names) - {"change_sequence_number", "change_type", "is_deleted", "is_backfill", "source"}
KEYS = ("primary_keys", "primary_key", "replication_index")
IN_SOURCE = frozenset(SOURCE_TYPE.names) | {
    "change_type", "is_deleted", "binlog_file", "binlog_position", "collection", *KEYS
}  # fmt: skip
DELETES = ("DELETE", "UPDATE-DELETE")
TRUNCATE = "TRUNCATE"
"""Of Debezium: deletes all rows of the table, and names none (`changes.truncates`)."""
CHANGE_TYPES = ("INSERT", "UPDATE", "UPDATE-INSERT", "READ", "", *DELETES)
PREFIXES = {
    "mysql": Kind.MYSQL,
    "oracle": Kind.ORACLE,
    "postgres": Kind.POSTGRESQL,
    "sqlserver": Kind.SQLSERVER,
    "mongo": Kind.MONGODB,
}
BETWEEN = "\x1f"  # between key names while they are one text: no column name has it


@dataclass(frozen=True)
class Rows:
    """Events that were stored under one schema: each metadata field and each payload column as an array.

    `numbers` is each event's number in the file. `payload` holds (name, node, values as stored). `faults` are what
    reading them found: (place in these rows, reason, detail). `untyped`: columns whose type no schema gives, only their
    values (JSON).
    """

    numbers: npt.NDArray[np.int64]
    top: dict[str, pa.Array]
    source: dict[str, pa.Array]
    payload: list[tuple[str, Node, pa.Array]]
    faults: tuple[tuple[int, Reason, str], ...] = ()
    untyped: frozenset[str] = frozenset()

    def take(self, places: npt.NDArray[np.int64]) -> Rows:
        indices = pa.array(places)
        return Rows(
            self.numbers[places],
            {name: array.take(indices) for name, array in self.top.items()},
            {name: array.take(indices) for name, array in self.source.items()},
            [(name, node, array.take(indices)) for name, node, array in self.payload],
            untyped=self.untyped,
        )

    def text(self, place: int) -> bytes:
        """One event as JSON. It never fails: what cannot be shown as JSON is there as Arrow writes it."""
        event: dict[str, Any] = {name: casts.shown(array, place) for name, array in self.top.items()}
        event["source_metadata"] = {name: casts.shown(array, place) for name, array in self.source.items()}
        event["payload"] = {name: casts.shown(array, place) for name, _, array in self.payload}
        return casts.as_json(event)


def names_tables(rows: Rows) -> bool:
    """Whether there is a field that could say whose the events are. A file without one is something else."""
    return "object" in rows.top or not {"table", "collection"}.isdisjoint(rows.source)


def unknown_fields(rows: Rows) -> set[str]:
    """Metadata that this version does not know, to be told once."""
    return (set(rows.top) - TOP) | {f"source_metadata.{name}" for name in set(rows.source) - IN_SOURCE}


class Metadata:
    """The columns of METADATA_TYPE for some rows (`columns`, without the sequence), and what is wrong with some."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._count = len(rows.numbers)
        self.faults: list[tuple[int, Reason, str]] = []
        self.change_type = self._text(rows.source, "change_type")
        self.source = self._source()
        self.table = self._or_else(self.source["table"], self._text(rows.top, "object"))
        self.source["table"] = self.table
        self.read_method = self._text(rows.top, "read_method")
        self._check()

    def columns(self) -> dict[str, pa.Array]:
        rows, top = self._rows, self._rows.top
        source = pa.StructArray.from_arrays([self.source[name] for name in SOURCE_TYPE.names], fields=list(SOURCE_TYPE))
        backfill = pc.or_kleene(_each_value(self.read_method, _is_backfill), pc.equal(self.change_type, "READ"))
        deleted = pc.or_kleene(
            self._flag(rows.source, "is_deleted"), pc.is_in(self.change_type, pa.array([*DELETES, TRUNCATE]))
        )
        return {
            "uuid": self._text(top, "uuid"),
            "source_timestamp": self._millis("source_timestamp"),
            "read_timestamp": self._millis("read_timestamp"),
            "change_type": self.change_type,
            "is_deleted": pc.fill_null(deleted, False),
            "is_backfill": pc.fill_null(backfill, False),
            "sort_keys": self._sort_keys(),
            "read_method": self.read_method,
            "stream_name": self._text(top, "stream_name"),
            "object": self._text(top, "object"),
            "schema_key": self._text(top, "schema_key"),
            "source": source,
        }

    def keys(self) -> pa.Array:
        """The names of the key columns of each event, joined by BETWEEN; "" where there is none."""
        keys = None
        for name in KEYS:
            array = self._rows.source.get(name)
            if array is None or array.null_count == len(array):
                continue
            texts = _key_text(array)
            keys = texts if keys is None else pc.if_else(pc.equal(keys, ""), texts, keys)
        return keys if keys is not None else pa.repeat(pa.scalar(""), self._count)

    def source_table(self, place: int, kind: Kind | None) -> SourceTable:
        """The table that an event is of; `kind`, where given, beats what the event looks like."""
        names = (self.source[name][place].as_py() or "" for name in ("database", "schema", "table"))
        if kind is None:
            fields = {name: array[place].as_py() for name, array in self._rows.source.items()}
            kind = infer_kind(fields, self.read_method[place].as_py() or "")
        return SourceTable(kind, *names)

    # -- single fields ---------------------------------------------------------------------------------------

    def _source(self) -> dict[str, pa.Array]:
        source = self._rows.source
        columns = {
            name: self._text(source, name)
            for name in ("database", "schema", "table", "log_file", "rs_id", "row_id", "lsn", "tx_id")
        }
        for name in ("log_position", "scn", "ssn"):
            columns[name] = self._number(source, name)
        columns["table"] = self._or_else(columns["table"], self._text(source, "collection"))
        columns["log_file"] = self._or_else(columns["log_file"], self._text(source, "binlog_file"))
        columns["log_position"] = self._or_else(columns["log_position"], self._number(source, "binlog_position"))
        return columns

    def _check(self) -> None:
        is_known = pc.is_in(self.change_type, pa.array([*CHANGE_TYPES, None], pa.string()))
        is_truncate = pc.and_(pc.equal(self.change_type, TRUNCATE), pc.equal(self.read_method, DEBEZIUM))
        is_known = pc.or_(is_known, pc.fill_null(is_truncate, False))
        if not pc.all(is_known).as_py():
            for place in np.flatnonzero(~is_known.to_numpy(zero_copy_only=False)):
                value = self.change_type[int(place)].as_py()
                allowed = ", ".join(name for name in CHANGE_TYPES if name)
                detail = f"change_type is {value!r}; known are {allowed} and none"
                self.faults.append((int(place), Reason.UNKNOWN_CHANGE_TYPE, detail))
        named = pc.fill_null(pc.not_equal(self.table, ""), False)
        if not pc.all(named).as_py():
            for place in np.flatnonzero(~named.to_numpy(zero_copy_only=False)):
                detail = "neither source_metadata.table, source_metadata.collection nor object names its table"
                self.faults.append((int(place), Reason.NO_SOURCE_TABLE, detail))

    def _or_else(self, first: pa.Array, second: pa.Array) -> pa.Array:
        if not first.null_count or second.null_count == len(second):
            return first
        return pc.coalesce(first, second)

    def _text(self, fields: dict[str, pa.Array], name: str) -> pa.Array:
        array = fields.get(name)
        if array is None or pa.types.is_null(array.type):
            return pa.nulls(self._count, pa.string())
        if pa.types.is_string(array.type):
            return array
        if pa.types.is_nested(array.type):
            return casts.json_text(array)
        result, bad = casts.cast(array, pa.string())
        self._fault(array, bad, Reason.CORRUPT_EVENT, f"{name} is no text")
        return result

    def _number(self, fields: dict[str, pa.Array], name: str) -> pa.Array:
        array = fields.get(name)
        if array is None or pa.types.is_null(array.type):
            return pa.nulls(self._count, pa.int64())
        if pa.types.is_string(array.type):
            array = pc.if_else(pc.equal(array, ""), pa.scalar(None, pa.string()), array)
        result, bad = casts.cast(array, pa.int64())
        self._fault(array, bad, Reason.BAD_POSITION, f"{name} is no whole number")
        return result

    def _flag(self, fields: dict[str, pa.Array], name: str) -> pa.Array:
        array = fields.get(name)
        if array is None or pa.types.is_null(array.type):
            return pa.nulls(self._count, pa.bool_())
        result, bad = casts.cast(array, pa.bool_())
        self._fault(array, bad, Reason.CORRUPT_EVENT, f"{name} is neither true nor false")
        return result

    def _millis(self, name: str) -> pa.Array:
        """Milliseconds since 1970: as they are (avro), or from a time (Parquet) or its text (JSON)."""
        array = self._rows.top.get(name)
        if array is None or pa.types.is_null(array.type):
            return pa.nulls(self._count, pa.int64())
        if pa.types.is_integer(array.type):
            millis, bad = casts.cast(array, pa.int64())
        elif pa.types.is_timestamp(array.type):
            millis, bad = array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64()), None
        else:
            micros, bad = casts.parse_times(self._text(self._rows.top, name))
            millis = micros.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        self._fault(array, bad, Reason.CORRUPT_EVENT, f"{name} is no time")
        _, outside = casts.timestamps(millis, "ms")
        self._fault(array, outside, Reason.CORRUPT_EVENT, f"{name} is a time beyond all calendars")
        return millis if outside is None else pc.if_else(pa.array(outside), pa.scalar(None, pa.int64()), millis)

    def _sort_keys(self) -> pa.Array:
        array = self._rows.top.get("sort_keys")
        kind = METADATA_TYPE.field("sort_keys").type
        if array is not None and pa.types.is_string(array.type):  # JSON, in which not all are lists
            return pa.array([_texts(text) for text in array.to_pylist()], kind)
        if array is None or not pa.types.is_list(array.type):
            return pa.nulls(self._count, kind)
        if pa.types.is_struct(array.type.value_type):  # Parquet, as Spark writes an avro union
            items = array.flatten()
            texts = [items.field(place).cast(pa.string()) for place in range(items.type.num_fields)]
            values = pc.coalesce(*texts)
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            return pa.ListArray.from_arrays(offsets, values, mask=array.is_null())
        return array.cast(kind)

    def _fault(self, array: pa.Array, bad: Mask | None, reason: Reason, problem: str) -> None:
        if bad is not None:
            for place in np.flatnonzero(bad):
                self.faults.append((int(place), reason, f"{problem}: {str(casts.shown(array, int(place)))[:80]!r}"))


def infer_kind(source: dict[str, Any], read_method: str) -> Kind:
    """The source by the fields of source_metadata, then by the prefix of read_method: newer sources say only `cdc`."""
    method = read_method.lower()
    if "log_position" in source or "binlog_file" in source or "binlog_position" in source:
        return Kind.MYSQL
    if "rs_id" in source or "scn" in source:
        return Kind.ORACLE
    if "collection" in source:
        return Kind.MONGODB
    lsn = source.get("lsn") or ""
    if "replication_index" in source or ":" in lsn:
        return Kind.SQLSERVER
    if "/" in lsn:
        return Kind.POSTGRESQL
    for prefix, kind in PREFIXES.items():
        if method.startswith(prefix):
            return kind
    if "lsn" in source:  # a backfill row without a position; PostgreSQL does not tell its database
        return Kind.SQLSERVER if source.get("database") else Kind.POSTGRESQL
    return Kind.ORACLE if "row_id" in source else Kind.GENERIC


def places_by(number: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """The places of each group, ascending; the groups in the order in which they are met."""
    order = np.argsort(number, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(order) else []
    yield from sorted(groups, key=lambda places: int(places[0]))


def is_constant(array: pa.Array) -> bool:
    """Whether all values are one; a look that is cheap beside what it spares."""
    if array.null_count:
        return bool(array.null_count == len(array))
    return not len(array) or bool(pc.all(pc.equal(array, array[0])).as_py())


def _each_value(array: pa.Array, rule: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """`rule` of an array, worked out once for each value that occurs."""
    if len(array) and is_constant(array):
        return pa.repeat(rule(array.slice(0, 1))[0], len(array))
    codes = array.dictionary_encode()
    return rule(codes.dictionary).take(codes.indices)


def _is_backfill(methods: pa.Array) -> pa.Array:
    return pc.match_substring_regex(methods, "backfill|dump", ignore_case=True)


def _key_text(array: pa.Array) -> pa.Array:
    if pa.types.is_list(array.type):
        if pa.types.is_null(array.type.value_type):
            return pa.repeat(pa.scalar(""), len(array))
        if not array.null_count and pc.all(pc.equal(pc.list_value_length(array), 1)).as_py():
            return pc.fill_null(array.flatten().cast(pa.string()), "")
        return pc.fill_null(pc.binary_join(array.cast(pa.list_(pa.string())), BETWEEN), "")
    codes = array.cast(pa.string()).dictionary_encode()
    names = pa.array([BETWEEN.join(_names(text)) for text in codes.dictionary.to_pylist()], pa.string())
    return pc.fill_null(names.take(codes.indices), "")


def _texts(text: str | None) -> list[str | None] | None:
    """The items of a JSON list as texts; None for what is none."""
    if not text or not text.startswith("["):
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [item if item is None or isinstance(item, str) else json.dumps(item) for item in items]


def _names(text: str) -> list[str]:
    """Key names written as a text: `["id"]` (DataflowTemplates#1835), or plain names with commas."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = [name.strip() for name in text.split(",")]
    return [str(name) for name in (names if isinstance(names, list) else [names]) if name]
