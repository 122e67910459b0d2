"""The state folder on this machine's files: who may enter it."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.state.lock import only_run


def test_a_new_state_folder_is_its_owners_alone_and_the_folders_above_are_as_the_machine_has_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "as the machine has them").mkdir()
    state = tmp_path / "lake" / "_distributary" / "games"
    with only_run(str(state), "games"):
        assert state.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "lake").stat().st_mode == (tmp_path / "as the machine has them").stat().st_mode


@pytest.mark.parametrize("mode", [0o750, 0o755])
def test_a_state_folder_that_somebody_has_shared_stays_shared(tmp_path: Path, mode: int) -> None:
    (tmp_path / "games").mkdir()
    (tmp_path / "games").chmod(mode)
    with only_run(str(tmp_path / "games"), "games"):
        assert (tmp_path / "games").stat().st_mode & 0o777 == mode
