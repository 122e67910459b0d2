"""docs/architecture.md names what is there: modules that exist, and every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "distributary"
PLACES = [
    f"/{path.relative_to(ROOT).with_suffix('').as_posix()}"
    for top in ("src", "tests")
    for path in (ROOT / top).rglob("*")
    if path.suffix == ".py" or path.is_dir()
]
# `engine/batch`, `tables/table.py`, `messages/`, `sources/unread.already_read`, also in drawings; `runs.py` alone.
NAMES = sorted(
    {*re.findall(r"(?<![\w/.:(])((?:[a-z_]+/)+[a-z_]*)(?!\w|/|\.md)", PAGE), *re.findall(r"`(\w+)\.py`", PAGE)}
)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_the_page_is_in_the_tree(name: str) -> None:
    assert any(place.endswith(f"/{name.rstrip('/')}") for place in PLACES)


def test_the_page_names_every_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    table = PAGE.partition("## Where things are")[2].partition("## Where to begin")[0]
    assert {name for name in packages if f"`{name}/`" not in table} == set()
    assert len(NAMES) > 60
