"""A batch like that of a comparison of trainers (64 responses, 23 to 2048 tokens): which gradient is Eq. 5?

Several trainers ship, under the name GSPO, the mean over *tokens* of a sequence ratio. Its gradient is written out here
in closed form; ours is the paper's and not that one.
"""

import pytest
import torch

from gspo.algorithms.objectives import gspo, gspo_token

LOW, HIGH = 3e-4, 4e-4


def batch():
    """Log-normal lengths of median 324 (sd 0.9) in [23, 2048], one drift, standard normal advantages; float64."""
    g = torch.Generator().manual_seed(0)
    length = (324 * (0.9 * torch.randn(64, generator=g)).exp()).round().clamp(23, 2048).long()
    mask = torch.arange(2048)[None] < length[:, None]
    old = -torch.rand(64, 2048, generator=g, dtype=torch.float64)
    drift = 1e-3 * torch.randn(64, 1, generator=g, dtype=torch.float64)
    noise = 5e-3 * torch.randn(64, 2048, generator=g, dtype=torch.float64)
    adv = torch.randn(64, generator=g, dtype=torch.float64)
    return (old + drift + noise).requires_grad_(), old, adv, mask, length.double()


def closed_forms():
    """d J / d logp of Eq. 5, and of the token mean of the same clipped terms: [64, 2048] each, without autograd.

    Eq. 5: s_i A_i / (N |y_i|). Length-weighted: every token carries its response's term, so response i weighs |y_i|,
    and the gradient is s_i A_i / sum_j |y_j|. Both 0 where the clip binds.
    """
    logp, old, adv, mask, length = batch()
    s = (torch.where(mask, logp.detach() - old, 0.0).sum(-1) / length).exp()
    free = ~(((adv > 0) & (s > 1 + HIGH)) | ((adv < 0) & (s < 1 - LOW)))
    paper = torch.where(mask & free[:, None], (s * adv / (64 * length))[:, None], 0.0)
    weighted = torch.where(mask & free[:, None], (s * adv / length.sum())[:, None], 0.0)
    return paper, weighted, free


def cosine(a, b):
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


@pytest.mark.parametrize("objective", [gspo, gspo_token])
def test_ours_is_equation_5(objective):
    """Cosine 1 and norm 1 to the paper's gradient; the batch has bound and free responses."""
    logp, old, adv, mask, _ = batch()
    paper, _, free = closed_forms()
    assert 10 < free.sum() < 54
    terms = objective(logp, old, adv, mask, clip_low=LOW, clip_high=HIGH)
    (grad,) = torch.autograd.grad(terms.value.sum() / 64, logp)
    assert cosine(grad, paper) == pytest.approx(1.0, abs=1e-12)
    assert (grad.norm() / paper.norm()).item() == pytest.approx(1.0, abs=1e-12)


def test_ours_is_not_the_length_weighted_variant():
    """The token mean points elsewhere: cosine well under 1, and the closed form is what such a loss computes."""
    logp, old, adv, mask, length = batch()
    paper, weighted, _ = closed_forms()
    log_s = torch.where(mask, logp - old, 0.0).sum(-1) / length
    s_token = log_s[:, None].expand_as(mask).exp()
    terms = torch.minimum(s_token * adv[:, None], s_token.clamp(1 - LOW, 1 + HIGH) * adv[:, None])
    (theirs,) = torch.autograd.grad(terms[mask].sum() / mask.sum(), logp)
    torch.testing.assert_close(theirs, weighted, rtol=1e-9, atol=1e-18)
    assert cosine(paper, weighted) < 0.8


def test_two_weightings_of_the_clip_fraction_are_two_numbers():
    """The same update, counted by response and by token, differs: the two must not share a name."""
    _, _, free = closed_forms()
    *_, length = batch()
    by_response = (~free).double().mean().item()
    by_token = (length * ~free).sum().item() / length.sum().item()
    assert abs(by_response - by_token) / by_response > 0.05
