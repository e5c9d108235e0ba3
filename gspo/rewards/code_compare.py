"""What a program printed or returned against what was expected: outside the box, on plain values only."""

from __future__ import annotations

import math
import re
from typing import Any

FLOAT_TOLERANCE = 1e-6
"""Absolute or relative, for floats of call tests unless the test says `exact`."""

_INTEGER = re.compile(r"[+-]?\d+\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)


def lines_of(text: str) -> list[str]:
    """Lines without trailing blanks, without trailing blank lines."""
    lines = [line.rstrip(" \t\r\f\v") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def same_output(expected: str, printed: str, tolerance: float | None = None) -> bool:
    """Line by line equal; with a tolerance (absolute or relative) also where the expected token is a decimal number."""
    want, got = lines_of(expected), lines_of(printed)
    if want == got:
        return True
    if tolerance is None or len(want) != len(got):
        return False
    return all(a == b or _same_tokens(a.split(), b.split(), tolerance) for a, b in zip(want, got, strict=True))


def _same_tokens(want: list[str], got: list[str], tolerance: float) -> bool:
    return len(want) == len(got) and all(
        a == b or _same_number(a, b, tolerance) for a, b in zip(want, got, strict=True)
    )


def _same_number(want: str, got: str, tolerance: float) -> bool:
    if _INTEGER.match(want) or not _NUMBER.match(want) or not _NUMBER.match(got):
        return False
    a, b = float(want), float(got)
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance * max(1.0, abs(a))


def same_value(expected: Any, returned: Any, *, exact: bool = False) -> bool:
    """Equal as plain values: a tuple is a list, a bool is not an integer, floats to `FLOAT_TOLERANCE` unless `exact`.

    A number is compared as a float only where the expected one is a float; NaN equals NaN.
    """
    if isinstance(expected, bool) or isinstance(returned, bool):
        return type(expected) is type(returned) and expected == returned
    if isinstance(expected, float) and isinstance(returned, int | float):
        return _same_float(expected, returned, exact)
    if isinstance(expected, int):
        return isinstance(returned, int | float) and expected == returned
    if isinstance(expected, list | tuple):
        if not isinstance(returned, list | tuple) or len(expected) != len(returned):
            return False
        return all(same_value(a, b, exact=exact) for a, b in zip(expected, returned, strict=True))
    if isinstance(expected, dict):
        if not isinstance(returned, dict) or expected.keys() != returned.keys():
            return False
        return all(same_value(value, returned[key], exact=exact) for key, value in expected.items())
    if isinstance(expected, set | frozenset):
        return isinstance(returned, set | frozenset) and expected == returned
    if isinstance(expected, complex):
        if not isinstance(returned, int | float | complex):
            return False
        pairs = ((expected.real, returned.real), (expected.imag, returned.imag))
        return all(_same_float(a, b, exact) for a, b in pairs)
    return type(expected) is type(returned) and expected == returned


def _same_float(expected: float, returned: float, exact: bool) -> bool:
    try:
        value = float(returned)
    except OverflowError:
        return False
    if math.isnan(expected) or math.isnan(value):
        return math.isnan(expected) and math.isnan(value)
    if exact or math.isinf(expected) or math.isinf(value):
        return expected == value
    return abs(expected - value) <= FLOAT_TOLERANCE * max(1.0, abs(expected))
