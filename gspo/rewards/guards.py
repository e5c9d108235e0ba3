"""Texts that must not reach a computer algebra system: towers, huge factorials, deep nesting, endless digits."""

from __future__ import annotations

import re

from gspo.rewards.answers import group_end
from gspo.rewards.rational import MOST_CHARACTERS, MOST_DEPTH, MOST_DIGITS, NotRational, TooBig, rational

BOUND = re.compile(r"\\(?:sum|prod|int)\s*(?:_\s*(?:\{[^{}]*\}|\w))?\s*$")
"""What an upper bound, which is no exponent, stands behind."""


def too_big(text: str) -> str | None:
    """Why this text must not reach a computer algebra system; None when it may."""
    if len(text) > MOST_CHARACTERS:
        return f"{len(text)} characters"
    if re.search(rf"\d{{{MOST_DIGITS // 2},}}", text):
        return "a literal of too many digits"
    depth = deepest = 0
    for ch in text:
        depth += (ch in "([{") - (ch in ")]}")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        return "brackets nested too deep"
    towers = 0
    for found in re.finditer(r"\^\s*\{", text):
        end = group_end(text, found.end() - 1)
        inner = text[found.end() : end - 1]
        towers = max(towers, inner.count("^"))
        reason = None if BOUND.search(text[max(0, found.start() - 80) : found.start()]) else _huge(inner, 5_000)
        if reason or towers >= 3:
            return reason or "a tower of powers"
    for found in re.finditer(r"\\binom\{", text):
        end = group_end(text, found.end() - 1)
        if _huge(text[found.end() : end - 1], 2_000):
            return "a binomial coefficient of a huge number"
    for found in re.finditer(r"(\d+|[)\]}])\s*!", text):
        operand = found.group(1)
        if not operand.isdigit():
            operand = _bracket_before(text, found.start(1))
        if _huge(operand, 2_000):
            return "the factorial of a huge number"
    try:
        rational(text)
    except TooBig as error:
        return str(error)
    except NotRational:
        return None
    return None


def _huge(text: str, most: int) -> str | None:
    try:
        value = rational(text)
    except TooBig as error:
        return str(error)
    except NotRational:
        return None
    return f"{text[:40]} is above {most}" if abs(value) > most else None


def _bracket_before(text: str, closing: int) -> str:
    """What the bracket that closes at `closing` holds."""
    depth = 0
    for i in range(closing, -1, -1):
        depth += (text[i] in ")]}") - (text[i] in "([{")
        if depth == 0:
            return text[i + 1 : closing]
    return text[:closing]
