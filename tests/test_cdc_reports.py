"""What users of other readers of change files have reported, and the test that shows what happens here.

`REPORTS` names each report by its public source and says what it was; a report without a test does not get in.
"""

from __future__ import annotations

import ast
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from distributary.audit.plan import plan_changes
from distributary.audit.status import status
from distributary.changes.file_events import read_events
from distributary.changes.model import Kind, Reading
from distributary.running.catalog import view_name
from distributary_simulate.change_files.events import Event, Layout, event_schema
from distributary_simulate.change_files.files import minute_folder
from distributary_simulate.change_files.writer import STREAM
from distributary_simulate.changes.model import CDC_METHOD, Change, Column, Position, Table
from distributary_simulate.changes.unified import INTEGER, JSON, LONG, NUMBER, STRING, decimal
from tests.event_files import avro, event, schema
from tests.shop import START_MS, backfilled, change, mysql_table, order
from tests.sparkless import Sparkless

DFT, SCALA = "DataflowTemplates", "badal-io/datastream-deltalake-connector"

REPORTS: Sequence[tuple[str, str, str]] = (
    # (where, what was seen, the tests that show what is seen here)
    # -- order ---------------------------------------------------------------------------------------------------------
    (f"{DFT}#2867", "a long statement has the smaller time and the larger position: its old value won",
     "cdc_pipeline.test_a_late_file_with_an_older_event_changes_the_log_only "
     "merge_contract.test_an_older_event_changes_nothing_whatever_its_time"),
    (f"{DFT}#417", "backfilled rows have no log file: compared with null, they vanished",
     "merge_contract.test_a_backfilled_row_enters_and_loses_to_any_change "
     "sequence.test_any_change_beats_any_backfilled_row"),
    (f"{DFT}, to SQL", "positions 999 and 1000, files 999999 and 1000000 compared as text",
     "merge_contract.test_places_in_the_log_are_compared_as_numbers"),
    ("zendesk/maxwell#1817, debezium/debezium#3641, apache/flink-cdc#4358", "binlog files compared as text",
     "sequence.test_mysql_orders_by_file_number_then_position_then_time"),
    (f"{DFT}#127, memiiso/debezium-server-iceberg#546", "two events of one key and time: the merge failed",
     "merge_contract.test_two_events_of_one_key_and_one_place_leave_one_row"),
    ("delta-io/delta#218, #1232", "many changes of one key in the first load: several source rows matched",
     "cdc_reports.test_many_changes_of_one_key_in_the_first_load_and_exact_copies_are_one_row "
     "reduce.test_the_newest_event_of_each_key_stays_in_any_order_with_any_duplicates"),
    (f"{DFT} 58a91af3e5", "Oracle: same time and SCN, another RS_ID or SSN: dropped",
     "sequence.test_oracle_orders_by_scn_then_rs_id_as_hex_then_ssn"),
    (f"{DFT}#4237", "SQL Server: order by time alone",
     "sequence.test_lsns_order_as_hex_numbers_whatever_the_clock_says"),
    ("UPDATE t SET id = id + 1", "a delete and an insert of one key at one position: the delete won",
     "sequence.test_in_mysql_the_upsert_is_the_newer_of_two_events_at_one_place "
     "merge_contract.test_two_events_of_one_key_and_one_place_leave_one_row"),
    (f"{SCALA}, MergeQueries", "target.ts <= source.ts: an older event of the same second overwrote",
     "cdc_reports.test_an_older_event_of_the_same_second_changes_nothing"),
    ("apache/spark#56122", "no time, or one sequence for two events: no order",
     "sequence.test_every_number_has_one_width_and_is_a_pure_function_of_its_event "
     "sequence.test_a_place_that_cannot_be_read_is_said_with_its_row"),
    ("Datastream, MySQL: failover", "file numbers begin anew: every later event lost",
     "merge_contract.test_settings_of_epochs_and_repairs_hold_for_rows_that_are_there "
     "cdc_rules.test_a_server_whose_log_counts_anew_and_a_backfill_that_repairs_a_gap"),
    # -- deletes and keys ----------------------------------------------------------------------------------------------
    ("a real Oracle file", "UPDATE-DELETE with is_deleted false left the old key alive",
     "datastream_samples.test_an_update_of_a_key_in_a_real_oracle_file_deletes_the_old_key "
     "datastream_events.test_a_delete_without_is_deleted_is_one"),
    (f"{SCALA}, is_deleted = false", "is_deleted null: the row was lost",
     "cdc_reports.test_a_row_that_does_not_say_whether_it_is_deleted_is_there "
     "datastream_events.test_what_is_a_delete"),
    (f"{DFT}#475, to BigQuery; {SCALA}", "a delete, then a late older update: the row came back",
     "cdc_pipeline.test_a_deleted_row_does_not_come_back "
     "merge_contract.test_a_late_older_update_does_not_bring_a_deleted_row_back"),
    (f"{DFT}#3255", "key updates and swaps over files, in any order",
     "cdc_reports.test_keys_that_move_and_swap_end_right_in_any_order_of_files "
     "cdc_property.test_merged_tables_are_the_fold_in_true_order_and_logs_have_each_event_once"),
    (f"{DFT}#3805", "SQL Server: keys stand in replication_index only",
     "datastream_events.test_keys_are_found_in_each_of_their_forms "
     "cdc_rules.test_tables_of_sql_server_and_mongodb_come_out_as_the_source_has_them"),
    (f"{DFT}#3554, #3570", "GTID: binlog_file and binlog_position",
     "datastream_events.test_log_positions_of_gtid_streams_are_found_by_their_names"),
    (f"{DFT}#1835", 'primary_keys is the text `["id"]`',
     "datastream_events.test_keys_are_found_in_each_of_their_forms"),
    (f"{DFT} 192e4696c2; {SCALA}", "a key named `order` or `my key`, not quoted",
     "datastream_events.test_keys_may_have_any_name "
     "merge_contract.test_keys_of_several_columns_with_nulls_and_odd_names_are_told_apart"),
    ("debezium/debezium.github.io#714", "no key, keys that change, a key column that is not there",
     "cdc_pipeline.test_a_table_without_a_key_is_only_appended "
     "cdc_pipeline.test_a_table_whose_key_changed_is_parked_and_its_log_goes_on "
     "datastream_events.test_an_event_without_its_key_column_is_set_aside "
     "datastream_events.test_a_key_is_matched_exactly_before_it_is_matched_without_case"),
    (f"{DFT} 4693984a84", "a delete with an empty payload was dropped",
     "datastream_events.test_a_delete_with_an_empty_payload_is_set_aside_and_not_lost "
     "datastream_events.test_a_delete_that_holds_only_its_key_is_kept"),
    (f"{DFT}#4232", "Oracle: a rolled-back insert is a delete with nothing but a ROWID",
     "cdc_upkeep.test_an_insert_that_was_rolled_back_goes_by_its_row_id_in_every_order"),
    ("stackoverflow.com/questions/76719475", "all backfilled rows have one uuid: most were dropped as duplicates",
     "datastream_events.test_backfilled_rows_with_one_uuid_are_all_kept"),
    (f"{DFT} 3a2bdfd9ad", "MongoDB: an update of a document that is gone",
     "datastream_events.test_a_mongodb_update_without_a_document_is_counted_and_left_out"),
    # -- tables --------------------------------------------------------------------------------------------------------
    (f"{SCALA}, TableMetadata", "keys and table of a batch taken from its first row",
     "cdc_pipeline.test_tables_in_one_folder_are_told_apart datastream_events.test_keys_are_each_events_own "
     "cdc_replays.test_a_file_of_two_tables_is_not_doubled_by_a_process_that_takes_its_batch_again"),
    (f"{SCALA}, TableMetadata", "tables of one name in two schemas",
     "cdc_reports.test_tables_of_one_name_in_two_schemas_are_two_tables"),
    (f"{SCALA}", "folders found at the start only, an empty one never",
     "cdc_reports.test_folders_that_are_empty_or_come_later_are_read_when_files_are_there "
     "listing.test_a_folder_that_is_not_there_is_said_and_an_empty_one_is_waited_for "
     "listing.test_every_tree_finds_new_tables_new_minutes_and_late_files"),
    (f"{SCALA}", "one table that failed stopped all",
     "cdc_reports.test_a_table_that_cannot_be_written_stops_no_other"),
    (f"{SCALA}", "the source is told by read_method: postgresql, sqlserver or cdc ended the job",
     "datastream_events.test_the_source_is_told_by_its_fields_then_by_its_reader "
     "datastream_events.test_a_setting_beats_what_the_source_looks_like"),
    (f"{SCALA}, GCSOps", "the whole bucket listed; a slash at the prefix's end cost a letter of each name",
     "listing.test_a_prefix_means_its_folder_only_with_or_without_a_slash "
     "listing.test_a_round_costs_the_same_however_many_files_are_known"),
    # -- columns -------------------------------------------------------------------------------------------------------
    (f"{DFT}#3035", "a column named timestamp or uuid was written over the metadata",
     "datastream_events.test_columns_named_as_metadata_are_kept_beside_it"),
    (f"{DFT}#4231; {SCALA}; apache/spark#12591, #37183", "a new column was dropped until a restart",
     "cdc_pipeline.test_new_columns_and_tables_are_in_the_batch_that_brings_them "
     "merge_contract.test_a_new_column_is_added_and_old_rows_have_null_in_it"),
    ("delta-io/delta#5658; apache/spark#53149", "a dropped column kept the old row's value",
     "cdc_reports.test_a_column_that_an_update_no_longer_has_is_null "
     "merge_contract.test_a_dropped_column_keeps_its_values_where_the_rules_say_so"),
    ("delta-io/delta#1551, #1608", "a column that became text: null, or a retry for ever",
     "cdc_reports.test_a_value_of_another_type_is_kept_and_the_stream_goes_on "
     "cdc_rules.test_each_way_of_schema_evolution_keeps_every_value"),
    (f"{DFT}#2203, #2213, #1922", "infinity, the year 1, times before 1970",
     "datastream_types.test_infinity_of_postgresql_is_null_and_the_times_around_it_are_exact "
     "datastream_types.test_infinity_may_set_its_event_aside_or_be_text"),
    (f"{DFT}#2169, #2174, #4095, #3133", "empty arrays, arrays of json and uuid, interval, timetz, bit became null",
     "datastream_types.test_arrays_of_postgresql_are_flat_and_keep_empty_ones_and_nulls "
     "datastream_types.test_bit_strings_and_timetz_and_intervals_are_kept"),
    (f"{DFT} 57fc14b17b", "FLOAT 1.2 became 1.2000000476837158",
     "datastream_types.test_a_setting_gives_a_column_another_type"),
    ("apache/spark#41263, #31329, #47584", "unions in another order, decimals of another scale",
     "cdc_reports.test_unions_in_another_order_and_decimals_of_another_scale_keep_their_values "
     "datastream_types.test_decimals_of_every_width_keep_their_value"),
    ("apache/spark#12030; databrickslabs/overwatch#648", "JSON: digits lost, id and Id, nested values of any shape",
     "cdc_reports.test_json_keeps_its_digits_its_odd_names_and_its_nested_values "
     "datastream_types.test_json_without_a_schema_file_loses_nothing"),
    (f"{DFT}#1345, #1767, #1851, #1138", "dates with a zone, records as dates, numbers of 45 digits",
     "cdc_reports.test_a_number_of_more_digits_than_a_decimal_has_is_kept_whole "
     "datastream_types.test_a_unified_type_in_avro_becomes_a_column "
     "datastream_types.test_wide_decimals_may_be_decimals_where_they_fit"),
    # -- files ---------------------------------------------------------------------------------------------------------
    ("databricks/spark-avro#168; apache/spark#44635", "files of no bytes or no events failed their folder",
     "cdc_reports.test_files_without_bytes_or_events_harm_no_other "
     "datastream_events.test_a_file_without_events_is_no_fault"),
    ("apache/spark#22611, #38024; snowplow/snowplow-s3-loader#49", "a file that was cut, or was not whole yet",
     "cdc_pipeline.test_one_corrupt_file_stops_nothing_and_comes_back_when_it_is_whole "
     "cdc_reports.test_a_zipped_file_that_was_cut_gives_what_can_be_read_and_the_rest_once_it_is_whole "
     "datastream_events.test_the_whole_blocks_of_a_cut_avro_file_are_kept_and_the_rest_is_reported"),
    ("apache/spark#41022, #19247, #29659", "folders with blanks, brackets, colons, percent signs",
     "cdc_reports.test_folders_of_any_name_are_read listing.test_every_tree_takes_any_name_as_it_is"),
    ("apache/spark#17153", "late files in old folders, and files that were written again",
     "cdc_reports.test_late_files_and_files_that_were_written_again_are_read "
     "listing.test_a_late_file_in_an_old_folder_is_found_within_the_stated_rounds "
     "listing.test_start_date_compares_the_time_of_the_folder_not_of_the_file"),
)  # fmt: skip

