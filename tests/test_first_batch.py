"""A first batch that cannot be read as the pipeline file says, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.engine.batch import BatchWriter
from distributary.engine.first_batch import Example, unreadable
from distributary.engine.outcomes import Delivered
from distributary.errors import FirstBatchUnreadable, Reason
from distributary.tables.quarantine import REJECTED_SCHEMA
from tests.lake import KAFKA, Lake


class Rejecting:
    """Stands for what delivers a batch: every record of it is set aside for `reasons`."""

    def __init__(self, lake: Lake, reasons: Mapping[str, int], value: bytes = b"\x0a\x05chess") -> None:
        self.store, self.quarantine, self.on_spark = lake.store, lake.quarantine, set[str]()
        self._lake, self._reasons, self._value = lake, reasons, value

    def write(self, rows: object, stream: str, batch: int, parked: object) -> Delivered:
        one = {"detail": "envelope header", "level": "envelope", "value": self._value}
        bad = [{**one, "reason": reason} for reason, count in self._reasons.items() for _ in range(count)]
        files = self._lake.write_quarantine(batch, [pa.Table.from_pylist(bad, schema=REJECTED_SCHEMA)])
        return Delivered(quarantine=files, bad={None: self._reasons})


@pytest.fixture
def made(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def _take(made: Lake, reasons: Mapping[str, int], batch: int = 0, *, force: bool = False) -> None:
    writer = BatchWriter(made.config, Rejecting(made, reasons), made.ledger, force=force)
    writer.take(None, made.stream, batch)  # type: ignore[arg-type]


def test_it_is_refused_before_anything_is_decided_and_says_what_the_records_are(made: Lake) -> None:
    with pytest.raises(FirstBatchUnreadable) as raised:
        _take(made, {"BAD_MAGIC": 5})
    said = raised.value.parameters
    assert (said["rows"], said["reason"], said["what"]) == (5, "BAD_MAGIC", "record")
    assert "protobuf" in said["looks"] and "events-value" in said["remedy"]
    assert not made.ledger.finished
    assert not list(Path(made.quarantine).glob("*.parquet")), "its rows are not left behind"


@pytest.mark.parametrize("reason", ["BAD_MAGIC", "NO_ROUTE", "CORRUPT_ENVELOPE", "NO_SCHEMA_ID"])
def test_each_structural_reason_counts(made: Lake, reason: str) -> None:
    with pytest.raises(FirstBatchUnreadable):
        _take(made, {reason: 1})


@pytest.mark.parametrize("reasons", [{"BAD_MAGIC": 4, "NO_ROUTE": 1}, {"UNKNOWN_SCHEMA_ID": 5}, {"CORRUPT_PAYLOAD": 5}])
def test_records_of_several_faults_or_of_one_that_may_mend_itself_are_set_aside(
    made: Lake, reasons: Mapping[str, int]
) -> None:
    _take(made, reasons)
    assert made.ledger.finished == {made.stream: 0}


def test_a_damaged_record_beside_thousands_hides_no_mistake_in_the_file(made: Lake) -> None:
    with pytest.raises(FirstBatchUnreadable) as raised:
        _take(made, {"CORRUPT_ENVELOPE": 1, "CORRUPT_PAYLOAD": 1, "NO_ROUTE": 98})
    said = raised.value.parameters
    assert (said["rows"], said["reason"]) == (100, "NO_ROUTE"), "its example is one of the many"
    assert not made.ledger.finished


def test_with_force_they_are_set_aside(made: Lake) -> None:
    _take(made, {"BAD_MAGIC": 5}, force=True)
    assert made.ledger.finished == {made.stream: 0}


def test_later_batches_are_set_aside_for_no_producer_may_stop_a_stream(made: Lake) -> None:
    made.batch(0, {"chess": {7: 2}})
    made.ledger = type(made.ledger)(made.config.state_root, "games", made.store)
    _take(made, {"BAD_MAGIC": 5}, batch=1)
    assert made.ledger.finished == {made.stream: 1}


@pytest.mark.parametrize(
    ("keys", "example", "remedy"),
    [
        ({}, Example("BAD_MAGIC", "", "envelope", b"\x0a\x01a"), "framing: none, subject: events-value"),
        (
            {"envelope": {"framing": "none"}},
            Example("CORRUPT_ENVELOPE", "", "envelope", bytes(9)),
            "framing: confluent",
        ),
        ({}, Example("BAD_MAGIC", "", "payload", b"\x0a\x01a"), "payload: {framing: none}"),
        ({}, Example("BAD_MAGIC", "", "payload", b'{"a": 1}'), "header: payload: {format: json, framing: none}"),
        ({}, Example("BAD_MAGIC", "", "envelope", b'{"a": 1}'), "envelope: none, and payload: {format: json, framing"),
        ({}, Example("NO_ROUTE", "", "payload", b""), Reason.NO_ROUTE.remedy),
    ],
)
def test_the_remedy_names_the_lines_to_change(
    tmp_path: Path, keys: Mapping[str, Any], example: Example, remedy: str
) -> None:
    config = Lake(tmp_path, "games", KAFKA, **keys).config
    assert remedy in unreadable(config, 3, example).parameters["remedy"]
