"""Groups of responses as tensors, and their cuts: mini-batches (one optimiser step) and micro-batches (one forward).

A cut moves rows, trims padding and nothing else. The counts that normalise an objective are fixed when the mini-batch
is made and travel with every micro-batch of it, so no cut can change a gradient.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo.types import Batch, Group, Reward, Rollout

REAL = 0.95
"""Share of real tokens among those a mini-batch's forwards compute, padding included, where rows are not packed."""


def reward_tensor(groups: Sequence[Group]) -> Tensor:
    """Rewards `[P, G]` float64, NaN where the verifier failed; `[P, G, S]` when they come by step, NaN behind the last.

    A response without steps among others with them is one step.
    """
    each = [[[r.value] if r.steps is None else [v for _, v in r.steps] for r in group.rewards] for group in groups]
    if all(r.steps is None for group in groups for r in group.rewards):
        return torch.tensor(each, dtype=torch.float64)[..., 0]
    most = max(len(steps) for group in each for steps in group)
    nan = float("nan")
    return torch.tensor([[steps + [nan] * (most - len(steps)) for steps in group] for group in each]).double()


def step_ends(rollout: Rollout, reward: Reward, tokenizer: Any) -> list[int]:
    """The token of the response at which each step of its reward ends: the first that completes the step's text.

    A step that ends with the text ends with the response, EOS included. Tokens may be several characters, or a part of
    one: text is compared as the tokenizer decodes the tokens before.
    """
    ids, last = rollout.token_ids.tolist(), len(rollout.token_ids) - 1

    def holds(end: int, n: int) -> bool:
        return tokenizer.decode(ids[:n], skip_special_tokens=True).startswith(rollout.text[:end])

    ends = []
    for end, _ in reward.steps or [(len(rollout.text), 0.0)]:
        first = bisect.bisect_left(range(last), True, key=lambda n, end=end: holds(end, n + 1))
        ends.append(last if end >= len(rollout.text) else first)
    return ends


def make_batch(groups: Sequence[Group], adv: Tensor, *, tokenizer: Any = None, mask_truncated: bool = False) -> Batch:
    """The step's `N = P * G` sequences, in the order of the groups.

    `adv` is `[P, G]`, or `[P, G, S]` by step, which the tokens of a step get (the batch's `adv` is `[N, T]` then, 0
    behind the last step); `tokenizer` says where steps end. With `mask_truncated`, a response cut at max_tokens keeps
    its row and trains no token.
    """
    rows = [(prompt, rollout) for prompt in groups for rollout in prompt.rollouts]
    lengths = [len(group.prompt.token_ids) + len(rollout.token_ids) for group, rollout in rows]
    n, width = len(rows), max(lengths)
    tokens = np.zeros((n, width), np.int64)
    mask = np.zeros((n, width - 1), bool)
    logp = np.zeros((n, width - 1), np.float32)
    for i, (group, rollout) in enumerate(rows):
        start, stop = len(group.prompt.token_ids), lengths[i]
        tokens[i, :start] = group.prompt.token_ids
        tokens[i, start:stop] = rollout.token_ids
        logp[i, start - 1 : stop - 1] = rollout.logp
        if not (mask_truncated and rollout.finish == "length"):
            mask[i, start - 1 : stop - 1] = rollout.trained
    groups_of = np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups])
    return Batch(
        tokens=torch.from_numpy(tokens),
        lengths=torch.tensor(lengths),
        mask=torch.from_numpy(mask),
        sampler_logp=torch.from_numpy(np.where(mask, logp, np.float32(0))),
        adv=adv.reshape(n).float() if adv.ndim == 2 else token_adv(groups, adv, mask, tokenizer),
        group=torch.from_numpy(groups_of),
        row=torch.arange(n),
        num_sequences=n,
        num_tokens=int(mask.sum()),
    )


def token_adv(groups: Sequence[Group], adv: Tensor, mask: np.ndarray, tokenizer: Any) -> Tensor:
    """Advantages of steps `[P, G, S]` as those of tokens `[N, T]` float32: a token's step is the first not yet over."""
    out = np.zeros(mask.shape, np.float32)
    rows = [(group, k) for group in groups for k in range(len(group.rollouts))]
    for i, (group, k) in enumerate(rows):
        rollout, reward = group.rollouts[k], group.rewards[k]
        start, length = len(group.prompt.token_ids) - 1, len(rollout.token_ids)
        ends = step_ends(rollout, reward, tokenizer)
        by_step = np.append(adv.flatten(0, 1)[i, : len(ends)].numpy(), 0.0)
        out[i, start : start + length] = by_step[np.searchsorted(ends, np.arange(length))]
    return torch.from_numpy(np.where(mask, out, np.float32(0)))