ORDERS = mysql_table()


@pytest.mark.parametrize(("where", "what", "tests"), REPORTS, ids=[f"{where}: {what}" for where, what, _ in REPORTS])
def test_each_report_has_its_tests(where: str, what: str, tests: str) -> None:
    for named in tests.split():
        module, _, name = named.partition(".")
        tree = ast.parse((Path(__file__).parent / f"test_{module}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, named


# -- order, deletes, keys ---------------------------------------------------------------------------------------------


def test_many_changes_of_one_key_in_the_first_load_and_exact_copies_are_one_row(lake: Path) -> None:
    shop = Sparkless(lake)
    again = change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 300)
    shop.send(
        change(ORDERS, "INSERT", order(1, "new"), 100), change(ORDERS, "UPDATE-INSERT", order(1, "seen"), 200),
        again, again, again,
    )  # fmt: skip
    shop.run()
    assert shop.living("shop_orders") == [(1, "paid")]
    assert len(shop.log("shop_orders_log")) == 5
    shop.check()


def test_an_older_event_of_the_same_second_changes_nothing(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "new"), 200, sec=10))
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "old"), 100, sec=10))
    shop.run()
    assert shop.living("shop_orders") == [(1, "new")]
    shop.check()


def test_a_row_that_does_not_say_whether_it_is_deleted_is_there(lake: Path) -> None:
    shop = Sparkless(lake)
    unsaid = backfilled(ORDERS, order(1, "read"))
    silent = change(ORDERS, "DELETE", order(2, "gone"), 200)
    shop.send(
        *(Change(c.table, kind, None, c.row, c.position, c.read_method, c.seen_ms)
          for c, kind in ((unsaid, None), (change(ORDERS, "INSERT", order(2, "gone"), 100), ""), (silent, "DELETE"))),
    )  # fmt: skip
    shop.run()
    assert shop.living("shop_orders") == [(1, "read")]
    shop.check()


