"""Do the rollout engine and the trainer say the same of the same weights? Checked after a sync, on sampled tokens.

Bounds in float32 are mean |difference| 1e-4 and 99th percentile 1e-3: agreement is about 1e-6 when the weights are the
same, with single tokens of a mixture of experts up to a few 1e-3 off (near-ties in routing), hence no bound on the
maximum. In bfloat16 two right programs differ by about 5e-3 in the median and 0.2 at most, by their order of summation
alone: bounds of 0.05 and 0.25 find weights that are broken, not weights that are one small update old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BOUNDS = {"float32": (1e-4, 1e-3), "bfloat16": (0.05, 0.25)}
"""precision -> largest mean and largest 99th percentile of |sampler_logp - trainer_logp| over trained tokens."""


class WeightsOutOfSync(RuntimeError):
    """Engine and trainer disagree on the log-probs of sampled tokens by more than rounding."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """|sampler_logp - trainer_logp| over trained tokens, in nats; NaN when any log-prob is not finite."""

    mean_abs: float
    p99_abs: float
    max_abs: float
    tokens: int


def check(sampler_logp: Any, trainer_logp: Any, *, precision: str) -> Agreement:
    """Compare two `[tokens]` arrays of log-probs of the same trained tokens.

    Raises ValueError when the shapes differ, there is no token, or the precision has no bounds.
    """
    sampler, trainer = np.asarray(sampler_logp, dtype=np.float64), np.asarray(trainer_logp, dtype=np.float64)
    if sampler.shape != trainer.shape or sampler.ndim != 1 or sampler.size == 0:
        raise ValueError(
            f"log-probs of shapes {sampler.shape} and {trainer.shape}: expected two equal [tokens], not empty"
        )
    if precision not in BOUNDS:
        raise ValueError(f"precision={precision}: one of {tuple(BOUNDS)}")
    both = np.isfinite(sampler) & np.isfinite(trainer)
    gap = np.abs(np.where(both, sampler, np.nan) - np.where(both, trainer, 0.0))
    return Agreement(float(gap.mean()), float(np.percentile(gap, 99)), float(gap.max()), gap.size)


def require(agreement: Agreement, precision: str) -> None:
    """Raise WeightsOutOfSync, with the numbers, when the agreement is outside BOUNDS or NaN."""
    mean, p99 = BOUNDS[precision]
    if not (agreement.mean_abs <= mean and agreement.p99_abs <= p99):
        raise WeightsOutOfSync(
            f"rollout engine and trainer differ on the log-probs of {agreement.tokens} sampled tokens: "
            f"mean {agreement.mean_abs:.3g} (at most {mean:g}), 99th percentile {agreement.p99_abs:.3g} "
            f"(at most {p99:g}), max {agreement.max_abs:.3g}, {precision}; the engine has other weights"
        )
