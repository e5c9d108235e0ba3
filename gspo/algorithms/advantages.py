"""Advantages of the responses of one group, from their rewards.

`rewards` is `[P, G]`: one row a group; NaN marks a response whose verifier failed. Such a response has no reward: the
statistics are those of the others, its own advantage is 0 and it stays in N. A group with fewer than two rewards left,
or without spread (max equal to min), gets exactly 0. Standard deviations are population ones (divided by the count).

Rewards by step are `[P, G, S]`: S steps at most a response, NaN behind the last. The advantage of a step is that of its
tokens.
"""

import torch
from torch import Tensor


def group_normalized(rewards: Tensor) -> Tensor:
    """A_i = (r_i - mean) / std over the group, Eq. 6: [P, G] -> [P, G]; rewards by step as `step_normalized` says.

    [1, 0, 0, 0] -> [1.732051, -0.577350, -0.577350, -0.577350].
    """
    if rewards.ndim == 3:
        return step_normalized(rewards)
    centered, valid, spread = _centered(rewards)
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    std = (centered.square().sum(-1, keepdim=True) / count).sqrt()
    return torch.where(spread, centered / std.where(spread, torch.ones_like(std)), torch.zeros_like(centered))


def group_centered(rewards: Tensor) -> Tensor:
    """A_i = r_i - mean over the group (Dr. GRPO, arXiv 2503.20783): [P, G] -> [P, G]."""
    centered, _, spread = _centered(rewards)
    return centered.where(spread, torch.zeros_like(centered))


def leave_one_out(rewards: Tensor) -> Tensor:
    """A_i = r_i - mean of the other responses of the group (RLOO, arXiv 2402.14740): [P, G] -> [P, G].

    Equals n / (n - 1) * (r_i - mean) with n the rewards in the group.
    """
    centered, valid, spread = _centered(rewards)
    count = valid.sum(-1, keepdim=True)
    scaled = centered * count / (count - 1).clamp(min=1)
    return scaled.where(spread, torch.zeros_like(scaled))


def step_normalized(rewards: Tensor) -> Tensor:
    """A_ik = sum_{j >= k} (r_ij - mean) / std over all steps of the group: [P, G, S] -> [P, G, S], 0 where NaN.

    So a token has the sum of the normalised rewards of the steps that end at it or later: process supervision of
    DeepSeekMath (arXiv 2402.03300, section 4.1.3). A group without two responses that have rewards gets exactly 0.
    [[1, 0], [1, 1]] -> [[-1.154701, -1.732051], [1.154701, 0.577350]].
    Raises ValueError for anything but [P, G, S] with G >= 2, and for infinite rewards.
    """
    if rewards.ndim != 3 or rewards.shape[1] < 2:
        raise ValueError(f"rewards by step must be [P, G, S] with G >= 2 responses; got {list(rewards.shape)}")
    flat = group_normalized(rewards.flatten(1)).view(rewards.shape)
    responses = (~rewards.isnan()).any(-1).sum(-1)  # [P]
    enough = (responses >= 2)[:, None, None] & ~rewards.isnan()
    # each step and those after it: a running sum from the end
    total = flat.flip(-1).cumsum(-1).flip(-1)
    return total.where(enough, torch.zeros_like(total))


def _centered(rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards minus their group's mean (0 where NaN), which rewards there are `[P, G]`, which groups spread `[P, 1]`.

    Raises ValueError for anything but `[P, G]` with G >= 2, and for infinite rewards.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must be [P, G] with G >= 2 responses a group; got {list(rewards.shape)}")
    if rewards.isinf().any():
        raise ValueError(f"rewards must be finite (NaN marks a failed verifier); got {rewards.tolist()}")
    r = rewards.double()
    valid = ~r.isnan()
    known = r.where(valid, torch.zeros_like(r))
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    mean = known.sum(-1, keepdim=True) / count
    high = r.where(valid, torch.full_like(r, -torch.inf)).amax(-1, keepdim=True)
    low = r.where(valid, torch.full_like(r, torch.inf)).amin(-1, keepdim=True)
    spread = (valid.sum(-1, keepdim=True) >= 2) & (high > low)
    return (known - mean).where(valid, torch.zeros_like(r)), valid, spread
