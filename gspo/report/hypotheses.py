"""Tests between two arms, their correction for many claims, and the probability of improvement."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from gspo.report.statistics import EXACT_UP_TO, MIN_PAIRS, Array, Interval, as_array, chunks, wilson, z_quantile

MONTE_CARLO = 100_000
_TIE = 1e-12


def permutation_p(a: Sequence[float] | Array, b: Sequence[float] | Array, rng: np.random.Generator) -> float:
    """Two-sided p of mean(a) - mean(b) when the arm labels are exchangeable.

    Exact over all relabellings up to `EXACT_UP_TO` values, else (1 + hits) / (1 + draws) over random ones.
    """
    x, y = as_array(a), as_array(b)
    both = np.concatenate([x, y])
    both = both - both.mean()
    size = len(x)
    observed = abs(float(both[:size].sum()))
    edge = observed - _TIE * float(np.abs(both).sum())
    if len(both) <= EXACT_UP_TO:
        sums, counts = np.zeros(1), np.zeros(1, dtype=np.int8)
        for value in both:
            sums, counts = np.concatenate([sums, sums + value]), np.concatenate([counts, counts + 1])
        return float((np.abs(sums[counts == size]) >= edge).mean())
    hits = 0
    for draws in chunks(MONTE_CARLO, len(both)):
        picked = rng.permuted(np.broadcast_to(both, (draws, len(both))), axis=1)[:, :size]
        hits += int((np.abs(picked.sum(1)) >= edge).sum())
    return (1 + hits) / (1 + MONTE_CARLO)


def sign_flip_p(differences: Sequence[float] | Array, rng: np.random.Generator) -> float:
    """Two-sided p of the mean of paired differences when each sign is a fair coin.

    Raises ValueError under `MIN_PAIRS` pairs: no outcome could reach 0.05.
    """
    d = as_array(differences)
    if len(d) < MIN_PAIRS:
        raise ValueError(f"a sign-flip test needs at least {MIN_PAIRS} pairs; got {len(d)}")
    edge = abs(float(d.sum())) - _TIE * float(np.abs(d).sum())
    if len(d) <= EXACT_UP_TO:
        sums = np.zeros(1)
        for value in d:
            sums = np.concatenate([sums - value, sums + value])
        return float((np.abs(sums) >= edge).mean())
    hits = 0
    for draws in chunks(MONTE_CARLO, len(d)):
        signs = rng.integers(0, 2, size=(draws, len(d))) * 2 - 1
        hits += int((np.abs(signs @ d) >= edge).sum())
    return (1 + hits) / (1 + MONTE_CARLO)


def fisher_p(count_a: int, n_a: int, count_b: int, n_b: int) -> float:
    """Fisher's exact two-sided p of count_a / n_a against count_b / n_b, in integers: tables no likelier than this."""
    ways = _tables(n_a, n_b, count_a + count_b)
    return sum(w for w in ways.values() if w <= ways[count_a]) / sum(ways.values())


def fisher_smallest_p(count_a: int, n_a: int, count_b: int, n_b: int) -> float:
    """The smallest p that Fisher's test can give with these margins: 1 when nobody, or everybody, collapsed."""
    ways = _tables(n_a, n_b, count_a + count_b)
    rarest = min(ways.values())
    return sum(w for w in ways.values() if w == rarest) / sum(ways.values())


def _tables(n_a: int, n_b: int, hits: int) -> dict[int, int]:
    """Hits in arm a -> ways to draw them, given the margins."""
    return {k: math.comb(n_a, k) * math.comb(n_b, hits - k) for k in range(max(0, hits - n_b), min(n_a, hits) + 1)}


def permutation_smallest_p(n_a: int, n_b: int) -> float:
    """The smallest p that a two-sided permutation test of two arms can give."""
    return (2 if n_a == n_b else 1) / math.comb(n_a + n_b, n_a)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        adjusted[i] = worst
    return adjusted


def rate_difference(count_a: int, n_a: int, count_b: int, n_b: int) -> Interval:
    """count_a / n_a - count_b / n_b from the two Wilson intervals (Newcombe 1998, method 10); `n` is the smaller."""
    a, b = wilson(count_a, n_a), wilson(count_b, n_b)
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    return Interval(value, low, high, min(n_a, n_b), "newcombe")


def probability_of_improvement(a: Sequence[float] | Array, b: Sequence[float] | Array) -> Interval:
    """P(a seed of arm a beats one of arm b), ties half; `n` is the smaller arm's.

    Interval: Newcombe 2006 (Statistics in Medicine 25:559), method 5: the score interval for the Mann-Whitney
    statistic, with Hanley and McNeil's variance at the bound; not degenerate when one arm always wins.
    """
    x, y = as_array(a), as_array(b)
    n = min(len(x), len(y))
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0, "score")
    wins = (x[:, None] > y[None, :]).mean() + 0.5 * (x[:, None] == y[None, :]).mean()
    theta, z2 = float(wins), z_quantile() ** 2
    extra = (len(x) + len(y)) / 2 - 1

    def excess(q: float) -> float:
        """Squared distance from the estimate minus z^2 times the variance at q: above 0 outside the interval."""
        spread = q * (1 - q) * (1 + extra * (1 - q) / (2 - q) + extra * q / (1 + q)) / (len(x) * len(y))
        return (theta - q) ** 2 - z2 * spread

    return Interval(theta, _root(excess, 0.0, theta), _root(excess, 1.0, theta), n, "score")


def _root(excess: Callable[[float], float], outside: float, inside: float) -> float:
    """Where `excess` changes sign between a bound and the estimate, by bisection; the bound itself if it never does."""
    if outside == inside:
        return outside
    for _ in range(60):
        middle = (outside + inside) / 2
        if excess(middle) > 0:
            outside = middle
        else:
            inside = middle
    return inside
