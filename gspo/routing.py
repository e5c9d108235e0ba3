"""Mixture-of-experts routing: which experts the tokens chose, how that changes, and the same choices once more.

A *route* is the k experts that one layer's router chose for one input token. Inputs are tokens[:, :-1], so a sequence
of n tokens has n - 1 routes a layer (prompt + response - 1). Records are [B, T, layers, k] int16 and hold PAD where a
row has no input; the padded and the packed forward of `policy.token_logp` both read and write them.

Everything hangs on forward hooks of transformers' router modules, whose forward returns (logits [tokens, experts],
weights [tokens, k], indices [tokens, k]); that holds from 5.16 to 5.19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAD = -1
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which configurations say how many experts a layer has."""

Hook = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor] | None]


def is_moe(model: PreTrainedModel) -> bool:
    """Whether the model's configuration speaks of experts."""
    return any((getattr(model.config, name, None) or 0) > 1 for name in EXPERT_COUNTS)


def routers(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """(name, module) of every layer's router, from the first layer to the last.

    Raises ValueError for a dense model, and for a mixture of experts whose routers are not found.
    """
    found: list[tuple[str, nn.Module]] = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Router") and isinstance(getattr(module, "top_k", None), int)
    ]
    if found:
        return found
    kind = type(model).__name__
    if is_moe(model):
        raise ValueError(f"{kind}: no module named ...Router with top_k found; its routing cannot be seen or replayed")
    raise ValueError(f"{kind} is a dense model: it has no experts to record, compare or replay")


def in_backward() -> bool:
    """Whether the autograd engine is running on this thread: true while activation checkpointing computes again."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def _hooked(model: PreTrainedModel, hook: Hook) -> Iterator[list[str]]:
    """Call `hook(layer, logits, weights, indices)` at every router's forward; yields the routers' names."""
    found = routers(model)

    def attach(layer: int, name: str, module: nn.Module) -> Any:
        def forward_hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            if not (isinstance(output, tuple) and len(output) == 3 and not output[2].is_floating_point()):
                raise ValueError(
                    f"{name}: a router must return (logits, weights, indices), got {type(output).__name__}"
                )
            return hook(layer, *output)

        return module.register_forward_hook(forward_hook)

    with ExitStack() as stack:
        for layer, (name, module) in enumerate(found):
            stack.callback(attach(layer, name, module).remove)
        yield [name for name, _ in found]


def real_inputs(tokens: Tensor, lengths: Tensor) -> Tensor:
    """[B, T] bool: where the inputs tokens[:, :-1] stand; row i has lengths[i] - 1 of them."""
    return torch.arange(tokens.shape[1] - 1, device=tokens.device) < lengths[:, None] - 1


class Record:
    """What `record` fills: one forward's routes."""

    experts: Tensor
    """[B, T, layers, k] int16, PAD where a row has no input."""


@contextmanager
def record(model: PreTrainedModel, tokens: Tensor, lengths: Tensor) -> Iterator[Record]:
    """Record the routes of the one forward of (`tokens` [B, T + 1], `lengths` [B]) inside the block, padded or packed.

    `record.experts` is there when the block ends. Raises RuntimeError when a layer ran not once but never or again.
    """
    real = real_inputs(tokens, lengths)
    seen: dict[int, list[Tensor]] = {}

    def hook(layer: int, logits: Tensor, weights: Tensor, indices: Tensor) -> None:
        if not in_backward():
            seen.setdefault(layer, []).append(indices.to(torch.int16))

    result = Record()
    with _hooked(model, hook) as names:
        yield result
    _check_once(names, [len(seen.get(layer, ())) for layer in range(len(names))], "recorded")
    result.experts = torch.stack([_padded(seen[layer][0], real, names[layer]) for layer in range(len(names))], 2)


def _check_once(names: Sequence[str], counts: Sequence[int], what: str) -> None:
    wrong = [f"{name} {count} times" for name, count in zip(names, counts, strict=True) if count != 1]
    if wrong:
        raise RuntimeError(f"routes are {what} once a forward in each of {len(names)} layers, but {', '.join(wrong)}")


def _padded(routes: Tensor, real: Tensor, name: str) -> Tensor:
    """[B, T, k] with PAD outside `real`, from the router's [B * T, k] or, packed, [S, k]."""
    _check_rows(len(routes), real.numel(), int(real.sum()), name)
    if len(routes) == real.numel():
        return routes.view(*real.shape, -1).masked_fill(~real[..., None], PAD)
    return routes.new_full((*real.shape, routes.shape[-1]), PAD).masked_scatter(real[..., None], routes)


