"""One row for every (response, update): what `sequences/` stores and what every metric of responses is summed from.

The row holds enough to answer later, without a forward pass, what any other sequence-level range (from log_s and the
signs of the advantages, exactly) or any token-level range on EPS_GRID would have clipped of the same update.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gspo.algorithms.objectives import Objective, per_token
from gspo.algorithms.ratios import GUARD, log_ratio, log_sequence_ratio
from gspo.metrics import Rows
from gspo.types import Batch, Group, Reward

EPS_GRID = (0.5, 0.3, 0.28, 0.27, 0.2, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3, 4e-4, 3e-4, 1e-4)
"""Token-level ranges at which `w_above` and `w_below` count."""


def of_groups(groups: Sequence[Group]) -> Rows:
    """What is known of the responses before the update: one entry each, in the order of `make_batch`'s rows."""
    each = [(p, g, k) for p, group in enumerate(groups) for k, g in enumerate(group.rollouts)]
    rewards = [reward for group in groups for reward in group.rewards]
    columns = {
        "prompt_id": np.array([groups[p].prompt.id for p, _, _ in each], dtype=object),
        "group": np.array([p for p, _, _ in each]),
        "sample": np.array([k for _, _, k in each]),
        "sampled": np.array([len(g.token_ids) for _, g, _ in each]),
        "truncated": np.array([g.finish == "length" for _, g, _ in each]),
        "empty": np.array([len(g.token_ids) - (g.finish == "stop") <= 0 for _, g, _ in each]),
        "reward": np.array([reward.value for reward in rewards], dtype=np.float64),
        "reward_low": np.array([min(_of_steps(reward)) for reward in rewards], dtype=np.float64),
        "reward_high": np.array([max(_of_steps(reward)) for reward in rewards], dtype=np.float64),
    }
    for part in sorted({name for reward in rewards for name in reward.parts}):
        columns[f"part_{part}"] = np.array([reward.parts.get(part, np.nan) for reward in rewards], dtype=np.float64)
    return columns


def _of_steps(reward: Reward) -> list[float]:
    """The rewards of a response: of its steps, or the one it has."""
    return [reward.value] if reward.steps is None else [value for _, value in reward.steps]


@torch.no_grad()
def of_update(
    micro: Batch,
    logp: Tensor,
    old_logp: Tensor,
    entropy: Tensor,
    terms: Objective,
    trainer_logp: Tensor | None,
    *,
    clip_low: float | None,
    clip_high: float | None,
) -> Rows:
    """What the update did to the rows of one micro-batch.

    `logp`, `old_logp`, `entropy` are [B, T]; `trainer_logp` [B, T] is the trainer's log-prob under the weights that
    sampled, where it is known. Sums over tokens, in nats, in float64.
    """
    mask, length = micro.mask, micro.mask.sum(-1)
    log_w = log_ratio(logp, old_logp, mask).double()
    log_s = log_sequence_ratio(logp, old_logp, mask).double()
    adv = per_token(micro.adv).expand_as(mask)
    has_adv = (adv != 0) & mask
    w = log_w.exp()
    above = (w[..., None] > 1 + eps_grid(w)) & mask[..., None]
    below = (w[..., None] < 1 - eps_grid(w)) & mask[..., None]
    positive, negative = (adv > 0)[..., None], (adv < 0)[..., None]
    guarded = (log_w.abs() > GUARD) | (log_s.abs() > GUARD)[:, None]
    columns = {
        "row": micro.row,
        "length": length,
        "adv": (adv.masked_fill(~mask, 0.0).sum(-1) / length.clamp(min=1)) if micro.adv.ndim == 2 else micro.adv,
        "adv_tokens": has_adv.sum(-1),
        "adv_positive": ((adv > 0) & mask).sum(-1),
        "log_s": log_s,
        "log_w_sum": log_w.sum(-1),
        "log_w_sq_sum": log_w.square().sum(-1),
        "max_abs_log_w": log_w.abs().amax(-1),
        "k3_sum": (w.sub(1) - log_w).masked_fill(~mask, 0.0).sum(-1),
        "entropy_sum": entropy.double().masked_fill(~mask, 0.0).sum(-1),
        "guarded": (guarded & mask).sum(-1),
        "tokens_binding": _token_count(terms.clipped, mask),
        "tokens_outside": _token_count(outside(terms.ratio, clip_low, clip_high), mask),
        "w_above": above.sum(1),
        "w_below": below.sum(1),
        "w_above_bound": (above & positive).sum(1),
        "w_below_bound": (below & negative).sum(1),
    }
    columns |= _mismatch(micro, trainer_logp)
    return {name: column.cpu().numpy() for name, column in columns.items()}


def outside(ratio: Tensor, clip_low: float | None, clip_high: float | None) -> Tensor:
    """r is not in [1 - eps_L, 1 + eps_R], whatever the advantage. Bool, the shape of `ratio`."""
    high = torch.zeros_like(ratio, dtype=torch.bool) if clip_high is None else ratio > 1 + clip_high
    low = torch.zeros_like(ratio, dtype=torch.bool) if clip_low is None else ratio < 1 - clip_low
    return high | low


def eps_grid(like: Tensor) -> Tensor:
    return torch.tensor(EPS_GRID, dtype=like.dtype, device=like.device)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Rows of micro-batches or mini-batches one below the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join(responses: Rows, updates: Sequence[Rows]) -> Rows:
    """The step's table: the columns of `of_groups` beside those of every mini-batch's `of_update`, in row order."""
    numbered = [rows | {"minibatch": np.full(len(rows["row"]), k)} for k, rows in enumerate(updates)]
    table = concatenate(numbered)
    order = np.argsort(table["row"], kind="stable")
    table = {name: column[order] for name, column in table.items()}
    return {name: column[table["row"]] for name, column in responses.items()} | table


def _token_count(at: Tensor, mask: Tensor) -> Tensor:
    """Trained tokens at which `at` holds: [B] speaks for all tokens of a response, [B, T] for each."""
    return ((at[:, None] if at.ndim == 1 else at) & mask).sum(-1)


def _mismatch(micro: Batch, trainer_logp: Tensor | None) -> dict[str, Tensor]:
    """Trainer minus sampler under the weights that sampled; NaN (and no tokens) where the trainer did not say."""
    length = micro.mask.sum(-1)
    if trainer_logp is None:
        nan = torch.full(length.shape, torch.nan, dtype=torch.float64)
        zero = torch.zeros(length.shape, dtype=torch.float64)
        return {"mismatch_tokens": zero, "mismatch_abs_sum": zero, "mismatch_abs_max": nan, "mismatch_log_sum": nan,
                "mismatch_log_mean": nan, "mismatch_k3_sum": zero}  # fmt: skip
    d = log_ratio(trainer_logp, micro.sampler_logp, micro.mask).double()
    d_sum = d.sum(-1)
    return {
        "mismatch_tokens": length.double(),
        "mismatch_abs_sum": d.abs().sum(-1),
        "mismatch_abs_max": d.abs().amax(-1),
        "mismatch_log_sum": d_sum.masked_fill(length == 0, torch.nan),
        "mismatch_log_mean": d_sum / length.where(length > 0, torch.nan),
        "mismatch_k3_sum": (d.exp() - 1 - d).sum(-1),
    }
