"""Final scores and what may be claimed of them: one test a question and pair of arms, Holm over all of a report.

A test that could not reach 0.05 whatever the outcome (too few seeds, no collapse anywhere) is shown as such and stands
outside the family (Tarone 1990); nothing about the outcome decides that, only counts of seeds and events.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gspo.report.collapse import WINDOW, ArmCollapse
from gspo.report.collect import Run
from gspo.report.curves import eval_title
from gspo.report.hypotheses import (
    fisher_p,
    fisher_smallest_p,
    holm,
    permutation_p,
    permutation_smallest_p,
    probability_of_improvement,
    rate_difference,
    sign_flip_p,
)
from gspo.report.statistics import MIN_PAIRS, MIN_SEEDS, Interval, difference_interval, mean_interval

ALPHA = 0.05
ALL_PAIRS_UP_TO = 8
"""Arms; with more, each is compared with the first one only."""

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Score -> arm -> seed -> value."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One question about two arms and its answer."""

    score: str
    a: str
    b: str
    n_a: int
    n_b: int
    difference: Interval
    """a - b."""
    paired: Interval
    """Mean of a - b over the seeds that both arms have."""
    improvement: Interval
    """P(a seed of a beats one of b), ties half."""
    test: str
    """`permutation`, `sign-flip`, `fisher`, or why there is none."""
    p: float = math.nan
    adjusted: float = math.nan
    """Holm's p over all tests of the report."""

    @property
    def verdict(self) -> str:
        """In words: a claim, or that there is none."""
        if math.isnan(self.p):
            return "no claim: " + self.test
        if self.adjusted > ALPHA:
            return "no difference shown"
        return f"{self.a} is {'higher' if self.difference.value > 0 else 'lower'} than {self.b}"


def final_scores(runs: Sequence[Run]) -> dict[str, dict[str, dict[int, float]]]:
    """Score -> arm -> seed -> value.

    `train` is the mean of `reward/correct` (`reward/mean` where there is no such part) over the last 10 steps; a
    benchmark's is `avg_at_k` of its last evaluation.
    """
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for run in runs:
        seed = run.seed if run.seed is not None else -1
        name = "reward/correct" if "reward/correct" in run.metrics else "reward/mean"
        tail = run.column(name)[-WINDOW:]
        tail = tail[np.isfinite(tail)]
        if len(tail):
            scores.setdefault(f"train {name}", {}).setdefault(run.arm, {})[seed] = float(tail.mean())
        for row in run.evals:
            if row.get("avg_at_k") is not None:
                scores.setdefault(eval_title(row), {}).setdefault(run.arm, {})[seed] = float(row["avg_at_k"])
    return scores


def pairs(arms: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs (later, earlier) of a few arms; of many, each against the first."""
    if len(arms) > ALL_PAIRS_UP_TO:
        return [(arm, arms[0]) for arm in arms[1:]]
    return [(b, a) for a, b in itertools.combinations(arms, 2)]


def make_claims(
    scores: Scores, collapse: Sequence[ArmCollapse], arms: Sequence[str], rng: np.random.Generator, *, paired: bool
) -> list[Claim]:
    """Every comparison of the report, tested and corrected together."""
    claims = [
        _score_claim(name, a, b, by_arm.get(a, {}), by_arm.get(b, {}), rng, paired)
        for name, by_arm in scores.items()
        for a, b in pairs(arms)
    ]
    table = {arm.arm: arm for arm in collapse}
    claims += [_collapse_claim(table[a], table[b]) for a, b in pairs(arms) if a in table and b in table]
    tested = [i for i, claim in enumerate(claims) if not math.isnan(claim.p)]
    for i, adjusted in zip(tested, holm([claims[i].p for i in tested]), strict=True):
        claims[i] = replace(claims[i], adjusted=adjusted)
    return claims


def _score_claim(
    name: str, a: str, b: str, x: Mapping[int, float], y: Mapping[int, float], rng: np.random.Generator, paired: bool
) -> Claim:
    """The comparison of two arms' final scores."""
    one, two = list(x.values()), list(y.values())
    both = [x[seed] - y[seed] for seed in sorted(set(x) & set(y))]
    claim = Claim(name, a, b, len(one), len(two), difference_interval(one, two, rng), mean_interval(both, rng),
                  probability_of_improvement(one, two), "")  # fmt: skip
    if min(len(one), len(two)) < MIN_SEEDS:
        return replace(claim, test=f"fewer than {MIN_SEEDS} seeds an arm")
    if paired:
        if len(both) < MIN_PAIRS:
            return replace(claim, test=f"fewer than {MIN_PAIRS} pairs of seeds")
        return replace(claim, test="sign-flip", p=sign_flip_p(both, rng))
    if permutation_smallest_p(len(one), len(two)) > ALPHA:
        return replace(claim, test="too few seeds to reach 0.05")
    return replace(claim, test="permutation", p=permutation_p(one, two, rng))


def _collapse_claim(a: ArmCollapse, b: ArmCollapse) -> Claim:
    """The comparison of two arms' collapse rates."""
    counts = (a.collapsed, a.determined, b.collapsed, b.determined)
    none = Interval(math.nan, math.nan, math.nan, 0, "none")
    claim = Claim("collapse rate", a.arm, b.arm, a.determined, b.determined, none, none, none, "")
    if min(a.determined, b.determined) > 0:
        claim = replace(claim, difference=rate_difference(*counts))
    if min(a.determined, b.determined) < MIN_SEEDS:
        return replace(claim, test=f"fewer than {MIN_SEEDS} determined runs an arm")
    if fisher_smallest_p(*counts) > ALPHA:
        return replace(claim, test="too few collapses to reach 0.05")
    return replace(claim, test="fisher", p=fisher_p(*counts))


def reachable(claims: Sequence[Claim]) -> float:
    """The smallest adjusted p that the report's largest family of tests could have given; NaN without a test."""
    tested = [claim for claim in claims if not math.isnan(claim.p)]
    best = [permutation_smallest_p(c.n_a, c.n_b) for c in tested if c.test == "permutation"]
    best += [2.0 ** (1 - c.paired.n) for c in tested if c.test == "sign-flip"]
    return min(1.0, min(best) * len(tested)) if best else math.nan
