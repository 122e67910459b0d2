"""`distributary run` over messages with keys, killed by SIGKILL at random moments while messages come: the newest of
each key is its row, the log has each once, and the history every version of each."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.extent import either
from tests.killing import check_by_command, run_and_kill
from tests.processes import SMALL_SPARK

KILLS = either(2, 10)
KEYS, A_TIME = 40, 300
START = datetime(2026, 1, 1, tzinfo=UTC)


class Players:
    """Sends messages to a Delta table, late and doubled ones among them. `newest`: of each key, (number, level)."""

    def __init__(self, source: Path, dice: random.Random) -> None:
        self.source, self.dice, self.sent = source, dice, 0
        self.newest: dict[int, tuple[int, int]] = {}
        self.numbers: Counter[int] = Counter()

    def send(self) -> None:
        rows = []
        for _ in range(3):
            numbers = range(self.sent, self.sent + A_TIME)
            for number in self.dice.sample([*numbers, *self.dice.sample(numbers, 9)], A_TIME + 9):
                key, level = number * 7 % KEYS, number % 91
                self.newest[key] = max(self.newest.get(key, (-1, 0)), (number, level))
                self.numbers[number] += 1
                body = json.dumps({"id": key, "level": level, "n": number}).encode()
                rows.append({"value": body, "timestamp": START + timedelta(seconds=number)})
            self.sent += A_TIME
            write_deltalake(self.source, pa.Table.from_pylist(rows), mode="append")
            rows = []


def pipeline(lake: Path, source: Path) -> Path:
    keys: dict[str, Any] = {
        "pipeline": "players",
        "source": {"type": "delta", "path": str(source), "max_files_per_batch": 1},
        "envelope": {"format": "none", "route": {"constant": "players"}},
        "payload": {
            "format": "json",
            "framing": "none",
            "columns": {"id": "bigint", "level": "bigint", "n": "bigint"},
        },
        "tables": {
            "root": str(lake / "tables"),
            "keys": ["id"],
            "newest_by": "n",
            "log": "{route}_log",
            "history": "{route}_history",
        },
        "trigger": "continuous",
        "spark": SMALL_SPARK,
    }
    file = lake / "players.yaml"
    file.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return file


def rows(lake: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(lake / "tables" / name)).to_pyarrow_table().to_pylist()
    return found


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_keys_have_their_newest_message_and_all_their_versions(lake: Path) -> None:
    players = Players(lake / "source", random.Random(6))
    players.send()
    file = pipeline(lake, lake / "source")
    log, dice = lake / "processes.log", random.Random(7)
    kills = run_and_kill(file, log, dice, lambda kills: kills == KILLS, lambda _: players.send())
    assert kills == KILLS
    assert {row["id"]: (row["n"], row["level"]) for row in rows(lake, "players")} == players.newest
    assert Counter(row["n"] for row in rows(lake, "players_log")) == players.numbers
    versions = rows(lake, "players_history")
    assert sorted(row["n"] for row in versions) == list(range(players.sent))
    current = {row["id"]: (row["n"], row["level"]) for row in versions if row["is_current"]}
    assert current == players.newest
    for row in versions:
        assert row["valid_from"] == START + timedelta(seconds=row["n"])
        assert row["is_current"] or row["valid_to"] == START + timedelta(seconds=row["n"] + KEYS)
    check_by_command(file)