def test_keys_that_move_and_swap_end_right_in_any_order_of_files(lake: Path) -> None:
    shop = Sparkless(lake, source={"max_files_per_batch": 1})
    shop.send(*(change(ORDERS, "INSERT", order(n, f"was {n}"), n) for n in (1, 2, 3)))
    shop.run()
    moves = [(100, {1: 9}), (200, {2: 1}), (200, {3: 2}), (300, {9: 3})]
    place = {1: "was 1", 2: "was 2", 3: "was 3"}
    files = []
    for position, move in moves:
        for old, new in move.items():
            place[new] = place.pop(old)
            files.append(change(ORDERS, "UPDATE-DELETE", order(old, place[new]), position))
            files.append(change(ORDERS, "UPDATE-INSERT", order(new, place[new]), position))
    read = [replace(one, seen_ms=one.seen_ms + 2000 * n) for n, one in enumerate(files)]  # in the order of the log
    for one in reversed(read):
        shop.send(one)
    shop.run()
    assert len(shop.batches) == 1 + len(files)
    assert shop.living("shop_orders") == [(1, "was 2"), (2, "was 3"), (3, "was 1")]
    shop.check()


def test_tables_of_one_name_in_two_schemas_are_two_tables(lake: Path) -> None:
    shop = Sparkless(lake)
    for number, owner in enumerate(("HR", "OPS"), start=1):
        table = Table(Kind.ORACLE, "XE", owner, "EMP", (Column("ID", LONG), Column("NAME", STRING)), ("ID",))
        place = {
            "scn": number,
            "rs_id": " 0x000004.00000705.0010 ",
            "ssn": 0,
            "row_id": "AA",
            "tx_id": "t",
            "log_file": "",
        }
        position = Position(place, (START_MS, number, "", 0), START_MS)
        shop.send(Change(table, "INSERT", False, {"ID": 1, "NAME": owner}, position, CDC_METHOD[Kind.ORACLE], START_MS))
    shop.run()
    assert shop.living("xe_hr_emp") == [(1, "HR")]
    assert shop.living("xe_ops_emp") == [(1, "OPS")]
    shop.check()


