"""Topics of Debezium through a pipeline without Spark: messages go in, log and merged tables come out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge.debezium import judge_changes
from distributary.audit.judge.histories import judge_histories
from distributary.audit.judge.opened_records import Record
from distributary.audit.judge.raw_records import Place
from distributary.audit.verify import Verification, verify
from distributary.changes.debezium.heads import Message
from distributary.changes.model import METADATA, Kind
from distributary.config import Pipeline
from distributary.engine.batch import BatchReport, BatchWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.replay import Replay, ReplayReport
from distributary.engine.schemas import schemas_of
from distributary.errors import Reason
from distributary.kinds import kind_of
from distributary.running.catalog import register_tables
from distributary.running.maintain import maintain
from distributary.state.ledger import Ledger
from distributary.tables.quarantine import (
    ORIGIN_FIELDS,
    REJECTED_SCHEMA,
    commit_quarantine,
    quarantine_uri,
    write_rejected,
)
from distributary.tables.store import Store
from distributary_simulate.changes.history import History, HistoryPlan
from tests.debezium_messages import MS, change, flattened, text, tombstone
from tests.sparkless_messages import SOURCE, STREAM, Rows, Session
from tests.test_debezium_histories import assert_source_rows, merged_name, messages_of

WITH_HEADERS = SOURCE.append(next(field for field in ORIGIN_FIELDS if field.name == "headers"))
KINDS = {"id": "int32", "name": "string", "big": "string"}


class Shop:
    """A pipeline. Each of its methods is a new process."""

    def __init__(self, root: Path, tables: dict[str, Any] | None = None, **envelope: Any) -> None:
        self.config = Pipeline.model_validate(
            {
                "pipeline": "shop",
                "source": {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic_pattern": "srv.*"},
                "envelope": {"format": "debezium", **envelope},
                "payload": {"format": "json"},
                "tables": {"root": str(root / "lake"), **(tables or {})},
                "quarantine": {"max_ratio": 1.0},
            }
        )
        self._batch = -1
        self.spark: Any = Session(2)

    def take(self, messages: Sequence[Message], batch: int | None = None) -> BatchReport:
        return self.take_rows([record(m) for m in messages], batch)

    def take_rows(self, rows_taken: list[dict[str, Any]], batch: int | None = None) -> BatchReport:
        self._batch += 1
        fanout, ledger = self._fanout()
        records = pa.RecordBatch.from_pylist(rows_taken, schema=WITH_HEADERS)
        batch = self._batch if batch is None else batch
        rows = self._source(records)
        return BatchWriter(self.config, fanout, ledger).take(rows, STREAM, batch)

    def replay(self) -> ReplayReport:
        fanout, ledger = self._fanout()
        return Replay(self.config, ledger, fanout).run()

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(f"{self.config.tables.root}/{table}").to_pyarrow_table().to_pylist()
        return found

    def living(self, table: str) -> list[dict[str, Any]]:
        return [row for row in self.rows(table) if not row["_deleted"]]

    def quarantined(self) -> list[tuple[str, str]]:
        try:
            rows = DeltaTable(f"{self.config.state_root}/quarantine").to_pyarrow_table()
        except Exception:
            return []
        return sorted((row["reason"], row["state"]) for row in rows.select(["reason", "state"]).to_pylist())

    def _fanout(self) -> tuple[Fanout, Ledger]:
        store = Store.of(self.config.tables)
        fanout = Fanout(self.spark, self.config, schemas_of(self.config), store)
        return fanout, Ledger(self.config.state_root, self.config.pipeline, store)

    def _source(self, records: pa.RecordBatch) -> Any:
        if isinstance(self.spark, Session):
            return Rows(self.spark, [records])
        return self.spark.createDataFrame(pa.Table.from_batches([records]))


def record(message: Message) -> dict[str, Any]:
    place = message.record
    at = datetime.fromtimestamp(1_700_000_000 + place.offset, UTC)
    here = {"partition": place.partition, "offset": place.offset, "timestamp": at, "topic": place.topic}
    headers = [{"key": name, "value": b"{}"} for name in sorted(place.headers)]
    return {"value": message.value, "key": message.key, "headers": headers or None, **here}


def bare(messages: Sequence[Message]) -> list[Message]:
    """As they are where headers are not read."""
    return [message._replace(record=message.record._replace(headers=frozenset())) for message in messages]


OTHERS = [(kind, "with headers") for kind in (Kind.MYSQL, Kind.POSTGRESQL, Kind.SQLSERVER, Kind.MONGODB)]
ORACLES = [(Kind.ORACLE, "with headers"), (Kind.ORACLE, "without headers")]


@pytest.mark.parametrize(("kind", "read"), [*OTHERS, *ORACLES])
def test_after_any_batches_in_any_order_the_merged_tables_are_those_of_the_source(
    kind: Kind, read: str, tmp_path: Path
) -> None:
    tables = tuple(table for table in HistoryPlan().tables if table.kind is kind)
    history = History(HistoryPlan(tables=tables, seed=4, schema_changes=0))
    messages = messages_of(history, 400, schemas=True)
    messages = messages if read == "with headers" else bare(messages)
    random = Random(4)
    sent = [*messages, *random.sample(messages, 40)]
    random.shuffle(sent)
    shop = Shop(tmp_path, {"history": "{database}_{schema}_{table}_history"})
    for begin in range(0, len(sent), 150):
        shop.take(sent[begin : begin + 150])
    histories = judge_histories(shop.config, verify(shop.config))
    assert histories.ok and not [note for note in histories.notes if "history" in note], histories
    for truth in history.truth().values():
        table = truth.table
        if not table.keys:
            continue
        name = merged_name(table)
        found = shop.living(name)
        current = [row[METADATA]["uuid"] for row in shop.rows(f"{name}_history") if row["is_current"]]
        assert sorted(current) == sorted(row[METADATA]["uuid"] for row in found)
        assert_source_rows(truth, found)


def put(op: str, key: int, offset: int, pos: int, ts_ms: int = MS, **values: Any) -> Message:
    row = {"id": key, "name": None, "big": None, **values}
    return change(op, row, kinds=KINDS, offset=offset, pos=pos, ts_ms=ts_ms)


def test_a_batch_makes_a_log_of_all_changes_and_a_table_of_the_rows_that_live(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"log": "{database}_{table}_log", "merged": "{database}_{table}"})
    delete = put("d", 2, 2, 30)
    report = shop.take([put("c", 1, 0, 10, name="a"), put("c", 2, 1, 20, name="b"), delete, tombstone(delete)])
    assert (report.rows_in, report.rows_written, report.tombstones) == (3, 3, 1)
    assert [(row["id"], row["name"]) for row in shop.living("shop_orders")] == [(1, "a")]
    log = shop.rows("shop_orders_log")
    assert sorted((row["_origin"]["file"], row["_origin"]["row"]) for row in log) == [
        ("srv.shop.orders/0", n) for n in range(3)
    ]
    assert shop.take([put("u", 1, 4, 5, name="older")]).rows_written == 1
    assert [row["name"] for row in shop.living("shop_orders")] == ["a"]


DAY_MS = 86_400_000


def test_tombstones_stay_while_any_message_waits_in_the_quarantine(tmp_path: Path) -> None:
    """A connector that was behind sent it days after its change: the record's time says nothing of that."""
    shop = Shop(tmp_path, {"tombstone_retention": "30 days"})

    def at(op: str, key: int, offset: int, day: int) -> Message:
        row = {"id": key, "name": "old", "big": None}
        return change(op, row, kinds=KINDS, offset=offset, pos=10 * offset + 10, ts_ms=MS + (day - 60) * DAY_MS)

    created = at("c", 1, 0, 0)
    shop.take([at("d", 1, 1, 1)])
    shop.take([at("c", 2, 2, 60)])
    sent = datetime.fromtimestamp(MS / 1000, UTC) - timedelta(days=25)
    aside = {"route": "shop.orders", "reason": "TABLE_PARKED", "detail": "", "level": "payload", "timestamp": sent}
    place = {"topic": created.record.topic, "partition": 0, "offset": 0}
    row = {**aside, **place, "value": created.value, "key": created.key}
    uri, store = quarantine_uri(shop.config.state_root), Store.of(shop.config.tables)
    file = write_rejected(uri, [pa.Table.from_pylist([row], schema=REJECTED_SCHEMA)], STREAM, 99, "0", store)
    commit_quarantine(uri, "shop", [file], STREAM, 99, store)
    held = {done.table: done for done in maintain(shop.config)}[f"{shop.config.tables.root}/shop_orders"]
    assert (held.purged, held.held) == (0, "messages wait in the quarantine that are as old")
    shop.replay()
    assert [row["id"] for row in shop.living("shop_orders")] == [2]
    done = {done.table: done for done in maintain(shop.config)}[held.table]
    assert (done.purged, done.held, done.skipped) == (1, None, None)


