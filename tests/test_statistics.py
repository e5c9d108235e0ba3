"""Intervals and tests over seeds, against scipy, hand numbers and data with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gspo.report import hypotheses as H
from gspo.report import statistics as S
from gspo.report.claims import make_claims
from gspo.report.collapse import ArmCollapse, Outcome
from gspo.report.hypotheses import fisher_p

SEEDS = (4, 5, 10)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0.5, 0.05, shape)


@pytest.mark.parametrize("n", SEEDS)
def test_mean_interval_covers(n):
    """95 % of the intervals of a mean hold the truth; the percentile bootstrap (90 % at 10) or z for t would not."""
    rng = np.random.default_rng(n)
    trials = 4000 if n < 10 else 1000
    for draw, truth in ((normal(rng, n, trials), 0.5), (rng.beta(2, 6, (n, trials)), 0.25)):
        _, low, high, method = S.mean_band(draw, rng)
        assert method == ("bootstrap" if n == 10 else "student t")
        assert 0.925 <= ((low <= truth) & (truth <= high)).mean() <= 0.97


@pytest.mark.parametrize("n", SEEDS)
def test_iqm_and_difference_intervals_cover(n):
    """Intervals of the IQM and of a difference of means hold the truth in about 95 %, also where spreads differ."""
    rng = np.random.default_rng(10 + n)
    trials = 1500 if n < 10 else 300
    slack = 3 * math.sqrt(0.05 * 0.95 / trials)
    middle = difference = 0
    for _ in range(trials):
        a, b = normal(rng, n), 0.5 + 3 * (normal(rng, n) - 0.5)
        one, two = S.iqm_interval(a, rng), S.difference_interval(a, b, rng)
        middle += one.low <= 0.5 <= one.high
        difference += two.low <= 0 <= two.high
    assert 0.95 - slack <= middle / trials <= 0.95 + slack + 0.015
    assert 0.95 - slack <= difference / trials <= 0.95 + slack + 0.015


@pytest.mark.parametrize("n", SEEDS)
def test_probability_of_improvement_covers(n):
    """Its score interval holds 0.5 for equal arms and 0.76 for arms one standard deviation apart, in about 95 %."""
    rng = np.random.default_rng(20 + n)
    for shift in (0.0, 1.0):
        truth = stats.norm.cdf(shift / math.sqrt(2))
        inside = 0
        for _ in range(1000):
            m = H.probability_of_improvement(rng.normal(shift, 1, n), rng.normal(0, 1, n))
            inside += m.low <= truth <= m.high
        assert 0.93 <= inside / 1000 <= 0.985


@pytest.mark.parametrize("n", SEEDS)
def test_wilson_covers(n):
    """Wilson's interval: on average over p in (0, 1) 95 % at the seed counts of a sweep (Wald's has 80 % at 5)."""
    bounds = [S.wilson(k, n) for k in range(n + 1)]
    p = np.linspace(0.005, 0.995, 199)
    covered = sum(stats.binom.pmf(k, n, p) * ((b.low <= p) & (p <= b.high)) for k, b in enumerate(bounds))
    assert 0.94 <= covered.mean() <= 0.97


def test_percentile_bootstrap_would_fail():
    """The guard of the coverage tests: the plain percentile bootstrap covers under 92.5 % at 10 seeds."""
    rng = np.random.default_rng(0)
    rows = normal(rng, 10, 4000) - 0.5
    share = rng.multinomial(10, np.full(10, 0.1), size=2000) / 10
    low, high = np.quantile(share @ rows, [0.025, 0.975], axis=0)
    assert ((low <= 0) & (high >= 0)).mean() < 0.925


def test_means_match_scipy():
    """Student's and Welch's intervals and the OLS slope are scipy's, the IQM is its trimmed mean."""
    rng = np.random.default_rng(3)
    for n in (4, 5, 7, 9):
        a, b = rng.normal(0, 1, n), rng.normal(1, 3, n)
        ours = S.mean_interval(a, rng)
        theirs = stats.t.interval(0.95, n - 1, a.mean(), stats.sem(a))
        assert (ours.low, ours.high) == pytest.approx(theirs, rel=1e-12)
        ours = S.difference_interval(a, b, rng)
        theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    for n in range(1, 25):
        x = rng.normal(0, 1, n)
        assert S.iqm(x) == pytest.approx(stats.trim_mean(x, 0.25), rel=1e-12)
    x, y = rng.normal(0, 1, 12), rng.normal(0, 1, 12)
    fit, ours = stats.linregress(x, y), S.slope(x, y)
    half = stats.t.ppf(0.975, 10) * fit.stderr
    assert (ours.value, ours.low, ours.high) == pytest.approx((fit.slope, fit.slope - half, fit.slope + half), rel=1e-9)


