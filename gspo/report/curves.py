"""Curves over seeds: a metric against step, tokens, FLOPs or device-seconds, with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gspo.report.collapse import smoothed
from gspo.report.collect import Column, Run
from gspo.report.statistics import mean_band

AXES: Mapping[str, tuple[str, str]] = {
    "step": ("step", "step"),
    "tokens": ("compute/tokens_sampled", "tokens sampled"),
    "flops": ("compute/flops_total", "FLOPs (rollout, old log-probs, update)"),
    "device_seconds": ("compute/device_seconds", "device-seconds"),
}
"""--x -> the cumulative column and its label."""
POINTS = 200


@dataclass(frozen=True, slots=True)
class Curve:
    """The mean over an arm's runs at common places of the x-axis, and its pointwise 95 % interval."""

    arm: str
    x: Column
    mean: Column
    low: Column
    high: Column
    runs: Column
    """`[n, points]`: shown one by one when there are too few for a band."""
    n: int
    method: str


def training(arm: str, runs: Sequence[Run], name: str, axis: str, rng: np.random.Generator) -> Curve | None:
    """The 10-step mean of a metric over the part of the axis that all runs of the arm have; None under two points.

    A run with fewer than two points is left out; `n` counts the others.
    """
    pieces: list[tuple[Column, Column]] = []
    for run in runs:
        x, y = run.column(AXES[axis][0]), smoothed(run.column(name))
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() >= 2:
            pieces.append((x[known], y[known]))
    if not pieces:
        return None
    first, last = max(x[0] for x, _ in pieces), min(x[-1] for x, _ in pieces)
    if last <= first:
        return None
    if axis == "step" and last - first < 2 * POINTS:
        grid = np.arange(first, last + 1)
    else:
        grid = np.linspace(first, last, POINTS)
    return _curve(arm, grid, np.stack([np.interp(grid, x, y) for x, y in pieces]), rng)


def held_out(arm: str, runs: Sequence[Run], title: str, axis: str, rng: np.random.Generator) -> Curve | None:
    """A benchmark's avg@k at the evaluations that all runs of the arm made; x is the runs' mean there."""
    tables: list[dict[int, tuple[float, float]]] = []
    for run in runs:
        x, step = run.column(AXES[axis][0]), run.metrics.get("step", np.zeros(0))
        table: dict[int, tuple[float, float]] = {}
        for row in run.evals:
            if row.get("avg_at_k") is not None and eval_title(row) == title:
                at = int(row["step"])
                done = int(np.searchsorted(step, at)) - 1
                place = float(at) if axis == "step" else 0.0 if done < 0 else float(x[done])
                table[at] = (place, float(row["avg_at_k"]))
        if table:
            tables.append(table)
    if not tables:
        return None
    common = sorted(set.intersection(*(set(table) for table in tables)))
    both = np.array([[table[at] for at in common] for table in tables], dtype=np.float64).reshape(len(tables), -1, 2)
    if both.shape[1] == 0 or not np.isfinite(both).all():
        return None
    return _curve(arm, both[:, :, 0].mean(0), both[:, :, 1], rng)


def eval_title(row: Mapping[str, object]) -> str:
    """`aime24 avg@32`."""
    return f"{row.get('benchmark', 'held-out')} avg@{row.get('k', 'k')}"


def _curve(arm: str, x: Column, rows: Column, rng: np.random.Generator) -> Curve:
    mean, low, high, method = mean_band(rows, rng)
    return Curve(arm, x, mean, low, high, rows, len(rows), method)