def test_a_batch_that_is_taken_again_changes_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    messages = [put("c", 1, 0, 10, name="a"), put("u", 1, 1, 20, name="b")]
    shop.take(messages, 0)
    shop.take(messages, 0)
    assert len(shop.rows("shop_orders_log")) == 2
    assert [row["name"] for row in shop.living("shop_orders")] == ["b"]


def test_a_value_that_was_not_logged_stays_as_it_was(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.take([put("c", 1, 0, 10, name="a", big="long"), put("c", 2, 1, 20, name="a", big="long too")])
    unchanged = "__debezium_unavailable_value"
    shop.take([put("u", 1, 2, 30, name="b", big=unchanged), put("u", 2, 3, 40, name="b", big="new")])
    shop.take([put("u", 2, 4, 50, name="c", big=unchanged)])
    assert sorted((row["id"], row["name"], row["big"]) for row in shop.living("shop_orders")) == [
        (1, "b", "long"),
        (2, "c", "new"),
    ]


UNCHANGED = "__debezium_unavailable_value"


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
@pytest.mark.parametrize("merge", ["copy_on_write", "merge_on_read"])
def test_a_value_that_was_not_logged_is_that_of_the_newest_older_change_whatever_the_order_of_batches(
    merge: str, order: Sequence[int], tmp_path: Path
) -> None:
    """Each change is a batch of its own. Key 2's row was deleted before the update that does not say its value."""
    history = [
        [put("c", 1, 0, 10, big="first"), put("c", 2, 4, 11, big="gone")],
        [put("u", 1, 1, 20, name="b", big="second"), put("d", 2, 5, 21)],
        [put("u", 1, 2, 30, name="c", big=UNCHANGED), put("u", 2, 6, 31, name="c", big=UNCHANGED)],
        [put("u", 1, 3, 40, name="d", big=UNCHANGED), put("u", 2, 7, 41, name="d", big=UNCHANGED)],
    ]
    shop = Shop(tmp_path, {"merge": merge})
    for number in order:
        shop.take(history[number])
    assert sorted((row["id"], row["name"], row["big"]) for row in shop.living("shop_orders")) == [
        (1, "d", "second"),
        (2, "d", None),
    ]
    assert len(shop.rows("shop_orders_log")) == 8


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
def test_each_version_of_a_history_has_the_values_that_were_not_logged_whatever_the_order_of_batches(
    order: Sequence[int], tmp_path: Path
) -> None:
    history = [
        [put("c", 1, 0, 10, big="first", ts_ms=MS + 1_000)],
        [put("u", 1, 1, 20, name="b", big="second", ts_ms=MS + 2_000)],
        [put("u", 1, 2, 30, name="c", big=UNCHANGED, ts_ms=MS + 3_000)],
        [put("u", 1, 3, 40, name="d", big="fourth", ts_ms=MS + 4_000)],
    ]
    shop = Shop(tmp_path, {"history": "{database}_{table}_history"})
    for number in order:
        shop.take(history[number])
    rows = sorted(shop.rows("shop_orders_history"), key=lambda row: row["valid_from"])
    assert [row["big"] for row in rows] == ["first", "second", "second", "fourth"]
    judged = judge_histories(shop.config, verify(shop.config))
    assert judged.ok, judged.problems
    DeltaTable(str(tmp_path / "lake" / "shop_orders_history")).update({"big": "'first'"}, predicate="name = 'c'")
    judged = judge_histories(shop.config, verify(shop.config))
    assert any("do not have the values" in problem for problem in judged.problems)


@pytest.mark.spark
def test_spark_fills_in_what_was_not_logged_by_the_log_too(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"merge_engine_rows": 1})
    shop.spark = spark
    batches = (
        [put("c", n, n, 10, big="first") for n in (1, 2)],
        [put("u", 1, 4, 30, name="c", big=UNCHANGED), put("u", 2, 5, 30, name="c", big="own")],
        [put("u", n, 5 + n, 20, name="b", big="second") for n in (1, 2)],
    )
    for batch in batches:
        assert shop.take(batch).parked == ()
    assert sorted((row["id"], row["name"], row["big"]) for row in shop.living("shop_orders")) == [
        (1, "c", "second"),
        (2, "c", "own"),
    ]


