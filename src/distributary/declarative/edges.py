"""Which dataset reads which as a stream, as far as definitions show it.

A stream can't go on over a table that was emptied (DELTA_SOURCE_IGNORE_DELETE): a full refresh takes its readers along.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from distributary.declarative.event_log import dataset_of

Reads = dict[str, set[str]]
"""Dataset -> what it reads as a stream."""

_NAME = r"((?:[\w]+|`[^`]+`)(?:\s*\.\s*(?:[\w]+|`[^`]+`))*)"
_MADE = re.compile(
    rf"\b(?:CREATE\s+(?:OR\s+REFRESH\s+)?(?:STREAMING\s+TABLE|MATERIALIZED\s+VIEW|(?:TEMPORARY\s+)?VIEW)"
    rf"(?:\s+IF\s+NOT\s+EXISTS)?|INSERT\s+INTO(?:\s+ONCE)?)\s+{_NAME}",
    re.IGNORECASE,
)
_VIEW = re.compile(
    rf"\bCREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?VIEW(?:\s+IF\s+NOT\s+EXISTS)?\s+{_NAME}", re.IGNORECASE
)
_STREAM = re.compile(rf"\bSTREAM\b\s*\(?\s*{_NAME}", re.IGNORECASE)


def streams_in(message: Any) -> set[str]:
    """Names of tables that a Connect plan (a protobuf message) reads as a stream."""
    return {
        dataset_of(relation.named_table.unparsed_identifier) for relation in _reads(message) if relation.is_streaming
    }


def _reads(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.full_name == "spark.connect.Read":
            if value.HasField("named_table"):
                yield value
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for item in value.values():
                    yield from _reads(item)
        else:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from _reads(item)


def views_in_sql(text: str) -> set[str]:
    """Views that a SQL file makes, materialized ones apart."""
    return {dataset_of(name) for name in _VIEW.findall(_without_comments(text))}


def made_in_sql(text: str) -> Reads:
    """Datasets that a SQL file makes or fills, and what each reads as a stream."""
    reads_of: Reads = {}
    for statement in _without_comments(text).split(";"):
        if (match := _MADE.search(statement)) is not None:
            names = {dataset_of(name) for name in _STREAM.findall(statement[match.end() :])}
            reads_of.setdefault(dataset_of(match[1]), set()).update(names)
    return reads_of


def with_readers(names: Iterable[str], reads: Mapping[str, Collection[str]]) -> list[str]:
    """`names`, and all that read them as a stream, also by way of one another."""
    readers = list(dict.fromkeys(names))
    for name in readers:  # grows meanwhile
        readers += sorted(
            reader for reader, read_names in reads.items() if name in read_names and reader not in readers
        )
    return readers


def _without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
