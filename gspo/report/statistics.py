"""Intervals and tests over seeds. Every random draw comes from a Generator that the caller passes.

One number a seed; `n` counts seeds. Under `MIN_SEEDS` an estimate is a point without interval, and no test is made.
Intervals of means: Student's t (Welch's for a difference) under `BOOTSTRAP_FROM` seeds, from there the percentile
bootstrap over seeds with its quantiles moved out for small samples (`_tails`; Hesterberg 2015, American Statistician
69:371): the plain percentile bootstrap covers 90 % at 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special as _special  # pyright: ignore[reportMissingTypeStubs]

Array = npt.NDArray[np.float64]
special: Any = _special

LEVEL = 0.95
MIN_SEEDS = 4
BOOTSTRAP_FROM = 10
MIN_PAIRS = 6
RESAMPLES = 5000
EXACT_UP_TO = 20
"""Largest number of values (or pairs) whose 2^n assignments are enumerated."""

IQM_QUANTILES = {4: 19.79, 5: 5.369, 6: 3.612, 7: 3.009, 8: 3.879, 9: 3.163}
"""95 % quantiles of |iqm| / se for n normal values, from 8 million draws each (Student's t with the usual degrees of
freedom gives 91.5 % at 4 and 92.5 % at 5)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, its 95 % interval (NaN where there is none), the seeds behind it and the method."""

    value: float
    low: float
    high: float
    n: int
    method: str


@dataclass(frozen=True, slots=True)
class Survival:
    """A Kaplan-Meier curve: S just after each event time, with Greenwood's log-log interval."""

    time: Array
    survival: Array
    low: Array
    high: Array
    at_risk: Array


def as_array(values: Sequence[float] | Array) -> Array:
    """The finite values as float64."""
    x = np.asarray(values, dtype=np.float64)
    return x[np.isfinite(x)]


def t_quantile(df: float) -> float:
    """The two-sided quantile of Student's t: P(|t| < q) = LEVEL."""
    return float(special.stdtrit(df, 0.5 + LEVEL / 2))


def z_quantile() -> float:
    """The two-sided quantile of the normal distribution."""
    return float(special.ndtri(0.5 + LEVEL / 2))


def iqm(values: Sequence[float] | Array) -> float:
    """Interquartile mean: the mean without the floor(n / 4) smallest and largest values."""
    x = np.sort(as_array(values))
    cut = len(x) // 4
    return float(x[cut : len(x) - cut].mean()) if len(x) else math.nan


def mean_band(rows: Array, rng: np.random.Generator) -> tuple[Array, Array, Array, str]:
    """Mean over seeds and its pointwise interval: `rows` [n, points] -> mean, low, high [points], method."""
    n = len(rows)
    mean = np.asarray(rows.mean(0), dtype=np.float64)
    if n < MIN_SEEDS:
        nan = np.full_like(mean, math.nan)
        return mean, nan, nan, "points"
    se = rows.std(0, ddof=1) / math.sqrt(n)
    half = t_quantile(n - 1) * se
    if n < BOOTSTRAP_FROM:
        return mean, mean - half, mean + half, "student t"
    weights, centred = np.full(n, 1 / n), rows - mean
    shift = [rng.multinomial(n, weights, size=draws) / n @ centred for draws in chunks(RESAMPLES, n)]
    low, high = np.quantile(np.concatenate(shift), _tails(n), axis=0)
    return mean, mean + low, mean + high, "bootstrap"


def _tails(n: int, df: float | None = None) -> tuple[float, float]:
    """Quantiles of the expanded percentile bootstrap: Phi(-+ sqrt(n / (n - 1)) t), in place of 2.5 % and 97.5 %."""
    tail = float(special.ndtr(-math.sqrt(n / (n - 1)) * t_quantile(n - 1 if df is None else df)))
    return tail, 1 - tail


