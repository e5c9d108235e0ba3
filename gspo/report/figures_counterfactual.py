"""The figure of `gspo-report clip`: ranges that were not used, and how log s depends on length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo.report import clip, lengths
from gspo.report.canvas import colours, legend_below, letters, log_axis, markers, panels, share_axis
from gspo.report.clip import PAPER, Updates
from gspo.report.statistics import mean_interval
from gspo.report.summary import generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-5
"""Shares under it are drawn on a linear scale down to 0."""


def draw(all_rows: Sequence[Updates], edges: Any, sequence_eps: Sequence[float]) -> Figure:
    """(a) sequence-level ranges, (b) token-level ranges, (c) std of log s by length, (d) clipped share by length."""
    arms = list(dict.fromkeys(rows.arm for rows in all_rows))
    groups = {arm: [rows for rows in all_rows if rows.arm == arm] for arm in arms}
    figure, axes = panels(2, 2, width=4.0, height=2.9)
    tint, mark = colours(arms), markers(arms)
    for arm, group in groups.items():
        label = f"{arm} (n={len(group)} run{'s' if len(group) > 1 else ''})"
        _ranges(axes[0], group, sequence_eps, "sequence", tint[arm], "", label)
        _ranges(axes[1], group, sorted(group[0].grid), "token", tint[arm], mark[arm], label)
        _spread(axes[2], arm, group, edges, tint[arm], mark[arm])
        for (low, high, level, _), line in zip(PAPER, ("-", "--"), strict=True):
            _by_length(axes[3], group, edges, (low, high, level), tint[arm], line)
    _mark_paper(axes)
    axes[0].set_title("range on s, one ratio a response")
    axes[1].set_title("range on w, one ratio a token")
    axes[2].set_title("std of log s by length")
    axes[3].set_title("share of tokens clipped by length")
    letters(axes)
    legend_below(figure, axes[0])
    return figure


def _ranges(
    ax: Axes, group: Sequence[Updates], grid: Sequence[float], level: str, colour: Any, marker: str, label: str
) -> None:
    """Share of tokens bound against eps (symmetric), the mean over runs and its band."""
    shares = np.array([[clip.at(run, eps, eps, level).token_binding.value for eps in grid] for run in group])
    mean = shares.mean(0)
    ax.plot(grid, mean, color=colour, marker=marker, markersize=4, label=label)
    if len(group) > 1:
        ax.plot(grid, shares.T, color=colour, linewidth=0.5, alpha=0.35)
    share_axis(ax, FLOOR)
    log_axis(ax, "x")
    ax.set_xlabel("eps (both sides)")
    ax.set_ylabel("share of tokens clipped")


def _mark_paper(axes: Sequence[Axes]) -> None:
    """Upright lines at the paper's ranges, and a key to the lines of (d)."""
    for ax, (low, high, level, _) in ((axes[0], PAPER[1]), (axes[1], PAPER[0])):
        ax.axvspan(low, high, color="#999999", alpha=0.25, linewidth=0)
        left = level == "sequence"
        ax.annotate(f"{'GSPO' if level == 'sequence' else 'GRPO'} {low:g}/{high:g}", (high if left else low, 1.0),
                    xycoords=("data", "axes fraction"), xytext=(3 if left else -3, -3),
                    textcoords="offset points", fontsize=7, ha="left" if left else "right", va="top")  # fmt: skip
    for (low, high, _, name), line in zip(PAPER, ("-", "--"), strict=True):
        axes[3].plot([], [], color="#444444", linestyle=line, label=f"{name}, {low:g}/{high:g}")
    axes[3].legend(loc="best")


def _spread(ax: Axes, arm: str, group: Sequence[Updates], edges: Any, colour: Any, marker: str) -> None:
    """Std of log s of each class with its interval, and the fitted power of the length."""
    fits = [lengths.exponent(lengths.spreads(run, edges)) for run in group]
    pooled: list[tuple[float, float]] = []
    for run in group:
        points = lengths.spreads(run, edges)
        x = [p.length for p in points]
        ax.plot(x, [p.std for p in points], marker, color=colour, markersize=4, alpha=1 if len(group) == 1 else 0.6)
        if len(group) == 1:
            ax.vlines(x, [p.low for p in points], [p.high for p in points], color=colour, linewidth=1.2)
        pooled += [(p.length, p.std) for p in points]
    if len(pooled) < 3:
        return
    fit = fits[0] if len(group) == 1 else mean_interval([f.value for f in fits], generator())
    x, y = np.array(pooled).T
    ends = np.array([x.min(), x.max()])
    middle = math.exp(float(np.mean(np.log(y)) - fit.value * np.mean(np.log(x))))
    bounds = "" if math.isnan(fit.low) else f" [{fit.low:.2f}, {fit.high:.2f}]"
    ax.plot(ends, middle * ends**fit.value, color=colour, linewidth=1.2, label=f"{arm}: {fit.value:.2f}{bounds}")
    half = math.exp(float(np.mean(np.log(y)) + 0.5 * np.mean(np.log(x))))
    ax.plot(ends, half / np.sqrt(ends), color=colour, linewidth=0.9, linestyle=":", alpha=0.9)
    log_axis(ax, "x")
    log_axis(ax, "y")
    ax.set_xlabel("response length (trained tokens)")
    ax.legend(loc="best", title="exponent (dotted: -0.5)", title_fontsize=7.5)


def _by_length(
    ax: Axes, group: Sequence[Updates], edges: Any, at: tuple[float, float, str], colour: Any, line: str
) -> None:
    """Share of tokens bound in each class of length, mean over runs."""
    parts = [lengths.strata(run, edges) for run in group]
    x: list[float] = []
    y: list[float] = []
    for k in range(len(parts[0])):
        held = [part[k] for part in parts if part[k].n]
        values = [clip.at(run, *at).token_binding.value for run in held]
        if values:
            x.append(float(np.mean([run.columns["length"].mean() for run in held])))
            y.append(float(np.mean(values)))
    ax.plot(x, y, color=colour, linestyle=line, marker=".", markersize=5)
    share_axis(ax, FLOOR)
    log_axis(ax, "x")
    ax.set_xlabel("response length (trained tokens)")
