"""Log-probs of chosen tokens under a linear head: the [positions, vocabulary] logits exist a chunk at a time.

The chunk is computed again in the backward: four matmuls of the head's size instead of three. Left out on purpose are
liger-kernel's and torch's own fused losses: neither returns the entropy of the same pass, and torch's
`linear_cross_entropy` (2.13) is the same algorithm; `scripts/bench.py logp` runs it beside this one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = {"cpu": 2**25, "cuda": 2**28}
"""Logits held at once (positions times vocabulary) by device: 128 MiB and 1 GiB in float32."""


def linear_logp(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk: int | None = None,
    operands: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax((hidden @ weight.T + bias) / temperature)[targets]: [M], and the entropy in nats [M] or None.

    `hidden` [M, H], `weight` [V, H], `bias` [V], `targets` [M]. At most `chunk` logits (and never fewer than a row) are
    held at once; they are computed again in the backward. `operands`: dtype of the matmuls' operands on CUDA, whose
    products are accumulated and kept in float32 whatever it is.
    """
    chunk = chunk or CHUNK.get(weight.device.type, CHUNK["cuda"])
    rows = max(1, chunk // weight.shape[0])
    return _LinearLogp.apply(hidden, weight, bias, targets, float(temperature), entropy, rows, operands)  # type: ignore[return-value]


class _LinearLogp(torch.autograd.Function):
    """d logp / d logits = (onehot - softmax) / temperature, chunk by chunk."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, temperature, entropy, rows, operands):
        wide = torch.promote_types(weight.dtype, torch.float32)
        logp = torch.empty(len(hidden), dtype=wide, device=hidden.device)
        log_z = torch.empty_like(logp)
        found = torch.empty_like(logp) if entropy else None
        with torch.autocast(hidden.device.type, enabled=False):
            head = _operand(weight, wide, operands)
            for start in range(0, len(hidden), rows):
                at = slice(start, start + rows)
                logits = _logits(_operand(hidden[at], wide, operands), head, bias, temperature, wide)
                chosen = logits.gather(1, targets[at, None])[:, 0]
                log_z[at] = _log_sum_exp(logits, None if found is None else found[at])
                logp[at] = chosen - log_z[at]
                del logits
        ctx.save_for_backward(hidden, weight, bias, targets, log_z)
        ctx.settings = temperature, rows, operands, wide
        if found is not None:
            ctx.mark_non_differentiable(found)
        return logp, found

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _):
        hidden, weight, bias, targets, log_z = ctx.saved_tensors
        temperature, rows, operands, wide = ctx.settings
        d_hidden = torch.empty_like(hidden, dtype=wide) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias, dtype=wide) if ctx.needs_input_grad[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            head = _operand(weight, wide, operands)
            for start in range(0, len(hidden), rows):
                at = slice(start, start + rows)
                h = _operand(hidden[at], wide, operands)
                g = grad[at, None] / temperature
                d = _logits(h, head, bias, temperature, wide).sub_(log_z[at, None]).exp_().mul_(-g)
                d.scatter_add_(1, targets[at, None], g)
                if d_bias is not None:
                    d_bias += d.sum(0)
                d = _operand(d, wide, operands)
                if d_hidden is not None:
                    d_hidden[at] = _product(d, head, wide)
                if d_weight is not None:
                    _add_product(d_weight, d.t(), h)
                del d
        casts = [
            None if d is None else d.to(x.dtype) for d, x in ((d_hidden, hidden), (d_weight, weight), (d_bias, bias))
        ]
        return *casts, None, None, None, None, None


def _operand(x: Tensor, wide: torch.dtype, operands: torch.dtype | None) -> Tensor:
    return x.to(wide if operands is None else operands)


def _product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """a @ b in `wide`, accumulated in `wide` even for bfloat16 operands."""
    return torch.mm(a, b) if a.dtype == wide else torch.mm(a, b, out_dtype=wide)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += torch.mm(a, b, out_dtype=total.dtype)


def _logits(h: Tensor, head: Tensor, bias: Tensor | None, temperature: float, wide: torch.dtype) -> Tensor:
    logits = _product(h, head.t(), wide)
    if bias is not None:
        logits += bias
    return logits if temperature == 1.0 else logits.div_(temperature)


def _log_sum_exp(logits: Tensor, entropy: Tensor | None) -> Tensor:
    """log Z = log sum exp of each row, using up `logits`; `entropy`, if given, receives -sum p log p.

    With e = exp(logit - top) and Z = sum e, the entropy is log Z - sum e log e / Z.
    """
    top = logits.amax(1)
    e = logits.sub_(top[:, None]).exp_()
    total = e.sum(1)
    if entropy is not None:
        torch.sum(torch.special.entr(e, out=e), 1, out=entropy)
        entropy.div_(total).add_(total.log())
    return total.log_().add_(top)
