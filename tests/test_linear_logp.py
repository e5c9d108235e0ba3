"""The chunked head: handed values, finite differences, extremes, and float32 results from bfloat16 operands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gspo.linear_logp import linear_logp


def test_temperature_and_target_have_the_handed_value():
    """Case B09: logits [2, 1, 0], token 0, T = 0.5 is -0.142932; raw log-probs would say -0.407606."""
    identity, logits = torch.eye(3), torch.tensor([[2.0, 1, 0]])
    logp, entropy = linear_logp(logits, identity, None, torch.tensor([0]), temperature=0.5, entropy=True)
    assert logp.item() == pytest.approx(-0.142932, abs=1e-6)
    p = torch.tensor([4.0, 2, 0], dtype=torch.float64).softmax(-1)
    assert entropy is not None
    assert entropy.item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-6)
    raw, none = linear_logp(logits, identity, None, torch.tensor([0]))
    assert raw.item() == pytest.approx(-0.407606, abs=1e-6)
    assert none is None


def test_gradient_of_the_head_by_finite_differences():
    """torch's gradcheck on hidden, weight and bias, three chunks: catches a wrong scale of any of the three."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 4), (7, 4), (7,))
    )
    targets = torch.tensor([6, 0, 3, 3, 1])

    def run(*inputs: Tensor) -> Tensor:
        return linear_logp(*inputs, targets, temperature=0.6, chunk=14)[0]

    assert torch.autograd.gradcheck(run, (hidden, weight, bias))


def test_extreme_logits_keep_their_log_probs():
    """Logits of +-1e4 give 0 and -2e4, entropy 0, and a NaN stays in its row: catches overflow and a hidden NaN."""
    weight, targets = torch.eye(2), torch.tensor([0, 1, 0])
    hidden = torch.tensor([[1e4, -1e4], [1e4, -1e4], [float("nan"), 0]])
    logp, entropy = linear_logp(hidden, weight, None, targets, entropy=True)
    assert entropy is not None
    assert logp[:2].tolist() == [0.0, -2e4]
    assert entropy[:2].tolist() == [0.0, 0.0]
    assert logp[2].isnan()
    assert entropy[2].isnan()


def test_bfloat16_operands_keep_float32_results():
    """A bfloat16 head (FSDP2's compute copy) is accumulated and normalised in float32; gradients keep its dtype."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 32, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(64, 32, generator=generator).bfloat16().requires_grad_()
    targets = torch.arange(6)
    logp, _ = linear_logp(hidden, weight, None, targets, chunk=128)
    logp.sum().backward()
    wide, wide_weight = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    exact = (wide @ wide_weight.T).log_softmax(-1)[range(6), targets]
    exact.sum().backward()
    torch.testing.assert_close(logp.double(), exact, atol=1e-5, rtol=0)
    for narrow, reference in ((hidden, wide), (weight, wide_weight)):
        assert narrow.grad is not None
        assert narrow.grad.dtype == torch.bfloat16
        torch.testing.assert_close(narrow.grad.double(), reference.grad, atol=1e-6, rtol=2**-8)
