"""One reward for data of several kinds: each prompt is judged by the verifier of its kind."""

from __future__ import annotations

from collections.abc import Mapping

from gspo.types import Prompt, Reward, RewardFn, Rollout


def mixed_reward(prompt: Prompt, rollout: Rollout, *, kinds: Mapping[str, RewardFn]) -> Reward:
    """The reward that `kinds` names for `prompt.kind`. Raises ValueError for a kind without one."""
    if prompt.kind not in kinds:
        raise ValueError(f"prompt {prompt.id}: kind={prompt.kind}: the mixed reward knows {sorted(kinds)}")
    return kinds[prompt.kind](prompt, rollout)