def test_a_row_of_a_snapshot_that_comes_behind_its_changes_says_what_they_did_not(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.take([put("u", 1, 0, 30, name="b", big=UNCHANGED), put("u", 2, 1, 31, name="b", big="own")])
    shop.take([put("r", n, 1 + n, 90, name="a", big=f"long {n}", snapshot="incremental") for n in (1, 2)])
    assert sorted((row["id"], row["name"], row["big"]) for row in shop.living("shop_orders")) == [
        (1, "b", "long 1"),
        (2, "b", "own"),
    ]


def test_a_record_whose_key_has_other_columns_is_set_aside_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    other = put("u", 1, 1, 20, name="b")._replace(key=text({"name": "b"}))
    report = shop.take([put("c", 1, 0, 10, name="a"), other, put("u", 1, 2, 30, name="c")])
    assert (report.rows_in, report.rows_written, report.parked) == (3, 2, ())
    report = shop.take([other._replace(record=other.record._replace(offset=3)), put("u", 1, 4, 40, name="d")])
    assert (report.rows_written, report.parked) == (1, ())
    assert [row["name"] for row in shop.living("shop_orders")] == ["d"]
    assert [reason for reason, _ in shop.quarantined()] == [Reason.OTHER_KEY.value] * 2


def test_what_cannot_be_used_is_set_aside_and_the_rest_is_written(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    good = put("c", 1, 0, 10, name="a")
    body = json.loads(good.value or b"")
    unknown = text({**body, "payload": {**body["payload"], "op": "x", "after": None}})
    bad = [
        good._replace(value=b"{", record=good.record._replace(offset=1)),
        good._replace(value=unknown, key=None, record=good.record._replace(offset=2)),
    ]
    heartbeat = good._replace(value=b'{"ts_ms":1}', record=good.record._replace(offset=3))
    report = shop.take([good, *bad, heartbeat])
    assert (report.rows_in, report.rows_written, report.tombstones) == (3, 1, 1)
    assert shop.quarantined() == [("CORRUPT_ENVELOPE", "open"), (Reason.UNKNOWN_CHANGE_TYPE.value, "open")]


def test_a_message_for_which_the_reader_raises_is_set_aside_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    good = put("c", 1, 0, 10, name="a")
    body = json.loads(good.value or b"")
    nested: dict[str, Any] = {"type": "int32"}
    for _ in range(200):
        nested = {"type": "struct", "fields": [{**nested, "field": "x"}]}
    deep = {"type": "struct", "fields": [{"type": "struct", "fields": [{**nested, "field": "y"}], "field": "after"}]}
    hostile = good._replace(value=text({**body, "schema": deep}), record=good.record._replace(offset=1))
    report = shop.take([good, hostile, put("u", 1, 2, 30, name="b")])
    assert (report.rows_in, report.rows_written) == (3, 2)
    assert [row["name"] for row in shop.living("shop_orders")] == ["b"]
    assert [reason for reason, _ in shop.quarantined()] == [Reason.DECODER_FAILED.value]
    assert shop.replay().failed == {}


def test_columns_that_are_called_as_ours_keep_their_values_beside_those_called_as_they_would_be(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"history": "{database}_{table}_history"})
    names = ("datastream_metadata", "valid_from", "_deleted")
    row = {"id": 1} | {f"{name}__field": n for n, name in enumerate(names)} | dict.fromkeys(names, 9)
    shop.take([change("c", row, pos=11)])
    for table in ("shop_orders", "shop_orders_log", "shop_orders_history"):
        [held] = shop.rows(table)
        values = [value for name, value in held.items() if name.startswith(names) and type(value) is int]
        assert sorted(values) == [0, 1, 2, 9, 9, 9], table


@pytest.mark.parametrize("op", ["c", "u", "d"])
def test_a_change_without_a_value_in_the_key_of_the_pipeline_file_is_set_aside(op: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"routes": {"XE.HR.orders": {"keys": ["name"]}}})
    row = {"id": 1, "name": "a"}
    of_oracle: dict[str, Any] = {"connector": "oracle", "row_id": "AAA"}
    later: dict[str, Any] = {"scn": "2000", "commit_scn": "2001"}
    shop.take([change("c", row, **of_oracle), change(op, {"id": 1, "name": None}, offset=1, **of_oracle, **later)])
    report = shop.take([change(op, {"id": 1}, offset=2, **of_oracle, **later)])
    assert (report.rows_in, report.rows_written) == (1, 0)
    assert [row["name"] for row in shop.living("xe_hr_orders")] == ["a"]
    assert [reason for reason, _ in shop.quarantined()] == [Reason.NO_KEY_VALUE.value] * 2


