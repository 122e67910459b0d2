"""`python -m tests.fuzz KIND --seed S --seconds N --json OUT`: random input against a judge of its own.

A module of this package is a kind: `HELP`, `add_arguments(parser)`, `main(arguments) -> (report, exit code)`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz import histories, messages

KINDS = {"messages": messages, "histories": histories}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name, module in KINDS.items():
        one = kinds.add_parser(name, help=module.HELP)
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--seconds", type=float, default=0)
        one.add_argument("--json", type=Path, help="where the report goes")
        module.add_arguments(one)
    arguments = parser.parse_args()
    report, code = KINDS[arguments.kind].main(arguments)
    text = json.dumps(report, indent=2) + "\n"
    if arguments.json is not None:
        arguments.json.write_text(text)
    sys.stdout.write(text)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
