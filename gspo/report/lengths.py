"""Responses by length: classes of about equal counts, and how the spread of log s falls with |y|."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gspo.report.clip import Updates
from gspo.report.statistics import Interval, slope, z_quantile

BINS = 8


def length_edges(lengths: npt.NDArray[Any], bins: int = BINS) -> npt.NDArray[np.float64]:
    """Edges of at most `bins` classes of about equal counts; ties stay together."""
    inner = np.unique(np.quantile(lengths, np.linspace(0, 1, bins + 1))) if len(lengths) else np.zeros(0)
    return np.asarray(inner, dtype=np.float64)


def strata(rows: Updates, edges: npt.NDArray[np.float64]) -> list[Updates]:
    """The rows by class of length: (edge k, edge k+1], the first including its lower edge; outside: the end classes."""
    place = np.searchsorted(edges[1:-1], rows.columns["length"], side="left")
    return [rows.where(place == k) for k in range(max(len(edges) - 1, 1))]


def moved(rows: Updates) -> Updates:
    """The rows whose weights had moved: from the second mini-batch on, with trained tokens."""
    return rows.where((rows.columns["minibatch"] > 0) & (rows.columns["length"] > 0))


@dataclass(frozen=True, slots=True)
class Spread:
    """Std of log s in one class of length."""

    length: float
    """Mean |y_i| of the class."""
    std: float
    low: float
    high: float
    n: int


def spreads(rows: Updates, edges: npt.NDArray[np.float64]) -> list[Spread]:
    """Std of log s by class of length (10 rows at least), with a delta-method interval that uses the kurtosis."""
    out: list[Spread] = []
    for part in strata(moved(rows), edges):
        x = part.columns["log_s"]
        if len(x) < 10 or not x.std() > 0:
            continue
        sd = float(x.std(ddof=1))
        kurtosis = float(((x - x.mean()) ** 4).mean() / x.var() ** 2)
        relative = z_quantile() * math.sqrt(max(kurtosis - 1, 0.0) / (4 * len(x)))
        out.append(
            Spread(float(part.columns["length"].mean()), sd, sd * math.exp(-relative), sd * math.exp(relative), len(x))
        )
    return out


def exponent(points: Sequence[Spread]) -> Interval:
    """Slope of log std(log s) on log length; independent tokens would give -1/2."""
    return slope(np.log([p.length for p in points]), np.log([p.std for p in points]))
