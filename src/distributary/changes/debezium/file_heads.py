"""A change of Debezium in the words of change files, where its message is a line of a file: by these the order of
change files' events (`changes.sequence`) is that of the source's log.

| what decides | where a change file says it |
|---|---|
| MySQL: the row within the binlog event | the counter at the end of `uuid`, in which nothing else tells two apart |
| MariaDB: the GTID's number | `log_file`, which ends in it |
| SQL Server: commit LSN, change LSN, serial number of the event | `lsn`, in three parts of 16 hex digits |
| MongoDB: seconds and ordinal | `sort_keys` |
"""

from __future__ import annotations

from distributary.changes.debezium.heads import Head
from distributary.changes.model import Kind
from distributary.changes.sequence import file_number


def in_words_of_files(head: Head) -> Head:
    """The head with these fields, and without a time of reading, which would count before the row."""
    first, second, third, _ = head.place
    source, kind, is_change = dict(head.source), head.table.kind, not head.backfill
    row = third if kind is Kind.MYSQL and is_change else 0
    if kind is Kind.MYSQL and is_change and file_number(str(source["log_file"] or "")) != first:
        source["log_file"] = f"gtid.{first}"
    if kind is Kind.SQLSERVER and is_change:
        source["lsn"] = f"{first:016x}:{second:016x}:{third:016x}"
    return head._replace(source=source, offset=-1, uuid=f"{row:032x}", read_ms=None)
