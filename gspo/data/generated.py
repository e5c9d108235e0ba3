"""Endless generated tasks: row i is a pure function of (seed, i)."""

from __future__ import annotations

import itertools
import random

from gspo.data.source import Row, Source


def arithmetic(*, seed: int, min_terms: int, max_terms: int, verbose: bool = False, slip_rate: float = 0.0) -> Source:
    """Chains of one-digit numbers with + and -, modulo 10, their length uniform in [min_terms, max_terms].

    `7+5-3+9=` is answered `7+5=2-3=9+9=8\\boxed{8}`: every step with its running total, then the last total boxed,
    4 n + 1 tokens for n terms, EOS included. `verbose` asks `7+5-3+9:` and is answered with whole sums,
    `7+5=2;2-3=9;9+9=8;\\boxed{8}`, 6 n - 2 tokens.
    `meta`: `terms`, `totals` (the n - 1 running totals), `solution` (the reference response), `slips` (wrong totals in
    the solution: each is a wrong digit with probability `slip_rate`, and the solution goes on from it).
    Raises ValueError unless 2 <= min_terms <= max_terms and 0 <= slip_rate < 1.
    """
    if not 2 <= min_terms <= max_terms:
        raise ValueError(f"data.min_terms={min_terms}, data.max_terms={max_terms}: 2 <= min_terms <= max_terms")
    if not 0 <= slip_rate < 1:
        raise ValueError(f"data.slip_rate={slip_rate}: 0 <= slip_rate < 1")

    def row(index: int) -> Row:
        rng = random.Random(f"arithmetic/{seed}/{index}")
        first = rng.randint(0, 9)
        steps = [(rng.choice("+-"), rng.randint(0, 9)) for _ in range(rng.randint(min_terms, max_terms) - 1)]
        totals = list(itertools.accumulate(steps, _add, initial=first))[1:]
        written = [first]
        for step in steps:
            right = _add(written[-1], step)
            written.append((right + rng.randint(1, 9)) % 10 if rng.random() < slip_rate else right)
        question = str(first) + "".join(f"{sign}{digit}" for sign, digit in steps)
        meta = {
            "terms": len(steps) + 1,
            "totals": totals,
            "solution": _solution(written, steps, verbose),
            "slips": sum(_add(a, step) != b for a, step, b in zip(written, steps, written[1:], strict=False)),
        }
        return Row(f"arithmetic-{index}", question + (":" if verbose else "="), str(totals[-1]), meta=meta)

    return Source("arithmetic", row)


def _add(total: int, step: tuple[str, int]) -> int:
    sign, digit = step
    return (total + digit if sign == "+" else total - digit) % 10


def _solution(written: list[int], steps: list[tuple[str, int]], verbose: bool) -> str:
    """The response that goes through the totals `written`, the first number included."""
    if verbose:
        sums = (f"{a}{sign}{digit}={b};" for a, (sign, digit), b in zip(written, steps, written[1:], strict=False))
    else:
        sums = (f"{sign}{digit}={b}" for (sign, digit), b in zip(steps, written[1:], strict=True))
    return f"{'' if verbose else written[0]}{''.join(sums)}\\boxed{{{written[-1]}}}"


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHOWN = ((2, 1), (4, 3), (5, 1), (3, 8), (6, 6), (1, 9), (7, 2), (9, 4))
"""The sums that the examples of `arithmetic_words` show, in this order."""


def arithmetic_words(*, seed: int, examples: int, prompt: str = "{problem}") -> Source:
    """Sums of two numbers from 1 to 9 in words, `two plus three`, after some turns that show how: `2 + 3 = \\boxed{5}`.

    For small chat models, which take the form from `examples` earlier turns and not from an instruction. `{problem}` in
    `prompt` is where the sum goes. `meta`: `a`, `b`.
    Raises ValueError for a `prompt` without `{problem}`, and for more examples than there are.
    """
    if "{problem}" not in prompt:
        raise ValueError(f"data.prompt={prompt!r}: must contain {{problem}}")
    if not 0 <= examples <= len(SHOWN):
        raise ValueError(f"data.examples={examples}: 0 to {len(SHOWN)} are accepted")

    def ask(a: int, b: int) -> str:
        return prompt.replace("{problem}", f"{WORDS[a]} plus {WORDS[b]}")

    turns = tuple((ask(a, b), f"{a} + {b} = \\boxed{{{a + b}}}") for a, b in SHOWN[:examples])

    def row(index: int) -> Row:
        rng = random.Random(f"arithmetic_words/{seed}/{index}")
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        return Row(f"sum-{index}", ask(a, b), str(a + b), meta={"a": a, "b": b}, turns=turns)

    return Source("arithmetic_words", row)
