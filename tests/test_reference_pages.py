"""The pages that are made from code say what the code does now."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from distributary.errors import CheckpointLost

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    return importlib.import_module("generate")


def test_no_generated_page_is_out_of_date(pages: Any) -> None:
    assert pages.outdated() == [], "run: make docs"


def test_an_error_without_words_and_words_without_an_error_are_found(
    pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointLost, "condition", "SOMETHING_NEW")
    with pytest.raises(LookupError, match="CHECKPOINT_LOST, SOMETHING_NEW"):
        pages.errors_page()


def test_each_link_of_the_errors_leads_to_a_heading(pages: Any) -> None:
    for page, anchor in re.findall(r"\]\((\w+\.md)#([\w-]+)\)", pages.errors_page()):
        headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(encoding="utf-8"), re.M)
        slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{page}#{anchor}"


def test_a_picture_of_a_terminal_is_svg_with_each_line_once_and_the_middle_left_out(pages: Any) -> None:
    terminal = importlib.import_module("terminal")
    printed = [f"batch {number}: a < b & c; quarantined: 3" for number in range(100)]
    lines = terminal.shown("make demo", printed)
    texts = ElementTree.fromstring(terminal.picture("demo", lines)).iter("{http://www.w3.org/2000/svg}text")
    assert ["".join(text.itertext()) for text in texts] == lines
    assert lines[0] == "$ make demo" and lines[1] == printed[0] and lines[-1] == printed[-1]
    assert len(lines) == 2 + terminal.HEAD + terminal.TAIL
