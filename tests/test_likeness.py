"""What the judge takes for the same number: of doubles every bit counts, of 32-bit floats theirs."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from distributary.audit.judge.likeness import same
from distributary.audit.judge.plain_values import plain


def single(number: float) -> float:
    """The number that 32 bits keep of another."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def kept(kind: pa.DataType, number: float) -> Any:
    """As a table's column keeps it."""
    return plain(pa.array([number], kind))[0]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (0.1, kept(pa.float64(), 0.1)),
        (Decimal("0.1"), kept(pa.float64(), 0.1)),
        ("0.1", kept(pa.float32(), 0.1)),
        (Decimal("0.1"), kept(pa.float32(), 0.1)),
        (single(0.1), kept(pa.float64(), single(0.1))),
        (single(0.1), "0.1"),
        (kept(pa.float32(), 0.1), Decimal("0.1")),
        (kept(pa.float32(), 0.1), kept(pa.float64(), 0.1)),
        (float("nan"), kept(pa.float64(), float("nan"))),
    ],
)
def test_a_number_is_the_same_in_another_form(value: Any, cell: Any) -> None:
    assert same(value, cell)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (5.0000000001, kept(pa.float64(), 5.0)),
        (Decimal("5.0000000001"), kept(pa.float64(), 5.0)),
        ("0.30000000000000004", kept(pa.float64(), 0.3)),
        (0.1, kept(pa.float64(), single(0.1))),
        (0.30000000000000004, "0.3"),
        (0.2, kept(pa.float32(), 0.1)),
    ],
)
def test_doubles_that_a_float_would_not_tell_apart_are_two(value: Any, cell: Any) -> None:
    assert not same(value, cell)
