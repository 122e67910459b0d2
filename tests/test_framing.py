"""Wire header: vectors from public bug reports, exact bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.errors import Reason
from distributary.schemas.protobuf.framing import MAX_DEPTH, Frames, frame, split_frames

ID_5 = "00 00000005 "


def split(*records: str | bytes | None, legacy_varints: bool = False) -> Frames:
    values = [bytes.fromhex(record) if isinstance(record, str) else record for record in records]
    return split_frames(pa.array(values, pa.binary()), legacy_varints=legacy_varints)


def one(record: str, *, legacy_varints: bool = False) -> tuple[int | None, str | None, bytes | None, str | None]:
    frames = split(record, legacy_varints=legacy_varints)
    return (
        frames.schema_id[0].as_py(),
        frames.index[0].as_py(),
        frames.body[0].as_py(),
        frames.reason[0].as_py(),
    )


def rejected(reason: Reason) -> tuple[None, None, None, str]:
    return (None, None, None, reason.value)


@pytest.mark.parametrize(
    ("indexes", "path"),
    [
        ("00", "0"),
        ("02 00", "0"),
        ("80 00", "0"),
        ("02 02", "1"),
        ("02 04", "2"),
        ("04 00 02", "0.1"),
        ("02 7e", "63"),
        ("02 80 01", "64"),
        ("06 00 02 04", "0.1.2"),
    ],
)
def test_indexes_are_zigzag_varints(indexes: str, path: str) -> None:
    assert one(ID_5 + indexes + "0a01 78") == (5, path, b"\x0a\x01x", None)


def test_legacy_indexes_are_read_only_when_asked_for() -> None:
    assert one(ID_5 + "01 01 0801", legacy_varints=True) == (5, "1", b"\x08\x01", None)
    assert one(ID_5 + "02 00 01 0801", legacy_varints=True) == (5, "0.1", b"\x08\x01", None)
    assert one(ID_5 + "00 0801", legacy_varints=True) == (5, "0", b"\x08\x01", None)


def test_a_legacy_header_read_as_zigzag_is_a_framing_error_or_keeps_its_bytes() -> None:
    assert one(ID_5 + "01 01 0801") == rejected(Reason.BAD_INDEX)
    assert one(ID_5 + "02 00 01 0801") == (5, "0", b"\x01\x08\x01", None)


def test_a_negative_index_is_a_framing_error() -> None:
    assert one(ID_5 + "02 01 0801") == rejected(Reason.BAD_INDEX)


def test_a_negative_length_is_a_framing_error() -> None:
    assert one(ID_5 + "03 00 0801") == rejected(Reason.BAD_INDEX)


def test_an_index_beyond_the_schema_is_left_to_the_decoder() -> None:
    assert one(ID_5 + "02 10") == (5, "8", b"", None)


@pytest.mark.parametrize("indexes", ["fe ff ff ff 0f", "42" + "00" * 33, "02 ff ff ff ff 7f", "80 80 80 80 80 00"])
def test_a_crafted_length_or_index_is_a_framing_error_and_allocates_nothing(indexes: str) -> None:
    assert one(ID_5 + indexes + "0801") == rejected(Reason.BAD_INDEX)


def test_the_deepest_path_is_still_read() -> None:
    path = ".".join(["0"] * MAX_DEPTH)
    assert one(ID_5 + "40" + "00" * MAX_DEPTH) == (5, path, b"", None)


def test_reversed_indexes_are_not_repaired() -> None:
    assert one(ID_5 + "04 02 00 0801") == (5, "1.0", b"\x08\x01", None)


def test_null_empty_and_header_only_are_three_things() -> None:
    frames = split(None, b"", ID_5 + "00")
    assert frames.schema_id.to_pylist() == [None, None, 5]
    assert frames.body.to_pylist() == [None, None, b""]
    assert frames.reason.to_pylist() == [None, Reason.TOO_SHORT, None]


@pytest.mark.parametrize("record", ["00 00 00", "08 96 01", "00 00000005", ID_5 + "02", ID_5 + "02 80", ID_5 + "04 00"])
def test_a_header_that_ends_early_is_too_short(record: str) -> None:
    assert one(record) == rejected(Reason.TOO_SHORT)


@pytest.mark.parametrize(
    "record",
    ["0a 05 68 65 6c 6c 6f 10 01", "01 8d3cbf7e 2f4d 4f0e 9c1a 3b5d7e9f1a2b 00 0801"],
    ids=["raw protobuf", "GUID header"],
)
def test_another_first_byte_is_bad_magic(record: str) -> None:
    assert one(record) == rejected(Reason.BAD_MAGIC)


def test_a_negative_schema_id_is_unknown_without_asking_the_registry() -> None:
    assert one("00 ffffffff 00 0801") == rejected(Reason.UNKNOWN_SCHEMA_ID)


def test_the_largest_schema_id_is_kept() -> None:
    assert one("00 7fffffff 00")[0] == 2**31 - 1


def test_rows_of_all_kinds_stay_in_their_places() -> None:
    frames = split(ID_5 + "00 aa", None, ID_5 + "04 00 02 bb", "01 00000005 00", ID_5 + "02 01", "00 00000007 02 02 cc")
    assert frames.schema_id.to_pylist() == [5, None, 5, None, None, 7]
    assert frames.index.to_pylist() == ["0", None, "0.1", None, None, "1"]
    assert frames.body.to_pylist() == [b"\xaa", None, b"\xbb", None, None, b"\xcc"]
    assert frames.reason.to_pylist() == [None, None, None, Reason.BAD_MAGIC, Reason.BAD_INDEX, None]


def test_a_sliced_array_reads_its_own_rows() -> None:
    values = pa.array([frame(i, bytes([i]), [i]) for i in range(6)] + [None], pa.binary()).slice(2, 5)
    frames = split_frames(values)
    assert frames.schema_id.to_pylist() == [2, 3, 4, 5, None]
    assert frames.index.to_pylist() == ["2", "3", "4", "5", None]
    assert frames.body.to_pylist() == [b"\2", b"\3", b"\4", b"\5", None]


@pytest.mark.parametrize("values", [pa.array([], pa.binary()), pa.nulls(3, pa.binary())])
def test_arrays_without_a_record_have_types_and_no_rows_to_read(values: pa.BinaryArray) -> None:
    frames = split_frames(values)
    assert [column.type for column in (frames.schema_id, frames.index, frames.body, frames.reason)] == [
        pa.int32(),
        pa.string(),
        pa.binary(),
        pa.string(),
    ]
    assert len(frames.body) == frames.body.null_count == len(values)


@pytest.mark.parametrize(("schema_id", "index"), [(-1, [0]), (1, []), (1, [-1]), (1, [0] * (MAX_DEPTH + 1))])
def test_a_header_that_could_not_be_read_back_is_not_written(schema_id: int, index: list[int]) -> None:
    with pytest.raises(ValueError, match="no header"):
        frame(schema_id, b"", index)


records = st.tuples(
    st.integers(0, 2**31 - 1),
    st.binary(max_size=20),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.none(), records), max_size=8))
def test_what_is_framed_is_split_the_same(rows: list[tuple[int, bytes, list[int]] | None]) -> None:
    frames = split(*[row and frame(*row) for row in rows])
    assert frames.schema_id.to_pylist() == [row and row[0] for row in rows]
    assert frames.body.to_pylist() == [row and row[1] for row in rows]
    assert frames.index.to_pylist() == [row and ".".join(map(str, row[2])) for row in rows]
    assert frames.reason.null_count == len(rows)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=8), st.booleans())
def test_random_bytes_have_either_a_header_or_a_reason(rows: list[bytes | None], legacy: bool) -> None:
    frames = split(*rows, legacy_varints=legacy)
    for position, row in enumerate(rows):
        good = frames.schema_id[position].is_valid
        assert good == frames.index[position].is_valid == frames.body[position].is_valid
        assert (good, frames.reason[position].is_valid).count(True) == (row is not None)
