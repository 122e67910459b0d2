"""The tutorial, typed by a machine: its commands in its order, against a real broker and registry."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.kafka import Kafka

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
VARIES = re.compile(r"\b[\d.]+ s\b|(?<=partition )\d+|(?<=offset )\d+")
"""Seconds, and where the producer put a record."""

pytestmark = [pytest.mark.services, pytest.mark.spark]


def steps() -> list[tuple[str, list[str]]]:
    """(command, the lines that it is said to print), in order."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.S):
        for line in filter(str.strip, block.splitlines()):
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", VARIES.sub("N", text)).strip()


def test_each_command_of_the_tutorial_prints_what_it_says(kafka: Kafka, registry_url: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for command, expected in steps():
        here = command.replace("localhost:9092", kafka.bootstrap_servers).replace("http://localhost:8081", registry_url)
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(
            shlex.split(here), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed = squeezed(done.stdout + done.stderr)
        for line in expected:
            # The registry counts schemas of other tests too; paths are written from the root.
            wanted = re.sub(r", id \d+$", "", squeezed(line)).replace(" lake:", f" {tmp_path}/lake:")
            assert wanted in printed, f"{command}\n{done.stdout}{done.stderr}"
        if " init " in command:
            file = tmp_path / "orders.yaml"
            text = file.read_text(encoding="utf-8")
            first, second = "envelope: none\n", "envelope: {format: none, route: shop}\n"
            assert first in text and f"# or: {second}" in text, "what the tutorial shows of the file"
            file.write_text(text.replace(f"# or: {second}", "").replace(first, second), encoding="utf-8")