# -- tables and columns -----------------------------------------------------------------------------------------------


def test_folders_that_are_empty_or_come_later_are_read_when_files_are_there(lake: Path) -> None:
    shop = Sparkless(lake)
    (shop.files / "shop_orders" / "2026" / "01").mkdir(parents=True)
    shop.run()
    assert shop.batches == []
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    shop.send(change(mysql_table("users"), "INSERT", order(1, "on"), 200))
    shop.run()
    assert (shop.living("shop_orders"), shop.living("shop_users")) == ([(1, "new")], [(1, "on")])


def test_a_table_that_cannot_be_written_stops_no_other(lake: Path) -> None:
    shop = Sparkless(lake, tables={"retry_after": "1 ms"})
    users = mysql_table("users")
    (lake / "lake").mkdir()
    (lake / "lake" / "shop_orders_log").write_text("not a table")
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(users, "INSERT", order(1, "on"), 200))
    report = shop.run()
    assert report.parked == ("shop.orders",)
    assert shop.living("shop_users") == [(1, "on")]
    assert shop.reasons() == {"TABLE_PARKED": 1}
    (lake / "lake" / "shop_orders_log").unlink()
    shop.replay()
    assert shop.living("shop_orders") == [(1, "new")]
    assert shop.quarantined() == []
    shop.check()


