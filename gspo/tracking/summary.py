"""The end of a run: where it is, what became of reward and clipping, and a picture of both."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gspo.tracking import files, run_dir
from gspo.tracking.display import say

WINDOW = 10
"""Steps of the running mean, and of the first and last mean that are printed."""

CLIPS = ("clip/token_binding", "clip/token_outside", "clip/seq_binding", "clip/seq_outside")


def running_mean(values: Sequence[float], window: int = WINDOW) -> np.ndarray:
    """R_t = mean of values t - window + 1 .. t, defined from t = window - 1 : NaN before, and at a NaN."""
    means = np.full(len(values), np.nan)
    if len(values) >= window:
        means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(np.asarray(values), window).mean(axis=1)
    return means


def summarize(path: Path) -> Path:
    """Draw summary.png of a run directory (reward/mean and the four clip fractions by step), print a few lines.

    Reads metrics.jsonl and run.json only. Returns the path of the picture. Raises ValueError when there is no row.
    """
    table = list(files.rows(path / "metrics.jsonl"))
    if not table:
        raise ValueError(f"{path / 'metrics.jsonl'} has no row to summarise")
    known = run_dir.read_record(path)
    step = [row["step"] for row in table]
    series = {key: [float(row.get(key, np.nan)) for row in table] for key in ("reward/mean", *CLIPS)}
    reward = series["reward/mean"]
    say(f"{known['status']}: {len(table)} steps in {path}")
    first, last = np.mean(reward[:WINDOW]), np.mean(reward[-WINDOW:])
    say(f"reward/mean: first {WINDOW} steps {first:.4f}, last {WINDOW} {last:.4f}")
    say("share clipped: " + ", ".join(f"{key} {np.mean(series[key]):.4g}" for key in CLIPS))
    picture = path / "summary.png"
    files.replace(picture, _draw(step, series, str(known.get("objective", path.name))))
    say(f"picture: {picture}")
    return picture


def _draw(step: list[int], series: dict[str, list[float]], title: str) -> bytes:
    """The picture as the bytes of a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), dpi=110, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(step, series["reward/mean"], color="0.7", linewidth=1, label="reward/mean")
    upper.plot(step, running_mean(series["reward/mean"]), color="C0", linewidth=2, label=f"mean of {WINDOW} steps")
    upper.set_ylabel("reward")
    upper.set_title(title, fontsize=9, wrap=True)
    upper.legend(loc="best", fontsize=8)
    for key, style in zip(CLIPS, ("-", "--", "-", "--"), strict=True):
        colour = "C1" if "token" in key else "C2"
        lower.plot(step, series[key], style, color=colour, linewidth=1.2, label=key)
    lower.set_ylabel("share clipped")
    lower.set_xlabel("step")
    lower.set_ylim(bottom=0)
    lower.legend(loc="best", fontsize=8)
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
