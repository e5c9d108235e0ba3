"""The paper's three objectives. Read `grpo` and `gspo` one above the other: the paper is the difference of two lines.

One signature for all: `objective(logp, old_logp, adv, mask, *, clip_low, clip_high) -> Objective`. `value` is what is
*maximised*: J = value.sum() over all micro-batches and ranks, divided by the declared denominator.

An objective's docstring carries its formula in a line that starts with `J =` (and, for a run without clip, one that
starts with `Unclipped: J =`); `run.json` quotes that line, so the formula a run reports is the one written here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo.algorithms.ratios import lengths, sequence_ratio, sequence_token_ratio, token_ratio


@dataclass(slots=True)
class Objective:
    """What an objective says of one micro-batch."""

    value: Tensor
    """`[B]`, differentiable; 0 for a response without trained tokens."""
    ratio: Tensor
    """The ratio that the clip tests: s_i `[B]`, or w_it / s_it `[B, T]`."""
    clipped: Tensor
    """bool, the shape of `ratio`: the clip sets the gradient to zero here (*binding*); False off the mask."""
    denominator: str = "sequences"
    """`sequences` (N) or `tokens` (sum_i |y_i|), both global integers of the mini-batch."""


def clip_range(ratio: Tensor, clip_low: float | None, clip_high: float | None) -> Tensor:
    """clip(r, 1 - eps_L, 1 + eps_R); a side that is None is open."""
    if clip_low is None and clip_high is None:
        return ratio
    low = None if clip_low is None else 1 - clip_low
    high = None if clip_high is None else 1 + clip_high
    return ratio.clamp(low, high)


def binding(ratio: Tensor, adv: Tensor, clip_low: float | None, clip_high: float | None) -> Tensor:
    """A > 0 and r > 1 + eps_R, or A < 0 and r < 1 - eps_L: where the clip sets the gradient to zero. Bool."""
    high = torch.zeros_like(ratio, dtype=torch.bool) if clip_high is None else (adv > 0) & (ratio > 1 + clip_high)
    low = torch.zeros_like(ratio, dtype=torch.bool) if clip_low is None else (adv < 0) & (ratio < 1 - clip_low)
    return high | low


def clip(ratio: Tensor, adv: Tensor, clip_low: float | None, clip_high: float | None) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 - eps_L, 1 + eps_R) A), and where the clip binds; both the shape of `ratio`."""
    terms = torch.minimum(ratio * adv, clip_range(ratio, clip_low, clip_high) * adv)
    return terms, binding(ratio.detach(), adv, clip_low, clip_high)


def per_token(adv: Tensor) -> Tensor:
    """A_i [B] -> [B, 1], to stand beside [B, T]; A_it [B, T] stays."""
    return adv[:, None] if adv.ndim == 1 else adv


def token_sum(terms: Tensor, mask: Tensor) -> Tensor:
    """sum_t over trained tokens: [B, T] -> [B]."""
    return terms.masked_fill(~mask, 0.0).sum(-1)


def token_mean(terms: Tensor, mask: Tensor) -> Tensor:
    """1/|y_i| sum_t over trained tokens: [B, T] -> [B]; 0 for a response without any."""
    return token_sum(terms, mask) / lengths(mask)


def grpo(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """GRPO, Eq. 2 (its gradient is Eq. 12).

    J = 1/N sum_i 1/|y_i| sum_t min( w_it A_i, clip(w_it, 1-eL, 1+eR) A_i )
    Unclipped: J = 1/N sum_i 1/|y_i| sum_t w_it A_i

    `adv` is [B] or [B, T]. d J / d logp_it = w_it A_i / (N |y_i|) where the clip does not bind, else 0.
    """
    w = token_ratio(logp, old_logp, mask)
    terms, clipped = clip(w, per_token(adv), clip_low, clip_high)
    return Objective(token_mean(terms, mask), w, clipped & mask)


def gspo(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """GSPO, Eq. 5 (its gradient is Eq. 10).

    J = 1/N sum_i min( s_i A_i, clip(s_i, 1-eL, 1+eR) A_i )
    Unclipped: J = 1/N sum_i s_i A_i

    `adv` is [B]; one advantage a response is what makes one ratio a response meaningful.
    d J / d logp_it = s_i A_i / (N |y_i|) where the clip does not bind, else 0. Raises ValueError for `adv` [B, T].
    """
    if adv.ndim != 1:
        raise ValueError(f"gspo takes one advantage a response, [B]; got {list(adv.shape)}: use gspo-token or grpo")
    s = sequence_ratio(logp, old_logp, mask)
    terms, clipped = clip(s, adv, clip_low, clip_high)
    return Objective(terms.masked_fill(~mask.any(-1), 0.0), s, clipped & mask.any(-1))


def gspo_token(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """GSPO-token, Eq. 13 with s_it of Eq. 14 (its gradient is Eq. 17).

    J = 1/N sum_i 1/|y_i| sum_t min( s_it A_it, clip(s_it, 1-eL, 1+eR) A_it ),  s_it = sg[s_i] pi_it / sg[pi_it]
    Unclipped: J = 1/N sum_i 1/|y_i| sum_t s_it A_it,  s_it = sg[s_i] pi_it / sg[pi_it]

    `adv` is [B] or [B, T]. d J / d logp_it = s_i A_it / (N |y_i|) where the clip does not bind, else 0: with constant
    advantages value and gradient are those of `gspo`.
    """
    s = sequence_token_ratio(logp, old_logp, mask)
    terms, clipped = clip(s, per_token(adv), clip_low, clip_high)
    return Objective(token_mean(terms, mask), s.masked_fill(~mask, 1.0), clipped & mask)