def chunks(draws: int, width: int) -> list[int]:
    """`draws` rows of `width` numbers in pieces of at most 2 million numbers."""
    size = max(1, 2_000_000 // max(width, 1))
    return [min(size, draws - start) for start in range(0, draws, size)]


def _bounds(draws: Array, tails: tuple[float, float]) -> tuple[float, float]:
    """The two quantiles of resampled values."""
    return float(np.quantile(draws, tails[0])), float(np.quantile(draws, tails[1]))


def mean_interval(values: Sequence[float] | Array, rng: np.random.Generator) -> Interval:
    """Mean over seeds with its interval."""
    x = as_array(values)
    if not len(x):
        return Interval(math.nan, math.nan, math.nan, 0, "points")
    mean, low, high, method = mean_band(x[:, None], rng)
    return Interval(float(mean[0]), float(low[0]), float(high[0]), len(x), method)


def iqm_interval(values: Sequence[float] | Array, rng: np.random.Generator) -> Interval:
    """Interquartile mean over seeds.

    Interval: the winsorised standard error (Tukey and McLaughlin 1963) times `IQM_QUANTILES` under 10 seeds, from
    there the studentised bootstrap.
    """
    x = as_array(values)
    n = len(x)
    if n < MIN_SEEDS:
        return Interval(iqm(x), math.nan, math.nan, n, "points")
    centre, se = _trimmed(x[None, :])
    value, spread = float(centre[0]), float(se[0])
    half = IQM_QUANTILES.get(n, t_quantile(n - 2 * (n // 4) - 1)) * spread
    if n < BOOTSTRAP_FROM:
        return Interval(value, value - half, value + half, n, "trimmed t")
    centres = [_trimmed(x[rng.integers(0, n, size=(draws, n))])[0] for draws in chunks(RESAMPLES, n)]
    low, high = _bounds(np.concatenate(centres), _tails(n))
    return Interval(value, low, high, n, "bootstrap")


def _trimmed(rows: Array) -> tuple[Array, Array]:
    """Interquartile mean and its standard error of each row: [B, n] -> [B], [B]."""
    n = rows.shape[1]
    cut = n // 4
    x = np.sort(rows, axis=1)
    inner = x[:, cut : n - cut]
    winsorised = np.clip(x, inner[:, :1], inner[:, -1:])
    se = winsorised.std(1, ddof=1) / ((1 - 2 * cut / n) * math.sqrt(n))
    return inner.mean(1), se


def difference_interval(a: Sequence[float] | Array, b: Sequence[float] | Array, rng: np.random.Generator) -> Interval:
    """mean(a) - mean(b) of independent seeds; `n` is the smaller arm's."""
    x, y = as_array(a), as_array(b)
    n = min(len(x), len(y))
    value = float(x.mean() - y.mean()) if n else math.nan
    if n < MIN_SEEDS:
        return Interval(value, math.nan, math.nan, n, "points")
    parts = [x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)]
    se = math.sqrt(sum(parts))
    if se == 0:
        return Interval(value, value, value, n, "welch t")
    df = sum(parts) ** 2 / (parts[0] ** 2 / (len(x) - 1) + parts[1] ** 2 / (len(y) - 1))
    half = t_quantile(df) * se
    if n < BOOTSTRAP_FROM:
        return Interval(value, value - half, value + half, n, "welch t")
    shift = np.zeros(RESAMPLES)
    for arm, sign in ((x, 1.0), (y, -1.0)):
        size = len(arm)
        draws = [arm[rng.integers(0, size, size=(k, size))].mean(1) for k in chunks(RESAMPLES, size)]
        shift += sign * np.concatenate(draws)
    low, high = _bounds(shift, _tails(n, df))
    return Interval(value, low, high, n, "bootstrap")


def wilson(count: int, n: int) -> Interval:
    """A proportion with Wilson's score interval; [0, 1] without trials."""
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0, "wilson")
    z2 = z_quantile() ** 2
    p = count / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) + z2 / (4 * n)) / n) / (1 + z2 / n)
    low = 0.0 if count == 0 else centre - half
    high = 1.0 if count == n else centre + half
    return Interval(p, low, high, n, "wilson")


def clopper_pearson(count: int, n: int) -> Interval:
    """A proportion with the exact (conservative) binomial interval."""
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0, "clopper-pearson")
    tail = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1 - tail))
    return Interval(count / n, low, high, n, "clopper-pearson")


def kaplan_meier(time: Sequence[float], event: Sequence[bool]) -> Survival:
    """S(t) from times of event or censoring; a run censored at an event's time is still at risk there.

    Starts at time 0 with S = 1. Where S is 0 or 1 Greenwood's variance is empty and Wilson's interval stands in.
    """
    t, e = np.asarray(time, dtype=np.float64), np.asarray(event, dtype=bool)
    z = z_quantile()
    points = np.concatenate([[0.0], np.unique(t[e])])
    survival, green = 1.0, 0.0
    out: list[tuple[float, float, float, float]] = []
    for point in points:
        risk, deaths = int((t >= point).sum()), int((e & (t == point)).sum())
        if deaths:
            survival *= 1 - deaths / risk
            green += deaths / (risk * (risk - deaths)) if risk > deaths else math.inf
        if 0 < survival < 1:
            width = z * math.sqrt(green) / abs(math.log(survival))
            low, high = survival ** math.exp(width), survival ** math.exp(-width)
        else:
            edge = wilson(round(survival * len(t)), len(t))
            low, high = edge.low, edge.high
        out.append((survival, low, high, float(risk)))
    table = np.asarray(out, dtype=np.float64)
    return Survival(points, table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def slope(x: Sequence[float] | Array, y: Sequence[float] | Array) -> Interval:
    """Ordinary least squares slope of y on x with its t interval; `n` counts points. NaN under 3 points."""
    u, v = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = len(u)
    sxx = float(((u - u.mean()) ** 2).sum()) if n else 0.0
    if n < 3 or sxx == 0:
        return Interval(math.nan, math.nan, math.nan, n, "ols")
    b = float(((u - u.mean()) * (v - v.mean())).sum()) / sxx
    residual = v - v.mean() - b * (u - u.mean())
    half = t_quantile(n - 2) * math.sqrt(float((residual**2).sum()) / (n - 2) / sxx)
    return Interval(b, b - half, b + half, n, "ols")
