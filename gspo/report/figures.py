"""The figures of a report, each a function of its summary; None where a run directory holds nothing to draw."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo.report.canvas import (
    amount_axis,
    colours,
    legend_below,
    letters,
    markers,
    panels,
    room_for,
    share_axis,
    smallest_positive,
)
from gspo.report.claims import ALPHA
from gspo.report.curves import AXES, Curve, held_out, training
from gspo.report.statistics import Interval, iqm_interval, mean_interval
from gspo.report.summary import Summary, clip_pairs, generator
from gspo.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = list[tuple[str, Curve]]
MOST_PAIRS = 40
"""Comparisons that one figure can show; with more there is the table only."""


def curves(summary: Summary, axis: str) -> tuple[Figure, Curves] | None:
    """Training reward and held-out scores against one x-axis."""
    drawn: list[tuple[str, list[Curve]]] = []
    for score in summary.scores:
        found: list[Curve] = []
        for arm in summary.arms:
            if score.startswith("train "):
                curve = training(arm, summary.of(arm), score.removeprefix("train "), axis, generator())
            else:
                curve = held_out(arm, summary.of(arm), score, axis, generator())
            found += [] if curve is None else [curve]
        if found:
            drawn.append((score, found))
    return _curve_figure(summary, drawn, AXES[axis][1]) if drawn else None


def experts(summary: Summary) -> tuple[Figure, Curves] | None:
    """Expert change per update against the step."""
    found = [training(arm, summary.of(arm), "moe/expert_change", "step", generator()) for arm in summary.arms]
    held = [curve for curve in found if curve is not None]
    return _curve_figure(summary, [("expert change per update", held)], "step") if held else None


def _curve_figure(summary: Summary, drawn: list[tuple[str, list[Curve]]], label: str) -> tuple[Figure, Curves]:
    columns = min(len(drawn), 3)
    figure, axes = panels(math.ceil(len(drawn) / columns), columns, width=3.6 if columns > 1 else 4.6, height=2.8)
    tint, mark = colours(summary.arms), markers(summary.arms)
    for ax, (score, found) in zip(axes, drawn, strict=False):
        for c in found:
            points: dict[str, Any] = {"marker": mark[c.arm], "markersize": 4} if len(c.x) <= 25 else {}
            ax.plot(c.x, c.mean, color=tint[c.arm], label=f"{c.arm} (n={c.n})", **points)
            if np.isfinite(c.low).any():
                ax.fill_between(c.x, c.low, c.high, color=tint[c.arm], alpha=0.18, linewidth=0)
            else:
                ax.plot(c.x, c.runs.T, color=tint[c.arm], linewidth=0.6, alpha=0.5)
        ax.set_title(_score_title(score))
        ax.set_xlabel(label)
        ax.margins(x=0.02)
        amount_axis(ax)
    for ax in axes[len(drawn) :]:
        ax.set_visible(False)
    letters(axes[: len(drawn)])
    legend_below(figure, axes[0])
    return figure, [(score, curve) for score, found in drawn for curve in found]


def _score_title(score: str) -> str:
    if score.startswith("train "):
        return f"training {score.removeprefix('train ').replace('reward/', 'reward: ')}, 10-step mean"
    return score


def clip_fractions(summary: Summary) -> tuple[Figure, Curves] | None:
    """The paper's Figure 2: share of clipped tokens (and responses) per arm, log scale, ratio of two arms."""
    names = [n for n in ("clip/token_binding", "clip/seq_binding") if n in summary.clips]
    if not names:
        return None
    turned = 0.5 * room_for(summary.arms) if _slant(summary.arms) else 0.0
    figure, axes = panels(1, len(names), width=max(3.4, 0.5 * len(summary.arms) + 1) + turned, height=2.8 + turned)
    for ax, name in zip(axes, names, strict=True):
        _bars(ax, summary, name)
        ax.set_title("share of trained tokens clipped" if "token" in name else "share of responses clipped")
        ratios = [r for r in clip_pairs(summary, name) if not math.isnan(r[2].value)]
        if len(summary.arms) == 2 and ratios:
            a, b, r = ratios[0]
            bounds = "" if math.isnan(r.low) else f" [{number(r.low)}, {number(r.high)}]"
            ax.set_xlabel(f"{a} / {b} = {number(r.value)}{bounds}, n={r.n}")
    letters(axes)
    return figure, []


def _bars(ax: Axes, summary: Summary, name: str) -> None:
    """Bars of means with their intervals and the seeds as points."""
    tint = colours(summary.arms)
    values = {arm: list(summary.clips[name].get(arm, {}).values()) for arm in summary.arms}
    for i, arm in enumerate(summary.arms):
        m = mean_interval(values[arm], generator())
        if not m.n:
            continue
        ax.bar(i, m.value, width=0.62, color=tint[arm], alpha=0.85)
        if not math.isnan(m.low):
            ax.plot([i, i], [max(m.low, 0.0), m.high], color="black", linewidth=1.3)
        spots = i + np.linspace(-0.2, 0.2, m.n) if m.n > 1 else np.array([float(i)])
        ax.plot(spots, values[arm], ".", color="black", markersize=3.5, alpha=0.55)
        top = max([m.value, *values[arm], *([] if math.isnan(m.high) else [m.high])])
        ax.annotate(number(m.value), (i, top), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=8)
    every = [v for group in values.values() for v in group]
    share_axis(ax, smallest_positive(every), 2 * max(every, default=0.5))
    slant = _slant(summary.arms)
    gap = " " if slant else "\n"
    ax.set_xticks(range(len(summary.arms)), [f"{arm}{gap}(n={len(values[arm])})" for arm in summary.arms], **slant)
    ax.grid(axis="x", visible=False)