def test_a_column_that_an_update_no_longer_has_is_null(lake: Path) -> None:
    shop = Sparkless(lake)
    wide = mysql_table(columns={"id": INTEGER, "status": STRING, "note": STRING})
    shop.send(change(wide, "INSERT", {**order(1, "new"), "note": "gift"}, 100))
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 200))
    shop.run()
    assert shop.living("shop_orders", ["id", "status", "note"]) == [(1, "paid", None)]
    shop.check()


def test_a_value_of_another_type_is_kept_and_the_stream_goes_on(lake: Path) -> None:
    shop = Sparkless(lake, tables={"evolution": "overwrite"})
    number = mysql_table(columns={"id": INTEGER, "status": INTEGER})
    shop.send(change(number, "INSERT", {"id": 1, "status": 7}, 100))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(2, "x"), 200), change(number, "INSERT", {"id": 3, "status": 8}, 300))
    shop.run()
    assert shop.living("shop_orders", ["id", "status", "status__string"]) == [
        (1, 7, None),
        (2, None, "x"),
        (3, 8, None),
    ]
    shop.check()


def test_unions_in_another_order_and_decimals_of_another_scale_keep_their_values(lake: Path) -> None:
    for union in (["null", "int", "string"], ["null", "string", "int"]):
        body = avro(
            schema([("id", "long"), ("v", union)]), [event(1, {"id": 1, "v": 5}), event(2, {"id": 2, "v": "x"})]
        )
        [events] = read_events(body, "a.avro", Reading()).events
        assert events.rows.column("v").to_pylist() == ["5", "x"]
    shop = Sparkless(lake, tables={"evolution": "overwrite"})
    for number, (kind, value) in enumerate([(decimal(3, 2), "1.25"), (decimal(4, 3), "1.255")], start=1):
        table = mysql_table(columns={"id": INTEGER, "price": kind})
        shop.send(change(table, "INSERT", {"id": number, "price": Decimal(value)}, number))
        shop.run()
    values = {v for r in shop.living("shop_orders") for v in r[1:] if v is not None}
    assert values == {Decimal("1.25"), Decimal("1.255")}
    shop.check()


def json_file(shop: Sparkless, name: str, lines: Sequence[dict[str, Any] | str]) -> Path:
    path = shop.files / minute_folder("shop_orders", START_MS) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_json_keeps_its_digits_its_odd_names_and_its_nested_values(lake: Path) -> None:
    """Without a schema file: a reader that infers types makes a double of `d`, fails for id and Id, and drops `j`."""
    shop = Sparkless(lake)
    big = json.dumps(event(1)).replace(
        '{"id": 1}', '{"id": 1, "Id": 2, "d": 12345678901234567.123456789, "j": {"a": 1}}'
    )
    other = json.dumps(event(2)).replace('{"id": 2}', '{"id": 2, "Id": 3, "d": 2.50, "j": [1, "x"]}')
    json_file(shop, "a.jsonl", [big, other, json.dumps(event(3)).replace('{"id": 3}', "null")])
    shop.run()
    table = shop.merged("shop_orders").sort_by("id").to_pylist()
    texts = [{str(v) for k, v in r.items() if not isinstance(v, dict)} for r in table]
    assert "12345678901234567.123456789" in texts[0] and {'{"a": 1}', '{"a":1}'} & texts[0]
    assert {"2.50", "2.500000000"} & texts[1] and {'[1, "x"]', '[1,"x"]'} & texts[1]
    assert [r["id"] for r in table] == [1, 2]
    assert shop.entry("shop.orders").rows_written + len(shop.quarantined()) == 3
    shop.check()


