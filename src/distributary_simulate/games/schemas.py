"""Names and schema texts of the simulated games: plain functions, no registry and no randomness.

The shapes are those that teams with one topic for many games run: an outer message that says which game and which
schema, and one inner message per game that grows by a column a version.
"""

from __future__ import annotations

from typing import Final, Literal

ColumnKind = Literal["string", "Detail", "int64", "double"]

#: Column `c` of every game has kind `KINDS[(c - 1) % len(KINDS)]`, so from version 2 on a struct column grows inside.
KINDS: Final[tuple[ColumnKind, ...]] = ("string", "Detail", "int64", "double")

#: The outer message. `optional` tells an absent name from an empty one.
WRAPPER_TEXT: Final = """\
syntax = "proto3";

message wrapper {
  optional string game_name = 1;
  optional int32 schema_id = 2;
  optional bytes payload = 3;
}
"""

#: Fields of the inner message that every version of every game has; columns follow from the next number on.
_BASE: Final = """\
  string game_name = 1;
  string user_name = 2;
  google.protobuf.Timestamp event_timestamp = 3;
  bool is_connection_stable = 4;
"""
_FIRST_COLUMN_NUMBER: Final = 5

_FIRST: Final = (
    "amber brave calm clever coral cosmic crimson dapper dusty eager fabled frosty gentle gilded happy hidden "
    "icy ivory jolly keen lively lucky lunar mellow merry misty nimble noble opal plucky polar proud quiet rapid "
    "royal rustic salty secret silent silver sleepy sly solar sturdy sunny swift tidy tiny velvet vivid wild "
    "windy wise witty young zesty"
)
_SECOND: Final = (
    "anchor badger beacon bishop canyon castle comet dragon drifter dungeon ember falcon forest galaxy garden "
    "glacier goblin harbor island jungle kingdom knight lagoon lantern library maze meadow meteor mill mountain "
    "ninja oasis orchard otter outpost owl palace pirate planet portal puzzle quarry raider river rocket safari "
    "sailor tavern temple thunder tower trader valley village voyage wizard"
)
_FIRST_WORDS: Final = _FIRST.split()
_SECOND_WORDS: Final = _SECOND.split()

_USERS: Final = (
    "ada bela cleo dora edda finn gus hana iris jonas kira levi mina nora otto pia quinn rosa sami tess uli vera "
    "wim xenia yara zoe åsa łukasz 小春 ana-maria"
)
USERS: Final = tuple(_USERS.split())
ZONES: Final = ("north", "east", "south", "west", "centre")


def game_names(count: int) -> list[str]:
    """The first `count` invented game names: unique, each ending in `_game`, always the same for the same position."""
    return [_game_name(position) for position in range(count)]


def _game_name(position: int) -> str:
    pairs = len(_FIRST_WORDS) * len(_SECOND_WORDS)
    again, pair = divmod(position, pairs)
    row, column = divmod(pair, len(_FIRST_WORDS))
    # The second word shifts as well, so that neighbours differ in both words and are easy to tell apart.
    second = _SECOND_WORDS[(row + column) % len(_SECOND_WORDS)]
    return f"{_FIRST_WORDS[column]}_{second}{f'_{again + 1}' if again else ''}_game"


def column_kind(column: int) -> ColumnKind:
    """Type of the column with this number (from 1)."""
    return KINDS[(column - 1) % len(KINDS)]


def column_name(game: str, column: int) -> str:
    return f"col_{game}_{column}"


def event_text(game: str, version: int) -> str:
    """Schema text of one game's inner message in this version (from 1): columns 1 to `version`.

    A version only ever adds `optional` fields, at the top and inside `Detail`: the compatibility level FULL allows it.
    """
    columns = "".join(
        f"  optional {column_kind(c)} {column_name(game, c)} = {_FIRST_COLUMN_NUMBER + c - 1};\n"
        for c in range(1, version + 1)
    )
    detail = _detail_text(version) if version >= KINDS.index("Detail") + 1 else ""
    return (
        'syntax = "proto3";\n\nimport "google/protobuf/timestamp.proto";\n\n'
        f"message event {{\n{detail}{_BASE}{columns}}}\n"
    )


def _detail_text(version: int) -> str:
    levels = "".join(f"    optional int64 level_{v} = {v + 1};\n" for v in range(1, version + 1))
    return f"  message Detail {{\n    optional string zone = 1;\n{levels}  }}\n"


def game_subject(game: str) -> str:
    return f"{game}-value"


def wrapper_subject(topic: str) -> str:
    """Subject of the outer message, by Confluent's TopicNameStrategy."""
    return f"{topic}-value"
