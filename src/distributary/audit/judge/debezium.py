"""Are the tables of Debezium's topics what the messages say, as the source still has them? Each row of a log is its
message, and a merged table has, for each key, the newest one. In memory is the newest message of each key, and of
Oracle the one before it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distributary.audit.judge.debezium_avro import AvroMessages
from distributary.audit.judge.debezium_messages import JudgedChange, MessageOpener, MessageRules, opened_json
from distributary.audit.judge.debezium_protobuf import ProtobufMessages
from distributary.audit.judge.likeness import unlike
from distributary.audit.judge.maxwell_messages import MaxwellRules
from distributary.audit.judge.merged import key_of, plain_names
from distributary.audit.judge.openlogreplicator_messages import OpenLogReplicatorRules
from distributary.audit.judge.raw_records import KafkaRecords, Place, Records, TableRecords
from distributary.audit.judge.table_rows import table_rows, tombstone_rows
from distributary.audit.verify import TableCheck, Verification
from distributary.config import DeltaSource, KafkaSource, Pipeline
from distributary.config.quantities import milliseconds
from distributary.engine.schemas import registry_of
from distributary.errors import DistributaryError
from distributary.errors.border import contained
from distributary.names import shown
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary.tables.table import Table

METADATA, DELETED = "datastream_metadata", "_deleted"
OURS = frozenset({METADATA, DELETED, "_deleted_at", "_origin"})
Row = dict[str, Any]


_OTHERS = {"maxwell": MaxwellRules, "openlogreplicator": OpenLogReplicatorRules}
PURGED = "distributary.tombstonesPurgedUntil"
"""The table property that says that tombstones have been removed."""


@dataclass
class _JudgedTable:
    """What is known of one source table. By key, `newest`: several of one place are one event that was sent again;
    `before`: those of the place before it, where changes name the row that they are of. `emptied`: the newest
    TRUNCATE."""

    newest: dict[str, list[JudgedChange]] = field(default_factory=dict)
    before: dict[str, list[JudgedChange]] = field(default_factory=dict)
    emptied: list[JudgedChange] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    rows: int = 0
    gone: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    def take(self, change: JudgedChange) -> None:
        if change.empties:
            if not self.emptied or change.place > self.emptied[0].place:
                self.emptied = [change]
            return
        key = json.dumps(key_of(change.values, self.keys))
        newest, before = self.newest.get(key), self.before.get(key)
        if newest is None or change.event == newest[0].event:
            self.newest[key] = _newest(newest, change)
        elif change.place > newest[0].place:
            self.newest[key] = [change]
            if change.row:
                self.before[key] = newest
        elif change.row and (before is None or change.place > before[0].place or change.event == before[0].event):
            self.before[key] = _newest(before, change)

    def holding(self) -> dict[str, list[JudgedChange]]:
        """By key, the change that the source's table shows."""
        holding = dict(self.newest)
        for key, before in self.before.items():
            if all(newest.gives_way(before[0]) for newest in holding[key]):
                holding[key] = before
        return holding

    def standing(self) -> dict[str, list[JudgedChange]]:
        """`holding`, of which those before the newest TRUNCATE are deleted by it."""
        holding = self.holding()
        if not self.emptied:
            return holding
        last = self.emptied[0].place
        return {key: self.emptied if newest[0].place < last else newest for key, newest in holding.items()}


def _newest(changes: list[JudgedChange] | None, change: JudgedChange) -> list[JudgedChange]:
    """The newest of these and of one more, first; and those that say the same of the same event: it was sent again, and
    any of them may stand in the table."""
    if not changes:
        return [change]
    newest_first = [change, *changes] if change.place > changes[0].place else [*changes, change]
    if changes[0].says_the_same(change):
        return newest_first
    if change.place > changes[0].place:
        return [change]
    return [*changes, change] if change.place == changes[0].place else changes


def judge_changes(config: Pipeline, counted: Verification, records: Records | None = None) -> Verification:
    """`counted` with what a comparison with the messages tells. What cannot be compared is said in `notes`.

    `records`: finds the messages; without it, the source does.
    """
    try:
        records = records or _records(config)
        merged = _merged_tables(config)
        opened = _opener(config)
    except BaseException as e:
        return replace(counted, notes=(*counted.notes, f"values were not compared: {contained(e)}"))
    notes: list[str] = []
    tables: list[TableCheck] = []
    try:
        for table in counted.tables:
            tables.append(_table(config, table, merged.get(table.route), records, notes, opened))
    finally:
        records.close()
    return counted.judged(tables, notes)


def _records(config: Pipeline) -> Records:
    if isinstance(config.source, KafkaSource):
        return KafkaRecords(config.source)
    assert isinstance(config.source, DeltaSource)
    return TableRecords(config.source, Store.of(config.tables))


def _merged_tables(config: Pipeline) -> dict[str, str]:
    newest = Ledger(config.state_root, config.pipeline, Store.of(config.tables)).newest
    return {route: entry.merged for route, entry in newest.items() if route is not None and entry.merged}


