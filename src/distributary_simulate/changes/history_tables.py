"""Invented tables of five kinds of databases, and values for their columns."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from distributary.changes.model import Kind
from distributary_simulate.changes.model import Column, Row, Table
from distributary_simulate.changes.unified import (
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    JSON,
    LONG,
    NUMBER,
    STRING,
    TIME,
    TIME_INTERVAL,
    TIMESTAMP,
    TIMESTAMP_TZ,
    Unified,
    array,
    decimal,
    varchar,
)

_NULLS: Final = 0.08
_WORDS: Final = ("amber", "brave", "calm", "coral", "delta", "été", "frost", "名前", "o'hara", 'quo"te', "", "tab\tbed")
_DAY_US: Final = 86_400_000_000
_YEARS_US: Final = 30_000 * _DAY_US


def _table(kind: Kind, full_name: str, columns: dict[str, Unified], keys: str, **more: Any) -> Table:
    database, schema, name = full_name.split(".")
    table_columns = tuple(Column(column, type_) for column, type_ in columns.items())
    return Table(kind, database, schema, name, table_columns, tuple(keys.split()), **more)


# Per kind: first the tables of a small run, then the rest.
TABLES: Final[tuple[Table, ...]] = (
    _table(
        Kind.MYSQL,
        "shop..users",
        {"id": INTEGER, "name": STRING, "email": STRING, "age": INTEGER, "balance": decimal(12, 2), "score": DOUBLE,
         "is_active": INTEGER, "interests": STRING, "profile": JSON, "joined_at": TIMESTAMP, "born_on": TIMESTAMP,
         "online": TIME_INTERVAL},
        "id",
    ),
    _table(
        Kind.MYSQL,
        "shop..orders",
        {"id": LONG, "user_id": INTEGER, "status": STRING, "total": decimal(38, 9), "rate": FLOAT, "points": NUMBER,
         "placed_at": TIMESTAMP, "note": STRING},
        "id",
    ),
    _table(
        Kind.MYSQL,
        "shop..order_items",
        {"order_id": LONG, "line": INTEGER, "product": STRING, "price": decimal(10, 2), "image": STRING},
        "order_id line",
    ),
    _table(Kind.MYSQL, "shop..visits", {"page": STRING, "user_id": INTEGER, "at": TIMESTAMP}, ""),
    _table(
        Kind.POSTGRESQL,
        ".public.accounts",
        {"id": LONG, "owner": STRING, "limit": NUMBER, "opened_on": DATE, "closes_at": TIME, "seen_at": TIMESTAMP_TZ,
         "is_open": BOOLEAN, "labels": array(STRING), "scores": array(INTEGER), "settings": JSON, "photo": BYTES},
        "id",
    ),
    _table(
        Kind.POSTGRESQL,
        ".public.sessions",
        {"token": STRING, "uuid": STRING, "payload": LONG, "source_timestamp": STRING, "started_at": TIMESTAMP,
         "weight": FLOAT, "fee": decimal(10, 4)},
        "token",
    ),
    _table(
        Kind.ORACLE,
        "XE.HR.EMPLOYEES",
        {"EMPLOYEE_ID": LONG, "FIRST_NAME": varchar(20), "EMAIL": varchar(25), "HIRE_DATE": TIMESTAMP,
         "SALARY": decimal(8, 2), "MANAGER_ID": LONG, "RATING": NUMBER, "SEEN_AT": TIMESTAMP_TZ},
        "EMPLOYEE_ID",
    ),
    _table(
        Kind.ORACLE,
        "XE.HR.JOBS",
        {"JOB_ID": varchar(10), "JOB_TITLE": varchar(35), "MIN_SALARY": LONG, "BADGE": BYTES, "WEIGHT": DOUBLE},
        "JOB_ID",
    ),
    _table(
        Kind.SQLSERVER,
        "store.dbo.Orders",
        {"OrderId": INTEGER, "Customer": STRING, "Placed": TIMESTAMP, "Total": decimal(19, 4), "Paid": BOOLEAN},
        "OrderId",
        replication_index=True,
    ),
    _table(
        Kind.SQLSERVER,
        "store.dbo.Lines",
        {"OrderId": INTEGER, "Line": INTEGER, "Product": STRING, "Weight": FLOAT, "Label": BYTES},
        "OrderId Line",
    ),
    _table(Kind.MONGODB, "crm..profiles", {"_id": STRING, "data": JSON}, "_id"),
    _table(Kind.MONGODB, "crm..visits", {"_id": STRING, "data": JSON}, "_id"),
)  # fmt: skip


def tables_of(kinds: Sequence[Kind] = tuple(Kind), per_kind: int = 2) -> tuple[Table, ...]:
    """At most `per_kind` tables of each kind. MySQL has four, the last one without a key; the others have two."""
    return tuple(table for kind in kinds for table in [t for t in TABLES if t.kind is kind][:per_kind])


def key_value(kind: Unified, number: int) -> Any:
    """The `number`-th value of a key column: the same number gives the same value."""
    if kind.name in ("INTEGER", "LONG"):
        return number
    if kind.name == "JSON":
        return json.dumps(number)
    return f"k{number:06d}"


def key_row(table: Table, number: int) -> dict[str, Any]:
    """The key columns of the `number`-th row. Composite keys count three lines to the first part."""
    if table.kind is Kind.MONGODB:
        return {"_id": json.dumps({"$oid": f"{number:024x}"})}
    number_parts = (number,) if len(table.keys) == 1 else (number // 3, number % 3)
    return {
        key: key_value(table.column(key).type, number_part)
        for key, number_part in zip(table.keys, number_parts, strict=True)
    }


def new_row(table: Table, key: Row, choices: random.Random) -> dict[str, Any]:
    """A whole row with the given key columns."""
    row = {c.name: key[c.name] if c.name in key else value(c.type, choices) for c in table.columns}
    if table.kind is Kind.MONGODB:
        # A document repeats its own key, and may have fields that others lack.
        data = {"_id": json.loads(row["_id"]), **json.loads(value(JSON, choices, nulls=0.0))}
        row["data"] = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return row


def value(kind: Unified, choices: random.Random, *, nulls: float = _NULLS) -> Any:
    """A random value of a column's type, None now and then."""
    if choices.random() < nulls:
        return None
    return _MAKERS[kind.name](kind, choices)


