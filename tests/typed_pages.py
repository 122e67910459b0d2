"""Types the commands of a page, in its order, in a folder of its own: blocks of ```console, `$ ` before a command.

The lines after a command are what it prints, or some of it. Where they begin with `error:` it is to fail. What happens
between two blocks without a command stands in the page as a comment, `<!-- meanwhile: what -->`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from distributary.cli.entry import execute
from distributary.errors import Exit

DOCS = Path(__file__).resolve().parent.parent / "docs"
_PARTS = re.compile(r"```console\n(?P<block>.*?)```|<!-- meanwhile: (?P<meanwhile>[^>]+?) -->", re.S)
_ATTENTION = ("NOT verified", "still not readable")
"""What a command says that was done, and ends with exit code 1."""
_VARIES = re.compile(r"\b[\d.]+ s\b")


@dataclass
class Step:
    """A command and the lines that it is said to print, or what happens `meanwhile`."""

    command: str = ""
    meanwhile: str = ""
    lines: list[str] = field(default_factory=list)


def steps(page: str) -> Iterator[Step]:
    for part in _PARTS.finditer((DOCS / page).read_text(encoding="utf-8")):
        if part["meanwhile"]:
            yield Step(meanwhile=part["meanwhile"])
            continue
        found: list[Step] = []
        for line in filter(str.strip, part["block"].splitlines()):
            if line.startswith("$ "):
                found.append(Step(re.sub(r"\s+# .*", "", line[2:])))
            elif line.strip() != "...":
                found[-1].lines.append(line)
        yield from found


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", _VARIES.sub("N s", text)).strip()


@dataclass
class Typist:
    """`folder`: what the page calls /data. The commands of ours run in this process, with its session of Spark."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    meanwhile: Mapping[str, Callable[[], object]]

    def type_all(self, page: str) -> int:
        """Returns how many commands were typed."""
        typed = 0
        for step in steps(page):
            if step.meanwhile:
                self.meanwhile[step.meanwhile]()
                continue
            typed += 1
            self._type(step)
        return typed

    def _type(self, step: Step) -> None:
        code, printed = self._run(step.command.replace("/data", str(self.folder)))
        printed = squeezed(printed.replace(str(self.folder), "/data"))
        about = f"$ {step.command}\n{printed}"
        fails = any(line.startswith("error:") for line in step.lines)
        attention = any(words in line for line in step.lines for words in _ATTENTION)
        assert (code != Exit.OK) == (fails or attention), about
        for line in step.lines:
            for piece in line.split(" ... "):
                assert squeezed(piece.removesuffix(" ...")) in printed, f"{line}\n\n{about}"

    def _run(self, command: str) -> tuple[int, str]:
        if command.startswith("distributary "):
            code = execute(command.split()[1:])
            said = self.capsys.readouterr()
            return code, said.out + said.err
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr
