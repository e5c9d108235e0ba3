"""The format reward: a balanced, non-empty box outside thinking and code, whatever it holds."""

from __future__ import annotations

from gspo.rewards.answers import find_answer
from gspo.types import Prompt, Reward, Rollout


def format_reward(prompt: Prompt, rollout: Rollout) -> Reward:
    """1 for a finished response with a box, else 0; a box in the prompt never counts."""
    opened = prompt.text.rstrip().endswith("<think>")
    found = find_answer(rollout.text, truncated=rollout.finish != "stop", opened=opened)
    value = float(found.text is not None)
    return Reward(value, {"format": value}, "ok" if value else "wrong", path=found.how, reason=found.why)