@pytest.mark.parametrize("pos", [5, 30])
def test_a_change_without_a_key_of_a_table_that_has_one_is_set_aside_alone(pos: int, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    keyless = put("u", 2, 1, pos, name="nobody")._replace(key=None)
    report = shop.take([put("c", 1, 0, 10, name="a"), keyless])
    assert (report.rows_in, report.rows_written) == (2, 1)
    report = shop.take([keyless._replace(record=keyless.record._replace(offset=2))])
    assert (report.rows_in, report.rows_written) == (1, 0)
    assert [row["name"] for row in shop.living("shop_orders")] == ["a"]
    assert [reason for reason, _ in shop.quarantined()] == [Reason.NO_KEY_VALUE.value] * 2
    mended = Shop(tmp_path, {"routes": {"shop.orders": {"keys": ["id"]}}})
    assert mended.replay().rows == {"shop.orders": 2}
    assert sorted(row["name"] for row in mended.living("shop_orders")) == ["a", "nobody"]


def test_rows_that_were_set_aside_come_in_by_replay_in_their_place(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"max_new_tables": 1})
    first, second = (put("c", 1, 0, 10, name=table)._replace() for table in ("a", "b"))
    other = change("c", {"id": 1, "name": "b", "big": None}, kinds=KINDS, table="users", offset=0)
    shop.take([first, second._replace(record=second.record._replace(offset=1)), other])
    assert [reason for reason, _ in shop.quarantined()] == ["TOO_MANY_ROUTES"]
    assert shop.replay().rows == {"shop.users": 1}
    assert [row["name"] for row in shop.living("shop_users")] == ["b"]


