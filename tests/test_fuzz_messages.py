"""The short form of `make fuzz`, and that its judge would see a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.schemas.protobuf import official_decoder, weight
from distributary.schemas.protobuf.framing import Frames, split_frames
from distributary.schemas.protobuf.protobuf import MessageDecoder, Split
from tests.fuzz import messages
from tests.fuzz.messages import Counts, Difference, check

ROOT = Path(__file__).parent.parent
ROUNDS = 24


def run(rounds: int = ROUNDS) -> Counts:
    counts = Counts()
    for number in range(rounds):
        check(f"short:{number}", counts)
    return counts


def test_random_records_are_read_as_the_official_library_reads_them() -> None:
    counts = run()
    assert counts.records == ROUNDS * messages.ROWS
    assert counts.good > counts.records / 4
    assert set(counts.decoders) == {"ptars", "protobuf"}
    assert len(counts.reasons) >= 6
    assert counts.unsure < counts.records / 10


def moved_by_one(split: Split) -> Split:
    rows = split.rows.num_rows
    turned = pa.array([(at + 1) % rows for at in range(rows)], pa.int64())
    return Split(split.rows.take(turned), split.positions, split.rejected)


def without_the_last(split: Split) -> Split:
    return Split(split.rows, split.positions, split.rejected[:-1])


@pytest.mark.parametrize("fault", [moved_by_one, without_the_last])
def test_a_decoder_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    right = MessageDecoder.decode
    monkeypatch.setattr(MessageDecoder, "decode", lambda self, payloads: fault(right(self, payloads)))
    with pytest.raises(Difference):
        run()


def test_a_header_that_is_read_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def legacy(values: pa.BinaryArray) -> Frames:
        return split_frames(values, legacy_varints=True)

    monkeypatch.setattr(messages, "split_frames", legacy)
    with pytest.raises(Difference):
        run()


def test_a_time_out_of_range_that_comes_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight, "NANOS_MAX", 2**31)
    monkeypatch.setattr(official_decoder, "NANOS_MAX", 2**31)
    with pytest.raises(Difference):
        run()


def test_a_weight_that_proves_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributary.schemas.protobuf import ptars_decoder

    def trusting(self: Any, raw: Any, payloads: Any, opaque: Any) -> Any:
        right(self, raw, payloads, opaque)
        return payloads.is_valid().to_numpy(zero_copy_only=False)

    right = ptars_decoder.PtarsDecoder._proven
    monkeypatch.setattr(ptars_decoder.PtarsDecoder, "_proven", trusting)
    with pytest.raises((Difference, TypeError, pa.ArrowException)):
        run()


def test_the_page_of_reliability_tells_the_figures_of_the_kept_run() -> None:
    report = json.loads((ROOT / "bench" / "results" / "fuzz-messages.json").read_text())
    page = " ".join((ROOT / "docs" / "reliability.md").read_text().split())
    assert report["differences"] == 0
    for figure in (report["records"], report["schemas"], report["good"], sum(report["set_aside"].values())):
        assert f"{figure:,}" in page
