"""Groups of responses as tensors, and their cuts: mini-batches (one optimiser step) and micro-batches (one forward).

A cut moves rows, trims padding and nothing else. The counts that normalise an objective are fixed when the mini-batch
is made and travel with every micro-batch of it, so no cut can change a gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gspo.types import Batch, Group


def reward_matrix(groups: Sequence[Group]) -> Tensor:
    """Rewards `[P, G]` float64; NaN where the verifier failed."""
    return torch.tensor([[r.value for r in group.rewards] for group in groups], dtype=torch.float64)


def make_batch(groups: Sequence[Group], adv: Tensor, *, mask_truncated: bool = False) -> Batch:
    """The step's `N = P * G` sequences, in the order of the groups.

    `adv` is `[P, G]`. With `mask_truncated`, a response cut at max_tokens keeps its row and trains no token.
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
        adv=adv.reshape(n).float(),
        group=torch.from_numpy(groups_of),
        row=torch.arange(n),
        num_sequences=n,
        num_tokens=int(mask.sum()),
    )


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


def micro_batches(batch: Batch, max_tokens: int) -> list[Batch]:
    """Rows sorted by length, cut so that rows * longest row <= `max_tokens` (one row at least), padding trimmed."""
    order = torch.argsort(batch.lengths, stable=True)
    lengths = batch.lengths[order].tolist()
    parts, start = [], 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or (stop + 1 - start) * lengths[stop] > max_tokens:
            parts.append(select(batch, order[start:stop]))
            start = stop
    return parts


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
