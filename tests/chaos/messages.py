"""Envelopes of some games, in three schema versions, some of them bad; and the rows that they must become."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.wire import block, double, framed, text, whole

GAMES = ("ash", "birch", "cedar", "dogwood", "elm")

ENVELOPE = """\
syntax = "proto3";
message Envelope { string game_name = 1; int32 schema_id = 2; bytes payload = 3; }
"""

_FIELDS = (
    "int64 number = 1; string player = 2; optional double score = 3;",
    "repeated string tags = 4; map<string, int64> counts = 5;",
    "Place place = 6; uint32 level = 7;",
)
VERSIONS = len(_FIELDS)
COLUMNS = (("number", "player", "score"), ("tags", "counts"), ("place", "level"))
UNKNOWN_ID = 2_000_000_000

Row = dict[str, Any]
Register = Callable[[str, str], int]
"""(subject, text) -> schema id."""
Place = tuple[int, int]
"""(partition, offset)."""


def schema_text(game: str, version: int) -> str:
    """The schema of a version; a new one only adds fields."""
    place = "message Place { string country = 1; sint32 zone = 2; }" if version == VERSIONS else ""
    return f'syntax = "proto3";\nmessage {game.title()} {{ {" ".join(_FIELDS[:version])} {place} }}\n'


@dataclass
class Truth:
    """What must come out. `rows`: by game; `bad`: how many records may only be in the quarantine."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    bad: int = 0
    tombstones: int = 0

    @property
    def good(self) -> int:
        return sum(map(len, self.rows.values()))

    def columns(self, game: str) -> set[str]:
        return set().union(*(row.keys() for row in self.rows[game]))


class Producer:
    """Gives records, and remembers them in `truth`."""

    def __init__(self, dice: random.Random, register: Register) -> None:
        self._dice = dice
        self._register = register
        self._envelope_id = register("events-value", ENVELOPE)
        self._ids: dict[tuple[str, int], int] = {}
        self._number = 0
        self.truth = Truth()

    def records(self, count: int, progress: float) -> Iterator[bytes | None]:
        """`progress`, from 0 to 1, brings later versions and more games; old ones go on."""
        newest = 1 + min(VERSIONS - 1, int(progress * VERSIONS))
        games = GAMES[: 2 + min(len(GAMES) - 2, int(progress * len(GAMES)))]
        for _ in range(count):
            yield self._record(self._dice.choice(games), self._dice.randint(1, newest))

    def _record(self, game: str, version: int) -> bytes | None:
        fate = self._dice.random()
        if fate < 0.02:
            self.truth.tombstones += 1
            return None
        body, row = self._event(version)
        schema_id = self._id(game, version)
        if fate < 0.08:
            self.truth.bad += 1
        else:
            self.truth.rows.setdefault(game, []).append(row)
        if fate < 0.04:
            # A length that goes past the end.
            body = block(2, b"x" * 40)[:-9]
        if fate < 0.06:
            payload = framed(schema_id if fate < 0.04 else UNKNOWN_ID, body)
        elif fate < 0.08:
            payload = b"no header at all"
        else:
            payload = framed(schema_id, body)
        return framed(self._envelope_id, text(1, game) + whole(2, schema_id) + block(3, payload))

    def _id(self, game: str, version: int) -> int:
        for older in range(1, version + 1):
            if (game, older) not in self._ids:
                self._ids[game, older] = self._register(f"{game}-value", schema_text(game, older))
        return self._ids[game, version]

    def _event(self, version: int) -> tuple[bytes, Row]:
        dice, self._number = self._dice, self._number + 1
        player = dice.choice(["", "ana", "Łukasz", "小春", "o'neill; drop", "p" * dice.randint(1, 90)])
        score = dice.choice([None, 0.0, -1.5, dice.random(), 1e300])
        body = whole(1, self._number) + text(2, player)
        if score is not None:
            body += double(3, score) or b"\x19" + bytes(8)
        row: Row = {"number": self._number, "player": player, "score": score}
        if version > 1:
            tags = [dice.choice(["", "new", "vip"]) for _ in range(dice.randint(0, 3))]
            counts = {k: dice.choice([0, -7, 2**40]) for k in dice.sample("abc", dice.randint(0, 3))}
            body += b"".join(block(4, tag.encode()) for tag in tags)
            body += b"".join(block(5, text(1, k) + whole(2, n)) for k, n in counts.items())
            row |= {"tags": tags, "counts": sorted(counts.items())}
        if version > 2:
            place, level = dice.choice([None, ("", 0), ("no", -3), ("nz", 12)]), dice.choice([0, 7, 2**32 - 1])
            if place is not None:
                country, zone = place
                body += block(6, text(1, country) + whole(2, zone << 1 ^ zone >> 63))
            body += whole(7, level)
            row |= {"place": place and {"country": place[0], "zone": place[1]}, "level": level}
        return body, row
