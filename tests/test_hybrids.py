"""Neighbours of the paper's objectives: closed-form gradients in float64, and equality with their parents."""

import math

import pytest
import torch
from test_objectives import GRPO_CLIP, GSPO_CLIP, NO_CLIP, batch, binds

from gspo.algorithms.hybrids import cispo, dapo, dr_grpo, gmpo, grpo_seqclip, gspo_tokenclip, reinforce
from gspo.algorithms.objectives import grpo, gspo, gspo_token

UPPER = {"clip_low": None, "clip_high": 0.2}


def gradient(objective, logp, old, adv, mask, **keywords):
    """d J / d logp with the objective's own denominator."""
    terms = objective(logp, old, adv, mask, **keywords)
    count = {"sequences": len(logp), "tokens": int(mask.sum())}[terms.denominator]
    (grad,) = torch.autograd.grad(terms.value.sum() / count, logp)
    return terms, grad


def parts(logp, old, mask):
    """log w, w, s, |y_i| and N without the project's own ratio functions."""
    d = torch.where(mask, logp.detach() - old, 0.0)
    length = mask.sum(-1, keepdim=True).double()
    return d, d.exp(), (d.sum(-1, keepdim=True) / length).exp(), length, len(logp)


def expected_gradient(objective, logp, old, adv, mask, low, high):
    """Each objective's d J / d logp, written out from its definition."""
    d, w, s, length, n = parts(logp, old, mask)
    a, tokens = adv[:, None], mask.sum()
    if objective is grpo_seqclip:
        grad = torch.where(binds(s, a, low, high), 0.0, w * a / (n * length))
    elif objective is gspo_tokenclip:
        grad = torch.where(binds(w, a, low, high), 0.0, s * a / (n * length))
    elif objective is dapo:
        grad = torch.where(binds(w, a, low, high), 0.0, w * a / tokens)
    elif objective is cispo:
        grad = w.clamp(max=math.inf if high is None else 1 + high) * a / tokens
    elif objective is gmpo:
        bound = binds(w, a, low, high)
        limit = torch.where(a > 0, math.log1p(high or 0), math.log1p(-(low or 0)))
        g = (torch.where(bound, limit, d).sum(-1, keepdim=True) / length).exp()
        grad = torch.where(bound, 0.0, g * a / (n * length))
    else:
        grad = (a / n).expand_as(w)
    return torch.where(mask, grad, 0.0)


@pytest.mark.parametrize(
    ("objective", "clip"),
    [(f, c) for f in (grpo_seqclip, gspo_tokenclip, dapo, gmpo) for c in (GRPO_CLIP, GSPO_CLIP, NO_CLIP)]
    + [(cispo, UPPER), (cispo, NO_CLIP), (reinforce, NO_CLIP)],
)
def test_gradient_is_the_closed_form(objective, clip):
    """Catches a missing stop-gradient, the clip tested on the wrong ratio, the wrong denominator."""
    logp, old, adv, mask = batch([5, 1, 9, 3, 7, 2], drift=0.3, width=12)
    terms, grad = gradient(objective, logp, old, adv, mask, **clip)
    expected = expected_gradient(objective, logp, old, adv, mask, clip["clip_low"], clip["clip_high"])
    torch.testing.assert_close(grad, expected, rtol=1e-7, atol=1e-12)
    if clip is not NO_CLIP:
        assert terms.clipped.any()
        assert not terms.clipped.all()
    else:
        assert not terms.clipped.any()