def test_flattened_rows_by_offset_are_deleted_by_tombstones(tmp_path: Path) -> None:
    shop = Shop(tmp_path, flattened=True, order="offset")
    kinds = {"id": "int32", "name": "string"}
    rows = [flattened({"id": n, "name": f"v{n}"}, key={"id": n}, offset=n, kinds=kinds) for n in (1, 2)]
    shop.take([*rows, flattened(None, key={"id": 1}, offset=3, kinds=kinds)])
    assert [(row["id"], row["name"]) for row in shop.living("shop_orders")] == [(2, "v2")]


def test_a_log_that_has_begun_anew_parks_its_table_until_its_time_is_given(tmp_path: Path) -> None:
    hours = 3 * 3_600_000
    shop = Shop(tmp_path)
    shop.take([put("c", 1, 0, 900, name="before the failover")])
    after = change("u", {"id": 1, "name": "after it", "big": None}, kinds=KINDS, offset=1, pos=4, ts_ms=MS + hours)
    report = shop.take([after])
    assert report.parked == ("shop.orders",)
    assert shop.quarantined() == [("TABLE_PARKED", "open")]
    since = datetime.fromtimestamp((MS + hours) / 1000 - 60, UTC).isoformat()
    mended = Shop(tmp_path, {"routes": {"shop.orders": {"epochs": [since]}}})
    assert mended.replay().rows == {"shop.orders": 1}
    assert [row["name"] for row in mended.living("shop_orders")] == ["after it"]
    assert len(mended.rows("shop_orders_log")) == 2