def _text(kind: Unified, choices: random.Random) -> str:
    text = f"{choices.choice(_WORDS)} {choices.randrange(10_000)}"
    return text[: kind.length] if kind.length else text


def _decimal(kind: Unified, choices: random.Random) -> Decimal:
    limit = 10 ** choices.randint(1, kind.precision) - 1
    # As text: arithmetic would cut it to the 28 digits of the context.
    return Decimal(f"{choices.randint(-limit, limit)}e-{kind.scale}")


def _json(kind: Unified, choices: random.Random) -> str:
    document = {"a": choices.randrange(100), "b": [choices.choice(_WORDS), None], "c": {"d": choices.random() < 0.5}}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _single(kind: Unified, choices: random.Random) -> float:
    single: float = struct.unpack("<f", struct.pack("<f", round(choices.uniform(-1e4, 1e4), 2)))[0]
    return single


def _array(kind: Unified, choices: random.Random) -> list[Any]:
    assert kind.item is not None
    return [value(kind.item, choices) for _ in range(choices.randrange(4))]


_MAKERS: Final = {
    "BOOLEAN": lambda kind, choices: choices.random() < 0.5,
    "INTEGER": lambda kind, choices: choices.choice((0, 1, -1, choices.randrange(10_000), 2**31 - 1, -(2**31))),
    "LONG": lambda kind, choices: choices.choice((0, -1, choices.randrange(10**9), 2**63 - 1, -(2**63))),
    "FLOAT": _single,
    "DOUBLE": lambda kind, choices: choices.choice((0.0, 1.1, choices.gauss(0, 1e6))),
    "STRING": _text,
    "VARCHAR": _text,
    "BYTES": lambda kind, choices: choices.randbytes(choices.randrange(6)),
    "DECIMAL": _decimal,
    "NUMBER": lambda kind, choices: str(choices.choice((choices.randrange(10**20), Decimal("12.50"), -3))),
    "JSON": _json,
    "DATE": lambda kind, choices: choices.randint(-20_000, 40_000),
    "TIME": lambda kind, choices: choices.randrange(_DAY_US),
    "TIME_INTERVAL": lambda kind, choices: choices.randint(-3_020_399, 3_020_399) * 1_000_000,
    "TIMESTAMP": lambda kind, choices: choices.randint(-_YEARS_US // 2, _YEARS_US),
    "TIMESTAMP_TZ": lambda kind, choices: (choices.randrange(_YEARS_US), choices.choice((0, 3_600_000, -19_800_000))),
    "ARRAY": _array,
}
