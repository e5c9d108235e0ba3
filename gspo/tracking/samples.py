"""The sample table: a few responses of a step, as rows that a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspo.types import Group


def sample_rows(groups: Sequence[Group], count: int) -> list[dict[str, Any]]:
    """`count` responses of a step, evenly spaced over its groups in order, so that the choice favours no outcome.

    `length` is in trained tokens. `reward` is NaN where the verifier failed.
    """
    every = [(group, g) for group in groups for g in range(len(group.rollouts))]
    count = min(count, len(every))
    chosen = [every[(2 * i + 1) * len(every) // (2 * count)] for i in range(count)]
    rows = []
    for group, g in chosen:
        rollout, reward = group.rollouts[g], group.rewards[g]
        row = {"prompt_id": group.prompt.id, "sample": g, "prompt": group.prompt.text, "response": rollout.text}
        row |= {"reward": reward.value, "parts": reward.parts, "verdict": reward.verdict, "path": reward.path}
        row |= {"reason": reward.reason, "finish": rollout.finish, "length": int(rollout.trained.sum())}
        rows.append(row)
    return rows
