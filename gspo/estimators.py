"""What samples say of a model on a set of problems: avg@k, pass@k, maj@k, and how far each can be trusted.

Problems are the clusters: every problem weighs the same however many samples it has, and samples of one problem are
never taken for independent ones. Pure functions; every random draw comes from a Generator that the caller passes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 5000
MIN_PROBLEMS = 2
"""Fewer problems have no spread: no standard error, no interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its standard error and 95 % interval; None where there is none."""

    value: float
    se: float | None
    low: float | None
    high: float | None
    n: int
    """Problems."""
    method: str
    """`bootstrap`, `wilson`, or `point`."""


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Chance that k of n samples drawn without replacement hold one of the c right ones: 1 - C(n-c, k) / C(n, k).

    Unbiased for pass@k (Chen et al. 2021, eq. 1). None when n < k: undefined. In whole numbers, rounded once, so that
    no n overflows. Raises ValueError unless 0 <= c <= n and k >= 1.
    """
    if not (0 <= c <= n and k >= 1):
        raise ValueError(f"pass@k of n={n}, c={c}, k={k}: 0 <= c <= n and k >= 1 are needed")
    if n < k:
        return None
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float | None:
    """Mean of pass@k over problems, as (samples n, right ones c); None when a problem has fewer than k samples."""
    each = [pass_at_k(n, c, k) for n, c in counts]
    known = [value for value in each if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(each) else None


def maj_at_k(answers: Sequence[Hashable | None], correct: Sequence[float]) -> float:
    """Is the answer that most samples of one problem give right? `answers` and `correct` [k], of the same samples.

    None is no answer, and no vote; a problem without a vote is wrong. An answer is as right as its samples on average
    (a verifier that is consistent makes that 0 or 1). Ties: the mean over the tied answers, i.e. what drawing one of
    them would give, so that the order of the samples does not matter.
    """
    votes: dict[Hashable, list[float]] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(right)
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    tied = [math.fsum(held) / len(held) for held in votes.values() if len(held) == most]
    return math.fsum(tied) / len(tied)


def by_problem(correct: Sequence[Sequence[float]]) -> Array:
    """Mean over the samples of each problem: `[P][k]` -> `[P]`. Raises ValueError for a problem without samples."""
    if not all(len(samples) for samples in correct):
        raise ValueError("a problem without samples has no score")
    return np.array([math.fsum(samples) / len(samples) for samples in correct], dtype=np.float64)


def clustered_se(means: Array) -> float | None:
    """Standard error of the mean over problems, samples clustered by problem.

    sqrt( sum_p (m_p - m)^2 / (P (P - 1)) ), m_p the mean of problem p: the clustered standard error of Miller (2024,
    arXiv 2411.00640, section 2.2) with the small-sample factor P / (P - 1). None under 2 problems.
    """
    if len(means) < MIN_PROBLEMS:
        return None
    return float(means.std(ddof=1)) / math.sqrt(len(means))


def mean_estimate(means: Array, rng: np.random.Generator) -> Estimate:
    """Mean over problems of scores in [0, 1], with a bootstrap interval over problems.

    Where every problem has 0, or every one 1, resampling says nothing: Wilson's interval over the problems stands in.
    """
    n, value = len(means), float(means.mean())
    if n < MIN_PROBLEMS:
        return Estimate(value, None, None, None, n, "point")
    if (means == 0).all() or (means == 1).all():
        return Estimate(value, clustered_se(means), *_wilson(value, n), n, "wilson")
    low, high = _bootstrap(means, rng)
    return Estimate(value, clustered_se(means), max(low, 0.0), min(high, 1.0), n, "bootstrap")


def paired_difference(a: Mapping[str, float], b: Mapping[str, float], rng: np.random.Generator) -> Estimate:
    """Mean over problems of b - a, scores by problem id, with a bootstrap interval over problems.

    Raises ValueError when the two do not hold the same problems.
    """
    other = sorted(a.keys() ^ b.keys())
    if other or not a:
        raise ValueError(
            f"{len(other)} problems are in one of the two only ({', '.join(other[:3]) or 'both are empty'})"
        )
    difference = np.array([b[name] - a[name] for name in a], dtype=np.float64)
    n, value = len(difference), float(difference.mean())
    if n < MIN_PROBLEMS:
        return Estimate(value, None, None, None, n, "point")
    return Estimate(value, clustered_se(difference), *_bootstrap(difference, rng), n, "bootstrap")


def _bootstrap(values: Array, rng: np.random.Generator) -> tuple[float, float]:
    """95 % percentile interval of the mean over resampled values, its quantiles moved out for small samples.

    Quantiles Phi(-+ sqrt(n / (n - 1)) t), t of n - 1 degrees of freedom (Hesterberg 2015, American Statistician
    69:371): the plain percentile interval is too short by that much.
    """
    from scipy import special as special_functions  # pyright: ignore[reportMissingTypeStubs]

    special: Any = special_functions
    n = len(values)
    t = float(special.stdtrit(n - 1, 0.5 + LEVEL / 2))
    tail = float(special.ndtr(-math.sqrt(n / (n - 1)) * t))
    share = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n  # [RESAMPLES, n]
    low, high = np.quantile(share @ values, [tail, 1 - tail])
    return float(low), float(high)


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion of n trials."""
    from statistics import NormalDist

    z2 = NormalDist().inv_cdf(0.5 + LEVEL / 2) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    return max(centre - half, 0.0), min(centre + half, 1.0)