@pytest.mark.parametrize("clip", [GRPO_CLIP, NO_CLIP])
def test_dr_grpo_divides_token_sums_by_the_constant(clip):
    """Gradient w A / (N C) whatever the length; with C = |y_i| for all it is GRPO."""
    logp, old, adv, mask = batch([4, 4, 4], drift=0.3)
    _, grad = gradient(dr_grpo, logp, old, adv, mask, constant=4.0, **clip)
    _, parent = gradient(grpo, logp, old, adv, mask, **clip)
    torch.testing.assert_close(grad, parent, rtol=1e-12, atol=0)
    logp, old, adv, mask = batch([2, 6], drift=0.3)
    _, grad = gradient(dr_grpo, logp, old, adv, mask, constant=10.0, **NO_CLIP)
    _, w, _, _, _ = parts(logp, old, mask)
    torch.testing.assert_close(grad, torch.where(mask, w * adv[:, None] / 20, 0.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("constant", [0.0, -1.0, math.nan])
def test_dr_grpo_refuses_a_constant_that_is_not_positive(constant):
    """Zero would divide by zero, a negative one would train backwards."""
    logp, old, adv, mask = batch([2, 6], drift=0.3)
    with pytest.raises(ValueError, match="constant"):
        dr_grpo(logp, old, adv, mask, constant=constant, **NO_CLIP)


def test_without_clip_hybrids_are_their_parents():
    """grpo-seqclip is GRPO and gspo-tokenclip is GSPO-token when nothing is clipped: they differ in the clip alone."""
    logp, old, adv, mask = batch([5, 1, 9], drift=0.3)
    for child, parent in ((grpo_seqclip, grpo), (gspo_tokenclip, gspo_token), (gmpo, gspo)):
        a, grad_a = gradient(child, logp, old, adv, mask, **NO_CLIP)
        b, grad_b = gradient(parent, logp, old, adv, mask, **NO_CLIP)
        torch.testing.assert_close(a.value, b.value, rtol=1e-12, atol=0)
        torch.testing.assert_close(grad_a, grad_b, rtol=1e-12, atol=1e-16)


def test_hybrids_swap_which_ratio_the_clip_tests():
    """grpo-seqclip binds exactly where gspo does, gspo-tokenclip exactly where grpo does."""
    logp, old, adv, mask = batch([5, 1, 9, 4], drift=0.3)
    seq = grpo_seqclip(logp, old, adv, mask, **GSPO_CLIP)
    assert torch.equal(seq.clipped, gspo(logp, old, adv, mask, **GSPO_CLIP).clipped)
    tok = gspo_tokenclip(logp, old, adv, mask, **GRPO_CLIP)
    assert torch.equal(tok.clipped, grpo(logp, old, adv, mask, **GRPO_CLIP).clipped)


def test_dapo_weighs_tokens_alike():
    """On policy with A = 1 every token's gradient is 1 / sum |y_i|, where GRPO gives 1 / (N |y_i|)."""
    _, old, _, mask = batch([2, 6], drift=0.3)
    logp = old.clone().requires_grad_()
    _, grad = gradient(dapo, logp, old, torch.ones(2, dtype=torch.float64), mask, **GRPO_CLIP)
    torch.testing.assert_close(grad, mask.double() / 8, rtol=1e-13, atol=0)


def test_gmpo_clips_before_the_mean():
    """w = [1.5, 1.0], A = 1, range 0.2: log clip gives sqrt(1.2); clipping after the mean gives 1.2."""
    logp = torch.tensor([[math.log(1.5), 0.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    terms, grad = gradient(gmpo, logp, torch.zeros(1, 2), torch.ones(1, dtype=torch.float64), mask, **clip)
    assert terms.value.item() == pytest.approx(math.sqrt(1.2))
    assert grad[0].tolist() == pytest.approx([0.0, math.sqrt(1.2) / 2])


def test_refusals():
    """An option without meaning is refused with the reason, not ignored."""
    logp, old, adv, mask = batch([2, 6], drift=0.3)
    with pytest.raises(ValueError, match=r"clip\.low=0.2.*above"):
        cispo(logp, old, adv, mask, **GRPO_CLIP)
    with pytest.raises(ValueError, match="no ratio to clip"):
        reinforce(logp, old, adv, mask, **GRPO_CLIP)
    for objective in (grpo_seqclip, gmpo):
        with pytest.raises(ValueError, match="one advantage a response"):
            objective(logp, old, adv[:, None].expand_as(old), mask, **GRPO_CLIP)


@pytest.mark.parametrize("objective", [grpo_seqclip, gspo_tokenclip, dapo, cispo, gmpo, reinforce])
def test_padding_cannot_be_felt(objective):
    """NaN off the mask reaches neither value nor gradient."""
    logp, old, adv, mask = batch([5, 1, 9], drift=0.05, width=12)
    clip = UPPER if objective is cispo else NO_CLIP if objective is reinforce else GRPO_CLIP
    clean, clean_grad = gradient(objective, logp, old, adv, mask, **clip)
    dirty_logp = torch.where(mask, logp, math.nan).detach().requires_grad_()
    dirty_old = torch.where(mask, old, math.nan)
    dirty, dirty_grad = gradient(objective, dirty_logp, dirty_old, adv, mask, **clip)
    torch.testing.assert_close(dirty.value, clean.value, rtol=1e-13, atol=0)
    torch.testing.assert_close(dirty_grad, clean_grad, rtol=1e-13, atol=0)
