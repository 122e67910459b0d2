"""What one simulated record is, and which faults can be put into a stream."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, NamedTuple, get_args

import pyarrow as pa

from distributary.errors import Reason
from distributary_simulate.errors import SimulationInvalid
from distributary_simulate.games.encodings import Format

Fault = Literal["corrupt", "unknown_id", "empty_name", "tombstones", "bad_envelope", "id_mismatch"]

#: Why a pipeline must set the row aside. Faults without a reason: a tombstone is no row, an id mismatch is a good row.
REASONS: Final[dict[Fault, Reason]] = {
    "corrupt": Reason.CORRUPT_PAYLOAD,
    "unknown_id": Reason.UNKNOWN_SCHEMA_ID,
    "empty_name": Reason.NO_ROUTE,
    "bad_envelope": Reason.CORRUPT_ENVELOPE,
}

#: An id that no registry of a test or demo has given out.
UNKNOWN_ID: Final = 999_999


@dataclass(frozen=True)
class Faults:
    """How many of all records of a plan are made faulty; which ones follows from the seed.

    corrupt: a good header, then a payload cut short or of random bytes.
    unknown_id: the header (and the envelope) name a schema id that the registry does not have.
    empty_name: the envelope's game name is empty or absent.
    tombstones: a null value.
    bad_envelope: a good header, then bytes that are no envelope.
    id_mismatch: the envelope names another schema id than the payload's header; the header is right, the row good.
    """

    corrupt: int = 0
    unknown_id: int = 0
    empty_name: int = 0
    tombstones: int = 0
    bad_envelope: int = 0
    id_mismatch: int = 0

    def __post_init__(self) -> None:
        for fault, count in self.items():
            if count < 0:
                raise SimulationInvalid(what=f"faults.{fault}", detail=f"{count} is negative")

    def items(self) -> Iterator[tuple[Fault, int]]:
        for fault in get_args(Fault):
            yield fault, getattr(self, fault)

    @property
    def total(self) -> int:
        return sum(count for _, count in self.items())


assert {field.name for field in fields(Faults)} == set(get_args(Fault))


@dataclass(frozen=True)
class Plan:
    """What to produce: `records` records per version of each game, of which `faults` are faulty in total.

    topic: names the subject of the outer message, `<topic>-value`.
    framed: whether the envelope carries a wire header too; False leaves it bare (the payload always has one).
    form: the format of the payloads; the envelope is always protobuf.
    """

    games: int = 12
    versions: int = 3
    records: int = 1000
    seed: int = 0
    faults: Faults = Faults()
    topic: str = "events"
    framed: bool = True
    form: Format = "protobuf"

    def __post_init__(self) -> None:
        for key in ("games", "versions", "records"):
            if getattr(self, key) < 1:
                raise SimulationInvalid(what=key, detail=f"{getattr(self, key)} is too few, 1 is the least")
        if self.faults.total > self.total:
            raise SimulationInvalid(
                what="faults", detail=f"{self.faults.total} faults do not fit into {self.total} records"
            )

    @property
    def total(self) -> int:
        """Records over all games and versions, faulty ones included."""
        return self.games * self.versions * self.records

    def fault_positions(self) -> dict[int, Fault]:
        """Position in the whole plan -> fault. Positions count records within games within versions."""
        drawn = random.Random(f"faults {self.seed}").sample(range(self.total), self.faults.total)
        kinds = [fault for fault, count in self.faults.items() for _ in range(count)]
        return dict(zip(drawn, kinds, strict=True))


class Envelope(NamedTuple):
    """The outer message in plain columns."""

    game_name: str | None
    schema_id: int | None
    payload: bytes | None


class Record(NamedTuple):
    """One record as it goes into a topic or a bronze table.

    value: the envelope's bytes, None for a tombstone.
    game, schema_id, version: what the record was made from (a faulty record may say otherwise).
    timestamp_us: the event's instant, microseconds since 1970 UTC.
    envelope: the same as plain columns; all None where the envelope's bytes are garbage.
    """

    key: bytes | None
    value: bytes | None
    game: str
    schema_id: int
    version: int
    fault: Fault | None
    timestamp_us: int
    envelope: Envelope


#: As a Kafka export looks: what Spark's Kafka source gives, without the columns that only a broker knows.
VALUE_SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)

#: The envelope already taken apart, for a source with `envelope: {format: columns}`.
COLUMNS_SCHEMA: Final = pa.schema(
    [
        pa.field("game_name", pa.string()),
        pa.field("schema_id", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)


def batch_of(records: Sequence[Record], *, columns: bool = False) -> pa.RecordBatch:
    """The records as rows of `VALUE_SCHEMA`, or of `COLUMNS_SCHEMA` if `columns`."""
    if columns:
        names, ids, payloads = zip(*(record.envelope for record in records), strict=True)
        return pa.record_batch([names, ids, payloads], schema=COLUMNS_SCHEMA)
    return pa.record_batch(
        [[r.value for r in records], [r.key for r in records], [r.timestamp_us for r in records]],
        schema=VALUE_SCHEMA,
    )
