"""The door to the process's environment variables."""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def environment() -> MutableMapping[str, str]:
    """The live environment: what is set here is seen by processes that start later."""
    return os.environ
