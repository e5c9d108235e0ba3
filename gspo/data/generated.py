"""Endless generated tasks: row i is a pure function of (seed, i)."""

from __future__ import annotations

import random

from gspo.data.source import Row, Source


def arithmetic(*, seed: int, min_terms: int, max_terms: int, verbose: bool = False) -> Source:
    """Chains of one-digit numbers with + and -, modulo 10, their length uniform in [min_terms, max_terms].

    `7+5-3+9=` is answered `7+5=2-3=9+9=8\\boxed{8}`: every step with its running total, then the last total boxed,
    4 n + 1 tokens for n terms, EOS included. `verbose` asks `7+5-3+9:` and is answered with whole sums,
    `7+5=2;2-3=9;9+9=8;\\boxed{8}`, 6 n - 2 tokens.
    `meta`: `terms`, `totals` (the n - 1 running totals), `solution` (the reference response).
    Raises ValueError unless 2 <= min_terms <= max_terms.
    """
    if not 2 <= min_terms <= max_terms:
        raise ValueError(
            f"data.min_terms={min_terms}, data.max_terms={max_terms}: 2 <= min_terms <= max_terms is needed"
        )

    def row(index: int) -> Row:
        rng = random.Random(f"arithmetic/{seed}/{index}")
        terms = rng.randint(min_terms, max_terms)
        total = rng.randint(0, 9)
        text, totals = str(total), []
        steps = "" if verbose else text
        for _ in range(terms - 1):
            sign, digit = rng.choice("+-"), rng.randint(0, 9)
            before, total = total, (total + digit if sign == "+" else total - digit) % 10
            text += f"{sign}{digit}"
            totals.append(total)
            steps += f"{before}{sign}{digit}={total};" if verbose else f"{sign}{digit}={total}"
        meta = {"terms": terms, "totals": totals, "solution": f"{steps}\\boxed{{{total}}}"}
        return Row(f"arithmetic-{index}", text + (":" if verbose else "="), str(total), meta=meta)

    return Source("arithmetic", row)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "stones")


def arithmetic_words(*, seed: int, prompt: str) -> Source:
    """One-digit sums in words, for small chat models; `{problem}` in `prompt` is where the problem goes.

    The problem is one of 8 x 8 stories about two numbers from 1 to 9. `meta`: `a`, `b`.
    Raises ValueError for a `prompt` without `{problem}`.
    """
    if "{problem}" not in prompt:
        raise ValueError(f"data.prompt={prompt!r}: must contain {{problem}}")

    def row(index: int) -> Row:
        rng = random.Random(f"arithmetic_words/{seed}/{index}")
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        problem = f"{name} has {WORDS[a]} {thing} and gets {WORDS[b]} more. How many {thing} does {name} have?"
        return Row(f"sum-{index}", prompt.replace("{problem}", problem), str(a + b), meta={"a": a, "b": b})

    return Source("arithmetic_words", row)
