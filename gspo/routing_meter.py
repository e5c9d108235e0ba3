"""What routing does over a run: changes of expert choices, load, and the auxiliary loss that evens the load out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gspo.routing import PAD, real_inputs, record, router_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from gspo.types import Batch


class Change(NamedTuple):
    """Shares of (token, layer, expert) assignments that differ, with their counts."""

    overall: float
    """moved / assignments."""
    by_layer: list[float]
    moved: int
    """Assignments after the update that were not made before it."""
    assignments: int
    """tokens * layers * k."""


@torch.no_grad()
def expert_choices(model: PreTrainedModel, tokens: Tensor, lengths: Tensor, *, precision: str = "float32") -> Tensor:
    """The experts of every real input token: [layers, S, k] int16, S = sum(lengths - 1), rows one after the other.

    `tokens` [B, T + 1] padded on the right, `lengths` [B]. `precision` is the trainer's, see `policy.token_logp`.
    Raises ValueError for a dense model.
    """
    device = tokens.device.type
    autocast = torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")
    with record(model, tokens, lengths) as routes, autocast:
        model(input_ids=tokens[:, :-1], use_cache=False, logits_to_keep=1)
    return routes.experts[real_inputs(tokens, lengths)].transpose(0, 1)


def expert_change(before: Tensor, after: Tensor) -> Change:
    """Share of assignments [layers, S, k] that differ between two policies on the same tokens.

    A token's k experts in a layer are compared as sets: 1 - |before & after| / k, averaged. Raises ValueError when the
    shapes differ.
    """
    if before.shape != after.shape or before.ndim != 3:
        raise ValueError(
            f"choices of shape {tuple(before.shape)} and {tuple(after.shape)}: both must be [layers, S, k]"
        )
    new = (after[..., :, None] != before[..., None, :]).all(-1)
    per_layer = new[0].numel()
    moved = new.sum((1, 2)).tolist()
    total = len(new) * per_layer
    return Change(sum(moved) / max(total, 1), [m / max(per_layer, 1) for m in moved], sum(moved), total)


def expert_load(choices: Tensor, num_experts: int) -> Tensor:
    """Assignments of each expert: [layers, num_experts] int64, from choices [layers, S, k]; PAD does not count."""
    one_more = choices.flatten(1).to(torch.int64) - PAD
    counts = one_more.new_zeros(len(choices), num_experts + 1)
    return counts.scatter_add_(1, one_more, torch.ones_like(one_more))[:, 1:]


def load_imbalance(load: Tensor) -> Tensor:
    """Load of the busiest expert over the mean load, by layer: [layers] float64 in [1, num_experts]; 1 is balance."""
    load = load.double()
    return load.amax(-1) / load.mean(-1)


class Balance:
    """The load-balance loss of a mini-batch in micro-batches, each with the shares of the whole."""

    def __init__(self, model: PreTrainedModel, load: Tensor, num_tokens: int):
        """`load` [layers, num_experts]: assignments in the whole mini-batch; `num_tokens`: its real inputs."""
        self.model, self.num_tokens = model, num_tokens
        self.share = load.double() / load.sum(-1, keepdim=True)

    def watch(self) -> AbstractContextManager[list[Tensor]]:
        """The routers' logits of the forward inside the block."""
        return router_logits(self.model)

    def loss(self, logits: Sequence[Tensor], micro: Batch) -> Tensor:
        """The micro-batch's part of the loss, from its routers' `logits`, padded or packed."""
        real = real_inputs(micro.tokens, micro.lengths).flatten()
        real = real if len(logits[0]) == len(real) else real[real]
        return load_balance_loss(logits, real, 1, share=self.share, num_tokens=self.num_tokens)


def load_balance_loss(
    router_logits: Sequence[Tensor],
    mask: Tensor,
    k: int,
    *,
    share: Tensor | None = None,
    num_tokens: int | None = None,
) -> Tensor:
    """E * sum_e f_e P_e, averaged over layers: 1 in perfect balance, up to E / k when k experts take everything.

    f_e is expert e's share of the assignments, P_e its mean router probability over the tokens of `mask` (any shape, as
    many entries as rows in each of `router_logits` [tokens, E]). The gradient flows through P alone. By default f and P
    are those of these tokens, and depend on the cut into micro-batches; with `share` [layers, E] (f of the whole
    mini-batch) and `num_tokens` (its token count) the losses of its micro-batches add up to that of the mini-batch.
    Raises ValueError when mask and logits disagree. Source: Switch Transformer (arXiv 2101.03961) Eq. 4, divided by k;
    transformers' own sums over layers first and is k in balance.
    """
    real = mask.reshape(-1).bool()
    if any(len(logits) != len(real) for logits in router_logits):
        raise ValueError(f"mask of {len(real)} tokens: the routers saw {[len(logits) for logits in router_logits]}")
    losses = []
    for layer, logits in enumerate(router_logits):
        probs = logits[real].softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if share is None:
            chosen = probs.detach().topk(k, -1).indices.flatten()
            f = chosen.bincount(minlength=logits.shape[-1]).to(probs) / max(len(chosen), 1)
        else:
            f = share[layer].to(probs)
        losses.append(logits.shape[-1] * (f * probs.sum(0)).sum() / max(num_tokens or len(probs), 1))
    return torch.stack(losses).mean()