def test_resync_brings_in_what_lost_before_the_log_was_known_to_have_begun_anew(tmp_path: Path) -> None:
    """A change within the margin of the one that it lost to is in the log only; so is one that came when the log began
    anew again."""
    hours, tables = 3 * 3_600_000, {"history": "{database}_{table}_history"}
    shop = Shop(tmp_path, tables)
    shop.take([put("c", 1, 0, 900, name="before"), put("c", 2, 1, 901, name="before")])
    early = change("u", {"id": 2, "name": "soon after", "big": None}, kinds=KINDS, offset=2, pos=3, ts_ms=MS + 60_000)
    late = change("u", {"id": 1, "name": "later", "big": None}, kinds=KINDS, offset=3, pos=4, ts_ms=MS + hours)
    shop.take([early])
    assert shop.take([late]).parked == ("shop.orders",)
    since = datetime.fromtimestamp((MS + 50_000) / 1000, UTC).isoformat()
    mended = Shop(tmp_path, {**tables, "routes": {"shop.orders": {"epochs": [since]}}})
    assert mended.replay().rows == {"shop.orders": 1}
    assert sorted(row["name"] for row in mended.living("shop_orders")) == ["before", "later"]
    done = kind_of(mended.config, tmp_path / "shop.yaml").resync("shop.orders")
    assert (done.counts["rows"], done.counts["events"]) == (2, 4)
    assert sorted(row["name"] for row in mended.living("shop_orders")) == ["later", "soon after"]
    current = [row["name"] for row in mended.rows("shop_orders_history") if row["is_current"]]
    assert sorted(current) == ["later", "soon after"]
    found = judge_histories(mended.config, verify(mended.config))
    assert found.ok and not [note for note in found.notes if "history" in note], (found.problems, found.notes)
    again = change("u", {"id": 1, "name": "on", "big": None}, kinds=KINDS, offset=4, pos=9, ts_ms=MS + hours + 1)
    mended.take([again], batch=3)
    assert sorted(row["name"] for row in mended.living("shop_orders")) == ["on", "soon after"]


def test_tables_and_living_rows_have_names_in_a_catalog(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"database": "lake", "view": "{database}_{table}_now"})
    report = shop.take([put("c", 1, 0, 10, name="a"), put("d", 2, 1, 20)])
    assert report.rows_written == 2
    catalog = SimpleNamespace(
        done=[], catalog=SimpleNamespace(tableExists=lambda _: False, databaseExists=lambda _: False)
    )
    catalog.sql = catalog.done.append
    _, ledger = shop._fanout()
    register_tables(catalog, shop.config, ledger, ["shop.orders"])  # type: ignore[arg-type]
    named = [text.split(" USING")[0].split(" AS ")[0] for text in catalog.done[1:]]
    assert named == [
        "CREATE TABLE IF NOT EXISTS `lake`.`shop_orders_log`",
        "CREATE TABLE IF NOT EXISTS `lake`.`shop_orders`",
        "CREATE OR REPLACE VIEW `lake`.`shop_orders_now`",
    ]


# -- the judge ---------------------------------------------------------------------------------------------------------


