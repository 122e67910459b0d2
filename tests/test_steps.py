"""Works side by side: a step of each before the next of any, and each comes to what it comes to alone."""

from __future__ import annotations

import pytest

from distributary.steps import LARGE_BYTES, Steps, finished, side_by_side, unless_large


def work(name: str, steps: int, said: list[str]) -> Steps[str]:
    for step in range(steps):
        said.append(f"{name}{step}")
        yield
    return name.upper()


def test_each_takes_a_step_before_any_takes_the_next() -> None:
    said: list[str] = []
    assert side_by_side([work("a", 2, said), work("b", 3, said), work("c", 0, said)]) == ["A", "B", "C"]
    assert said == ["a0", "b0", "a1", "b1", "b2"]


def test_one_alone_is_done_to_its_end() -> None:
    said: list[str] = []
    assert finished(work("a", 3, said)) == "A"
    assert said == ["a0", "a1", "a2"]


def test_a_large_one_is_done_before_the_next_begins() -> None:
    said: list[str] = []
    sizes = {"a": LARGE_BYTES, "b": LARGE_BYTES + 1, "c": 0}
    works = [unless_large(size, work(name, 2, said)) for name, size in sizes.items()]
    assert side_by_side(works) == ["A", "B", "C"]
    assert said == ["a0", "b0", "b1", "c0", "a1", "c1"]


def test_none_at_all_come_to_nothing() -> None:
    none: list[Steps[str]] = []
    assert side_by_side(none) == []


def test_what_one_raises_ends_all() -> None:
    def broken() -> Steps[str]:
        yield
        raise ValueError("broken")

    said: list[str] = []
    with pytest.raises(ValueError, match="broken"):
        side_by_side([work("a", 5, said), broken()])
    assert said == ["a0", "a1"]
