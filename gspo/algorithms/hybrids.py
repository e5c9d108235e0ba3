"""Neighbours of the paper's objectives. None of these is in arXiv 2507.18071; each says what it departs from.

Same signature and the same docstring lines (`J =`, `Unclipped:`) as `objectives.py`. b(r) stands for "the clip binds at
ratio r": A > 0 and r > 1+eR, or A < 0 and r < 1-eL.
"""

import torch
from torch import Tensor

from gspo.algorithms.objectives import Objective, binding, clip, per_token, token_mean, token_sum
from gspo.algorithms.ratios import (
    GUARD,
    guarded_exp,
    lengths,
    log_ratio,
    sequence_ratio,
    sequence_token_ratio,
    token_ratio,
)


def grpo_seqclip(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """GRPO's token weights, clipped whole responses at a time by s_i: ratio level apart from clip level.

    J = 1/N sum_i 1/|y_i| sum_t ( b(s_i) ? sg[w_it] : w_it ) A_i
    Unclipped: J = 1/N sum_i 1/|y_i| sum_t w_it A_i

    `adv` is [B]. d J / d logp_it = w_it A_i / (N |y_i|) where the response is not bound, else 0. The ratio that the
    clip tests, and that is reported, is s_i [B]. Departs from Eq. 2 in where the clip is decided.
    """
    _one_advantage_a_response(adv, "grpo_seqclip")
    w = token_ratio(logp, old_logp, mask)
    s = sequence_ratio(logp, old_logp, mask).detach()
    bound = binding(s, adv, clip_low, clip_high) & mask.any(-1)
    weight = torch.where(bound[:, None], w.detach(), w)
    return Objective(token_mean(weight * adv[:, None], mask), s, bound)


def gspo_tokenclip(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """GSPO's sequence weights, clipped token by token by w_it: ratio level apart from clip level.

    J = 1/N sum_i 1/|y_i| sum_t ( b(w_it) ? sg[s_i] : s_it ) A_it,  s_it = sg[s_i] pi_it / sg[pi_it]
    Unclipped: J = 1/N sum_i 1/|y_i| sum_t s_it A_it,  s_it = sg[s_i] pi_it / sg[pi_it]

    `adv` is [B] or [B, T]. d J / d logp_it = s_i A_it / (N |y_i|) where w_it is not bound, else 0. The ratio that the
    clip tests, and that is reported, is w_it [B, T]. Departs from Eq. 13 in what the clip tests.
    """
    w = token_ratio(logp, old_logp, mask).detach()
    s = sequence_token_ratio(logp, old_logp, mask)
    bound = binding(w, per_token(adv), clip_low, clip_high) & mask
    weight = torch.where(bound, s.detach(), s)
    return Objective(token_mean(weight * per_token(adv), mask), w, bound)


def dapo(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """DAPO's token-level loss (arXiv 2503.14476, Eq. 8): every token of the mini-batch weighs the same.

    J = 1/sum_i|y_i| sum_i sum_t min( w_it A_i, clip(w_it, 1-eL, 1+eR) A_i )
    Unclipped: J = 1/sum_i|y_i| sum_i sum_t w_it A_i

    `adv` is [B] or [B, T]. d J / d logp_it = w_it A_i / sum_i|y_i| where the clip does not bind, else 0. The sum runs
    over the mini-batch (in DAPO over one prompt's group); its dynamic sampling and overlong shaping are not here.
    """
    w = token_ratio(logp, old_logp, mask)
    terms, clipped = clip(w, per_token(adv), clip_low, clip_high)
    return Objective(token_sum(terms, mask), w, clipped & mask, denominator="tokens")


def dr_grpo(
    logp: Tensor,
    old_logp: Tensor,
    adv: Tensor,
    mask: Tensor,
    *,
    clip_low: float | None,
    clip_high: float | None,
    constant: float,
) -> Objective:
    """Dr. GRPO (arXiv 2503.20783): token sums over a stated constant, meant for centred advantages.

    J = 1/N sum_i 1/C sum_t min( w_it A_i, clip(w_it, 1-eL, 1+eR) A_i ),  C = {constant}
    Unclipped: J = 1/N sum_i 1/C sum_t w_it A_i,  C = {constant}

    `adv` is [B] or [B, T]; `constant` in tokens, the same for every response. d J / d logp_it = w_it A_i / (N C) where
    the clip does not bind, else 0. Raises ValueError for a constant that is not positive.
    """
    if not constant > 0:
        raise ValueError(f"algo.objective.constant={constant}: a positive number of tokens is accepted")
    w = token_ratio(logp, old_logp, mask)
    terms, clipped = clip(w, per_token(adv), clip_low, clip_high)
    return Objective(token_sum(terms, mask) / constant, w, clipped & mask)


def cispo(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: None, clip_high: float | None
) -> Objective:
    """CISPO (MiniMax-M1, arXiv 2506.13585, Eq. 4): the weight is truncated, no token loses its gradient.

    J = 1/sum_i|y_i| sum_i sum_t sg[ min(w_it, 1+eR) ] A_i logp_it
    Unclipped: J = 1/sum_i|y_i| sum_i sum_t sg[ w_it ] A_i logp_it

    `adv` is [B] or [B, T]. d J / d logp_it = min(w_it, 1+eR) A_i / sum_i|y_i|. *Binding* means here that the weight is
    truncated (w_it > 1+eR, whatever the sign of A_i); the gradient is smaller then, not zero. `clip_low` must be None.
    """
    if clip_low is not None:
        raise ValueError(f"clip.low={clip_low}: cispo truncates only above; null is accepted")
    w = token_ratio(logp, old_logp, mask).detach()
    weight = w if clip_high is None else w.clamp(max=1 + clip_high)
    truncated = torch.zeros_like(mask) if clip_high is None else (w > 1 + clip_high) & mask
    terms = weight * per_token(adv) * logp.masked_fill(~mask, 0.0)
    return Objective(token_sum(terms, mask), w, truncated, denominator="tokens")


def gmpo(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: float | None, clip_high: float | None
) -> Objective:
    """GMPO (arXiv 2507.20673, Eq. 4): the geometric mean of token ratios, each clipped before the mean is taken.

    J = 1/N sum_i exp( 1/|y_i| sum_t ( b(w_it) ? log clip(w_it, 1-eL, 1+eR) : log w_it ) ) A_i
    Unclipped: J = 1/N sum_i exp( 1/|y_i| sum_t log w_it ) A_i

    `adv` is [B]. d J / d logp_it = g_i A_i / (N |y_i|) where w_it is not bound, else 0, with g_i the geometric mean.
    The paper clips to [e^-0.4, e^0.4], i.e. eL = 0.3297, eR = 0.4918. Unlike s_i, which is clipped after the mean.
    """
    _one_advantage_a_response(adv, "gmpo")
    log_w = log_ratio(logp, old_logp, mask)
    w = guarded_exp(log_w).detach()
    bound = binding(w, adv[:, None], clip_low, clip_high) & mask
    low = -GUARD if clip_low is None else torch.log1p(torch.tensor(-clip_low)).item()
    high = GUARD if clip_high is None else torch.log1p(torch.tensor(clip_high)).item()
    clipped = torch.where(bound, log_w.clamp(low, high).detach(), log_w)
    g = guarded_exp(clipped.sum(-1) / lengths(mask))
    return Objective((g * adv).masked_fill(~mask.any(-1), 0.0), w, bound)


def reinforce(
    logp: Tensor, old_logp: Tensor, adv: Tensor, mask: Tensor, *, clip_low: None, clip_high: None
) -> Objective:
    """REINFORCE on sequence log-probs: no ratio, so nothing to clip; with `leave_one_out` advantages this is RLOO.

    J = 1/N sum_i sum_t A_i logp_it

    `adv` is [B] or [B, T]. d J / d logp_it = A_i / N. The reported ratio w_it [B, T] is a diagnosis, it weighs nothing.
    RLOO: arXiv 2402.14740. Raises ValueError for any clip.
    """
    if clip_low is not None or clip_high is not None:
        raise ValueError(f"clip.low={clip_low} clip.high={clip_high}: no ratio to clip; clip=none is accepted")
    w = token_ratio(logp, old_logp, mask).detach()
    terms = per_token(adv) * logp.masked_fill(~mask, 0.0)
    return Objective(token_sum(terms, mask), w, torch.zeros_like(mask))


def _one_advantage_a_response(adv: Tensor, name: str) -> None:
    if adv.ndim != 1:
        raise ValueError(f"{name} takes one advantage a response, [B]; got {list(adv.shape)}")
