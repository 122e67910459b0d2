"""The command line as a platform's job: a good end is a return, a bad one an exception.

Platforms that call an entry point inside their own Python take any SystemExit, also that of exit code 0, for a failure.
"""

from __future__ import annotations

import sys

from distributary.cli.entry import execute
from distributary.errors import Exit


class JobFailed(RuntimeError):
    """The command ended with another exit code than 0; what was wrong stands above, in the task's output."""


def main() -> None:
    """The entry point `distributary-job`. Raises JobFailed."""
    try:
        code = execute(sys.argv[1:])
    except SystemExit as e:  # a signal before there was anything to stop
        code = e.code if isinstance(e.code, int) else int(Exit.OK)
    if code != Exit.OK:
        raise JobFailed(f"distributary {' '.join(sys.argv[1:2])} ended with exit code {code}")