def split(batch: Batch, minibatches: int, *, seed: int) -> list[Batch]:
    """Mini-batches of whole groups in seeded order, each with its own global counts.

    Raises ValueError when the groups cannot be dealt out evenly.
    """
    num_groups = int(batch.group.max()) + 1
    if num_groups % minibatches:
        raise ValueError(f"train.minibatches={minibatches}: {num_groups} prompts a step cannot be dealt out evenly")
    order = torch.randperm(num_groups, generator=torch.Generator().manual_seed(seed))
    parts = []
    for chosen in order.view(minibatches, -1):
        part = select(batch, torch.isin(batch.group, chosen).nonzero()[:, 0])
        parts.append(dataclasses.replace(part, num_sequences=len(part.tokens), num_tokens=int(part.mask.sum())))
    return parts


def micro_batches(batch: Batch, max_tokens: int, *, packed: bool = False, ranks: int = 1) -> list[Batch]:
    """Rows sorted by length, cut so that each part's cost <= `max_tokens` (one row at least), padding trimmed.

    The cost is rows * longest row, or for rows that are `packed` end to end the sum of their lengths. There are as few
    parts as let a share REAL of all computed tokens be real, in a multiple of `ranks` where there are rows enough, and
    their largest cost is as small as that number allows: ranks that share the parts end together.
    """
    order = torch.argsort(batch.lengths, stable=True)
    lengths = batch.lengths[order].tolist()
    parts = -(-len(_cuts(lengths, max_tokens, packed)) // ranks) * ranks
    cuts = _even(lengths, parts, max_tokens, packed)
    while not packed and parts < len(lengths) and sum(lengths) < REAL * sum((b - a) * lengths[b - 1] for a, b in cuts):
        parts += ranks
        cuts = _even(lengths, parts, max_tokens, packed)
    return [select(batch, order[start:stop]) for start, stop in cuts]


def _even(lengths: list[int], parts: int, max_tokens: int, packed: bool) -> list[tuple[int, int]]:
    """At most `parts` parts of ascending `lengths` whose largest cost is as small as it can be, by bisection."""
    low, budget = 0, max_tokens  # the smallest budget that still needs no more parts lies in (low, budget]
    while budget - low > 1:
        middle = (low + budget) // 2
        low, budget = (low, middle) if len(_cuts(lengths, middle, packed)) <= parts else (middle, budget)
    return _cuts(lengths, budget, packed)


def _cuts(lengths: list[int], budget: int, packed: bool) -> list[tuple[int, int]]:
    """Where parts of ascending `lengths` begin and end, each filled up to `budget`; one row at least."""
    cuts, start, total = [], 0, 0
    for stop, longest in enumerate(lengths):
        total = total + longest if packed else (stop + 1 - start) * longest
        if stop > start and total > budget:
            cuts.append((start, stop))
            start, total = stop, longest
    return [*cuts, (start, len(lengths))]


def select(batch: Batch, rows: Tensor) -> Batch:
    """The given rows, padded to the longest of them; the counts of the optimiser step stay."""
    width = int(batch.lengths[rows].max())

    def cut(name: str) -> Tensor | None:
        value = getattr(batch, name)
        if value is None:
            return None
        wide = {"tokens": width}.get(name, width - 1)
        return value[rows] if value.ndim == 1 else value[rows, :wide]

    tensors = {f.name: cut(f.name) for f in dataclasses.fields(batch) if f.name not in ("num_sequences", "num_tokens")}
    return dataclasses.replace(batch, **tensors)


def to(batch: Batch, device: torch.device | str) -> Batch:
    """The batch on `device`."""
    values = ((f.name, getattr(batch, f.name)) for f in dataclasses.fields(batch))
    moved = {name: v.to(device, non_blocking=True) for name, v in values if isinstance(v, Tensor)}
    return dataclasses.replace(batch, **moved)
