"""What must hold of every payload format (`schemas.decoding`). A test module of a format makes a `Sample` and calls
`check_all`, or asks for one rule at a time.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from distributary.config import Tables
from distributary.engine.messages.chunks import read_records, read_rejected
from distributary.engine.messages.decode import decode
from distributary.engine.messages.deliver import deliver_route
from distributary.engine.messages.demux import demux
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.routing import Constant
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.schemas import Schemas
from distributary.errors import Reason, SchemaNotFound
from distributary.schemas.decoding import CompiledSchema, Decoder, Split
from distributary.schemas.formats import FORMATS, decoder_for
from distributary.schemas.registry import Schema, SchemaVersion
from distributary.tables.store import Store
from tests.test_demux import source


@dataclass(frozen=True)
class Sample:
    """Some payloads of one writer. `rows`: what `good` says, as Python values; `bad`: what cannot be read."""

    format: str
    schema: CompiledSchema
    columns: pa.Schema
    good: Sequence[bytes]
    rows: Sequence[dict[str, Any]]
    bad: Sequence[bytes]

    @property
    def decoder(self) -> Decoder:
        return decoder_for(self.schema, format=self.format)


def binary(payloads: Sequence[bytes]) -> pa.BinaryArray:
    return pa.array(payloads, pa.binary())


def places(split: Split, count: int) -> list[int]:
    """Input positions of the good rows."""
    return list(range(count)) if split.positions is None else split.positions.to_pylist()


def check_all(sample: Sample) -> None:
    check_good_payloads_are_rows(sample)
    check_bad_payloads_are_rejected_alone(sample)
    check_no_payloads_are_no_rows(sample)
    check_a_slice_is_read_as_a_whole(sample)
    check_a_schema_ships(sample)
    check_a_header_is_cut_off_and_put_back(sample)


def check_good_payloads_are_rows(sample: Sample) -> None:
    split = sample.decoder.decode(binary(sample.good))
    assert sample.decoder.columns.equals(sample.columns), sample.decoder.columns
    assert split.rows.schema.equals(sample.columns)
    assert split.rows.to_pylist() == list(sample.rows)
    assert (split.positions, split.rejected) == (None, [])
    split.rows.validate(full=True)


def check_bad_payloads_are_rejected_alone(sample: Sample) -> None:
    """Each bad one among good ones, in each place."""
    for bad in sample.bad:
        mixed = [payload for good in sample.good for payload in (bad, good)]
        split = sample.decoder.decode(binary([*mixed, bad]))
        assert split.rows.to_pylist() == list(sample.rows)
        found = places(split, len(mixed) + 1)
        assert found == list(range(1, len(mixed), 2))
        assert [one.position for one in split.rejected] == list(range(0, len(mixed) + 1, 2))
        assert all(isinstance(one.reason, Reason) and one.detail for one in split.rejected)


def check_no_payloads_are_no_rows(sample: Sample) -> None:
    split = sample.decoder.decode(binary([]))
    assert split.rows.num_rows == 0
    assert split.rows.schema.equals(sample.columns)
    assert not split.rejected


def check_a_slice_is_read_as_a_whole(sample: Sample) -> None:
    doubled = binary([*sample.good, *sample.good])
    split = sample.decoder.decode(doubled.slice(len(sample.good)))
    assert split.rows.to_pylist() == list(sample.rows)


def check_a_schema_ships(sample: Sample) -> None:
    shipped = pickle.loads(pickle.dumps(sample.schema))
    assert shipped == sample.schema
    assert hash(shipped) == hash(sample.schema)
    assert shipped.format == sample.format
    assert decoder_for(shipped, format=sample.format).decode(binary(sample.good)).rows.to_pylist() == list(sample.rows)


def check_a_header_is_cut_off_and_put_back(sample: Sample) -> None:
    header = FORMATS[sample.format]
    framed = header.frame_all(sample.schema.id, "0", binary(sample.good))
    frames = header.split_frames(framed)
    assert frames.body.to_pylist() == list(sample.good)
    assert frames.schema_id.to_pylist() == [sample.schema.id] * len(sample.good)
    assert frames.reason.null_count == len(sample.good)
    if sample.schema.id:
        short = header.split_frames(binary([b"", b"\0", b"\1" * 9]))
        assert short.reason.to_pylist() == [Reason.TOO_SHORT, Reason.TOO_SHORT, Reason.BAD_MAGIC]


# -- a small pipeline in one process -----------------------------------------------------------------------------


class Given:
    """A registry of a few schemas; `subjects`: what references name."""

    name = "given"

    def __init__(self, *schemas: Schema, **subjects: Schema) -> None:
        self._schemas = {schema.id: schema for schema in schemas}
        self._subjects = subjects

    def get(self, schema_id: int) -> Schema:
        if schema_id not in self._schemas:
            raise SchemaNotFound(registry=self.name, what=f"id {schema_id}")
        return self._schemas[schema_id]

    def version(self, subject: str, version: int) -> SchemaVersion:
        if subject not in self._subjects:
            raise SchemaNotFound(registry=self.name, what=subject)
        return SchemaVersion(subject, version, self._subjects[subject])

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


@dataclass
class Lane:
    """Records of one route on their way into a table: header, chunks, decoding, evolution, commit, quarantine."""

    format: str
    schemas: Schemas
    root: Path
    framed: bool = True
    batches: int = 0
    rejected: list[pa.Table] = field(default_factory=list)

    def batch(self, payloads: Sequence[tuple[int, bytes]]) -> None:
        """One batch of payloads, each with the id of its writer."""
        header = FORMATS[self.format]
        values = [header.frame_all(i, "0", binary([body]))[0].as_py() if self.framed else body for i, body in payloads]
        chunks, ids = [], set[int]()
        for batch in demux([source(values)], self.reader, 0):
            for chunk in batch.to_pylist():
                if chunk["kind"] == "bad":
                    self.rejected.append(pa.Table.from_batches([read_rejected(chunk["blob"])]))
                else:
                    groups = json.loads(chunk["groups"])
                    ids |= {schema_id for schema_id, _, _ in groups}
                    chunks.append((groups, read_records(chunk["blob"])))
        known, refused = self.schemas.resolve(ids)
        spec = MessageSpec(
            pipeline="p", stream="s", batch=self.batches, tables=Tables(root=str(self.root)), store=Store(),
            quarantine=str(self.root / "quarantine"), payload_framed=self.framed, raw_nested_indexes=False,
            payload_format=self.format, refused=refused,
        )  # fmt: skip
        _, bad = deliver_route("a", decode("a", chunks, spec, known), spec)
        self.rejected += bad
        self.batches += 1

    @property
    def reader(self) -> EnvelopeReader:
        return EnvelopeReader(
            format="none", framed=True, route="", schema_id="", payload="", by_record=Constant("a"),
            payload_format=self.format, payload_framed=self.framed,
        )  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """What the table holds, in the order of the records."""
        rows = DeltaTable(str(self.root / "a")).to_pyarrow_table().to_pylist()
        rows.sort(key=lambda row: (row["_origin"]["batch"], row["_origin"]["offset"]))
        return [{name: value for name, value in row.items() if name != "_origin"} for row in rows]

    def aside(self) -> list[str]:
        """Reasons of the records in the quarantine, in their order within a batch."""
        kept = [row for table in self.rejected for row in table.to_pylist()]
        return [row["reason"] for row in sorted(kept, key=lambda row: row["offset"])]
