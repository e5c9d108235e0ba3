"""Soft overlong penalty: a part of the reward that falls linearly where a response nears the length limit.

DAPO (arXiv 2503.14476, eq. 13): with L_max tokens allowed and a buffer of L_cache,

    0                                   |y| <= L_max - L_cache
    (L_max - L_cache - |y|) / L_cache   L_max - L_cache < |y| <= L_max
    -1                                  |y| > L_max
"""

from __future__ import annotations

from dataclasses import replace

from gspo.types import Prompt, Reward, RewardFn, Rollout


def soft_overlong(length: int, *, max_tokens: int, buffer: int) -> float:
    """The penalty in [-1, 0] of a response of `length` tokens. Raises ValueError for a buffer outside 1..max_tokens."""
    if not 1 <= buffer <= max_tokens:
        raise ValueError(f"buffer={buffer}: must lie in 1..{max_tokens} (max_tokens)")
    free = max_tokens - buffer
    if length <= free:
        return 0.0
    return max(-1.0, (free - length) / buffer)


def with_length_penalty(
    prompt: Prompt, rollout: Rollout, *, reward: RewardFn, max_tokens: int, buffer: int, weight: float = 1.0
) -> Reward:
    """`reward` plus `weight` times the soft overlong penalty, kept apart as the part `overlong`.

    Raises ValueError for a reward by step, in which the penalty would have no place.
    """
    judged = reward(prompt, rollout)
    if judged.steps is not None:
        raise ValueError("the length penalty belongs to one reward a response; the reward inside it comes by step")
    penalty = soft_overlong(len(rollout.token_ids), max_tokens=max_tokens, buffer=buffer)
    return replace(judged, value=judged.value + weight * penalty, parts=judged.parts | {"overlong": penalty})
