"""Spark's sentences about a pipeline, as values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from distributary.declarative.event_log import dataset_of, read_event


@pytest.mark.parametrize(
    ("text", "dataset", "state"),
    [
        ("Flow spark_catalog.games.bronze is QUEUED.", "bronze", "QUEUED"),
        ("Flow spark_catalog.games.silver_x has COMPLETED.", "silver_x", "COMPLETED"),
        ("Flow 'spark_catalog.games.a' has FAILED more than 0 times.", "a", "FAILED"),
        ("Flow spark_catalog.games.b was SKIPPED due to upstream failure(s).", "b", "SKIPPED"),
        ("Flow spark_catalog.games.c is EXCLUDED.\nmore", "c", "EXCLUDED"),
        ("Run is COMPLETED.", None, "COMPLETED"),
        ("Run is FAILED since flow 'spark_catalog.games.a' has failed.", None, "FAILED"),
        ("Something else.", None, None),
        ("", None, None),
    ],
)
def test_events_are_read_from_sentences(text: str, dataset: str | None, state: str | None) -> None:
    event = read_event(text, datetime(2026, 1, 1))
    assert (event.dataset, event.state, event.text) == (dataset, state, text)


def test_times_without_a_zone_are_utc_and_others_stay() -> None:
    assert read_event("x", datetime(2026, 1, 1)).to_json()["at"] == "2026-01-01T00:00:00.000Z"
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert read_event("x", east).at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["c.d.t", "d.t", "t", "`c`.`d`.`t`", "c.`d`.t"])
def test_a_dataset_is_named_without_catalog_and_database(name: str) -> None:
    assert dataset_of(name) == "t"
