"""The demo of change files, small: it ends by itself and proves what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.running.progress import LineDisplay
from distributary_simulate.demo.changes import ChangesFolder, play_changes

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_each_merged_table_is_the_sources_own(tmp_path: Path) -> None:
    said: list[str] = []
    result = play_changes(ChangesFolder(tmp_path / "demo"), LineDisplay(said.append), events=1200)
    assert result.ok, ([p.differences for p in result.proofs], result.verification.problems)
    assert len(result.proofs) == 6
    assert {p.kind for p in result.proofs} == {"mysql", "postgresql", "oracle"}
    assert result.doubled > 0
    assert DeltaTable.is_deltatable(str(result.folder.lake / "shop_users_log"))