def test_a_number_of_more_digits_than_a_decimal_has_is_kept_whole(lake: Path) -> None:
    shop = Sparkless(lake)
    digits = "123456789012345678901234567890123456789012.123"
    table = mysql_table(columns={"id": INTEGER, "n": NUMBER, "d": decimal(65, 30), "doc": JSON})
    wide = Decimal("12345678901234567890123456789012345.123456789012345678901234567891")
    shop.send(change(table, "INSERT", {"id": 1, "n": digits, "d": wide, "doc": '{"a": [1]}'}, 100))
    shop.run()
    [found] = shop.living("shop_orders", ["n", "d", "doc"])
    assert found == (digits, str(wide), '{"a": [1]}')
    shop.check()


# -- files ------------------------------------------------------------------------------------------------------------


def test_files_without_bytes_or_events_harm_no_other(lake: Path) -> None:
    shop = Sparkless(lake)
    [path] = shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    (path.parent / "empty.avro").write_bytes(b"")
    (path.parent / "none.jsonl").write_bytes(b"")
    (path.parent / "header.avro").write_bytes(avro(schema([("id", "long")]), []))
    shop.run()
    assert shop.living("shop_orders") == [(1, "new")]
    shop.check()


def test_a_zipped_file_that_was_cut_gives_what_can_be_read_and_the_rest_once_it_is_whole(lake: Path) -> None:
    shop = Sparkless(lake)
    events = [change(ORDERS, "INSERT", order(n, f"{n * 7919:x}" * 9), n) for n in range(300)]
    [path] = shop.send(*events, format="jsonl.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    shop.run()
    assert 0 < len(shop.living("shop_orders")) < 300
    # The line that was cut, and the file.
    assert shop.reasons() == {"CORRUPT_EVENT": 1, "FILE_BROKEN": 1}
    path.write_bytes(whole)
    shop.run()
    assert len(shop.living("shop_orders")) == 300
    assert len(shop.log("shop_orders_log")) == 300
    assert shop.quarantined() == []
    shop.check()


@pytest.mark.parametrize("name", ["t able", "t[1]", "t{a}", "a:b", "per%20cent", "é", "a+b", "a'b"])
def test_folders_of_any_name_are_read(lake: Path, name: str) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    folder = shop.files / name / "2026" / "01" / "01" / "00" / "01"
    folder.mkdir(parents=True)
    schema_ = event_schema(ORDERS, Layout.Y2025, STREAM)
    one = Event(change(ORDERS, "INSERT", order(2, "new"), 200), "0" * 24 + "00000001", START_MS)
    (folder / "a.jsonl").write_text(schema_.line(one) + "\n")
    shop.run()
    assert shop.living("shop_orders") == [(1, "new"), (2, "new")]
    shop.check()


def test_late_files_and_files_that_were_written_again_are_read(lake: Path) -> None:
    """A file that is there again under its name: an upload that went on, so that it begins as it did."""
    shop = Sparkless(lake)
    first = change(ORDERS, "INSERT", order(1, "new"), 100, sec=86_400)
    [path] = shop.send(first)
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(2, "late"), 50))
    shop.run()
    [other] = shop.send(first, change(ORDERS, "INSERT", order(3, "more"), 300, sec=86_400))
    path.write_bytes(other.read_bytes())
    other.unlink()
    shop.run()
    assert shop.living("shop_orders") == [(1, "new"), (2, "late"), (3, "more")]
    assert len(shop.log("shop_orders_log")) == 3
    shop.check()


