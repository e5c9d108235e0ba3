"""One-line Python functions from a description: an endless task for tiny models whose answers are programs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from gspo.data.source import Row, Source

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
ARGUMENTS = (*range(-9, -1), *range(2, 10))
"""What the tests call the function with: at 0 and 1 too many different functions agree."""
TESTS = 3

Term = tuple[str, str, str]
"""A term in words, in Python, and what it names: `a`, `b` or a digit."""


def _terms() -> list[Term]:
    names = [(name, name, name) for name in "ab"]
    twice = [(f"twice {name}", f"2*{name}", name) for name in "ab"]
    squared = [(f"{name} squared", f"{name}**2", name) for name in "ab"]
    return names + twice + squared + [(str(n), str(n), str(n)) for n in range(2, 10)]


TERMS = _terms()


def tiny_programs(*, seed: int, min_terms: int, max_terms: int, slip_rate: float = 0.0) -> Source:
    """Functions of a and b that join terms by plus, minus and times, their number uniform in [min_terms, max_terms].

    `f(a,b): twice a minus b squared.` is answered, in a fence, `def f(a,b):return 2*a-b**2`. Times binds closer than
    plus and minus. Judged by calls: the reference has 3 tests. `meta`: `terms`, `entry_point`, `solution` (the
    reference response), `slips` (terms and signs of the solution that are wrong: each with probability `slip_rate`).
    Raises ValueError unless 2 <= min_terms <= max_terms and 0 <= slip_rate < 1.
    """
    if not 2 <= min_terms <= max_terms:
        raise ValueError(f"data.min_terms={min_terms}, data.max_terms={max_terms}: 2 <= min_terms <= max_terms")
    if not 0 <= slip_rate < 1:
        raise ValueError(f"data.slip_rate={slip_rate}: 0 <= slip_rate < 1")

    def row(index: int) -> Row:
        rng = random.Random(f"tiny_programs/{seed}/{index}")
        terms = [rng.choice(TERMS) for _ in range(rng.randint(min_terms, max_terms))]
        signs = [rng.choice(list(SIGNS)) for _ in terms[1:]]
        calls = [[rng.choice(ARGUMENTS), rng.choice(ARGUMENTS)] for _ in range(TESTS)]
        tests = [{"type": "call", "fn": "f", "args": args, "output": value(terms, signs, *args)} for args in calls]
        written = [rng.choice(TERMS) if rng.random() < slip_rate else term for term in terms]
        joined = [rng.choice(list(SIGNS)) if rng.random() < slip_rate else sign for sign in signs]
        meta = {
            "terms": len(terms),
            "entry_point": "f",
            "solution": _solution(written, joined),
            "slips": sum(a != b for a, b in zip([*terms, *signs], [*written, *joined], strict=True)),
        }
        words = terms[0][0] + "".join(f" {sign} {term[0]}" for sign, term in zip(signs, terms[1:], strict=True))
        return Row(f"tiny_programs-{index}", f"f(a,b): {words}.", tests, "code", meta)

    return Source("tiny_programs", row)


def value(terms: Sequence[Term], signs: Sequence[str], a: int, b: int) -> int:
    """What the function that the words describe returns for a and b."""
    products: list[list[int]] = [[1]]
    for sign, term in zip(["plus", *signs], terms, strict=True):
        if sign != "times":
            products.append([1 if sign == "plus" else -1])
        products[-1].append(_term_value(term, a, b))
    return sum(math.prod(factors) for factors in products[1:])


def _term_value(term: Term, a: int, b: int) -> int:
    words, _, name = term
    x = {"a": a, "b": b}[name] if name in "ab" else int(name)
    return 2 * x if words.startswith("twice") else x * x if words.endswith("squared") else x


def _solution(terms: Sequence[Term], signs: Sequence[str]) -> str:
    """The response in a fence, as a reward of programs reads it."""
    body = terms[0][1] + "".join(SIGNS[sign] + term[1] for sign, term in zip(signs, terms[1:], strict=True))
    return f"```\ndef f(a,b):return {body}\n```"
