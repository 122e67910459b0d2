"""How much the tests do: a little in the gate, a lot under `--hypothesis-profile=long` (CONTRIBUTING.md)."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings

EXAMPLES = 25
"""Of a property test in the gate."""
LONG = 2000
T = TypeVar("T")


def register_profiles() -> None:
    settings.register_profile("gate", max_examples=EXAMPLES, deadline=None, print_blob=True)
    settings.register_profile("long", max_examples=LONG, deadline=None, print_blob=True)
    settings.load_profile("gate")


def either(gate: T, long: T) -> T:
    """What this run is to do."""
    return long if settings().max_examples >= LONG else gate
