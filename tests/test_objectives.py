"""The paper's three objectives: hand-worked numbers, and every gradient against its closed form in float64."""

import math

import pytest
import torch

from gspo.algorithms.objectives import grpo, gspo, gspo_token
from gspo.algorithms.ratios import GUARD, sequence_ratio, sequence_token_ratio, token_ratio

ALL = [grpo, gspo, gspo_token]
GRPO_CLIP = {"clip_low": 0.2, "clip_high": 0.27}
GSPO_CLIP = {"clip_low": 3e-4, "clip_high": 4e-4}
NO_CLIP = {"clip_low": None, "clip_high": None}


def batch(lengths, *, drift, seed=0, width=None):
    """Random log-probs [B, T] in float64, right-padded; `drift` is the std of log w."""
    g = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    old = -torch.rand(len(lengths), width, generator=g, dtype=torch.float64) * 3
    logp = (old + drift * torch.randn(old.shape, generator=g, dtype=torch.float64)).requires_grad_()
    adv = torch.randn(len(lengths), generator=g, dtype=torch.float64)
    return logp, old, adv, mask


def gradient(objective, logp, old, adv, mask, **clip):
    """d J / d logp with J = sum(value) / N."""
    terms = objective(logp, old, adv, mask, **clip)
    (grad,) = torch.autograd.grad(terms.value.sum() / len(logp), logp)
    return terms, grad


def binds(ratio, adv, low, high):
    low, high = math.inf if low is None else low, math.inf if high is None else high
    return ((adv > 0) & (ratio > 1 + high)) | ((adv < 0) & (ratio < 1 - low))


def closed_form(objective, logp, old, adv, mask, low, high):
    """Eq. 12, 10 and 17 with the clip: r A / (N |y_i|) where it does not bind, else 0; written without autograd."""
    d = torch.where(mask, logp.detach() - old, 0.0)
    length = mask.sum(-1, keepdim=True).double()
    ratio = d.exp() if objective is grpo else (d.sum(-1, keepdim=True) / length).exp().expand_as(d)
    adv = adv[:, None].expand_as(d) if adv.ndim == 1 else adv
    free = ~binds(ratio, adv, low, high) & mask
    return torch.where(free, ratio * adv / (len(d) * length), 0.0)


@pytest.mark.parametrize("objective", ALL)
@pytest.mark.parametrize("clip", [GRPO_CLIP, GSPO_CLIP, NO_CLIP, {"clip_low": None, "clip_high": 1e-3}])
@pytest.mark.parametrize("drift", [0.3, 1e-3])
def test_gradient_is_the_closed_form(objective, clip, drift):
    """Would catch: no length norm, mean over padded T, max for min, swapped clip sides, a missing stop-gradient."""
    logp, old, adv, mask = batch([5, 1, 9, 3, 7, 2], drift=drift, width=12)
    terms, grad = gradient(objective, logp, old, adv, mask, **clip)
    expected = closed_form(objective, logp, old, adv, mask, clip["clip_low"], clip["clip_high"])
    torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-15)
    if clip is GSPO_CLIP and drift > 0.1:
        assert terms.clipped.any(), "this batch is meant to have responses that the clip binds"


@pytest.mark.parametrize("objective", [grpo, gspo_token])
@pytest.mark.parametrize("clip", [GRPO_CLIP, GSPO_CLIP, NO_CLIP])
def test_gradient_with_token_advantages(objective, clip):
    """A_it [B, T]: Eq. 17 for GSPO-token; would catch an advantage that is averaged over the response."""
    logp, old, _, mask = batch([5, 1, 9, 3], drift=0.1, width=10)
    adv = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, grad = gradient(objective, logp, old, adv, mask, **clip)
    expected = closed_form(objective, logp, old, adv, mask, clip["clip_low"], clip["clip_high"])
    torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-15)


def test_gspo_refuses_token_advantages():
    """One ratio a response has no place for A_it; would catch silent broadcasting."""
    logp, old, _, mask = batch([5, 3], drift=0.1)
    with pytest.raises(ValueError, match="one advantage a response"):
        gspo(logp, old, torch.ones_like(old), mask, **GSPO_CLIP)


@pytest.mark.parametrize("clip", [GSPO_CLIP, GRPO_CLIP, NO_CLIP])
@pytest.mark.parametrize("drift", [0.3, 1e-3])
def test_gspo_token_is_gspo_for_constant_advantages(clip, drift):
    """Section 4.3 of the paper: the same value and the same gradient, clipped or not."""
    logp, old, adv, mask = batch([5, 1, 9, 3, 7, 2], drift=drift, width=12)
    a, grad_a = gradient(gspo, logp, old, adv, mask, **clip)
    b, grad_b = gradient(gspo_token, logp, old, adv, mask, **clip)
    torch.testing.assert_close(a.value, b.value, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_a, grad_b, rtol=1e-12, atol=1e-16)
    assert torch.equal(a.clipped[:, None] & mask, b.clipped)


