"""Figures about ranges and lengths: the clip-range map and the length-stratified panels of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo.report.canvas import colours, legend_below, letters, log_axis, markers, panels, share_axis, smallest_positive
from gspo.report.collect import Run
from gspo.report.statistics import Interval, mean_interval
from gspo.report.summary import Stratum, Summary, clip_range_of, generator, moves_clip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def clip_map(summary: Summary) -> tuple[Figure, list[Any]] | None:
    """Clip fraction and final scores against eps_R, a line an algorithm; `none` stands at the right edge."""
    if not moves_clip(summary):
        return None
    scores = ["clip/token_binding", *summary.scores]
    families = sorted({str(run.config.get("algo.name")) for run in summary.runs})
    ranged = [clip_range_of(run)[1] for run in summary.runs]
    finite = [float(eps) for eps in ranged if eps is not None]
    if not finite:
        return None
    edge = max(finite) * 6
    figure, axes = panels(1, len(scores), width=3.4, height=2.8)
    tint, mark = colours(families), markers(families)
    for ax, score in zip(axes, scores, strict=True):
        table = summary.clips.get(score, {}) if score.startswith("clip/") else summary.scores[score]
        for family in families:
            points = _by_range(summary, family, table, edge)
            _line(ax, points, tint[family], mark[family], family)
        log_axis(ax, "x")
        if score.startswith("clip/"):
            _shares(ax, [v for by_seed in table.values() for v in by_seed.values()])
        if any(eps is None for eps in ranged):
            ax.axvline(edge, color="#999999", linewidth=0.8, linestyle=":")
            ax.annotate("no clip", (edge, 1.0), xycoords=("data", "axes fraction"), ha="right", va="top", fontsize=7,
                        rotation=90, xytext=(-2, 0), textcoords="offset points")  # fmt: skip
        ax.set_xlabel("eps_R (upper clip)")
        ax.set_title("share of tokens clipped" if score.startswith("clip/") else score)
    letters(axes)
    legend_below(figure, axes[0])
    return figure, []


def _by_range(summary: Summary, family: str, table: dict[str, dict[int, float]], edge: float) -> list[Any]:
    """(x, interval over seeds) of each of the algorithm's arms, by eps_R."""
    points: list[tuple[float, Interval]] = []
    for arm in summary.arms:
        group: list[Run] = [r for r in summary.of(arm) if str(r.config.get("algo.name")) == family]
        values = list(table.get(arm, {}).values())
        if group and values:
            eps = clip_range_of(group[0])[1]
            points.append((edge if eps is None else float(eps), mean_interval(values, generator())))
    return sorted(points, key=lambda point: point[0])


def _line(ax: Axes, points: Sequence[tuple[float, Interval]], colour: Any, marker: str, label: str) -> None:
    """Means joined by a line, intervals as bars."""
    if not points:
        return
    ax.plot([x for x, _ in points], [m.value for _, m in points], color=colour, marker=marker, markersize=4.5,
            label=f"{label} (n={_span(points)})")  # fmt: skip
    for x, m in points:
        if not math.isnan(m.low):
            ax.plot([x, x], [m.low, m.high], color=colour, linewidth=1.2)


def _span(points: Sequence[tuple[float, Interval]]) -> str:
    counts = sorted({m.n for _, m in points})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def lengths(summary: Summary) -> tuple[Figure, list[Any]] | None:
    """Clip fraction, std of log s (with the fitted exponent) and reward by response length."""
    if not summary.strata:
        return None
    figure, axes = panels(1, 3, width=3.3, height=2.9)
    tint, mark = colours(summary.arms), markers(summary.arms)
    fields = ("clipped", "spread", "reward")
    titles = ("share of tokens clipped", "std of log s, after mini-batch 0", "reward")
    for ax, field, title in zip(axes, fields, titles, strict=True):
        for arm in summary.arms:
            rows = [s for s in summary.strata if s.arm == arm and getattr(s, field).n]
            aside = 1 + 0.02 * (summary.arms.index(arm) - (len(summary.arms) - 1) / 2)
            points = [(_middle(s) * aside, getattr(s, field)) for s in rows]
            slope = summary.exponents.get(arm)
            label = f"{arm}: exponent {_exponent(slope)}" if slope is not None else arm
            _line(ax, points, tint[arm], mark[arm], label)
        if field == "spread":
            _guide(ax, summary)
            log_axis(ax, "y")
        if field == "clipped":
            _shares(ax, [s.clipped.value for s in summary.strata if s.clipped.n])
        log_axis(ax, "x")
        ax.set_xlabel("response length (trained tokens)")
        ax.set_title(title)
    letters(axes)
    legend_below(figure, axes[1])
    return figure, []


def _shares(ax: Axes, values: Sequence[float]) -> None:
    """The y-axis of a clip fraction."""
    share_axis(ax, smallest_positive(values), min(1.0, 1.5 * max(values, default=0.5)))


def _middle(s: Stratum) -> float:
    """The geometric middle of a class of length."""
    return math.sqrt(max(s.first, 1.0) * max(s.last, 1.0))


def _exponent(m: Interval) -> str:
    if math.isnan(m.value):
        return "-"
    return f"{m.value:.2f}" if math.isnan(m.low) else f"{m.value:.2f} [{m.low:.2f}, {m.high:.2f}]"


def _guide(ax: Axes, summary: Summary) -> None:
    """The line of exponent -1/2 through the middle of the points."""
    held = [s for s in summary.strata if s.spread.n and s.spread.value > 0]
    if len(held) < 2:
        return
    x, y = np.array([_middle(s) for s in held]), np.array([s.spread.value for s in held])
    scale = math.exp(float(np.mean(np.log(y) + 0.5 * np.log(x))))
    ends = np.array([x.min(), x.max()])
    ax.plot(ends, scale / np.sqrt(ends), color="#888888", linestyle="--", linewidth=1.0, label="length^-1/2")
