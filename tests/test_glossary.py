"""The glossary names what is there."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "glossary.md"
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", PAGE.read_text())) - {"module.Name"})


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_glossary_is_in_the_code(name: str) -> None:
    assert pkgutil.resolve_name(f"distributary.{name}") is not None


def test_the_glossary_names_the_code() -> None:
    assert len(NAMES) > 30
