"""What a command that only answers need not do: half of its time would go into it (`make bench ONLY=answers`)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_process = {"is_own": False}


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("left out by distributary.cli.lean", name=fullname)
        return None


def own_process() -> None:
    """Say that this process ends with its command, so that it may do without what others would miss."""
    _process["is_own"] = True


def be_lean() -> None:
    """For the rest of this process: no search for garbage among all that is being imported, and no pandas.

    Arrow imports it with the first scalar, to see whether that is one of its own. It makes values of nanoseconds with
    it, so this is not for who reads files of others. Where the process is not the command's own, nothing changes.
    """
    if _process["is_own"] and "pandas" not in sys.modules:
        gc.set_threshold(100_000, 50, 100)
        sys.meta_path.insert(0, _NoPandas())
