"""Which numbers a column holds without changing them. A JSON number is a text of any length; a column is not."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

__all__ = ["as_double", "as_integer"]

_FIRST, _LAST = -(2**63), 2**63 - 1
_LONGEST: Final = 800
"""Digits that are compared: no double has more of its own."""
_MOST_EXPONENT: Final = 400


def as_integer(token: str) -> int | None:
    """A number as a bigint: `5`, and `5.0` and `5e0`, which say the same; None where it is not whole or too large."""
    number = Decimal(token)
    if not number:
        return 0
    if not 0 <= number.adjusted() < 19:
        return None
    rounded = int(number)
    return rounded if rounded == number and _FIRST <= rounded <= _LAST else None


def as_double(token: str) -> float | None:
    """A number as a double, where that one printed with as many digits is the same number; else None.

    So 0.1 and 0.10000000000000001 are doubles; 9007199254740993, 1e400 and 3.14159265358979323846 are not.
    """
    try:
        number = Decimal(token)
    except InvalidOperation:  # an exponent of more digits than Python's own numbers take
        return None
    digits = len("".join(map(str, number.as_tuple().digits)).strip("0"))
    if not digits:
        return float(token)
    if digits > _LONGEST or abs(number.adjusted()) > _MOST_EXPONENT:
        return None
    double = float(token)
    return double if Decimal(f"{double:.{digits - 1}e}") == number else None