def test_sequence_mean_and_its_gradient():
    """Two responses worked by hand (s1 = e^0.05, s2 = e^-0.1); would catch the token-weighted mean (+0.415810)."""
    d = torch.tensor([[0.1, 0.0, 9.0, 9.0, 9.0, 9.0], [-0.1] * 6])
    mask = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])
    logp = d.clone().requires_grad_()
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    terms, grad = gradient(gspo, logp, torch.zeros(2, 6), torch.tensor([1.0, -1.0]), mask, **clip)
    assert -terms.value.mean().item() == pytest.approx(-0.073217, abs=1e-6)
    assert (-grad[0, :2]).tolist() == pytest.approx([-0.262818] * 2, abs=1e-6)
    assert (-grad[1]).tolist() == pytest.approx([0.075403] * 6, abs=1e-6)
    terms, grad = gradient(grpo, logp, torch.zeros(2, 6), torch.tensor([1.0, -1.0]), mask, **clip)
    assert -terms.value.mean().item() == pytest.approx(-0.073874, abs=1e-6)
    assert (-grad[0, :2]).tolist() == pytest.approx([-math.exp(0.1) / 4, -0.25], abs=1e-6)


def test_which_tokens_bind():
    """Four ratio/sign pairs: only A > 0 above and A < 0 below bind; would catch a sign-blind or reversed count."""
    w = torch.tensor([[1.5], [1.5], [0.5], [0.5]])
    adv = torch.tensor([1.0, -1.0, 1.0, -1.0])
    terms = grpo(w.log(), torch.zeros(4, 1), adv, torch.ones(4, 1, dtype=torch.bool), clip_low=0.2, clip_high=0.28)
    assert terms.value.tolist() == pytest.approx([1.28, -1.5, 0.5, -0.8])
    assert terms.clipped[:, 0].tolist() == [True, False, False, True]


def test_which_responses_bind():
    """Ten tokens of +-0.0005 each: s = 1.0005 with A > 0 and s = 0.9995 with A < 0 bind at 3e-4/4e-4."""
    d = torch.tensor([5e-4, -5e-4, 5e-4, -5e-4], dtype=torch.float64)[:, None].expand(4, 10)
    adv = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    mask = torch.ones(4, 10, dtype=torch.bool)
    terms = gspo(d, torch.zeros_like(d), adv, mask, **GSPO_CLIP)
    assert terms.clipped.tolist() == [True, False, False, True]
    assert terms.ratio.tolist() == pytest.approx([1.00050013, 0.99950012, 1.00050013, 0.99950012], abs=1e-8)


@pytest.mark.parametrize("objective", ALL)
@pytest.mark.parametrize("poison", [math.nan, -math.inf, math.inf, 1e30])
def test_padding_cannot_be_felt(objective, poison):
    """Whatever stands off the mask, values and gradients are those of the unpadded rows; catches `* mask` (0 * nan)."""
    logp, old, adv, mask = batch([5, 1, 9], drift=0.05, width=9)
    clean, clean_grad = gradient(objective, logp, old, adv, mask, **GRPO_CLIP)
    dirty_logp = torch.where(mask, logp, poison).detach()
    dirty_logp = torch.cat([dirty_logp, torch.full((3, 4), poison, dtype=torch.float64)], 1).requires_grad_()
    dirty_old = torch.cat([torch.where(mask, old, poison), torch.full((3, 4), poison, dtype=torch.float64)], 1)
    wide = torch.cat([mask, torch.zeros(3, 4, dtype=torch.bool)], 1)
    dirty, dirty_grad = gradient(objective, dirty_logp, dirty_old, adv, wide, **GRPO_CLIP)
    torch.testing.assert_close(dirty.value, clean.value, rtol=1e-13, atol=0)
    torch.testing.assert_close(dirty_grad[:, :9], clean_grad, rtol=1e-13, atol=0)
    assert not dirty_grad[~wide].any()
    assert not dirty.clipped[~wide].any() if dirty.clipped.ndim == 2 else True


@pytest.mark.parametrize("objective", ALL)
def test_a_nan_at_a_trained_position_is_not_hidden(objective):
    """The guard of the exponent must not turn NaN into a number."""
    logp, old, adv, mask = batch([5, 3], drift=0.05)
    old[1, 1] = math.nan
    value = objective(logp, old, adv, mask, **GRPO_CLIP).value
    assert value.isnan().tolist() == [False, True]