def _opener(config: Pipeline) -> MessageOpener:
    """What takes a message's bytes apart."""
    match config.payload.format:
        case "avro":
            return AvroMessages(registry_of(config)).opened
        case "protobuf":
            return ProtobufMessages(registry_of(config)).opened
    return opened_json


def _rules(config: Pipeline, route: str, opened: MessageOpener) -> MessageRules:
    envelope, table_config = config.envelope, config.tables.routes.get(route)
    epochs = sorted(milliseconds(time) for time in (table_config.epochs or ())) if table_config else []
    repairs = sorted(milliseconds(time) for time in table_config.repair_backfills) if table_config else []
    rules = MessageRules(envelope.flattened, envelope.order == "offset", envelope.placeholder, epochs, repairs, opened)
    if (of_others := _OTHERS.get(envelope.format)) is not None:
        own = tuple(table_config.keys or ()) if table_config else ()
        return of_others(by_offset=rules.by_offset, epochs=epochs, repairs=repairs, own=own)
    return rules


def _table(
    config: Pipeline,
    table: TableCheck,
    merged: str | None,
    records: Records,
    notes: list[str],
    opened: MessageOpener,
) -> TableCheck:
    if table.table is None:
        return table
    table_config = config.tables.routes.get(table.route)
    judged = _JudgedTable(keys=tuple(table_config.keys) if table_config and table_config.keys else ())
    store = Store.of(config.tables)
    try:
        _judge_log(table, _rules(config, table.route, opened), records, store, judged)
        if judged.gone:
            notes.append(
                f"{shown(table.route)}: {judged.gone} messages are gone at the source, so that it was not judged"
            )
        elif merged is not None and judged.keys:
            _judge_merged(merged, store, judged)
    except DistributaryError as e:
        notes.append(f"{shown(table.route)}: values were not compared: {e}")
        return table
    except BaseException as e:
        return replace(table, problems=(*table.problems, f"its values cannot be compared: {contained(e)}"))
    wrong = [f"{count} {text}" for text, count in judged.wrong.items()]
    return replace(table, rows_compared=judged.rows, problems=(*table.problems, *wrong))


def _judge_log(table: TableCheck, rules: MessageRules, records: Records, store: Store, judged: _JudgedTable) -> None:
    for rows in table_rows(str(table.table), store):
        places = [_place(row["_origin"]) for row in rows]
        record_of = records.get(table.route, places)
        for row, place in zip(rows, places, strict=True):
            record = record_of.get(place)
            if record is None:
                judged.gone += 1
                continue
            at = (str(place.topic), place.partition, place.offset)
            change = rules.change_of(row[METADATA], *at, record.key, record.body)
            judged.keys = judged.keys or change.keys
            judged.rows += 1
            if not change.is_of_type(row[METADATA]["change_type"]):
                judged.wrong["rows of the log are of another kind of change than their message"] += 1
            elif (name := _differs(change, row)) is not None:
                judged.wrong[f"rows of the log have another {shown(name)} than their message"] += 1
            judged.take(change)


def _judge_merged(uri: str, store: Store, judged: _JudgedTable) -> None:
    unmatched = judged.standing()
    own: set[str] = set()
    for beside, rows in _rows_of_both(uri, store):
        for row in rows:
            key = json.dumps(key_of(row, judged.keys))
            if beside and key in own:
                continue  # a key that was there again has left its tombstone
            own |= set() if beside else {key}
            newest = unmatched.pop(key, None)
            if newest is None:
                judged.wrong["rows of the merged table have a key that no message has, or that is there already"] += 1
            elif row[METADATA]["uuid"] not in {change.identity for change in newest}:
                judged.wrong["rows of the merged table are not the newest message of their key"] += 1
            elif bool(row[DELETED]) != newest[0].deleted:
                judged.wrong["rows of the merged table live, or are deleted, against their message"] += 1
            elif not newest[0].deleted and all(_differs(change, row) is not None for change in newest):
                judged.wrong["rows of the merged table do not have the values of their newest message"] += 1
    opened = Table(uri, store).open()
    purged = opened is not None and PURGED in opened.properties
    if missing := sum(not (purged and newest[0].deleted) for newest in unmatched.values()):
        judged.wrong["keys are missing from the merged table"] += missing


def _rows_of_both(uri: str, store: Store) -> Iterator[tuple[bool, list[dict[str, Any]]]]:
    """(do they lie beside it?, rows) of a merged table and of its tombstones."""
    yield from ((False, rows) for rows in table_rows(uri, store))
    yield from ((True, rows) for rows in tombstone_rows(uri, store))


def _differs(change: JudgedChange, row: Mapping[str, Any]) -> str | None:
    row_values = plain_names({name: value for name, value in row.items() if name not in OURS})
    return unlike(change.values, row_values, silent=change.silent)


def _place(origin: Mapping[str, Any]) -> Place:
    topic, _, partition = origin["file"].rpartition("/")
    return Place(topic, int(partition), origin["row"])
