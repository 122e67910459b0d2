"""The inner message of one game and version, filled with values that follow from (seed, game, version, position)."""

from __future__ import annotations

import zlib
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from distributary.schemas.registry.compile import compile_text
from distributary_simulate.games.encodings import Format, encoded
from distributary_simulate.games.schemas import USERS, ZONES, column_kind, column_name, event_text

#: 2024-01-01T00:00:00Z. Events of one game are a second apart, so (game, event_timestamp) names one event.
START_SEC: Final = 1_704_067_200
#: Versions are this far apart, for up to 2,592,000 events (30 days) each before two versions share an instant.
VERSION_SEC: Final = 30 * 24 * 3600
#: Seconds in this range are varints of exactly five bytes, which the bulk path counts on.
FIVE_BYTE_SEC: Final = range(1 << 28, 1 << 35)

_MASK: Final = (1 << 64) - 1


def message_class(text: str, name: str) -> Any:
    """Class of one message of a schema text, in a pool of its own (two games both call their message `event`)."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compile_text(text).descriptor_set).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def second_of(version: int, position: int) -> int:
    """Instant of an event in whole seconds since 1970 UTC."""
    return START_SEC + (version - 1) * VERSION_SEC + position


def mixed(base: int, position: int) -> int:
    """64 well-mixed bits: the output function of SplitMix64 (Steele, Lea, Flood 2014). Any position, in any order."""
    z = (base + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class EventMaker:
    """Serialises events of one game in one version. Deterministic, in any order; not shared between processes."""

    def __init__(self, game: str, version: int, seed: int, form: Format = "protobuf") -> None:
        self.game = game
        self.version = version
        self._form = form
        self._message = message_class(event_text(game, version), "event")
        self._columns = [(column_name(game, c), column_kind(c), c) for c in range(1, version + 1)]
        # Two checksums make 64 bits; the built-in hash of a text differs from process to process.
        label = f"{seed}/{game}/{version}".encode()
        self._base = zlib.crc32(label) << 32 | zlib.crc32(label[::-1])

    def bits(self, position: int) -> int:
        """The 64 bits from which everything about this event is drawn."""
        return mixed(self._base, position)

    def user(self, position: int) -> str:
        """One of some thousands, so that as record keys they spread evenly over partitions."""
        bits = self.bits(position)
        return f"{USERS[bits % len(USERS)]}{(bits >> 40) % 100}"

    def instant_us(self, position: int) -> int:
        """Instant of the event, microseconds since 1970 UTC."""
        return second_of(self.version, position) * 1_000_000 + (self.bits(position) >> 20) % 1_000_000

    def payload(self, position: int, instant_us: int | None = None) -> bytes:
        """The event as bytes without a wire header; `instant_us` replaces its own instant.

        About one value in eight of each column is absent.
        """
        bits = self.bits(position)
        event = self._message(
            game_name=self.game, user_name=self.user(position), is_connection_stable=bits >> 8 & 7 != 0
        )
        seconds, micros = divmod(self.instant_us(position) if instant_us is None else instant_us, 1_000_000)
        event.event_timestamp.seconds = seconds
        event.event_timestamp.nanos = micros * 1000
        for name, kind, column in self._columns:
            drawn = mixed(bits, column)
            if drawn & 7 == 0:
                continue
            if kind == "Detail":
                self._fill_detail(getattr(event, name), drawn)
            else:
                setattr(event, name, _scalar(kind, drawn))
        return encoded(self._form, self.game, self.version, event)

    def _fill_detail(self, detail: Any, drawn: int) -> None:
        detail.zone = ZONES[drawn % len(ZONES)]
        for level in range(1, self.version + 1):
            if drawn >> (8 + level % 40) & 3:
                setattr(detail, f"level_{level}", (drawn >> 16) % 100 + level)


def _scalar(kind: str, drawn: int) -> str | int | float:
    if kind == "string":
        return f"item-{(drawn >> 8) % 5000}"
    if kind == "int64":
        # All widths and both signs: a varint of a negative int64 has ten bytes.
        return ((drawn >> 3) & 0xFFFFFFFF) - 0x7FFFFFFF if drawn & 8 else (drawn >> 8) % 1000
    return (drawn >> 12) / (1 << 32)
