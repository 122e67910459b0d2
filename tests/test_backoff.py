"""Rests that grow, and chance that shortens them."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import distributary
from distributary.backoff import Backoff, any_chance


def test_rests_double_up_to_the_longest() -> None:
    backoff = Backoff(first_sec=0.5, longest_sec=4.0)
    assert [backoff.rest_sec(n) for n in (1, 2, 3, 4, 5, 5000)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_with_full_jitter_chance_may_take_the_whole_rest() -> None:
    backoff = Backoff(first_sec=0.5, longest_sec=4.0, jitter=1.0)
    assert [backoff.rest_sec(3, chance) for chance in (0.0, 0.25, 1.0)] == [0.0, 0.5, 2.0]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1), st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_no_rest_is_longer_than_the_longest_nor_shorter_than_jitter_allows(
    first: float, longest: float, jitter: float, failures: int, chance: float
) -> None:
    rest = Backoff(first, longest, jitter).rest_sec(failures, chance)
    whole = Backoff(first, longest).rest_sec(failures)
    assert 0 <= whole * (1 - jitter) * 0.999 <= rest <= whole <= longest


def test_chance_is_a_part_of_one_and_never_the_same() -> None:
    drawn = {any_chance() for _ in range(100)}
    assert len(drawn) == 100
    assert all(0 <= part < 1 for part in drawn)


def test_the_state_of_random_is_left_to_the_program_that_uses_the_library() -> None:
    """Who seeds `random` gets the same numbers with a stream running beside as without one."""
    importing = set()
    for module in Path(distributary.__file__).parent.rglob("*.py"):
        nodes = ast.walk(ast.parse(module.read_text()))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        if "random" in imported:
            importing.add(module.name)
    assert importing == {"backoff.py"}
