"""Tests that `make test` leaves to `make test ALL=1`: nobody waits for a gate that takes an hour.

Each is long, and does for another engine, layout, store or moment what a test of the gate does for one; or it plays a
demo or a benchmark, as `make wheel`, `make lowest` and `make bench` do; or it is the story of processes that are killed
in a declarative pipeline, of which the gate has the updates. Without `--gate`, pytest runs all that it is asked to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pytest

ONLY_THOROUGH: Final[Mapping[str, Collection[str]]] = {
    "test_bench": ["test_a_benchmark_runs_and_keeps_its_figures"],
    "test_cdc_crash": ["test_what_could_not_be_merged_is_kept_aside_also_when_the_batch_is_done_again[spark]"],
    "test_cdc_engines": [
        "test_a_key_that_an_oracle_transaction_hands_on_twice_is_decided_by_all_its_events_in_whatever_batches[spark]",
        "test_a_dropped_column_keeps_its_old_values_where_that_is_asked_for[tables2]",
    ],
    "test_cdc_pipeline": [
        "test_spark_widens_and_adds_columns_whatever_their_names_below_a_relative_folder",
        "test_invented_histories_of_five_databases_come_out_as_the_source_has_them[parquet]",
    ],
    "test_cdc_postgres": [
        "test_after_kills_and_schema_changes_the_merged_tables_are_what_select_shows",
    ],
    "test_cdc_stores": ["test_files_and_tables_on_gs"],
    "test_cdc_upkeep": [
        "test_spark_takes_old_tombstones_out_of_tables_that_only_it_may_write_and_joins_their_files",
    ],
    "test_chaos": ["test_killed_at_random_moments_the_tables_are_the_truth[two_hop]"],
    "test_cli": ["test_a_run_that_was_interrupted_in_the_middle_is_completed_exactly_once_by_the_next"],
    "test_crash": [
        "test_a_batch_that_hangs_is_ended_by_a_second_sigterm_or_by_its_time_and_is_finished_by_the_next_run[a second",
    ],
    "test_debezium_topics": [
        "test_spark_fills_in_what_was_not_logged_by_the_log_too",
    ],
    "test_declarative_process": [
        "test_the_stock_command_and_the_runner_run_the_same_project_and_no_kill_loses_a_row",
    ],
    "test_declarative_updates": [
        "test_rules_columns_a_function_and_materialized_gold_are_exact_on_the_second_run_too",
        "test_a_table_that_cannot_be_read_stops_no_other_and_gets_its_rows_once_it_can",
        "test_a_table_that_the_catalog_does_not_know_is_taken_up_as_it_is",
        "test_json_without_a_schema_and_its_records_keys_become_silver",
    ],
    "test_demo": ["test_the_demo_shows_that_nothing_is_lost"],
    "test_demo_declarative": ["test_the_demo_shows_gold_and_that_nothing_is_lost"],
    "test_doors": [
        "test_a_run_shows_no_secret_and_listens_on_loopback_only",
    ],
    "test_engines": [
        "test_a_batch_that_is_attempted_again_is_written_once[task",
        "test_a_column_is_widened_in_the_batch_that_brings_the_wider_type[task",
        "test_a_payload_without_a_header_is_kept_aside_once_also_where_the_table_moves_to_spark[spark",
        "test_a_schema_of_which_no_row_is_written_adds_no_columns[spark",
    ],
    "test_layout_verbs": [
        "test_all_verbs_work_by_the_command_line[wide",
        "test_the_demo_plays_in_this_layout[two_hop",
    ],
    "test_layouts": [
        "test_a_run_that_dies_between_any_two_steps_is_finished_by_the_next[wide",
        "test_nothing_is_lost_while_versions_games_and_bad_rows_come[fanout",
        "test_nothing_is_lost_while_versions_games_and_bad_rows_come[two_hop, one stream",
    ],
    "test_merge_contract": [
        "test_a_change_that_cannot_be_of_the_same_log_as_its_row_ends_the_merge_unless_an_epoch_answers[spark-mysql",
        "test_a_change_that_cannot_be_of_the_same_log_as_its_row_ends_the_merge_unless_an_epoch_answers[spark-postgresql",
        "test_a_new_table_says_by_a_comment_that_it_holds_tombstones_until_people_say_something_else[spark",
        "test_oracle_a_row_that_took_a_key_in_the_same_transaction_stays[spark-DELETE",
        "test_oracle_the_other_events_of_a_transaction_that_hands_a_key_on_are_asked_for[spark-DELETE",
        "test_places_in_the_log_are_compared_as_numbers[spark",
        "test_rows_whose_numbers_are_of_the_first_layout_keep_their_place[spark-mysql",
        "test_rows_whose_numbers_are_of_the_first_layout_keep_their_place[spark-postgresql",
        "test_a_column_of_the_payload_may_be_called_a_tombstone[True",
        "test_a_merge_by_spark_with_tombstones_beside_keeps_the_rules[test_values_that_an_update_does_not_speak_of_stay_where_the_rules_say_so",
        "test_a_merge_by_spark_with_tombstones_beside_keeps_the_rules[test_changes_older_than_the_purged_tombstones",
        "test_a_merge_by_spark_with_tombstones_beside_keeps_the_rules[test_keys_of_several_columns",
    ],
    "test_new_checkpoint": [
        "test_a_checkpoint_that_is_not_the_one_that_wrote_is_refused[gone-hop 2",
        "test_a_checkpoint_that_is_not_the_one_that_wrote_is_refused[older-hop 1",
        "test_a_damaged_checkpoint_is_told_with_file_and_remedy_and_the_remedy_works[hop 1",
    ],
    "test_replay": ["test_a_replay_by_engine_spark_that_dies_is_finished[False"],
    "test_resync": [
        "test_a_damaged_table_is_rebuilt_while_all_streams_run_on[two_hop, a share",
        "test_a_rebuild_that_dies_is_finished_by_the_next[after the claim",
        "test_a_rebuild_that_dies_is_finished_by_the_next[after the ledger",
        "test_a_table_with_a_feature_that_only_spark_knows_is_made_anew",
    ],
    "test_spark_away": ["test_a_store_that_is_away_in_the_middle_of_spark_s_writes_parks_nothing"],
    "test_tombstones_beside": ["test_spark_merges_tables_whose_tombstones_lie_beside_them[tables0"],
    "test_workflow_local": ["test_a_standalone_cluster_with_two_workers_runs_the_pipeline"],
}
"""File -> how the names of its tests begin."""


UNKNOWN: Final = pytest.StashKey[list[str]]()
"""What `unknown` said of the tests of this run; a test of its own judges it."""


def is_of_gate(item: pytest.Item) -> bool:
    return not item.name.startswith(tuple(ONLY_THOROUGH.get(item.path.stem, ())))


def unknown(items: Collection[pytest.Item]) -> list[str]:
    """Entries of the table that are of no test: of a file that is gone, or of a name that none of `items` begins with.
    Files of which `items` has nothing are not judged."""
    names: dict[str, list[str]] = {}
    for item in items:
        names.setdefault(item.path.stem, []).append(item.name)
    return [
        f"{file}: {start}"
        for file, starts in ONLY_THOROUGH.items()
        for start in starts
        if not Path(__file__).with_name(f"{file}.py").is_file()
        or (file in names and not any(name.startswith(start) for name in names[file]))
    ]