def _slant(names: list[str]) -> dict[str, Any]:
    """Turned labels when they are many or long."""
    crowded = len(names) > 4 or max(len(name) for name in names) > 14
    return {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if crowded else {}


def collapse(summary: Summary) -> tuple[Figure, Curves] | None:
    """Share of runs not collapsed against the step (Kaplan-Meier)."""
    known = [arm for arm in summary.collapse if arm.determined]
    if not known:
        return None
    figure, (ax,) = panels(1, 1, width=5.2, height=3.0)
    tint = colours(summary.arms)
    for arm in known:
        c, last = arm.curve, max(o.time for o in arm.outcomes if not math.isnan(o.time))
        x = np.append(c.time, max(last, float(c.time[-1]) + 1e-9))
        steps = [np.append(y, y[-1]) for y in (c.survival, c.low, c.high)]
        label = f"{arm.arm}: {arm.collapsed} of {arm.determined} collapsed"
        ax.step(x, steps[0], where="post", color=tint[arm.arm], label=label)
        if len(known) <= 4:
            ax.fill_between(x, steps[1], steps[2], step="post", color=tint[arm.arm], alpha=0.13, linewidth=0)
        censored = [o.time for o in arm.outcomes if o.verdict == "stable"]
        height = [float(c.survival[np.searchsorted(c.time, t, side="right") - 1]) for t in censored]
        ax.plot(censored, height, "|", color=tint[arm.arm], markersize=7)
    ax.set_ylim(-0.03, 1.05)
    ax.set_xlabel("step")
    ax.set_ylabel("share not collapsed")
    legend_below(figure, ax)
    return figure, []


def final(summary: Summary) -> tuple[Figure, Curves] | None:
    """Final scores: every seed, the mean and the interquartile mean with their intervals."""
    scores = list(summary.scores)
    if not scores:
        return None
    counts = {score: [len(summary.scores[score].get(arm, {})) for arm in summary.arms] for score in scores}
    names = [f"{arm} ({_counts(found)})" for arm, *found in zip(summary.arms, *counts.values(), strict=True)]
    height = max(1.7, 0.42 * len(summary.arms) + 1.0)
    figure, axes = panels(1, len(scores), width=2.9, height=height, left=room_for(names))
    tint = colours(summary.arms)
    for ax, score in zip(axes, scores, strict=True):
        for i, arm in enumerate(summary.arms):
            values = list(summary.scores[score].get(arm, {}).values())
            if not values:
                continue
            y = -float(i)
            ax.plot(values, np.full(len(values), y - 0.22), ".", color=tint[arm], markersize=4, alpha=0.6)
            _whisker(ax, mean_interval(values, generator()), y, tint[arm], "o", "mean" if i == 0 else None)
            _whisker(ax, iqm_interval(values, generator()), y + 0.22, tint[arm], "D", "IQM" if i == 0 else None)
        ax.set_ylim(-len(summary.arms) + 0.45, 0.55)
        ax.set_yticks([-float(i) for i in range(len(names))], names if ax is axes[0] else [])
        ax.set_title(_score_title(score).replace("10-step mean", "last 10 steps"))
        ax.grid(axis="y", visible=False)
    letters(axes)
    legend_below(figure, axes[0])
    return figure, []


def _counts(found: list[int]) -> str:
    """`n=4`, or `n=4, 3` where the scores were not had of the same number of seeds."""
    return f"n={found[0]}" if len(set(found)) == 1 else "n=" + ", ".join(str(n) for n in found)


def _whisker(ax: Axes, m: Interval, y: float, colour: Any, marker: str, label: str | None, filled: bool = True) -> None:
    """A marker at the value and a line over the interval."""
    face = colour if filled and marker == "o" else "white"
    if not math.isnan(m.low):
        ax.plot([m.low, m.high], [y, y], color=colour, linewidth=1.4)
    ax.plot([m.value], [y], marker=marker, color=colour, markerfacecolor=face, markersize=5, linestyle="", label=label)


def comparisons(summary: Summary) -> tuple[Figure, Curves] | None:
    """Differences of final scores and the probability of improvement; filled markers are claims."""
    held = [c for c in summary.claims if c.score in summary.scores and min(c.n_a, c.n_b) > 0]
    if not held or len(held) > MOST_PAIRS:
        return None
    names = [f"{c.a} vs {c.b}\n{c.score}, n={c.n_a}, {c.n_b}" for c in held]
    figure, axes = panels(1, 3, width=2.5, height=max(1.7, 0.34 * len(held) + 0.9), left=0.9 * room_for(names))
    values = ("difference", "paired", "improvement")
    titles = ("difference, a - b", "paired by seed, a - b", "P(a beats b)")
    for ax, field, title in zip(axes, values, titles, strict=True):
        for i, claim in enumerate(held):
            m: Interval = getattr(claim, field)
            claimed = not math.isnan(claim.adjusted) and claim.adjusted <= ALPHA
            if m.n:
                _whisker(ax, m, -float(i), "#333333", "o", None, filled=claimed)
        ax.axvline(0.5 if field == "improvement" else 0.0, color="#999999", linewidth=0.8, linestyle="--")
        ax.set_title(title)
        ax.set_ylim(-len(held) + 0.4, 0.6)
        ax.set_yticks([-float(i) for i in range(len(held))], names if ax is axes[0] else [], fontsize=7)
        ax.grid(axis="y", visible=False)
    axes[2].set_xlim(-0.03, 1.03)
    letters(axes)
    return figure, []
