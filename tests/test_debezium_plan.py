"""What `plan` says of topics of Debezium is what the batch then does, and saying it writes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.audit.dry_run import DryRun
from distributary.audit.foresight import foresee
from distributary.audit.plan_report import PlanReport, TablePlan
from distributary.changes.debezium.heads import Message
from distributary.config import Pipeline
from distributary.errors import BadInput, FirstBatchUnreadable, Reason
from distributary.tables.spark_engine import spark_schema
from tests.debezium_columns import written
from tests.debezium_messages import change, text, tombstone
from tests.sparkless_messages import STREAM, Rows
from tests.test_debezium_avro import AvroShop
from tests.test_debezium_topics import KINDS, WITH_HEADERS, Shop, put, record


def planned(shop: Shop, *batches: Sequence[Message]) -> dict[str, TablePlan]:
    """The dry run's own way, batch by batch, without the query that brings them."""
    tables: dict[str, TablePlan] = {}
    dry = DryRun(shop.config, shop.spark, PlanReport("shop", "kafka"), tables, {}, None)
    before = sorted(str(path) for path in Path(shop.config.tables.root).rglob("*"))
    for number, messages in enumerate(batches):
        records = pa.RecordBatch.from_pylist([record(m) for m in messages], schema=WITH_HEADERS)
        dry._take(Rows(shop.spark, [records.slice(0, 2), records.slice(2)]), STREAM, number)  # type: ignore[arg-type]
    assert sorted(str(path) for path in Path(shop.config.tables.root).rglob("*")) == before
    return tables


def columns(shop: Shop, table: str) -> dict[str, str]:
    schema = DeltaTable(f"{shop.config.tables.root}/{table}").to_pyarrow_dataset().schema
    return {field.name: _kind(field) for field in schema}


def _kind(field: pa.Field) -> str:
    return str(spark_schema(pa.schema([field]))[0].dataType.simpleString())


def plain(table: TablePlan) -> dict[str, str]:
    return {path: kind for path, kind in table.new_columns.items() if "." not in path}


def messages() -> list[Message]:
    delete = put("d", 2, 2, 30)
    return [put("c", 1, 0, 10, name="a"), put("c", 2, 1, 20, name="b"), delete, tombstone(delete)]


@pytest.mark.parametrize("shop_of", [Shop, AvroShop], ids=["json", "avro"])
def test_a_plan_names_the_tables_their_columns_and_rows_that_the_batch_then_makes(shop_of: Any, tmp_path: Path) -> None:
    shop = shop_of(tmp_path)
    sent = [written(shop.form, m) for m in messages()] if shop_of is AvroShop else messages()
    other = change("c", {"id": 7}, kinds={"id": "int64"}, table="items", offset=9)
    sent.append(written(shop.form, other) if shop_of is AvroShop else other)
    tables = planned(shop, sent)
    report = Shop.take(shop, sent)
    assert sorted(tables) == ["shop.items", "shop.orders"]
    assert {t.route: (t.rows_in, t.rows_written, t.new) for t in tables.values()} == {
        "shop.orders": (3, 3, True), "shop.items": (1, 1, True),
    }  # fmt: skip
    assert report.rows_written == 4
    for name in ("items", "orders"):
        made = columns(shop, f"shop_{name}_log")
        assert plain(tables[f"shop.{name}"]) == made
        assert tables[f"shop.{name}"].table.endswith(f"shop_{name}_log")


def test_a_plan_of_a_table_that_is_there_names_new_columns_and_wider_types_only(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.take(messages())
    kinds = {**KINDS, "id": "int64", "more": "string"}
    wider = change("u", {"id": 1, "name": "a", "big": None, "more": "x"}, kinds=kinds, offset=8, pos=90)
    table = planned(shop, [put("u", 1, 7, 80, name="n")], [wider])["shop.orders"]
    assert (table.new, plain(table), table.type_changes) == (False, {"more": "string"}, {"id": ["int", "bigint"]})
    shop.take([wider])
    assert columns(shop, "shop_orders_log")["id"] == "bigint"


def test_a_plan_counts_what_would_be_set_aside_by_reason(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    good = put("c", 1, 0, 10, name="a")
    other = put("u", 1, 1, 20, name="b")._replace(key=text({"name": "b"}))
    body = json.loads(good.value or b"")
    unknown = text({**body, "payload": {**body["payload"], "op": "x", "after": None}})
    bad = good._replace(value=unknown, key=None, record=good.record._replace(offset=2))
    sent = [good, other, bad, good._replace(value=b"{", record=good.record._replace(offset=3))]
    table = planned(shop, sent)["shop.orders"]
    assert table.rows_written == 1
    assert set(table.reasons) == {Reason.OTHER_KEY.value, Reason.UNKNOWN_CHANGE_TYPE.value}
    shop.take(sent)
    assert [reason for reason, _ in shop.quarantined()] == ["CORRUPT_ENVELOPE", *sorted(table.reasons)]


def test_a_plan_of_messages_that_are_no_changes_says_so(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    row = put("c", 1, 0, 10)._replace(value=b'{"id": 1}')
    with pytest.raises(FirstBatchUnreadable, match="op"):
        planned(shop, [row, row])


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_schema_of_changes_is_no_table_s_and_the_way_to_know_its_columns_is_named(tmp_path: Path, form: str) -> None:
    document = {**AvroShop(tmp_path).config.model_dump(exclude_unset=True), "payload": {"format": form}}
    with pytest.raises(BadInput, match="plan alone reads the messages that wait"):
        foresee(Pipeline.model_validate(document), subject="srv.shop.orders-value")
