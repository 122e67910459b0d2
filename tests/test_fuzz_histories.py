"""The short form of `make fuzz` over change histories, and that it would see a fault of the order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from distributary.changes import sequence
from distributary.changes.reduce import Ranked
from tests.fuzz.histories import Difference, check, check_handed_on
from tests.histories.engine import KINDS

HISTORIES = 150


def run(histories: int = HISTORIES) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in range(histories):
        check(f"short:{number}", counts)
    return counts


def test_tables_are_what_the_databases_of_random_histories_hold() -> None:
    counts = run()
    assert counts["histories"] == HISTORIES
    assert all(counts[f"histories of {kind}"] > 9 for kind in KINDS)
    assert counts["epochs"] > 9


def test_tables_are_right_where_oracle_s_transactions_hand_keys_on_more_than_once_over_several_batches() -> None:
    for number in range(HISTORIES):
        check_handed_on(f"handed:{number}")


def by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dict(sequence._POSITIONS)

    def positions(kind: str) -> Callable[..., list[np.ndarray]]:
        return lambda events, time, *more: [time.copy(), *right[kind](events, time, *more)[:3]]

    monkeypatch.setattr(sequence, "_POSITIONS", {kind: positions(kind) for kind in right})


def the_upsert_first(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sequence._POSITIONS["mysql"]

    def positions(events: sequence._Events, *more: object) -> list[np.ndarray]:
        file, position, read, _ = right(events, *more)  # type: ignore[arg-type]
        return [file, position, (~events.flags("is_deleted")).astype(np.int64), read]

    monkeypatch.setitem(sequence._POSITIONS, "mysql", positions)


def no_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranked, "left_for", lambda self, other: np.zeros(len(self.numbers), bool))


@pytest.mark.parametrize("fault", [by_time, the_upsert_first, no_statements])
def test_an_order_that_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    with pytest.raises(Difference):
        run(4 * HISTORIES)