@pytest.mark.parametrize("objective", ALL)
def test_a_response_without_tokens_has_no_loss_and_stays_in_n(objective):
    """|y_i| = 0: value 0, no gradient, not clipped; the other rows keep their 1/N with N = 3."""
    logp, old, adv, mask = batch([5, 0, 3], drift=0.3)
    terms, grad = gradient(objective, logp, old, adv, mask, **GSPO_CLIP)
    assert terms.value[1].item() == 0.0
    assert not grad[1].any()
    assert not terms.clipped[1].any()
    expected = closed_form(objective, logp[::2], old[::2], adv[::2], mask[::2], 3e-4, 4e-4) * 2 / 3
    torch.testing.assert_close(grad[::2], expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("objective", ALL)
def test_micro_batches_add_up(objective):
    """Values of any cut of the batch add up to the whole; catches a per-micro-batch mean."""
    logp, old, adv, mask = batch([5, 1, 9, 3, 7], drift=0.1)
    whole = objective(logp, old, adv, mask, **GSPO_CLIP).value
    for cut in ([0, 1], [2], [3, 4]), ([4, 2], [0, 3, 1]):
        parts = [objective(logp[rows], old[rows], adv[rows], mask[rows], **GSPO_CLIP).value for rows in cut]
        order = torch.cat([torch.tensor(rows) for rows in cut])
        torch.testing.assert_close(torch.cat(parts), whole[order], rtol=1e-13, atol=0)


@pytest.mark.parametrize("objective", ALL)
def test_on_policy_all_are_reinforce_with_length_norm(objective):
    """logp = old_logp: every ratio is 1, nothing binds, and the gradient is A_i / (N |y_i|) at every trained token."""
    _, old, adv, mask = batch([5, 1, 9], drift=0.1)
    logp = old.clone().requires_grad_()
    terms, grad = gradient(objective, logp, old, adv, mask, **GSPO_CLIP)
    expected = torch.where(mask, adv[:, None] / (3 * mask.sum(-1, keepdim=True)), 0.0)
    torch.testing.assert_close(grad, expected, rtol=1e-13, atol=0)
    assert not terms.clipped.any()


def test_exponents_are_guarded():
    """w and s are clamped at e^+-20 just before exp, with zero gradient there; s guards the mean, not the sum."""
    logp = torch.tensor([[25.0, -3.0], [30.0, 30.0], [-40.0, 41.0]], dtype=torch.float64, requires_grad=True)
    zero, mask = torch.zeros(3, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.bool)
    w = token_ratio(logp, zero, mask)
    assert w[0].tolist() == pytest.approx([math.exp(GUARD), math.exp(-3)])
    (grad,) = torch.autograd.grad(w.sum(), logp)
    assert grad[0].tolist() == pytest.approx([0.0, math.exp(-3)])
    s = sequence_ratio(logp, zero, mask)
    assert s.tolist() == pytest.approx([math.exp(11), math.exp(20), math.exp(0.5)])
    (grad,) = torch.autograd.grad(s.sum(), logp)
    assert grad[1].tolist() == [0.0, 0.0]
    assert grad[2].tolist() == pytest.approx([math.exp(0.5) / 2] * 2)


def test_gspo_token_is_gspo_at_the_guard():
    """|log s| > 20: value s = e^20 for both, and zero gradient for both, whatever the sign of A."""
    logp = torch.tensor([[25.0, 25.0], [-30.0, -30.0], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    zero, mask = torch.zeros(3, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.bool)
    adv = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)
    a, grad_a = gradient(gspo, logp, zero, adv, mask, **NO_CLIP)
    b, grad_b = gradient(gspo_token, logp, zero, adv, mask, **NO_CLIP)
    torch.testing.assert_close(a.value, b.value, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_a, grad_b, rtol=1e-12, atol=0)
    assert not grad_b[:2].any()
    assert grad_b[2].all()


def test_geometric_mean_lies_between_the_token_ratios():
    """min_t w_it <= s_i <= max_t w_it, and s_it has the value of s_i at every token."""
    logp, old, _, mask = batch([5, 1, 9], drift=0.4)
    w, s = token_ratio(logp, old, mask), sequence_ratio(logp, old, mask)
    assert (w.masked_fill(~mask, math.inf).amin(-1) <= s + 1e-12).all()
    assert (w.masked_fill(~mask, 0.0).amax(-1) >= s - 1e-12).all()
    s_it = sequence_token_ratio(logp, old, mask)
    torch.testing.assert_close(s_it, s[:, None].expand_as(s_it), rtol=1e-13, atol=0)
