"""How fast mathematics is judged: for `scripts/bench.py math`."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gspo.rewards import killable
from gspo.rewards.math import verify

Pair = tuple[str, str]
"""A gold answer and an answer."""
THINKING = "Let x be the number of apples. Then 3x + 4 = 19, so x = 5, and the total is 3 times 5 plus 4. "
"""Words before the box, as a response has them."""


def plain(rng: random.Random) -> Pair:
    """Integers, decimals and fractions, half of them right."""
    n, d = rng.randint(-9999, 9999), rng.randint(2, 99)
    gold, same = rng.choice([(f"{n}", f"{n}.0"), (f"{n}/{d}", f"\\frac{{{n}}}{{{d}}}"), (f"{n / 100}", f"{n}e-2")])
    return gold, same if rng.random() < 0.5 else f"{n + rng.randint(1, 9)}"


def mixed(rng: random.Random) -> Pair:
    """What mathematics benchmarks ask for: half plain numbers, else roots, polynomials, intervals, sets and tuples."""
    if rng.random() < 0.5:
        return plain(rng)
    a, b, c = (rng.randint(2, 99) for _ in "abc")
    wrong = rng.random() < 0.5
    return rng.choice([
        (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b + wrong}}}"),
        (f"(x+{a})(x-{b})", f"x^2+{a - b + wrong}x-{a * b}" if a - b + wrong >= 0 else f"x^2{a - b + wrong}x-{a * b}"),
        (f"\\frac{{{a}\\pi}}{{{b}}}", f"{a + wrong}\\pi/{b}"),
        (f"[{a},{a + b})", f"{a + wrong}\\le x<{a + b}"),
        (f"\\{{{a},{a + b}\\}}", f"\\{{{a + b},{a - wrong}\\}}"),
        (f"({a},{b},{c})", f"({a},{b},{c + wrong})"),
    ])  # fmt: skip


KINDS = {"plain": plain, "mixed": mixed}


def throughput(kind: str, *, answers: int, workers: int = 1) -> dict[str, str | int | float]:
    """Judge `answers` different answers of a kind, seeded, on `workers` threads and worker processes.

    `answers_per_second` is by the clock; `answers_per_core_second` by the CPU time of this process and its workers,
    which other work on the machine disturbs less. Raises RuntimeError when the verifier fails.
    """
    rng = random.Random(f"math_bench/{kind}")
    pairs = [KINDS[kind](rng) for _ in range(answers)]
    pool = killable.pool("gspo.rewards.symbolic", workers)
    pool.start()  # importing computer algebra is no part of the rate
    used, begun = _cpu(pool), time.monotonic()
    with ThreadPoolExecutor(workers) as threads:
        judged = list(threads.map(lambda p: verify(p[0], f"{THINKING}\\boxed{{{p[1]}}}", workers=workers), pairs))
    took, cpu = time.monotonic() - begun, _cpu(pool) - used
    counts = Counter(one.verdict for one in judged)
    if counts["verifier failed"]:
        raise RuntimeError(next(one.reason for one in judged if one.verdict == "verifier failed"))
    return {
        "kind": kind, "workers": workers, "answers": answers, "right": counts["ok"] / answers,
        "symbolic": sum(one.path == "math-verify" for one in judged) / answers, "seconds": took,
        "answers_per_second": answers / took, "answers_per_core_second": answers / cpu,
    }  # fmt: skip


def _cpu(pool: killable.Pool) -> float:
    """CPU seconds of this process and of the pool's workers."""
    spent = 0.0
    for worker in pool.alive:
        fields = Path(f"/proc/{worker.pid}/schedstat").read_text().split()
        spent += int(fields[0]) / 1e9
    return time.process_time() + spent