class Topics:
    """Finds messages as Kafka does."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._records = {
            Place(m.record.topic, m.record.partition, m.record.offset): Record(m.value, topic=m.record.topic, key=m.key)
            for m in messages
            if m.value is not None
        }

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        return {place: self._records[place] for place in places if place in self._records}

    def close(self) -> None: ...


def test_a_table_of_records_has_what_the_judge_asks_for(tmp_path: Path) -> None:
    shop, source = Shop(tmp_path), str(tmp_path / "records")
    messages = [put("c", 1, 0, 10, name="a"), put("u", 1, 1, 20, name="b")]
    rows = [{name: value for name, value in record(m).items() if name != "headers"} for m in messages]
    write_deltalake(source, pa.Table.from_pylist(rows, schema=SOURCE))
    given = {**shop.config.model_dump(exclude_unset=True), "source": {"type": "delta", "path": source}}
    shop.config = Pipeline.model_validate(given)
    shop.take(messages)
    found = judge_changes(shop.config, verify(shop.config))
    assert (found.ok, found.notes, sum(table.rows_compared for table in found.tables)) == (True, (), 2)
    spoil(f"{shop.config.tables.root}/shop_orders", "name", "other")
    found = judge_changes(shop.config, verify(shop.config))
    assert any("do not have the values of their newest message" in problem for problem in found.problems)


def test_a_record_that_does_not_say_its_place_in_a_topic_is_set_aside_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    rows = [record(put("c", key, key, 10 * key, name="a")) for key in (1, 2, 3, 4)]
    rows[0]["offset"] = rows[2]["partition"] = None
    assert shop.take_rows(rows).rows_written == 2
    assert sorted(row["id"] for row in shop.living("shop_orders")) == [2, 4]
    assert [reason for reason, _ in shop.quarantined()] == [Reason.BAD_POSITION.value] * 2


def judged(shop: Shop, messages: Sequence[Message]) -> Verification:
    return judge_changes(shop.config, verify(shop.config), Topics(messages))


@pytest.mark.parametrize(("kind", "read"), [*OTHERS, *ORACLES])
@pytest.mark.parametrize("schemas", [True, False], ids=["with schemas", "without"])
def test_the_judge_finds_nothing_wrong_with_what_is_right(kind: Kind, read: str, schemas: bool, tmp_path: Path) -> None:
    history = History(HistoryPlan(tables=tuple(t for t in HistoryPlan().tables if t.kind is kind), seed=8))
    messages = messages_of(history, 300, schemas=schemas)
    messages = messages if read == "with headers" else bare(messages)
    shop = Shop(tmp_path)
    half = len(messages) // 2
    shop.take(messages[half:])
    shop.take(messages[:half])
    found = judged(shop, messages)
    assert (found.problems, found.notes) == ((), ())
    assert sum(table.rows_compared for table in found.tables) == found.rows_written


def test_a_row_of_a_snapshot_that_was_sent_again_is_right_whichever_message_stands(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    first = change("r", {"id": 1, "name": "a", "big": None}, kinds=KINDS, offset=3, snapshot="incremental")
    again = first._replace(record=first.record._replace(offset=9))
    for message in (again, first):
        shop.take([message])
    assert judged(shop, [first, again]).ok
    spoil(f"{shop.config.tables.root}/shop_orders", "name", "other")
    assert not judged(shop, [first, again]).ok


def of_row(op: str, key: int, row_id: str, offset: int) -> Message:
    place: dict[str, Any] = {"scn": "100", "ssn": offset, "txId": "7.1.3", "row_id": row_id}
    values = {"id": key, "name": row_id, "big": None}
    return change(op, values, connector="oracle", kinds=KINDS, offset=offset, db="shop", schema="", **place)


def test_rows_of_oracle_that_exchange_keys_in_one_statement_live_and_the_judge_says_where_one_does_not(
    tmp_path: Path,
) -> None:
    """Debezium sends the insert of a key's new row before the delete of its old one. Headers are not read here."""
    shop = Shop(tmp_path)
    messages = [
        of_row("c", 1, "A", 0), of_row("c", 2, "B", 1),
        of_row("d", 1, "A", 2), of_row("c", 2, "A", 3), of_row("d", 2, "B", 4), of_row("c", 1, "B", 5),
    ]  # fmt: skip
    shop.take(messages)
    assert sorted((row["id"], row["name"]) for row in shop.living("shop_orders")) == [(1, "B"), (2, "A")]
    assert judged(shop, messages).ok
    spoil(f"{shop.config.tables.root}/shop_orders", "_deleted", True)
    assert any("live, or are deleted, against their message" in problem for problem in judged(shop, messages).problems)


def spoil(uri: str, column: str, value: Any) -> None:
    """Give one row of a table another value."""
    table = DeltaTable(uri)
    rows = table.to_pyarrow_table()
    values = rows.column(column).to_pylist()
    values[0] = value
    place = rows.schema.get_field_index(column)
    spoiled = rows.set_column(place, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))
    write_deltalake(table, spoiled, mode="overwrite")


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("shop_orders", "name", "other", "do not have the values of their newest message"),
        ("shop_orders", "_deleted", True, "live, or are deleted, against their message"),
        ("shop_orders", "id", 77, "keys are missing from the merged table"),
        ("shop_orders_log", "name", "other", "have another name than their message"),
    ],
)
def test_the_judge_finds_a_row_that_is_not_its_message(
    table: str, column: str, value: Any, words: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    messages = [put("c", 1, 0, 10, name="a"), put("u", 1, 1, 20, name="b")]
    shop.take(messages)
    assert judged(shop, messages).ok
    spoil(f"{shop.config.tables.root}/{table}", column, value)
    found = judged(shop, messages)
    assert not found.ok
    assert any(words in problem for problem in found.problems), found.problems


def test_the_judge_finds_a_row_of_an_older_message(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    messages = [put("c", 1, 0, 10, name="a"), put("u", 1, 1, 20, name="b")]
    shop.take(messages)
    newer = put("u", 1, 1, 5, name="b")  # as if the second one stood before the first
    found = judged(shop, [messages[0], newer])
    assert any("not the newest message of their key" in problem for problem in found.problems)
