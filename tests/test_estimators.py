"""avg@k, pass@k, maj@k and their intervals against closed forms, enumeration and published numbers."""

import itertools
import math

import numpy as np
import pytest

from gspo.estimators import (
    by_problem,
    clustered_se,
    maj_at_k,
    mean_estimate,
    mean_pass_at_k,
    paired_difference,
    pass_at_k,
)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("n", "c", "k", "right"),
    [
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 1, 4, 1.0),
        (16, 3, 8, 0.9),
        (5, 2, 3, 0.9),
        (10, 0, 5, 0.0),
        (200, 1, 1, 0.005),
        (2, 0, 5, None),
        (2, 2, 5, None),
    ],
)
def test_pass_at_k_of_case_b44(n, c, k, right):
    """The numbers of case B44; catches drawing with replacement, and 1.0 where there are too few samples."""
    assert pass_at_k(n, c, k) == right


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    """Every subset of every small case, counted."""
    for n, c, k in itertools.product(range(1, 8), range(8), range(1, 8)):
        if c <= n and k <= n:
            hits = [any(i < c for i in chosen) for chosen in itertools.combinations(range(n), k)]
            assert pass_at_k(n, c, k) == pytest.approx(sum(hits) / len(hits), abs=1e-15)


def test_pass_at_k_of_large_numbers():
    """n = 64 and far above: no overflow, no NaN, and the product form of Chen et al. to 12 digits."""
    for n, c, k in ((64, 1, 32), (64, 20, 64), (1024, 3, 512), (5000, 2, 2500), (10000, 1, 1)):
        product = math.exp(math.fsum(math.log1p(-k / i) for i in range(n - c + 1, n + 1) if i > k))
        product = 0.0 if n - c < k else product
        assert pass_at_k(n, c, k) == pytest.approx(1 - product, rel=1e-12)
    for wrong in ((4, 5, 1), (4, -1, 1), (4, 1, 0)):
        with pytest.raises(ValueError):
            pass_at_k(*wrong)


def test_one_sample_of_164_problems():
    """Case B44: 50 of 164 solved is pass@1 = 0.3049; pass@10 is undefined, not 0.977 (problems taken for samples)."""
    counts = [(1, 1)] * 50 + [(1, 0)] * 114
    found = mean_pass_at_k(counts, 1)
    assert found is not None
    assert round(found, 4) == 0.3049
    assert mean_pass_at_k(counts, 10) is None


def test_problems_weigh_the_same():
    """avg@k is pass@1, and a problem with many samples counts once: (1/2 + 0) / 2, not 4 of 10."""
    correct = [[1.0] * 4 + [0.0] * 4, [0.0, 0.0]]
    means = by_problem(correct)
    assert means.mean() == 0.25
    assert mean_pass_at_k([(8, 4), (2, 0)], 1) == 0.25
    assert mean_pass_at_k([(8, 4), (2, 0)], 4) is None
    with pytest.raises(ValueError, match="without samples"):
        by_problem([[1.0], []])


@pytest.mark.parametrize(
    ("answers", "correct", "right"),
    [
        (["7", "7", "8"], [1, 1, 0], 1.0),
        (["7", "8", "8"], [1, 0, 0], 0.0),
        (["7", "8"], [1, 0], 0.5),
        (["8", "7"], [0, 1], 0.5),
        (["7", "8", "9", None], [1, 0, 0, 0], 1 / 3),
        ([None, None, None, "7"], [0, 0, 0, 1], 1.0),
        ([None, None], [0, 0], 0.0),
    ],
)
def test_maj_at_k(answers, correct, right):
    """The majority decides, ties share, no answer is no vote; catches ties won by whoever came first."""
    assert maj_at_k(answers, correct) == pytest.approx(right)


def test_the_standard_error_is_clustered():
    """Copies of a sample are no new evidence: 2 of 4 problems solved is 0.5 +- sqrt(1/12), at 1 or at 32 samples."""
    for k in (1, 32):
        means = by_problem([[1.0] * k, [1.0] * k, [0.0] * k, [0.0] * k])
        assert clustered_se(means) == pytest.approx(math.sqrt(1 / 12), rel=1e-12)
    assert clustered_se(np.array([0.5])) is None


def test_the_interval_covers():
    """30 problems of unequal difficulty, 8 samples: 95 % intervals over problems hold the mean difficulty about 95 %
    of the time (300 draws: 91 to 99); catches samples taken for independent ones."""
    draw, held = rng(1), 0
    for _ in range(300):
        difficulty = draw.beta(0.5, 0.5, size=30)
        means = draw.binomial(8, difficulty) / 8
        found = mean_estimate(means, draw)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.5 <= found.high
    assert 0.91 <= held / 300 <= 0.99


def test_the_interval_depends_on_the_generator_alone():
    """The same Generator, the same interval; numpy's global state has no say in it."""
    means = rng(3).random(20)
    np.random.seed(0)  # noqa: NPY002
    first = mean_estimate(means, rng(5))
    np.random.seed(1)  # noqa: NPY002
    assert mean_estimate(means, rng(5)) == first
    assert mean_estimate(means, rng(6)) != first


def test_nothing_solved_is_not_certainty():
    """0 of 30: Wilson's [0, 0.1135], not [0, 0]; one problem: a point."""
    found = mean_estimate(np.zeros(30), rng())
    assert (found.value, found.low, found.method) == (0.0, 0.0, "wilson")
    assert found.high == pytest.approx(1.959964**2 / (30 + 1.959964**2), rel=1e-6)
    alone = mean_estimate(np.array([0.5]), rng())
    assert (alone.low, alone.high, alone.se, alone.method) == (None, None, None, "point")


def test_paired_differences():
    """A constant gain of 0.1 on problems of very unequal difficulty is 0.1 +- 0; catches unpaired arithmetic."""
    a = {str(i): i / 40 for i in range(30)}
    found = paired_difference(a, {name: value + 0.1 for name, value in a.items()}, rng())
    assert found.value == pytest.approx(0.1)
    assert found.se == pytest.approx(0.0, abs=1e-12)
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)
    same = paired_difference(a, dict(reversed(a.items())), rng())
    assert (same.value, same.low, same.high) == (0, 0, 0)
    with pytest.raises(ValueError, match=r"2 problems are in one of the two only \(29, x\)"):
        paired_difference(a, {("x" if name == "29" else name): value for name, value in a.items()}, rng())
