"""The reward of `arithmetic` by step: each running total that a response writes, then its answer, right or wrong."""

from __future__ import annotations

import re

from gspo.rewards.math import math_reward
from gspo.types import Prompt, Reward, Rollout

KINDS = ("math",)
"""Kinds of prompts that are judged here."""
TOTAL = re.compile(r"=\s*(-?\d+)")
BOX = "\\boxed"


def steps_reward(prompt: Prompt, rollout: Rollout, *, workers: int = 2) -> Reward:
    """Steps of 1 (right) or 0: the n-th `=total` before the box against the n-th running total, then the answer.

    A step ends behind its total; the last one, the answer, ends with the response, box or not. Totals beyond those of
    the problem are wrong, totals left out are no steps. `value` is the mean of the steps; `correct` and `format` are
    those of `math_reward`. Raises ValueError for a prompt without running totals (`meta["totals"]`).
    """
    totals = prompt.meta.get("totals")
    if not isinstance(totals, list):
        raise ValueError(
            f"reward by step: prompt {prompt.id} of {prompt.source} has no running totals; data=arithmetic"
        )
    judged = math_reward(prompt, rollout, workers=workers)
    if judged.verdict == "verifier failed":
        return judged
    written = TOTAL.finditer(rollout.text.partition(BOX)[0])
    right = [str(total) for total in totals]
    steps = [(found.end(), float(right[n : n + 1] == [found.group(1)])) for n, found in enumerate(written)]
    steps.append((len(rollout.text), judged.parts["correct"]))
    judged.value = sum(value for _, value in steps) / len(steps)
    judged.steps = steps
    return judged