def _check_rows(rows: int, padded: int, packed: int, name: str) -> None:
    if rows not in (padded, packed):
        raise ValueError(f"{name} saw {rows} tokens: expected {padded} (padded) or {packed} (packed)")


@contextmanager
def router_logits(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The routers' logits of the forward inside the block, with their graph: one [tokens, experts] a layer."""
    logits_of: list[Tensor] = []

    def hook(layer: int, logits: Tensor, weights: Tensor, indices: Tensor) -> None:
        if not in_backward():
            logits_of.append(logits)

    with _hooked(model, hook):
        yield logits_of


@contextmanager
def replay(model: PreTrainedModel, experts: Tensor, lengths: Tensor) -> Iterator[None]:
    """In the one forward inside the block every real token takes the recorded experts, weighted by the live router.

    `experts` [B, T, layers, k] as from `record`, of the same rows in the same order; `lengths` [B]. The weights are the
    softmax of the current logits at the recorded experts, renormalised where the router does so: differentiable.
    Padding keeps its live routes. Under activation checkpointing the block must contain the backward as well; what is
    computed again there uses the same record and does not count. Raises ValueError for a record of another length,
    layer count, k or expert count, and RuntimeError when a layer's record is not consumed exactly once.
    """
    layers = routers(model)
    _check_record(experts, lengths, layers)
    real = experts[:, :, 0, 0] != PAD
    padded, packed = real.numel(), int(real.sum())
    used, again = [0] * len(layers), [0] * len(layers)
    off: list[Tensor] = []
    awaited = False

    def hook(layer: int, logits: Tensor, weights: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal awaited
        (again if in_backward() else used)[layer] += 1
        name, router = layers[layer]
        _check_rows(len(indices), padded, packed, name)
        if used[layer] > 1:
            raise RuntimeError(f"{name}: the record of its {packed} routes is consumed {used[layer]} times")
        awaited |= torch.is_grad_enabled() and getattr(model, "is_gradient_checkpointing", False)
        normalised = getattr(router, "norm_topk_prob", True)
        with torch.no_grad():
            off.append((route_weights(logits, indices, normalised) - weights).abs().nan_to_num().amax())
        chosen = experts[:, :, layer].flatten(0, 1) if len(indices) == padded else experts[:, :, layer][real]
        chosen = torch.where(chosen == PAD, indices, chosen.to(indices.dtype))
        return logits, route_weights(logits, chosen, normalised).to(weights.dtype), chosen

    with _hooked(model, hook) as names:
        yield
    _check_once(names, used, "consumed")
    worst = torch.stack(off).amax().item()
    if worst > 0:
        raise ValueError(
            f"{type(model).__name__} does not weigh experts by their softmax (off by {worst:.3g}): refused"
        )
    if awaited and not all(again):
        raise RuntimeError(
            "replay ended before the backward: with activation checkpointing it must contain it, or the blocks that "
            "are computed again would choose other experts"
        )


def route_weights(logits: Tensor, experts: Tensor, normalised: bool) -> Tensor:
    """softmax(logits)[experts], divided by their sum if `normalised`: [tokens, k], differentiable in `logits`."""
    weights = logits.softmax(-1, dtype=torch.float32).gather(-1, experts)
    return (weights / weights.sum(-1, keepdim=True) if normalised else weights).to(logits.dtype)


def _check_record(experts: Tensor, lengths: Tensor, layers: Sequence[tuple[str, nn.Module]]) -> None:
    if experts.ndim != 4 or experts.shape[2] != len(layers):
        raise ValueError(f"record of shape {tuple(experts.shape)}: expected [B, T, {len(layers)} layers, k]")
    k, num_experts = layers[0][1].top_k, getattr(layers[0][1], "num_experts", None)
    if experts.shape[3] != k:
        raise ValueError(f"record of {experts.shape[3]} experts a token: the model's routers choose {k}")
    if num_experts is not None and int(experts.max()) >= num_experts:
        raise ValueError(f"record names expert {int(experts.max())}: the model has experts 0 to {num_experts - 1}")
    places = torch.arange(experts.shape[1], device=experts.device) < lengths[:, None] - 1
    held = experts != PAD
    if not torch.equal(held, places[:, :, None, None].expand_as(held)):
        have, want = held[:, :, 0, 0].sum(1).tolist(), (lengths - 1).tolist()
        raise ValueError(f"record holds {have} routes a row: prompt + response - 1 is {want}")
