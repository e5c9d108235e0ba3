"""The learning rate over optimiser steps."""

from __future__ import annotations

import math

from gspo.config import OptimSettings


def schedule(optim: OptimSettings, update: int, total: int) -> float:
    """Factor of the peak learning rate at optimiser step `update` (from 0) of `total`.

    Linear warm-up over `warmup_steps`, then `constant` 1, `linear` to 0, or `cosine` to 0.
    """
    if update < optim.warmup_steps:
        return (update + 1) / optim.warmup_steps
    if optim.schedule == "constant":
        return 1.0
    progress = (update - optim.warmup_steps) / max(total - optim.warmup_steps, 1)
    if optim.schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))