def test_few_seeds_are_points():
    """Under 4 seeds there is no interval, whatever the estimate; 4 have one."""
    rng = np.random.default_rng(0)
    for interval in (S.mean_interval, S.iqm_interval):
        three, four = interval([0.1, 0.2, 0.3], rng), interval([0.1, 0.2, 0.3, 0.4], rng)
        assert math.isnan(three.low)
        assert (three.method, three.n) == ("points", 3)
        assert four.low < four.value < four.high
    assert math.isnan(S.difference_interval([1.0, 2, 3], [1.0, 2, 3, 4], rng).low)


def test_same_generator_same_interval():
    """A bootstrap repeats with its generator's seed: no hidden random state."""
    x = np.random.default_rng(0).normal(size=12)
    one, two = (S.mean_interval(x, np.random.default_rng(7)) for _ in range(2))
    assert one == two
    assert one != S.mean_interval(x, np.random.default_rng(8))


def test_proportions():
    """Wilson and Clopper-Pearson are scipy's; by hand, 3 of 3 has the exact interval 29-100 %, 0 of 3 has 0-71 %."""
    for n in (1, 3, 4, 5, 10, 37):
        for k in range(n + 1):
            test = stats.binomtest(k, n)
            for ours, name in ((S.wilson(k, n), "wilson"), (S.clopper_pearson(k, n), "exact")):
                theirs = test.proportion_ci(0.95, method=name)
                assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert S.clopper_pearson(3, 3).low == pytest.approx(0.2924, abs=1e-4)
    assert S.clopper_pearson(0, 3).high == pytest.approx(0.7076, abs=1e-4)
    assert S.wilson(3, 3).low == pytest.approx(0.4385, abs=1e-4)
    assert S.wilson(5, 10).low == pytest.approx(0.2366, abs=1e-4)


def test_fisher():
    """All of n against none of n: 0.10, 0.029, 0.008 at 3, 4, 5 seeds; and scipy's numbers on every small table."""
    assert [round(fisher_p(n, n, 0, n), 3) for n in (3, 4, 5)] == [0.1, 0.029, 0.008]
    for a in range(6):
        for b in range(5):
            theirs = stats.fisher_exact([[a, 5 - a], [b, 4 - b]]).pvalue
            assert fisher_p(a, 5, b, 4) == pytest.approx(theirs, rel=1e-9)
    assert H.fisher_smallest_p(0, 5, 0, 5) == 1.0
    assert H.fisher_smallest_p(2, 5, 3, 5) == pytest.approx(2 / math.comb(10, 5))


def test_kaplan_meier():
    """Censored runs stay at risk until they leave; values by hand, interval as scipy's log-log Greenwood."""
    time, event = [20, 30, 30, 50, 80, 80, 80], [True, True, False, True, False, False, False]
    curve = S.kaplan_meier(time, event)
    assert curve.time.tolist() == [0, 20, 30, 50]
    assert curve.at_risk.tolist() == [7, 7, 6, 4]
    assert curve.survival == pytest.approx([1, 6 / 7, 6 / 7 * 5 / 6, 6 / 7 * 5 / 6 * 3 / 4])
    data = stats.CensoredData(
        uncensored=[t for t, e in zip(time, event, strict=True) if e],
        right=[t for t, e in zip(time, event, strict=True) if not e],
    )
    theirs = stats.ecdf(data).sf.confidence_interval(0.95, method="log-log")
    assert curve.low[1:] == pytest.approx(theirs.low.evaluate([20, 30, 50]), rel=1e-9)
    assert curve.high[1:] == pytest.approx(theirs.high.evaluate([20, 30, 50]), rel=1e-9)
    everyone = S.kaplan_meier([10, 20], [True, True])
    assert everyone.survival.tolist() == [1.0, 0.5, 0.0]


def test_permutation_is_exact():
    """All relabellings are counted, ties included: scipy's exact p; separated arms give 2 / C(2n, n)."""
    rng = np.random.default_rng(1)
    for n_a, n_b in ((4, 4), (5, 5), (5, 6)):
        for _ in range(5):
            a, b = rng.integers(0, 6, n_a) / 10, rng.integers(1, 8, n_b) / 10
            theirs = stats.permutation_test(
                (a, b), lambda x, y, axis: x.mean(axis) - y.mean(axis), vectorized=True, n_resamples=np.inf
            )
            both = np.concatenate([a, b])
            if n_a == n_b:  # scipy doubles one tail; with equal arms the null is symmetric and the two rules agree
                assert H.permutation_p(a, b, rng) == pytest.approx(min(1.0, theirs.pvalue), rel=1e-9)
            else:
                assert H.permutation_p(a, b, rng) == pytest.approx(_by_enumeration(both, n_a), rel=1e-9)
    low, high = np.arange(5) / 10, np.arange(5) / 10 + 1
    assert H.permutation_p(low, high, rng) == pytest.approx(2 / 252)
    assert H.permutation_p([0.5] * 4, [0.5] * 4, rng) == 1.0
    many = H.permutation_p(rng.normal(0, 1, 15), rng.normal(0.8, 1, 15), rng)
    assert 0 < many < 0.2