def test_files_that_are_none_of_datastream_are_told_of_and_count_nowhere(
    lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Sparkless(lake)
    [own] = shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), format="jsonl")
    staged = shop.garbage(f"_tmp/{own.relative_to(shop.files).parent}/moved.jsonl", own.read_bytes())
    shop.garbage("README", b"about")
    shop.garbage("shop_orders/2026/01/01/00/00/list.csv", b"a,b")
    shop.run()
    said = [record.getMessage() for record in caplog.records if "Datastream did not write" in record.getMessage()]
    assert len(said) == 1 and "3 files" in said[0] and "README" in said[0]
    staged.rename(own.parent / "moved.jsonl")
    shop.send(change(ORDERS, "INSERT", order(2, "new"), 200), format="jsonl")
    shop.run()
    assert len(shop.log("shop_orders_log")) == 3  # the staged copy once, where it ended
    assert not shop.quarantined()
    found = status(shop.config)
    assert found.files_waiting == 0 and not found.attention
    assert [note for note in found.notes if "2 files" in note]
    assert "2 files" in plan_changes(shop.config).notes[0]
    shop.check()


def test_a_folder_of_loose_files_is_read_by_a_setting(lake: Path) -> None:
    shop = Sparkless(lake, source={"stray_files": "read"})
    [own] = shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    own.rename(shop.files / "loose.avro")
    shop.run()
    assert shop.living("shop_orders") == [(1, "new")]
    assert status(shop.config).files_waiting == 0
    shop.check()


def test_tables_that_differ_by_case_only_get_names_of_their_own_by_a_setting(lake: Path) -> None:
    shop = Sparkless(lake)
    one, other = mysql_table("Case"), mysql_table("CASE")
    shop.send(change(one, "INSERT", order(1, "new"), 100))
    shop.run()
    shop.send(change(other, "INSERT", order(2, "new"), 200))
    shop.run()
    assert shop.entry("shop.CASE").state == "parked"
    assert "tables.routes.'shop.CASE'" in (shop.entry("shop.CASE").error or "")
    names = {"log": "shop_case_2_log", "merged": "shop_case_2", "view": "shop_case_2_living"}
    shop.configure(tables={"routes": {"shop.CASE": names}})
    time.sleep(1)  # its rest
    shop.replay()
    shop.run()
    assert (shop.living("shop_case"), shop.living("shop_case_2")) == ([(1, "new")], [(2, "new")])
    assert not shop.quarantined()
    shop.check()
    views = {"routes": {"shop.CASE": names}, "view": "{database}_{table}_living", "database": "lake"}
    config = shop.configure(tables=views)
    found = {route: view_name(config, shop.entry(route)) for route in ("shop.CASE", "shop.Case")}
    assert found == {"shop.CASE": "shop_case_2_living", "shop.Case": "shop_case_living"}


def test_a_json_column_whose_numbers_are_in_two_columns_is_named_with_what_mends_it(
    lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Sparkless(lake)
    for number, amount in enumerate((5, 5.25, 6)):
        json_file(shop, f"{number}.jsonl", [event(number, {"id": number, "amount": amount})])
        shop.run()
    said = [record.getMessage() for record in caplog.records if "source.json_numbers" in record.getMessage()]
    assert len(said) == 1 and "amount" in said[0] and "id" not in said[0].split("numbers of")[1].split("are")[0]
    assert [row["amount__string"] for row in shop.log("shop_orders_log")] == [None, "5.25", None]


def test_columns_that_are_two_for_other_reasons_are_not_blamed_on_json(
    lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A key that the source itself made a text, and names that differ in case only."""
    shop = Sparkless(lake)
    for number, (kind, value) in enumerate((("int", 1), ("string", "1"))):
        payload = {
            "type": "record",
            "name": "p",
            "fields": [{"name": "id", "type": kind}, {"name": "v", "type": "int"}],
        }
        schema = {"type": "record", "name": "r", "fields": [{"name": "payload", "type": payload}]}
        path = json_file(shop, f"{number}.jsonl", [event(number, {"id": value, "v": number})])
        Path(f"{path}.schema").write_text(json.dumps(schema))
        shop.run()
    json_file(shop, "more.jsonl", [event(5, {"id": 5, "Val": "x", "val": "y", "VAL": 7}, table="cases")])
    shop.run()
    assert not [record for record in caplog.records if "source.json_numbers" in record.getMessage()]
    assert "id__string" in shop.log("shop_orders_log")[0]
    mended = Sparkless(lake / "mended", source={"columns": {"shop.orders.amount": "decimal(12,2)"}})
    for number, amount in enumerate((5, 5.25)):
        json_file(mended, f"{number}.jsonl", [event(number, {"id": number, "amount": amount})])
        mended.run()
    assert [row["amount"] for row in mended.log("shop_orders_log")] == [Decimal("5.00"), Decimal("5.25")]
