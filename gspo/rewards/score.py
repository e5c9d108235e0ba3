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
    return max(_workers(reward), default=os.cpu_count() or 1)


def _workers(value: object) -> list[int]:
    if isinstance(value, functools.partial):
        own = value.keywords.get("workers")
        return [own] if own else [n for inner in value.keywords.values() for n in _workers(inner)]
    return [n for inner in value.values() for n in _workers(inner)] if isinstance(value, dict) else []


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
