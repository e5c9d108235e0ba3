"""Rewards of whole groups: verifiers run in threads, failures of the verifier are counted, never scored."""

from __future__ import annotations

import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor

from gspo.types import Group, Prompt, Reward, RewardFn, Rollout


class VerifierFailures(RuntimeError):
    """More verifier failures in a batch than a run may shrug off."""


def workers_of(reward: RewardFn) -> int:
    """The largest `workers` bound to a reward function or to one inside it; the number of cores without one."""
    return max(_workers(reward, "reward").values(), default=os.cpu_count() or 1)


def check_workers(reward: RewardFn, where: str) -> None:
    """Raise ValueError for fewer than one of the `workers` bound to `reward`, the function at `where`, or inside it."""
    for key, number in _workers(reward, where).items():
        if number < 1:
            raise ValueError(f"{key}={number}: too small (accepted: 1 or more)")


def _workers(value: object, where: str) -> dict[str, int]:
    """Every bound `workers` by its dotted key."""
    inside = value.keywords if isinstance(value, functools.partial) else value if isinstance(value, dict) else {}
    own = {f"{where}.workers": inside["workers"]} if isinstance(inside.get("workers"), int) else {}
    return own or {k: n for name, inner in inside.items() for k, n in _workers(inner, f"{where}.{name}").items()}


def failed(reason: str) -> Reward:
    """The reward of a response that no verifier could judge."""
    nan = float("nan")
    return Reward(nan, {"correct": nan}, "verifier failed", path="verifier failed", reason=reason)


def _one(reward: RewardFn, prompt: Prompt, rollout: Rollout) -> Reward:
    try:
        return reward(prompt, rollout)
    except Exception as error:  # whatever a verifier raises is its own failure, counted below
        return failed(f"{type(error).__name__}: {error}"[:300])


def score(groups: list[Group], reward: RewardFn, *, max_failed: float = 0.01) -> list[Group]:
    """Fill `rewards` of every group, in the order of its rollouts; the same groups come back.

    Raises VerifierFailures when more than `max_failed` of the batch's responses have no verdict.
    """
    # one of each group at a time: copies of a response, judged once, then rarely wait for each other
    places = sorted((g, i) for i, group in enumerate(groups) for g in range(len(group.rollouts)))
    jobs = [(groups[i].prompt, groups[i].rollouts[g]) for g, i in places]
    if not jobs:
        return groups
    size = min(len(jobs), 2 * workers_of(reward))
    with ThreadPoolExecutor(size, thread_name_prefix="verifier") as threads:
        rewards = list(threads.map(lambda job: _one(reward, *job), jobs))
    pairs = zip(jobs, rewards, strict=True)
    failures = [(p.id, r.reason) for (p, _), r in pairs if r.verdict == "verifier failed" or math.isnan(r.value)]
    if len(failures) > max_failed * len(jobs):
        first = "; ".join(f"{name}: {reason}" for name, reason in failures[:3])
        raise VerifierFailures(
            f"{len(failures)} of {len(jobs)} responses could not be judged (at most {max_failed:.0%} may): {first}"
        )
    for group in groups:
        group.rewards = []
    for (_, i), judged in zip(places, rewards, strict=True):
        groups[i].rewards.append(judged)
    return groups
