"""Where two expressions are compared: small points of both signs, and far ones for expressions of several pieces."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

_PIECED = "Abs Max Min floor ceiling sign Mod Piecewise re im arg asin acos atan"
PIECED = frozenset(_PIECED.split())
"""Functions that are not one formula everywhere."""
_GROWING = "exp sinh cosh tanh factorial gamma binomial"
GROWING = frozenset(_GROWING.split())
SIGNS = (1, 1, -1, 1, -1, 1, -1, 1)
MOST, MOST_GROWING = Fraction(10**9), Fraction(40)
"""Farthest point; the second where a variable stands in an exponent or factorial."""

Point = dict[Any, Fraction]


def near(symbols: list[Any]) -> list[Point]:
    """Points between 0.1 and 3, and their like below zero; all variables of a point have one sign."""
    draw = random.Random(0)
    return [
        {s: Fraction(sign * draw.randint(101, 2999), draw.choice([997, 1009, 1013])) for s in symbols} for sign in SIGNS
    ]


def far(a: Any, b: Any, symbols: list[Any]) -> list[Point]:
    """Points beyond every number in a and b, on both sides, so that each piece of |x - 10| or of a root is met."""
    nodes = [*_nodes(a), *_nodes(b)]
    names = {type(node).__name__ for node in nodes}
    powers = [node for node in nodes if type(node).__name__ == "Pow" and node.free_symbols]
    if not names & PIECED and all(power.exp.is_Integer for power in powers):
        return []
    numbers = sorted({abs(Fraction(int(node.p), int(node.q))) for node in nodes if node.is_Rational})
    grows = names & GROWING or any(power.exp.free_symbols for power in powers)
    most, beyond = MOST_GROWING if grows else MOST, Fraction(11)
    for number in numbers:
        beyond *= 1 + number
    sizes = [number * Fraction(103, 100) for number in numbers if 3 <= number < most][:4]
    draw = random.Random(1)
    return [
        {s: sign * size * Fraction(draw.randint(10_007, 10_499), 10_000) for s in symbols}
        for size in (*sizes, min(beyond, most))
        for sign in (1, -1)
    ]


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for part in expression.args:
        yield from _nodes(part)
