"""What `make test` leaves to `make test ALL=1`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import thorough


def item(name: str, file: str = "test_chaos") -> Any:
    return SimpleNamespace(name=name, path=Path(f"tests/{file}.py"))


def test_a_test_is_left_out_by_how_its_name_begins_in_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "ONLY_THOROUGH", {"test_chaos": ["test_a[two"]})
    assert not thorough.is_of_gate(item("test_a[two, three]"))
    assert thorough.is_of_gate(item("test_a[one]"))
    assert thorough.is_of_gate(item("test_a[two]", "test_crash"))


def test_an_entry_of_no_test_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"test_chaos": ["test_a[two", "test_b"], "test_that_went": ["test_c"], "test_crash": ["test_d"]}
    monkeypatch.setattr(thorough, "ONLY_THOROUGH", names)
    assert thorough.unknown([item("test_a[two]")]) == ["test_chaos: test_b", "test_that_went: test_c"]


def test_every_entry_is_of_a_test_of_this_run(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[thorough.UNKNOWN] == []
