"""Run the soak and judge all rows: exits 1 where one is lost, doubled or wrong, or where memory grows."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.run import Asked, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--events", type=int, help="default: 7,000 a second")
    parser.add_argument("--routes", type=int, default=500)
    parser.add_argument("--every", type=int, default=10, help="seconds of trigger.every")
    parser.add_argument("--heap", default="1g", help="the JVM's")
    parser.add_argument("--folder", help="where it works (default: the temporary folder); needs up to 15 GB")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="distributary-soak-", dir=given.folder))
    events = given.events or int(given.minutes * 60 * 7_000)
    asked = Asked(given.minutes, events, given.routes, given.every, given.heap)
    with Soak(folder, asked) as soak:
        result = soak.run()
    text = json.dumps(result, indent=2) + "\n"
    (given.json or folder / "soak.json").write_text(text)
    wrong = result["wrong"]
    print("\n".join([*wrong, f"see {folder}" if wrong else "all right"]), flush=True)
    if not wrong:
        shutil.rmtree(folder)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