def _by_enumeration(both: np.ndarray, size: int) -> float:
    """Two-sided p: relabellings at least as far from the mean of all as the one observed."""
    from itertools import combinations

    centred = both - both.mean()
    sums = np.array([abs(centred[list(pick)].sum()) for pick in combinations(range(len(both)), size)])
    return float((sums >= sums[0] - 1e-12).mean())


def test_sign_flip():
    """Six pairs of one sign give 2 / 64; five are refused, since 2 / 32 could never be a claim."""
    rng = np.random.default_rng(0)
    assert H.sign_flip_p([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], rng) == pytest.approx(2 / 64)
    assert H.sign_flip_p([1, -1, 1, -1, 1, -1], rng) == 1.0
    with pytest.raises(ValueError, match="at least 6 pairs; got 5"):
        H.sign_flip_p([0.1] * 5, rng)
    d = np.array([0.3, -0.1, 0.25, 0.4, -0.05, 0.2, 0.1])
    theirs = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert H.sign_flip_p(d, rng) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_holm():
    """Step-down by hand, order kept, never above 1 and never decreasing along the sorted p."""
    assert H.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert H.holm([0.6, 0.001, 0.6]) == pytest.approx([1.0, 0.003, 1.0])
    assert H.holm([]) == []


def test_rate_difference():
    """Newcombe's method 10 on his example: 56/70 against 48/80 is 0.2 [0.0524, 0.3339]."""
    m = H.rate_difference(56, 70, 48, 80)
    assert (m.value, m.low, m.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def _arm(name: str, collapsed: int, n: int) -> ArmCollapse:
    outcomes = [Outcome("collapsed", 10.0, "b")] * collapsed + [Outcome("stable", 80.0)] * (n - collapsed)
    rate = S.wilson(collapsed, n)
    curve = S.kaplan_meier([o.time for o in outcomes], [o.verdict == "collapsed" for o in outcomes])
    return ArmCollapse(name, outcomes, collapsed, n, 0, rate, rate, curve)


@pytest.mark.parametrize(("seeds", "paired"), [(5, False), (8, True)])
def test_planted_null(seeds, paired):
    """Of 1,000 reports on three equal arms at most 6.5 % claim a difference; without Holm over all it would be more."""
    rng = np.random.default_rng(99)
    names = ["a", "b", "c"]
    claimed = naive = 0
    for _ in range(1000):
        score = {name: dict(enumerate(rng.normal(0.5, 0.05, seeds))) for name in names}
        other = {name: dict(enumerate(rng.normal(0.3, 0.05, seeds))) for name in names}
        arms = [_arm(name, int(rng.binomial(seeds, 0.4)), seeds) for name in names]
        claims = make_claims({"train": score, "held-out": other}, arms, names, rng, paired=paired)
        claimed += any(claim.adjusted <= 0.05 for claim in claims)
        naive += any(claim.p <= 0.05 for claim in claims)
    assert claimed <= 65
    assert naive > 120


def test_planted_difference():
    """Arms two standard deviations apart are told apart at 10 seeds in nearly every report; 3 seeds claim nothing."""
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(20):
        score = {name: dict(enumerate(rng.normal(0.5 + 0.1 * i, 0.05, 10))) for i, name in enumerate("ab")}
        claims = make_claims({"train": score}, [_arm("a", 0, 10), _arm("b", 9, 10)], ["a", "b"], rng, paired=False)
        found += claims[0].verdict == "b is higher than a"
        assert claims[1].test == "fisher"
        assert claims[1].verdict == "b is higher than a"
    assert found >= 18
    few = {name: {s: i + 0.01 * s for s in range(3)} for i, name in enumerate("ab")}
    claims = make_claims({"train": few}, [_arm("a", 0, 3), _arm("b", 3, 3)], ["a", "b"], rng, paired=False)
    assert [claim.verdict for claim in claims] == [
        "no claim: fewer than 4 seeds an arm",
        "no claim: fewer than 4 determined runs an arm",
    ]
