"""The command line as a supervisor's child: it ends when its parent does, however the parent ends.

    python -m distributary.cli.supervised GRACE_SEC run FILE --share 1/3 --json

The parent holds the other end of this process's standard input. When that closes, because the parent ended or was
killed, the run is asked to stop, and after the grace the process goes at once: no stream is ever left behind. (Linux
could send a signal at the parent's death, but at that of the *thread* which started the child, and only there.) Errors
are told on standard output too, as JSON, so that the parent need not read prose.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import NoReturn

from distributary.errors import DistributaryError, Exit
from distributary.redaction import redacted
from distributary.supervisor.policy import is_lasting


def watch_parent(grace_sec: float) -> None:
    """End this process when standard input does."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace_sec)
        os._exit(Exit.INTERRUPTED)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def tell(error: BaseException, code: int) -> None:
    condition = error.condition if isinstance(error, DistributaryError) else type(error).__name__
    message = {"kind": "error", "condition": condition, "text": redacted(str(error))[:2000], "exit_code": int(code)}
    sys.stdout.write(json.dumps({**message, "lasting": is_lasting(error)}) + "\n")
    sys.stdout.flush()


def main() -> NoReturn:
    watch_parent(float(sys.argv[1]))
    from distributary.cli.entry import execute

    code = execute(sys.argv[2:], tell)
    sys.stdout.flush()
    # Not sys.exit: threads that JVM or store clients left behind must not keep a finished stream alive.
    os._exit(code)


if __name__ == "__main__":
    main()
